"""How a company starts, and how accounts come to it."""

from __future__ import annotations

import math
from functools import lru_cache

from onthejob.envs.office.company_state import CATALOGUE, HELD_OUT, PAINS, SEGMENTS, WON, Account, CompanyState, Stage
from onthejob.envs.office.events import fire_scheduled
from onthejob.envs.office.luck import Sub, choose, draw, mix
from onthejob.envs.office.market import BASE_CONVERSION, PRICES, pay
from onthejob.envs.office.names import HELD_OUT_NAMES, NAMES, drawn_companies
from onthejob.envs.office.scenarios import FOUNDED, Scenario

SIZE_WEIGHTS = (0.5, 0.34, 0.16)
"""Shares of the sizes S, M, L."""
DRAWN_WEIGHTS = (0.35, 0.4, 0.25)
"""The same for leads that a campaign on a researched or served pain drew."""
DRAWN_WARMTH = 0.2
"""Theirs on arrival."""
INQUIRY_SLOT, REFERRAL_SLOT = 12, 13
"""Of the day's arrivals: an announced large company, and whom a customer brings; those of the night have the slots below."""
PATIENCE, PATIENCE_SPREAD = 9, 9
"""A lead buys elsewhere so many days after its arrival, and up to one less than so many more."""
FIRST_ID = FOUNDED
"""Ids below are those of the first morning, which no campaign, no announcement and no customer has brought."""
THEME_DAYS = 5
"""Days for which a campaign draws leads that feel its theme."""
MEAN_PRICE, MEAN_DRAWN_PRICE = (
    sum(price * weight for price, weight in zip(PRICES, weights, strict=True)) for weights in (SIZE_WEIGHTS, DRAWN_WEIGHTS)
)


def found(scenario: Scenario, seed: int, days: int = 30, *, drawn_names: bool = False) -> CompanyState:
    """The company on its first morning; with `drawn_names` features and accounts are called as the seed draws."""
    s = CompanyState()
    key = mix(seed, 0)
    s.scenario, s.seed, s.days, s.drawn_names = scenario.name, seed, days, drawn_names
    s.goal = dict(scenario.goal)
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
    s.schedule.sort(key=lambda entry: entry[0])
    for slot in range(scenario.customers):
        account = arrive(s, key, slot)
        account.stage, account.known, account.sat = (
            int(Stage.WON),
            True,
            min(1.0, max(0.05, scenario.satisfaction + 0.2 * (account.quality - 0.5))),
        )
        account.size = min(account.size, 1)
        account.price = PRICES[account.size]
        account.won_day, account.paid_until, account.vest_left, account.rewarded = -30, int(30 * account.quality), 0.0, True
        account.settle()
    for slot in range(scenario.customers, scenario.customers + scenario.leads):
        arrive(s, key, slot)
    s.start_mrr = s.mrr()
    fire_scheduled(s)
    return s


@lru_cache(maxsize=4096)
def drawn_quality(seed: int, world: int, identity: int) -> float:
    """The quality that luck gave a lead, before `arrive` adds to it. The first morning has luck of its own.

    Kept, because a snapshot asks it of every open lead.
    """
    return draw(mix(seed, 0 if identity < FIRST_ID else 1 + world), Sub.QUALITY, identity, 0)


def brought(quality: float) -> float:
    """The quality of a lead whom a campaign drew that knew what it needs."""
    return 0.3 + 0.7 * quality


def chosen(quality: float) -> float:
    """The quality of a lead that comes of its own accord or by a customer's word."""
    return 0.5 + 0.5 * quality


def usual_price(s: CompanyState, lead: Account) -> float:
    """Expected cents a month of a visitor who became a lead as `lead` did: those whom a campaign drew warm are larger.

    What this world did not draw is no luck of it: a fork that keeps the secrets of another world knows their size already.
    """
    drawn = draw(mix(s.seed, 1 + s.world), Sub.QUALITY, lead.id, 0)
    asked = lead.price / PRICES[lead.size]
    if lead.quality == brought(drawn):
        return MEAN_DRAWN_PRICE * asked
    if lead.id % 16 != INQUIRY_SLOT and lead.quality in (drawn, chosen(drawn)):
        return MEAN_PRICE * asked
    return lead.price


def arrive(s: CompanyState, key: int, slot: int, *, large: bool = False, referred: bool = False, theme: int = -1) -> Account:
    """A new lead. Its traits are keyed by (day, slot): the same in every branch of the same luck.

    Args:
        s: the company.
        key: luck of the current world.
        slot: unique within the day, 0..15.
        large: of size L and of high quality.
        referred: warm and of high quality.
        theme: pain of the campaign that drew it, -1 without one.
    """
    identity = s.day * 16 + slot
    quality, ready = draw(key, Sub.QUALITY, identity, 0), 0.0
    weights = [base + stock for base, stock in zip(s.segment_base, s.adstock, strict=True)]
    segment = choose(draw(key, Sub.SEGMENT, identity, 0), [max(w, 1.0) for w in weights])
    # A campaign draws those who feel its theme, and those who feel it most when the theme was researched or the product already
    # serves it.
    if theme >= 0 and (theme == s.researched[segment] or s.fit(theme) >= 1.0):
        quality = brought(quality)
        ready = DRAWN_WARMTH
    pain = _pain(s, key, identity, segment, theme)
    size = 2 if large else _size(key, identity, warm=ready > 0.0)
    if large or referred:
        quality = chosen(quality)
    taken = {a.name for a in s.accounts}
    names = drawn_companies(s.seed) if s.drawn_names else HELD_OUT_NAMES if s.scenario in HELD_OUT else NAMES
    start = mix(s.seed, Sub.NAME) + s.names_used
    name = next(
        (names[(start + i) % len(names)] for i in range(len(names)) if names[(start + i) % len(names)] not in taken),
        f"Co{identity}",
    )
    s.names_used += 1
    account = Account(
        id=identity,
        name=name,
        segment=segment,
        size=size,
        pain=pain,
        quality=quality,
        contact=s.turn,
        deadline=_deadline(key, identity, s.day + PATIENCE, PATIENCE_SPREAD),
        warmth=0.25 if referred else ready,
        price=PRICES[size],
    )
    s.accounts.append(account)
    return account


def theme_on(s: CompanyState, day: int) -> int:
    """Pain of the campaign that draws leads on `day`, -1 without one."""
    return next((i for i, launched in enumerate(s.novelty) if 0 <= day - launched <= THEME_DAYS), -1)


def draw_unseen(s: CompanyState, was: int) -> None:
    """Draw anew what no role can have seen of the open leads, with the luck of the world that `s` has entered.

    That is: what they need and how large they are until they are qualified, when they buy elsewhere, and how inclined they are
    until they first refuse. If it were kept, a branch would mostly say how well a reply happens to suit what its author cannot
    know, and no number of worlds would average that out. They are drawn as on arrival, given that they are still there; what the
    market wants and what campaigns brought stays, and a discount that was asked for. Which theme drew a lead is read off the
    campaigns: one that was launched again on the same theme since hides that it did. `s` has its `world` already; `was` is the
    one in which the leads arrived.
    """
    key = mix(s.seed, 1 + s.world)
    for a in s.accounts:
        if a.stage >= WON:
            continue
        arrived, slot = divmod(a.id, 16)
        passed = max(0, s.day + 1 - arrived - PATIENCE)
        a.deadline = _deadline(key, a.id, arrived + PATIENCE + passed, max(1, PATIENCE_SPREAD - passed))
        warm = a.quality == brought(drawn_quality(s.seed, was, a.id))
        if not a.failed:
            quality = draw(key, Sub.QUALITY, a.id, 0)
            a.quality = chosen(quality) if slot in (INQUIRY_SLOT, REFERRAL_SLOT) else brought(quality) if warm else quality
        if not a.known:
            visited = a.id >= FIRST_ID and slot < INQUIRY_SLOT
            a.pain = _pain(s, key, a.id, a.segment, theme_on(s, arrived) if visited else -1)
            size = 2 if slot == INQUIRY_SLOT else _size(key, a.id, warm=warm)
            a.price = PRICES[size] * a.price // PRICES[a.size]
            a.size = size


def _pain(s: CompanyState, key: int, identity: int, segment: int, theme: int) -> int:
    wants = s.demand[segment]
    if theme >= 0:
        wants = [3.0 * w if pain == theme else w for pain, w in enumerate(wants)]
    return choose(draw(key, Sub.PAIN, identity, 0), wants)


def _size(key: int, identity: int, *, warm: bool) -> int:
    return choose(draw(key, Sub.SIZE, identity, 0), DRAWN_WEIGHTS if warm else SIZE_WEIGHTS)


def _deadline(key: int, identity: int, first: int, days: int) -> int:
    """One of so many days from `first` on, all alike."""
    return first + int(days * draw(key, Sub.URGENCY, identity, 0))
