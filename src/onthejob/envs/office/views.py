"""What each role may see: one allow-list function per role, the only code that reads the state for an agent.

Values are rounded exactly as the prompt prints them, so that a scripted policy which reads a view knows no more than a model that
reads the prompt. A view holds what the compact prompt shows and nothing else. What the full prompt adds (`copies`,
`desk`, `team_status`) is not part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from onthejob.envs.office.company_state import (
    DEMO,
    KINDS,
    PAINS,
    SEGMENTS,
    SIZES,
    STAGES,
    TIERS,
    TURNS_PER_DAY,
    WON,
    Stage,
    State,
    promoters,
)
from onthejob.envs.office.handlers import READ_FOR
from onthejob.envs.office.handlers.ceo import CHUNK, approvable, pivotable
from onthejob.envs.office.handlers.content import served, to_revise
from onthejob.envs.office.handlers.dev import CONTRACTOR_BOOST, pace, reviewable
from onthejob.envs.office.handlers.sales import shown_customers, shown_leads
from onthejob.envs.office.market import evidence, okr_progress
from onthejob.envs.office.reward_parts import focus_name
from onthejob.envs.office.roles import ROLES
from onthejob.envs.office.scenarios.goals import shown
from onthejob.envs.office.simulator import phase_of

View = dict[str, Any]
DRAFTS = 2
"""Drafts that Content sees, the oldest first."""


def view(s: State, role: str) -> View:
    """The role's view of `s`: plain, JSON-serialisable data."""
    seen = _common(s, role)
    _VIEWS[role](s, seen)
    return seen


def _common(s: State, role: str) -> View:
    return {
        "role": role,
        "day": s.day + 1,
        "days": s.days,
        "phase": phase_of(s.turn),
        "focus": focus_name(s),
        "blocked": role in s.blockers,
        "directive": s.directive_left > 0 and s.directive_role == role,
        "shipped": [spec.name for spec, day in zip(s.catalogue, s.feature_shipped, strict=True) if day >= 0],
        "inbox": [f"{sender}: {text}" for sender, to, text in _read(s, role) if to == role],
        "events": [kind for turn, kind in s.events if s.turn - turn < TURNS_PER_DAY],
    }


def _kpis(s: State, v: View) -> float:
    """What both who watch the whole company are shown of it; returns the customers' mean satisfaction."""
    mrr = pipeline = customers = leads = 0
    satisfied = 0.0
    for a in s.accounts:  # once for all of them: a branch looks at every turn
        stage = a.stage
        if stage == WON:
            customers += 1
            mrr += a.price
            satisfied += a.sat
        elif stage < WON:
            leads += 1
            if stage >= DEMO:
                pipeline += a.price
    v["cash"] = s.cash // 100_000
    v["mrr"] = mrr // 10_000
    v["customers"] = customers
    v["leads"] = leads
    v["pipeline"] = pipeline // 10_000
    v["conversion"] = round(1000 * s.conversion)
    v["brand"] = round(s.brand)
    satisfaction = satisfied / customers if customers else s.base_sat
    v["nps"] = round(promoters(satisfaction))
    v["stability"] = round(100 * s.stability)
    return satisfaction


def _ceo(s: State, v: View) -> None:
    v["satisfaction"] = round(100 * _kpis(s, v))
    v["goal"] = {name: shown(name, s, bound) for name, bound in s.goal.items()}
    v["pool"] = s.board_pool // 100_000
    v["envelopes"] = {name: cents // 10_000 for name, cents in s.envelopes.items()}
    v["traffic"] = round(sum(s.traffic), -2)
    v["okr_left"] = s.focus_left
    v["okr"] = round(100 * okr_progress(s))
    v["approve"] = approvable(s)
    v["pivot"] = pivotable(s)
    v["funded"] = s.board_pool >= CHUNK
    v["directed"] = s.directive_role if s.directive_left > 0 else ""
    v["aligned"] = round(100 * s.alignment)


def _dev(s: State, v: View) -> None:
    pace_now = max(0.05, s.velocity + (CONTRACTOR_BOOST if "dev" in s.contractor_days else 0.0))
    v["build"] = {
        spec.name: max(1, -(-int(s.feature_left[i] / pace_now * 100) // 100))
        for i, spec in enumerate(s.catalogue)
        if s.feature_shipped[i] < 0 and s.feature_left[i] > 0
    }
    v["started"] = [
        spec.name for i, spec in enumerate(s.catalogue) if s.feature_shipped[i] < 0 and 0 < s.feature_left[i] < spec.effort
    ]
    v["ready"] = [spec.name for i, spec in enumerate(s.catalogue) if s.feature_shipped[i] < 0 and s.feature_left[i] <= 0]
    v["unreviewed"] = reviewable(s)
    v["bugs"] = {"critical": s.bug_critical, "major": s.bug_major, "minor": s.bug_minor}
    v["debt"] = round(100 * s.debt)
    v["docs"] = round(100 * s.docs_level)
    v["stability"] = round(100 * s.stability)
    v["velocity"] = round(10 * pace(s)) / 10


def _marketing(s: State, v: View) -> None:
    _kpis(s, v)
    v["envelope"] = s.envelopes["marketing"] // 10_000
    v["traffic"] = {name: round(s.traffic[i], -1) for i, name in enumerate(SEGMENTS)}
    v["tired"] = {PAINS[i]: s.day - day for i, day in enumerate(s.novelty) if s.day - day < 7}
    v["research"] = {SEGMENTS[i]: PAINS[pain] for i, pain in enumerate(s.researched) if pain >= 0}
    v["competitor"] = round(100 * s.competitor)
    v["intel"] = s.intel
    v["ad"] = s.ad_days > 0
    v["new"] = [spec.name for spec, day in zip(s.catalogue, s.feature_shipped, strict=True) if day >= 0 and s.day - day <= 3]


def _sales(s: State, v: View) -> None:
    v["mrr"] = s.mrr() // 10_000
    v["leads"] = [
        {
            "name": a.name,
            "stage": STAGES[a.stage],
            "size": SIZES[a.size] if a.known else "?",
            "pain": PAINS[a.pain] if a.known else "?",
            "idle": (s.turn - a.contact) // TURNS_PER_DAY,
            "objections": a.objections,
            "approved": a.approved,
        }
        for a in shown_leads(s)
    ]
    v["customers"] = [
        {
            "name": a.name,
            "silent": (s.turn - a.contact) // TURNS_PER_DAY,
            "mood": round(10 * a.sat),
            "tier": TIERS[a.tier],
        }
        for a in shown_customers(s)
    ]
    v["updated"] = s.updated_day == s.day


def _content(s: State, v: View) -> None:
    drafts = [p for p in s.pieces if p.left > 0]
    v["drafts"] = [{"kind": KINDS[p.kind], "topic": PAINS[p.topic], "left": p.left} for p in drafts[:DRAFTS]]
    v["evidence"] = {pain: round(strength, 1) for pain, strength in zip(PAINS, evidence(s), strict=True)}
    v["revise"] = [f"p{p.id} {KINDS[p.kind]} {PAINS[p.topic]}" for p in to_revise(s)]
    v["served"] = served(s)
    v["satisfaction"] = round(100 * s.satisfaction())
    v["visits"] = round(s.content_stock)


def _hr(s: State, v: View) -> None:
    v["velocity"] = round(10 * s.velocity) / 10
    v["morale"] = round(100 * s.morale)
    v["aligned"] = round(100 * s.alignment)
    v["blockers"] = list(s.blockers)
    v["contractors"] = dict(s.contractor_days)
    v["envelope"] = s.envelopes["hr"] // 10_000
    v["okr_left"] = s.focus_left
    v["tracked"] = min(9, s.day - s.tracked)
    v["planned"] = s.daily.get("hr PLAN_SPRINT ", 0)


def _customer(s: State, v: View) -> None:
    v["customers"] = len(s.customers())
    v["critical"] = s.bug_critical
    v["satisfaction"] = round(100 * s.satisfaction())


DOING: MappingProxyType[tuple[str, str], str] = MappingProxyType(
    {
        ("ceo", "SET_OKRS"): "planning",
        ("ceo", "ALLOCATE_BUDGET"): "funding",
        ("ceo", "REVIEW_STRATEGY"): "reviewing",
        ("ceo", "PIVOT"): "pivoting",
        ("ceo", "SEND_DIRECTIVE"): "directing",
        ("ceo", "APPROVE_INITIATIVE"): "approving",
        ("dev", "BUILD_FEATURE"): "building",
        ("dev", "FIX_BUG"): "fixing",
        ("dev", "SHIP_RELEASE"): "shipping",
        ("dev", "REFACTOR"): "refactoring",
        ("dev", "WRITE_DOCS"): "documenting",
        ("dev", "REVIEW_PR"): "reviewing",
        ("marketing", "LAUNCH_CAMPAIGN"): "campaigning",
        ("marketing", "RUN_AD"): "advertising",
        ("marketing", "RESEARCH_MARKET"): "researching",
        ("marketing", "ANALYZE_COMPETITOR"): "researching",
        ("marketing", "OPTIMIZE_FUNNEL"): "optimizing",
        ("marketing", "A_B_TEST"): "testing",
        ("sales", "QUALIFY_LEAD"): "qualifying",
        ("sales", "RUN_DEMO"): "demonstrating",
        ("sales", "SEND_PROPOSAL"): "proposing",
        ("sales", "CLOSE_DEAL"): "closing",
        ("sales", "FOLLOW_UP"): "calling",
        ("sales", "COLLECT_FEEDBACK"): "listening",
        ("sales", "UPDATE_PIPELINE"): "updating",
        ("content", "WRITE_BLOG"): "writing",
        ("content", "WRITE_SOCIAL_POST"): "writing",
        ("content", "WRITE_CASE_STUDY"): "writing",
        ("content", "WRITE_EMAIL_SEQUENCE"): "writing",
        ("content", "WRITE_DOCS"): "writing",
        ("content", "REVISE_CONTENT"): "revising",
        ("hr", "PLAN_SPRINT"): "planning",
        ("hr", "TRACK_OKRS"): "tracking",
        ("hr", "RESOLVE_BLOCKER"): "unblocking",
        ("hr", "HIRE_CONTRACTOR"): "hiring",
        ("hr", "PERFORMANCE_REVIEW"): "reviewing",
        ("hr", "TEAM_SYNC"): "aligning",
        ("customer", "EVALUATE_PRODUCT"): "evaluating",
        ("customer", "REQUEST_FEATURE"): "requesting",
        ("customer", "GIVE_FEEDBACK"): "commenting",
        ("customer", "REFER_LEAD"): "referring",
        ("customer", "ESCALATE_ISSUE"): "escalating",
        ("customer", "RENEW_CONTRACT"): "renewing",
    }
)
"""(Role, action type) -> what colleagues learn of it: the kind of work and nothing of its object or its success."""

_VIEWS: MappingProxyType[str, Callable[[State, View], None]] = MappingProxyType(
    {
        "ceo": _ceo,
        "dev": _dev,
        "marketing": _marketing,
        "sales": _sales,
        "content": _content,
        "hr": _hr,
        "customer": _customer,
    }
)


def copies(s: State) -> list[str]:
    """The messages between others that the CEO may read, for its full profile."""
    return [f"{sender} to {to}: {text}" for sender, to, text in _read(s, "ceo") if to != "ceo"]


def desk(s: State) -> list[str]:
    """What Sales' own work on each lead showed and left behind, for its full profile: one line a lead from the demo on."""
    lines = []
    for a in shown_leads(s):
        if a.stage >= Stage.DEMO:
            offered = f", offered {TIERS[a.tier]}" if a.stage >= Stage.PROPOSAL else ""
            lines.append(f"{a.name}: demo {a.demo:+.1f}, warmth {a.warmth:.1f}{offered}, refused {a.failed} of 3")
    return lines


def team_status(s: State, role: str) -> dict[str, str]:
    """What every other team is doing, in one coarse word each, by its last turn, for the full profile.

    Holds no name, number or need: detail travels in messages only.
    """
    return {other: "blocked" if other in s.blockers else _doing(s, other) for other in map(str, ROLES) if other != role}


def _doing(s: State, role: str) -> str:
    did = s.acted.get(role)
    return "starting" if did is None else DOING.get((role, did), "idle")


def _read(s: State, role: str) -> list[tuple[str, str, str]]:
    """(sender, addressee, text) of what the role still reads, oldest first."""
    return [(sender, to, text) for turn, sender, text, to in s.inbox.get(role, ()) if s.turn - turn <= READ_FOR]
