"""Marketing: visitors that fit, and a funnel that turns them into leads."""

from __future__ import annotations

from collections.abc import Callable

from onthejob.envs.office.actions import Action
from onthejob.envs.office.company_state import CATALOGUE, PAIN_INDEX, PAINS, SEGMENT_INDEX, SEGMENTS, CompanyState
from onthejob.envs.office.handlers import GROWTH, NEUTRAL, Handler, HandlerContext, untargeted
from onthejob.envs.office.luck import Sub, draw
from onthejob.envs.office.market import spend

CAMPAIGN, AD, TEST = 500, 300, 200
"""Dollars."""
CAMPAIGN_VISITS = 900.0
FATIGUE_DAYS = 7


def launch_campaign(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """A campaign on one pain: visits arrive after 2 to 4 days in the segments that feel it.

    A recent matching ship doubles it; a theme repeated within a week tires; published content on the theme carries it further.
    """
    if not spend(s, "marketing", CAMPAIGN):
        return False
    theme = PAIN_INDEX[a.target]
    since = s.day - s.novelty[theme]
    fresh = min(1.0, 0.3 + 0.1 * since) if since < FATIGUE_DAYS else 1.0
    others = sum(1 for day in s.novelty if 0 <= s.day - day < 3)
    launch = (
        2.0
        if any(
            spec.pain == theme and 0 <= s.day - day <= 3
            for spec, day in zip(CATALOGUE, s.feature_shipped, strict=True)
            if day >= 0
        )
        else 1.0
    )
    carried = 1.0
    for piece in s.pieces:
        if piece.topic == theme and piece.left == 0 and not piece.vapor and s.day - piece.day <= 7:
            carried = 1.25
            now.log.collaboration("content", "marketing", 3000 + piece.id, "content carries a campaign", piece)
            break
    lag = 2 + int(3 * draw(now.key, Sub.CAMPAIGN_LAG, theme, s.turn))
    for i, wants in enumerate(s.demand):
        share = wants[theme] / sum(wants)
        visits = (
            CAMPAIGN_VISITS
            * fresh
            * launch
            * carried
            * now.e
            * (s.segment_base[i] / sum(s.segment_base))
            * (0.25 + 3.0 * share)
            / (1.0 + 0.5 * others)
        )
        s.campaigns.append([s.day + lag, i, visits, theme])
    s.novelty[theme] = s.day
    s.brand = min(100.0, s.brand + 1.2 * fresh * now.e)
    return True


def run_ad(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Visits from one segment for two days, at once."""
    if not spend(s, "marketing", AD):
        return False
    again = s.ad_days > 0
    s.ad_segment, s.ad_days = SEGMENT_INDEX[a.target], 2
    return not again


def research_market(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Find out what a segment needs most."""
    i = SEGMENT_INDEX[a.target]
    if s.researched[i] >= 0:
        return False
    s.researched[i] = max(range(len(PAINS)), key=lambda p: s.demand[i][p])
    now.log.effect("segment researched", a.target)
    return True


def analyze_competitor(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Blunt the rival's arguments for four days and wear its pressure down a little."""
    again = s.intel > 0
    s.intel = 4
    s.competitor = max(0.05, s.competitor * (0.97 if again else 0.8))
    return not again


def optimize_funnel(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Work on conversion: the higher it is, the less there is to gain."""
    gain = 0.0035 * max(0.0, 1.0 - s.conversion / 0.055) * now.e * (0.4 + 0.8 * s.stability)
    s.conversion += gain
    return gain > 0.0004


def a_b_test(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """A test wins half of the time; later wins are harder."""
    if not spend(s, "marketing", TEST):
        return False
    if draw(now.key, Sub.AB_TEST, 0, s.turn) < min(0.9, 0.55 * now.e) / (1.0 + 0.15 * s.ab_wins):
        s.ab_wins += 1
        s.conversion = min(0.06, s.conversion * 1.09)
        return True
    return False


def _affordable(dollars: int, names: tuple[str, ...]) -> Callable[[CompanyState], list[str]]:
    return lambda s: list(names) if s.envelopes["marketing"] >= dollars * 100 else []


HANDLERS = {
    "LAUNCH_CAMPAIGN": Handler(_affordable(CAMPAIGN, PAINS), launch_campaign, GROWTH),
    "RUN_AD": Handler(_affordable(AD, SEGMENTS), run_ad, GROWTH),
    "RESEARCH_MARKET": Handler(lambda s: list(SEGMENTS), research_market, NEUTRAL),
    "ANALYZE_COMPETITOR": Handler(untargeted, analyze_competitor, NEUTRAL),
    "OPTIMIZE_FUNNEL": Handler(untargeted, optimize_funnel, GROWTH),
    "A_B_TEST": Handler(_affordable(TEST, ("",)), a_b_test, GROWTH),
}
