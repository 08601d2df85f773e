"""Sales: whom to call, in which order, on which terms."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from onthejob.envs.office.actions import Action
from onthejob.envs.office.company_state import TIERS, Account, CompanyState, Stage
from onthejob.envs.office.handlers import GROWTH, NEUTRAL, RETENTION, Handler, HandlerContext, untargeted
from onthejob.envs.office.luck import Sub, draw
from onthejob.envs.office.market import (
    TIER_DISCOUNT,
    TIER_MONTHS,
    TIER_MULTIPLIER,
    TIER_VESTS,
    close_probability,
    deal_worth,
    pay,
    touchpoints,
)
from onthejob.envs.office.new_company import usual_price
from onthejob.envs.office.reward_parts import Loss

OPEN_SHOWN = 6
"""Open leads that Sales can handle at a time: the furthest stages first, then the longest without contact."""
CUSTOMERS_SHOWN = 3

NEXT_STEP: MappingProxyType[str, str] = MappingProxyType(
    {
        "lead": "QUALIFY_LEAD",
        "qualified": "RUN_DEMO",
        "demo": "SEND_PROPOSAL",
        "proposal": "CLOSE_DEAL",
        "negotiation": "CLOSE_DEAL",
    }
)
"""Stage of a lead, by its name in views -> the action that moves it on."""

CLOSE_GAP = (0.4, 0.45, 0.8)
"""Share of a deal's worth that the first, second and last try decide, fitted on branches; used for the luck account only."""

SIZE_GAP = 5.0
"""Months of its price that a qualified lead is worth more than another, fitted on branches; used for the luck account only."""


def shown_leads(s: CompanyState) -> list[Account]:
    """The open leads on Sales' desk."""
    leads = s.leads()
    leads.sort(key=lambda x: (-x.stage, x.contact, x.id))
    return leads[:OPEN_SHOWN]


def shown_customers(s: CompanyState) -> list[Account]:
    """The customers on Sales' desk: the longest without contact."""
    customers = s.customers()
    customers.sort(key=lambda x: (x.contact, x.id))
    return customers[:CUSTOMERS_SHOWN]


def _account(s: CompanyState, name: str) -> Account:
    return next(x for x in s.accounts if x.name == name)


def _touch(s: CompanyState, a: Account, warmth: float) -> None:
    a.contact = s.turn
    a.touches += 1
    a.warmth = min(1.0, a.warmth + warmth)
    s.updated_day = s.day


def qualify_lead(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Learn what the lead needs and how large it is."""
    lead = _account(s, a.target)
    _touch(s, lead, 0.1)
    lead.known = True
    s.luck += SIZE_GAP * (lead.price - usual_price(s, lead))
    lead.stage = int(Stage.QUALIFIED)
    now.log.stage("qualified", lead)
    return True


def run_demo(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Show the product: the better, the more it has for this lead and the more stable it is. Content on its pain helps."""
    lead = _account(s, a.target)
    _touch(s, lead, 0.1)
    lead.demo = max(
        -1.0,
        min(
            1.0,
            1.1 * s.fit(lead.pain)
            - 0.45
            + 0.8 * (s.stability - 0.7)
            + 0.5 * (now.e - 1.0)
            + 0.2 * min(touchpoints(s, lead.pain), 1.5),
        ),
    )
    lead.stage = int(Stage.DEMO)
    now.log.stage("demo", lead)
    for piece in s.pieces:
        if piece.left == 0 and piece.topic == lead.pain and not piece.vapor:
            now.log.collaboration("content", "sales", 3000 + piece.id, "content helps a demo", piece)
            break
    return True


def send_proposal(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Offer a contract: monthly, six_month or annual."""
    lead = _account(s, a.target)
    _touch(s, lead, 0.05)
    lead.tier = TIERS.index(a.parameters.get("tier") or TIERS[0])
    lead.stage = int(Stage.PROPOSAL)
    now.log.stage("proposal", lead)
    return True


def close_deal(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Ask for the signature. A failure names an objection; the third loses the deal."""
    lead = _account(s, a.target)
    chance = close_probability(s, lead)
    _touch(s, lead, 0.0)
    won = draw(now.key, Sub.CLOSE, lead.id, lead.failed) < chance
    s.luck += (won - chance) * deal_worth(lead) * CLOSE_GAP[min(lead.failed, 2)]
    if won:
        lead.stage = int(Stage.WON)
        lead.won_day, lead.sat = s.day, min(0.9, 0.55 + 0.15 * lead.demo + 0.1 * lead.warmth)
        months = TIER_MONTHS[lead.tier]
        fee = int(lead.price * TIER_DISCOUNT[lead.tier] * months)
        pay(s, "subscriptions", fee)
        now.log.book(lead, fee)
        lead.paid_until = s.day + 30 * months
        s.won += 1
        s.morale = min(1.0, s.morale + 0.02)
        if not lead.rewarded:
            lead.rewarded, lead.vest_left = True, TIER_VESTS[lead.tier]
            now.log.stage("closed_won", lead, TIER_MULTIPLIER[lead.tier] * (1.0 - TIER_VESTS[lead.tier]))
        lead.settle()
        s.shared.append([s.turn, "sales", "won a deal"])
        return True
    lead.failed += 1
    lead.objections += 1
    lead.warmth *= 0.8
    lead.stage = int(Stage.NEGOTIATION)
    if lead.failed >= 3:
        s.accounts.remove(lead)
        s.lost += 1
        now.log.departure(lead, Stage.LOST, Loss.REFUSED)
        s.morale = max(0.0, s.morale - 0.02)
        now.log.stage("closed_lost", lead)
        now.log.repay(lead)
    return False


def follow_up(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Keep a lead warm, and with luck remove an objection; content on its pain makes that likelier."""
    lead = _account(s, a.target)
    rested = s.turn - lead.contact >= 7
    _touch(s, lead, 0.25 if rested else 0.05)
    if lead.objections and draw(now.key, Sub.FOLLOW_UP, lead.id, lead.touches) < min(
        0.95, (0.45 + 0.2 * min(touchpoints(s, lead.pain), 1.5)) * now.e
    ):
        lead.objections -= 1
        return True
    return rested


def collect_feedback(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Call a customer: being heard satisfies, the more the longer no one had called."""
    customer = _account(s, a.target)
    rested = s.turn - customer.contact >= 42
    customer.contact = s.turn
    customer.sat = min(1.0, customer.sat + (0.10 if rested else 0.02) * now.e)
    s.updated_day = s.day
    return rested


def update_pipeline(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Write the day into the sheet: the record is current, nothing else changes."""
    fresh = s.updated_day != s.day
    s.updated_day = s.day
    return fresh


def _at(*stages: Stage) -> Callable[[CompanyState], list[str]]:
    wanted = frozenset(int(stage) for stage in stages)
    return lambda s: [x.name for x in shown_leads(s) if x.stage in wanted]


HANDLERS = {
    "QUALIFY_LEAD": Handler(_at(Stage.LEAD), qualify_lead, GROWTH),
    "RUN_DEMO": Handler(_at(Stage.QUALIFIED), run_demo, GROWTH),
    "SEND_PROPOSAL": Handler(_at(Stage.DEMO), send_proposal, GROWTH, {"tier": TIERS}),
    "CLOSE_DEAL": Handler(_at(Stage.PROPOSAL, Stage.NEGOTIATION), close_deal, GROWTH),
    "FOLLOW_UP": Handler(lambda s: [x.name for x in shown_leads(s)], follow_up, GROWTH),
    "COLLECT_FEEDBACK": Handler(lambda s: [x.name for x in shown_customers(s)], collect_feedback, RETENTION),
    "UPDATE_PIPELINE": Handler(untargeted, update_pipeline, NEUTRAL),
}
