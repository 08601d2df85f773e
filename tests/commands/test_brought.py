"""An `Env` that brings an environment of its own, and commands of its own: everything plays it."""

from __future__ import annotations

from pathlib import Path

import pytest

from onthejob.compat.seat import Seat, Start
from onthejob.compat.served import served
from onthejob.errors import ConfigError
from onthejob.plugins import BUILT_IN, resolve
from onthejob.testing import check_environment, expert_reply
from onthejob.types import Split

TOY = '''
"""A company that exists as an Environment already."""

from onthejob import Env
from onthejob.testing import ToyWorkplace, expert_reply, heuristic_reply, toy_tasks


class Toy(Env):
    """A company of two."""

    roles = ("maker", "seller")
    headline = ("company_value",)
    days: int = 2
    own_commands = {"Collect": f"{__file__}:CollectToy"}

    def tasks(self, split):
        first = {"train": 100_000, "dev": 1_000, "test": 50_000}[split]
        return toy_tasks(6, split=split, days=self.days, first_seed=first)

    def environment(self):
        return ToyWorkplace()

    def players(self):
        return {"heuristic": heuristic_reply, "expert": expert_reply}
'''
COLLECT = '''

from dataclasses import dataclass

from onthejob.commands.collect import Collecting


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectToy(Collecting):
    """Another way to collect."""

    pages: int = 3
    """Of the report."""

    def collect(self, terminal, place):
        terminal.result({"pages": self.pages, "days": place.env.days})
        return 0
'''


@pytest.fixture
def toy(tmp_path: Path) -> str:
    (tmp_path / "toy.py").write_text(TOY + COLLECT, encoding="utf-8")
    return "toy.py:Toy"


def test_commands_play_it(call, toy: str):
    played = call("play", toy, "--env.days", "3", "--policy", "expert", "--seat", "seller=heuristic")
    assert (played["stop"], played["error"]) == ("horizon", None)
    assert played["metrics"]["sales"] > 0
    means = call("compare", "expert", "heuristic", "--env", toy, "--env.days", "8")["means"]
    rows = {row["team"]: row["mean"] for row in means if row["metric"] == "company_value"}
    assert rows["expert"] > rows["heuristic"]
    shown = call("env", "show", toy)
    assert (shown["forks"], shown["roles"], shown["players"]) == ("yes", ["maker", "seller"], ["expert", "heuristic"])
    assert shown["prompt"]


def test_a_command_of_its_own_takes_the_place_of_ours(call, toy: str):
    assert call("collect", "--env", toy, "--pages", "5", "--env.days", "4") == {"pages": 5, "days": 4}
    assert "Unrecognized options: --count" in call("collect", "--env", toy, "--count", "2", code=2)


def test_it_keeps_the_promises_of_an_environment_and_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy: str):
    monkeypatch.chdir(tmp_path)
    env = resolve(toy)()
    found = check_environment(env.environment, env.tasks(Split.TRAIN)[:2], spectators=("customer",))
    assert found.forks > 0
    seat = Seat(served(env))
    seen = seat.reset(Start(role="seller", seed=0, teammates="heuristic"))
    while seen.observation is not None:
        seen = seat.step(expert_reply(seen.observation, 0))
    assert seat.task in env.tasks(Split.TRAIN)


def test_the_check_of_reset_and_step_is_refused_where_there_are_none(call, toy: str):
    assert "brings an environment of its own" in call("env", "check", toy, code=2)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_built_in_environments_are_subclasses_like_any_other(name: str):
    kind = resolve(name)
    env = kind()
    assert kind.environment is not resolve.__globals__["Env"].environment
    assert {task.split for task in env.tasks(Split.DEV)} == {Split.DEV}
    # A server tells nobody what only the grader may know.
    assert not {"gold", "verifiable_assertions", "answers"} & set(env.public_facts(env.tasks(Split.DEV)[0]))


def test_an_environment_without_either_is_refused(tmp_path: Path):
    file = tmp_path / "half.py"
    file.write_text(
        "from onthejob import Env\n\n\nclass Half(Env):\n    roles = ('a',)\n\n    def tasks(self, split):\n        return []\n"
    )
    with pytest.raises(ConfigError, match="Half lacks reset, step"):
        resolve(str(file))
