"""The seven roles: names, actions, who is trained. The one place where they are listed; everything else derives from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Role(StrEnum):
    """A seat in the company, in speaking order."""

    CEO = "ceo"
    DEV = "dev"
    MARKETING = "marketing"
    SALES = "sales"
    CONTENT = "content"
    HR = "hr"
    CUSTOMER = "customer"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec:
    """What is fixed about a seat."""

    person: str
    actions: tuple[str, ...]
    """Legal action types, in display order. Handlers are keyed by (role, action type): two roles may share a name."""
    duty: str
    """One line for the prompt."""
    trained: bool = True
    """False for the customer: it is part of the world and its rewards are outside the team objective."""


ROLES: MappingProxyType[Role, RoleSpec] = MappingProxyType(
    {
        Role.CEO: RoleSpec(
            person="Jeeya",
            actions=("SET_OKRS", "ALLOCATE_BUDGET", "REVIEW_STRATEGY", "PIVOT", "SEND_DIRECTIVE", "APPROVE_INITIATIVE"),
            duty="set the focus, fund departments, approve large deals",
        ),
        Role.DEV: RoleSpec(
            person="Alex",
            actions=("BUILD_FEATURE", "FIX_BUG", "SHIP_RELEASE", "REFACTOR", "WRITE_DOCS", "REVIEW_PR"),
            duty="build and ship the features that deals need, keep the product stable",
        ),
        Role.MARKETING: RoleSpec(
            person="Jordan",
            actions=("LAUNCH_CAMPAIGN", "RUN_AD", "RESEARCH_MARKET", "ANALYZE_COMPETITOR", "OPTIMIZE_FUNNEL", "A_B_TEST"),
            duty="bring visitors that fit and turn them into leads",
        ),
        Role.SALES: RoleSpec(
            person="Sam",
            actions=(
                "QUALIFY_LEAD",
                "RUN_DEMO",
                "SEND_PROPOSAL",
                "CLOSE_DEAL",
                "FOLLOW_UP",
                "COLLECT_FEEDBACK",
                "UPDATE_PIPELINE",
            ),
            duty="move the right leads through the pipeline and close them",
        ),
        Role.CONTENT: RoleSpec(
            person="Casey",
            actions=(
                "WRITE_BLOG",
                "WRITE_SOCIAL_POST",
                "WRITE_CASE_STUDY",
                "WRITE_EMAIL_SEQUENCE",
                "WRITE_DOCS",
                "REVISE_CONTENT",
            ),
            duty="publish what visitors and open deals want to read",
        ),
        Role.HR: RoleSpec(
            person="Pat",
            actions=("PLAN_SPRINT", "TRACK_OKRS", "RESOLVE_BLOCKER", "HIRE_CONTRACTOR", "PERFORMANCE_REVIEW", "TEAM_SYNC"),
            duty="keep the team fast, unblocked and willing",
        ),
        Role.CUSTOMER: RoleSpec(
            person="Oracle",
            actions=("EVALUATE_PRODUCT", "REQUEST_FEATURE", "GIVE_FEEDBACK", "REFER_LEAD", "ESCALATE_ISSUE", "RENEW_CONTRACT"),
            duty="use the product and say how it is",
            trained=False,
        ),
    }
)

TRAINED_ROLES: tuple[Role, ...] = tuple(role for role, spec in ROLES.items() if spec.trained)

ACTION_ALIASES: MappingProxyType[str, str] = MappingProxyType({"UPDATE_SHEET": "UPDATE_PIPELINE"})
"""Other spellings that a reply may use."""
