"""OfficeEnvironment: the simulated startup behind the protocol of `onthejob.types` (Forkable).

Thin: parse the reply, execute, reward, name the next actor. The customer's seat is scripted inside the environment unless the task
opens it. It never calls a model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onthejob.envs.office import prompt, scenarios
from onthejob.envs.office.actions import Action, Invalid, Reason, feedback, parse, render
from onthejob.envs.office.episode import run
from onthejob.envs.office.market import company_value
from onthejob.envs.office.memory import Lexicon, MemoryStream, Outcome
from onthejob.envs.office.policies import Player
from onthejob.envs.office.policies.heuristic import heuristic
from onthejob.envs.office.reward import TurnLog, team_reward
from onthejob.envs.office.roles import TRAINED_ROLES, Role
from onthejob.envs.office.sections import Count
from onthejob.envs.office.simulator import ROLE_NAMES, Simulator, actor_of
from onthejob.envs.office.state import State
from onthejob.envs.office.views import team_status, view
from onthejob.errors import ConfigError, ContractError
from onthejob.types import Branch, Kind, Message, Step, StopReason, Task

INVALID_KEY = "invalid"
"""Canonical key of every reply that does nothing because it is not usable."""
SEATS: tuple[str, ...] = tuple(str(role) for role in TRAINED_ROLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfficeConfig:
    """How the office presents itself. The rules of the company are in the scenario."""

    profile: str = "compact"
    """`compact` (about 250 prompt tokens, for small models) or `full` (adds team status, board, memories and reasoning)."""
    budget: int | None = None
    """Tokens of the user message; sections of lower priority are dropped to fit. None means no limit. Needs a token counter."""
    retries: int = 0
    """Times an unusable reply may be corrected with growing feedback, 0 to 8. Keep 0 in training, so that the policy feels it."""
    days: int = 30
    """Length of an episode in days of 14 turns."""
    reflect: bool = False
    """Ask the actor itself to reflect every 70 turns (an extra request); otherwise reflections are deterministic."""

    def __post_init__(self) -> None:
        if self.profile not in prompt.PROFILES:
            raise ConfigError(f"profile must be one of {', '.join(prompt.PROFILES)}, got {self.profile!r}.")
        if not 0 <= self.retries <= 8:
            raise ConfigError(f"retries must be in 0..8, got {self.retries}.")
        if not 1 <= self.days <= 90:
            raise ConfigError(f"days must be in 1..90, got {self.days}.")
        if self.reflect and self.profile != "full":
            raise ConfigError("reflect needs the memories of the full profile. Set profile to 'full'.")


class OfficeView(dict[str, Any]):
    """A role's view. `view["legal"]` lists the legal replies; it is computed when asked for and is not part of what the role reads."""

    __slots__ = ("_legal",)

    def __init__(self, seen: Mapping[str, Any], legal: Callable[[], list[str]]) -> None:
        super().__init__(seen)
        self._legal = legal

    def __missing__(self, key: str) -> Any:
        if key == "legal":
            return self._legal()
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self._legal() if key == "legal" else super().get(key, default)


class OfficeObservation:
    """A request to one role. The prompt is rendered only when somebody reads it."""

    __slots__ = ("_extra", "_messages", "_render", "actor", "fresh", "kind", "view")

    def __init__(self, actor: str, seen: OfficeView, render_messages: Callable[[], tuple[Message, ...]], *, kind: Kind = Kind.ACT, fresh: bool = True) -> None:
        self.actor = actor
        self.view = seen
        self.kind = kind
        self.fresh = fresh
        self._render = render_messages
        self._messages: tuple[Message, ...] | None = None

    @property
    def messages(self) -> Sequence[Message]:
        """System and user message, or the feedback of a retry."""
        if self._messages is None:
            self._messages = self._render()
        return self._messages


class OfficeEnvironment:
    """The office. Implements `onthejob.types.Forkable`."""

    def __init__(
        self, config: OfficeConfig | None = None, *, count_tokens: Count | None = None, continuation: Mapping[str, Player] | None = None
    ) -> None:
        """Create an environment; `reset` starts an episode.

        Args:
            config: presentation.
            count_tokens: the policy's tokenizer, for `config.budget`.
            continuation: players that continue branches, per seat; the heuristic by default.

        Raises:
            ConfigError: a budget without a token counter.
        """
        self.config = config or OfficeConfig()
        if self.config.budget is not None and count_tokens is None:
            raise ConfigError(f"budget {self.config.budget} needs a token counter. Pass count_tokens.")
        self._count = count_tokens
        self._continuation = dict(continuation) if continuation else dict.fromkeys(SEATS, heuristic)
        self._simulator: Simulator | None = None
        self._state: State | None = None
        self._task = ""
        self._attempts = 0
        self._last_reply = ""
        self._lexicon = Lexicon()
        self._memories: dict[str, MemoryStream] = {}
        self._reflecting = False
        self._pending: OfficeObservation | None = None

    # -- Environment ---------------------------------------------------------------------------------------------------------

    def reset(self, task: Task) -> OfficeObservation:
        """Found the company of `task.payload["scenario"]` with the luck of `task.seed`.

        Payload: `scenario` (name or path of a TOML file, default baseline), `days` (default from the config), `world` (which luck
        after the first morning, default 0).

        Raises:
            ConfigError: unknown scenario or payload key.
        """
        unknown = set(task.payload) - {"scenario", "days", "world"}
        if unknown:
            raise ConfigError(f"task {task.id!r} has unknown payload keys {sorted(unknown)}; allowed are scenario, days, world.")
        self._simulator = Simulator(scenarios.load(task.payload.get("scenario", "baseline")))
        self._state = self._simulator.found(task.seed, int(task.payload.get("days", self.config.days)))
        self._state.world = int(task.payload.get("world", 0))
        self._task = task.id
        self._attempts, self._reflecting = 0, False
        self._memories = {role: MemoryStream(self._lexicon) for role in SEATS} if self.config.profile == "full" else {}
        pending = self._next({})
        if pending is None:
            raise ContractError(f"task {task.id!r} is over before it began.")
        return pending

    def step(self, reply: str) -> Step:
        """Execute the pending actor's reply."""
        s, simulator, pending = self._live()
        role = pending.actor
        if self._reflecting:
            self._reflecting = False
            self._memories[role].accept_reflection(reply, turn=s.turn)
            return Step(rewards={}, observation=self._next({}), facts={"reflection": reply[:240]})
        parsed = self._read(reply, role)
        if isinstance(parsed, Invalid) and self._attempts < self.config.retries:
            return self._retry(parsed)
        self._attempts = 0
        action = None if isinstance(parsed, Invalid) else parsed
        log = simulator.step(s, action)
        facts: dict[str, Any] = {"actor": role, "turn": s.turn - 1, "notes": list(log.notes)}
        if action is not None:
            facts |= {"action": action.action_type, "target": action.target, "changed": log.changed}
            if action.message_to:
                facts["message"] = f"{action.message_to}: {action.message}"
        else:
            facts |= {"action": INVALID_KEY, "why": parsed.feedback if isinstance(parsed, Invalid) else ""}
        self._remember(role, action, log)
        totals: dict[str, list[float]] = {}
        _add(totals, log)
        observation = self._next(totals)
        parts = {name: dict(zip(log.parts()[name], values, strict=True)) for name, values in totals.items()}
        rewards = {name: sum(values) for name, values in totals.items()}
        return Step(
            rewards=rewards,
            parts=parts,
            observation=observation,
            stop=None if observation is not None else StopReason(s.done),
            valid=action is not None,
            facts=facts,
        )

    def state(self) -> Mapping[str, Any]:
        """Summary of the company; `metrics` are in dollars, rates and counts."""
        if self._state is None:
            return {"metrics": {}}
        s = self._state
        total = s.reward_total
        return {
            "task": self._task,
            "scenario": s.scenario,
            "day": s.day + 1,
            "turn": s.turn,
            "done": s.done,
            "ledger": dict(s.ledger),
            "metrics": {
                "company_value": company_value(s) / 100.0,
                "team_reward": team_reward(total) if total else 0.0,
                "cash": s.cash / 100.0,
                "mrr": s.mrr() / 100.0,
                "deals_won": float(s.won),
                "deals_lost": float(s.lost),
                "churned": float(s.churned),
                "customers": float(len(s.customers())),
                "nps": s.nps(),
                "satisfaction": s.satisfaction(),
                "stability": s.stability,
                "features": float(sum(1 for day in s.feature_shipped if day >= 0)),
                "invalid": float(s.invalid),
                **{f"reward_{role}": value for role, value in total.items()},
            },
        }

    def close(self) -> None:
        """Nothing is held outside this object."""

    # -- Forkable ------------------------------------------------------------------------------------------------------------

    def observe(self) -> OfficeObservation | None:
        """The pending request."""
        return self._pending

    def snapshot(self) -> bytes:
        """State, memories and pending retry as JSON; holds no code.

        Raises:
            ContractError: nothing was reset.
        """
        if self._state is None:
            raise ContractError("snapshot needs a running episode. Call reset first.")
        extra = {
            "task": self._task,
            "scenario": self._state.scenario,
            "attempts": self._attempts,
            "last_reply": self._last_reply,
            "reflecting": self._reflecting,
            "memories": {role: stream.to_state() for role, stream in self._memories.items()},
        }
        head = json.dumps(extra, separators=(",", ":"), ensure_ascii=True).encode()
        return len(head).to_bytes(4, "big") + head + self._state.dumps()

    def restore(self, snapshot: bytes) -> OfficeObservation | None:
        """Continue from `snapshot`.

        Raises:
            ContractError: the bytes are not a snapshot of this version.
        """
        try:
            size = int.from_bytes(snapshot[:4], "big")
            extra = json.loads(snapshot[4 : 4 + size])
            state = State.loads(snapshot[4 + size :])
            self._simulator = Simulator(scenarios.load(extra["scenario"])) if self._scenario() != extra["scenario"] else self._simulator
            self._memories = {role: MemoryStream.from_state(held, self._lexicon) for role, held in extra["memories"].items()}
            self._task, self._attempts = extra["task"], extra["attempts"]
            self._last_reply, self._reflecting = extra["last_reply"], extra["reflecting"]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ContractError(f"not an office snapshot: {error}. Restore what snapshot() of the same version returned.") from error
        self._state = state
        self._pending = None if state.done else self._observation()
        return self._pending

    def fork(self) -> OfficeEnvironment:
        """An independent copy; rules and tokenizer are shared, state and memories are not."""
        new = OfficeEnvironment(self.config, count_tokens=self._count, continuation=self._continuation)
        new._simulator, new._lexicon = self._simulator, self._lexicon
        new._state = self._state.copy() if self._state is not None else None
        new._memories = {role: stream.fork() for role, stream in self._memories.items()}
        new._task, new._attempts = self._task, self._attempts
        new._last_reply, new._reflecting = self._last_reply, self._reflecting
        new._pending = new._observation() if self._pending is not None else None
        return new

    def canonical(self, reply: str) -> str:
        """The action without its reasoning, or `invalid` for every reply that would do nothing."""
        _, _, pending = self._live()
        parsed = self._read(reply, pending.actor)
        return INVALID_KEY if isinstance(parsed, Invalid) else render(replace(parsed, reasoning=""))

    def branch(self, reply: str, *, world: int, turns: int) -> Branch:
        """Step `reply` in a fork of luck `world` and continue with the scripted players.

        Outcome: change of company value in dollars, less what chance contributed (`State.luck`): the same expectation, less noise.

        Raises:
            ContractError: the episode is over, or `world` < 1, or `turns` < 1.
        """
        s, simulator, pending = self._live()
        if world < 1 or turns < 1:
            raise ContractError(f"a branch needs world >= 1 (0 is the main line) and turns >= 1, got {world} and {turns}.")
        copy = s.copy()
        copy.world = world
        parsed = self._read(reply, pending.actor)
        before, start = company_value(copy) - copy.luck, copy.turn
        log = simulator.step(copy, None if isinstance(parsed, Invalid) else parsed)
        returns = run(simulator, copy, self._continuation, turns=turns - 1)
        for name, value in log.rewards().items():
            returns[name] = returns.get(name, 0.0) + value
        return Branch(
            outcome=(company_value(copy) - copy.luck - before) / 100.0,
            returns=returns,
            turns=copy.turn - start,
            valid=not isinstance(parsed, Invalid),
            facts={"company_value": company_value(copy) / 100.0, "won": copy.won - s.won, "churned": copy.churned - s.churned},
        )

    def legal_replies(self) -> list[str]:
        """Texts of all legal replies of the pending actor, without messages."""
        s, simulator, pending = self._live()
        return [render(action) for action in simulator.legal(s, pending.actor)]

    # -- inside --------------------------------------------------------------------------------------------------------------

    def _live(self) -> tuple[State, Simulator, OfficeObservation]:
        if self._state is None or self._simulator is None or self._pending is None:
            raise ContractError("no reply is pending: call reset first, and stop when a step returns no observation.")
        return self._state, self._simulator, self._pending

    def _scenario(self) -> str:
        return self._state.scenario if self._state is not None and self._simulator is not None else ""

    def _read(self, reply: str, role: str) -> Action | Invalid:
        s, simulator, _ = self._live()
        parsed = parse(reply, Role(role))
        if isinstance(parsed, Invalid):
            return parsed
        why = simulator.why_illegal(s, role, parsed)
        return Invalid(Reason.ILLEGAL_TARGET, why) if why else parsed

    def _next(self, totals: dict[str, list[float]]) -> OfficeObservation | None:
        """Play the scripted customer's turns and build the next request; what those turns pay is added to `totals`."""
        s, simulator = self._state, self._simulator
        assert s is not None and simulator is not None
        while not s.done and actor_of(s.turn) == "customer":
            log = simulator.step(s, simulator.customer_action(s))
            _add(totals, log)
            self._remember("customer", None, log)
        self._pending = None if s.done else self._observation()
        return self._pending

    def _observation(self) -> OfficeObservation:
        s = self._state
        assert s is not None
        role, turn = actor_of(s.turn), s.turn
        seen = OfficeView(view(s, role), lambda: self._legal_at(turn))
        stream = self._memories.get(role)
        if stream is not None and self.config.reflect and stream.reflection_due(turn):
            from onthejob.envs.office.memory import reflection_prompt

            self._reflecting = True
            text = reflection_prompt(stream)
            system = Message("system", prompt.system_text(role, "full"))
            return OfficeObservation(role, seen, lambda: (system, Message("user", text)), kind=Kind.REFLECT)
        extra = self._extra(role, seen) if stream is not None else None
        config, count = self.config, self._count
        if self._attempts:
            return self._retry_observation(role, seen)
        return OfficeObservation(role, seen, lambda: prompt.messages(seen, profile=config.profile, extra=extra, budget=config.budget, count=count))

    def _legal_at(self, turn: int) -> list[str]:
        if self._state is None or self._state.turn != turn:
            raise ContractError("the legal replies of an observation can be listed only while it is pending.")
        return self.legal_replies()

    def _extra(self, role: str, seen: Mapping[str, Any]) -> dict[str, list[str]]:
        """Lines of the full profile. Retrieval counts as use of a memory, so it happens once, when the request is made."""
        s = self._state
        assert s is not None
        stream = self._memories[role]
        query = " ".join([*seen["inbox"], *seen["events"], str(seen["focus"])])
        found = stream.retrieve(query, s.turn, limit=6)
        return {
            "team": [f"{other}: {status}" for other, status in team_status(s, role).items()],
            "board": [f"{who}: {text}" for _, who, text in s.shared],
            "memories": [memory.text for memory in found if memory.kind == "observation"],
            "insights": [memory.text for memory in found if memory.kind != "observation"] + ([f"Plan: {stream.plan}"] if stream.plan else []),
        }

    def _retry(self, problem: Invalid) -> Step:
        s, _, pending = self._live()
        self._attempts += 1
        self._last_reply = problem.feedback
        self._pending = self._retry_observation(pending.actor, pending.view)
        return Step(rewards={}, observation=self._pending, valid=False, facts={"actor": pending.actor, "turn": s.turn, "retry": self._attempts})

    def _retry_observation(self, role: str, seen: OfficeView) -> OfficeObservation:
        text = feedback(Invalid(Reason.ILLEGAL_TARGET, self._last_reply), self._attempts, seen["legal"])
        return OfficeObservation(role, seen, lambda: (Message("user", text),), kind=Kind.RETRY, fresh=False)

    def _remember(self, role: str, action: Action | None, log: TurnLog) -> None:
        """Own outcomes, and what everybody may know, become memories; every 70 turns the stream condenses itself."""
        s = self._state
        assert s is not None
        if not self._memories:
            return
        for text in log.notes:
            for stream in self._memories.values():
                stream.observe(text, s.turn)
        if s.shared and s.shared[-1][0] == s.turn - 1:
            for name, stream in self._memories.items():
                if name != s.shared[-1][1]:
                    stream.observe(f"{s.shared[-1][1]} {s.shared[-1][2]}", s.turn)
        own = self._memories.get(role)
        if own is not None and action is not None:
            gain = log.rewards()[role]
            text = f"I did {action.action_type} {action.target}: {'it worked' if log.changed else 'it changed nothing'}"
            own.observe_own(text, s.turn, Outcome(action.action_type, action.target or "company", 1, int(log.changed), gain))
        if not self.config.reflect:
            for stream in self._memories.values():
                if stream.reflection_due(s.turn):
                    stream.reflect(s.turn)


def _add(totals: dict[str, list[float]], log: TurnLog) -> None:
    for name, line in zip(ROLE_NAMES, log.lines, strict=True):
        kept = totals.setdefault(name, [0.0] * len(line))
        for index, value in enumerate(line):
            kept[index] += value
