"""Prompts: a constant system text, everything from the view, within any budget that holds the pinned parts."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onthejob.envs.office.actions import Action, parse
from onthejob.envs.office.company_state import PAINS, SEGMENTS, Stage
from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.handlers.customer import deliver
from onthejob.envs.office.prompt import LISTED, messages, persona, sections, system_text
from onthejob.envs.office.roles import ROLES, Role
from onthejob.envs.office.scenarios import SHIPPED
from onthejob.envs.office.simulator import actor_of
from onthejob.envs.office.views import view
from onthejob.errors import ConfigError
from onthejob.office_players import as_policy, players
from onthejob.types import Context, Sampling

EXTRA = {
    "team": ["dev: building", "hr: supporting", "content: writing"],
    "copies": ["sales to dev: need sync"],
    "board": ["dev: shipped SSO", "sales: won a deal", "sales: won a deal"],
    "memories": ["event pr_crisis", "dev shipped SSO"],
    "insights": ["Plan: build", "FIX_BUG on critical worked 3 of 4 times"],
}
PINNED = {"header", "kpis", "shipped", "work", "call"}


def count(text: str) -> int:
    """A stand-in for a tokenizer: words, numbers and marks."""
    return len(re.findall(r"\w+|[^\w\s]|\n", text))


@pytest.fixture(scope="module")
def busy(playing) -> dict[str, dict]:
    """Every role's view on a full desk with full inboxes."""
    for _, s, *_ in playing("expert", "viral", 4):
        if s.turn >= 200 and s.pieces and any(a.stage < Stage.WON for a in s.accounts):
            for role in ROLES:
                for pain in PAINS[:3]:
                    deliver(s, "sales", str(role), f"need {pain}")
            s.events.append([s.turn, "pr_crisis"])
            return {str(role): view(s, str(role)) for role in ROLES}
    raise AssertionError("the episode never got there")


def shown_reply(text: str) -> str:
    """What a system text shows as a reply."""
    form = next(line for line in text.splitlines() if line.startswith("Reply with JSON only: "))
    return form.removeprefix("Reply with JSON only: ")


@pytest.mark.parametrize("profile", ["compact", "full"])
@pytest.mark.parametrize("role", list(ROLES))
def test_the_system_text_says_who_what_and_how(role: Role, profile: str) -> None:
    text = system_text(role, profile)
    spec = ROLES[role]
    assert text.startswith(f"You are {spec.person}, {role} of a startup: {spec.duty}.")
    assert text.startswith(persona(role))
    named = set(re.findall(r"\b[A-Z][A-Z_]{3,}\b", text)) - {"JSON", "PAIN", "NAME"}
    assert named == set(spec.actions)
    example = shown_reply(text)
    read = parse(example, role)
    assert isinstance(read, Action)
    assert read.clean
    assert json.loads(example)["action_type"] in spec.actions
    assert ("reasoning" in text) == (profile == "full")


def test_system_texts_are_short_in_the_compact_profile() -> None:
    for role in ROLES:
        assert count(system_text(role, "compact")) < 150
        assert system_text(role, "compact") in system_text(role, "full")


@pytest.mark.parametrize("profile", ["compact", "full"])
def test_the_system_text_is_constant_over_an_episode(task, profile: str) -> None:
    env = OfficeEnvironment(OfficeConfig(profile=profile))
    observation = env.reset(task("viral", days=10))
    expert = as_policy(players()["expert"], version="expert")
    texts: dict[str, set[str]] = {}
    users = set()
    while observation is not None:
        system, user = observation.messages
        assert (system.role, user.role) == ("system", "user")
        texts.setdefault(observation.actor, set()).add(system.content)
        users.add(user.content)
        observation = env.step(expert.act([Context(observation=observation)], Sampling())[0].text).observation
    assert {role: list(found) for role, found in texts.items()} == {role: [system_text(role, profile)] for role in SEATS}
    assert len(users) == 120


def test_a_compact_prompt_is_small(busy) -> None:
    for role, seen in busy.items():
        system, user = messages(seen)
        assert count(system.content) + count(user.content) < 330, role
        assert user.content.startswith("Day 15/30 ")
        assert user.content.endswith("\nJSON:")


def test_the_compact_profile_has_no_extras(busy) -> None:
    for seen in busy.values():
        assert messages(seen, extra=EXTRA) == messages(seen)
        assert [section.key for section in sections(seen)] == [
            key
            for key in ("header", "kpis", "shipped", "work", "inbox", "events", "call")
            if key != "work" or seen["role"] != "customer"
        ]


def test_the_full_profile_adds_its_sections_in_order(busy) -> None:
    for seen in busy.values():
        blocks = sections(seen, EXTRA)
        keys = [block.key for block in blocks]
        assert keys[-6:] == ["team", "copies", "board", "memories", "insights", "call"]
        assert {block.key for block in blocks if block.pinned} == PINNED & set(keys)
        priorities = {block.key: block.priority for block in blocks}
        assert [priorities[key] for key in ("header", "inbox", "events", "team", "board", "memories", "insights", "call")] == [
            0, 2, 3, 4, 5, 6, 7, 8,
        ]  # fmt: skip
        text = messages(seen, profile="full", extra=EXTRA)[1].content
        assert all(line in text for lines in EXTRA.values() for line in lines)


@given(budget=st.integers(1, 600), role=st.sampled_from(list(ROLES)))
def test_any_budget_is_kept_or_refused(busy, budget: int, role: Role) -> None:
    seen = busy[role]
    pinned = [block.text for block in sections(seen, EXTRA) if block.pinned]
    needed = count("\n".join(pinned))
    if budget < needed:
        with pytest.raises(ConfigError, match=f"budget of {budget} tokens"):
            messages(seen, profile="full", extra=EXTRA, budget=budget, count=count)
        return
    text = messages(seen, profile="full", extra=EXTRA, budget=budget, count=count)[1].content
    assert count(text) <= budget
    assert all(block in text for block in pinned)
    more = messages(seen, profile="full", extra=EXTRA, budget=budget + 40, count=count)[1].content
    assert len(more) >= len(text)


def test_what_matters_least_is_dropped_first(busy) -> None:
    full = messages(busy["sales"], profile="full", extra=EXTRA)[1].content
    order = []
    for budget in range(count(full), 0, -1):
        try:
            text = messages(busy["sales"], profile="full", extra=EXTRA, budget=budget, count=count)[1].content
        except ConfigError:
            break
        gone = [
            title
            for title in ("Insights:", "Memories:", "Board:", "Copies:", "Team:", "Events:", "sales: need")
            if title not in text
        ]
        order += [title for title in gone if title not in order]
    assert order == ["Insights:", "Memories:", "Board:", "Copies:", "Team:", "Events:", "sales: need"]


def board(text: str) -> list[str]:
    """Lines of the board in a user message."""
    lines = text.split("\n")
    if "Board:" not in lines:
        return []
    rest = lines[lines.index("Board:") + 1 :]
    return rest[: next(i for i, line in enumerate(rest) if line in ("Memories:", "Insights:", "JSON:"))]


def test_a_cut_board_keeps_its_newest_lines(task) -> None:
    tight = OfficeEnvironment(OfficeConfig(profile="full", budget=130), count_tokens=count)
    free = OfficeEnvironment(OfficeConfig(profile="full"))
    observation, other = tight.reset(task("viral", days=12)), free.reset(task("viral", days=12))
    expert = as_policy(players()["expert"], version="expert")
    cut = 0
    while observation is not None and other is not None:
        kept, whole = (board(asked.messages[1].content) for asked in (observation, other))
        assert whole[: len(kept)] == kept
        cut += 0 < len(kept) < len(whole)
        assert count(observation.messages[1].content) <= 130
        reply = expert.act([Context(observation=observation)], Sampling())[0].text
        observation, other = tight.step(reply).observation, free.step(reply).observation
    assert cut > 5


def test_a_cut_inbox_keeps_its_newest_message(busy) -> None:
    seen = busy["content"]
    text = messages(
        seen, budget=count(messages(seen)[1].content) - count("Events: pr_crisis support_overload\n") - 3, count=count
    )[1].content
    kept = [line for line in text.split("\n") if line in seen["inbox"]]
    assert 0 < len(kept) < len(seen["inbox"])
    assert kept[0] == seen["inbox"][-1]


def test_the_prompt_is_a_function_of_the_view(busy) -> None:
    for seen in busy.values():
        copy = json.loads(json.dumps(seen))
        assert messages(copy) == messages(seen)
        assert copy == seen


def test_every_legal_target_can_be_read_from_the_prompt(playing) -> None:
    """What an actor may choose is on its desk: names, ids and roles in its user text, fixed words in its system text."""
    asked = 0
    for simulator, s, *_ in playing("expert", "churn", 6):
        if s.done or s.turn % 9 or actor_of(s.turn) == "customer":
            continue
        role = actor_of(s.turn)
        text = "\n".join(message.content for message in messages(view(s, role)))
        known = set(re.findall(r"[\w-]+", text)) | {""}
        if role in ("marketing", "content", "ceo"):
            known |= set(PAINS) | set(SEGMENTS)  # written as `pain` and `segment`
        for action in simulator.legal(s, role):
            assert action.target in known, (role, action)
            asked += 1
    assert asked > 300


@pytest.mark.parametrize("text", ["x" * 240, "a\u2028b", "«émoji» 🙂"])
def test_long_and_strange_messages_stay_one_line(office, text: str) -> None:
    company = office()
    deliver(company.state, "sales", "dev", text.replace("\u2028", " "))
    lines = messages(view(company.state, "dev"))[1].content.split("\n")
    (line,) = (line for line in lines if line.startswith("sales: "))
    assert line == "sales: " + text.replace("\u2028", " ")


def test_a_role_is_told_that_it_is_blocked_or_directed(office) -> None:
    company = office()
    company.act("ceo", "SEND_DIRECTIVE", "dev")
    company.state.blockers["dev"] = 0
    assert "You are blocked. CEO directive: your work counts more." in messages(view(company.state, "dev"))[1].content
    assert "blocked" not in messages(view(company.state, "hr"))[1].content


@pytest.mark.parametrize("scenario", SHIPPED)
def test_the_prompt_lists_exactly_what_is_legal(playing, scenario: str) -> None:
    """Actions that are possible only in some states stand in the user message, with all their targets, exactly when legal.

    A reply that the system text shows is repeated where a model knows nothing better: it is always legal, but where a name or a
    price belongs to it.
    """
    listed = {role: set(re.findall(r"[A-Z][A-Z_]{3,}", text)) for role, text in LISTED.items()}
    seen: set[str] = set()
    for simulator, s, role, _, _ in playing("random", scenario, 5):
        role = actor_of(s.turn)
        if s.done or role == "customer":
            continue
        lines = messages(view(s, role))[1].content.splitlines()
        legal: dict[str, set[str]] = {}
        for action in simulator.legal(s, role):
            legal.setdefault(action.action_type, set()).add(action.target)
        if role not in ("marketing", "sales"):
            example = parse(shown_reply(system_text(role, "compact")), Role(role))
            assert isinstance(example, Action)
            assert example.target in legal[example.action_type], (s.turn, example)
        for name in ROLES[Role(role)].actions:
            if name not in listed[role]:
                assert name in legal, (s.turn, name)
                continue
            if name == "FOLLOW_UP":  # any lead, and all leads are listed for their next step
                shown = [line for line in lines if line.split(":")[0] in listed["sales"] - {"COLLECT_FEEDBACK"}]
            elif role == "marketing":
                shown = [line for line in lines if line.startswith("Affordable:") and name in line.split()]
            else:
                shown = [line for line in lines if re.match(rf"{name}\b", line)]
            assert bool(shown) == (name in legal), (s.turn, name, lines)
            if shown and role != "marketing":
                assert all(target in " ".join(shown) for target in legal[name]), (s.turn, name, shown)
            seen.add(name)
    assert {"RESOLVE_BLOCKER", "PIVOT", "SHIP_RELEASE", "FIX_BUG", "RUN_AD"} <= seen
