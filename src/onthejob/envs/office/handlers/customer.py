"""Customer (Oracle): part of the world. Its actions reveal how the product is; they never change satisfaction by themselves."""

from __future__ import annotations

from onthejob.envs.office.actions import Action
from onthejob.envs.office.company_state import PAINS, TURNS_PER_DAY, CompanyState
from onthejob.envs.office.handlers import COPIES_KEPT, KEPT, LONGEST_WAIT, NEUTRAL, Handler, HandlerContext, untargeted
from onthejob.envs.office.luck import Sub, draw
from onthejob.envs.office.new_company import REFERRAL_SLOT, arrive

REFERRAL_COOLDOWN = 5
"""Days."""
EXPANSION = 0.2
"""Share by which an expansion raises a customer's price."""


def evaluate_product(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Say how the product is: the score goes to the shared board."""
    s.shared.append([s.turn, "customer", f"satisfaction {s.satisfaction():.1f}"])
    return False


def request_feature(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Ask Dev for what the unhappiest customer misses."""
    missing = [c for c in s.customers() if s.fit(c.pain) < 1]
    if not missing:
        return False
    unhappy = min(missing, key=lambda c: (c.sat, c.id))
    _say(s, now, "dev", f"need {PAINS[unhappy.pain]}")
    return True


def give_feedback(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Tell Sales which customer is unhappiest."""
    customers = s.customers()
    if not customers:
        return False
    unhappy = min(customers, key=lambda c: (c.sat, c.id))
    _say(s, now, "sales", f"unhappy {unhappy.name}")
    return True


def refer_lead(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """A happy customer brings a lead, at most every five days."""
    happy = [c for c in s.customers() if c.sat > 0.7]
    if not happy or s.day - s.referral_day < REFERRAL_COOLDOWN:
        return False
    s.referral_day = s.day
    now.log.stage("lead", arrive(s, now.key, REFERRAL_SLOT, referred=True))
    return True


def escalate_issue(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Make bugs that hurt public."""
    if s.bug_critical == 0:
        return False
    s.shared.append([s.turn, "customer", f"{s.bug_critical} critical bugs hurt"])
    return True


def renew_contract(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """A very happy customer takes more."""
    for c in s.customers():
        if c.sat > 0.72 and c.expanded < 2 and s.turn - c.won_day * TURNS_PER_DAY > 5 * TURNS_PER_DAY:
            if draw(now.key, Sub.EXPANSION, c.id, c.expanded) < 2.0 * (c.sat - 0.6):
                extra = int(c.price * EXPANSION)
                c.price += extra
                s.expansion += extra
                c.expanded += 1
                return True
            c.expanded += 1
    return False


def _say(s: CompanyState, now: HandlerContext, to: str, text: str) -> None:
    """Send the message that belongs to the action."""
    now.log.said = (to, text)
    deliver(s, "customer", to, text)


def deliver(s: CompanyState, sender: str, to: str, text: str, *, reader: str | None = None) -> None:
    """Put a message to `to` into its inbox, or a copy into that of `reader`.

    What its reader has not had a turn to read stays; of the rest the last ones do, messages and copies counted apart.
    """
    owner = reader or to
    box = s.inbox.setdefault(owner, [])
    box.append([s.turn, sender, text, to])
    own, most = owner == to, KEPT if owner == to else COPIES_KEPT
    same = [message for message in box if (message[3] == owner) is own]
    for message in same[:-most]:
        if not own or s.turn - message[0] >= LONGEST_WAIT:
            box.remove(message)


def decide(s: CompanyState, key: int) -> str:
    """The scripted customer: what it does on its turn, keyed by luck."""
    u = draw(key, Sub.CUSTOMER, 0, s.turn)
    if s.bug_critical > 0 and u < 0.3:
        return "ESCALATE_ISSUE"
    if s.customers():
        if u < 0.5:
            return "REQUEST_FEATURE"
        if u < 0.65:
            return "GIVE_FEEDBACK"
        if u < 0.8:
            return "RENEW_CONTRACT"
        if u < 0.9:
            return "REFER_LEAD"
    return "EVALUATE_PRODUCT"


HANDLERS = {
    "EVALUATE_PRODUCT": Handler(untargeted, evaluate_product, NEUTRAL),
    "REQUEST_FEATURE": Handler(untargeted, request_feature, NEUTRAL),
    "GIVE_FEEDBACK": Handler(untargeted, give_feedback, NEUTRAL),
    "REFER_LEAD": Handler(untargeted, refer_lead, NEUTRAL),
    "ESCALATE_ISSUE": Handler(untargeted, escalate_issue, NEUTRAL),
    "RENEW_CONTRACT": Handler(untargeted, renew_contract, NEUTRAL),
}
