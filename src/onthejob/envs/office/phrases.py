"""Texts of memories as bytes: a usual phrase takes one, so that an agent's days fit into a snapshot.

Any text comes back as it was; what the office says of itself is short. The list is part of the snapshot's format.
"""

from __future__ import annotations

import re
from functools import lru_cache
from types import MappingProxyType

PHRASES = (
    "I did ", ": it worked", ": it changed nothing", " worked ", " of ", " times, ", " each: it pays.",
    " each: something else may be better.", " on ", "the company", "more ", "; less ", "less ", "; keep an eye on ",
    "What keeps coming up: ", " times)", "Over ", " reviews ", " times: ", "rely on it.", "stop it.",
    "it depends on the case.", "a new lead", " lead", "a customer", "a draft", "a large deal", "the pipeline", "event ",
    "customer satisfaction 0.", " critical bugs hurt", "sales won a deal", "dev shipped ", "need ", "approve ", "unhappy ",
    "SET_OKRS", "ALLOCATE_BUDGET", "REVIEW_STRATEGY", "PIVOT", "SEND_DIRECTIVE", "APPROVE_INITIATIVE", "BUILD_FEATURE",
    "FIX_BUG", "SHIP_RELEASE", "REFACTOR", "WRITE_DOCS", "REVIEW_PR", "LAUNCH_CAMPAIGN", "RUN_AD", "RESEARCH_MARKET",
    "ANALYZE_COMPETITOR", "OPTIMIZE_FUNNEL", "A_B_TEST", "QUALIFY_LEAD", "RUN_DEMO", "SEND_PROPOSAL", "CLOSE_DEAL",
    "FOLLOW_UP", "COLLECT_FEEDBACK", "UPDATE_PIPELINE", "WRITE_BLOG", "WRITE_SOCIAL_POST", "WRITE_CASE_STUDY",
    "WRITE_EMAIL_SEQUENCE", "REVISE_CONTENT", "PLAN_SPRINT", "TRACK_OKRS", "RESOLVE_BLOCKER", "HIRE_CONTRACTOR",
    "PERFORMANCE_REVIEW", "TEAM_SYNC", "SSO", "API", "Dashboard", "App", "Cache", "Invoices", "Audit", "Webhooks",
    "security", "sync", "reports", "mobile", "speed", "billing", "fintech", "retail", "health", "ceo", "dev", "marketing",
    "sales", "content", "hr", "customer", "growth", "product", "retention", "critical", "major", "minor",
    "competitor_launch", "viral_moment", "pr_crisis", "algorithm_change", "budget_cut", "big_customer_inquiry",
    "feature_request_wave", "customer_success_story", "funding_news", "feature_parity", "poaching", "board_checkin",
)  # fmt: skip
"""At most 128. Append only; every other change makes old snapshots unreadable."""
_FIRST = 0x80
_CODES = MappingProxyType({phrase: chr(_FIRST + place) for place, phrase in enumerate(PHRASES)})
_TABLE = {_FIRST + place: phrase for place, phrase in enumerate(PHRASES)}
_PATTERN = re.compile("|".join(map(re.escape, sorted(PHRASES, key=len, reverse=True))))
_RAW = "\0"
"""Before a text that is no ASCII."""


@lru_cache(maxsize=8192)
def shorten(text: str) -> bytes:
    """`text` with a byte for each usual phrase; kept, because texts recur."""
    if not text.isascii() or text.startswith(_RAW):
        return (_RAW + text).encode("utf-8", "surrogatepass")
    return _PATTERN.sub(lambda found: _CODES[found[0]], text).encode("latin-1")


def lengthen(data: bytes) -> str:
    """The text that `shorten` made `data` of; UnicodeDecodeError when it made none of this kind."""
    if data[:1] == b"\0":
        return data[1:].decode("utf-8", "surrogatepass")
    return data.decode("latin-1").translate(_TABLE)
