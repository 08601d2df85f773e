"""ToyWorkplace: a two-actor company small enough to reason about by hand, with everything a `Forkable` must have.

A maker buys material and makes items, a seller sells them. Each day the material is cheap or dear and the demand high or low
(both are visible); whether a sale succeeds is keyed luck. The right decisions depend on what is seen, differ by actor, and
the shipped heuristic ignores the prices, so there is something to learn that the heuristic does not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from onthejob.errors import ContractError
from onthejob.keys import keyed_choice, keyed_seed, keyed_uniform
from onthejob.types import Branch, Kind, Message, Observation, Split, Step, StopReason, Task, TextObservation

ACTORS: tuple[str, ...] = ("maker", "seller")
SYSTEM = {
    "maker": "You make items. Answer with one word.",
    "seller": "You sell items. Answer with one word.",
}
MATERIAL_CENTS = {"cheap": 20_000, "dear": 70_000}
PRICE_CENTS = {"high": 60_000, "low": 25_000}
CLOSE_RATE = {"high": 0.9, "low": 0.5}
ITEM_CENTS = 30_000
"""What an unsold item counts for in the company's value."""
INVALID = "INVALID"
"""Canonical key of every reply that would do nothing because it is not legal."""


@dataclass(slots=True, kw_only=True)
class _State:
    task: dict[str, Any]
    world: int = 0
    day: int = 1
    seat: int = 0
    turn: int = 0
    cash: int = 100_000
    stock: int = 1
    sales: int = 0
    invalid: int = 0
    retries: int = 0
    material: str = "cheap"
    demand: str = "high"
    over: bool = False
    notes: list[str] = field(default_factory=list)


class ToyWorkplace:
    """A `Forkable` environment with actors `maker` and `seller`.

    Task payload: `days` (default 5) is the length; `retries` (default 0) is how often an unusable reply is asked again.
    """

    def __init__(self) -> None:
        self._state: _State | None = None
        self._entered = 0

    def reset(self, task: Task) -> Observation:
        """Start the task's episode."""
        row = asdict(task)
        row["payload"] = dict(task.payload)
        self._state = _State(task=row)
        self._draw_day()
        return self._require_observation()

    def step(self, reply: str) -> Step:
        """Execute `reply` for the actor last asked."""
        s = self._live()
        actor, before, action = ACTORS[s.seat], self._value(), self.canonical(reply)
        parts: dict[str, dict[str, float]] = {actor: {}}
        facts: dict[str, Any] = {"day": s.day, "action": action, "world": s.world}
        s.turn += 1
        if action == INVALID:
            s.invalid += 1
            parts[actor]["invalid"] = -1.0
            if s.retries < int(s.task["payload"].get("retries", 0)):
                s.retries += 1
                return self._step_result(parts, facts, valid=False)
        else:
            parts[actor]["action"] = 0.1
            self._execute(action, parts, facts)
            parts[actor]["value"] = (self._value() - before) / 100_000
        s.notes = [*s.notes[-3:], f"{actor} {action}"]
        self._next_seat()
        return self._step_result(parts, facts, valid=action != INVALID)

    def state(self) -> Mapping[str, Any]:
        """Day, turn and the metrics `company_value` (dollars), `sales` and `invalid` (counts)."""
        s = self._live(allow_over=True)
        metrics = {"company_value": self._value() / 100, "sales": float(s.sales), "invalid": float(s.invalid)}
        return {"day": s.day, "turn": s.turn, "stock": s.stock, "over": s.over, "metrics": metrics}

    def close(self) -> None:
        self._state = None

    def observe(self) -> Observation | None:
        """The pending request."""
        s = self._live(allow_over=True)
        if s.over:
            return None
        actor, days = ACTORS[s.seat], self._days()
        legal = self._legal()
        view = {"day": s.day, "days": days, "stock": s.stock, "legal": legal, "demand": s.demand, "material": s.material}
        if s.retries:
            feedback = Message("user", f"Not possible. Choose: {' '.join(legal)}")
            return TextObservation(actor=actor, messages=(feedback,), fresh=False, kind=Kind.RETRY, view=view)
        price = f"Material {s.material}" if actor == "maker" else f"Demand {s.demand}"
        text = f"Day {s.day} of {days}. {price}. Stock {min(s.stock, 9)}.\nChoose: {' '.join(legal)}"
        return TextObservation(actor=actor, messages=(Message("system", SYSTEM[actor]), Message("user", text)), view=view)

    def snapshot(self) -> bytes:
        """The whole state as JSON."""
        return json.dumps(asdict(self._live(allow_over=True)), sort_keys=True).encode()

    def restore(self, snapshot: bytes) -> Observation | None:
        """Continue from `snapshot`.

        Raises:
            ContractError: the bytes are not a snapshot of this environment.
        """
        try:
            self._state = _State(**json.loads(snapshot))
        except (ValueError, TypeError) as error:
            raise ContractError(f"not a ToyWorkplace snapshot ({len(snapshot)} bytes). Pass what snapshot() returned.") from error
        return self.observe()

    def fork(self) -> Self:
        copy = type(self)()
        copy.restore(self.snapshot())
        return copy

    def canonical(self, reply: str) -> str:
        """The legal action that `reply` names, or `INVALID`; case and surrounding space do not matter."""
        action = reply.strip().upper()
        return action if action in self._legal() else INVALID

    def enter(self, world: int) -> None:
        """Meet the luck of `world` from now on."""
        self._live().world = world
        self._entered = self._value()

    def outcome(self) -> float:
        """Change of the company's value in dollars since `enter`."""
        return (self._value() - self._entered) / 100

    def branch(self, reply: str, *, world: int, turns: int) -> Branch:
        """Step `reply` in a fork in `world`, then let the heuristic play both seats."""
        fork = self.fork()
        fork.enter(world)
        returns, played = dict.fromkeys(ACTORS, 0.0), 0
        text, valid = reply, True
        while played < turns:
            step = fork.step(text)
            valid = step.valid if played == 0 else valid
            played += 1
            for actor, reward in step.rewards.items():
                returns[actor] = returns.get(actor, 0.0) + reward
            if step.observation is None:
                break
            text = heuristic_reply(step.observation, 0)
        return Branch(outcome=fork.outcome(), returns=returns, turns=played, valid=valid)

    def _execute(self, action: str, parts: dict[str, dict[str, float]], facts: dict[str, Any]) -> None:
        s = self._live()
        if action == "MAKE":
            s.cash -= MATERIAL_CENTS[s.material]
            s.stock += 1
        elif action in ("SCRAP", "GIFT"):
            s.stock -= 1
        elif action == "SELL":
            sold = self._luck("close") < CLOSE_RATE[s.demand]
            facts["sold"] = sold
            if sold:
                s.cash += PRICE_CENTS[s.demand]
                s.stock -= 1
                s.sales += 1
                parts["seller"]["sale"] = 1.0
                parts["maker"] = {"sale": 0.5}
                parts["customer"] = {"sale": 0.2}  # an actor who is never asked: its reward must not get lost either

    def _step_result(self, parts: dict[str, dict[str, float]], facts: dict[str, Any], *, valid: bool) -> Step:
        rewards = {actor: sum(named.values()) for actor, named in parts.items()}
        stop = StopReason.HORIZON if self._live(allow_over=True).over else None
        return Step(rewards=rewards, parts=parts, observation=self.observe(), stop=stop, valid=valid, facts=facts)

    def _next_seat(self) -> None:
        s = self._live()
        s.retries = 0
        s.seat = (s.seat + 1) % len(ACTORS)
        if s.seat == 0:
            s.over = s.day >= self._days()
            if not s.over:
                s.day += 1
                self._draw_day()

    def _draw_day(self) -> None:
        s = self._live()
        s.material = "cheap" if self._luck("material") < 0.5 else "dear"
        s.demand = "high" if self._luck("demand") < 0.5 else "low"

    def _luck(self, subsystem: str) -> float:
        s = self._live()
        return keyed_uniform(int(s.task["seed"]), "toy", s.world, s.day, subsystem)

    def _legal(self) -> list[str]:
        s = self._live()
        always, with_stock = (["MAKE", "WAIT"], ["SCRAP"]) if s.seat == 0 else (["HOLD"], ["SELL", "GIFT"])
        return always + (with_stock if s.stock > 0 else [])

    def _value(self) -> int:
        s = self._live(allow_over=True)
        return s.cash + ITEM_CENTS * s.stock

    def _days(self) -> int:
        return int(self._live(allow_over=True).task["payload"].get("days", 5))

    def _require_observation(self) -> Observation:
        observation = self.observe()
        if observation is None:
            raise ContractError("the episode is over before its first request. Set days >= 1.")
        return observation

    def _live(self, *, allow_over: bool = False) -> _State:
        if self._state is None:
            raise ContractError("no episode is running. Call reset or restore first.")
        if self._state.over and not allow_over:
            raise ContractError("the episode is over. Call reset first.")
        return self._state


def toy_tasks(
    count: int, *, split: Split = Split.TRAIN, days: int = 5, retries: int = 0, first_seed: int = 100_000
) -> list[Task]:
    """`count` tasks with consecutive seeds."""
    payload = {"days": days, "retries": retries, "family": f"days{days}"}
    return [
        Task(id=f"toy-{split}-{seed}", env="toy", split=split, seed=seed, payload=payload)
        for seed in range(first_seed, first_seed + count)
    ]


def heuristic_reply(observation: Observation, seed: int) -> str:
    """Makes and sells whenever that is possible; blind to prices."""
    legal = observation.view["legal"]
    return next(action for action in ("MAKE", "SELL", "HOLD") if action in legal)


def expert_reply(observation: Observation, seed: int) -> str:
    """Makes from cheap material and sells at high demand; otherwise waits."""
    view = observation.view
    if observation.actor == "maker":
        return "MAKE" if view["material"] == "cheap" else "WAIT"
    return "SELL" if view["demand"] == "high" and "SELL" in view["legal"] else "HOLD"


def random_legal_reply(observation: Observation, seed: int) -> str:
    """One of the replies that the observation lists, chosen by `seed`; works with every environment whose view has `legal`."""
    return keyed_choice(list(observation.view["legal"]), seed, "legal")


def toy_examples(count: int, *, seed: int = 0, expert_share: float = 0.0) -> list[tuple[tuple[Message, ...], str]]:
    """`count` (prompt, legal reply) pairs from random play.

    With `expert_share` 0 they teach the format and nothing about what is good; in between, a stochastic teacher: enough to
    make a model look at the prices, with much left to learn.
    """
    env, examples = ToyWorkplace(), []
    observation: Observation | None = None
    for index in range(count):
        if observation is None:
            observation = env.reset(toy_tasks(1, first_seed=keyed_seed(seed, "example", index) % 10_000)[0])
        played = random_legal_reply(observation, keyed_seed(seed, "reply", index))
        taught = keyed_uniform(seed, "teacher", index) < expert_share
        examples.append((tuple(observation.messages), expert_reply(observation, 0) if taught else played))
        observation = env.step(played).observation
    return examples
