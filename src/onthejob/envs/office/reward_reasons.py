"""What a turn or a night was paid for, in words: `reasons` takes the rewards of a `TurnLog` apart.

Each reason is one cause with its share in the six parts of every role; the shares of all reasons add up to the rewards. Nothing
here decides a reward: payments keep what they are for, and the change of a KPI is divided by comparing the books from before and
after. Simulation and training never call this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from onthejob.envs.office.books import Book, Line, book
from onthejob.envs.office.company_state import (
    FOCI,
    KINDS,
    PAINS,
    SEVERITIES,
    TIERS,
    TURNS_PER_DAY,
    WON,
    Account,
    CompanyState,
    Piece,
    Stage,
)
from onthejob.envs.office.reward_parts import BASE, KPI_NAMES, KPI_WEIGHTS, ORDER, PARTS, Loss, Payment, TurnLog
from onthejob.envs.office.roles import TRAINED_ROLES
from onthejob.errors import ContractError


class Cause(StrEnum):
    """Subject of a reason."""

    DEAL = "deal"
    """A lead arrived, advanced or was lost; a customer signed, stayed or left."""
    RULE = "rule"
    """A penalty."""
    WORK = "work"
    """The action itself, and the work of others in it."""
    MONEY = "money"
    PRODUCT = "product"
    MARKET = "market"
    TEAM = "team"


class RewardReason(NamedTuple):
    """One cause of what was paid."""

    cause: Cause
    text: str
    """One line without a full stop."""
    account: int
    """Id of the account that it is about; -1 for none or several."""
    amounts: Mapping[str, tuple[float, ...]]
    """Role -> its share in each of `PARTS`; roles without one are absent."""

    def of(self, role: str) -> float:
        """What `role` was paid for it."""
        return sum(self.amounts.get(role, ()))

    @property
    def team(self) -> float:
        """What the trained roles were paid for it."""
        return sum(self.of(role) for role in TRAINED_ROLES)

    @property
    def size(self) -> float:
        """Sum of the absolute amounts of all roles, by which reasons are sorted."""
        return sum(abs(sum(line)) for line in self.amounts.values())


Key = tuple[str, int]
"""Kind of a cause and the id of its account (else -1), which keep its payments together."""
KPI = PARTS.index("kpi")
VALUE, DEALS, EXPANSION = (KPI_NAMES.index(name) for name in ("efficiency", "deals", "expansion"))
PLAIN = tuple(i for i in range(len(KPI_NAMES)) if i not in (VALUE, DEALS, EXPANSION))
"""KPIs that have one cause."""
CONTRACTS: Key = ("contracts", -1)
ADVANCED = {
    Stage.QUALIFIED: "was qualified",
    Stage.DEMO: "saw a demo",
    Stage.PROPOSAL: "got a proposal",
    Stage.NEGOTIATION: "refused to sign and is open to another offer",
}
LOSSES = {
    Loss.SILENCE: "no contact for ten days",
    Loss.DEADLINE: "it did not get an offer in time and bought elsewhere",
    Loss.REFUSED: "it refused for the third time",
}
SPENT = {
    "payroll": "Wages",
    "hosting": "Hosting",
    "dev": "Servers above the usual capacity",
    "pivot": "Turning to another segment",
    "capital": "Money from the investors",
}
"""Kind of payment in the ledger -> its name; other kinds are departments."""
TEXTS: MappingProxyType[str, tuple[Cause, str]] = MappingProxyType({
    "invalid reply": (Cause.RULE, "The reply could not be used"),
    "vaporware": (Cause.RULE, "Promised {about}, which has not shipped"),
    "idle pipeline": (Cause.RULE, "Sales worked on no lead and no customer that day"),
    "stale lead": (Cause.RULE, "No contact for five days or more: {about}"),
    "vested": (Cause.DEAL, "Closing reward of customers who stayed: {about}"),
    "base": (Cause.WORK, "The action changed something"),
    "crisis": (Cause.WORK, "The action helps to keep customers while they are unhappy (satisfaction {about})"),
    "release shipped": (Cause.PRODUCT, "{about} was released"),
    "blocker cleared": (Cause.TEAM, "{about} is no longer blocked"),
    "piece published": (Cause.WORK, "Published: {about}"),
    "segment researched": (Cause.MARKET, "It is known what the segment {about} needs most"),
    "key result reached": (Cause.TEAM, "The key result of the focus {about} is reached"),
    "feature built on request": (Cause.WORK, "Dev released what was asked for by {about}"),
    "feature written about": (Cause.WORK, "Content wrote about {about}, which Dev had released"),
    "content carries a campaign": (Cause.WORK, "Content carries the campaign: {about}"),
    "content helps a demo": (Cause.WORK, "Content helped the demo: {about}"),
    "deal approved on request": (Cause.WORK, "Sales asked for special terms for {about}, and the CEO approved them"),
})  # fmt: skip
"""Kind of a payment -> its subject and text; transitions, whose accounts have changed, are described by the account instead."""
BUG_COSTS = (0.1, 0.035, 0.01)
"""Stability that a bug of each severity takes (`CompanyState.stability`); here only to name the largest causes first."""


def reasons(s: CompanyState, log: TurnLog) -> list[RewardReason]:
    """Why the turn or night of `log` paid what it paid, largest first.

    Args:
        s: the state after it.
        log: as a spectator receives it.

    Raises:
        ContractError: the log has no books from before, so it was not played in front of a spectator.
    """
    if log.before is None:
        raise ContractError("this turn was played without a spectator, so its rewards cannot be explained. Pass on_turn.")
    return _Reading(s, log, log.before).reasons()


class _Reading:
    """The rewards of one log on the way to reasons."""

    def __init__(self, s: CompanyState, log: TurnLog, before: Book) -> None:
        self._s, self._log, self._before, self._after = s, log, before, book(s)
        self._left = {departure.account.id: departure for departure in log.departures}
        self._payments: dict[Key, list[Payment]] = {}
        self._amounts: dict[Key, list[list[float]]] = {}
        self._cents: dict[Key, int] = {}
        accounts = before.accounts.keys() | self._after.accounts.keys()
        self._changed = {i for i in accounts if _state(before.accounts.get(i)) != _state(self._after.accounts.get(i))}

    def reasons(self) -> list[RewardReason]:
        for fields in self._log.payments:
            self._take(Payment(*fields))
        change = [sum(after[i] - before[i] for before, after in self._log.moved) for i in range(len(KPI_NAMES))]
        self._share_value(change[VALUE])
        self._share_deals(change[DEALS])
        if change[EXPANSION]:
            grown = [i for i, line in self._after.accounts.items() if self._grew(i, line)]
            self._add(("account", grown[0]) if len(grown) == 1 else ("expansion", -1), EXPANSION, change[EXPANSION])
        for i in PLAIN:
            if change[i]:
                self._add((KPI_NAMES[i], -1), i, change[i])
        found = [self._reason(key, rows) for key, rows in self._amounts.items()]
        return sorted((reason for reason in found if reason.amounts), key=lambda reason: -reason.size)

    def _grew(self, i: int, line: Line) -> bool:
        return i in self._before.accounts and line.expanded > self._before.accounts[i].expanded and i in self._changed

    def _take(self, payment: Payment) -> None:
        key = self._key(payment)
        self._payments.setdefault(key, []).append(payment)
        rows = self._rows(key)
        for row, value in zip(rows, payment.row, strict=True):
            row[payment.part] += payment.scale * value

    def _key(self, payment: Payment) -> Key:
        about = payment.about
        if isinstance(about, Account) and PARTS[payment.part] in ("stage", "penalty"):
            if about.id in self._changed:
                return "account", about.id
            if payment.kind in ("vested", "stale lead"):
                return payment.kind, -1
            return "account", about.id
        return payment.kind, -1

    def _rows(self, key: Key) -> list[list[float]]:
        return self._amounts.setdefault(key, [[0.0] * len(PARTS) for _ in ORDER])

    def _add(self, key: Key, kpi: int, change: float) -> None:
        """Credit a share in the change of a KPI."""
        for row, weight in zip(self._rows(key), KPI_WEIGHTS[KPI_NAMES[kpi]], strict=True):
            row[KPI] += weight * change

    def _share_value(self, change: float) -> None:
        """Divide the change of the company's value: by account, by kind of payment; cents of rounding go to the largest share."""
        if not change:
            return
        before, after = self._before, self._after
        cents: dict[Key, int] = {}
        for i in before.accounts.keys() | after.accounts.keys():
            old, new = before.accounts.get(i), after.accounts.get(i)
            grown = (new.worth if new else 0) - (old.worth if old else 0)
            cents[self._holder(i)] = cents.get(self._holder(i), 0) + grown
        for account, paid in self._log.booked:
            cents[self._holder(account.id)] = cents.get(self._holder(account.id), 0) + paid
        for kind in after.ledger:
            paid = after.ledger[kind] - before.ledger.get(kind, 0)
            if paid and kind not in ("subscriptions", "refunds"):
                cents["paid " + kind, -1] = paid
        rest = after.value - before.value - sum(cents.values())
        largest = max(cents, key=lambda key: abs(cents[key]), default=CONTRACTS)
        cents[largest] = cents.get(largest, 0) + rest
        self._cents |= cents
        for key, amount in cents.items():
            if amount:
                self._add(key, VALUE, amount / 1_000_000.0)

    def _share_deals(self, change: float) -> None:
        """Divide the change of the deals' progress by account."""
        if not change:
            return
        before, after = self._before.accounts, self._after.accounts
        for i in self._changed:
            old, new = before.get(i), after.get(i)
            if grown := (new.progress if new else 0.0) - (old.progress if old else 0.0):
                self._add(("account", i), DEALS, grown)

    def _holder(self, i: int) -> Key:
        return ("account", i) if i in self._changed else CONTRACTS

    def _reason(self, key: Key, rows: list[list[float]]) -> RewardReason:
        amounts = {role: tuple(row) for role, row in zip(ORDER, rows, strict=True) if any(row)}
        cause, text = self._said(key)
        return RewardReason(cause, text, key[1], amounts)

    def _said(self, key: Key) -> tuple[Cause, str]:
        """Subject and text of a cause."""
        kind, account = key
        if kind == "account":
            return Cause.DEAL, self._account(account)
        if key == CONTRACTS:
            return Cause.DEAL, self._contracts()
        if kind.startswith("paid "):
            return Cause.MONEY, _paid(kind.removeprefix("paid "), self._cents[key])
        if kind in KPI_NAMES or kind == "expansion":
            return self._figure(kind)
        return _payment(kind, self._payments[key])

    def _account(self, i: int) -> str:
        old, new = self._before.accounts.get(i), self._after.accounts.get(i)
        line = new or old
        assert line is not None  # an account that changed is in one of the books
        who, price = line.name, _dollars(line.price)
        if departure := self._left.get(i):
            if departure.after == Stage.LOST:
                neglected = any(payment.kind == "unworked lead" for payment in self._payments.get(("account", i), ()))
                return (
                    f"{who} was lost ({price}/mo): {LOSSES[departure.reason]}{', and no one worked on it' if neglected else ''}"
                )
            idle = (self._s.turn - departure.account.contact) // TURNS_PER_DAY
            taken = any(payment.kind == "clawback" for payment in self._payments.get(("account", i), ()))
            silent = f", {idle} days without contact" if idle > 1 else ""
            back = "; what it had paid in rewards is taken back" if taken else ""
            return f"{who} churned ({price}/mo): satisfaction {departure.account.sat:.0%}{silent}{back}"
        if old is None or new is None:
            return f"{who} arrived as a lead"
        if old.stage != new.stage:
            if new.stage == WON:
                tier = next((TIERS[a.tier] for a in self._s.accounts if a.id == i), TIERS[0]).replace("_", "-")
                return f"{who} signed a {tier} contract ({price}/mo)"
            return f"{who} {ADVANCED[Stage(new.stage)]} ({price}/mo)"
        if new.expanded > old.expanded and new.price > old.price:
            return f"{who} takes more and pays {price} a month instead of {_dollars(old.price)}"
        if new.price != old.price:
            return f"{who} asks for {price} a month instead of {_dollars(old.price)}"
        return f"{who} refused to take more"

    def _contracts(self) -> str:
        """What changed for customers who did not change themselves."""
        both = [i for i in self._before.accounts.keys() & self._after.accounts.keys() if i not in self._changed]
        lines = [(self._before.accounts[i], self._after.accounts[i]) for i in both if self._after.accounts[i].stage == WON]
        whom = lines[0][1].name if len(lines) == 1 else f"{len(lines)} customers"
        if not lines:
            return "rounding"
        old, new = (sum(pair[side].risk for pair in lines) / len(lines) for side in (0, 1))
        risk = f"the chance to leave in a night went from {old:.2%} to {new:.2%}"
        why = self._risks()
        return f"Expected payments of {whom} {_change(self._cents.get(CONTRACTS, 0))}: {risk}{f' ({why})' if why else ''}"

    def _risks(self) -> str:
        """What else than satisfaction and silence changed the customers' chance to leave."""
        found = []
        if bugs := self._after.bugs[0] - self._before.bugs[0]:
            found.append(_bugs(bugs, SEVERITIES[0]))
        if self._after.hazard != self._before.hazard:
            found.append(f"{self._after.hazard / self._before.hazard - 1:+.0%} by an event")
        return ", ".join(found)

    def _figure(self, kind: str) -> tuple[Cause, str]:
        """Text of a KPI that has one cause."""
        old, new = self._before, self._after
        if kind == "stability":
            bugs = [(n - m, cost) for m, n, cost in zip(old.bugs, new.bugs, BUG_COSTS, strict=True)]
            why = [(abs(n) * cost, _bugs(n, name)) for (n, cost), name in zip(bugs, SEVERITIES, strict=True) if n]
            for name, cost, change in (("technical debt", 0.25, new.debt - old.debt), ("load", 0.3, new.load - old.load)):
                if abs(cost * change) >= 0.005:
                    why.append((abs(cost * change), f"{'more' if change > 0 else 'less'} {name}"))
            told = ", ".join(text for _, text in sorted(why, reverse=True)) or "technical debt"
            return Cause.PRODUCT, f"Stability went from {old.stability:.1%} to {new.stability:.1%}: {told}"
        if kind == "reach":
            return Cause.MARKET, f"Visits a day went from {old.visits:,.0f} to {new.visits:,.0f}"
        if kind == "conversion":
            return Cause.MARKET, f"Sign-ups per visit went from {old.conversion:.2%} to {new.conversion:.2%}"
        if kind == "velocity":
            return Cause.TEAM, f"The team's velocity went from {old.velocity:.2f} to {new.velocity:.2f}"
        if kind == "okr":
            return Cause.TEAM, self._key_result()
        if kind == "satisfaction":
            count = sum(1 for line in new.accounts.values() if line.stage == WON)
            whom = f"of {count} customer{'s' if count > 1 else ''}" if count else "expected of the first customer"
            return Cause.DEAL, f"Mean satisfaction {whom} went from {old.satisfaction:.1%} to {new.satisfaction:.1%}"
        return Cause.DEAL, "Customers take more"

    def _key_result(self) -> str:
        old, new = self._before, self._after
        if new.focus < 0:
            return f"The focus {FOCI[old.focus]} ended, so that its key result ({old.okr:.0%}) no longer counts"
        if old.focus != new.focus:
            return f"The new focus {FOCI[new.focus]} begins at {new.okr:.0%} of its key result"
        return f"The key result of the focus {FOCI[new.focus]} went from {old.okr:.0%} to {new.okr:.0%}"


def _state(line: Line | None) -> tuple[int, int, int] | None:
    return (line.stage, line.price, line.expanded) if line is not None else None


def _payment(kind: str, payments: list[Payment]) -> tuple[Cause, str]:
    """Subject and text of payments of one kind that are about no changed account."""
    cause, text = TEXTS[kind]
    about = _listed(list(dict.fromkeys(_called(payment) for payment in payments)))
    if kind == "base" and payments[0].scale < BASE[0]:
        text += ", as the same one did before on this day"
    return cause, text.format(about=about)


def _called(payment: Payment) -> str:
    """The subject of a payment in the words of its text."""
    about = payment.about
    if isinstance(about, Account):
        return about.name
    if isinstance(about, Piece):
        return f"{KINDS[about.kind].replace('_', ' ')} on {PAINS[about.topic]}"
    return _role(about) if payment.kind in ("blocker cleared", "feature built on request") else about


def _paid(kind: str, cents: int) -> str:
    if kind in SPENT:
        return f"{SPENT[kind]}: {_dollars(abs(cents))}"
    return f"{_role(kind)} spent {_dollars(-cents)}"


def _bugs(count: int, severity: str) -> str:
    return f"{abs(count)} {severity} bug{'s' if abs(count) > 1 else ''} {'more' if count > 0 else 'fewer'}"


def _role(name: str) -> str:
    return name.upper() if name in ("ceo", "hr") else name.capitalize()


def _dollars(cents: float) -> str:
    return f"${cents / 100:,.0f}"


def _change(cents: int) -> str:
    return f"{'rose' if cents >= 0 else 'fell'} by {_dollars(abs(cents))}"


def _listed(names: list[str], most: int = 4) -> str:
    """Some names, and how many more."""
    shown = names if len(names) <= most + 1 else [*names[:most], f"{len(names) - most} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else ""
