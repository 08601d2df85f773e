"""OfficeEnvironment: the simulated startup behind the protocol of `onthejob.types` (Forkable).

Thin: parse the reply, execute, reward, name the next actor. The customer's seat is scripted inside the environment unless the
configuration asks for its turns, too. It never calls a model.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onthejob.envs.office import prompt, scenarios
from onthejob.envs.office.actions import Action, Invalid, UnusableReason, feedback, parse, render
from onthejob.envs.office.company_state import CompanyState
from onthejob.envs.office.fast_play import OnTurn, enter, run, step_watched
from onthejob.envs.office.market import company_value, prospects
from onthejob.envs.office.memory import Lexicon, Memory
from onthejob.envs.office.observation import OfficeObservation, OfficeView
from onthejob.envs.office.policies import Player, as_reply
from onthejob.envs.office.policies.heuristic import heuristic
from onthejob.envs.office.policies.stand_in import StandIn, habits
from onthejob.envs.office.presentation import INVALID_KEY, OfficeConfig, facts_of, summary
from onthejob.envs.office.reward_parts import PARTS, TurnLog, add_parts
from onthejob.envs.office.roles import TRAINED_ROLES, Role
from onthejob.envs.office.saving import Saved, dump, load
from onthejob.envs.office.scorer import entities, score_reply
from onthejob.envs.office.sections import Count, Section
from onthejob.envs.office.simulator import Simulator, actor_of
from onthejob.envs.office.tasks import read_start
from onthejob.envs.office.team_memory import TeamMemory
from onthejob.envs.office.vaporware import PromiseReader
from onthejob.envs.office.views import view
from onthejob.errors import ConfigError, ContractError
from onthejob.types import Branch, Kind, Message, Observation, PromptBudget, Step, StopReason, Task

REFLECTION_KEY = "reflection"
"""Canonical key of every reply to a request for reflection: what is remembered changes no branch, whose players are scripted."""
SEATS = tuple(map(str, TRAINED_ROLES))
CUSTOMER = str(Role.CUSTOMER)


class OfficeEnvironment:
    """The office. Implements `onthejob.types.Forkable`."""

    def __init__(
        self,
        config: OfficeConfig | None = None,
        *,
        count_tokens: Count | None = None,
        continuation: Mapping[str, Player] | None = None,
        on_turn: OnTurn | None = None,
        reader: PromiseReader | None = None,
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
        self.config = config = config or OfficeConfig()
        config.check(counts=count_tokens is not None, reads=reader is not None)
        self._reader = reader
        self._count = count_tokens
        self._on_turn = on_turn
        self._partners = dict(continuation) if continuation is not None else dict.fromkeys(SEATS, heuristic)
        self._continuation: Mapping[str, Player] = self._partners
        if missing := [role for role in SEATS if role not in self._partners]:
            raise ConfigError(f"the continuation has no player for {', '.join(missing)}. Give one per trained role.")
        self._simulator: Simulator | None = None
        self._origin: str | dict[str, Any] = ""
        self._state: CompanyState | None = None
        self._task, self._attempts, self._entered = "", 0, 0.0
        self._problem: Invalid | None = None
        self._lexicon = Lexicon()
        self._memory: TeamMemory | None = None
        self._pending: OfficeObservation | None = None

    def reset(self, task: Task) -> OfficeObservation:
        """Found the company of `task.payload["scenario"]` with the luck of `task.seed`.

        Payload: `scenario` (name or path of a TOML file, default baseline), `days` (default from the config), `world` (which luck
        after the first morning, default 0), `difficulty` (in [0, 1]; absent is the scenario as it is, which is 0.5), `names`
        (`drawn`: features and accounts are called as the seed draws; absent as usual).

        Raises:
            ConfigError: unknown scenario or payload key, a value out of range, or a training task of a held-out scenario or seed.
        """
        start = read_start(task, days=self.config.days)
        self._simulator = Simulator(start.scenario, crisis_bonus=self.config.crisis_bonus, reader=self._reader)
        self._origin = start.origin
        self._state = self._simulator.found(task.seed, start.days, drawn_names=start.drawn_names)
        self._state.world = start.world
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
            facts = {"actor": role, "turn": s.turn, "retry": self._attempts, "why": parsed.feedback}
            return Step(rewards={}, observation=self._pending, valid=False, facts=facts)
        self._attempts, self._problem = 0, None
        totals: dict[str, list[float]] = {}
        action = None if isinstance(parsed, Invalid) else parsed
        log = self._play(role, action, totals)
        while not self.config.customer_asked and not s.done and simulator.actor(s.turn) == CUSTOMER:
            self._play(CUSTOMER, simulator.customer_action(s), totals)
        self._pending = None if s.done else self._observation()
        return Step(
            rewards={name: sum(values) for name, values in totals.items()},
            parts={name: dict(zip(PARTS, values, strict=True)) for name, values in totals.items()},
            observation=self._pending,
            stop=StopReason(s.done) if s.done else None,
            valid=action is not None,
            facts={"actor": role, "turn": log.turn, **facts_of(parsed, log)},
        )

    def state(self) -> Mapping[str, Any]:
        """Summary of the company; `metrics` are in dollars, rates and counts."""
        return {"metrics": {}} if self._state is None else summary(self._state, self._task)

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
        return dump(Saved(self._task, self._origin, self._attempts, self._problem, self._memory, self._state))

    def restore(self, snapshot: bytes) -> OfficeObservation | None:
        """Continue from `snapshot`, which was taken by an environment of the same profile.

        Whether the customer was asked there does not matter, unless it waits for the customer: then it must be asked here, too.

        Raises:
            ContractError: the bytes are not a snapshot of this version and profile; this environment is then as it was before.
        """
        before = vars(self).copy()
        try:
            self._become(load(snapshot, self._lexicon, by_model=self.config.reflect))
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            vars(self).update(before)
            raise ContractError(
                f"not an office snapshot: {error}. Restore what snapshot() of the same version and profile returned."
            ) from error
        return self._pending

    def _become(self, saved: Saved) -> None:
        """Continue what was saved; the rules are kept where they are the same."""
        if (saved.memory is not None) != (self.config.profile == "full"):
            raise ValueError(f"it was taken in another profile than {self.config.profile}")
        s = saved.state
        if not self.config.customer_asked and not s.done and actor_of(s.turn) == CUSTOMER:
            raise ValueError("it waits for the customer, whose script this environment plays; restore it with customer_asked")
        if self._simulator is None or self._origin != saved.origin:
            scenario = scenarios.load(saved.origin) if isinstance(saved.origin, str) else scenarios.from_data(saved.origin)
            self._simulator = Simulator(scenario, crisis_bonus=self.config.crisis_bonus, reader=self._reader)
            self._origin = saved.origin
        if not s.goal:  # snapshots of 0.1.0 hold none
            s.goal = dict(self._simulator.scenario.goal)
        if not 0 <= saved.attempts <= self.config.retries or (saved.problem is not None) != (saved.attempts > 0):
            raise ValueError(f"it is at attempt {saved.attempts}, and {self.config.retries} retries are allowed")
        self._state, self._memory = s, saved.memory
        self._task, self._attempts, self._problem = saved.task, saved.attempts, saved.problem
        self._pending = None if s.done else self._observation()

    def fork(self) -> OfficeEnvironment:
        """An independent copy; rules and tokenizer are shared, state and memories are not."""
        new = copy.copy(self)
        new._on_turn, new._entered = None, 0.0
        new._state = self._state.copy() if self._state is not None else None
        new._memory = self._memory.fork() if self._memory is not None else None
        new._pending = new._observation() if self._pending is not None else None
        return new

    def canonical(self, reply: str, *, actor: str | None = None) -> str:
        """The action without its reasoning, or `invalid` for every reply that would do nothing.

        With `actor`, the reply is judged as that role's, as things are now; None is who is asked.
        """
        pending = self._live()[2]
        if actor is None and pending.kind is Kind.REFLECT:
            return REFLECTION_KEY
        parsed = self._read(reply, actor or pending.actor)
        return INVALID_KEY if isinstance(parsed, Invalid) else render(replace(parsed, reasoning=""))

    def branch(self, reply: str, *, world: int, turns: int, on_turn: OnTurn | None = None) -> Branch:
        """Step `reply` in a fork of luck `world` and continue with the scripted players.

        What no role can know of the open leads is part of that luck (`new_company.draw_unseen`): a reply is worth its mean over
        the states that its author cannot distinguish.

        Outcome: change of company value in dollars, less what chance contributed (`CompanyState.luck`): the same expectation,
        less noise. Where the branch ends before the episode, what the open leads are expected to bring counts as well (the
        bootstrapped value of an n-step return), so that a deal signed the day after is not worth nothing. An unusable reply is a
        no-op turn here, also where `step` would still allow a retry; a reflection takes no turn. `on_turn` is a spectator.

        Raises:
            ContractError: the episode is over, or `world` < 1, or `turns` < 1.
        """
        s, simulator, pending = self._live()
        if world < 1 or turns < 1:
            raise ContractError(f"a branch needs world >= 1 (0 is the main line) and turns >= 1, got {world} and {turns}.")
        twin = s.copy()
        before = enter(twin, world)
        if pending.kind is Kind.REFLECT:
            valid, returns = True, run(simulator, twin, self._continuation, turns=turns, on_turn=on_turn)
        else:
            parsed = self._read(reply, pending.actor)
            valid = not isinstance(parsed, Invalid)
            log = step_watched(simulator, twin, None if isinstance(parsed, Invalid) else parsed, on_turn)
            returns = run(simulator, twin, self._continuation, turns=turns - 1, on_turn=on_turn)
            for name, value in log.rewards().items():
                returns[name] = returns.get(name, 0.0) + value
        return Branch(
            outcome=(prospects(twin) - before) / 100.0,
            returns=returns,
            turns=twin.turn - s.turn,
            valid=valid,
            facts={"company_value": company_value(twin) / 100.0, "won": twin.won - s.won, "churned": twin.churned - s.churned},
        )

    def enter(self, world: int) -> None:
        """Move to the luck of `world`; what no role can know yet about the open leads is drawn again with it.

        Raises:
            ContractError: the episode is over, or `world` < 1.
        """
        self._entered = enter(self._live()[0], world)

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
        role = pending.actor
        return habits(view(s, role), simulator.legal(s, role), [self._read(reply, role) for reply in replies])

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
        return simulator.legal(s, actor or pending.actor)

    def look(self, role: str) -> OfficeObservation:
        """What `role` would be shown if it were asked now; changes nothing. For interfaces in which all decide at once.

        Raises:
            ContractError: the episode is over, or no reply is ever asked for of this role.
        """
        s = self._live()[0]
        if role not in self.asked:
            raise ContractError(f"no seat is asked for {role!r}; the seats are {', '.join(self.asked)}.")
        # Retrieval counts as a use of the memories: a look uses a copy.
        return self._shown(s, role, self._memory.fork() if self._memory is not None else None)

    @property
    def asked(self) -> tuple[str, ...]:
        """Roles whose replies are asked for."""
        return (*SEATS, CUSTOMER) if self.config.customer_asked else SEATS

    @property
    def company(self) -> CompanyState:
        """The live state, to look at: only the simulator may change it.

        Raises:
            ContractError: nothing was reset.
        """
        if self._state is None:
            raise ContractError("there is no company before the first episode. Call reset first.")
        return self._state

    def sections(self, role: str) -> list[Section]:
        """The blocks of the prompt that `role` would be shown now, before anything is pruned to a budget."""
        s, memory = self._live()[0], self._memory
        seen = self._seen(s, role)
        return prompt.sections(seen, memory.fork().lines(s, role, seen)() if memory is not None else None)

    def memories(self, role: str) -> list[Memory]:
        """What `role` remembers, oldest first; empty without the full profile, and for the customer."""
        return self._memory.stream(role).memories() if self._memory is not None and role in SEATS else []

    def _live(self) -> tuple[CompanyState, Simulator, OfficeObservation]:
        if self._state is None or self._simulator is None or self._pending is None:
            raise ContractError("no reply is pending: call reset first, and stop when a step returns no observation.")
        return self._state, self._simulator, self._pending

    def _read(self, reply: str, role: str) -> Action | Invalid:
        s, simulator, _ = self._live()
        parsed = parse(reply, Role(role))
        if isinstance(parsed, Invalid):
            return parsed
        why = simulator.why_illegal(s, role, parsed)
        if why:
            return Invalid(UnusableReason.ILLEGAL_TARGET, why, excerpt=json.dumps(reply[:80]))
        return simulator.plain(s, role, parsed)

    def _play(self, role: str, action: Action | None, totals: dict[str, list[float]]) -> TurnLog:
        """One turn of the simulator; adds what it paid to `totals` and remembers it."""
        s, simulator, _ = self._live()
        subject = self._memory.subject(s, role, action) if self._memory is not None and action is not None else ""
        log = step_watched(simulator, s, action, self._on_turn)
        add_parts(totals, log)
        if self._memory is not None:
            self._memory.witness(s, role, action, subject, log)
        return log

    def _observation(self) -> OfficeObservation:
        """The request that the present state makes."""
        s, memory = self._state, self._memory
        assert s is not None
        role = actor_of(s.turn)
        if memory is not None and memory.reflection_due(role, s.turn):
            seen = self._seen(s, role)
            request = (Message("system", prompt.persona(role)), Message("user", memory.question(role)))
            return OfficeObservation(role, seen, lambda: request, kind=Kind.REFLECT)
        shown = self._shown(s, role, memory)
        if self._problem is not None:
            assert self._simulator is not None
            types = list(dict.fromkeys(action.action_type for action in self._simulator.legal(s, role)))
            text = feedback(self._problem, self._attempts, types)
            return OfficeObservation(role, shown.view, lambda: (Message("user", text),), kind=Kind.RETRY, fresh=False)
        return shown

    def _shown(self, s: CompanyState, role: str, memory: TeamMemory | None) -> OfficeObservation:
        """An ordinary request to `role` in state `s`; `memory` is asked for what it recalls, which counts as a use."""
        config, count, seen = self.config, self._count, self._seen(s, role)
        extra = memory.lines(s, role, seen) if memory is not None else None

        def rendered(within: PromptBudget | None = None) -> tuple[Message, ...]:
            told = extra() if extra is not None else None
            tokens, by = (config.budget, count) if within is None else (within.tokens, within.count)
            return prompt.messages(seen, profile=config.profile, extra=told, budget=tokens, count=by)

        # A budget that was stated holds for every reader.
        return OfficeObservation(role, seen, rendered, prune=rendered if config.budget is None else None)

    def _seen(self, s: CompanyState, role: str) -> OfficeView:
        """The role's view of `s`; its legal replies are listed when they are asked for."""
        turn = s.turn

        def legal() -> list[str]:
            if self._state is None or self._state.turn != turn:
                raise ContractError("the legal replies of an observation can be listed only while it is pending.")
            return [render(action) for action in self.legal_actions(role)]

        return OfficeView(view(s, role), legal)
