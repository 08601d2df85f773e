"""What flows between two working days: visits, leads, churn and renewals, bugs, drift of the team, money, events.

Rewards are not decided here: the night reports what happened to the `TurnLog`.
"""

from __future__ import annotations

from onthejob.envs.office import events
from onthejob.envs.office.company_state import BLOCKABLE, FOCI, SEGMENTS, TURNS_PER_DAY, WON, Account, CompanyState, Stage
from onthejob.envs.office.handlers import READ_FOR
from onthejob.envs.office.luck import Sub, draw, poisson, poisson_mean
from onthejob.envs.office.market import (
    BASE_CONVERSION,
    TIER_DISCOUNT,
    TIER_MONTHS,
    TIER_MULTIPLIER,
    TIER_VESTS,
    VESTING_DAYS,
    churn_hazard,
    deal_worth,
    okr_progress,
    pay,
    spend,
    touchpoints,
)
from onthejob.envs.office.new_company import FIRST_ID, INQUIRY_SLOT, arrive, theme_on
from onthejob.envs.office.reward_parts import NO_PIPELINE_WORK, ORDER, STALE_LEAD, Loss, TurnLog

SIGNUP_TO_LEAD = 0.009
"""Share of sign-ups that become leads to be called."""
LEAD_WORTH = 250_000.0
"""Cents an average lead is worth, for the luck account only."""
MOST_A_DAY = 8
"""Leads that may arrive in one night."""
MOST_OPEN = 16
"""Open accounts the company can hold; further arrivals turn away."""
STALE_DAYS, LOST_DAYS = 5, 10
_DEV = ORDER.index("dev")


def night(s: CompanyState, key: int, log: TurnLog, event_rate: float) -> None:
    """Everything that flows between two working days. Called when the turn counter has reached the next morning."""
    _traffic(s)
    _arrivals(s, key, log)
    _accounts(s, key, log)
    _product(s, key)
    _people(s, key, log)
    _money(s)
    fired = events.tick(s, key, event_rate)
    for name in fired:
        log.note(f"event {name}")
    s.daily.clear()
    s.collab_day.clear()
    _forget(s)


def _forget(s: CompanyState) -> None:
    """Drop what no rule and no prompt can ask for again; the limits by number stay where they are."""
    for role, box in s.inbox.items():
        s.inbox[role] = [message for message in box if s.turn - message[0] <= READ_FOR]
    pieces = {3000 + piece.id for piece in s.pieces}
    # Of what was paid, an approval and a release cannot come again, a published topic can, a piece until it is forgotten.
    s.collab_seen = [pair for pair in s.collab_seen if pair >> 6 in pieces or (pair >> 3) & 7 == _DEV]


def _traffic(s: CompanyState) -> None:
    """Visits of the day: base, brand, campaigns on their way, ads, content and word of mouth."""
    due = [c for c in s.campaigns if c[0] <= s.day]
    s.campaigns = [c for c in s.campaigns if c[0] > s.day]
    for _, segment, visits, _theme in due:
        s.adstock[int(segment)] += visits
    factor = 0.75 + 0.025 * s.brand * (1.0 - 0.3 * s.competitor)
    words = 1.0 + 0.001 * s.nps() * min(len(s.customers()), 10) / 10.0
    for i, base in enumerate(s.segment_base):
        if s.pivot_segment >= 0 and s.pivot_days <= 4:
            base = 0.65 * base + (0.35 * sum(s.segment_base) if i == s.pivot_segment else 0.0)
        s.traffic[i] = max(
            0.0,
            base * factor * words
            + s.adstock[i]
            + s.content_stock / len(SEGMENTS)
            + (260.0 if s.ad_days > 0 and s.ad_segment == i else 0.0),
        )
        s.adstock[i] *= 0.79
    s.content_stock *= 0.96
    s.brand = max(0.0, s.brand * 0.97)
    s.competitor = min(1.0, s.competitor + 0.012)
    s.intel = max(0, s.intel - 1)
    s.ad_days = max(0, s.ad_days - 1)
    s.pivot_days = max(0, s.pivot_days - 1)
    total = sum(s.traffic)
    s.load = max(0.0, s.load - 0.02)
    capacity = 2200.0
    if total > capacity:  # hosting above the base capacity is bought from Dev's envelope, 100 dollars per 1,000 visits
        need = int((total - capacity) / 10.0)
        if not spend(s, "dev", need):
            s.load = min(1.0, s.load + 0.08)
    s.conversion = max(0.008, s.conversion + 0.03 * (BASE_CONVERSION * (0.7 + 0.4 * s.stability) - s.conversion))


def _arrivals(s: CompanyState, key: int, log: TurnLog) -> None:
    """Visitors who become leads tonight."""
    speed = 0.6 + 0.5 * s.stability
    mean = sum(s.traffic) * s.conversion * SIGNUP_TO_LEAD * speed
    count = poisson(draw(key, Sub.ARRIVALS, 0, s.day), mean, MOST_A_DAY)
    open_leads = len(s.leads())
    theme = theme_on(s, s.day)
    room = min(MOST_A_DAY, max(0, MOST_OPEN - open_leads))
    s.luck -= poisson_mean(mean, room) * LEAD_WORTH
    for slot in range(min(count, room)):
        log.stage("lead", arrive(s, key, slot, theme=theme))
        s.luck += LEAD_WORTH
    if s.inquiry:
        s.inquiry -= 1
        log.stage("lead", arrive(s, key, INQUIRY_SLOT, large=True))


def _accounts(s: CompanyState, key: int, log: TurnLog) -> None:
    """Leads go stale, customers grow happier or leave, contracts renew, closing rewards vest."""
    keep: list[Account] = []
    stability, docs = s.stability, s.docs_level
    product_docs = touchpoints(s, -1)
    for a in s.accounts:
        if a.stage < WON:
            idle = (s.turn - a.contact) // TURNS_PER_DAY
            a.warmth *= 0.93
            if idle >= LOST_DAYS or s.day >= a.deadline:
                s.lost += 1
                log.departure(a, Stage.LOST, Loss.SILENCE if idle >= LOST_DAYS else Loss.DEADLINE)
                if a.stage == Stage.LEAD:  # no one ever worked on it, so it was not worth its credit
                    log.penalty("sales", STALE_LEAD, "unworked lead", a)
                    if a.id >= FIRST_ID:  # those of the first morning have paid none
                        log.stage("lead", a, -1.0)
                else:
                    log.stage("closed_lost", a)
                    log.repay(a)
                continue
            if idle >= STALE_DAYS:
                log.penalty("sales", STALE_LEAD, "stale lead", a)
            keep.append(a)
            continue
        silence = (s.turn - a.contact) / TURNS_PER_DAY
        target = (
            0.18
            + 0.5 * stability
            + 0.25 * s.fit(a.pain)
            + 0.12 * docs
            + 0.05 * min(product_docs, 1.0)
            - 0.01 * min(silence, 10.0)
        )
        a.sat += 0.12 * (min(1.0, target) - a.sat)
        hazard = churn_hazard(s, a) * (1.0, 0.5, 0.35)[a.tier]
        leaves = draw(key, Sub.CHURN, a.id, s.day) < hazard
        s.luck -= (leaves - hazard) * deal_worth(a)
        if leaves:
            refund = int(a.price * TIER_DISCOUNT[a.tier] * max(0, a.paid_until - s.day) / 30.0 * 0.5) if a.tier else 0
            pay(s, "refunds", -refund)
            log.book(a, -refund)
            log.stage("churned", a)
            if a.rewarded and a.won_day >= 0:
                log.clawback(a, TIER_MULTIPLIER[a.tier] * (1.0 - a.vest_left))
                log.repay(a)
            s.churned += 1
            log.departure(a, Stage.CHURNED, Loss.UNHAPPY)
            s.morale = max(0.0, s.morale - 0.015)
            continue
        if a.vest_left > 0.0:
            part = min(a.vest_left, TIER_VESTS[a.tier] / VESTING_DAYS[a.tier])
            a.vest_left -= part
            log.vest(a, TIER_MULTIPLIER[a.tier] * part)
        if a.paid_until <= s.day:
            months = TIER_MONTHS[a.tier]
            fee = int(a.price * TIER_DISCOUNT[a.tier] * months)
            pay(s, "subscriptions", fee)
            log.book(a, fee)
            a.paid_until += 30 * months
        keep.append(a)
    s.accounts = keep
    s.base_sat += 0.02 * (0.3 + 0.4 * stability - s.base_sat)
    if s.updated_day != s.day - 1:
        log.penalty("sales", NO_PIPELINE_WORK, "idle pipeline")


def _product(s: CompanyState, key: int) -> None:
    """Bugs appear with debt, load and use; debt and documentation age."""
    users = len(s.customers())
    mean = 0.06 + 0.35 * s.debt + 0.012 * users + 0.5 * s.load
    for n in range(poisson(draw(key, Sub.BUGS, 0, s.day), mean, 4)):
        kind = draw(key, Sub.BUGS, 1 + n, s.day)
        if kind < 0.15:
            s.bug_critical += 1
        elif kind < 0.55:
            s.bug_major += 1
        else:
            s.bug_minor += 1
    s.debt = min(1.0, s.debt + 0.006)
    s.docs_level *= 0.96


def _people(s: CompanyState, key: int, log: TurnLog) -> None:
    """Velocity, morale and alignment drift; blockers appear; OKRs and contracts run out."""
    floor = 0.65
    s.velocity += 0.09 * (floor - s.velocity) if s.velocity > floor else 0.03 * (floor - s.velocity)
    s.morale += 0.04 * (0.45 - s.morale)
    s.alignment *= 0.93
    for role in list(s.contractor_days):
        s.contractor_days[role] -= 1
        if s.contractor_days[role] <= 0:
            del s.contractor_days[role]
    if s.morale < 0.25 and draw(key, Sub.ATTRITION, 0, s.day) < 0.3:
        s.velocity = max(0.4, s.velocity - 0.15)
    hazard = 0.09 + 0.12 * s.debt + 0.06 * (1.0 - s.alignment)
    for index, role in enumerate(BLOCKABLE):
        if role not in s.blockers and draw(key, Sub.BLOCKER, index, s.day) < hazard:
            s.blockers[role] = s.day
    if s.focus_left > 0:
        s.focus_left -= 1
        if not s.okr_met and okr_progress(s) >= 1.0:
            s.okr_met = True
            log.effect("key result reached", FOCI[s.focus])
            s.morale = min(1.0, s.morale + 0.04)


def _money(s: CompanyState) -> None:
    pay(s, "payroll", -s.payroll)
    pay(s, "hosting", -int(200 * len(s.customers()) + sum(s.traffic)))
    s.board_pool += s.board_rate
    if s.cash < 0:
        s.done = "bankrupt"
