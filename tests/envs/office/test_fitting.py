"""How long a user message may be follows from a model's context, and what it may need is known beforehand."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import pytest

from onthejob.envs.office.env import OfficeConfig, OfficeEnvironment
from onthejob.envs.office.fitting import LONGEST_BYTES, PINNED_BYTES, SEAMS, fitting_tokens
from onthejob.envs.office.policies import as_reply, players
from onthejob.envs.office.prompt import system_text
from onthejob.envs.office.reply_schema import action_schema
from onthejob.envs.office.roles import TRAINED_ROLES
from onthejob.envs.office.scenarios import HELD_OUT, SHIPPED
from onthejob.errors import ConfigError
from onthejob.rollout.reading import messages_within
from onthejob.types import Message, PromptBudget, Window

AROUND = 10
"""Tokens around a message, by the counts of these tests."""
COMPACT = max(len(system_text(role, "compact")) for role in TRAINED_ROLES) + 2 * AROUND + SEAMS
"""Of a request but for its user message."""


def window(tokens: int, *, reply: int = 32, estimated: bool = False) -> Window:
    """A context whose tokens are characters."""

    def measure(messages: Sequence[Message]) -> int:
        return sum(AROUND + len(message.content) for message in messages)

    return Window(tokens=tokens, reply=reply, count=len, measure=measure, estimated=estimated)


def test_the_budget_is_what_reply_system_message_and_template_leave():
    assert fitting_tokens(window(8_192), profile="compact") == 8_192 - 32 - COMPACT
    assert fitting_tokens(window(8_192, reply=500), profile="compact") == 8_192 - 500 - COMPACT
    full = fitting_tokens(window(8_192), profile="full")
    assert full is not None
    assert full < 8_192 - 32 - COMPACT, "its system message is longer"


def test_a_context_that_cannot_hold_the_pinned_sections_is_refused_with_the_remedy():
    least = PINNED_BYTES + 32 + COMPACT
    assert fitting_tokens(window(least), profile="compact") == PINNED_BYTES
    said = (
        rf"context of {least - 1} tokens leaves {PINNED_BYTES - 1} .* reply of up to 32 and {COMPACT} of .*--env\.prompt-budget"
    )
    with pytest.raises(ConfigError, match=said):
        fitting_tokens(window(least - 1), profile="compact")
    with pytest.raises(ConfigError, match="context of 64 tokens leaves 0"):
        fitting_tokens(window(64), profile="compact")


def test_a_context_that_no_prompt_can_exceed_gives_no_budget():
    least = 32 + COMPACT + LONGEST_BYTES["compact"]
    assert fitting_tokens(window(least - 1), profile="compact") == LONGEST_BYTES["compact"] - 1
    assert fitting_tokens(window(least), profile="compact") is None
    assert fitting_tokens(window(32_768), profile="full") is not None
    assert fitting_tokens(window(131_072, reply=4_096), profile="full", retries=8) is None


def test_corrections_take_what_they_need_but_never_more_than_half_nor_what_is_pinned():
    some = [fitting_tokens(window(16_384, reply=300), profile="compact", retries=retries) for retries in range(9)]
    assert None not in some
    taken = [16_384 - 300 - COMPACT - tokens for tokens in some if tokens is not None]
    steps = [later - earlier for earlier, later in itertools.pairwise(taken)]
    assert taken[0] == 0
    assert all(step > 300 + 2 * AROUND for step in steps), "a reply, two messages, feedback"
    assert steps == sorted(steps), "feedback grows"
    tight = 6_000 - 300 - COMPACT
    assert fitting_tokens(window(6_000, reply=300), profile="compact", retries=8) == tight // 2
    small = PINNED_BYTES + 300 + COMPACT + 100
    assert fitting_tokens(window(small, reply=300), profile="compact", retries=8) == PINNED_BYTES


def test_the_schema_of_replies_counts_where_a_provider_is_given_it():
    plain, estimated = (fitting_tokens(window(8_192, estimated=given), profile="compact") for given in (False, True))
    assert plain is not None
    assert estimated is not None
    schemas = [len(json.dumps(action_schema(str(role)))) for role in TRAINED_ROLES]
    assert min(schemas) <= plain - estimated <= max(schemas)


def test_a_reflection_that_cannot_fit_is_refused():
    assert fitting_tokens(window(8_192), profile="full", reflect=True) == fitting_tokens(window(8_192), profile="full")
    with pytest.raises(ConfigError, match=r"--env\.reflect asks with up to \d+ tokens; with a reply of up to 1200 that exceeds"):
        fitting_tokens(window(4_400, reply=1_200), profile="full", reflect=True)


@pytest.mark.parametrize("scenario", [*SHIPPED, *HELD_OUT])
@pytest.mark.parametrize("text", ["\N{SLIGHTLY SMILING FACE}" * 240, "need sync"], ids=["long", "short"])
def test_no_company_needs_more_than_is_reckoned_with(scenario: str, text: str, task) -> None:
    """Neither when every role writes as much as it may to all, in characters of four bytes."""
    most = {"pinned": 0, "compact": 0, "full": 0}
    full, expert = OfficeEnvironment(OfficeConfig(profile="full")), as_reply(players()["expert"])
    observation = full.reset(task(scenario, days=30))
    while observation is not None:
        blocks = full.sections(observation.actor)
        most["pinned"] = max(most["pinned"], len("\n".join(block.text for block in blocks if block.pinned).encode()))
        most["full"] = max(most["full"], len(observation.messages[1].content.encode()))
        short = [block for block in blocks if block.pinned or block.key in ("inbox", "events")]
        most["compact"] = max(most["compact"], len("\n".join(block.text for block in short).encode()))
        turn = full.company.turn
        to = [str(role) for role in TRAINED_ROLES if role != observation.actor][turn % 5]
        reply = json.loads(expert(observation, turn)) | {"message": f"{'all' if turn % 14 == 2 else to}: {text}"}
        observation = full.step(json.dumps(reply, ensure_ascii=False)).observation
    assert most["pinned"] <= PINNED_BYTES, most
    assert most["compact"] <= LONGEST_BYTES["compact"], most
    assert most["full"] <= LONGEST_BYTES["full"], most
    if len(text) > 200:
        assert most["compact"] > 4_000, "the messages were read"


def test_who_reads_prunes_and_a_stated_budget_holds_for_all(task) -> None:
    def words(text: str) -> int:
        return len(text.split())

    free = OfficeEnvironment(OfficeConfig(profile="full"))
    stated = OfficeEnvironment(OfficeConfig(profile="full", budget=90), count_tokens=words)
    one, other = free.reset(task(days=6)), stated.reset(task(days=6))
    budget, expert, pruned = PromptBudget(tokens=90, count=words), as_reply(players()["expert"]), 0
    while one is not None and other is not None:
        # Not even the bytes fit, so that words are counted.
        if len(one.messages[1].content) > 90:
            assert tuple(messages_within(one, budget)) == tuple(other.messages)
        pruned += messages_within(one, budget) != one.messages
        assert messages_within(other, PromptBudget(tokens=20_000, count=words)) == other.messages
        reply = expert(one, free.company.turn)
        one, other = free.step(reply).observation, stated.step(reply).observation
    assert pruned > 20
