"""Executes one turn: action, night when the day is over, rewards. Pure function of (state, action) given the state's luck."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from onthejob.envs.office.actions import IDLE, Action
from onthejob.envs.office.company_state import HELD_OUT, PHASES, TIERS, TURNS_PER_DAY, WON, CompanyState, FeatureSpec
from onthejob.envs.office.handlers import Handler, HandlerContext, all_handlers
from onthejob.envs.office.handlers.content import worked_on
from onthejob.envs.office.handlers.customer import decide, deliver
from onthejob.envs.office.luck import mix
from onthejob.envs.office.market import DEAL_WEIGHT, company_value, efficacy, okr_progress
from onthejob.envs.office.new_company import found
from onthejob.envs.office.overnight import night
from onthejob.envs.office.reward_parts import CRISIS_SATISFACTION, CRISIS_TABLE, INVALID, VAPORWARE, TurnLog
from onthejob.envs.office.roles import Role
from onthejob.envs.office.scenarios import Scenario
from onthejob.envs.office.vaporware import PromiseReader, Registry
from onthejob.errors import ConfigError

ROLE_NAMES = tuple(str(role) for role in Role)
STANDUP_TURNS = PHASES.count("standup")
FEATURE_ALIASES: MappingProxyType[str, tuple[str, ...]] = MappingProxyType(
    {
        "SSO": ("single sign-on", "single sign on", "saml", "one login"),
        "API": ("rest api", "rest interface", "public api", "programming interface", "programmatic access"),
        "Dashboard": ("reporting dashboard", "analytics board"),
        "App": ("mobile app", "ios app", "android app", "phone app"),
        "Cache": ("caching layer", "query cache", "caching", "cached"),
        "Invoices": ("invoicing", "automatic invoices", "invoiced"),
        "Audit": ("audit log", "audit trail"),
        "Webhooks": ("web hook", "event callback"),
    }
)
"""Feature -> other words for it that a promise may use."""
DESCRIBED = tuple(FEATURE_ALIASES)
"""Features that the vaporware detector also finds where a text only describes them."""
HELD_OUT_ALIASES: MappingProxyType[str, tuple[str, ...]] = MappingProxyType(
    {
        "Passkeys": ("passkey login", "passwordless login"),
        "Connector": ("data connector", "connector kit"),
        "Insights": ("insights panel", "insight reports"),
        "Handheld": ("handheld app", "handheld edition"),
        "Turbo": ("turbo mode", "turbo engine"),
        "Statements": ("billing statements", "automatic statements"),
        "Custody": ("chain of custody", "custody log"),
        "Signals": ("signal feed", "outgoing signals"),
    }
)
"""The same for the names of held-out scenarios."""


def actor_of(turn: int, order: Sequence[str] = ROLE_NAMES) -> str:
    """Who acts on this turn: the order rotates, day d begins with role d mod 7, two rounds a day."""
    day, slot = divmod(turn, TURNS_PER_DAY)
    return order[(day + slot) % 7]


def phase_of(turn: int) -> str:
    """standup, execution, review or planning."""
    return PHASES[turn % TURNS_PER_DAY]


@lru_cache(maxsize=64)
def _drawn_registry(catalogue: tuple[FeatureSpec, ...]) -> Registry:
    """No reader knows drawn names, as none knows those of held-out scenarios."""
    return Registry({spec.name: () for spec in catalogue})


class Simulator:
    """The rules. Holds what does not change during an episode: scenario and handlers."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        order: Sequence[str] = ROLE_NAMES,
        crisis_bonus: bool = True,
        reader: PromiseReader | None = None,
    ) -> None:
        """Take the rules.

        Args:
            scenario: where the company starts, and its calendar.
            order: who follows whom; all roles once. Another than the usual one is for measuring whether position matters.
            crisis_bonus: pay the extra for churn prevention; false for asking whether it is done without.
            reader: judges what texts promise, instead of the shipped weights.

        Raises:
            ConfigError: `order` does not hold every role once.
        """
        if sorted(order) != sorted(ROLE_NAMES):
            raise ConfigError(f"order must hold every role once ({', '.join(ROLE_NAMES)}), got {', '.join(order)}.")
        self.scenario = scenario
        self.order = tuple(order)
        self.crisis_bonus = crisis_bonus
        self.handlers: dict[tuple[str, str], Handler] = all_handlers()
        held_out = scenario.name in HELD_OUT
        # No reader knows the names of held-out scenarios.
        self.registry = Registry(HELD_OUT_ALIASES) if held_out else Registry(FEATURE_ALIASES, described=DESCRIBED, reader=reader)

    def actor(self, turn: int) -> str:
        """Who acts on this turn."""
        return actor_of(turn, self.order)

    def found(self, seed: int, days: int = 30, *, drawn_names: bool = False) -> CompanyState:
        """The company on its first morning."""
        return found(self.scenario, seed, days, drawn_names=drawn_names)

    def legal(self, s: CompanyState, role: str) -> list[Action]:
        """All legal actions of `role` now, without messages, in the order of the role table."""
        actions = []
        for (owner, name), handler in self.handlers.items():
            if owner != role:
                continue
            for target in handler.targets(s):
                if name == "SEND_PROPOSAL":
                    actions.append(Action(name, target))  # monthly
                    actions += [Action(name, target, {"tier": tier}) for tier in TIERS[1:]]
                else:
                    actions.append(Action(action_type=name, target=target))
        return actions

    def why_illegal(self, s: CompanyState, role: str, action: Action) -> str:
        """Empty when the action may be executed now; otherwise the reason in words."""
        if action == IDLE:
            return ""
        handler = self.handlers.get((role, action.action_type))
        if handler is None:
            return f"{action.action_type} is not an action of {role}"
        targets = handler.targets(s)
        if targets == [""] or action.target in targets:
            for name, allowed in handler.options.items():
                if (given := action.parameters.get(name)) is not None and given not in allowed:
                    return f"{action.action_type} cannot have the {name} {str(given)[:40]!r}; it may be: {', '.join(allowed)}"
            return ""
        if not targets:
            return f"{action.action_type} is not possible now"
        return f"{action.action_type} cannot have the target {action.target!r} now; it may have: {', '.join(targets[:8])}"

    def step(
        self,
        s: CompanyState,
        action: Action | None,
        *,
        before: tuple[float, ...] | None = None,
        at_dusk: Callable[[TurnLog], None] | None = None,
    ) -> TurnLog:
        """Execute the acting role's turn, and the night after a day's last one; returns what happened and what it pays.

        Args:
            s: changed in place; must not be over.
            action: must be legal (`why_illegal`); `IDLE` is a no-op, and None an unusable reply, a no-op that costs
                1. On the customer's turns pass
                what `customer_action` says, or what its player does.
            before: `kpis(s)`, for a caller that has it from the turn before (`TurnLog.after`) and has not changed `s` since.
            at_dusk: a spectator, called between a day's last turn and the night with the log so far; `s` is then the evening's.
        """
        role = actor_of(s.turn, self.order)
        log = TurnLog(s)
        if before is None:
            before = kpis(s)
        key = mix(s.seed, 1 + s.world)
        if action == IDLE:
            pass
        elif action is None:
            s.invalid += 1
            log.penalty(role, INVALID, "invalid reply")
        else:
            self._execute(s, role, action, key, log)
        s.acted[role] = action.action_type if action is not None else ""
        if s.directive_left > 0 and s.directive_role == role:
            s.directive_left -= 1
        ends_day = (s.turn + 1) % TURNS_PER_DAY == 0
        if ends_day:  # what the action earned ends here; the night pays for the whole day
            evening = kpis(s)
            log.kpis(before, evening)
            before = evening
            log.earned = log.rewards()[role]
            if at_dusk is not None:
                at_dusk(log)
        s.turn += 1
        if ends_day:
            night(s, key, log, self.scenario.event_rate)
        del s.shared[:-15]
        log.kpis(before, kpis(s))
        if not s.done and s.turn >= s.horizon:
            s.done = "horizon"
        log.paid, total = log.rewards(), s.reward_total
        if not ends_day:
            log.earned = log.paid[role]
        for name, value in log.paid.items():
            total[name] = total.get(name, 0.0) + value
        return log

    def plain(self, s: CompanyState, role: str, action: Action) -> Action:
        """`action` without what has no effect: target and parameters that its handler ignores, text that promises nothing."""
        bare = self._bare(s, role, action)
        if bare is action:
            return action
        # A message of this very turn may excuse a text or, as a roadmap, be excused: a text that may matter is kept.
        matters = self._breaks(s, role, replace(action, message_to=None, message=""))
        return action if matters or self._breaks(s, role, bare) != self._breaks(s, role, action) else bare

    def _bare(self, s: CompanyState, role: str, action: Action) -> Action:
        """What the handler of `action` reads of it."""
        handler = self.handlers.get((role, action.action_type))
        if handler is None or not (action.target or action.parameters):
            return action
        target = "" if action.target and handler.targets(s) == [""] else action.target
        given = {name: action.parameters.get(name) for name in handler.options}
        parameters = {name: value for name, value in given.items() if value is not None and value != handler.options[name][0]}
        if target == action.target and parameters == action.parameters:
            return action
        return replace(action, target=target, parameters=parameters)

    def _execute(self, s: CompanyState, role: str, action: Action, key: int, log: TurnLog) -> None:
        handler = self.handlers[role, action.action_type]
        written, action = action, self._bare(s, role, action)
        # Only actions in the table are paid by how low satisfaction was before them.
        paid = self.crisis_bonus and (role, action.action_type) in CRISIS_TABLE
        satisfaction = s.satisfaction() if paid else CRISIS_SATISFACTION
        result = handler.run(s, action, HandlerContext(key, log, efficacy(s, role, handler.tag)))
        if result:
            log.changed = True
            log.base(role, f"{role} {action.action_type} {action.target}")
            log.crisis(role, action.action_type, satisfaction)
        if action.message_to:
            self._talk(s, role, action)
        if promised := self._promised(s, role, written):
            self._charge(s, role, action, log, promised)

    def _talk(self, s: CompanyState, role: str, action: Action) -> None:
        """Deliver one message: to its addressee with a copy to the CEO, in the standup also to the shared board."""
        to, text = action.message_to, action.message
        if to == "all":
            s.shared.append([s.turn, role, text])
            return
        if to is None or to == role:
            return
        deliver(s, role, to, text)
        if to != "ceo" and role != "ceo":
            deliver(s, role, to, text, reader="ceo")
        if s.turn % TURNS_PER_DAY < STANDUP_TURNS:
            s.shared.append([s.turn, role, text])

    def _breaks(self, s: CompanyState, role: str, action: Action) -> bool:
        """True for vaporware."""
        return bool(self._promised(s, role, action))

    def _promised(self, s: CompanyState, role: str, action: Action) -> frozenset[str]:
        """Vaporware: features that have not shipped and that what the action publishes promises."""
        written = role == "content" or action.action_type == "WRITE_DOCS"
        texts = [action.target, *map(str, action.parameters.values())] if written else []
        if action.message_to == "customer" or (action.message_to == "all" and written):
            texts.append(action.message)
        registry = _drawn_registry(s.catalogue) if s.drawn_names else self.registry
        if not any(registry.scan(text) for text in texts):
            return frozenset()
        shipped = frozenset(spec.name for spec, day in zip(s.catalogue, s.feature_shipped, strict=True) if day >= 0)
        committed = frozenset(text.partition(" ")[2] for _, who, text in s.shared if who == "dev" and text.startswith("roadmap "))
        return registry.violations(texts, shipped, committed)

    def _charge(self, s: CompanyState, role: str, action: Action, log: TurnLog, promised: frozenset[str]) -> None:
        """A promise that is not kept costs 5, once per piece."""
        piece = worked_on(s, action) if role == "content" and role not in s.blockers else None
        if piece is None or not piece.vapor:
            log.penalty(role, VAPORWARE, "vaporware", ", ".join(sorted(promised)))
        if piece is not None:
            piece.vapor = True

    def customer_action(self, s: CompanyState) -> Action:
        """What the scripted customer does on its turn."""
        return Action(action_type=decide(s, mix(s.seed, 1 + s.world)))


def kpis(s: CompanyState) -> tuple[float, ...]:
    """The potentials' KPIs in the order of `reward_parts.KPI_NAMES`, each about [0, 1]."""
    deals = satisfaction = 0.0
    customers = 0
    for a in s.accounts:
        deals += DEAL_WEIGHT[a.stage] * a.price
        if a.stage == WON:
            satisfaction += a.sat
            customers += 1
    return (
        s.stability,
        math.log1p(sum(s.traffic)) / 7.0,
        s.conversion * 20.0,
        deals / 100_000.0,
        s.velocity * 0.5,
        okr_progress(s) if s.focus_left > 0 else 0.0,
        satisfaction / customers if customers else s.base_sat,
        s.expansion / 100_000.0,
        company_value(s) / 1_000_000.0,
    )
