"""Dev: features, bugs, debt, technical documentation."""

from __future__ import annotations

from onthejob.envs.office.actions import Action
from onthejob.envs.office.company_state import CATALOGUE, FEATURE_INDEX, PAINS, SEVERITIES, CompanyState
from onthejob.envs.office.handlers import CREDIT_FOR, PRODUCT, RETENTION, Handler, HandlerContext, heard, untargeted
from onthejob.envs.office.luck import Sub, draw, poisson, poisson_mean

MOST_BUGS = 6
"""Bugs that one release can bring."""
BUG_WORTH = 80_000.0
"""Cents that a bug of a release costs, fitted on branches; for the luck account only."""
CONTRACTOR_BOOST = 0.5
"""Velocity that a contractor adds."""


def pace(s: CompanyState) -> float:
    """Dev turns of work done per Dev turn before efficacy; 0 while blocked."""
    if "dev" in s.blockers:
        return 0.0
    return s.velocity + (CONTRACTOR_BOOST if "dev" in s.contractor_days else 0.0)


def buildable(s: CompanyState) -> list[str]:
    """Features on which work is left."""
    return [spec.name for i, spec in enumerate(s.catalogue) if s.feature_shipped[i] < 0 and s.feature_left[i] > 0]


def build_feature(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Work on a feature. Speed leaves debt; switching between features costs nothing but time."""
    i = FEATURE_INDEX[a.target]
    step = pace(s) * now.e
    s.feature_left[i] = max(0.0, s.feature_left[i] - step)
    if s.feature_left[i] < 0.15:
        s.feature_left[i] = 0.0
    s.debt = min(1.0, s.debt + 0.012)
    return step > 0


def shippable(s: CompanyState) -> list[str]:
    """Finished features that customers do not have yet."""
    return [spec.name for i, spec in enumerate(s.catalogue) if s.feature_shipped[i] < 0 and s.feature_left[i] <= 0]


def ship_release(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Release a finished feature; unreviewed code brings more bugs. The role that asked for it shares the credit."""
    i = FEATURE_INDEX[a.target]
    s.feature_shipped[i] = s.day
    mean = (0.5 if s.feature_reviewed[i] else 1.8) + 1.5 * s.debt
    count = poisson(draw(now.key, Sub.SHIP_BUGS, i, s.day), mean, MOST_BUGS)
    s.luck -= (count - poisson_mean(mean, MOST_BUGS)) * BUG_WORTH
    for n in range(count):
        if draw(now.key, Sub.SHIP_BUGS, 100 + i * 8 + n, s.day) < 0.3:
            s.bug_critical += 1
        else:
            s.bug_major += 1
    for account in s.customers():
        if account.pain == CATALOGUE[i].pain:
            account.sat = min(1.0, account.sat + 0.12 * CATALOGUE[i].fit)
    now.log.effect("release shipped", a.target)
    s.shared.append([s.turn, "dev", f"shipped {a.target}"])
    for sender, wanted in heard(s, "dev", "need", within=CREDIT_FOR):
        if wanted == PAINS[CATALOGUE[i].pain]:
            now.log.collaboration(sender, "dev", 2000 + i, "feature built on request", sender)
    return True


def fix_bug(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Fix one critical, two major or four minor bugs, if nothing blocks; a tired team may fail."""
    if "dev" in s.blockers or draw(now.key, Sub.BUGS, 50, s.turn) > 0.8 * now.e + 0.1 * s.velocity:
        return False
    if a.target == "critical":
        s.bug_critical -= 1
    elif a.target == "major":
        s.bug_major = max(0, s.bug_major - 2)
    else:
        s.bug_minor = max(0, s.bug_minor - 4)
    return True


def refactor(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Pay back debt."""
    if "dev" in s.blockers or s.debt < 0.02:
        return False
    s.debt = max(0.0, s.debt - 0.10 * now.e * min(1.5, s.velocity + 0.2))
    return True


def write_docs(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Technical documentation: customers help themselves; ages slowly."""
    gain = 0.3 * (1.0 - s.docs_level) * now.e
    s.docs_level += gain
    return gain > 0.05


def reviewable(s: CompanyState) -> list[str]:
    """Features that are begun or finished, not shipped and not reviewed."""
    return [
        spec.name
        for i, spec in enumerate(s.catalogue)
        if s.feature_shipped[i] < 0 and s.feature_left[i] < spec.effort and not s.feature_reviewed[i]
    ]


def review_pr(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Review a feature in progress: it will ship with fewer bugs."""
    s.feature_reviewed[FEATURE_INDEX[a.target]] = True
    return True


def _bugs(s: CompanyState) -> list[str]:
    return [name for name, n in zip(SEVERITIES, (s.bug_critical, s.bug_major, s.bug_minor), strict=True) if n > 0]


HANDLERS = {
    "BUILD_FEATURE": Handler(buildable, build_feature, PRODUCT),
    "FIX_BUG": Handler(_bugs, fix_bug, RETENTION),
    "SHIP_RELEASE": Handler(shippable, ship_release, PRODUCT),
    "REFACTOR": Handler(untargeted, refactor, PRODUCT),
    "WRITE_DOCS": Handler(untargeted, write_docs, RETENTION),
    "REVIEW_PR": Handler(reviewable, review_pr, PRODUCT),
}
