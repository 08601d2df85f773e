"""Env, Running and Forking: what the base class promises, on small environments of this file."""

from __future__ import annotations

import enum
import json
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onthejob import Env, Next, Split, StopReason, Task
from onthejob.envs.plain import VOCABULARY, NotPlain, dump, load
from onthejob.envs.running import Forking, Running, partner_of, running
from onthejob.errors import ConfigError, ContractError
from onthejob.testing import check_env
from onthejob.types import Sampling

HERE = {__name__}


class Suit(enum.Enum):
    HEARTS = 1


@dataclass
class Card:
    suit: Suit
    marks: list[int] = field(default_factory=list)


class Race(Env):
    """Two roles, luck of its own, contexts that are begun and continued."""

    roles = ("red", "blue")
    max_turns = 6
    goal: int = 9

    def tasks(self, split: Split) -> list[Task]:
        return self.seeded(split, count=4)

    def reset(self, task: Task) -> Next:
        self.at, self.cards = {"red": 0, "blue": 0}, [Card(Suit.HEARTS)]
        return self.ask("red", "Go.", system="You race.", legal=["walk", "run"])

    def step(self, reply: str) -> Next:
        if reply not in ("walk", "run"):
            return self.invalid("walk or run", reward=-1.0)
        self.at[self.role] += 2 if reply == "walk" else self.rng("run").choice([0, 5])
        self.cards[0].marks.append(self.at[self.role])
        if self.at[self.role] >= self.goal:
            return self.end(rewards={self.role: 1.0, "blue" if self.role == "red" else "red": -1.0}, metrics={"won": 1})
        other = "blue" if self.role == "red" else "red"
        return self.ask(other, f"At {self.at}.", system="You race.", legal=["walk", "run"], reward=0.1, rewards={other: -0.1})


class Again(Race):
    forks = "replay"

    def reset(self, task: Task) -> Next:
        found = super().reset(task)
        self.what = lambda: "no copy"
        return found


def task_of(env: Env) -> Task:
    return env.tasks(Split.TRAIN)[0]


def rest(run: Running, replies: list[str]) -> list[Any]:
    return [(dict(step.rewards), step.stop, step.valid) for step in map(run.step, replies)]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.just(Suit.HEARTS),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner, max_size=4)
        | st.lists(inner, max_size=4).map(deque)
        | st.frozensets(st.text() | st.integers(), max_size=4)
        | st.lists(st.integers(), max_size=3).map(lambda marks: Card(Suit.HEARTS, marks))
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(), PLAIN, max_size=4))
def test_plain_values_come_back_as_they_were(state: dict[str, Any]):
    written = dump(state, HERE)
    read = load(written, HERE)
    assert dump(read, HERE) == written
    assert read == state


def test_odd_numbers_and_types_come_back():
    state = {"nan": float("nan"), "low": float("-inf"), "zero": -0.0, "whole": 1.0, "one": 1, "yes": True, "pair": (1,)}
    assert repr(load(dump(state, HERE), HERE)) == repr(state)


def test_randomness_and_limits_of_queues_come_back():
    rng = random.Random(5)
    rng.random()
    read = load(dump({"rng": rng, "last": deque([1], maxlen=2), "bytes": bytearray(b"x")}, HERE), HERE)
    assert read["rng"].random() == rng.random()
    assert (read["last"].maxlen, read["bytes"]) == (2, bytearray(b"x"))


def local() -> Any:
    @dataclass
    class Local:
        x: int = 1

    return Local()


def marked() -> Card:
    card = Card(Suit.HEARTS)
    card.extra = 1  # type: ignore[attr-defined]
    return card


def nested() -> list[Any]:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


SHARED = [1]
LOOP: list[Any] = [0]
LOOP[0] = LOOP


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": SHARED, "b": {"c": SHARED}}, "self.b['c'] and self.a are the same list"),
        ({"a": LOOP}, "self.a[0] and self.a are the same list"),
        ({"f": print}, "self.f is a builtins.builtin_function_or_method, which cannot be copied"),
        ({"a": [1, {"k": object()}]}, "self.a[1]['k'] is a builtins.object"),
        ({"r": random.SystemRandom()}, "self.r is a random.SystemRandom"),
        ({"k": Card}, "self.k is a builtins.type"),
        ({"s": StopReason.DONE}, "a class that the environment's module does not define"),
        ({"x": local()}, "which is defined inside a function"),
        ({"c": marked()}, "self.c has attributes besides its fields: extra"),
        ({"n": nested()}, "nested too deeply"),
    ],
    ids=lambda value: value[-30:] if isinstance(value, str) else "",
)
def test_what_is_not_plain_is_refused_with_its_place(state: dict[str, Any], message: str):
    with pytest.raises(NotPlain) as caught:
        dump(state, HERE)
    assert message in str(caught.value)


def test_the_vocabulary_is_named_by_its_package():
    """As snapshots of before its files were parted have it, in the libraries of recorded runs."""
    state = {"stop": StopReason.DONE, "sampling": Sampling(temperature=0.5)}
    written = dump(state, {VOCABULARY})
    assert f'"{VOCABULARY}:StopReason"' in written
    assert f'"{VOCABULARY}:Sampling"' in written
    assert load(written, {VOCABULARY}) == state


@pytest.mark.parametrize(
    "text",
    [
        '{"a":["data","os:system",[]]}',
        '{"a":["enum","enum:Enum","x"]}',
        '{"a":["what",1]}',
        "[]",
        "{",
        '{"a":["data","%s:local",[]]}',
    ],
)
def test_a_snapshot_makes_no_foreign_object(text: str):
    with pytest.raises(ContractError, match="a snapshot cannot be read"):
        load(text.replace("%s", __name__), HERE)


@pytest.mark.parametrize("kind", [Race, Again])
def test_forks_are_exact(kind: type[Env]):
    env = kind()
    run = running(env)
    assert isinstance(run, Forking)
    run.reset(task_of(env))
    rest(run, ["run", "walk"])
    fork, other, frozen = run.fork(), running(kind()), run.snapshot()
    assert isinstance(other, Forking)
    assert other.restore(frozen) == run.observe()
    replies = ["run", "no", "run", "walk"]
    assert rest(fork, replies) == rest(other, replies)
    assert run.snapshot() == frozen
    assert rest(run, replies) == rest(running_at(kind, ["run", "walk"]), replies)


def running_at(kind: type[Env], replies: list[str]) -> Running:
    run = running(kind())
    run.reset(task_of(kind()))
    rest(run, replies)
    return run


@pytest.mark.parametrize("kind", [Race, Again])
def test_the_whole_contract_holds(kind: type[Env]):
    done = check_env(kind(), tasks=2)
    assert done.forks > 0
    assert done.branches > 0


def test_worlds_differ_by_what_rng_draws():
    run = running(Race())
    assert isinstance(run, Forking)
    run.reset(task_of(Race()))
    rest(run, ["run", "run"])
    outcomes = {run.branch("run", world=world, turns=4).returns["red"] for world in range(1, 30)}
    assert len(outcomes) > 1
    assert run.branch("run", world=3, turns=4) == run.branch(" run\n", world=3, turns=4)


def test_an_episode_ends_with_its_last_turn():
    run = running(Race())
    run.reset(task_of(Race()))
    steps = [run.step("no") for _ in range(6)]
    assert [step.stop for step in steps] == [None] * 5 + [StopReason.MAX_TURNS]
    assert steps[-1].observation is None
    assert run.state() == {
        "turn": 6,
        "metrics": {"reward": -6.0, "turns": 6.0, "invalid": 6.0, "reward/red": -6.0, "reward/blue": 0.0},
    }
    with pytest.raises(ContractError, match=r"step after the end of an episode. Call reset first."):
        run.step("walk")


def test_every_role_is_paid_and_has_a_context_of_its_own():
    run = running(Race())
    first = run.reset(task_of(Race()))
    assert (first.actor, first.fresh, [message.role for message in first.messages]) == ("red", True, ["system", "user"])
    step = run.step("walk")
    assert step.rewards == {"red": 0.1, "blue": -0.1}
    assert step.observation is not None
    assert (step.observation.actor, step.observation.fresh) == ("blue", True)
    again = run.step("walk").observation
    assert again is not None
    assert (again.actor, again.fresh, [message.role for message in again.messages]) == ("red", False, ["user"])
    retry = run.step("no")
    assert (retry.valid, retry.rewards) == (False, {"red": -1.0})
    assert retry.observation is not None
    assert (retry.observation.actor, retry.observation.fresh, retry.observation.view["legal"]) == ("red", False, ["walk", "run"])


class Fresh(Race):
    def step(self, reply: str) -> Next:
        return self.ask("red", "Anew.", system="You race.", fresh=True)


def test_a_context_begins_anew_where_it_is_asked_for():
    run = running(Fresh())
    run.reset(task_of(Fresh()))
    seen = run.step("walk").observation
    assert seen is not None
    assert (seen.fresh, seen.messages[0].role) == (True, "system")


class Keeps(Race):
    def reset(self, task: Task) -> Next:
        self.task = task
        return super().reset(task)


def test_the_task_may_be_kept():
    run = running(Keeps())
    assert isinstance(run, Forking)
    run.reset(task_of(Keeps()))
    assert run.fork().env.task == run.task  # type: ignore[attr-defined]


def test_no_forks_where_none_are_wanted():
    class Never(Race):
        forks = "no"

    assert type(running(Never())) is Running


def test_snapshots_refuse_views_that_are_not_json():
    class Odd(Race):
        def reset(self, task: Task) -> Next:
            self.left = 1
            return self.ask("red", "Go.", view={"x": {1}})

    run = running(Odd())
    assert isinstance(run, Forking)
    run.reset(task_of(Odd()))
    with pytest.raises(ContractError, match="not of JSON's types"):
        run.snapshot()


def test_partners_and_seeds():
    class Silent(Race):
        partner = "nobody"

    with pytest.raises(ConfigError, match=r"Silent.partner is 'nobody', and its players are random."):
        partner_of(Silent())
    with pytest.raises(ConfigError, match=r"count in 1\.\.40000, got 0"):
        Race().seeded(Split.TRAIN, count=0)
    seeds = [task.seed for split in Split for task in Race().seeded(split, count=1000)]
    assert len(set(seeds)) == len(seeds)
    assert json.loads(json.dumps(task_of(Race()).row()))["id"] == "race-train-00000"
