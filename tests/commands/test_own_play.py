"""`collect`, `play`, `serve env` and `runs replay` in an environment that only a file of the user's knows."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from onthejob.cli import first_word, main
from onthejob.commands.collect_demonstrations import spread
from onthejob.commands.named_env import NamedEnv
from onthejob.commands.play_episode import Play
from onthejob.commands.play_own import play_own
from onthejob.commands.sft_data import examples_of, read_demonstrations
from onthejob.commands.terminal import Output, Terminal
from onthejob.models.chat import ChatEncoder
from onthejob.plugins import resolve
from onthejob.rollout.play import play
from onthejob.testing import tiny_model
from onthejob.types import Sampling, Split, StopReason

GUESS = '''
"""Find a letter."""

from onthejob import Env, Next, Split, Task


class Guess(Env):
    """Find the letter.

    What follows is for readers of the file.
    """

    roles = ("guesser",)
    max_turns, max_new_tokens = 3, 3
    letters: str = "abcd"
    """Letters to choose from."""

    def tasks(self, split: Split) -> list[Task]:
        return self.seeded(split, count=7, family="letters")

    def reset(self, task: Task) -> Next:
        self.secret = self.letters[task.draw("secret") % len(self.letters)]
        return self.ask("guesser", "which letter", system="guess a letter", legal=list(self.letters))

    def step(self, reply: str) -> Next:
        if reply.strip() not in list(self.letters):
            return self.invalid("no letter", reward=-0.5)
        if reply.strip() == self.secret:
            return self.end(reward=1.0, metrics={"found": 1.0})
        return self.tell("another letter")

    def players(self):
        return {
            "in_order": lambda seen, seed: "abcd"[0] if seen.view["text"] == "which letter" else "abcd"[1 + seed % 3],
            "mumbles": lambda seen, seed: "well",
        }
'''
TRADE = '''
"""Two trade: each has a secret, which the other never reads."""

from onthejob import Env, Next, Split, Task


class Trade(Env):
    roles = ("buyer", "seller")
    max_turns, max_new_tokens = 4, 3

    def tasks(self, split: Split) -> list[Task]:
        return self.seeded(split, count=5)

    def reset(self, task: Task) -> Next:
        self.round = 0
        return self.asks()

    def asks(self, **paid) -> Next:
        role = self.roles[self.round % 2]
        fresh = True if role == "seller" else None
        return self.ask(role, f"{role} secret {self.round}", legal=["yes", "no"], fresh=fresh, **paid)

    def step(self, reply: str) -> Next:
        self.round += 1
        paid = {"buyer": 1.0, "seller": 0.25} if reply.strip() == "yes" else {}
        return self.end(rewards=paid) if self.round == 4 else self.asks(rewards=paid)
'''


@pytest.fixture
def guess(tmp_path: Path) -> Path:
    """The file, in the empty folder in which `call` runs commands."""
    path = tmp_path / "guess.py"
    path.write_text(GUESS, encoding="utf-8")
    return path


@pytest.fixture
def trade(tmp_path: Path) -> Path:
    path = tmp_path / "trade.py"
    path.write_text(TRADE, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model that knows the words of the file."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny = tiny_model(words=["which", "letter", "another", "guess", *"abcd"])
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    return folder


def model(path: Path) -> tuple[str, ...]:
    return "--model.name", str(path), "--model.dtype", "float32"


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_conversations_are_collected_imitated_trained_and_replayed(call, guess: Path, tiny_path: Path):
    found = call("collect", "--env", "guess.py", "--count", "20", "--out", "shown")
    rows = rows_of(Path("shown/guesser.jsonl"))
    counts = found["counts"]["guesser"]
    assert (found["policy"], found["episodes"], counts["conversations"], counts["negative"]) == ("in_order", 20, 20, 0)
    assert counts["replies"] == sum(message["role"] == "assistant" for row in rows for message in row["messages"])
    assert counts["reward"] == pytest.approx(sum(row["reward"] for row in rows) / 20)
    assert {(row["marked"], row["family"], row["role"]) for row in rows} == {("expert", "letters", "guesser")}
    for row in rows:
        said = [(message["role"], message["content"]) for message in row["messages"]]
        assert said[:3] == [("system", "guess a letter"), ("user", "which letter"), ("assistant", "a")]
        assert said[-1][0] == "assistant"
    assert len({row["task"] for row in rows}) == 7
    # The same task again, with another seed of the player.
    assert len({json.dumps(row) for row in rows}) > 7
    again = call("collect", "--env", "guess.py:Guess", "--policy", "in_order", "--count", "20", "--out", "again")
    assert again["counts"] == found["counts"]
    assert Path("again/guesser.jsonl").read_bytes() == Path("shown/guesser.jsonl").read_bytes()

    (trained,) = call("sft", "shown", "--epochs", "3", "--lr", "0.01", "--lora.rank", "2", *model(tiny_path))
    assert trained["demonstrations"] == counts["replies"]
    assert trained["last loss"] < trained["first loss"]
    played = call("play", "guess.py", "--policy", "adapters/sft", "--transcript", "turns.jsonl", *model(tiny_path))
    assert played["turns"] == len(rows_of(Path("turns.jsonl"))) >= 1
    small = ("--collect.episodes", "2", "--branch.group-size", "2", "--lora.rank", "2")
    run = ("train", "--env", "guess.py", "--init", "adapters/sft", *small, *model(tiny_path))
    assert call(*run, "--iterations", "1", "--name", "a")["iterations"] == 1
    replayed = call("runs", "replay", "a")
    assert replayed["matches"]
    assert len(replayed["episodes"]) == 4
    assert replayed["turns"] >= 4
    assert replayed["prompts"] == replayed["turns"]
    assert call("train", "--resume", "a", "--extend", "2")["iterations"] == 2
    assert call("runs", "replay", "a", "--iteration", "2")["matches"]
    guess.write_text(GUESS.replace("return self.end(reward=1.0", "return self.end(reward=0.75"), encoding="utf-8")
    # In another process, as this one has the file already.
    other = subprocess.run(
        [sys.executable, "-m", "onthejob", "runs", "replay", "a", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert other.returncode == int(not json.loads(other.stdout)["matches"])
    assert "the source of" in other.stderr


def test_episodes_in_worker_processes_are_the_same_and_one_that_hangs_costs_its_own(call, guess: Path):
    options = '    processes: int = 0\n    step_limit_s: float = 60.0\n    stuck: str = ""\n    letters: str'
    stuck = "        if self._now.task.id == self.stuck:\n            __import__('time').sleep(60)\n"
    text = guess.read_text(encoding="utf-8").replace("    letters: str", options)
    guess.write_text(text.replace("-> Next:\n        if reply", f"-> Next:\n{stuck}        if reply"), encoding="utf-8")
    call("collect", "--env", "guess.py", "--count", "14", "--out", "here")
    call("collect", "--env", "guess.py", "--count", "14", "--out", "apart", "--env.processes", "2")
    assert Path("apart/guesser.jsonl").read_bytes() == Path("here/guesser.jsonl").read_bytes()
    assert call("env", "show", "guess.py", "--env.processes", "2")["processes"] == 2
    hung = ("--env.processes", "2", "--env.step-limit-s", "1", "--env.stuck", "guess-train-00002")
    found = call("collect", "--env", "guess.py", "--count", "7", "--out", "hung", *hung, code=1)
    # Episodes that lived in the same process end with it.
    assert 1 <= found["failed"] < 7
    assert "guess-train-00002" not in {row["task"] for row in rows_of(Path("hung/guesser.jsonl"))}


def test_what_is_collected_is_what_a_model_reads_when_it_plays(call, guess: Path, tiny_path: Path):
    """Token for token: prompts of the conversations, encoded for imitation, are those of the same episodes in play."""
    call("collect", "--env", "guess.py", "--count", "7", "--out", "shown")
    from transformers import AutoTokenizer

    chat = ChatEncoder(AutoTokenizer.from_pretrained(tiny_path, local_files_only=True))
    shown = [examples_of(chat, row) for row in read_demonstrations(Path("shown/guesser.jsonl"), 0)]
    place = NamedEnv(ref="guess.py", env=resolve("guess.py")())
    script = place.players(())["in_order"]

    class Reading:
        version, reads = "reading", "tokens"

        def act(self, contexts, sampling):
            said = script.act(contexts, sampling)
            return [type(one)(text=one.text, token_ids=chat.reply_ids(one.text)) for one in said]

    tasks = place.tasks(Split.TRAIN)
    with place.opened() as make_env:
        envs = [make_env() for _ in tasks]
        episodes = play(envs, tasks, {"guesser": Reading()}, Sampling(), seed=0, encoder=chat, max_turns=place.env.max_turns)
    for examples, episode in zip(shown, episodes, strict=True):
        turns = episode.trajectories["guesser"].turns
        assert [example.prompt_ids for example in examples] == [turn.prompt_ids for turn in turns]
        assert [example.completion_ids for example in examples] == [turn.completion.token_ids for turn in turns]


def test_each_role_has_its_own_conversations_and_rewards(call, trade: Path):
    found = call("collect", "--env", "trade.py", "--count", "5", "--out", "shown")
    assert found["policy"] == "random"
    buyer, seller = rows_of(Path("shown/buyer.jsonl")), rows_of(Path("shown/seller.jsonl"))
    # The buyer's context continues; the seller's begins anew with every request.
    assert (len(buyer), len(seller)) == (5, 10)
    for row in buyer:
        assert [message["content"] for message in row["messages"]][::2] == ["buyer secret 0", "buyer secret 2"]
    assert [row["messages"][0]["content"] for row in seller] == ["seller secret 1", "seller secret 3"] * 5
    assert {row["marked"] for row in buyer + seller} == {"random"}
    yes = sum(message["content"] == "yes" for row in buyer + seller for message in row["messages"])
    assert sum(row["reward"] for row in buyer) == yes
    assert sum(row["reward"] for row in seller) == 0.25 * yes


def test_unusable_conversations_are_marked_and_wrong_options_end_in_one_line(call, guess: Path, tmp_path: Path):
    found = call("collect", "--env", "guess.py", "--policy", "mumbles", "--count", "3")
    assert found["counts"]["guesser"] == {"conversations": 3, "replies": 9, "negative": 3, "reward": -1.5}
    assert {row["marked"] for row in rows_of(Path("demonstrations/guesser.jsonl"))} == {"negative"}
    said = call("collect", "--env", "guess.py", "--policy", "absent", code=2)
    assert "unknown player 'absent'" in said
    assert "Here the scripted players are in_order, mumbles, random." in said
    assert "count must be >= 1 episode, got 0" in call("collect", "--env", "guess.py", "--count", "0", code=2)
    assert "Unrecognized options: --count" in call("collect", "--count", "5", code=2)
    (tmp_path / "bare.py").write_text(GUESS.replace("def players", "def unused").replace(", legal=list(self.letters)", ""))
    assert "Guess has no scripted player" in call("collect", "--env", "bare.py", code=2)
    assert "guess has no scripted player, so name who plays guesser" in call("play", "bare.py", code=2)
    (tmp_path / "breaks.py").write_text(GUESS.replace('return self.tell("another letter")', "raise OSError('gone')"))
    broken = call("collect", "--env", "breaks.py", "--count", "7", "--out", "some", code=1)
    assert broken["failed"] + broken["episodes"] == 7
    assert broken["episodes"] == broken["counts"]["guesser"]["conversations"] == len(rows_of(Path("some/guesser.jsonl")))
    assert 0 < broken["failed"] < 7


def test_an_episode_is_shown_turn_by_turn(guess: Path, trade: Path, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["play", "guess.py", "--env.letters", "a"]) == 0
    shown = capsys.readouterr().out
    assert "guesser reads: [system] guess a letter\nwhich letter" in shown
    assert "   1 guesser      +1.00  a" in shown
    assert "guess-train-00000: done after 1 turns" in shown
    assert main(["play", "--policy", "mumbles", "guess.py", "--task", "guess-test-00002"]) == 0
    shown = capsys.readouterr().out
    assert "   3 guesser      -0.50  'well' (invalid)" in shown
    assert "guess-test-00002: max_turns after 3 turns" in shown
    assert main(["play", "--env", "trade.py", "--seat", "seller=random"]) == 0
    assert "seller reads: seller secret 1" in capsys.readouterr().out


def test_play_refuses_what_it_cannot_do(call, guess: Path, trade: Path):
    assert call("play", "guess.py", "--seed", "1") == call("play", "--env", "guess.py", "--seed", "1")
    assert call("play", "guess.py", "--split", "dev", "--task", "letters")["task"] == "guess-dev-00000"
    for words, said in (
        (("guess.py", "--task", "other", "--split", "dev"), "no task or family 'other' of guess in the split dev"),
        (("guess.py", "--seat", "boss=random"), "--seat takes role=who with a role of guesser, got 'boss=random'"),
        (("guess.py", "--policy", "human"), "a person plays in the terminal. Drop --json"),
        (("trade.py", "--policy", "random", "--seat", "buyer=random", "seller=random"), "--policy random has no seat"),
        (("trade.py", "--policy", "nobody"), "unknown player 'nobody'"),
        (("missing.py",), "there is no file missing.py"),
        (("ofice",), "there is no environment 'ofice'"),
        (("office", "--env", "guess.py"), "named twice: office and --env guess.py"),
        (("claw", "--split", "dev"), "Unrecognized options: --split"),
        (("--env.reflect", "guess.py"), "name the environment before the options"),
    ):
        assert said in call("play", *words, code=2)


def test_a_person_reads_only_what_its_role_may_know(trade: Path, capsys: pytest.CaptureFixture[str]):
    lines = iter(["yes", "no"])
    place = NamedEnv(ref=str(trade), env=resolve(str(trade))())

    def played(ask) -> int:
        return play_own(Terminal(Output()), place, Play(policy="human", seat=("seller=random",), seed=0), Sampling(), ask=ask)

    assert played(lambda prompt: next(lines)) == 0
    shown = capsys.readouterr().out
    assert "buyer reads: buyer secret 0" in shown
    assert "possible: yes, no" in shown
    assert "seller secret" not in shown
    assert "max_turns after 4 turns" in shown or "done after 4 turns" in shown

    def ended(prompt: str) -> str:
        raise EOFError

    with pytest.raises(KeyboardInterrupt):
        played(ended)


def wait_for(address: str) -> None:
    """Return when the server accepts requests."""
    end = time.monotonic() + 120
    while True:
        with suppress(httpx.TransportError):
            if httpx.get(f"{address}/health", timeout=60, trust_env=False).status_code == 200:
                return
        assert time.monotonic() < end, "the server did not start"
        time.sleep(0.1)


def test_the_environment_is_the_first_word_that_is_no_option():
    for line, found in (
        ("guess.py --policy a", "guess.py"),
        ("--policy a guess.py", "guess.py"),
        ("--json guess.py", "guess.py"),
        ("--seed=3 guess.py:Guess", "guess.py:Guess"),
        ("--seat buyer=a seller=b", None),
        ("--policy human", None),
        ("", None),
    ):
        assert first_word(line.split()) == found
    assert [spread([*"abc"], count) for count in (1, 2, 3, 5)] == [["a"], ["a", "b"], [*"abc"], [*"abcab"]]


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_openenv_client_plays_against_the_server(guess: Path, trade: Path, tmp_path: Path):
    pytest.importorskip("openenv", reason="needs the extra openenv")
    from onthejob.compat.openenv import SeatAction
    from onthejob.compat.openenv_client import SeatClient

    patient: dict[str, Any] = {"connect_timeout_s": 120.0, "message_timeout_s": 120.0}
    for words, steps in ((["guess.py", "--env.letters", "b"], ["x", "b"]), (["trade.py"], ["yes", "no"])):
        command = [sys.executable, "-m", "onthejob", "serve", "env", *words, "--port", "0"]
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            said = next(line for line in process.stderr if " at http://" in line)
            address = said.split(" at ")[1].split(";")[0]
            wait_for(address)
            with SeatClient(base_url=address, **patient).sync() as client:
                seen = client.reset(split="dev", index=2, legal=True).observation
                assert seen.task_id == f"{words[0].removesuffix('.py')}-dev-00002"
                results = [client.step(SeatAction(reply=reply)) for reply in steps]
                assert [result.done for result in results] == [False, True]
                if words[0] == "guess.py":
                    assert seen.legal_actions == ["b"]
                    assert [result.observation.valid for result in results] == [False, True]
                    assert [result.reward for result in results] == [-0.5, 1.0]
                    assert results[-1].observation.metrics["found"] == 1.0
                else:
                    assert client.state().teammates == {"seller": "random"}
                    assert all(result.reward is not None and result.reward >= 0 for result in results)
        finally:
            process.terminate()
            process.communicate(timeout=120)


def test_a_served_environment_describes_itself_and_hides_its_payload(guess: Path, trade: Path):
    mute = trade.with_name("mute.py")
    mute.write_text(
        trade.read_text(encoding="utf-8").replace("class Trade", "class Mute").replace(' legal=["yes", "no"],', ""),
        encoding="utf-8",
    )
    from onthejob.compat.seat_session import SeatError, SeatSession, SessionStart
    from onthejob.compat.served import served

    offered = served(resolve(str(guess))())
    assert (offered.name, offered.description, offered.inline) == ("guess", "Find the letter.", True)
    assert offered.public(offered.task_at(Split.TEST, 3, {})) == {"family": "letters"}
    seat = SeatSession(offered)
    assert seat.reset(SessionStart(seed=9)).role == "guesser"
    assert seat.task is not None
    assert seat.task.id == "guess-train-00002"
    with pytest.raises(SeatError, match="unknown option days; guess has none of its own"):
        seat.reset(SessionStart(seed=1, options={"days": 3}))
    alone = served(resolve(str(mute))())
    assert alone.description == "Mute, with the roles buyer, seller."
    with pytest.raises(SeatError, match=r"mute has no player for seller. Take every seat: role '\*'"):
        SeatSession(alone).reset(SessionStart(role="buyer"))
    table = SeatSession(alone)
    table.reset(SessionStart(role="*"))
    for role in ("buyer", "seller", "buyer", "seller"):
        seen = table.step("yes", role)
    assert seen.stop is StopReason.DONE
    assert table.returns == {"buyer": 4.0, "seller": 1.0}
