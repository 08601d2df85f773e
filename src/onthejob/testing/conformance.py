"""check_environment: what every environment promises, checked by playing it.

The checks follow the docstrings of `Environment` and `Forkable` in `onthejob.types`, and what an environment returns passes the
same border as in the loop (`onthejob.rollout.contract`). The first broken promise raises `ContractError` and says which one and
where; a passed check returns how much was exercised, so that a caller can assert that it was not vacuous.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onthejob.errors import ContractError
from onthejob.keys import keyed_choice, keyed_seed
from onthejob.rollout.contract import accepted_branch, accepted_step, check_messages, check_request, state_count, state_metrics
from onthejob.types import Environment, Forkable, Kind, Observation, Step, Task

ADVERSARIAL_REPLIES: tuple[str, ...] = (
    "",
    " \n\t",
    "\x00\x01\ud800",
    "{" * 2_000,
    "[" * 2_000 + "]" * 2_000,
    '{"action_type": null}',
    '{"action_type": ["x"], "target": {"a": 1}}',
    '{"action_type": 1e999, "parameters": {"amount": NaN}}',
    '{"action_type":"\\ud800"}',
    "null",
    "true",
    "-1",
    "9" * 5_000,
    "<|im_end|><|im_start|>system",
    "'; DROP TABLE turns; --",
    "$(exit 1)",
    "\u202e\u0430\u0501min \U0001f4a5" * 50,
)
"""Replies that a sampled model can produce and that break careless parsers."""

TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Conformance:
    """How much a passed check exercised."""

    tasks: int
    steps: int
    adversarial: int
    """Adversarial replies stepped."""
    forks: int
    """States from which snapshot, restore and fork were compared with the parent's future (0: not Forkable)."""
    branches: int


Choose = Callable[[Observation, int], str]
"""(observation, seed) -> a usable reply."""


@dataclass(slots=True)
class _Actors:
    """Names that were met in all tasks."""

    asked: set[str] = field(default_factory=set)
    paid: set[str] = field(default_factory=set)
    """In the rewards of steps or the returns of branches."""


def choose_legal(observation: Observation, seed: int) -> str:
    """One of `observation.view["legal"]`.

    Raises:
        ContractError: the view lists no legal replies.
    """
    legal = observation.view.get("legal")
    if not legal:
        raise ContractError("observation.view['legal'] is missing or empty. Pass choose=... to check_environment.")
    return keyed_choice(list(legal), seed, "choose")


def check_environment(
    make: Callable[[], Environment],
    tasks: Sequence[Task],
    *,
    choose: Choose = choose_legal,
    max_turns: int = 40,
    seed: int = 0,
    branch_turns: int = 6,
    spectators: Collection[str] = (),
) -> Conformance:
    """Play every task and compare with what the protocol promises.

    Args:
        make: creates an independent environment.
        tasks: at least one; only the first `max_turns` turns of each are played.
        choose: gives usable replies, so that the check gets beyond invalid ones.
        max_turns: length of what is played of each task.
        seed: keys the replies.
        branch_turns: length of the branches that are compared.
        spectators: actors that are rewarded and never asked; any other such name counts as a misspelt actor.

    Raises:
        ContractError: a promise is broken.
    """
    if not tasks:
        raise ContractError("check_environment needs at least one task, got 0. Pass tasks=[...].")
    probe = make()
    _expect(isinstance(probe, Environment), "make() returns an Environment (reset, step, state, close)")
    probe.close()
    steps = adversarial = forks = branches = 0
    actors = _Actors()
    for task in tasks:
        _json(dict(task.payload), f"{task.id}: the payload")
        replies = _check_playing(make, task, choose, max_turns, seed, actors)
        steps += len(replies)
        adversarial += _check_adversarial(make, task, replies)
        if isinstance(make(), Forkable):
            marks = sorted({0, len(replies) // 3, max(0, len(replies) - 2)})
            for mark in marks:
                branches += _check_forking(make, task, replies, mark, branch_turns, actors)
            forks += len(marks)
    _check_actors(actors, spectators, max_turns)
    return Conformance(tasks=len(tasks), steps=steps, adversarial=adversarial, forks=forks, branches=branches)


def _check_actors(actors: _Actors, spectators: Collection[str], max_turns: int) -> None:
    """Rewards that no request's actor receives train nothing, and a misspelt name looks like one of those."""
    strangers = sorted(actors.paid - actors.asked - set(spectators))
    if strangers:
        raise ContractError(
            f"broken promise: rewards name actors as requests do, got {', '.join(strangers)}; asked were "
            f"{', '.join(sorted(actors.asked))} in at most {max_turns} turns of each task. Correct the name, raise max_turns, or "
            f"pass spectators={tuple(strangers)} for actors that are rewarded and never asked."
        )


def _check_playing(
    make: Callable[[], Environment], task: Task, choose: Choose, max_turns: int, seed: int, actors: _Actors
) -> list[str]:
    """Two environments and one replay give the same episode; returns its replies."""
    first, second = make(), make()
    observation: Observation | None = first.reset(task)
    _check_observation(observation, f"{task.id}: the first request")
    _expect(_seen(observation) == _seen(second.reset(task)), f"{task.id}: reset is deterministic across instances")
    _expect(_seen(observation) == _seen(first.reset(task)), f"{task.id}: reset may be called again and starts over")
    _expect(observation.fresh, f"{task.id}: the first observation of an episode is fresh")
    replies: list[str] = []
    rows: list[Any] = []
    before = state_count(first.state(), "turn", f"{task.id}: the first request")
    while observation is not None and len(replies) < max_turns:
        where = f"{task.id} turn {len(replies)}"
        actors.asked.add(observation.actor)
        replies.append(choose(observation, keyed_seed(seed, task.id, len(replies))))
        step = _check_step(first.step(replies[-1]), where)
        actors.paid |= step.rewards.keys()
        rows.append(_step_row(step))
        _expect(rows[-1] == _step_row(second.step(replies[-1])), f"{where}: step is deterministic")
        turn = _check_state(first.state(), where)
        if turn is not None and before is not None and observation.kind is Kind.ACT and step.observation is not None:
            grown = turn > before or step.observation.kind is not Kind.ACT
            _expect(grown, f"{where}: state()['turn'] grows with every decision, got {before} and {turn}")
        before = turn
        _expect(_json(first.state(), where) == _json(second.state(), where), f"{where}: state is deterministic")
        observation = step.observation
    first.reset(task)
    _expect([_step_row(first.step(reply)) for reply in replies] == rows, f"{task.id}: a replay after reset is identical")
    first.close()
    second.close()
    return replies


def _check_step(returned: object, where: str) -> Step:
    """The step as the loop takes it."""
    step = accepted_step(returned, where)
    for actor, parts in step.parts.items():
        _expect(actor in step.rewards, f"{where}: {actor} has reward parts and therefore a reward")
        total = sum(parts.values())
        _expect(
            abs(total - step.rewards[actor]) <= TOLERANCE,
            f"{where}: the parts of {actor} sum to its reward, got {total} and {step.rewards[actor]}",
        )
    _json(dict(step.facts), f"{where}: facts")
    if step.observation is not None:
        _check_observation(step.observation, where)
    return step


def _check_observation(observation: Observation, where: str) -> None:
    check_request(observation, where)
    check_messages(observation.messages, where)
    _json(dict(observation.view), f"{where}: view")
    legal = observation.view.get("legal", ())
    _expect(all(isinstance(text, str) for text in legal), f"{where}: view['legal'] lists texts")


def _check_state(state: Mapping[str, Any], where: str) -> int | None:
    """The turn that the state counts, if it does."""
    metrics = state.get("metrics")
    _expect(isinstance(metrics, Mapping) and len(metrics) > 0, f"{where}: state()['metrics'] holds at least one metric")
    for name, value in state_metrics(state, where).items():
        _expect(math.isfinite(value), f"{where}: metric {name} is a finite number")
    _json(state, f"{where}: state")
    state_count(state, "day", where)
    return state_count(state, "turn", where)


def _check_adversarial(make: Callable[[], Environment], task: Task, replies: Sequence[str]) -> int:
    """No reply raises, and the environment still works afterwards."""
    env = make()
    observation: Observation | None = env.reset(task)
    mutants = [reply[: len(reply) // 2] for reply in replies[:3]] + [reply + "}" for reply in replies[:3]]
    count = 0
    for reply in (*ADVERSARIAL_REPLIES, *mutants):
        if observation is None:
            observation = env.reset(task)
        before = env.snapshot() if isinstance(env, Forkable) else None
        try:
            if isinstance(env, Forkable):
                _expect(isinstance(env.canonical(reply), str), f"canonical({reply[:20]!r}) is a string")
                _expect(env.snapshot() == before, f"canonical({reply[:20]!r}) leaves the environment untouched")
            returned: object = env.step(reply)
        except ContractError:
            raise
        except Exception as error:
            raise ContractError(f"{task.id}: step raised {type(error).__name__} for the reply {reply[:40]!r}: {error}") from error
        step = _check_step(returned, f"{task.id} after {reply[:20]!r}")
        observation = step.observation
        count += 1
    env.close()
    return count


def _check_forking(
    make: Callable[[], Environment], task: Task, replies: Sequence[str], mark: int, turns: int, actors: _Actors
) -> int:
    """At turn `mark`: snapshot, restore, fork and branch are exact and leave the parent untouched."""
    env = _forkable(make)
    env.reset(task)
    for reply in replies[:mark]:
        env.step(reply)
    where, rest = f"{task.id} turn {mark}", replies[mark:]
    frozen = env.snapshot()
    _expect(isinstance(frozen, bytes), f"{where}: snapshot returns bytes, got {type(frozen).__name__}")
    _expect(env.snapshot() == frozen, f"{where}: snapshot is repeatable")
    other, fork = _forkable(make), env.fork()
    _expect(_seen(other.restore(frozen)) == _seen(env.observe()), f"{where}: restore returns the pending request")
    _expect(other.snapshot() == frozen, f"{where}: restore and snapshot are inverse")
    _expect(fork.snapshot() == frozen, f"{where}: a fork equals its parent")
    branches = _check_branches(env, fork, rest[0], frozen, turns, where, actors) if rest else 0
    future = [_step_row(fork.step(reply)) for reply in rest]
    _expect(env.snapshot() == frozen, f"{where}: stepping a fork leaves its parent untouched")
    _expect([_step_row(other.step(reply)) for reply in rest] == future, f"{where}: the restored future equals the fork's")
    _expect([_step_row(env.step(reply)) for reply in rest] == future, f"{where}: the parent's future equals the fork's")
    states = [_json(of.state(), where) for of in (env, fork, other)]
    _expect(states[0] == states[1] == states[2], f"{where}: state() after the same future is the same")
    if future and future[-1]["stop"] is not None:
        _expect(env.observe() is None, f"{where}: observe() is None after the end")
    return branches


def _check_branches(env: Forkable, fork: Forkable, reply: str, frozen: bytes, turns: int, where: str, actors: _Actors) -> int:
    count = 0
    for world in (1, 2):
        for text in (reply, "", "no such reply"):
            branch = accepted_branch(env.branch(text, world=world, turns=turns), where)
            actors.paid |= branch.returns.keys()
            _expect(env.snapshot() == frozen, f"{where}: branch leaves its parent untouched")
            _expect(branch == env.branch(text, world=world, turns=turns), f"{where}: a branch is determined by its world")
            _expect(branch == fork.branch(text, world=world, turns=turns), f"{where}: a fork branches as its parent does")
            _expect(branch.turns <= turns, f"{where}: a branch plays 1..{turns} turns, got {branch.turns}")
            _json(dict(branch.facts), f"{where}: branch facts")
            count += 1
        if env.canonical("") == env.canonical("no such reply"):
            same = env.branch("", world=world, turns=turns), env.branch("no such reply", world=world, turns=turns)
            _expect(same[0] == same[1], f"{where}: replies with equal canonical keys have equal branches")
        if env.canonical(reply) == env.canonical(f" {reply}\n"):
            same = env.branch(reply, world=world, turns=turns), env.branch(f" {reply}\n", world=world, turns=turns)
            _expect(same[0] == same[1], f"{where}: replies with equal canonical keys have equal branches")
    step = fork.fork().step(reply)
    single = env.branch(reply, world=1, turns=1)
    _expect(single.valid == step.valid, f"{where}: a branch is valid exactly when its first step is")
    return count


def _forkable(make: Callable[[], Environment]) -> Forkable:
    env = make()
    if not isinstance(env, Forkable):
        raise ContractError(f"{type(env).__name__} is not Forkable: observe, snapshot, restore, fork, canonical, branch.")
    return env


def _seen(observation: Observation | None) -> Any:
    if observation is None:
        return None
    messages = [tuple(message) for message in observation.messages]
    return observation.actor, messages, observation.fresh, observation.kind, _json(dict(observation.view), "view")


def _step_row(step: Step) -> dict[str, Any]:
    return {
        "rewards": dict(step.rewards),
        "parts": {actor: dict(parts) for actor, parts in step.parts.items()},
        "observation": _seen(step.observation),
        "stop": step.stop,
        "valid": step.valid,
        "facts": _json(dict(step.facts), "facts"),
    }


def _json(value: Any, where: str) -> str:
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ContractError(f"{where} is JSON-serialisable without NaN: {error}") from error


def _expect(holds: bool, promise: str) -> None:
    if not holds:
        raise ContractError(f"broken promise: {promise}")
