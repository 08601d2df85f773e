"""What exists in the company and in which unit. The simulator mutates it; nothing else does.

All fields are primitives, or lists and dicts of primitives, so that a snapshot (`snapshot`) is data and never code, and a fork is
a shallow rebuild. Money is integer cents, rates are in [0, 1], times are turn or day numbers counted from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from operator import attrgetter
from typing import Any, NamedTuple, Self

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
FEATURE_INDEX = {spec.name: index for specs in (CATALOGUE, HELD_OUT_CATALOGUE) for index, spec in enumerate(specs)}
"""Name, usual or held out -> catalogue index."""
PAIN_INDEX = {name: index for index, name in enumerate(PAINS)}
SEGMENT_INDEX = {name: index for index, name in enumerate(SEGMENTS)}


def promoters(satisfaction: float) -> float:
    """The net promoter score in [-100, 100] of a mean satisfaction: of 0.5 it is 0, of 0.9 80."""
    return max(-100.0, min(100.0, 200.0 * (satisfaction - 0.5)))


class _Record:
    """A mutable row of primitives, packed to a tuple for forks and snapshots."""

    __slots__ = ()

    def __init__(self, **values: Any) -> None:
        if len(values) != len(self.__slots__):
            raise TypeError(f"{type(self).__name__} needs exactly the fields {', '.join(self.__slots__)}")
        for slot, value in values.items():
            setattr(self, slot, value)


class Account(_Record):
    """A lead, a deal or a paying customer."""

    __slots__ = (
        "approved", "contact", "deadline", "demo", "expanded", "failed", "id", "known", "name", "objections",
        "paid_until", "pain", "price", "quality", "rewarded", "sat", "segment", "size", "stage", "tier", "touches",
        "vest_left", "warmth", "won_day",
    )  # fmt: skip
    id: int
    """`day * 16 + slot` of arrival: the same lead has the same id in every branch."""
    name: str
    segment: int
    size: int
    pain: int
    """What it needs; hidden until qualified."""
    quality: float
    """Propensity to buy, [0, 1]; hidden."""
    stage: int
    known: bool
    """Qualified, so that Sales sees pain and size."""
    contact: int
    """Turn of the last contact."""
    deadline: int
    """Day on which it buys elsewhere; hidden."""
    touches: int
    warmth: float
    """Goodwill from contacts, [0, 1]."""
    objections: int
    failed: int
    """Failed closes; three lose the deal."""
    demo: float
    """How well the demo went, [-1, 1]."""
    tier: int
    """Index into TIERS: the contract that was offered."""
    approved: bool
    """The CEO approved special terms for this large deal."""
    price: int
    """Cents per month at list."""
    sat: float
    """Satisfaction as a customer, [0, 1]."""
    won_day: int
    paid_until: int
    """Day up to which the contract is paid."""
    vest_left: float
    """Share of the closing reward that is still to vest."""
    rewarded: bool
    """This customer has paid a closing reward once."""
    expanded: int
    """Expansions so far."""

    def settle(self) -> None:
        """Forget what only a lead is asked for, so that no snapshot carries it for the rest of a contract."""
        self.demo = self.quality = self.warmth = 0.0
        self.deadline = self.failed = self.touches = 0

    @classmethod
    def unpack(cls, row: Sequence[Any]) -> Self:
        """The account whose values, in the order of `__slots__`, are `row`; ValueError when it has not as many."""
        new = cls.__new__(cls)
        # Spelt out because a loop takes three times as long, and a branch unpacks every account.
        (
            new.approved, new.contact, new.deadline, new.demo, new.expanded, new.failed, new.id, new.known, new.name,
            new.objections, new.paid_until, new.pain, new.price, new.quality, new.rewarded, new.sat, new.segment, new.size,
            new.stage, new.tier, new.touches, new.vest_left, new.warmth, new.won_day,
        ) = row  # fmt: skip
        return new


class Piece(_Record):
    """A piece of content: a draft while `left` > 0."""

    __slots__ = ("day", "id", "kind", "left", "quality", "topic", "vapor")
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
        """The piece whose values, in the order of `__slots__`, are `row`; ValueError when it has not as many."""
        new = cls.__new__(cls)
        new.day, new.id, new.kind, new.left, new.quality, new.topic, new.vapor = row
        return new


class State:
    """The whole simulated world."""

    __slots__ = (
        "ab_wins", "accounts", "acted", "ad_days", "ad_segment", "adstock", "alignment", "base_sat", "blockers", "board_pool",
        "board_rate", "brand", "bug_critical", "bug_major", "bug_minor", "campaigns", "cash", "churned",
        "collab_day", "collab_seen", "competitor", "content_stock", "contractor_days", "conversion",
        "daily", "days", "debt", "demand", "directive_left", "directive_role", "docs_level", "done", "envelopes",
        "events", "expansion", "feature_left", "feature_reviewed", "feature_shipped", "focus",
        "focus_left", "goal", "hazard", "inbox", "inquiry", "intel", "invalid", "ledger", "load", "lost", "luck", "morale",
        "names_used", "novelty", "okr_base", "okr_met", "payroll", "pieces", "pivot_days", "pivot_segment",
        "referral_day", "researched", "reward_total", "scenario", "schedule", "seed", "segment_base", "shared",
        "start_mrr", "tracked", "traffic", "turn", "updated_day", "velocity", "won", "world",
    )  # fmt: skip

    def __init__(self) -> None:
        self.scenario: str = ""
        self.seed = 0
        self.world = 0
        """Which luck the company meets from now on: 0 main line, >= 1 branches, >= 10,000 evaluation."""
        self.turn = 0
        self.days = 30
        self.done: str = ""
        """Why the episode ended: empty, `horizon` or `bankrupt`."""
        self.goal: dict[str, float] = {}
        """What the scenario asks for by the end: lower bounds on measures (`scenarios.goals.MEASURES`)."""
        # money
        self.cash = 0
        self.ledger: dict[str, int] = {}
        """Kind of payment -> sum in cents; cash is the sum of all."""
        self.payroll = 0
        """Cents per day."""
        self.board_pool = 0
        """Cents that the board released and that are not allocated yet."""
        self.board_rate = 0
        """Cents released per day."""
        self.envelopes: dict[str, int] = {}
        # market
        self.segment_base: list[float] = []
        """Visits per day and segment without any work."""
        self.demand: list[list[float]] = []
        """Segment x pain weights: what arriving leads need. Hidden."""
        self.traffic: list[float] = []
        """Yesterday's visits per segment."""
        self.adstock: list[float] = []
        """Extra visits per day and segment by campaigns; half-life 3 days."""
        self.campaigns: list[list[float]] = []
        """[start day, segment, visits, theme] of campaigns on their way."""
        self.novelty: list[int] = []
        """Theme -> day of its last campaign (-99 never)."""
        self.ad_segment = -1
        self.ad_days = 0
        self.content_stock = 0.0
        """Visits per day that published content draws."""
        self.brand = 0.0
        """Awareness in [0, 100]."""
        self.conversion = 0.0
        """Share of visitors who sign up."""
        self.ab_wins = 0
        self.competitor = 0.0
        """Pressure on closes, [0, 1]."""
        self.intel = 0
        """Days for which an analysis still blunts the competitor."""
        self.researched: list[int] = []
        """Segment -> its best known pain, -1 unknown."""
        self.pivot_segment = -1
        self.pivot_days = 0
        self.hazard = 1.0
        """Scenario multiplier on churn."""
        # product
        self.feature_left: list[float] = []
        """Dev turns left at velocity 1, per catalogue entry; the full effort when not begun."""
        self.feature_reviewed: list[bool] = []
        self.feature_shipped: list[int] = []
        """Day of shipping, -1 not shipped."""
        self.bug_critical = 0
        self.bug_major = 0
        self.bug_minor = 0
        self.debt = 0.0
        """Technical debt in [0, 1]."""
        self.docs_level = 0.0
        """Technical documentation in [0, 1]."""
        self.load = 0.0
        """Unserved infrastructure load in [0, 1]."""
        # people
        self.velocity = 1.0
        self.morale = 0.6
        self.alignment = 0.5
        """How well the roles know what the others do, [0, 1]."""
        self.blockers: dict[str, int] = {}
        """Blocked role -> day since."""
        self.contractor_days: dict[str, int] = {}
        self.focus = -1
        self.focus_left = 0
        self.tracked = -99
        """Day on which the OKRs were last tracked."""
        self.okr_base: list[float] = []
        """Key-result measures when the OKRs were set."""
        self.okr_met = False
        self.directive_role = ""
        self.directive_left = 0
        # accounts
        self.accounts: list[Account] = []
        self.won = 0
        self.lost = 0
        self.churned = 0
        self.expansion = 0
        """Cents of monthly revenue gained by expansions."""
        self.start_mrr = 0
        self.referral_day = -99
        self.names_used = 0
        """Names given so far; a name is not given twice while the pool lasts."""
        self.inquiry = 0
        """Large companies that announced themselves and have not arrived."""
        self.updated_day = -1
        """Last day on which Sales moved or updated the pipeline."""
        # content, talk
        self.pieces: list[Piece] = []
        self.inbox: dict[str, list[list[Any]]] = {}
        """Role -> [turn, sender, text, addressee] of its last three messages and of all of the last 14 turns; an addressee other
        than the role marks a copy (the CEO's last six, which take no message's place). The night drops what is too old to be
        read."""
        self.acted: dict[str, str] = {}
        """Role -> the action of its last turn, empty for none; a role that has not had a turn is absent."""
        self.shared: list[list[Any]] = []
        """The shared board: last 15 [turn, who, public fact]."""
        self.events: list[list[Any]] = []
        """[turn, kind] of the last 24 hours."""
        self.schedule: list[list[Any]] = []
        """[day, kind] still to come, in order."""
        self.collab_seen: list[int] = []
        """Numbers of the (artefact, maker, user) that were paid and that could be paid again, in no order."""
        self.collab_day: dict[str, int] = {}
        """Role -> collaboration bonuses today."""
        self.daily: dict[str, int] = {}
        """(role action target) key of today -> repeats, for the decay of the base reward."""
        self.luck = 0.0
        """Cents by which chance has helped so far: the sum of (what happened - its expectation) x what it was worth, over closes,
        churn and arrivals. Its own expectation is 0, so subtracting it from an outcome removes noise and no signal (control
        variate)."""
        self.base_sat = 0.5
        self.invalid = 0
        self.reward_total: dict[str, float] = {}

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
        """The features, under the names that this scenario gives them."""
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

    def copy(self) -> State:
        """An independent copy."""
        new = State.__new__(State)
        for slot in State.__slots__:
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


_account = attrgetter(*Account.__slots__)
_piece = attrgetter(*Piece.__slots__)
