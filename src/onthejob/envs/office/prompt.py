"""From a role's view to chat messages.

Two profiles: `compact` for small models (about 250 tokens, the action JSON without reasoning, at most 40 tokens) and `full`
(adds Sales' desk, team status, the shared board, memories, reflections and plan, and asks for reasoning). The system message is
constant per role and profile, so that a sampler can cache it. Everything is rendered from the view, never from the state.

Priorities: P0 header and KPIs (pinned), P1 what can be acted on (pinned), P2 inbox, P3 events, P4 Sales' desk and team status, P5
shared board and the CEO's copies of messages, P6 memories, P7 plan and reflections, P8 call to action (pinned: it is dropped last
of all, not first).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from onthejob.envs.office.company_state import DEPARTMENTS, PAINS, SEGMENTS
from onthejob.envs.office.handlers.content import VERB_OF
from onthejob.envs.office.handlers.hr import CONTRACTOR, HIRABLE
from onthejob.envs.office.handlers.marketing import AD, CAMPAIGN, TEST
from onthejob.envs.office.handlers.sales import NEXT_STEP
from onthejob.envs.office.roles import ROLES, Role
from onthejob.envs.office.scenarios.goals import UNITS
from onthejob.envs.office.sections import Count, Section, prune
from onthejob.types import Message

View = Mapping[str, Any]
PROFILES = ("compact", "full")

_SEGMENTS, _PAINS = "|".join(SEGMENTS), "|".join(PAINS)
_ALWAYS: MappingProxyType[str, str] = MappingProxyType({
    "ceo": "SET_OKRS growth|product|retention; SEND_DIRECTIVE dev|marketing|sales|content|hr; REVIEW_STRATEGY",
    "dev": "REFACTOR; WRITE_DOCS",
    "marketing": f"RESEARCH_MARKET {_SEGMENTS}; ANALYZE_COMPETITOR; OPTIMIZE_FUNNEL",
    "sales": "UPDATE_PIPELINE",
    "content": f"WRITE_BLOG, WRITE_SOCIAL_POST, WRITE_EMAIL_SEQUENCE, WRITE_DOCS {_PAINS}",
    "hr": "PLAN_SPRINT; TRACK_OKRS; PERFORMANCE_REVIEW; TEAM_SYNC",
    "customer": "EVALUATE_PRODUCT; REQUEST_FEATURE; GIVE_FEEDBACK; REFER_LEAD; ESCALATE_ISSUE; RENEW_CONTRACT",
})  # fmt: skip
"""What is possible in every state (an exhausted one would achieve nothing, but is legal)."""
LISTED: MappingProxyType[str, str] = MappingProxyType({
    "ceo": "with a target listed below: ALLOCATE_BUDGET, PIVOT, APPROVE_INITIATIVE",
    "dev": "with a target listed below: BUILD_FEATURE, FIX_BUG, SHIP_RELEASE, REVIEW_PR",
    "marketing": f"when affordable: LAUNCH_CAMPAIGN {_PAINS} (500), RUN_AD {_SEGMENTS} (300), A_B_TEST (200)",
    "sales": "with a name listed below for it: QUALIFY_LEAD, RUN_DEMO, SEND_PROPOSAL, CLOSE_DEAL, COLLECT_FEEDBACK; "
    "FOLLOW_UP any lead",
    "content": "with a target listed below: WRITE_CASE_STUDY, REVISE_CONTENT",
    "hr": "with a target listed below: RESOLVE_BLOCKER, HIRE_CONTRACTOR (1000)",
    "customer": "",
})  # fmt: skip
"""What is possible only in some states: the user message lists it with its targets exactly when it is legal, so that a small
model can copy what it may do."""
_EXAMPLES: MappingProxyType[str, str] = MappingProxyType(
    {
        "ceo": '{"action_type":"SET_OKRS","target":"growth"}',
        "dev": '{"action_type":"REFACTOR","target":""}',
        "marketing": '{"action_type":"LAUNCH_CAMPAIGN","target":"sync"}',
        "sales": '{"action_type":"RUN_DEMO","target":"Acme","message":"dev: need sync"}',
        "content": '{"action_type":"WRITE_BLOG","target":"sync"}',
        "hr": '{"action_type":"TEAM_SYNC","target":""}',
        "customer": '{"action_type":"GIVE_FEEDBACK","target":""}',
    }
)
"""What a reply looks like. A small model repeats it where it knows nothing better, so it is always possible but for the two roles
whose usual replies name something: with FIX_BUG here, Dev fixed bugs that were not there."""


def system_text(role: str, profile: str) -> str:
    """The constant part: who you are, what you may do, how to answer."""
    only = f"\nOnly {LISTED[role]}." if LISTED[role] else ""
    text = f"{persona(role)}\nActions: {_ALWAYS[role]}.{only}\nReply with JSON only: {_EXAMPLES[role]}"
    if profile == "compact":
        return text
    return (
        f"{text}\nThe goal of all seven roles is the company's value: cash plus twelve months of retained contracts. Pains: "
        f"{', '.join(PAINS)}. Each customer has one pain; a shipped feature or content that serves it helps to win and keep the "
        'customer. Sales may offer tiers with "parameters":{"tier":"monthly"|"six_month"|"annual"}; large deals need the CEO\'s '
        'approval. Add "reasoning" (one sentence) before "message". "message" is optional, at most 240 characters, addressed as '
        '"role: text"; "need PAIN" and "approve NAME" are understood by everyone.'
    )


def persona(role: str) -> str:
    """Who you are, for requests that are not about an action."""
    spec = ROLES[Role(role)]
    return f"You are {spec.person}, {role} of a startup: {spec.duty}."


def sections(view: View, extra: Mapping[str, Sequence[str]] | None = None) -> list[Section]:
    """The user message as sections in render order.

    Args:
        view: from `views.view`.
        extra: for the full profile: `desk`, `team`, `copies`, `board`, `memories`, `insights` as lines, what matters most first.
    """
    extra = extra or {}
    head = f"Day {view['day']}/{view['days']} {view['phase']}. Focus {view['focus']}."
    if view["blocked"]:
        head += " You are blocked."
    if view["directive"]:
        head += " CEO directive: your work counts more."
    kpis, acts = _RENDER[view["role"]](view)
    blocks = [Section("header", 0, head, pinned=True), Section("kpis", 0, kpis, pinned=True)]
    blocks.append(Section("shipped", 1, "Shipped: " + (" ".join(view["shipped"]) or "none"), pinned=True))
    if acts:
        blocks.append(Section("work", 1, "\n".join(acts), pinned=True))
    if view["inbox"]:
        blocks.append(Section("inbox", 2, "\n".join(reversed(view["inbox"])), keep_lines=1))
    if view["events"]:
        blocks.append(Section("events", 3, "Events: " + " ".join(view["events"])))
    for key, title, priority in _EXTRA:
        if extra.get(key):
            blocks.append(Section(key, priority, f"{title}:\n" + "\n".join(extra[key]), keep_lines=2))
    blocks.append(Section("call", 8, "JSON:", pinned=True))
    return blocks


def messages(
    view: View,
    *,
    profile: str = "compact",
    extra: Mapping[str, Sequence[str]] | None = None,
    budget: int | None = None,
    count: Count | None = None,
) -> tuple[Message, ...]:
    """(system, user).

    With `budget` (tokens of the user message) and `count` (the policy's tokenizer) sections of lower priority are dropped.
    """
    return rendered(view["role"], profile, sections(view, extra if profile == "full" else None), budget=budget, count=count)


def rendered(
    role: str, profile: str, blocks: Sequence[Section], *, budget: int | None, count: Count | None
) -> tuple[Message, ...]:
    """`messages` of sections that were made before."""
    text = "\n".join(b.text for b in blocks if b.text)
    # A token has at least one byte, so most prompts need not be counted.
    if budget is not None and count is not None and len(text.encode("utf-8", "surrogatepass")) > budget:
        text = prune(blocks, budget, count).text
    return (Message("system", system_text(role, profile)), Message("user", text))


_EXTRA = (
    ("desk", "Desk", 4),
    ("team", "Team", 4),
    ("copies", "Copies", 5),
    ("board", "Board", 5),
    ("memories", "Memories", 6),
    ("insights", "Insights", 7),
)


def _names(title: str, items: Sequence[str]) -> list[str]:
    return [f"{title}: {' '.join(items)}"] if items else []


def _ceo(v: View) -> tuple[str, list[str]]:
    money = " ".join(f"{name} {100 * hundreds}" for name, hundreds in v["envelopes"].items())
    kpis = (
        f"Cash {v['cash']}k MRR {v['mrr'] / 10:.1f}k customers {v['customers']} leads {v['leads']} "
        f"pipeline {v['pipeline'] / 10:.1f}k traffic {v['traffic']:.0f} conversion {v['conversion'] / 10:.1f}% "
        f"brand {v['brand']} NPS {v['nps']}\n"
        f"Stability {v['stability']} satisfaction {v['satisfaction']} alignment {v['aligned']}. "
        f"OKR days left {v['okr_left']} reached {v['okr']}%"
    )
    if v["goal"]:
        bounds = (f"{UNITS[name][0].format(bound)} (now {now:g})" for name, (now, bound) in v["goal"].items())
        kpis += f"\nGoal by day {v['days']}: {', '.join(bounds)}"
    acts = [f"Released {v['pool']}k. Envelopes: {money}", f"Directive: {v['directed'] or 'none'}"]
    acts += _names("ALLOCATE_BUDGET", DEPARTMENTS if v["funded"] else ())
    return kpis, acts + _names("PIVOT", v["pivot"]) + _names("APPROVE_INITIATIVE", v["approve"])


def _dev(v: View) -> tuple[str, list[str]]:
    kpis = f"Stability {v['stability']} velocity {v['velocity']} debt {v['debt']} docs {v['docs']}"
    started = set(v["started"])
    build = [f"{name}{'*' if name in started else ''} {left}" for name, left in v["build"].items()]
    acts = [f"BUILD_FEATURE (turns left, * begun): {', '.join(build)}"] if build else []
    bugs = [f"{name} {n}" for name, n in v["bugs"].items() if n]
    acts += [f"FIX_BUG: {', '.join(bugs)}"] if bugs else []
    return kpis, acts + _names("SHIP_RELEASE", v["ready"]) + _names("REVIEW_PR", v["unreviewed"])


def _marketing(v: View) -> tuple[str, list[str]]:
    kpis = (
        f"Envelope {100 * v['envelope']} cash {v['cash']}k MRR {v['mrr'] / 10:.1f}k pipeline {v['pipeline'] / 10:.1f}k "
        f"customers {v['customers']} leads {v['leads']} conversion {v['conversion'] / 10:.1f}% brand {v['brand']} NPS {v['nps']} "
        f"stability {v['stability']}\nTraffic: " + " ".join(f"{name} {n:.0f}" for name, n in v["traffic"].items())
    )
    acts = [f"Competitor {v['competitor']}, analysis {v['intel']}d. Ad {'running' if v['ad'] else 'off'}"]
    if v["research"]:
        acts.append("Needs: " + " ".join(f"{segment} {pain}" for segment, pain in v["research"].items()))
    if v["tired"]:
        acts.append("Campaigns this week: " + " ".join(f"{pain} {days}d" for pain, days in v["tired"].items()))
    acts += _names("New", v["new"])
    can = [
        name
        for name, dollars in (("LAUNCH_CAMPAIGN", CAMPAIGN), ("RUN_AD", AD), ("A_B_TEST", TEST))
        if 100 * v["envelope"] >= dollars
    ]
    return kpis, [*acts, f"Affordable: {' '.join(can) or 'none'}"]


def _sales(v: View) -> tuple[str, list[str]]:
    kpis = f"MRR {v['mrr'] / 10:.1f}k. Pipeline {'updated' if v['updated'] else 'not updated'} today"
    by_step: dict[str, list[str]] = {"CLOSE_DEAL": [], "SEND_PROPOSAL": [], "RUN_DEMO": [], "QUALIFY_LEAD": []}
    for lead in v["leads"]:
        text = f"{lead['name']} {lead['idle']}d"
        if lead["size"] != "?":
            text = f"{lead['name']} {lead['size']} {lead['pain']} {lead['idle']}d"
        if lead["objections"]:
            text += f" objections {lead['objections']}"
        if lead["approved"]:
            text += " approved"
        if lead["stage"] == "negotiation":
            text += " again"
        by_step[NEXT_STEP[lead["stage"]]].append(text)
    acts = [f"{step}: {', '.join(items)}" for step, items in by_step.items() if items]
    if v["customers"]:
        acts.append(
            "COLLECT_FEEDBACK (days silent, mood, contract): "
            + ", ".join(f"{c['name']} {c['silent']}d {c['mood']} {c['tier']}" for c in v["customers"])
        )
    return kpis, acts


def _content(v: View) -> tuple[str, list[str]]:
    kpis = f"Satisfaction {v['satisfaction']} visits {v['visits']}. Evidence: " + " ".join(
        f"{pain} {x}" for pain, x in v["evidence"].items()
    )
    acts = [f"Draft: {VERB_OF[d['kind']]} {d['topic']}, {d['left']} turns left" for d in v["drafts"]]
    acts += [f"REVISE_CONTENT: {', '.join(v['revise'])}"] if v["revise"] else []
    return kpis, acts + _names("WRITE_CASE_STUDY", v["served"])


def _hr(v: View) -> tuple[str, list[str]]:
    kpis = (
        f"Velocity {v['velocity']} morale {v['morale']} alignment {v['aligned']}. Envelope {100 * v['envelope']}. "
        f"Sprint plans today {v['planned']}. "
        f"OKR days left {v['okr_left']}, tracked {v['tracked']}d ago"
    )
    acts = _names("RESOLVE_BLOCKER", v["blockers"])
    if 100 * v["envelope"] >= CONTRACTOR:
        acts += _names("HIRE_CONTRACTOR", [role for role in HIRABLE if role not in v["contractors"]])
    if v["contractors"]:
        acts.append("Contractors: " + ", ".join(f"{role} {days}d" for role, days in v["contractors"].items()))
    return kpis, acts


def _customer(v: View) -> tuple[str, list[str]]:
    return f"Customers {v['customers']} satisfaction {v['satisfaction']} critical bugs {v['critical']}", []


_RENDER: MappingProxyType[str, Callable[[View], tuple[str, list[str]]]] = MappingProxyType({
    "ceo": _ceo, "dev": _dev, "marketing": _marketing, "sales": _sales, "content": _content, "hr": _hr, "customer": _customer,
})  # fmt: skip
