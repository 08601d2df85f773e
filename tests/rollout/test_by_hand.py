"""Playing one seat by hand: undo leaves no trace, and a replay is the same game."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from onthejob.cli import main
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.tasks import office_tasks
from onthejob.errors import ConfigError, ContractError, RecordError
from onthejob.models.scripted import ScriptedPolicy
from onthejob.office_players import team
from onthejob.rollout.by_hand import Game
from onthejob.rollout.game_file import Replay, Said, execute
from onthejob.types import Split

(TASK,) = office_tasks(Split.DEV, seeds=1, scenarios=["churn"], days=2)


def game() -> Game:
    return Game(OfficeEnvironment(), TASK, "sales", team("random"))


def test_what_is_taken_back_did_not_happen():
    """A game with detours has the hash, the return and the end of one that went straight."""
    straight, winding = game(), game()
    while (request := straight.request) is not None:
        legal = list(request.view["legal"])
        for detour in (legal[0], "nonsense", legal[-1]):
            winding.reply(detour)
            assert winding.undo()
        assert list(winding.request.messages) == list(request.messages)
        one, two = straight.reply(legal[1]), winding.reply(legal[1])
        assert [(said, step.rewards, step.facts) for said, step in one.steps] == [
            (said, step.rewards, step.facts) for said, step in two.steps
        ]
        assert (one.reward, one.parts) == (two.reward, two.parts)
        assert sum(one.parts.values()) == pytest.approx(one.reward, abs=1e-9)
    assert straight.moves == winding.moves == 4
    assert straight.total == winding.total
    replays = [made.replay(OfficeEnvironment()) for made in (straight, winding)]
    assert replays[0] == replays[1]
    with pytest.raises(ContractError, match="the episode is over"):
        straight.reply("")
    for _ in range(4):
        assert winding.undo()
    assert not winding.undo()
    assert winding.total == pytest.approx(game().total)


def test_the_sum_of_what_was_paid_is_what_the_office_paid():
    env = OfficeEnvironment()
    made = Game(env, TASK, "hr", team("heuristic"))
    while made.request is not None:
        made.reply('{"action_type":"TEAM_SYNC"}')
    assert made.total == pytest.approx(env.state()["metrics"]["reward_hr"])


def test_a_replay_is_the_same_game_and_a_changed_one_is_not(tmp_path: Path):
    made = game()
    made.reply(made.request.view["legal"][0])
    replay = made.replay(OfficeEnvironment())
    replay.write(tmp_path / "game.json")
    read = Replay.read(tmp_path / "game.json")
    assert read == replay
    assert execute(OfficeEnvironment(), read.task, read.replies) == replay.hash
    changed = (*replay.replies[:-1], Said(replay.replies[-1].actor, "nonsense"))
    assert execute(OfficeEnvironment(), TASK, changed) != replay.hash
    with pytest.raises(RecordError, match=r"reply 0 is of .*, but .* is asked: the game was played under other rules"):
        execute(OfficeEnvironment(), TASK, replay.replies[1:])
    with pytest.raises(RecordError, match="cannot be read: No such file"):
        Replay.read(tmp_path / "none.json")
    for text in ("{", "{}", "[]", json.dumps({"format": 2, "task": {}})):
        (tmp_path / "wrong.json").write_text(text)
        with pytest.raises(RecordError, match="holds no replay"):
            Replay.read(tmp_path / "wrong.json")


def test_a_colleague_that_reads_tokens_is_refused():
    policy = ScriptedPolicy(lambda observation, seed: "", version="x")
    sampler = type("Sampler", (), {"version": "dev@0001", "reads": "tokens", "act": policy.act})()
    with pytest.raises(ConfigError, match="dev is dev@0001, which reads tokens"):
        Game(OfficeEnvironment(), TASK, "sales", {**team("random"), "dev": sampler})


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Put these lines on the standard input, which then ends like a closed terminal."""
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_a_game_in_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "mine.json"
    command = ["play", "office", "--role", "sales", "--policy", "human", "--env.days", "2", "--replay", str(out)]
    typed(monkeypatch, "1", "undo", "undo", "99", "hello", '{"action_type":"UPDATE_PIPELINE"}', "2")
    assert main(command) == 0
    printed = capsys.readouterr().out
    for words in ("Taken back.", "There is nothing to take back.", "Not understood: '99'", "Not understood: 'hello'"):
        assert words in printed
    assert "UPDATE_PIPELINE" in printed
    assert "part of your reward" in printed
    replay = Replay.read(out)
    assert next(said.text for said in replay.replies if said.actor == "sales") == '{"action_type":"UPDATE_PIPELINE"}'
    assert sum(said.actor == "sales" for said in replay.replies) == 2

    assert main(["runs", "replay", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["matches"]
    assert result["hash"] == replay.hash
    out.write_text(out.read_text().replace("UPDATE_PIPELINE", "FOLLOW_UP"))
    assert main(["runs", "replay", str(out)]) == 1
    assert "another game" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--role", "sales"], "--role and --policy go together"),
        (["--policy", "human"], "--role and --policy go together"),
        (["--role", "sales", "--policy", "human", "--json"], "Drop --json"),
        (["--role", "sales", "--policy", "nobody"], "unknown player 'nobody'"),
    ],
)
def test_options_that_cannot_work_are_refused(options: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["play", "office", *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_somebody_else_can_be_seated_by_role_and_policy(capsys: pytest.CaptureFixture[str]):
    seated = []
    for options in (["--role", "sales", "--policy", "expert"], ["--seat", "sales=expert"], []):
        assert main(["play", "office", "--env.days", "2", "--json", *options]) == 0
        seated.append(json.loads(capsys.readouterr().out)["metrics"])
    assert seated[0] == seated[1]
    assert seated[0] != seated[2]
