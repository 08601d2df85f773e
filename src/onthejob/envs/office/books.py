"""The company's books at one moment: what a later moment is compared with, to say what changed its value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from onthejob.envs.office.company_state import WON, CompanyState
from onthejob.envs.office.market import DEAL_WEIGHT, churn_hazard, company_value, liabilities, okr_progress, retained_value


class Line(NamedTuple):
    """An account."""

    name: str
    stage: int
    price: int
    """Cents per month at list."""
    worth: int
    """Cents that it adds to the company's value: expected payments less expected refunds."""
    progress: float
    """What it adds to the KPI `deals`, in 1,000 dollars a month."""
    expanded: int
    sat: float
    risk: float
    """Chance of a customer that it leaves tonight, [0, 0.5], before its contract's protection; 0 for a lead."""


class Book(NamedTuple):
    """Figures of one moment; money in cents."""

    value: int
    ledger: Mapping[str, int]
    accounts: Mapping[int, Line]
    """By id."""
    bugs: tuple[int, int, int]
    """Critical, major, minor."""
    hazard: float
    """Factor of the market on the customers' chance to leave."""
    debt: float
    load: float
    stability: float
    visits: float
    conversion: float
    velocity: float
    satisfaction: float
    focus: int
    """Index into `FOCI` of the live focus; -1 without one."""
    okr: float
    """Progress of its key result."""


def book(s: CompanyState) -> Book:
    """The books of `s`, which keep nothing of it."""
    return Book(
        value=company_value(s),
        ledger=dict(s.ledger),
        accounts={
            a.id: Line(
                name=a.name,
                stage=a.stage,
                price=a.price,
                worth=retained_value(s, [a]) - liabilities(s, [a]),
                progress=DEAL_WEIGHT[a.stage] * a.price / 100_000.0,
                expanded=a.expanded,
                sat=a.sat,
                risk=churn_hazard(s, a) if a.stage == WON else 0.0,
            )
            for a in s.accounts
        },
        bugs=(s.bug_critical, s.bug_major, s.bug_minor),
        hazard=s.hazard,
        debt=s.debt,
        load=s.load,
        stability=s.stability,
        visits=sum(s.traffic),
        conversion=s.conversion,
        velocity=s.velocity,
        satisfaction=s.satisfaction(),
        focus=s.focus if s.focus_left > 0 else -1,
        okr=okr_progress(s) if s.focus_left > 0 else 0.0,
    )
