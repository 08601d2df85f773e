"""HR: speed, blockers, morale, alignment."""

from __future__ import annotations

from onthejob.envs.office.actions import Action
from onthejob.envs.office.company_state import CompanyState
from onthejob.envs.office.handlers import NEUTRAL, PRODUCT, RETENTION, Handler, HandlerContext, untargeted
from onthejob.envs.office.market import CONTRACTOR_DAYS, spend

CONTRACTOR = 1_000
"""Dollars."""
HIRABLE = ("dev", "content")
"""Whom a contractor can help."""
MAX_VELOCITY = 2.0


def plan_sprint(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Plan the sprint: velocity rises, the more the lower it is; planning twice a day adds little."""
    again = s.daily.get("hr PLAN_SPRINT ", 0) > 0
    gain = (0.03 if again else 0.2) * (1.0 - s.velocity / MAX_VELOCITY) * now.e
    s.velocity = min(MAX_VELOCITY, s.velocity + gain)
    return not again


def track_okrs(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Keep the live OKRs in the team's mind: their effect is full for three days."""
    fresh = s.focus_left > 0 and s.day - s.tracked > 1
    s.tracked = s.day
    return fresh


def resolve_blocker(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Clear what blocks a role."""
    del s.blockers[a.target]
    now.log.effect("blocker cleared", a.target)
    return True


def hire_contractor(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """A contractor for Dev or Content for seven days, 1,000 dollars."""
    if not spend(s, "hr", CONTRACTOR):
        return False
    s.contractor_days[a.target] = CONTRACTOR_DAYS
    return True


def performance_review(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Talk with people: morale rises, the more the lower it is."""
    gain = 0.2 * (1.0 - s.morale) * now.e
    s.morale = min(1.0, s.morale + gain)
    return gain > 0.02


def team_sync(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Let all roles know what the others do: alignment rises, the more the lower it is."""
    gain = 0.3 * (1.0 - s.alignment) * now.e
    s.alignment = min(1.0, s.alignment + gain)
    return gain > 0.05


def _hirable(s: CompanyState) -> list[str]:
    return [role for role in HIRABLE if role not in s.contractor_days] if s.envelopes["hr"] >= CONTRACTOR * 100 else []


HANDLERS = {
    "PLAN_SPRINT": Handler(untargeted, plan_sprint, PRODUCT),
    "TRACK_OKRS": Handler(untargeted, track_okrs, NEUTRAL),
    "RESOLVE_BLOCKER": Handler(lambda s: list(s.blockers), resolve_blocker, NEUTRAL),
    "HIRE_CONTRACTOR": Handler(_hirable, hire_contractor, PRODUCT),
    "PERFORMANCE_REVIEW": Handler(untargeted, performance_review, RETENTION),
    "TEAM_SYNC": Handler(untargeted, team_sync, NEUTRAL),
}
