"""The reward vector: six named parts for every role, every turn. Its numbers are the tables here, and the tiers' in `market`.

    reward[role] = stage + kpi + action + collaboration + penalty + base

`stage` pays pipeline transitions by the seed's asymmetric table, `kpi` is the change of the role's potential (so that cycles
pay nothing), `action` pays effects (never the attempt), `collaboration` pays when another role's artefact or message was used,
`penalty` is negative, `base` is the seed's +0.1 for an action that changed something, decaying over identical repeats.

A new effect is a row of `EFFECTS`; the handler of the action that causes it (`handlers/`) calls `TurnLog.effect` with its name.
Every payment keeps what it is for (`Payment`), and `reward_reasons` puts that into words for those who ask.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from onthejob.envs.office.books import Book
from onthejob.envs.office.company_state import FOCI, Account, CompanyState, Piece, Stage
from onthejob.envs.office.roles import TRAINED_ROLES, Role

PARTS: tuple[str, ...] = ("stage", "kpi", "action", "collaboration", "penalty", "base")
MEANINGS: MappingProxyType[str, str] = MappingProxyType({
    "stage": "An account arrived, advanced, signed or left. The reward of a signature is paid over time, and taken back when the "
             "customer leaves.",
    "kpi": "A key figure of the company changed, most of all its value. What rises and falls again pays nothing.",
    "action": "The action achieved a result: a release, a cleared blocker, a published piece, a reached key result.",
    "collaboration": "One role used the work of another or met its request. Both are paid.",
    "penalty": "A rule was broken: an invalid reply, a neglected lead, a promise of what has not shipped.",
    "base": "The action changed something. Repeating it on the same day pays less.",
})  # fmt: skip
"""Part -> its meaning, for pages and terminals."""
ORDER = tuple(str(role) for role in Role)
_STAGE, _KPI, _ACTION, _COLLAB, _PENALTY, _BASE = range(len(PARTS))

#                        ceo   dev   mkt   sales content hr   customer
STAGE_TABLE: MappingProxyType[str, tuple[float, ...]] = MappingProxyType({
    "lead":        (0.0,  0.0,  1.5,  0.0,  1.0,  0.0,  0.0),
    "qualified":   (0.0,  0.0,  0.0,  1.0,  0.0,  0.3,  0.0),
    "demo":        (0.0,  1.0,  0.0,  1.5,  0.0,  0.0,  0.0),
    "proposal":    (0.0,  0.0,  0.0,  2.0,  0.0,  0.0,  0.0),
    "closed_won":  (5.0,  2.0,  3.0, 10.0,  2.0,  1.0,  2.0),
    "closed_lost": (-2.0, 0.0, -1.0, -3.0, -0.5, -0.5,  0.0),
    "churned":     (-3.0, -5.0, -1.0, -3.0, -2.0, -1.0, -5.0),
})  # fmt: skip
"""Transition -> reward per role, in `Role` order. closed_won is multiplied by the tier's 1 / 2 / 3: a third of the single
reward at signing, the rest over 10 / 30 / 90 days while the customer lives; what has vested is taken back when it churns."""

ADVANCES = ("qualified", "demo", "proposal")
"""Transitions that pay before it is known whether the deal comes and stays. They are taken back when it is lost, by neglect or
refused three times, and when the customer leaves. Without that, Sales earns by hurrying every lead into a refusal."""

KPI_NAMES = ("stability", "reach", "conversion", "deals", "velocity", "okr", "satisfaction", "expansion", "efficiency")
#                        ceo  dev  mkt  sales content hr  customer
KPI_WEIGHTS: MappingProxyType[str, tuple[float, ...]] = MappingProxyType({
    "stability":    (0.5, 4.0, 0.0, 0.0, 0.0, 0.5, 1.0),
    "reach":        (0.0, 0.0, 0.6, 0.0, 0.5, 0.0, 0.0),
    "conversion":   (0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0),
    "deals":        (0.5, 0.0, 0.3, 1.5, 0.3, 0.0, 0.0),
    "velocity":     (0.0, 0.5, 0.0, 0.0, 0.0, 2.0, 0.0),
    "okr":          (1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0),
    "satisfaction": (1.5, 2.0, 0.0, 1.5, 1.5, 0.5, 4.0),
    "expansion":    (0.5, 0.0, 0.0, 1.0, 0.0, 0.0, 2.0),
    "efficiency":   (12.0, 6.0, 6.0, 6.0, 6.0, 6.0, 0.0),
})  # fmt: skip
"""Driver -> weight per role on the change of the KPI. Scales: stability, okr and satisfaction in [0, 1]; reach = log visits /
7; conversion / 5 %; velocity / 2; deals (every account's price, weighted by how far it has come) and expansion in 1,000
dollars a month, customers included; the net promoter score is linear in satisfaction (`CompanyState.nps`) and has no line of its
own, which would pay the same change twice; efficiency is what the CEO's budget has become: company value in 10,000 dollars,
so that a trained role shares 0.6 a thousand dollars. With less, teams that spend money on effort without progress rank above
those that keep it."""
_DRIVEN = tuple(tuple((i, weight) for i, weight in enumerate(KPI_WEIGHTS[name]) if weight) for name in KPI_NAMES)
"""KPI -> (role, weight) of those whom it drives."""

#                               ceo  dev  mkt  sales content hr  customer
EFFECTS: MappingProxyType[str, tuple[float, ...]] = MappingProxyType({
    "release shipped":          (0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "blocker cleared":          (0.0, 0.0, 0.0, 0.0, 0.0, 1.5, 0.0),
    "piece published":          (0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0),
    "segment researched":       (0.0, 0.0, 0.3, 0.0, 0.0, 0.0, 0.0),
    "key result reached":       (1.5, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0),
})  # fmt: skip
"""Effect -> action reward per role. A piece counts when it brings visits, a key result while its OKRs are live."""

USES: MappingProxyType[str, float] = MappingProxyType(
    {
        "feature built on request": 1.0,
        "feature written about": 1.0,
        "content carries a campaign": 0.5,
        "content helps a demo": 0.5,
        "deal approved on request": 0.5,
    }
)
"""What is used -> collaboration reward of both its maker and its user."""

CRISIS_SATISFACTION = 0.4
CRISIS_TABLE: MappingProxyType[tuple[str, str], float] = MappingProxyType(
    {
        ("ceo", "SET_OKRS"): 0.5,
        ("ceo", "SEND_DIRECTIVE"): 0.3,
        ("dev", "FIX_BUG"): 1.0,
        ("dev", "WRITE_DOCS"): 0.5,
        ("sales", "COLLECT_FEEDBACK"): 1.0,
        ("content", "WRITE_DOCS"): 0.8,
        ("hr", "RESOLVE_BLOCKER"): 0.3,
        ("hr", "PERFORMANCE_REVIEW"): 0.3,
        ("marketing", "RESEARCH_MARKET"): 0.2,
    }
)
"""Churn prevention: extra for an effective action of these kinds while the mean satisfaction is below 0.4, scaled by the
distance."""

BASE = (0.1, 0.05, 0.0)
"""First, second and later identical effective action of a day."""
COLLAB_CAP = 3
"""Paid collaborations per role and day."""
INVALID = 1.0
VAPORWARE = 5.0
NO_PIPELINE_WORK = 1.0
"""Sales, for a day on which no lead and no customer was worked on."""
STALE_LEAD = 0.5
"""Sales, every night for each lead that was left alone for days, and when one is lost without any work on it."""


class Loss(StrEnum):
    """Why an account left."""

    SILENCE = "silence"
    """Ten days without contact."""
    DEADLINE = "deadline"
    """The lead's own date for a decision passed."""
    REFUSED = "refused"
    """The third refused signature."""
    UNHAPPY = "unhappy"
    """A customer left, which is the likelier the lower its satisfaction is."""


class Departure(NamedTuple):
    """An account that left the company's books, as it was at its last stage."""

    account: Account
    after: Stage
    """`LOST` for leads, `CHURNED` for customers."""
    reason: Loss


class Payment(NamedTuple):
    """One entry of the rewards, with what it is for."""

    part: int
    """Index into `PARTS`."""
    kind: str
    """A transition (`STAGE_TABLE`), an effect, a use, or one of `vested`, `clawback`, `repaid`, `crisis`, `base` and the names of
    penalties."""
    about: Account | Piece | str
    row: tuple[float, ...]
    """Reward per role, in `ORDER`, before `scale`."""
    scale: float


UNIT = tuple(tuple(float(role == other) for other in ORDER) for role in ORDER)
"""Role index -> the row of a payment to this role alone."""


class TurnLog:
    """Collects what happened in one turn; the only writer of rewards."""

    __slots__ = (
        "after", "before", "booked", "changed", "departures", "earned", "lines", "moved", "notes", "paid", "payments", "said",
        "state", "turn",
    )  # fmt: skip

    def __init__(self, state: CompanyState) -> None:
        self.state = state
        self.turn = state.turn
        """The turn that is played."""
        self.lines = [[0.0] * len(PARTS) for _ in ORDER]
        """Role, in `ORDER` -> the six parts, in the order of `PARTS`."""
        self.notes: list[str] = []
        """Public facts of the turn, for the record and the memories."""
        self.departures: list[Departure] = []
        """Accounts that left. They are no longer in `state`."""
        self.payments: list[tuple[int, str, Account | Piece | str, tuple[float, ...], float]] = []
        """What was paid, but the change of the KPIs, as the fields of a `Payment`, which few look at."""
        self.moved: list[tuple[tuple[float, ...], tuple[float, ...]]] = []
        """KPIs before and after, for each time that their change was paid."""
        self.booked: list[tuple[Account, int]] = []
        """Cents that accounts paid, or were refunded."""
        self.before: Book | None = None
        """The books before the turn; only a turn in front of a spectator has them."""
        self.changed = False
        """The action achieved something."""
        self.said: tuple[str, str] | None = None
        """(addressee, text) of the message that the action itself sends, besides the actor's own."""
        self.after: tuple[float, ...] = ()
        """The KPIs at the end of the turn; empty until then."""
        self.paid: dict[str, float] = {}
        """The rewards at the end of the turn; empty until then."""
        self.earned = 0.0
        """Of them what the acting role's action earned it: all, on the last turn of a day without the night."""

    def split(self) -> TurnLog:
        """A log of what has happened so far, which no longer grows."""
        part = TurnLog(self.state)
        part.turn, part.changed, part.said, part.earned = self.turn, self.changed, self.said, self.earned
        part.lines = [list(line) for line in self.lines]
        part.notes, part.departures = list(self.notes), list(self.departures)
        part.payments, part.moved, part.booked = list(self.payments), list(self.moved), list(self.booked)
        part.before = self.before
        part.paid = part.rewards()
        return part

    def since(self, part: TurnLog) -> TurnLog:
        """A log of what has happened since `part` was split off."""
        rest = self.split()
        rest.changed, rest.said, rest.earned = False, None, 0.0
        rest.lines = [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(self.lines, part.lines, strict=True)]
        rest.notes, rest.departures = self.notes[len(part.notes) :], self.departures[len(part.departures) :]
        rest.payments, rest.moved = self.payments[len(part.payments) :], self.moved[len(part.moved) :]
        rest.booked = self.booked[len(part.booked) :]
        rest.paid = rest.rewards()
        return rest

    def departure(self, account: Account, after: Stage, reason: Loss) -> None:
        """Remember that an account left."""
        self.departures.append(Departure(account, after, reason))

    def note(self, text: str) -> None:
        """Remember a line for the record."""
        self.notes.append(text)

    def book(self, account: Account, cents: int) -> None:
        """Remember what an account paid, negative for a refund."""
        self.booked.append((account, cents))

    def stage(self, kind: str, account: Account, scale: float = 1.0) -> None:
        """Credit one transition of `account` to all roles."""
        self._pay(_STAGE, kind, account, STAGE_TABLE[kind], scale)

    def vest(self, account: Account, scale: float) -> None:
        """Pay a part of a closing reward, because the customer stays."""
        self._pay(_STAGE, "vested", account, STAGE_TABLE["closed_won"], scale)

    def clawback(self, account: Account, scale: float) -> None:
        """Take back what a churned customer's closing reward had vested."""
        self._pay(_STAGE, "clawback", account, STAGE_TABLE["closed_won"], -scale)

    def repay(self, account: Account) -> None:
        """Take back what a deal's progress up to its stage had paid: lost or left, all of it was an advance."""
        for kind in ADVANCES[: account.stage]:
            self._pay(_STAGE, "repaid", account, STAGE_TABLE[kind], -1.0)

    def effect(self, kind: str, about: Account | Piece | str) -> None:
        """Pay what an action achieved, by `EFFECTS`."""
        self._pay(_ACTION, kind, about, EFFECTS[kind], 1.0)

    def penalty(self, role: str, value: float, kind: str, about: Account | str = "") -> None:
        """Charge `value` > 0."""
        self._pay_one(_PENALTY, kind, about, ORDER.index(role), -value)

    def collaboration(self, maker: str, user: str, artefact: int, use: str, about: Account | Piece | str) -> None:
        """Pay both sides, by `USES`, when `user` used something of `maker`: once per pair, at most three a day for each role."""
        s = self.state
        pair = artefact * 64 + ORDER.index(maker) * 8 + ORDER.index(user)
        if maker == user or pair in s.collab_seen:
            return
        s.collab_seen.append(pair)
        for role in (maker, user):
            paid = s.collab_day.get(role, 0)
            if paid < COLLAB_CAP:
                s.collab_day[role] = paid + 1
                self._pay_one(_COLLAB, use, about, ORDER.index(role), USES[use])

    def base(self, role: str, key: str) -> None:
        """The small constant for an action that changed something; identical repeats within a day decay to nothing."""
        seen = self.state.daily.get(key, 0)
        self.state.daily[key] = seen + 1
        self._pay_one(_BASE, "base", "", ORDER.index(role), BASE[min(seen, len(BASE) - 1)])

    def crisis(self, role: str, action_type: str, satisfaction: float) -> None:
        """Churn prevention pays in proportion to the gap, so that holding satisfaction low does not beat raising it."""
        bonus = CRISIS_TABLE.get((role, action_type))
        if bonus is not None and satisfaction < CRISIS_SATISFACTION:
            value = bonus * (CRISIS_SATISFACTION - satisfaction) / CRISIS_SATISFACTION
            self._pay_one(_ACTION, "crisis", f"{satisfaction:.0%}", ORDER.index(role), value)

    def _pay(self, part: int, kind: str, about: Account | Piece | str, row: tuple[float, ...], scale: float) -> None:
        self.payments.append((part, kind, about, row, scale))
        for line, value in zip(self.lines, row, strict=True):
            if value:
                line[part] += scale * value

    def _pay_one(self, part: int, kind: str, about: Account | Piece | str, role: int, value: float) -> None:
        self.payments.append((part, kind, about, UNIT[role], value))
        self.lines[role][part] += value

    def kpis(self, before: tuple[float, ...], after: tuple[float, ...]) -> None:
        """Pay the change of each role's potential."""
        self.after = after
        self.moved.append((before, after))
        lines = self.lines
        for driven, old, new in zip(_DRIVEN, before, after, strict=True):
            if old != new:
                delta = new - old
                for role, weight in driven:
                    lines[role][_KPI] += weight * delta

    def rewards(self) -> dict[str, float]:
        """Role -> sum of its parts."""
        return dict(zip(ORDER, map(sum, self.lines), strict=True))

    def parts(self) -> dict[str, dict[str, float]]:
        """Role -> named parts, zeros included."""
        return {role: dict(zip(PARTS, line, strict=True)) for role, line in zip(ORDER, self.lines, strict=True)}


def add_parts(totals: dict[str, list[float]], log: TurnLog) -> None:
    """Add what a turn paid to `totals`: role -> the six parts."""
    for name, line in zip(ORDER, log.lines, strict=True):
        kept = totals.setdefault(name, [0.0] * len(line))
        for index, value in enumerate(line):
            kept[index] += value


def team_reward(rewards: dict[str, float]) -> float:
    """Sum over the trained roles: the customer is part of the world."""
    return sum(rewards[str(role)] for role in TRAINED_ROLES)


def focus_name(state: CompanyState) -> str:
    """The live focus, or `none`."""
    return FOCI[state.focus] if state.focus_left > 0 and state.focus >= 0 else "none"
