"""Invariants of the company: what must hold on every morning, with any players and whatever they write."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from onthejob.envs.office.company_state import CompanyState, Stage
from onthejob.envs.office.market import churn_hazard, close_probability, efficacy
from onthejob.envs.office.roles import TRAINED_ROLES

SHARES = ("alignment", "morale", "debt", "docs_level", "load", "competitor", "conversion", "base_sat", "stability")
STOCKS = ("content_stock", "brand", "velocity", "hazard", "board_pool", "bug_critical", "bug_major", "bug_minor", "won", "lost")


def audit(s: CompanyState) -> Iterator[str]:
    """What is wrong with the company, in plain sentences; nothing when all is well."""
    if s.cash != sum(s.ledger.values()):
        yield f"cash is {s.cash} cents, the ledger says {sum(s.ledger.values())}"
    for name in SHARES:
        value = getattr(s, name)
        if not 0.0 <= value <= 1.0:
            yield f"{name} is {value!r}, outside [0, 1]"
    for name in STOCKS:
        value = getattr(s, name)
        if not (math.isfinite(value) and value >= 0):
            yield f"{name} is {value!r}, not a number >= 0"
    for name, cents in s.envelopes.items():
        if cents < 0:
            yield f"the envelope of {name} holds {cents} cents"
    for visits in s.traffic:
        if not (math.isfinite(visits) and visits >= 0.0):
            yield f"traffic is {visits!r}"
    for role in TRAINED_ROLES:
        if not 0.0 < efficacy(s, str(role), 0) < 4.0:
            yield f"the efficacy of {role} is {efficacy(s, str(role), 0)!r}"
    yield from _accounts(s)


def _accounts(s: CompanyState) -> Iterator[str]:
    ids = [a.id for a in s.accounts]
    if len(set(ids)) != len(ids):
        yield "two accounts have the same id"
    for a in s.accounts:
        if a.stage > Stage.WON:
            yield f"account {a.id} stands at stage {a.stage} and is still listed"
        rates = {
            "closing": close_probability(s, a),
            "churn": churn_hazard(s, a),
            "sat": a.sat,
            "quality": a.quality,
            "warmth": a.warmth,
        }
        for name, value in rates.items():
            if not 0.0 <= value <= 1.0:
                yield f"{name} of account {a.id} is {value!r}, outside [0, 1]"


def moved_back(before: Mapping[int, int], s: CompanyState) -> Iterator[str]:
    """Accounts whose stage is lower than it was; `before` is id -> stage."""
    for a in s.accounts:
        if a.stage < before.get(a.id, 0):
            yield f"account {a.id} moved back from stage {before[a.id]} to {a.stage}"
