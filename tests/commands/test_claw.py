"""The commands on the claw: scripted players in real sandboxes, then all from demonstrations to rescoring on a tiny model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onthejob.claw import Claw
from onthejob.cli import main
from onthejob.commands.named_env import NamedEnv
from onthejob.commands.play_claw import PlayClaw, play_claw, said
from onthejob.commands.rescore import GradeKnown
from onthejob.commands.terminal import Output, Terminal, jsonable
from onthejob.commands.train import PLACE, Train
from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.claw.env import ACTOR, ClawEnvironment
from onthejob.envs.claw.policies import Gold
from onthejob.envs.claw.sandbox import open_host
from onthejob.envs.claw.splits import claw_tasks
from onthejob.envs.claw.stops import STANDARD
from onthejob.errors import ConfigError
from onthejob.learn.advantage import AdvantageConfig, advantages
from onthejob.models.chat import ChatEncoder
from onthejob.record import Run
from onthejob.rollout.collect_episodes import episode_groups
from onthejob.rollout.play import play
from onthejob.stack import find_adapters
from onthejob.testing import ScriptedTokens, teach, tiny_model, tiny_tokenizer
from onthejob.types import Message, Sampling, Split, Task

CORPUS = ("--env.count", "64")


@pytest.mark.parametrize(("who", "passed", "stop"), [("gold", 1.0, "done"), ("noop", 0.0, "done"), ("idle", 0.0, "max_turns")])
def test_scripted_players_play(call, who: str, passed: float, stop: str):
    shown = call("play", "claw", "--policy", who, *CORPUS, "--task", "count-rows", "--transcript", "t.jsonl")
    assert (shown["metrics"]["passed"], shown["stop"], shown["error"]) == (passed, stop, None)
    assert shown["backend"] == "bwrap"
    assert all(verdict["passed"] for verdict in shown["verdicts"]) is bool(passed)
    assert sum(shown["reward"].values()) == pytest.approx(shown["metrics"]["reward"])
    lines = [json.loads(line) for line in Path("t.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(lines) == shown["turns"]
    assert {line["policy"] for line in lines} == {who}


def by_hand(capsys: pytest.CaptureFixture[str], lines: list[str], task: str) -> str:
    typed: Iterator[str] = iter(lines)

    def ask(prompt: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    capsys.readouterr()
    code = play_claw(
        Terminal(Output()), NamedEnv(ref="claw", env=Claw(count=64)), PlayClaw(policy="human", task=task), Sampling(), ask=ask
    )
    assert code == 0
    return capsys.readouterr().out


def test_a_person_types_commands_and_sees_what_an_agent_sees(capsys: pytest.CaptureFixture[str]):
    task = claw_tasks(Split.TRAIN, count=64)[0]
    gold = [line for command in task.payload["gold"] for line in command.splitlines()]
    out = by_hand(capsys, [*gold, "TASK_COMPLETE"], task.id)
    assert str(task.payload["intent"]).splitlines()[0] in out
    assert "exit code: 0" in out
    assert "passed; reward +0.9" in out
    assert "not passed" not in out
    assert "not passed" in by_hand(capsys, ["cat <<X", "two lines", "X"], task.id)


def test_what_a_person_means():
    assert said("TASK_COMPLETE", STANDARD) == "TASK_COMPLETE"
    assert said("ls -l", STANDARD) == block("ls -l")
    assert said(block("ls"), STANDARD) == block("ls")


@pytest.mark.parametrize(
    ("words", "said_"),
    [
        (("play", "claw", "--env.days", "3"), "Unrecognized options: --env.days"),
        (("play", "--task", "x"), "Unrecognized options: --task"),
        (("play", "claw", *CORPUS, "--task", "no-such-task"), "no task or family 'no-such-task'"),
        (("play", "claw", *CORPUS, "--policy", "nobody"), "unknown player 'nobody'"),
        (("play", "claw", "--policy", "human"), "Drop --json"),
        (("play", "claw", "--env.protocol.max-turns", "0"), "max_turns must be >= 1"),
        (("train", "--env", "claw", "--env.scenarios", "churn"), "Unrecognized options: --env.scenarios"),
        (("train", "--env.count", "9"), "Unrecognized options: --env.count"),
        (("train", "--env", "claw", "--roles", "sales"), "roles must be some of agent, got sales"),
        (("train", "--env", "claw", "--env.reward.mode", "binary", "--env.reward.turn-penalty", "0.1"), "no turn penalty"),
        (("train", "--env", "claw", "--env.folder", "nowhere"), "nowhere is not a folder"),
        (("train", "--env", "claw", "--env.official", "."), "clawgym_train"),
        (("train", "--env", "claw", "--branch.worlds", "3"), "branch.worlds: no effect where whole episodes are compared"),
        (("train", "--env", "claw", "--advantage.shrink"), "advantage.shrink needs the values"),
        (("train", "--advantage.shrink", "--branch.worlds", "1"), "branch.worlds is 1"),
        (("train", "--env", "claw", "--advantage.invalid-gap", "3"), "judged by its return alone"),
        (("train", "--env", "claw", "--grouping", "branch"), "--grouping branch needs a workplace that can be forked"),
        (("train", "--trainer", "http://127.0.0.1:1"), "set ONTHEJOB_TRAINER_TOKEN"),
        (("train", "--env", "claw", "--eval-tasks", "0"), "eval_tasks must be >= 1"),
        (("train", "--env", "claw", "--eval-tasks", "9"), "--eval-tasks has no effect without --eval-every"),
        (("train", "--smoke", "--from-groups", "a:1"), "--smoke collects"),
        (("train", "--trainer", "http://127.0.0.1:1", "--from-groups", "a:1"), "Leave --trainer out"),
        (("train", "--trainer-wait-s", "60"), "no effect without --trainer"),
        (("train", "--trainer", "http://127.0.0.1:1", "--trainer-wait-s", "-1"), "finite and >= 0"),
        (("train", "--trainer", "http://127.0.0.1:1", "--trainer-wait-s", "inf"), "finite and >= 0"),
        (("train", "--trainer", "http://127.0.0.1:1", "--trainer-wait-s", "nan"), "finite and >= 0"),
        (("collect", "--env", "claw", "--env.days", "3"), "Unrecognized options: --env.days"),
        (("collect", "--env.reader", "x", "--env.retries", "1"), "--env.retries, --env.reader has no effect in `collect`"),
        (("collect", "--policy", "expert-explained"), "writes reasoning, for which the compact prompt does not ask"),
        (("collect", "--env.prompt-budget", "900"), "--env.prompt-budget needs --env.tokenizer here"),
        (("collect", "--gold.count", "3"), "Unrecognized options: --gold.count"),
        (("collect", "--env", "claw", "--gold.count", "500"), "1..400"),
        (("compare", "noop", "--env", "claw", "--alone", "sales"), "--alone has no effect in claw, which has one role"),
        (("compare", "noop", "--env", "claw", "--limit", "-1"), "limit must be >= 0"),
        (("compare", "expert", "--env", "claw", *CORPUS), "gold, idle, noop"),
        (("serve", "env", "claw", "--env.profile", "full"), "Unrecognized options: --env.profile"),
        (("serve", "env", "--env.seeds", "3"), "--env.seeds has no effect in `serve env`"),
        (("play", "--env.first", "3"), "--env.first has no effect in `play`"),
        (("train", "--env.retries", "3"), "--env.retries must be 0 in training"),
        (("compare", "expert", "--env.tokenizer", "x"), "no effect without --env.prompt-budget"),
    ],
)
def test_options_that_cannot_work_are_refused(call, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said_: str):
    if words[0] == "serve":
        assert main(list(words)) == 2
        said_there = capsys.readouterr().err
    else:
        said_there = call(*words, code=2)
    assert said_ in " ".join(said_there.replace("\u2502", " ").split())
    assert "Traceback" not in said_there
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "has", "needed"),
    [
        (("play", "claw", *CORPUS, "--policy", "office"), "ceo, content, dev, hr, marketing, sales", "agent"),
        (("compare", "gold", "office", "--env", "claw", *CORPUS), "ceo, content, dev, hr, marketing, sales", "agent"),
        (("train", "--env", "claw", *CORPUS, "--init", "office"), "ceo, content, dev, hr, marketing, sales", "agent"),
        (("train", "--env", "claw", *CORPUS, "--init", "office", "--smoke"), "ceo, content, dev, hr, marketing, sales", "agent"),
        (("play", "office", "--team", "claw"), "agent", "ceo, dev, marketing, sales, content, hr"),
        (("play", "office", "--seat", "sales=claw"), "agent", "sales"),
    ],
)
def test_adapters_of_another_workplace_are_refused(call, kept_adapters: Path, words: tuple[str, ...], has: str, needed: str):
    for name in ("office", "claw"):
        Path(name).symlink_to(kept_adapters / name)
    # There is no such model: nothing was loaded before.
    told = " ".join(call(*words, "--model.name", "no/model", code=2).split())
    assert f"holds adapters of {has}; needed here is one of {needed}. Name a run or a folder that has one" in told
    assert not Path("runs").exists()


@pytest.mark.usefixtures("pages")
def test_scripted_rows_are_compared_on_the_same_tasks(call):
    small = ("--env", "claw", *CORPUS, "--limit", "5")
    shown = call("compare", "noop", "gold", *small, "--report", "r.html")
    passed = {row["team"]: row["mean"] for row in shown["means"] if row["metric"] == "passed" and row["stratum"] == "all"}
    assert passed == {"noop": 0.0, "gold": 1.0}
    (test,) = [row for row in shown["mcnemar"] if row["metric"] == "passed"]
    assert (test["first"], test["only_first"], test["only_second"], test["p"]) == ("gold", 5, 0, 2 / 32)
    assert shown["stops"] == {"noop": {"done": 1.0}, "gold": {"done": 1.0}}
    groupings = {"persona", "difficulty", "families", "families never trained on", "families and difficulty"}
    assert {row["grouping"] for row in shown["groups"]} == groupings
    whole = {row["kind"]: row["mean"] for row in shown["kinds"] if row["team"] == "gold"}
    assert set(whole.values()) == {1.0}
    page = Path("r.html").read_text(encoding="utf-8")
    assert "Assertions that hold, by kind" in page

    Path("earlier.json").write_text(json.dumps(shown), encoding="utf-8")
    both = call("compare", "idle", *small, "--beside", "earlier.json")
    assert {row["team"] for row in both["means"]} == {"noop", "gold", "idle"}
    fewer = ("--env", "claw", *CORPUS, "--limit", "4")
    assert "different tasks" in call("compare", "idle", *fewer, "--beside", "earlier.json", code=2)
    assert "temperature" in call("compare", "idle", *small, "--temperature", "0.5", "--beside", "earlier.json", code=2)
    other = ("--env.protocol.max-turns", "4")
    assert "env" in call("compare", "idle", *small, *other, "--beside", "earlier.json", code=2), "played under other rules"


def test_a_conversation_is_encoded_as_the_agent_sees_it():
    """What `sft` imitates has, token for token, the prompts that a policy is given when it plays the same conversation."""
    tasks = [task for task in claw_tasks(Split.TRAIN, count=64) if len(task.payload["gold"]) > 1][:1]
    tokenizer = tiny_tokenizer()
    chat = ChatEncoder(tokenizer)
    with open_host() as host:
        env = ClawEnvironment(host=host)
        policy = {ACTOR: ScriptedTokens(tokenizer, Gold(tasks))}
        sampling = Sampling(max_new_tokens=10_000)
        (episode,) = play([env], tasks, policy, sampling, seed=0, encoder=chat, max_turns=20)
        messages = list(env.reset(tasks[0]).messages)
        for turn in episode.transcript:
            messages.append(Message("assistant", turn.text))
            step = env.step(turn.text)
            messages += [] if step.observation is None else step.observation.messages
        env.close()
    turns = episode.trajectories[ACTOR].turns
    assert len(turns) >= 3
    shown = chat.replies(messages)
    assert shown == [(turn.prompt_ids, turn.completion.token_ids) for turn in turns]
    with pytest.raises(ConfigError, match="without one"):
        chat.replies(messages[:2])
    with pytest.raises(ConfigError, match="two in a row"):
        chat.replies([*messages, messages[-1]])


@pytest.mark.slow
def test_the_pool_grows_by_training_tasks_that_the_corpus_does_not_have():
    place = Claw(count=64, growth=4, rounds=2)
    grow = place.more_tasks()
    assert grow is not None
    first, second = grow(1), grow(2)
    assert list(grow(3)) == []
    assert [task.split for task in (*first, *second)] == [Split.TRAIN] * 8
    known = {task.id for split in Split for task in place.tasks(split)}
    made = [task.id for task in (*first, *second)]
    assert len(set(made)) == 8
    assert not known & set(made)
    assert Claw(growth=0).more_tasks() is None


def test_defaults_and_config_files_follow_the_workplace(call, capsys: pytest.CaptureFixture[str]):
    claw, office = call("train", "--env", "claw", "--print-config"), call("train", "--print-config")
    assert (claw["train"]["grouping"], claw["roles"]) == ("episodes", ["agent"])
    assert (claw["env"]["ref"], claw["env"]["growth"]) == ("claw", 104)
    assert (office["train"]["grouping"], office["env"]["ref"], office["env"]["seeds"]) == ("branch", "office", 200)
    Path("mine.toml").write_text(
        'env = "claw"\n[claw.rules.reward]\nturn_penalty = 0.5\n[train]\niterations = 7\n', encoding="utf-8"
    )
    mine = call("train", "--config", "mine.toml", "--env.growth", "9", "--print-config")
    assert mine["env"]["rules"]["reward"]["turn_penalty"] == 0.5
    assert (mine["train"]["iterations"], mine["train"]["grouping"], mine["env"]["growth"]) == (7, "episodes", 9)
    assert main(["train", "--env", "claw", "--env.reward.turn-penalty", "0.05", "--print-config"]) == 0
    Path("again.toml").write_text(capsys.readouterr().out, encoding="utf-8")
    assert call("train", "--config", "again.toml", "--print-config")["env"]["rules"]["reward"]["turn_penalty"] == 0.05


def test_a_corpus_in_files_is_played_and_its_splits_are_kept(call):
    call("tasks", "synth", "--out", "corpus", "--count", "64")
    files = Claw(folder=Path("corpus"))
    assert [task.id for task in files.tasks(Split.DEV)] == [task.id for task in Claw(count=64).tasks(Split.DEV)]
    assert call("play", "claw", "--env.folder", "corpus")["metrics"]["passed"] == 1.0
    Path("corpus/train.jsonl").write_bytes(Path("corpus/test.jsonl").read_bytes())
    assert "which is of split test" in call("train", "--env", "claw", "--env.folder", "corpus", code=2)


def test_only_the_splits_that_are_played_need_a_file(call):
    call("tasks", "synth", "--out", "corpus", "--count", "64")
    Path("corpus/train.jsonl").unlink()
    Path("corpus/dev.jsonl").unlink()
    assert Claw(folder=Path("corpus")).task_splits() == (Split.TEST,)
    (wanted, *_) = Claw(folder=Path("corpus")).tasks(Split.TEST)
    for named in ((), ("--task", wanted.id)):
        told = call("play", "claw", "--env.folder", "corpus", *named)
        assert (told["task"], told["metrics"]["passed"]) == (wanted.id, 1.0)
    call("compare", "gold", "noop", "--env", "claw", "--env.folder", "corpus", "--split", "test", "--limit", "1")
    assert "train.jsonl" in call("serve", "env", "claw", "--env.folder", "corpus", "--port", "0", code=2)
    Path("corpus/test.jsonl").unlink()
    assert "holds none of train.jsonl, dev.jsonl, test.jsonl" in call("play", "claw", "--env.folder", "corpus", code=2)


def test_the_pool_of_a_folder_without_held_out_files_grows(call):
    call("tasks", "synth", "--out", "corpus", "--count", "64")
    Path("corpus/dev.jsonl").unlink()
    Path("corpus/test.jsonl").unlink()
    grow = Claw(folder=Path("corpus"), growth=4).more_tasks()
    assert grow is not None
    assert len(grow(1)) == 4
    assert not Path("runs").exists()


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that says at once that it is done, or looks around, about equally often: returns differ by the turns."""
    folder = tmp_path_factory.mktemp("tiny")
    tasks = claw_tasks(Split.TRAIN, count=64)
    with open_host() as host:
        env = ClawEnvironment(host=host)
        prompts = [tuple(env.reset(task).messages) for task in tasks[:12]]
        env.close()
    text = " ".join(message.content for messages in prompts for message in messages)
    words = sorted({word for word in re.findall(r"[A-Za-z_]+", text) if len(word) > 2})
    tiny = tiny_model(words=[*words, "```bash", "```"])
    teach(tiny, [(messages, reply) for messages in prompts for reply in (DONE, block("ls"))], steps=40, batch=4)
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    return folder


TRAIN = (
    "--collect.episodes", "3", "--branch.group-size", "4", "--sampling.max-new-tokens", "12", "--lora.rank", "2",
    "--env.protocol.max-turns", "3", "--learner.lr", "0.003",
)  # fmt: skip


@pytest.mark.slow
def test_from_demonstrations_to_a_rescored_run(call, tiny_path: Path):
    model = ("--model.name", str(tiny_path), "--model.dtype", "float32")
    collected = call(
        "collect", "--env", "claw", *CORPUS, "--gold.count", "4", "--gold.near-misses", "0", "--gold.clean-stops", "0.5"
    )
    assert collected["counts"]["clean stops"] == 2
    assert collected["counts"]["passed"] == 4
    (imitated,) = call("sft", "--epochs", "2", "--warmup", "0", "--lr", "0.0001", "--lora.rank", "2", *model)
    assert imitated["adapter"] == "agent@0000"
    assert imitated["demonstrations"] == collected["counts"]["replies"], "every reply is imitated"

    start = ("--env", "claw", *CORPUS, "--init", "adapters/sft", *TRAIN, *model)
    looked = call("train", "--smoke", *start)
    assert len(looked["groups"]) == 4
    assert all(len(group["returns"]) == 4 for group in looked["groups"])
    assert sum(looked["stops"].values()) == pytest.approx(1.0)
    assert not Path("runs").exists(), "nothing is recorded"

    evaluated = ("--eval-every", "1", "--eval-tasks", "2")
    first = call("train", *start, *evaluated, "--iterations", "2", "--name", "a")
    assert first["stop"] == "iterations"
    with Run.open(Path("runs/a"), readonly=True) as run:
        assert run.config["env"]["ref"] == "claw"
        zero = run.adapters(ACTOR)[0]
        chosen = [metric.value for metric in run.read_metrics("eval", name="episode_reward")]
        tasks = {row.task_id for group in run.read_groups() for row in group.trajectories}
    assert (zero.version, len(chosen)) == (0, 3)
    assert zero.digest == find_adapters(Path("adapters/sft"))[ACTOR].digest, (
        "the start, and the KL term's reference, is the warm start"
    )
    assert first["best_score"] == max(chosen)
    assert tasks <= {task.id for task in claw_tasks(Split.TRAIN, count=64)}
    assert first["adapters"][ACTOR]["version"] > 0, "no update was made: the test would show nothing"
    straight = call("train", *start, *evaluated, "--iterations", "3", "--name", "b")
    resumed = call("train", "--resume", "runs/a", "--extend", "3")
    assert resumed["adapters"][ACTOR]["digest"] == straight["adapters"][ACTOR]["digest"], "resumed = uninterrupted"

    as_it_is = [call("play", "claw", "--policy", who, *CORPUS, "--max-new-tokens", "12", *model) for who in ("base", "llm")]
    assert as_it_is[0]["metrics"] == as_it_is[1]["metrics"]
    played = call("play", "claw", "--policy", "a:best", *CORPUS, "--max-new-tokens", "12", *model)
    assert played["error"] is None
    rows = ("base", "sft=adapters/sft", "grpo=b:best", "noop", "gold")
    shown = call("compare", *rows, "--env", "claw", *CORPUS, "--limit", "3", "--max-new-tokens", "12", *model)
    assert {row["first"] for row in shown["mcnemar"]} >= {"gold", "noop", "grpo"}
    assert not shown["failed"]
    rescored(call)


def rescored(call: Callable[..., Any]) -> None:
    same = call("runs", "rescore", "a", "--reward", "shaped", "--turn-penalty", "0.2")
    assert same["reward"]["before"] == pytest.approx(same["reward"]["after"])
    assert (same["sign_changes"], same["turns_saved"], same["grades"]) == (
        0,
        0,
        known(not_affected=same["trajectories"]),
    )
    free = call("runs", "rescore", "a", "--turn-penalty", "0")
    assert free["reward"]["after"] > free["reward"]["before"]
    assert free["zero_variance_share"]["after"] >= free["zero_variance_share"]["before"]
    binary = call("runs", "rescore", "a", "--reward", "binary")
    assert binary["all_zero_share"]["after"] == 1.0, "nobody passed, so all are paid nothing"
    literal = call("runs", "rescore", "a", "--stops", "literal")
    assert literal["grades"]["not affected"] > 0
    assert literal["grades"]["not affected"] + literal["grades"]["assumed"] == literal["trajectories"], "nothing can end earlier"
    assert "nothing would change" in call("runs", "rescore", "a", code=2)
    assert "nowhere" in call("runs", "rescore", "nowhere", "--stops", "seed", code=2)
    assert "no turn penalty" in call("runs", "rescore", "a", "--reward", "binary", "--turn-penalty", "0.1", code=2)
    assert "unknown stop table" in call("runs", "rescore", "a", "--stops", "none", code=2)


def hand_made(name: str, stops: str, scripts: Sequence[Sequence[str]], task: Task) -> None:
    """A run of one group, whose episodes said what is written, under a table of stop sentinels."""
    place = Claw(count=64)
    place = replace(place, rules=replace(place.rules, protocol=replace(place.rules.protocol, stops=stops)))
    episodes = []
    with NamedEnv(ref="claw", env=place).opened() as make_env:
        for script in scripts:
            policy = ScriptedTokens(tiny_tokenizer(), lambda observation, seed, script=script: script[observation.view["turn"]])
            env, chat = make_env(), ChatEncoder(tiny_tokenizer())
            episodes += play([env], [task], {ACTOR: policy}, Sampling(max_new_tokens=2_000), seed=0, encoder=chat, max_turns=20)
            env.close()
    (group,) = episode_groups(episodes, prefix="it0001", actors=[ACTOR])
    assert group.facts["turns"] == [len(script) for script in scripts]
    config = replace(Train.starting("claw"), own=place)._settings()
    with Run.create("runs", config=config, name=name) as run, run.iteration(1) as record:
        record.groups([group], [advantages(group, AdvantageConfig())])


def known(**counts: int) -> dict[str, int]:
    """How grades are known: `not_affected` and so on, the others 0."""
    return {str(grade): counts.get(grade.name.lower(), 0) for grade in GradeKnown}


def test_an_earlier_stop_is_cut_run_again_and_graded(call):
    """Recorded under the literal table, in which `TASK_COMPLETE.` does not stop: said before, within and after the work."""
    task = max(Claw(count=64).tasks(Split.TRAIN), key=lambda task: len(task.payload["gold"]))
    work = [block(command) for command in task.payload["gold"]]
    assert len(work) >= 3
    scripts = [
        [f"{DONE}.", *work, DONE],
        [*work[:-1], f"{DONE}.", work[-1], DONE],
        [*work, f"{DONE}.", block("ls"), DONE],
        [*work, f"{DONE}.", "That was all.", DONE],
        [*work, DONE],
    ]
    hand_made("hand", "literal", scripts, task)
    with Run.open(Path("runs/hand"), readonly=True) as run:
        (group,) = run.read_groups()
        assert [episode["passed"] for episode in group.facts["metrics"]] == [1.0] * 5, "as recorded, all pass"

    found = call("runs", "rescore", "hand", "--stops", "standard")
    (rows,) = found["groups_rescored"]
    assert found["grades"] == known(changed=2, unchanged=1, not_affected=2)
    assert rows["turns_after"] == [1, len(work), len(work) + 1, len(work) + 1, len(work) + 1]
    assert rows["after"][2:] == pytest.approx([1.0 - 0.2 * (len(work) + 1) / 12] * 3)
    assert max(rows["after"][:2]) < 0.9 * min(rows["after"][2:]), "a needed command came after the stop"
    assert found["turns_saved"] == (len(work) + 1) + 2 + 2 + 2
    moved = [abs(a - b) for a, b in zip(rows["advantages_before"], rows["advantages_after"], strict=True)]
    assert found["advantage_change"] == pytest.approx(sum(moved) / 5)
    assert found["advantage_change"] > 0.1
    trusted = call("runs", "rescore", "hand", "--stops", "standard", "--unchecked")
    assert trusted["grades"] == known(not_checked=3, not_affected=2)
    assert trusted["reward"]["after"] > found["reward"]["after"]
    penalty = call("runs", "rescore", "hand", "--turn-penalty", "0.1")
    assert penalty["grades"] == known(not_affected=5)
    office = jsonable(Train.starting("office")) | {"env": "office"}
    Run.create("runs", config={key: value for key, value in office.items() if key not in PLACE}, name="other").close()
    assert "only grades of the claw" in call("runs", "rescore", "other", "--stops", "seed", code=1)


def test_an_episode_that_would_have_gone_on_is_assumed_to_change_nothing(call):
    task = Claw(count=64).tasks(Split.TRAIN)[0]
    work = [block(command) for command in task.payload["gold"]]
    hand_made("hand", "standard", [[*work, f"{DONE}."], [*work, block("ls"), DONE]], task)
    found = call("runs", "rescore", "hand", "--stops", "literal")
    (rows,) = found["groups_rescored"]
    assert found["grades"] == known(assumed=1, not_affected=1)
    assert rows["turns_after"] == [12, len(work) + 2]
    assert rows["after"][0] == pytest.approx(0.8)


def test_a_table_that_runs_another_command_is_graded_again(call):
    """Under the literal table the first line runs, fails, and decides what the rest does; the standard one takes it out."""
    task = Claw(count=64).tasks(Split.TRAIN)[0]
    gold = "\n".join(task.payload["gold"])
    undo = "if [ $? -eq 0 ]; then rm -rf -- *; fi"
    hand_made("hand", "literal", [[block(f"{gold}\n{DONE}.\n{undo}"), DONE], [block(gold), DONE]], task)
    found = call("runs", "rescore", "hand", "--stops", "standard")
    assert found["grades"] == known(changed=1, not_affected=1)
    assert found["turns_saved"] == 1
