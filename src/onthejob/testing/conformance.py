"""check_environment: what every environment promises, checked by playing it.

The checks follow the docstrings of `Environment` and `Forkable` in `onthejob.types`. The first broken promise raises
`ContractError` and says which one and where; a passed check returns how much was exercised, so that a caller can assert that
it was not vacuous.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onthejob.errors import ContractError
from onthejob.rollout.keys import keyed_choice, keyed_seed
from onthejob.types import Environment, Forkable, Observation, Step, Task

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
) -> Conformance:
    """Play every task and compare with what the protocol promises.

    Args:
        make: creates an independent environment.
        tasks: at least one; only the first `max_turns` turns of each are played.
        choose: gives usable replies, so that the check gets beyond invalid ones.
        max_turns: length of what is played of each task.
        seed: keys the replies.
        branch_turns: length of the branches that are compared.

    Raises:
        ContractError: a promise is broken.
    """
    if not tasks:
        raise ContractError("check_environment needs at least one task, got 0. Pass tasks=[...].")
    probe = make()
    _expect(isinstance(probe, Environment), "make() returns an Environment (reset, step, state, close)")
    probe.close()
    steps = adversarial = forks = branches = 0
    for task in tasks:
        replies = _check_playing(make, task, choose, max_turns, seed)
        steps += len(replies)
        adversarial += _check_adversarial(make, task, replies)
        if isinstance(make(), Forkable):
            marks = sorted({0, len(replies) // 3, max(0, len(replies) - 2)})
            for mark in marks:
                branches += _check_forking(make, task, replies, mark, branch_turns)
            forks += len(marks)
    return Conformance(tasks=len(tasks), steps=steps, adversarial=adversarial, forks=forks, branches=branches)


def _check_playing(make: Callable[[], Environment], task: Task, choose: Choose, max_turns: int, seed: int) -> list[str]:
    """Two environments and one replay give the same episode; returns its replies."""
    first, second = make(), make()
    observation: Observation | None = first.reset(task)
    _expect(_seen(observation) == _seen(second.reset(task)), f"{task.id}: reset is deterministic across instances")
    _expect(_seen(observation) == _seen(first.reset(task)), f"{task.id}: reset may be called again and starts over")
    _expect(observation.fresh, f"{task.id}: the first observation of an episode is fresh")
    replies: list[str] = []
    rows: list[Any] = []
    while observation is not None and len(replies) < max_turns:
        where = f"{task.id} turn {len(replies)}"
        replies.append(choose(observation, keyed_seed(seed, task.id, len(replies))))
        step = first.step(replies[-1])
        _check_step(step, where)
        rows.append(_step_row(step))
        _expect(rows[-1] == _step_row(second.step(replies[-1])), f"{where}: step is deterministic")
        _check_state(first.state(), where)
        _expect(_json(first.state(), where) == _json(second.state(), where), f"{where}: state is deterministic")
        observation = step.observation
    first.reset(task)
    _expect([_step_row(first.step(reply)) for reply in replies] == rows, f"{task.id}: a replay after reset is identical")
    first.close()
    second.close()
    return replies


def _check_step(step: Step, where: str) -> None:
    _expect((step.observation is None) == (step.stop is not None), f"{where}: there is either an observation or a stop reason")
    for actor, reward in step.rewards.items():
        _expect(math.isfinite(reward), f"{where}: the reward of {actor} is finite, got {reward}")
    for actor, parts in step.parts.items():
        _expect(actor in step.rewards, f"{where}: {actor} has reward parts and therefore a reward")
        total = sum(parts.values())
        _expect(
            abs(total - step.rewards[actor]) <= TOLERANCE,
            f"{where}: the parts of {actor} sum to its reward, got {total} and {step.rewards[actor]}",
        )
    _json(dict(step.facts), f"{where}: facts")
    if step.observation is not None:
        _json(dict(step.observation.view), f"{where}: view")
        _expect(len(step.observation.messages) > 0, f"{where}: an observation has at least one message")


def _check_state(state: Mapping[str, Any], where: str) -> None:
    _json(state, f"{where}: state")
    metrics = state.get("metrics")
    _expect(isinstance(metrics, Mapping) and len(metrics) > 0, f"{where}: state()['metrics'] holds at least one metric")
    for name, value in (metrics or {}).items():
        _expect(isinstance(value, int | float) and math.isfinite(value), f"{where}: metric {name} is a finite number")


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
            step = env.step(reply)
        except ContractError:
            raise
        except Exception as error:
            raise ContractError(f"{task.id}: step raised {type(error).__name__} for the reply {reply[:40]!r}: {error}") from error
        _check_step(step, f"{task.id} after {reply[:20]!r}")
        observation = step.observation
        count += 1
    env.close()
    return count


def _check_forking(make: Callable[[], Environment], task: Task, replies: Sequence[str], mark: int, turns: int) -> int:
    """At turn `mark`: snapshot, restore, fork and branch are exact and leave the parent untouched."""
    env = _forkable(make)
    env.reset(task)
    for reply in replies[:mark]:
        env.step(reply)
    where, rest = f"{task.id} turn {mark}", replies[mark:]
    frozen = env.snapshot()
    _expect(env.snapshot() == frozen, f"{where}: snapshot is repeatable")
    other, fork = _forkable(make), env.fork()
    _expect(_seen(other.restore(frozen)) == _seen(env.observe()), f"{where}: restore returns the pending request")
    _expect(other.snapshot() == frozen, f"{where}: restore and snapshot are inverse")
    _expect(fork.snapshot() == frozen, f"{where}: a fork equals its parent")
    branches = _check_branches(env, fork, rest[0], frozen, turns, where) if rest else 0
    future = [_step_row(fork.step(reply)) for reply in rest]
    _expect(env.snapshot() == frozen, f"{where}: stepping a fork leaves its parent untouched")
    _expect([_step_row(other.step(reply)) for reply in rest] == future, f"{where}: the restored future equals the fork's")
    _expect([_step_row(env.step(reply)) for reply in rest] == future, f"{where}: the parent's future equals the fork's")
    states = [_json(of.state(), where) for of in (env, fork, other)]
    _expect(states[0] == states[1] == states[2], f"{where}: state() after the same future is the same")
    if future and future[-1]["stop"] is not None:
        _expect(env.observe() is None, f"{where}: observe() is None after the end")
    return branches


def _check_branches(env: Forkable, fork: Forkable, reply: str, frozen: bytes, turns: int, where: str) -> int:
    count = 0
    for world in (1, 2):
        for text in (reply, "", "no such reply"):
            branch = env.branch(text, world=world, turns=turns)
            _expect(env.snapshot() == frozen, f"{where}: branch leaves its parent untouched")
            _expect(branch == env.branch(text, world=world, turns=turns), f"{where}: a branch is determined by its world")
            _expect(branch == fork.branch(text, world=world, turns=turns), f"{where}: a fork branches as its parent does")
            _expect(1 <= branch.turns <= turns, f"{where}: a branch plays 1..{turns} turns, got {branch.turns}")
            _expect(math.isfinite(branch.outcome), f"{where}: a branch's outcome is finite")
            _expect(all(map(math.isfinite, branch.returns.values())), f"{where}: a branch's returns are finite")
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
