"""The economy: money, what an action achieves, whether a deal is signed, what the company is worth.

About twenty stocks and flows; each constant has its unit. Seed constants (campaign 500, ad 300, A/B test 200, contractor 1,000
dollars; the close coefficients; referral cooldown of 5 days) are kept where the seed names them; the others are calibrated
against the gates (`onthejob office gates`). What flows between two days is in `night`, how a company begins in `founding`.
"""

from __future__ import annotations

import math

from onthejob.envs.office.state import DEPARTMENTS, TURNS_PER_DAY, Account, Stage, State

PRICES = (70_000, 180_000, 450_000)
"""Cents per month at list, by size S, M, L."""
TIER_DISCOUNT = (1.0, 0.92, 0.85)
TIER_DIFFICULTY = (0.0, 0.25, 0.6)
"""Logits a longer commitment costs at closing."""
TIER_MONTHS = (1, 6, 12)
TIER_MULTIPLIER = (1.0, 2.0, 3.0)
"""Of the closing reward."""
BASE_CONVERSION = 0.02
"""Share of visitors who sign up, where nobody works on the funnel."""
WEEK = 7
CONTRACTOR_DAYS = 7
OKR_DAYS = 5


def pay(s: State, kind: str, cents: int) -> None:
    """Book a payment; cash always equals the sum of the ledger."""
    s.ledger[kind] = s.ledger.get(kind, 0) + cents
    s.cash += cents


def spend(s: State, department: str, dollars: int) -> bool:
    """Spend from a department's envelope; False when the envelope does not hold it."""
    cents = dollars * 100
    if s.envelopes[department] < cents:
        return False
    s.envelopes[department] -= cents
    pay(s, department, -cents)
    return True


def efficacy(s: State, role: str, tag: int) -> float:
    """Factor on what an action of `role` achieves, about 0.5 to 1.7: morale, alignment, focus, directive, blockers.

    Args:
        s: the company.
        role: who acts.
        tag: index into FOCI that the action serves, -1 when it serves none in particular.
    """
    e = (0.85 + 0.3 * s.morale) * (0.9 + 0.2 * s.alignment)
    if s.focus_left > 0 and tag >= 0:
        strength = 0.25 if s.day - s.tracked <= 2 else 0.12
        e *= 1.0 + (strength if tag == s.focus else -strength)
    if s.directive_left > 0 and s.directive_role == role:
        e *= 1.3
    if role in s.blockers:
        e *= 0.55
    return e


def touchpoints(s: State, pain: int) -> float:
    """Strength of published content for this pain: square root of aged quality, about 0 to 2."""
    day, total = s.day, 0.0
    for piece in s.pieces:
        if piece.left == 0 and not piece.vapor and piece.kind != 1:
            weight = (1.0, 0.0, 2.0, 0.9, 0.7)[piece.kind] * piece.quality * 0.97 ** (day - piece.day)
            total += weight if piece.topic == pain else 0.15 * weight
    return math.sqrt(total)


def close_logit(s: State, a: Account) -> float:
    """Log-odds that this account signs now.

    The seed's increments on the probability scale (0.1 a feature, 0.05 a touchpoint, 0.2 satisfaction, -0.15 an objection,
    0.1 stability) are used as log-odds times four, the slope of the logistic at one half. Features and touchpoints count by
    how well they match the account's pain.
    """
    others = sum(1 for shipped in s.feature_shipped if shipped >= 0)
    fit = s.fit(a.pain)
    logit = (
        -1.7
        + 0.4 * (3.0 * fit + min(3.0, 0.25 * others) - (0.25 if fit > 0 else 0.0))
        + 0.2 * 6.0 * touchpoints(s, a.pain)
        + 0.8 * (s.satisfaction() - 0.5)
        - 0.6 * a.objections
        + 1.6 * (s.stability - 0.6)
        + 1.2 * (a.quality - 0.5)
        + 0.7 * a.demo
        + 0.8 * a.warmth
        - TIER_DIFFICULTY[a.tier]
        - (0.0, 0.25, 0.6)[a.size]
        - 1.5 * s.competitor * (0.5 if s.intel > 0 else 1.0)
        + 2.0 * (efficacy(s, "sales", 0) - 1.0)
        + 0.012 * s.brand
    )
    if a.size == 2 and not a.approved:
        logit -= 1.0
    return logit


def close_probability(s: State, a: Account) -> float:
    """Chance in [0.05, 0.95] that this account signs now."""
    return min(0.95, max(0.05, 1.0 / (1.0 + math.exp(-close_logit(s, a)))))


def churn_hazard(s: State, a: Account) -> float:
    """Chance in [0, 0.5] that this customer leaves tonight, before its tier's protection."""
    gap = max(0.0, 0.75 - a.sat)
    silence = max(0, s.turn - a.contact) / TURNS_PER_DAY
    h = s.hazard * (0.002 + 0.055 * gap * gap) * (1.0 + 0.15 * s.bug_critical) * (1.0 + 0.02 * min(silence, 15.0))
    return min(0.5, h)


def deal_worth(a: Account) -> float:
    """What winning this account is worth, in cents, roughly: nine months of its price.

    Only the luck account uses it, where any figure is unbiased and a good one removes more noise.
    """
    return 9.0 * a.price * TIER_DISCOUNT[a.tier]


def retained_value(s: State) -> int:
    """Expected cents that today's contracts still pay within twelve months, under today's hazard."""
    total = 0.0
    for a in s.accounts:
        if a.stage != Stage.WON:
            continue
        survive = (1.0 - churn_hazard(s, a)) ** 30
        months = TIER_MONTHS[a.tier]
        paid = max(0, (a.paid_until - s.day) // 30)
        alive = survive ** (1.0 if months == 1 else 0.5)
        due = 12 - min(paid, 12)
        total += a.price * TIER_DISCOUNT[a.tier] * (alive * (1.0 - alive**due) / (1.0 - alive) if alive < 1.0 else due)
    return int(total)


def liabilities(s: State) -> int:
    """Cents owed: wages of the running week and refunds expected from prepaid contracts."""
    refunds = sum(
        a.price * TIER_DISCOUNT[a.tier] * max(0, a.paid_until - s.day) / 30.0 * min(0.5, 30.0 * churn_hazard(s, a)) * 0.5
        for a in s.accounts
        if a.stage == Stage.WON and a.tier > 0
    )
    return int(refunds) + s.payroll * (s.day % WEEK)


def company_value(s: State) -> int:
    """Cash + 12-month expected value of retained contracts - liabilities, in cents: the objective that rewards agree with."""
    return s.cash + retained_value(s) - liabilities(s)


def measures(s: State) -> list[float]:
    """What key results are measured on: deals won, features shipped, mean satisfaction."""
    return [float(s.won), float(sum(1 for d in s.feature_shipped if d >= 0)), s.satisfaction()]


def okr_progress(s: State) -> float:
    """Share in [0, 1] of the live key result that is reached: 2 deals, 1 feature, or +0.06 satisfaction in five days."""
    if s.focus < 0 or not s.okr_base:
        return 0.0
    gain = measures(s)[s.focus] - s.okr_base[s.focus]
    return max(0.0, min(1.0, gain / (2.0, 1.0, 0.06)[s.focus]))


def allocate(s: State, department: str, cents: int) -> bool:
    """Move what the board released into a department's envelope; False when there is not that much."""
    if department not in DEPARTMENTS or cents <= 0 or s.board_pool < cents:
        return False
    s.board_pool -= cents
    s.envelopes[department] += cents
    return True
