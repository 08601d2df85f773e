"""What exists in the company and in which unit. The simulator mutates it; nothing else does.

All fields are primitives, or lists and dicts of primitives, so that a snapshot (`snapshot`) is data and never code, and a fork is
a shallow rebuild. Money is integer cents, rates are in [0, 1], times are turn or day numbers counted from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, Self

from onthejob.envs.office.names import FEATURE_NAMES, drawn_features

TURNS_PER_DAY = 14
SEGMENTS = ("fintech", "retail", "health")
PAINS = ("security", "sync", "reports", "mobile", "speed", "billing")
SIZES = ("S", "M", "L")
TIERS = ("monthly", "six_month", "annual")
FOCI = ("growth", "product", "retention")
SEVERITIES = ("critical", "major", "minor")
KINDS = ("blog", "social", "case_study", "email", "docs")
DEPARTMENTS = ("marketing", "hr", "dev")
PHASES = ("standup",) * 3 + ("execution",) * 8 + ("review",) * 2 + ("planning",)
BLOCKABLE = ("dev", "marketing", "sales", "content")


class Stage(IntEnum):
    """Where an account is. Visitors are a flow (traffic), not accounts."""

    LEAD = 0
    QUALIFIED = 1
    DEMO = 2
    PROPOSAL = 3
    NEGOTIATION = 4
    WON = 5
    LOST = 6
    CHURNED = 7


STAGES = tuple(stage.name.lower() for stage in Stage)
"""Names of the stages, as the prompts say them."""
DEMO, WON = int(Stage.DEMO), int(Stage.WON)
"""For loops over accounts: looking up a member of an enum costs more than the comparison."""


class FeatureSpec(NamedTuple):
    """A feature that can be built: fixed catalogue, so that nothing invented can be built, shipped or promised."""

    name: str
    pain: int
    """Index into PAINS."""
    fit: float
    """How much of the pain it cures, in [0, 1]."""
    effort: float
    """Dev turns at velocity 1: S 2, M 3, L 6."""


CATALOGUE = (
    FeatureSpec("SSO", 0, 1.0, 3.0),
    FeatureSpec("API", 1, 1.0, 3.0),
    FeatureSpec("Dashboard", 2, 1.0, 2.0),
    FeatureSpec("App", 3, 1.0, 6.0),
    FeatureSpec("Cache", 4, 1.0, 2.0),
    FeatureSpec("Invoices", 5, 1.0, 3.0),
    FeatureSpec("Audit", 0, 0.5, 2.0),
    FeatureSpec("Webhooks", 1, 0.5, 2.0),
)
HELD_OUT = ("downturn", "acquisition", "outage", "key_person", "price_war")
"""Scenario families that no training may see."""
HELD_OUT_FEATURES = ("Passkeys", "Connector", "Insights", "Handheld", "Turbo", "Statements", "Custody", "Signals")
HELD_OUT_CATALOGUE = tuple(spec._replace(name=name) for spec, name in zip(CATALOGUE, HELD_OUT_FEATURES, strict=True))
"""The same features under other names."""
CURES = tuple(tuple((i, spec.fit) for i, spec in enumerate(CATALOGUE) if spec.pain == pain) for pain in range(len(PAINS)))
"""Pain -> the features that cure it: catalogue index, fit."""
FEATURE_INDEX = {
    **{spec.name: index for specs in (CATALOGUE, HELD_OUT_CATALOGUE) for index, spec in enumerate(specs)},
    **{name: index for index, spec in enumerate(CATALOGUE) for name in FEATURE_NAMES[spec.name]},
}
"""Name, usual, held out or one that may be drawn -> catalogue index."""
PAIN_INDEX = {name: index for index, name in enumerate(PAINS)}
SEGMENT_INDEX = {name: index for index, name in enumerate(SEGMENTS)}


@lru_cache(maxsize=1024)
def _drawn_catalogue(seed: int) -> tuple[FeatureSpec, ...]:
    return tuple(spec._replace(name=name) for spec, name in zip(CATALOGUE, drawn_features(seed), strict=True))


def promoters(satisfaction: float) -> float:
    """The net promoter score in [-100, 100] of a mean satisfaction: of 0.5 it is 0, of 0.9 80."""
    return max(-100.0, min(100.0, 200.0 * (satisfaction - 0.5)))


@dataclass(slots=True, kw_only=True, eq=False)
class Account:
    """A lead, a deal or a paying customer."""

    id: int
    """`day * 16 + slot` of arrival: the same lead has the same id in every branch."""
    name: str
    segment: int
    size: int
    pain: int
    """What it needs; hidden until qualified."""
    quality: float
    """Propensity to buy, [0, 1]; hidden."""
    stage: int = int(Stage.LEAD)
    known: bool = False
    """Qualified, so that Sales sees pain and size."""
    contact: int
    """Turn of the last contact."""
    deadline: int
    """Day on which it buys elsewhere; hidden."""
    touches: int = 0
    warmth: float = 0.0
    """Goodwill from contacts, [0, 1]."""
    objections: int = 0
    failed: int = 0
    """Failed closes; three lose the deal."""
    demo: float = 0.0
    """How well the demo went, [-1, 1]."""
    tier: int = 0
    """Index into TIERS: the contract that was offered."""
    approved: bool = False
    """The CEO approved special terms for this large deal."""
    price: int
    """Cents per month at list."""
    sat: float = 0.5
    """Satisfaction as a customer, [0, 1]."""
    won_day: int = -1
    paid_until: int = 0
    """Day up to which the contract is paid."""
    vest_left: float = 1.0
    """Share of the closing reward that is still to vest."""
    rewarded: bool = False
    """This customer has paid a closing reward once."""
    expanded: int = 0
    """Expansions so far."""

    def settle(self) -> None:
        """Forget what only a lead is asked for, so that no snapshot carries it for the rest of a contract."""
        self.demo = self.quality = self.warmth = 0.0
        self.deadline = self.failed = self.touches = 0

    @classmethod
    def unpack(cls, row: Sequence[Any]) -> Self:
        """The account whose values, in alphabetical order of the fields, are `row`; ValueError when it has not as many."""
        new = cls.__new__(cls)
        # Spelt out because a loop takes three times as long, and a branch unpacks every account.
        (
            new.approved, new.contact, new.deadline, new.demo, new.expanded, new.failed, new.id, new.known, new.name,
            new.objections, new.paid_until, new.pain, new.price, new.quality, new.rewarded, new.sat, new.segment, new.size,
            new.stage, new.tier, new.touches, new.vest_left, new.warmth, new.won_day,
        ) = row  # fmt: skip
        return new


@dataclass(slots=True, kw_only=True, eq=False)
class Piece:
    """A piece of content: a draft while `left` > 0."""

    id: int
    kind: int
    topic: int
    left: int
    """Content turns still needed."""
    quality: float
    """0 as a draft, 0.5 when published, 1 after revision."""
    day: int
    """Day of publication."""
    vapor: bool
    """It names a feature that had not shipped; the penalty was paid."""

    @classmethod
    def unpack(cls, row: Sequence[Any]) -> Self:
        """The piece whose values, in alphabetical order of the fields, are `row`; ValueError when it has not as many."""
        new = cls.__new__(cls)
        new.day, new.id, new.kind, new.left, new.quality, new.topic, new.vapor = row
        return new


@dataclass(slots=True, eq=False)
class CompanyState:
    """The whole simulated world."""

    scenario: str = ""
    seed: int = 0
    world: int = 0
    """Which luck the company meets from now on: 0 main line, >= 1 branches, >= 10,000 evaluation."""
    turn: int = 0
    days: int = 30
    done: str = ""
    """Why the episode ended: empty, `horizon` or `bankrupt`."""
    goal: dict[str, float] = field(default_factory=dict)
    """What the scenario asks for by the end: lower bounds on measures (`scenarios.goals.MEASURES`)."""
    # money
    cash: int = 0
    ledger: dict[str, int] = field(default_factory=dict)
    """Kind of payment -> sum in cents; cash is the sum of all."""
    payroll: int = 0
    """Cents per day."""
    board_pool: int = 0
    """Cents that the board released and that are not allocated yet."""
    board_rate: int = 0
    """Cents released per day."""
    envelopes: dict[str, int] = field(default_factory=dict)
    # market
    segment_base: list[float] = field(default_factory=list)
    """Visits per day and segment without any work."""
    demand: list[list[float]] = field(default_factory=list)
    """Segment x pain weights: what arriving leads need. Hidden."""
    traffic: list[float] = field(default_factory=list)
    """Yesterday's visits per segment."""
    adstock: list[float] = field(default_factory=list)
    """Extra visits per day and segment by campaigns; half-life 3 days."""
    campaigns: list[list[float]] = field(default_factory=list)
    """[start day, segment, visits, theme] of campaigns on their way."""
    novelty: list[int] = field(default_factory=list)
    """Theme -> day of its last campaign (-99 never)."""
    ad_segment: int = -1
    ad_days: int = 0
    content_stock: float = 0.0
    """Visits per day that published content draws."""
    brand: float = 0.0
    """Awareness in [0, 100]."""
    conversion: float = 0.0
    """Share of visitors who sign up."""
    ab_wins: int = 0
    competitor: float = 0.0
    """Pressure on closes, [0, 1]."""
    intel: int = 0
    """Days for which an analysis still blunts the competitor."""
    researched: list[int] = field(default_factory=list)
    """Segment -> its best known pain, -1 unknown."""
    pivot_segment: int = -1
    pivot_days: int = 0
    hazard: float = 1.0
    """Scenario multiplier on churn."""
    # product
    feature_left: list[float] = field(default_factory=list)
    """Dev turns left at velocity 1, per catalogue entry; the full effort when not begun."""
    feature_reviewed: list[bool] = field(default_factory=list)
    feature_shipped: list[int] = field(default_factory=list)
    """Day of shipping, -1 not shipped."""
    bug_critical: int = 0
    bug_major: int = 0
    bug_minor: int = 0
    debt: float = 0.0
    """Technical debt in [0, 1]."""
    docs_level: float = 0.0
    """Technical documentation in [0, 1]."""
    load: float = 0.0
    """Unserved infrastructure load in [0, 1]."""
    # people
    velocity: float = 1.0
    morale: float = 0.6
    alignment: float = 0.5
    """How well the roles know what the others do, [0, 1]."""
    blockers: dict[str, int] = field(default_factory=dict)
    """Blocked role -> day since."""
    contractor_days: dict[str, int] = field(default_factory=dict)
    focus: int = -1
    focus_left: int = 0
    tracked: int = -99
    """Day on which the OKRs were last tracked."""
    okr_base: list[float] = field(default_factory=list)
    """Key-result measures when the OKRs were set."""
    okr_met: bool = False
    directive_role: str = ""
    directive_left: int = 0
    # accounts
    accounts: list[Account] = field(default_factory=list)
    won: int = 0
    lost: int = 0
    churned: int = 0
    expansion: int = 0
    """Cents of monthly revenue gained by expansions."""
    start_mrr: int = 0
    referral_day: int = -99
    drawn_names: bool = False
    """Features and accounts have names that the seed drew, instead of those of the scenario."""
    names_used: int = 0
    """Names given so far; a name is not given twice while the pool lasts."""
    inquiry: int = 0
    """Large companies that announced themselves and have not arrived."""
    updated_day: int = -1
    """Last day on which Sales moved or updated the pipeline."""
    # content, talk
    pieces: list[Piece] = field(default_factory=list)
    inbox: dict[str, list[list[Any]]] = field(default_factory=dict)
    """Role -> [turn, sender, text, addressee] of its last three messages and of all of the last 14 turns; an addressee other
    than the role marks a copy (the CEO's last six, which take no message's place). The night drops what is too old to be
    read."""
    acted: dict[str, str] = field(default_factory=dict)
    """Role -> the action of its last turn, empty for none; a role that has not had a turn is absent."""
    shared: list[list[Any]] = field(default_factory=list)
    """The shared board: last 15 [turn, who, public fact]."""
    events: list[list[Any]] = field(default_factory=list)
    """[turn, kind] of the last 24 hours."""
    schedule: list[list[Any]] = field(default_factory=list)
    """[day, kind] still to come, in order."""
    collab_seen: list[int] = field(default_factory=list)
    """Numbers of the (artefact, maker, user) that were paid and that could be paid again, in no order."""
    collab_day: dict[str, int] = field(default_factory=dict)
    """Role -> collaboration bonuses today."""
    daily: dict[str, int] = field(default_factory=dict)
    """(role action target) key of today -> repeats, for the decay of the base reward."""
    luck: float = 0.0
    """Cents by which chance has helped so far: the sum of (what happened - its expectation) x what it was worth, over closes,
    churn and arrivals. Its own expectation is 0, so subtracting it from an outcome removes noise and no signal (control
    variate)."""
    base_sat: float = 0.5
    invalid: int = 0
    reward_total: dict[str, float] = field(default_factory=dict)

    @property
    def day(self) -> int:
        """Day counted from 0."""
        return self.turn // TURNS_PER_DAY

    @property
    def horizon(self) -> int:
        """Turns of the whole episode."""
        return self.days * TURNS_PER_DAY

    @property
    def stability(self) -> float:
        """Product stability in [0, 1]: bugs, debt and unserved load."""
        x = 1.0 - 0.1 * self.bug_critical - 0.035 * self.bug_major - 0.01 * self.bug_minor - 0.25 * self.debt - 0.3 * self.load
        return 0.0 if x < 0.0 else x

    @property
    def catalogue(self) -> tuple[FeatureSpec, ...]:
        """The features, under the names that they have here."""
        if self.drawn_names:
            return _drawn_catalogue(self.seed)
        return HELD_OUT_CATALOGUE if self.scenario in HELD_OUT else CATALOGUE

    def customers(self) -> list[Account]:
        """Paying customers."""
        return [a for a in self.accounts if a.stage == WON]

    def leads(self) -> list[Account]:
        """Accounts that have not signed yet."""
        return [a for a in self.accounts if a.stage < WON]

    def mrr(self) -> int:
        """Monthly recurring revenue in cents."""
        return sum([a.price for a in self.accounts if a.stage == WON])

    def satisfaction(self) -> float:
        """Mean satisfaction of customers, or the market's prior when there is none."""
        sats = [a.sat for a in self.accounts if a.stage == WON]
        return sum(sats) / len(sats) if sats else self.base_sat

    def nps(self) -> float:
        """Net promoter score in [-100, 100]."""
        return promoters(self.satisfaction())

    def fit(self, pain: int) -> float:
        """How much of `pain` shipped features cure, [0, 1]."""
        total = 0.0
        for index, fit in CURES[pain]:
            if self.feature_shipped[index] >= 0:
                total += fit
        return total if total < 1.0 else 1.0

    def copy(self) -> CompanyState:
        """An independent copy."""
        new = CompanyState.__new__(CompanyState)
        for slot in STATE_FIELDS:
            value = getattr(self, slot)
            kind = type(value)
            if kind is list:
                value = [v.copy() if type(v) is list else v for v in value]
            elif kind is dict:
                value = {k: ([list(m) for m in v] if type(v) is list else v) for k, v in value.items()}
            setattr(new, slot, value)
        new.accounts = [Account.unpack(_account(a)) for a in self.accounts]
        new.pieces = [Piece.unpack(_piece(p)) for p in self.pieces]
        return new


STATE_FIELDS, ACCOUNT_FIELDS, PIECE_FIELDS = (
    tuple(sorted(one.name for one in fields(kind))) for kind in (CompanyState, Account, Piece)
)
"""In the order of snapshots."""
_account, _piece = attrgetter(*ACCOUNT_FIELDS), attrgetter(*PIECE_FIELDS)
