"""An `Env` that brings an environment of its own, and commands of its own: everything plays it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from onthejob.claw import Claw
from onthejob.commands.named_env import NamedEnv
from onthejob.compat.seat_session import SeatSession, SessionStart
from onthejob.compat.served import served
from onthejob.envs.exchange import Reply
from onthejob.errors import ConfigError, ContractError
from onthejob.office import Office
from onthejob.plugins import BUILT_IN, resolve
from onthejob.testing import check_environment, expert_reply
from onthejob.types import Context, Split, Task

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

    def make_environment(self):
        return ToyWorkplace()

    def players(self):
        return {"heuristic": heuristic_reply, "expert": expert_reply}
'''
COLLECT = '''

from dataclasses import dataclass

from onthejob.commands.collect_demonstrations import CollectOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectToy(CollectOptions):
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
    found = check_environment(env.make_environment, env.tasks(Split.TRAIN)[:2], spectators=("customer",))
    assert found.forks > 0
    seat = SeatSession(served(env))
    seen = seat.reset(SessionStart(role="seller", seed=0, teammates="heuristic"))
    while seen.observation is not None:
        seen = seat.step(expert_reply(seen.observation, 0))
    assert seat.task in env.tasks(Split.TRAIN)


def test_processes_are_for_environments_that_step_themselves(call, toy: str):
    Path("toy.py").write_text((TOY + COLLECT).replace("    days: int", "    processes = 2\n    days: int"), encoding="utf-8")
    assert "processes must be 0 for toy.py:Toy" in call("play", toy, code=2)


def test_the_check_of_reset_and_step_is_refused_where_there_are_none(call, toy: str):
    assert "brings an environment of its own" in call("env", "check", toy, code=2)


class Unsolved(Claw):
    """Tasks without gold commands, as official ones are."""

    def tasks(self, split: Split) -> list[Task]:
        return [replace(task, payload={**task.payload, "gold": []}) for task in super().tasks(split)][:3]

    def players_for(self, tasks: Sequence[Task]) -> Mapping[str, Reply]:
        return {name: player for name, player in super().players_for(tasks).items() if name != "gold" or not tasks}


def test_tasks_without_a_solution_are_served():
    found = served(Unsolved(count=64))
    assert (list(found.players), found.default_player) == (["noop", "idle"], "noop")


def test_a_claw_that_is_opened_twice_has_a_host_until_both_are_closed():
    env = Claw(count=64)
    task = env.tasks(Split.DEV)[0]
    with NamedEnv(ref="claw", env=env).opened() as outer:
        with NamedEnv(ref="claw", env=env).opened():
            pass
        made = outer()
        assert made.reset(task).actor == "agent"
        made.close()
    with pytest.raises(ContractError, match="while it is open"):
        env.make_environment()


class Hard(Office):
    """Another office."""

    extra: int = 1


def test_a_subclass_of_a_built_in_environment_is_another_workplace():
    prints = {NamedEnv(ref="hard", env=env).fingerprint for env in (Office(), Hard(), Hard(extra=2))}
    assert len(prints) == 3


def test_an_empty_and_an_unknown_partner_are_refused():
    for partner, said in (("", "--env.partner is empty"), ("nobody", "--env.partner is 'nobody', and its players are")):
        with pytest.raises(ConfigError, match=said):
            NamedEnv(ref="office", env=Office(partner=partner)).check(training=True)


class Shadowing(Office):
    """Keeps a value under the name of a method."""

    def open(self) -> None:
        self.family = "maze"  # type: ignore[assignment,method-assign]


def test_a_value_in_the_place_of_a_method_is_refused():
    with (
        pytest.raises(ContractError, match=r"Shadowing\.open sets self\.family, which is a method of every Env"),
        NamedEnv(ref="shadowing", env=Shadowing()).opened(),
    ):
        pass


def test_only_the_office_holds_hosted_models_to_its_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy: str):
    monkeypatch.chdir(tmp_path)
    assert NamedEnv(ref=toy, env=resolve(toy)()).schema is None
    assert NamedEnv(ref="claw", env=Claw()).schema is None
    schema = NamedEnv(ref="office", env=Office()).schema
    assert schema is not None
    seen = Office(days=1).make_environment().reset(Office(days=1).tasks(Split.DEV)[0])
    assert "action_type" in str(schema(Context(observation=seen)))


def test_what_a_server_of_the_office_needs_is_loaded_before_it_listens(call, tmp_path: Path):
    said = call(
        "serve", "env", "office", "--env.prompt-budget", "900", "--env.tokenizer", tmp_path / "none", "--port", "0", code=2
    )
    assert "none" in said


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_built_in_environments_are_subclasses_like_any_other(name: str):
    kind = resolve(name)
    env = kind()
    assert kind.make_environment is not resolve.__globals__["Env"].make_environment
    assert {task.split for task in env.tasks(Split.DEV)} == {Split.DEV}
    # A server tells no client what only the grader may know.
    assert not {"gold", "verifiable_assertions", "answers"} & set(env.public_facts(env.tasks(Split.DEV)[0]))


def test_an_environment_without_either_is_refused(tmp_path: Path):
    file = tmp_path / "half.py"
    file.write_text(
        "from onthejob import Env\n\n\nclass Half(Env):\n    roles = ('a',)\n\n    def tasks(self, split):\n        return []\n"
    )
    with pytest.raises(ConfigError, match="Half lacks reset, step"):
        resolve(str(file))
