"""CEO: focus, money, direction, approvals."""

from __future__ import annotations

from onthejob.envs.office.actions import Action
from onthejob.envs.office.company_state import DEPARTMENTS, FOCI, SEGMENT_INDEX, SEGMENTS, WON, CompanyState
from onthejob.envs.office.handlers import CREDIT_FOR, NEUTRAL, READ_FOR, Handler, HandlerContext, heard, untargeted
from onthejob.envs.office.market import OKR_DAYS, allocate, measures, pay

CHUNK = 200_000
"""Cents that one allocation moves."""
PIVOT_COST = 100_000
DIRECTED = ("dev", "marketing", "sales", "content", "hr")


def set_okrs(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Align the company on one focus for five days; changing a live focus unsettles people."""
    focus = FOCI.index(a.target)
    if s.focus_left > 0:
        if focus == s.focus:
            return False
        s.morale = max(0.0, s.morale - 0.05)
    s.focus, s.focus_left, s.okr_met = focus, OKR_DAYS, False
    s.okr_base = measures(s)
    return True


def allocate_budget(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Move released money into an envelope."""
    return allocate(s, a.target, CHUNK)


def review_strategy(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Think with the team: alignment rises, the more the lower it is."""
    gain = 0.15 * (1.0 - s.alignment) * now.e
    s.alignment += gain
    return gain > 0.02


def pivot(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Turn the company's marketing to one segment.

    Costs 1,000 dollars and morale, works after three days, and can be done once a week.
    """
    pay(s, "pivot", -PIVOT_COST)
    s.pivot_segment, s.pivot_days = SEGMENT_INDEX[a.target], 7
    s.morale = max(0.0, s.morale - 0.06)
    return True


def pivotable(s: CompanyState) -> list[str]:
    """Segments that marketing may be turned to: none within a week of the last turn."""
    return [x for i, x in enumerate(SEGMENTS) if i != s.pivot_segment] if s.pivot_days == 0 else []


def send_directive(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Raise one role's priority: its next three turns achieve 40 % more."""
    again = s.directive_left > 0 and s.directive_role == a.target
    s.directive_role, s.directive_left = a.target, 3
    return not again


def _asked(s: CompanyState, *, within: int) -> set[str]:
    """Names that Sales has asked the CEO to approve."""
    return {argument for sender, argument in heard(s, "ceo", "approve", within=within) if sender == "sales"}


def approvable(s: CompanyState) -> list[str]:
    """Large open deals that Sales has asked the CEO about."""
    asked = _asked(s, within=READ_FOR)
    return [x.name for x in s.accounts if x.size == 2 and not x.approved and x.stage < WON and x.known and x.name in asked]


def approve_initiative(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Special terms for a large deal: without them its odds are much lower."""
    account = next(x for x in s.accounts if x.name == a.target)
    account.approved = True
    if account.name in _asked(s, within=CREDIT_FOR):
        now.log.collaboration("sales", "ceo", 1000 + account.id, "deal approved on request", account)
    return True


HANDLERS = {
    "SET_OKRS": Handler(lambda s: list(FOCI), set_okrs, NEUTRAL),
    "ALLOCATE_BUDGET": Handler(lambda s: list(DEPARTMENTS) if s.board_pool >= CHUNK else [], allocate_budget, NEUTRAL),
    "REVIEW_STRATEGY": Handler(untargeted, review_strategy, NEUTRAL),
    "PIVOT": Handler(pivotable, pivot, NEUTRAL),
    "SEND_DIRECTIVE": Handler(lambda s: list(DIRECTED), send_directive, NEUTRAL),
    "APPROVE_INITIATIVE": Handler(approvable, approve_initiative, NEUTRAL),
}
