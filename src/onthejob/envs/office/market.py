"""The economy: money, what an action achieves, whether a deal is signed, what the company is worth.

About twenty stocks and flows; each constant has its unit. Seed constants (campaign 500, ad 300, A/B test 200, contractor 1,000
dollars; the close coefficients; referral cooldown of 5 days) are kept where the seed names them; the others are calibrated
against the gates (`onthejob office gates`). What flows between two days is in `overnight`, how a company begins in `new_company`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from onthejob.envs.office.company_state import DEMO, DEPARTMENTS, PAINS, TURNS_PER_DAY, WON, Account, CompanyState

PRICES = (70_000, 180_000, 450_000)
"""Cents per month at list, by size S, M, L."""
TIER_DISCOUNT = (1.0, 0.92, 0.85)
TIER_DIFFICULTY = (0.0, 0.25, 0.6)
"""Logits a longer commitment costs at closing."""
TIER_MONTHS = (1, 6, 12)
TIER_MULTIPLIER = (1.0, 2.0, 3.0)
"""Of the closing reward."""
TIER_VESTS = (2 / 3, 5 / 6, 8 / 9)
"""Share of it that is paid while the customer lives, so that every signature pays the same third of a monthly contract's."""
VESTING_DAYS = (10, 30, 90)
"""Days over which that share is paid. Were it ten for all, long contracts would pay Sales three times as much for less value."""
LEAD_MONTHS = (1.3, 4.0, 4.0, 4.5, 2.0)
"""What an open lead of each stage is worth at the end of a branch, in months of its price."""
DEAL_WEIGHT = (0.02, 0.1, 0.2, 0.35, 0.25, 1.0)
"""Stage -> share of a deal's price that counts as progress; a paying customer counts fully."""
BASE_CONVERSION = 0.02
"""Share of visitors who sign up, where no one works on the funnel."""
CONTRACTOR_DAYS = 7
OKR_DAYS = 5


def pay(s: CompanyState, kind: str, cents: int) -> None:
    """Book a payment; cash always equals the sum of the ledger."""
    s.ledger[kind] = s.ledger.get(kind, 0) + cents
    s.cash += cents


def spend(s: CompanyState, department: str, dollars: int) -> bool:
    """Spend from a department's envelope; False when the envelope does not hold it."""
    cents = dollars * 100
    if s.envelopes[department] < cents:
        return False
    s.envelopes[department] -= cents
    pay(s, department, -cents)
    return True


def efficacy(s: CompanyState, role: str, tag: int) -> float:
    """Factor on what an action of `role` achieves, about 0.5 to 1.7: morale, alignment, focus, directive, blockers.

    `tag` is the index into FOCI that the action serves, -1 when it serves none in particular.
    """
    e = (0.75 + 0.5 * s.morale) * (0.82 + 0.36 * s.alignment)
    if s.focus_left > 0 and tag >= 0:
        strength = 0.35 if s.day - s.tracked <= 2 else 0.15
        e *= 1.0 + (strength if tag == s.focus else -strength)
    if s.directive_left > 0 and s.directive_role == role:
        e *= 1.4
    if role in s.blockers:
        e *= 0.55
    return e


def touchpoints(s: CompanyState, pain: int) -> float:
    """Strength of published content for this pain: square root of aged quality, about 0 to 2."""
    total = 0.0
    for topic, weight in _published(s):
        total += weight if topic == pain else 0.15 * weight
    return math.sqrt(total)


def evidence(s: CompanyState) -> list[float]:
    """`touchpoints` of every pain."""
    totals = [0.0] * len(PAINS)
    for topic, weight in _published(s):
        own, rest = totals[topic] + weight, 0.15 * weight
        totals = [total + rest for total in totals]
        totals[topic] = own
    return [math.sqrt(total) for total in totals]


def _published(s: CompanyState) -> list[tuple[int, float]]:
    """(topic, aged quality) of the pieces that convince visitors."""
    day, found = s.day, []
    for piece in s.pieces:
        if piece.left == 0 and not piece.vapor and piece.kind != 1:
            weight = (1.0, 0.0, 2.0, 0.9, 0.7)[piece.kind] * piece.quality * 0.97 ** (day - piece.day)
            found.append((piece.topic, weight))
    return found


def close_logit(s: CompanyState, a: Account) -> float:
    """Log-odds that this account signs now.

    The seed's increments on the probability scale (0.1 a feature, 0.05 a touchpoint, 0.2 satisfaction, -0.15 an objection,
    0.1 stability) are used as log-odds times four, the slope of the logistic at one half. Features and touchpoints count by
    how well they match the account's pain.
    """
    others = sum(1 for shipped in s.feature_shipped if shipped >= 0)
    fit = s.fit(a.pain)
    logit = (
        -2.2
        + 0.4 * (3.0 * fit + min(3.0, 0.25 * others) - (0.25 if fit > 0 else 0.0))
        + 0.2 * 8.0 * touchpoints(s, a.pain)
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
        + 0.02 * s.brand
    )
    if a.size == 2 and not a.approved:
        logit -= 1.6
    return logit


def close_probability(s: CompanyState, a: Account) -> float:
    """Chance in [0.05, 0.95] that this account signs now."""
    return min(0.95, max(0.05, 1.0 / (1.0 + math.exp(-close_logit(s, a)))))


def churn_hazard(s: CompanyState, a: Account) -> float:
    """Chance in [0, 0.5] that this customer leaves tonight, before its tier's protection."""
    gap = 0.75 - a.sat
    if gap < 0.0:
        gap = 0.0
    silence = (s.turn - a.contact) / TURNS_PER_DAY
    if silence < 0.0:
        silence = 0.0
    elif silence > 15.0:
        silence = 15.0
    h = s.hazard * (0.002 + 0.055 * gap * gap) * (1.0 + 0.15 * s.bug_critical) * (1.0 + 0.02 * silence)
    return h if h < 0.5 else 0.5


def deal_worth(a: Account) -> float:
    """What winning this account is worth, in cents, roughly: nine months of its price.

    Only the luck account uses it, where any figure is unbiased and a good one removes more noise.
    """
    return 9.0 * a.price * TIER_DISCOUNT[a.tier]


def retained_value(s: CompanyState, accounts: Sequence[Account] | None = None) -> int:
    """Expected cents that the contracts of `accounts` (default: all) still pay within twelve months, under today's hazard."""
    day, total = s.day, 0.0
    for a in s.accounts if accounts is None else accounts:
        if a.stage != WON:
            continue
        survive = (1.0 - churn_hazard(s, a)) ** 30
        months = TIER_MONTHS[a.tier]
        paid = (a.paid_until - day) // 30
        alive = survive if months == 1 else survive**0.5
        due = 12 if paid <= 0 else max(0, 12 - paid)
        total += a.price * TIER_DISCOUNT[a.tier] * (alive * (1.0 - alive**due) / (1.0 - alive) if alive < 1.0 else due)
    return int(total)


def pipeline_value(s: CompanyState) -> int:
    """Cents a month at list of the open deals: leads from the demo on. The pipeline of views, metrics and viewer."""
    return sum([a.price for a in s.accounts if DEMO <= a.stage < WON])


def lead_value(s: CompanyState) -> int:
    """Expected cents that the open leads will still bring, by stage and price; 0 when the episode is over.

    Fitted on branches: what a branch ends with less at signing, it ends with more of in open leads.
    """
    if s.done:
        return 0
    return int(sum(a.price * LEAD_MONTHS[a.stage] for a in s.leads()))


def liabilities(s: CompanyState, accounts: Sequence[Account] | None = None) -> int:
    """Cents owed to `accounts` (default: all): refunds expected from prepaid contracts. Wages are paid every night."""
    day = s.day
    refunds = sum(
        a.price * TIER_DISCOUNT[a.tier] * max(0, a.paid_until - day) / 30.0 * min(0.5, 30.0 * churn_hazard(s, a)) * 0.5
        for a in (s.accounts if accounts is None else accounts)
        if a.stage == WON and a.tier > 0
    )
    return int(refunds)


def company_value(s: CompanyState) -> int:
    """Cash + 12-month expected value of retained contracts - liabilities, in cents: the objective that rewards agree with."""
    return s.cash + retained_value(s) - liabilities(s)


def prospects(s: CompanyState) -> float:
    """Cents: company value and the value of open leads, less what chance contributed. Its change is a branch's outcome."""
    return company_value(s) + lead_value(s) - s.luck


MEASURES: tuple[Callable[[CompanyState], float], ...] = (
    lambda s: float(s.won),
    lambda s: float(sum([1 for day in s.feature_shipped if day >= 0])),
    CompanyState.satisfaction,
)
"""Focus -> what its key result is measured on: deals won, features shipped, mean satisfaction."""


def measures(s: CompanyState) -> list[float]:
    """All measures, in the order of `FOCI`."""
    return [measure(s) for measure in MEASURES]


def okr_progress(s: CompanyState) -> float:
    """Share in [0, 1] of the live key result that is reached: 2 deals, 1 feature, or +0.06 satisfaction in five days."""
    if s.focus < 0 or not s.okr_base:
        return 0.0
    gain = MEASURES[s.focus](s) - s.okr_base[s.focus]
    return max(0.0, min(1.0, gain / (2.0, 1.0, 0.06)[s.focus]))


def allocate(s: CompanyState, department: str, cents: int) -> bool:
    """Move what the board released into a department's envelope; False when there is not that much."""
    if department not in DEPARTMENTS or cents <= 0 or s.board_pool < cents:
        return False
    s.board_pool -= cents
    s.envelopes[department] += cents
    return True
