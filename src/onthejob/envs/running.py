"""Running: an `Env` as the loop steps it, an `Environment` whose promises are kept on the Env's behalf.

It counts turns, keeps the request that waits for a reply, ends what does not end by itself, adds up rewards and metrics, and says
in one sentence which method returned something that cannot be used. `Forking` adds what branches need, by copying the state that
the Env set on itself, or by playing the replies so far again.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from onthejob.calls import ReplyParts, read_calls
from onthejob.envs.declared import options_of
from onthejob.envs.env import Env
from onthejob.envs.exchange import Next, Now, Reply, Request
from onthejob.envs.plain import VOCABULARY, NotPlain, dump, load
from onthejob.envs.tools import run_calls, spec_of, tools_of
from onthejob.errors import ConfigError, ContractError
from onthejob.keys import keyed_choice, keyed_seed
from onthejob.progress import Watch
from onthejob.types import Branch, Message, Observation, Step, StopReason, Task, TextObservation, ToolSpec

WATCH = Watch(60.0)
"""Says which `reset` or `step` does not return."""


def random_legal(observation: Observation, seed: int) -> str:
    """A scripted player: one of the legal replies that the view lists.

    Raises:
        ConfigError: it lists none.
    """
    legal = observation.view.get("legal")
    if not legal:
        raise ConfigError(
            f"the random player of {observation.actor} needs legal replies. Give them: self.ask(role, text, legal=[...]), "
            "or write players()."
        )
    return keyed_choice(list(legal), seed, "random")


def partner_of(env: Env) -> Reply:
    """Who plays roles that are not trained, and branches on.

    Raises:
        ConfigError: `partner` names no player.
    """
    known = {**env.players(), "random": random_legal}
    name = env.partner or next(iter(known))
    if name not in known:
        raise ConfigError(f"{type(env).__name__}.partner is {name!r}, and its players are {', '.join(known)}.")
    return known[name]


@dataclass(slots=True)
class _Sums:
    """What an episode came to so far."""

    rewards: dict[str, float]
    metrics: dict[str, float]
    invalid: int = 0


class Running:
    """One episode at a time of an `Env`; an `Environment`."""

    def __init__(self, env: Env) -> None:
        """env: its options are taken, and what `open` set on it is shared; the instance itself is not played."""
        self._given = env
        self._options = options_of(env)
        self._shared = {name: value for name, value in vars(env).items() if name not in self._options and name != "_now"}
        self._env = self._new()
        self._asked: set[str] = set()
        self._pending: Observation | None = None
        self._sums = _Sums({}, {})
        self._over = True

    @property
    def env(self) -> Env:
        """The Env that is played."""
        return self._env

    def reset(self, task: Task) -> Observation:
        """Start the task's episode."""
        # A copy: what the environment does to it must not reach the next episode.
        task = dataclasses.replace(task, payload=copy.deepcopy(dict(task.payload)))
        self._env = self._new()
        self._env._now = Now(task)
        self._asked, self._sums, self._over = set(), _Sums(dict.fromkeys(self._env.roles, 0.0), {}), False
        found = self._called("reset", self._env.reset, task)
        if found.request is None:
            raise ContractError(f"{self._where('reset')} ended before a role was asked. Return self.ask(role, text).")
        self._pay(found, "reset")
        self._pending = self._shown(found.request, "reset")
        return self._pending

    def step(self, reply: str) -> Step:
        """Execute one reply of the role last asked."""
        now = self._env._now
        if self._over or now.request is None:
            raise ContractError(f"{type(self._env).__name__}: step after the end of an episode. Call reset first.")
        actor = now.request.role
        now.turn += 1
        found = self._answered(reply)
        self._pay(found, "step")
        self._sums.invalid += not found.valid
        stop = found.stop
        if found.request is not None and now.turn >= self._env.max_turns:
            stop = StopReason.MAX_TURNS
        if found.request is None or stop is not None:
            self._pending, self._over, now.request = None, True, None
        else:
            self._pending = self._shown(found.request, "step")
        rewards = {role: float(amount) for role, amount in found.rewards.items()}
        facts = {**found.facts, "actor": actor, "turn": now.turn}
        return Step(rewards=rewards, observation=self._pending, stop=stop, valid=found.valid, facts=facts)

    def state(self) -> Mapping[str, Any]:
        """Turns and metrics: `reward` is the sum over all roles, `reward/ROLE` each one's where there are several."""
        turn, paid = self._env._now.turn, self._sums.rewards
        metrics = {"reward": sum(paid.values()), "turns": float(turn), "invalid": float(self._sums.invalid)}
        if len(self._env.roles) > 1:
            metrics |= {f"reward/{role}": amount for role, amount in paid.items()}
        return {"turn": turn, "metrics": metrics | self._sums.metrics}

    @property
    def task(self) -> Task:
        """The task of this episode, as the Env sees it: a copy, in which changes of its payload show."""
        return self._env._now.task

    def check_options(self) -> None:
        """Refuse an Env that writes to its options, which are the same in all episodes.

        Raises:
            ContractError: names the option.
        """
        if changed := [name for name, value in self._options.items() if getattr(self._env, name) != value]:
            raise ContractError(
                f"{type(self._env).__name__} changes its option {changed[0]!r} during an episode. Keep what changes under "
                "another name, set in reset."
            )

    def close(self) -> None:
        """Nothing is held: `Env.close` is called once for all episodes."""

    def _answered(self, reply: str) -> Next:
        """What comes of a reply: the results of the tools that it calls, or what `step` says."""
        request = self._env._now.request
        assert request is not None
        tools = tools_of(self._env, request.role)
        said = read_calls(reply) if tools else ReplyParts(reply)
        if said.problem:
            found = self._env.invalid(f"Error: {said.problem}", reward=self._env.bad_call_reward)
            return dataclasses.replace(found, facts={"problem": said.problem})
        if not said.calls:
            return self._called("step", self._env.step, reply)
        return run_calls(tools, said.calls, request, where=self._where("tools"), bad=self._env.bad_call_reward)

    def _new(self) -> Env:
        """An instance without an episode."""
        made = dataclasses.replace(self._given)  # type: ignore[type-var]
        vars(made).update(self._shared)
        return made

    def _state(self) -> dict[str, Any]:
        """What `reset` and `step` set on the Env."""
        own = {"_now", *self._options, *self._shared}
        return {name: value for name, value in vars(self._env).items() if name not in own}

    def _where(self, method: str) -> str:
        return f"{type(self._env).__name__}.{method}, task {self._env._now.task.id}, turn {self._env._now.turn},"

    def _called(self, method: str, call: Callable[[Any], object], given: Task | str) -> Next:
        with WATCH.over(lambda: self._where(method)):
            found = call(given)
        if isinstance(found, Next):
            return found
        if method == "reset":
            remedy = "Return self.ask(role, text)."
        else:
            remedy = "Return self.ask(...), self.tell(...), self.invalid(...) or self.end(...) on every path."
        raise ContractError(f"{self._where(method)} returned {type(found).__name__}: {found!r:.80}. {remedy}")

    def _pay(self, found: Next, method: str) -> None:
        for role, amount in found.rewards.items():
            if role not in self._env.roles:
                known = ", ".join(self._env.roles)
                raise ContractError(f"{self._where(method)} rewards {role!r}, and the roles are {known}. Correct the name.")
            paid = _number(amount)
            if not math.isfinite(paid):
                raise ContractError(
                    f"{self._where(method)} pays {role} {amount!r:.80}, and rewards are finite numbers. Return a float."
                )
            self._sums.rewards[role] += paid
        for name, value in found.metrics.items():
            figure = _number(value)
            if not math.isfinite(figure):
                raise ContractError(
                    f"{self._where(method)} gives metric {name} the value {value!r:.80}, and metrics are finite numbers. "
                    "Leave a metric out where it has no value."
                )
            self._sums.metrics[str(name)] = figure

    def _shown(self, request: Request, method: str, *, fresh: bool | None = None) -> Observation:
        """The request as policies see it; `fresh` where that is known already."""
        if request.role not in self._env.roles:
            known = ", ".join(self._env.roles)
            raise ContractError(f"{self._where(method)} asks {request.role!r}, and the roles are {known}. Correct the name.")
        for what, text in (("text", request.text), ("system", request.system)):
            if not isinstance(text, str):
                raise ContractError(f"{self._where(method)} asks with {what} {text!r:.80}, which must be text. Pass a str.")
        if wrong := [reply for reply in request.legal if not isinstance(reply, str)]:
            raise ContractError(
                f"{self._where(method)} lists the legal reply {wrong[0]!r:.80}, and replies are texts. Pass legal=[str(...)]."
            )
        self._env._now.request = request
        if fresh is None:
            fresh = bool(request.fresh) or request.role not in self._asked
        self._asked.add(request.role)
        system = (Message("system", request.system),) if request.system and fresh else ()
        before = request.before if fresh or request.fresh is False else ()
        view: dict[str, Any] = {"text": request.text, **request.view}
        if request.legal:
            view["legal"] = list(request.legal)
        tools = tuple(spec_of(tool) for tool in tools_of(self._env, request.role).values())
        return TextObservation(
            actor=request.role,
            messages=(*system, *before, Message(request.speaker, request.text)),
            fresh=fresh,
            view=view,
            tools=(*tools, *request.tools),
        )


class Forking(Running):
    """A `Running` that can be continued twice from the same state; a `Continuable`."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._replies: list[tuple[int, str]] = []
        """(World, reply) of every turn, where they are played again to fork."""
        self._begun: Task | None = None
        """The task as it was given, where it is played again to fork."""
        self._entered = 0.0
        """Sum of all rewards when the present world was entered."""

    def reset(self, task: Task) -> Observation:
        """Start the task's episode."""
        self._replies, self._begun = [], task
        return super().reset(task)

    def step(self, reply: str) -> Step:
        """Execute one reply."""
        if self._env.forks == "replay":
            self._replies.append((self._env._now.world, reply))
        return super().step(reply)

    def observe(self) -> Observation | None:
        """The pending request."""
        return self._pending

    def snapshot(self) -> bytes:
        """Everything needed to continue, as JSON.

        Raises:
            ContractError: the state cannot be copied; says what, and what to do instead.
        """
        now = self._env._now
        self.check_options()
        if self._env.forks == "replay" and self._begun is not None:
            return json.dumps({"task": self._begun.row(), "world": now.world, "replies": self._replies}).encode()
        row: dict[str, Any] = {"task": now.task.row(), "world": now.world}
        try:
            state = dump(self._state(), self._modules())
        except NotPlain as error:
            raise ContractError(
                f"{type(self._env).__name__} cannot be forked: {error}. Keep plain values in self, or write forks = 'replay' if "
                "the same replies always do the same, or forks = 'no'."
            ) from error
        pending = None if now.request is None else _row(now.request)
        fresh = None if self._pending is None else self._pending.fresh
        row |= {"turn": now.turn, "request": pending, "fresh": fresh, "asked": sorted(self._asked), "over": self._over}
        try:
            return json.dumps(row | {"sums": dataclasses.asdict(self._sums), "state": state}).encode()
        except (TypeError, ValueError) as error:
            raise ContractError(
                f"{self._where('step')} has a view or a task that is not of JSON's types: {error}. Pass texts, numbers, lists "
                "and dictionaries with texts as keys."
            ) from error

    def restore(self, snapshot: bytes) -> Observation | None:
        """Continue from `snapshot`."""
        row = json.loads(snapshot)
        task = Task.from_row(row["task"])
        if "replies" in row:
            self.reset(task)
            for world, reply in row["replies"]:
                self._env._now.world = world
                self.step(reply)
            self._env._now.world = row["world"]
            return self._pending
        self._env = self._new()
        for name, value in load(row["state"], self._modules()).items():
            setattr(self._env, name, value)
        self._env._now = Now(task, turn=row["turn"], world=row["world"])
        self._asked, self._over = set(row["asked"]), row["over"]
        self._sums = _Sums(**row["sums"])
        if row["request"] is None:
            self._pending = None
        else:
            request = _request(row["request"])
            self._pending = self._shown(request, "restore", fresh=row["fresh"])
        return self._pending

    def fork(self) -> Self:
        """An independent copy."""
        made = type(self)(self._given)
        made.restore(self.snapshot())
        return made

    def canonical(self, reply: str) -> str:
        """Replies that differ in the white space around them do the same."""
        return reply.strip()

    def enter(self, world: int) -> None:
        """Meet the luck of `world` from now on."""
        self._env._now.world = world
        self._entered = sum(self._sums.rewards.values())

    def outcome(self) -> float:
        """Sum of all roles' rewards since `enter`."""
        return sum(self._sums.rewards.values()) - self._entered

    def branch(self, reply: str, *, world: int, turns: int) -> Branch:
        """Step `reply` in a fork in `world`, and let the scripted partner continue up to `turns` turns."""
        fork = self.fork()
        fork.enter(world)
        now = fork._env._now
        returns = dict.fromkeys(self._env.roles, 0.0)
        step = fork.step(self.canonical(reply))
        valid, played = step.valid, 1
        _add(returns, step.rewards.items())
        if step.observation is not None and played < turns:
            partner = partner_of(self._env)
            while step.observation is not None and played < turns:
                seed = keyed_seed(now.task.seed, "continue", world, now.turn)
                step = fork.step(partner(step.observation, seed))
                played += 1
                _add(returns, step.rewards.items())
        return Branch(outcome=sum(returns.values()), returns=returns, turns=played, valid=valid)

    def _modules(self) -> set[str]:
        """Modules whose classes a snapshot may hold: those of the Env and of its base classes, and the vocabulary."""
        own = {kind.__module__ for kind in type(self._env).__mro__ if issubclass(kind, Env)}
        return (own | {VOCABULARY}) - {Env.__module__}


def _number(value: object) -> float:
    """A number of Python, NumPy or torch as a float; NaN for anything else, texts included."""
    if isinstance(value, (str, bytes)):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _row(request: Request) -> dict[str, Any]:
    """A request in JSON's types, as it was written before there were tools where it has none."""
    row = dataclasses.asdict(request)
    usual = {"speaker": "user", "tools": ()}
    return {name: value for name, value in row.items() if name not in usual or value != usual[name]}


def _request(row: Mapping[str, Any]) -> Request:
    """The inverse of `_row`."""
    before = tuple(Message(*message) for message in row["before"])
    tools = tuple(ToolSpec(*tool) for tool in row.get("tools", ()))
    return Request(**{**row, "legal": tuple(row["legal"]), "before": before, "tools": tools})


def _add(sums: dict[str, float], rewards: Iterable[tuple[str, float]]) -> None:
    for role, amount in rewards:
        sums[role] += amount


def running(env: Env) -> Running:
    """What plays episodes of `env`."""
    return Running(env) if env.forks == "no" else Forking(env)
