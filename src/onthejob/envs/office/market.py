"""The economy: how a company starts, what flows every night, and what it is worth.

About twenty stocks and flows; each constant has its unit. Seed constants (campaign 500, ad 300, A/B test 200, contractor 1,000
dollars; the close coefficients; referral cooldown of 5 days) are kept where the seed names them; the others are calibrated against
the gates (`onthejob office gates`). Rewards are not decided here: the night reports what happened to the `TurnLog`.
"""

from __future__ import annotations

import math

from onthejob.envs.office import events
from onthejob.envs.office.luck import Sub, choose, draw, mix, poisson
from onthejob.envs.office.reward import TurnLog
from onthejob.envs.office.scenarios import Scenario
from onthejob.envs.office.state import BLOCKABLE, CATALOGUE, DEPARTMENTS, PAINS, SEGMENTS, TURNS_PER_DAY, Account, Stage, State

NAMES = (
    "Acme", "Bolt", "Coda", "Dune", "Echo", "Flux", "Gale", "Hive", "Iris", "Juno", "Kite", "Luma", "Mesa", "Nova", "Opal", "Pine",
    "Quill", "Reef", "Sage", "Tide", "Unit", "Vega", "Wave", "Yard", "Zest", "Apex", "Brio", "Cove", "Dawn", "Elm", "Fern", "Glow",
    "Hub", "Ivy", "Jade", "Knot", "Lark", "Mint", "Node", "Oak", "Peak", "Rune", "Star", "Tern", "Vale", "Wren", "Zinc", "Arch",
)
PRICES = (70_000, 180_000, 450_000)
"""Cents per month at list, by size S, M, L."""
SIZE_WEIGHTS = (0.5, 0.34, 0.16)
MEAN_PRICE = sum(price * weight for price, weight in zip(PRICES, SIZE_WEIGHTS, strict=True))
TIER_DISCOUNT = (1.0, 0.92, 0.85)
TIER_DIFFICULTY = (0.0, 0.25, 0.6)
"""Logits a longer commitment costs at closing."""
TIER_MONTHS = (1, 6, 12)
TIER_MULTIPLIER = (1.0, 2.0, 3.0)
SIGNUP_TO_LEAD = 0.009
"""Share of sign-ups that become leads somebody should call."""
BASE_CONVERSION = 0.02
LEAD_WORTH = 250_000.0
"""Cents an average lead is worth, for the luck account only."""
ADVANCES = ("qualified", "demo", "proposal")
"""Stage rewards that a deal has been paid when it stands at stage 1, 2, 3 or beyond."""
STALE_DAYS, LOST_DAYS = 5, 10
WEEK = 7
CONTRACTOR_DAYS = 7
OKR_DAYS = 5


def found(scenario: Scenario, seed: int, days: int = 30) -> State:
    """The company on its first morning."""
    s = State()
    key = mix(seed, 0)
    s.scenario, s.seed, s.days = scenario.name, seed, days
    s.payroll = scenario.payroll * 100
    s.board_rate = scenario.board_rate * 100
    s.board_pool = 3 * s.board_rate
    s.envelopes = {"marketing": 100_000, "hr": 0, "dev": 50_000}
    pay(s, "capital", scenario.cash * 100)
    s.segment_base = [scenario.traffic * share for share in scenario.segment_mix]
    s.traffic = list(s.segment_base)
    s.demand = [
        [math.exp(1.3 * (2.0 * draw(key, Sub.DEMAND, segment * 8 + pain, 0) - 1.0) * 1.7) for pain in range(len(PAINS))]
        for segment in range(len(SEGMENTS))
    ]
    s.adstock = [0.0] * len(SEGMENTS)
    s.novelty = [-99] * len(PAINS)
    s.brand = 10.0
    s.conversion = BASE_CONVERSION
    s.competitor = scenario.competitor
    s.researched = [-1] * len(SEGMENTS)
    s.hazard = scenario.hazard
    s.feature_left = [spec.effort for spec in CATALOGUE]
    s.feature_reviewed = [False] * len(CATALOGUE)
    s.feature_shipped = [-1] * len(CATALOGUE)
    s.bug_critical, s.bug_major, s.bug_minor = (scenario.bugs[k] for k in ("critical", "major", "minor"))
    s.debt = scenario.debt
    s.base_sat = scenario.satisfaction
    s.schedule = [
        [event.day90 if days == 90 and event.day90 is not None else max(1, math.ceil(event.day * days / 30)), event.kind]
        for event in scenario.schedule
    ]
    for slot in range(scenario.customers):
        account = _arrive(s, key, slot)
        account.stage, account.known, account.sat = int(Stage.WON), True, min(1.0, max(0.05, scenario.satisfaction + 0.2 * (account.quality - 0.5)))
        account.size = min(account.size, 1)
        account.price = PRICES[account.size]
        account.won_day, account.paid_until, account.vest_left, account.rewarded = -30, int(30 * account.quality), 0.0, True
    for slot in range(scenario.customers, scenario.customers + scenario.leads):
        _arrive(s, key, slot)
    s.start_mrr = s.mrr()
    return s


def _arrive(s: State, key: int, slot: int, *, large: bool = False, referred: bool = False, theme: int = -1) -> Account:
    """A new lead. Its traits are keyed by (day, slot): the same in every branch of the same luck."""
    identity = s.day * 16 + slot
    quality, ready = draw(key, Sub.QUALITY, identity, 0), 0.0
    weights = [base + stock for base, stock in zip(s.segment_base, s.adstock, strict=True)]
    segment = choose(draw(key, Sub.SEGMENT, identity, 0), [max(w, 1.0) for w in weights])
    wants = s.demand[segment]
    if theme >= 0:  # a campaign draws those who feel its theme, and those who feel it most when the theme was researched
        # or the product already serves it
        if theme == s.researched[segment] or s.fit(theme) >= 1.0:
            quality = 0.3 + 0.7 * quality
            ready = 0.2
        wants = [w * (3.0 if pain == theme else 1.0) for pain, w in enumerate(wants)]
    pain = choose(draw(key, Sub.PAIN, identity, 0), wants)
    size = 2 if large else choose(draw(key, Sub.SIZE, identity, 0), SIZE_WEIGHTS)
    if large or referred:
        quality = 0.5 + 0.5 * quality
    taken = {a.name for a in s.accounts}
    start = mix(s.seed, Sub.NAME) + s.names_used
    name = next((NAMES[(start + i) % len(NAMES)] for i in range(len(NAMES)) if NAMES[(start + i) % len(NAMES)] not in taken), f"Co{identity}")
    s.names_used += 1
    account = Account(
        False, s.day, s.turn, s.day + 9 + int(9 * draw(key, Sub.URGENCY, identity, 0)), 0.0, 0, 0, identity, False, name, 0, 0, pain, PRICES[size], quality, False, 0.5, segment, size,
        int(Stage.LEAD), 0, 0, 1.0, 0.25 if referred else ready, -1,
    )
    s.accounts.append(account)
    return account


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
    s.spent += cents
    pay(s, department, -cents)
    return True


def efficacy(s: State, role: str, tag: int) -> float:
    """Factor on what an action of `role` achieves, about 0.5 to 1.7: morale, alignment, focus, directive, blockers.

    Args:
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

    The seed's increments on the probability scale (0.1 a feature, 0.05 a touchpoint, 0.2 satisfaction, -0.15 an objection, 0.1
    stability) are used as log-odds times four, the slope of the logistic at one half. Features and touchpoints count by how well they
    match the account's pain.
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
    """What winning this account is worth, in cents, roughly: nine months of its price. Only the luck account uses it, where any figure
    is unbiased and a good one removes more noise."""
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
    """Cash + 12-month expected value of retained contracts - liabilities, in cents. The objective that rewards must agree with."""
    return s.cash + retained_value(s) - liabilities(s)


def night(s: State, key: int, log: TurnLog, event_rate: float) -> None:
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


def _traffic(s: State) -> None:
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
        s.traffic[i] = max(0.0, base * factor * words + s.adstock[i] + s.content_stock / len(SEGMENTS) + (260.0 if s.ad_days > 0 and s.ad_segment == i else 0.0))
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


def _arrivals(s: State, key: int, log: TurnLog) -> None:
    """Visitors who become leads tonight."""
    speed = 0.6 + 0.5 * s.stability
    mean = sum(s.traffic) * s.conversion * SIGNUP_TO_LEAD * speed
    count = poisson(draw(key, Sub.ARRIVALS, 0, s.day), mean, 8)
    open_leads = sum(1 for a in s.accounts if a.stage < Stage.WON)
    theme = next((i for i, day in enumerate(s.novelty) if 0 <= s.day - day <= 5), -1)
    s.luck -= mean * LEAD_WORTH
    for slot in range(min(count, max(0, 16 - open_leads))):
        lead = _arrive(s, key, slot, theme=theme)
        s.luck += LEAD_WORTH * lead.price / MEAN_PRICE * (0.5 + lead.quality)
        log.stage("lead")
    if s.inquiry:
        s.inquiry -= 1
        _arrive(s, key, 12, large=True)
        log.stage("lead")


def _accounts(s: State, key: int, log: TurnLog) -> None:
    """Leads go stale, customers grow happier or leave, contracts renew, closing rewards vest."""
    keep: list[Account] = []
    stability, docs = s.stability, s.docs_level
    product_docs = touchpoints(s, -1)
    for a in s.accounts:
        if a.stage < Stage.WON:
            idle = (s.turn - a.contact) // TURNS_PER_DAY
            a.warmth *= 0.93
            if idle >= LOST_DAYS or s.day >= a.deadline:
                s.lost += 1
                if a.stage == Stage.LEAD:  # nobody ever worked on it, so it was not worth its credit
                    log.penalty("sales", 0.5)
                    log.stage("lead", -1.0)
                else:
                    log.stage("closed_lost")
                    for stage in ADVANCES[: a.stage]:  # lost by neglect: what its progress had paid was an advance
                        log.stage(stage, -1.0)
                continue
            if idle >= STALE_DAYS:
                log.penalty("sales", 0.5)
            keep.append(a)
            continue
        silence = (s.turn - a.contact) / TURNS_PER_DAY
        target = 0.18 + 0.5 * stability + 0.25 * s.fit(a.pain) + 0.12 * docs + 0.05 * min(product_docs, 1.0) - 0.01 * min(silence, 10.0)
        a.sat += 0.12 * (min(1.0, target) - a.sat)
        hazard = churn_hazard(s, a) * (1.0, 0.5, 0.35)[a.tier]
        leaves = draw(key, Sub.CHURN, a.id, s.day) < hazard
        s.luck -= (leaves - hazard) * deal_worth(a)
        if leaves:
            refund = int(a.price * TIER_DISCOUNT[a.tier] * max(0, a.paid_until - s.day) / 30.0 * 0.5) if a.tier else 0
            pay(s, "refunds", -refund)
            log.stage("churned")
            if a.rewarded and a.won_day >= 0:
                log.clawback(TIER_MULTIPLIER[a.tier] * (1.0 - a.vest_left))
            s.churned += 1
            s.churned_mrr += a.price
            s.morale = max(0.0, s.morale - 0.015)
            continue
        if a.vest_left > 0.0:
            part = min(a.vest_left, 2.0 / 3.0 / 10.0)
            a.vest_left -= part
            log.stage("closed_won", TIER_MULTIPLIER[a.tier] * part)
        if a.paid_until <= s.day:
            months = TIER_MONTHS[a.tier]
            pay(s, "subscriptions", int(a.price * TIER_DISCOUNT[a.tier] * months))
            a.paid_until += 30 * months
        keep.append(a)
    s.accounts = keep
    s.base_sat += 0.02 * (0.3 + 0.4 * stability - s.base_sat)
    if s.updated_day != s.day - 1:
        log.penalty("sales", 1.0)


def _product(s: State, key: int) -> None:
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


def _people(s: State, key: int, log: TurnLog) -> None:
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
            log.okr_met()
            s.morale = min(1.0, s.morale + 0.04)


def _money(s: State) -> None:
    pay(s, "payroll", -s.payroll)
    pay(s, "hosting", -int(200 * len(s.customers()) + sum(s.traffic)))
    s.board_pool += s.board_rate
    if s.cash < 0:
        s.done = "bankrupt"


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
