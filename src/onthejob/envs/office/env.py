"""OfficeEnvironment: the simulated startup behind the protocol of `onthejob.types` (Forkable).

Thin: parse the reply, execute, reward, name the next actor. The customer's seat is scripted inside the environment unless the
configuration asks for its turns, too. It never calls a model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from onthejob.envs.office import prompt, scenarios
from onthejob.envs.office.actions import Action, Invalid, Reason, feedback, parse, render
from onthejob.envs.office.company_state import HELD_OUT, State
from onthejob.envs.office.fast_play import OnTurn, run, step_watched
from onthejob.envs.office.market import company_value, pipeline_value, prospects
from onthejob.envs.office.memory import Lexicon, Memory
from onthejob.envs.office.new_company import draw_unseen
from onthejob.envs.office.observation import OfficeObservation, OfficeView
from onthejob.envs.office.policies import Player, as_reply
from onthejob.envs.office.policies.heuristic import heuristic
from onthejob.envs.office.policies.stand_in import StandIn, habits
from onthejob.envs.office.reward_parts import PARTS, TurnLog, team_reward
from onthejob.envs.office.roles import TRAINED_ROLES, Role
from onthejob.envs.office.scenarios.difficulty import at_difficulty
from onthejob.envs.office.scorer import entities, score_reply
from onthejob.envs.office.sections import Count, Section
from onthejob.envs.office.simulator import ROLE_NAMES, Simulator, actor_of
from onthejob.envs.office.snapshot import dumps, loads
from onthejob.envs.office.tasks import refuse_training
from onthejob.envs.office.team_memory import TeamMemory
from onthejob.envs.office.vaporware import Reader
from onthejob.envs.office.views import view
from onthejob.errors import ConfigError, ContractError
from onthejob.types import Branch, Kind, Message, Observation, PromptBudget, Step, StopReason, Task

INVALID_KEY = "invalid"
"""Canonical key of every reply that does nothing because it is not usable."""
REFLECTION_KEY = "reflection"
"""Canonical key of every reply to a request for reflection: what is remembered changes no branch, whose players are scripted."""
SEATS: tuple[str, ...] = tuple(str(role) for role in TRAINED_ROLES)
CUSTOMER = str(Role.CUSTOMER)
MAX_DAYS = 90
_encode = json.JSONEncoder(separators=(",", ":")).encode
PAYLOAD = frozenset({"scenario", "days", "world", "difficulty"})
"""Keys that a task's payload may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfficeConfig:
    """How the office presents itself. The rules of the company are in the scenario."""

    profile: str = "compact"
    """`compact` (about 250 prompt tokens, for small models) or `full` (adds team status, board, memories and reasoning)."""
    budget: int | None = None
    """Tokens of the user message; sections of lower priority are dropped to fit. Needs a token counter. None leaves the limit to
    who reads (`OfficeObservation.within`)."""
    retries: int = 0
    """Times an unusable reply may be corrected with growing feedback, 0 to 8. Keep 0 in training, so that the policy feels it.
    The feedback appends to the actor's context and is not part of `budget`."""
    days: int = 30
    """Length of an episode in days of 14 turns, 1 to 90."""
    crisis_bonus: bool = True
    """Pay the extra for churn prevention while satisfaction is low."""
    reflect: bool = False
    """Ask the actor itself to reflect every 70 turns (an extra request); otherwise reflections are deterministic."""
    reader: str = ""
    """Folder of a trained reader of claims (`onthejob.models.claims`) that judges what texts promise; empty for the linear
    weights, which cost nothing and are wrong more often. The environment must be given that reader."""
    customer_asked: bool = False
    """Ask for the customer's turns as for those of the other roles; by default its script plays them inside `step`. Branches
    continue with the script all the same. For `play` and the viewer: training and evaluation keep the script."""

    def __post_init__(self) -> None:
        if self.profile not in prompt.PROFILES:
            raise ConfigError(f"profile must be one of {', '.join(prompt.PROFILES)}, got {self.profile!r}.")
        if not 0 <= self.retries <= 8:
            raise ConfigError(f"retries must be in 0..8, got {self.retries}.")
        if not 1 <= self.days <= MAX_DAYS:
            raise ConfigError(f"days must be in 1..{MAX_DAYS}, got {self.days}.")
        if self.budget is not None and self.budget < 1:
            raise ConfigError(f"budget must be at least 1 token or None, got {self.budget}.")
        if self.reflect and self.profile != "full":
            raise ConfigError("reflect needs the memories of the full profile. Set profile to 'full'.")


class OfficeEnvironment:
    """The office. Implements `onthejob.types.Forkable`."""

    def __init__(
        self,
        config: OfficeConfig | None = None,
        *,
        count_tokens: Count | None = None,
        continuation: Mapping[str, Player] | None = None,
        on_turn: OnTurn | None = None,
        reader: Reader | None = None,
    ) -> None:
        """Create an environment; `reset` starts an episode.

        Args:
            config: presentation.
            count_tokens: the policy's tokenizer, for `config.budget`.
            continuation: players that continue branches, per seat; the heuristic by default.
            on_turn: a spectator of the main line, the customer's turns included; forks and branches have none.
            reader: what `config.reader` names.

        Raises:
            ConfigError: a budget without a token counter, a reader's folder without the reader or the other way round, or a
                continuation that leaves a seat empty.
        """
        self.config = config or OfficeConfig()
        if self.config.budget is not None and count_tokens is None:
            raise ConfigError(f"budget {self.config.budget} needs a token counter. Pass count_tokens.")
        if bool(self.config.reader) != (reader is not None):
            raise ConfigError(
                f"the configuration names the reader {self.config.reader!r}, and {'one' if reader else 'none'} is given. "
                "Pass both: reader=claim_reader(config.reader) of onthejob.models.claims."
            )
        self._reader = reader
        self._count = count_tokens
        self._on_turn = on_turn
        self._partners = dict(continuation) if continuation is not None else dict.fromkeys(SEATS, heuristic)
        self._continuation: Mapping[str, Player] = self._partners
        self._entered = 0.0
        missing = [role for role in SEATS if role not in self._partners]
        if missing:
            raise ConfigError(f"the continuation has no player for {', '.join(missing)}. Give one per trained role.")
        self._simulator: Simulator | None = None
        self._origin: str | dict[str, Any] = ""
        """Where the rules come from, as a snapshot says it: the name of a shipped scenario, or the data of another one."""
        self._state: State | None = None
        self._task = ""
        self._attempts = 0
        """Unusable replies to the pending request so far."""
        self._problem: Invalid | None = None
        """What was wrong with the last of them."""
        self._lexicon = Lexicon()
        self._memory: TeamMemory | None = None
        self._pending: OfficeObservation | None = None

    def reset(self, task: Task) -> OfficeObservation:
        """Found the company of `task.payload["scenario"]` with the luck of `task.seed`.

        Payload: `scenario` (name or path of a TOML file, default baseline), `days` (default from the config), `world` (which luck
        after the first morning, default 0), `difficulty` (in [0, 1]; absent is the scenario as it is, which is 0.5).

        Raises:
            ConfigError: unknown scenario or payload key, a value out of range, or a training task of a held-out scenario or seed.
        """
        unknown = set(task.payload) - PAYLOAD
        if unknown:
            raise ConfigError(
                f"task {task.id!r} has unknown payload keys {sorted(unknown)}; allowed are {', '.join(sorted(PAYLOAD))}."
            )
        days = _whole(task, "days", self.config.days, 1, MAX_DAYS)
        world = _whole(task, "world", 0, 0, 2**31)
        given = task.payload.get("scenario", "baseline")
        if not isinstance(given, str | Path):
            raise ConfigError(f"task {task.id!r}: scenario must be a name or a path, got {given!r}.")
        scenario = scenarios.load(given)
        refuse_training(task, scenario)
        if "difficulty" in task.payload:
            scenario = at_difficulty(scenario, task.payload["difficulty"])
        self._simulator = Simulator(scenario, crisis_bonus=self.config.crisis_bonus, reader=self._reader)
        named = str(given) in (*scenarios.SHIPPED, *HELD_OUT) and "difficulty" not in task.payload
        self._origin = str(given) if named else scenarios.as_data(scenario)
        self._state = self._simulator.found(task.seed, days)
        self._state.world = world
        self._task = task.id
        self._attempts, self._problem = 0, None
        self._memory = TeamMemory(self._lexicon, by_model=self.config.reflect) if self.config.profile == "full" else None
        self._pending = self._observation()
        return self._pending

    def step(self, reply: str) -> Step:
        """Execute the pending actor's reply."""
        s, simulator, pending = self._live()
        role = pending.actor
        if pending.kind is Kind.REFLECT and self._memory is not None:
            self._memory.accept(role, reply, s.turn)
            self._pending = self._observation()
            text = reply[:240].encode("utf-8", "replace").decode()
            return Step(rewards={}, observation=self._pending, facts={"actor": role, "turn": s.turn, "reflection": text})
        parsed = self._read(reply, role)
        if isinstance(parsed, Invalid) and self._attempts < self.config.retries:
            self._attempts, self._problem = self._attempts + 1, parsed
            self._pending = self._observation()
            facts: dict[str, Any] = {"actor": role, "turn": s.turn, "retry": self._attempts, "why": parsed.feedback}
            return Step(rewards={}, observation=self._pending, valid=False, facts=facts)
        self._attempts, self._problem = 0, None
        totals: dict[str, list[float]] = {}
        action = None if isinstance(parsed, Invalid) else parsed
        log = self._play(role, action, totals)
        facts = {"actor": role, "turn": s.turn - 1, "notes": list(log.notes)}
        if isinstance(parsed, Invalid):
            facts |= {"action": INVALID_KEY, "why": parsed.feedback}
        else:
            facts |= {"action": parsed.action_type, "target": parsed.target, "changed": log.changed}
            if parsed.message_to:
                facts["message"] = f"{parsed.message_to}: {parsed.message}"
        while not self.config.customer_asked and not s.done and simulator.actor(s.turn) == CUSTOMER:
            self._play(CUSTOMER, simulator.customer_action(s), totals)
        self._pending = observation = None if s.done else self._observation()
        parts = {name: dict(zip(PARTS, values, strict=True)) for name, values in totals.items()}
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
                "value_less_luck": (company_value(s) - s.luck) / 100.0,
                "team_reward": team_reward(total) if total else 0.0,
                "cash": s.cash / 100.0,
                "mrr": s.mrr() / 100.0,
                "pipeline": pipeline_value(s) / 100.0,
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

    def observe(self) -> OfficeObservation | None:
        """The pending request."""
        return self._pending

    def snapshot(self) -> bytes:
        """Task and pending retry as JSON, memories, state; holds no code.

        Raises:
            ContractError: nothing was reset.
        """
        if self._state is None:
            raise ContractError("snapshot needs a running episode. Call reset first.")
        problem = self._problem
        extra = {
            "task": self._task,
            "scenario": self._origin,
            "attempts": self._attempts,
            "problem": [problem.reason, problem.feedback, problem.excerpt] if problem is not None else [],
        }
        streams = self._memory.pack() if self._memory is not None else []
        extra["memories"] = [*map(len, streams)]
        head = _encode(extra).encode() + b"\n"
        size = len(head) + sum(extra["memories"])
        return b"".join((size.to_bytes(4, "big"), head, *streams, dumps(self._state)))

    def restore(self, snapshot: bytes) -> OfficeObservation | None:
        """Continue from `snapshot`, which was taken by an environment of the same profile.

        Whether the customer was asked there does not matter, unless it waits for the customer: then it must be asked here, too.

        Raises:
            ContractError: the bytes are not a snapshot of this version and profile; this environment is then as it was before.
        """
        before = vars(self).copy()
        try:
            self._load(snapshot)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            vars(self).update(before)
            raise ContractError(
                f"not an office snapshot: {error}. Restore what snapshot() of the same version and profile returned."
            ) from error
        return self._pending

    def _load(self, snapshot: bytes) -> None:
        """Become what `snapshot` describes; the rules are kept where they are the same."""
        size = int.from_bytes(snapshot[:4], "big")
        head, _, packed = snapshot[4 : 4 + size].partition(b"\n")
        extra = json.loads(head)
        memories = extra["memories"]
        if bool(memories) != (self.config.profile == "full"):
            raise ValueError(f"it was taken in another profile than {self.config.profile}")
        self._memory = None
        if isinstance(memories, dict) and memories:
            self._memory = TeamMemory.from_data(memories, self._lexicon, by_model=self.config.reflect)
        elif memories:
            if sum(memories) != len(packed):
                raise ValueError("its memories are cut")
            streams = [packed[end - length : end] for end, length in zip(accumulate(memories), memories, strict=True)]
            self._memory = TeamMemory.unpack(streams, self._lexicon, by_model=self.config.reflect)
        self._state = loads(snapshot[4 + size :])
        if not self.config.customer_asked and not self._state.done and actor_of(self._state.turn) == CUSTOMER:
            raise ValueError("it waits for the customer, whose script this environment plays; restore it with customer_asked")
        origin = extra["scenario"]
        if self._simulator is None or self._origin != origin:
            scenario = scenarios.load(origin) if isinstance(origin, str) else scenarios.from_data(origin)
            self._simulator, self._origin = (
                Simulator(scenario, crisis_bonus=self.config.crisis_bonus, reader=self._reader),
                origin,
            )
        if not self._state.goal:  # snapshots of 0.1.0 hold none
            self._state.goal = dict(self._simulator.scenario.goal)
        self._task, self._attempts = str(extra["task"]), int(extra["attempts"])
        self._problem = None
        if extra.get("problem"):
            reason, text, excerpt = extra["problem"]
            self._problem = Invalid(Reason(reason), text, excerpt=excerpt)
        if not 0 <= self._attempts <= self.config.retries or (self._problem is not None) != (self._attempts > 0):
            raise ValueError(f"it is at attempt {self._attempts}, and {self.config.retries} retries are allowed")
        self._pending = None if self._state.done else self._observation()

    def fork(self) -> OfficeEnvironment:
        """An independent copy; rules and tokenizer are shared, state and memories are not."""
        new = OfficeEnvironment(self.config, count_tokens=self._count, continuation=self._partners, reader=self._reader)
        new._continuation = self._continuation
        new._simulator, new._origin, new._lexicon = self._simulator, self._origin, self._lexicon
        new._task, new._attempts, new._problem = self._task, self._attempts, self._problem
        new._state = self._state.copy() if self._state is not None else None
        new._memory = self._memory.fork() if self._memory is not None else None
        new._pending = new._observation() if self._pending is not None else None
        return new

    def canonical(self, reply: str, *, actor: str | None = None) -> str:
        """The action without its reasoning, or `invalid` for every reply that would do nothing.

        Args:
            reply: what was written.
            actor: judge the reply as this role's, as things are now; None is who is asked.
        """
        _, _, pending = self._live()
        if actor is None and pending.kind is Kind.REFLECT:
            return REFLECTION_KEY
        parsed = self._read(reply, pending.actor if actor is None else actor)
        return INVALID_KEY if isinstance(parsed, Invalid) else render(replace(parsed, reasoning=""))

    def branch(self, reply: str, *, world: int, turns: int, on_turn: OnTurn | None = None) -> Branch:
        """Step `reply` in a fork of luck `world` and continue with the scripted players.

        What no role can know of the open leads is part of that luck (`new_company.draw_unseen`): a reply is worth its mean over
        the states that its author cannot distinguish.

        Outcome: change of company value in dollars, less what chance contributed (`State.luck`): the same expectation, less
        noise. Where the branch ends before the episode, what the open leads are expected to bring counts as well (the
        bootstrapped value of an n-step return), so that a deal signed the day after is not worth nothing. An unusable reply is a
        no-op turn here, also where `step` would still allow a retry; a reflection takes no turn. `on_turn` is a spectator.

        Raises:
            ContractError: the episode is over, or `world` < 1, or `turns` < 1.
        """
        s, simulator, pending = self._live()
        if world < 1 or turns < 1:
            raise ContractError(f"a branch needs world >= 1 (0 is the main line) and turns >= 1, got {world} and {turns}.")
        copy = s.copy()
        before, start = _enter(copy, world), copy.turn
        if pending.kind is Kind.REFLECT:
            valid = True
            returns = run(simulator, copy, self._continuation, turns=turns, on_turn=on_turn)
        else:
            parsed = self._read(reply, pending.actor)
            valid = not isinstance(parsed, Invalid)
            action = None if isinstance(parsed, Invalid) else parsed
            log = step_watched(simulator, copy, action, on_turn)
            returns = run(simulator, copy, self._continuation, turns=turns - 1, on_turn=on_turn)
            for name, value in log.rewards().items():
                returns[name] = returns.get(name, 0.0) + value
        return Branch(
            outcome=(prospects(copy) - before) / 100.0,
            returns=returns,
            turns=copy.turn - start,
            valid=valid,
            facts={"company_value": company_value(copy) / 100.0, "won": copy.won - s.won, "churned": copy.churned - s.churned},
        )

    def enter(self, world: int) -> None:
        """Move to the luck of `world`; what no role can know yet about the open leads is drawn again with it.

        Raises:
            ContractError: the episode is over, or `world` < 1.
        """
        self._entered = _enter(self._live()[0], world)

    def outcome(self) -> float:
        """Change since `enter` of company value in dollars, less luck, as in `branch`."""
        assert self._state is not None
        return (prospects(self._state) - self._entered) / 100.0

    def scores(self, reply: str) -> dict[str, float]:
        """`rule_score`, how well-formed the reply is (see `scorer`); nothing of a reflection, which is no action."""
        s, _, pending = self._live()
        if pending.kind is Kind.REFLECT:
            return {}
        names = entities(pending.view, (spec.name for spec in s.catalogue))
        return {"rule_score": score_reply(reply, Role(pending.actor), entities=names).total}

    def habits(self, replies: Sequence[str]) -> dict[str, tuple[float, float]]:
        """Label -> (how often `replies` chose it, how often they could have) for the pending request; see `policies.stand_in`."""
        s, simulator, pending = self._live()
        read = [self._read(reply, pending.actor) for reply in replies]
        return habits(view(s, pending.actor), simulator.legal(s, pending.actor), read)

    def continue_with(self, stand_ins: Mapping[str, Mapping[str, float]]) -> None:
        """From now on these continue branches (role -> label -> rate), and the continuation's players otherwise."""
        self._continuation = {**self._partners, **{role: StandIn(rates) for role, rates in stand_ins.items()}}

    def stand_ins(self, rates: Mapping[str, Mapping[str, float]]) -> dict[str, Callable[[Observation, int], str]]:
        """Role -> its stand-in as a function of a request and a seed."""
        return {role: as_reply(StandIn(habit)) for role, habit in rates.items()}

    def legal_replies(self) -> list[str]:
        """Texts of all legal replies of the pending actor, without messages."""
        return [render(action) for action in self.legal_actions()]

    def legal_actions(self, actor: str | None = None) -> list[Action]:
        """All legal actions of `actor` as things are now (None: of who is asked), without messages, in the role table's order."""
        s, simulator, pending = self._live()
        return simulator.legal(s, pending.actor if actor is None else actor)

    def look(self, role: str) -> OfficeObservation:
        """What `role` would be shown if it were asked now; changes nothing. For interfaces in which all decide at once.

        Raises:
            ContractError: the episode is over, or no reply is ever asked for of this role.
        """
        s, _, _ = self._live()
        if role not in self.asked:
            raise ContractError(f"no seat is asked for {role!r}; the seats are {', '.join(self.asked)}.")
        # Retrieval counts as a use of the memories: a look uses a copy.
        return self._shown(s, role, self._memory.fork() if self._memory is not None else None)

    @property
    def asked(self) -> tuple[str, ...]:
        """Roles whose replies are asked for."""
        return (*SEATS, CUSTOMER) if self.config.customer_asked else SEATS

    @property
    def company(self) -> State:
        """The live state, to look at: only the simulator may change it.

        Raises:
            ContractError: nothing was reset.
        """
        if self._state is None:
            raise ContractError("there is no company before the first episode. Call reset first.")
        return self._state

    def sections(self, role: str) -> list[Section]:
        """The blocks of the prompt that `role` would be shown now, before anything is pruned to a budget."""
        s, _, _ = self._live()
        seen = OfficeView(view(s, role), lambda: self._legal_at(s.turn, role))
        return prompt.sections(seen, self._memory.fork().lines(s, role, seen)() if self._memory is not None else None)

    def memories(self, role: str) -> list[Memory]:
        """What `role` remembers, oldest first; empty without the full profile, and for the customer."""
        return self._memory.stream(role).memories() if self._memory is not None and role in SEATS else []

    def _live(self) -> tuple[State, Simulator, OfficeObservation]:
        if self._state is None or self._simulator is None or self._pending is None:
            raise ContractError("no reply is pending: call reset first, and stop when a step returns no observation.")
        return self._state, self._simulator, self._pending

    def _read(self, reply: str, role: str) -> Action | Invalid:
        s, simulator, _ = self._live()
        parsed = parse(reply, Role(role))
        if isinstance(parsed, Invalid):
            return parsed
        why = simulator.why_illegal(s, role, parsed)
        return Invalid(Reason.ILLEGAL_TARGET, why, excerpt=json.dumps(reply[:80])) if why else simulator.plain(s, role, parsed)

    def _play(self, role: str, action: Action | None, totals: dict[str, list[float]]) -> TurnLog:
        """One turn of the simulator; adds what it paid to `totals` and remembers it."""
        s, simulator, _ = self._live()
        subject = self._memory.subject(s, role, action) if self._memory is not None and action is not None else ""
        log = step_watched(simulator, s, action, self._on_turn)
        _add(totals, log)
        if self._memory is not None:
            self._memory.witness(s, role, action, subject, log)
        return log

    def _observation(self) -> OfficeObservation:
        """The request that the present state makes."""
        s, memory = self._state, self._memory
        assert s is not None
        role, turn = actor_of(s.turn), s.turn
        if memory is not None and memory.reflection_due(role, turn):
            seen = OfficeView(view(s, role), lambda: self._legal_at(turn, role))
            request = (Message("system", prompt.persona(role)), Message("user", memory.question(role)))
            return OfficeObservation(role, seen, lambda: request, kind=Kind.REFLECT)
        shown = self._shown(s, role, memory)
        if self._problem is not None:
            types = list(dict.fromkeys(action.action_type for action in self._rules().legal(s, role)))
            text = feedback(self._problem, self._attempts, types)
            return OfficeObservation(role, shown.view, lambda: (Message("user", text),), kind=Kind.RETRY, fresh=False)
        return shown

    def _shown(self, s: State, role: str, memory: TeamMemory | None) -> OfficeObservation:
        """An ordinary request to `role` in state `s`; `memory` is asked for what it recalls, which counts as a use."""
        turn, config, count = s.turn, self.config, self._count
        seen = OfficeView(view(s, role), lambda: self._legal_at(turn, role))
        extra = memory.lines(s, role, seen) if memory is not None else None

        def rendered(within: PromptBudget | None = None) -> tuple[Message, ...]:
            told = extra() if extra is not None else None
            tokens, by = (config.budget, count) if within is None else (within.tokens, within.count)
            return prompt.messages(seen, profile=config.profile, extra=told, budget=tokens, count=by)

        # A budget that was stated holds for every reader.
        return OfficeObservation(role, seen, rendered, prune=rendered if config.budget is None else None)

    def _rules(self) -> Simulator:
        if self._simulator is None:
            raise ContractError("no rules before the first episode. Call reset first.")
        return self._simulator

    def _legal_at(self, turn: int, role: str) -> list[str]:
        if self._state is None or self._state.turn != turn:
            raise ContractError("the legal replies of an observation can be listed only while it is pending.")
        return [render(action) for action in self.legal_actions(role)]


def _enter(s: State, world: int) -> float:
    """Move a state to the luck of `world`; returns what the company's value is counted from, in cents."""
    if world < 1:
        raise ContractError(f"a branch needs world >= 1 (0 is the main line), got {world}.")
    before, s.world = s.world, world
    draw_unseen(s, before)
    return prospects(s)


def _whole(task: Task, key: str, default: int, low: int, high: int) -> int:
    value = task.payload.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"task {task.id!r}: {key} must be a whole number in {low}..{high}, got {value!r}.")
    return value


def _add(totals: dict[str, list[float]], log: TurnLog) -> None:
    for name, line in zip(ROLE_NAMES, log.lines, strict=True):
        kept = totals.setdefault(name, [0.0] * len(line))
        for index, value in enumerate(line):
            kept[index] += value
