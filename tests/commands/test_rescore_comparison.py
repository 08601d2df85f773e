"""`runs rescore` of a comparison: whole episodes under another table of stop sentinels, and what that would have saved."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onthejob.claw import Claw
from onthejob.commands.env_options import as_table
from onthejob.commands.named_env import Workplace
from onthejob.commands.rescore import Known
from onthejob.envs.claw.agent_messages import block
from onthejob.envs.claw.env import ACTOR
from onthejob.envs.claw.policies import Gold
from onthejob.evaluate.cache import EvaluationCache
from onthejob.evaluate.comparison import compare
from onthejob.evaluate.pass_fail import document, keep, read_comparison
from onthejob.evaluate.teams import scripted_team
from onthejob.models.scripted import ScriptedPolicy
from onthejob.types import Observation, Sampling, Split

PROSE = block('echo "Task complete."')
"""Says in the shell that it is done, which the literal table does not understand."""


def known(**counts: int) -> dict[str, int]:
    return {str(grade): counts.get(grade.name.lower(), 0) for grade in Known}


def test_an_earlier_stop_saves_turns_and_changed_grades_are_seen(call):
    """Two tasks: `late` solves them, says so in prose and works on; `early` says so before it solves them."""
    place = Claw(count=200)
    place = replace(place, rules=replace(place.rules, protocol=replace(place.rules.protocol, stops="literal")))
    tasks = [task for task in place.tasks(Split.DEV) if len(task.payload["gold"]) == 2][:2]
    gold = Gold(tasks)
    assert len(tasks) == 2

    def late(observation: Observation, seed: int) -> str:
        turn = observation.view["turn"]
        return gold(observation, seed) if turn < 2 else PROSE if turn == 2 else block("ls")

    def early(observation: Observation, seed: int) -> str:
        turn = observation.view["turn"]
        return PROSE if turn == 0 else gold(replace(observation, view={**observation.view, "turn": turn - 1}), seed)

    workplace = Workplace(ref="claw", env=place)
    teams = [scripted_team(name, ScriptedPolicy(act, version=name), [ACTOR]) for name, act in (("late", late), ("early", early))]
    with workplace.opened() as make_env, EvaluationCache(None, env=workplace.fingerprint) as cache:
        options: dict[str, Any] = {"sampling": Sampling(), "seed": 0, "max_turns": 12}
        played = compare(teams, tasks, env_factory=make_env, cache=cache, **options)
        again = compare(teams, tasks, env_factory=make_env, cache=cache, **options)
    assert (again.played, again.results) == (0, played.results), "replies come from the cache too"
    path = keep(Path("runs"), "kept", {"env": as_table("claw", place), "split": "dev", **document(played)})
    assert read_comparison(path).results == {key: replace(result, actions={}) for key, result in played.results.items()}, (
        "replies are read back"
    )

    found = call("runs", "rescore", "kept", "--stops", "seed")["teams"]
    # Twelve turns each, of which three would have been played; the commands that are omitted only looked.
    assert (found["late"]["shortened"], found["late"]["turns"], found["late"]["turns_saved"]) == (2, 24, 18)
    assert (found["late"]["passed_before"], found["late"]["passed_after"]) == (2, 2)
    assert found["late"]["grades"] == known(unchanged=2)
    assert found["late"]["reward_after"] - found["late"]["reward_before"] == pytest.approx(0.2 * 9 / 12)
    assert found["late"]["seconds_saved"] == pytest.approx(
        0.75 * sum(result.metrics["wall_s"] for key, result in played.results.items() if key.team == "late")
    )
    # One turn and no work; the literal TASK_COMPLETE of the end is the fourth turn.
    assert (found["early"]["turns"], found["early"]["turns_saved"], found["early"]["passed_after"]) == (8, 6, 0)
    assert (found["early"]["passed_before"], found["early"]["grades"]) == (2, known(changed=2))
    assert [row["turns"] for row in found["early"]["tasks"]] == [[4, 1], [4, 1]]

    trusted = call("runs", "rescore", str(path), "--stops", "seed", "--unchecked", "--teams", "early")["teams"]
    assert list(trusted) == ["early"]
    assert (trusted["early"]["passed_after"], trusted["early"]["grades"]) == (2, known(not_checked=2))
    for words, said in (
        (("--stops", "seed", "--teams", "nobody"), "has no team nobody; its teams are late, early"),
        (("--stops", "seed", "--iteration", "1"), "--iteration has no effect on a comparison"),
        ((), "nothing would change"),
    ):
        assert said in call("runs", "rescore", "kept", *words, code=2)
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**data, "replies": []}), encoding="utf-8")
    assert "holds no replies of late" in call("runs", "rescore", "kept", "--stops", "seed", code=1)
    path.write_text(json.dumps({name: value for name, value in data.items() if name != "env"}), encoding="utf-8")
    assert "does not say what was played" in call("runs", "rescore", "kept", "--stops", "seed", code=1)
    path.write_text(json.dumps({**data, "env": {"ref": "office"}}), encoding="utf-8")
    assert "only grades of the claw" in call("runs", "rescore", "kept", "--stops", "seed", code=1)


def test_a_kept_comparison_can_be_rescored(call):
    shown = call("compare", "gold", "noop", "--env", "claw", "--env.count", "64", "--limit", "2", "--name", "kept")
    said = {(row["team"], turn["text"]) for row in shown["replies"] for turn in row["turns"]}
    assert ("noop", "TASK_COMPLETE") in said
    assert {row["team"] for row in shown["replies"]} == {"gold", "noop"}
    found = call("runs", "rescore", "kept", "--reward", "binary")["teams"]
    assert found["gold"]["reward_after"] == 1.0
    assert found["noop"]["grades"] == known(not_affected=2)
    assert "--teams has no effect on a run" in call("runs", "rescore", "nowhere", "--stops", "seed", "--teams", "gold", code=2)
