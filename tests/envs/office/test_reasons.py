"""The explained expert: the expert's decisions with reasons that are true of the view, and messages that a reader sees whole."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from onthejob.envs.office.actions import MAX_MESSAGE, Action, parse, render
from onthejob.envs.office.company_state import FEATURE_INDEX, Stage
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.luck import draw
from onthejob.envs.office.policies import Noisy, as_reply, players
from onthejob.envs.office.policies.expert import decide, expert
from onthejob.envs.office.policies.reasons import explained, wordings
from onthejob.envs.office.roles import ROLES, Role
from onthejob.envs.office.scenarios import SHIPPED
from onthejob.envs.office.scorer import score_reply
from onthejob.envs.office.views import view

REQUESTS = ("need ", "approve ")


def asked(playing, player, scenario: str, seed: int, **options):
    """(role, view, action) of every decision of an episode of `player` in all seats."""
    seen = {}

    def watched(v, legal, luck):
        seen["view"] = v
        return player(v, legal, luck)

    for _, _, role, action, _ in playing(watched, scenario, seed, **options):
        if role != "customer":
            yield role, seen["view"], action


@pytest.mark.parametrize("scenario", SHIPPED)
def test_it_decides_what_the_expert_decides(playing, scenario: str) -> None:
    for _, v, action in asked(playing, explained, scenario, 3):
        plain = expert(v, list, 0.0)
        assert plain.reasoning == ""
        assert replace(action, reasoning="", message_to=None, message="") == replace(plain, message_to=None, message="")
        if plain.message_to is not None:
            assert (action.message_to, action.message) == (plain.message_to, plain.message)


@pytest.mark.parametrize("scenario", SHIPPED)
def test_what_it_says_changes_no_company(playing, scenario: str) -> None:
    """Its messages push no request out of an inbox and promise nothing: money and rewards are those of the expert."""
    ends = []
    for player in (expert, explained):
        *_, (_, s, *_) = playing(player, scenario, 4)
        ends.append((s.ledger, s.reward_total))
    assert ends[0] == ends[1]


def test_reasons_and_messages_are_whole_sentences_of_what_the_role_sees(playing) -> None:
    """Ten words and more, numbers that stand in the view, and lines that their readers see in full."""
    for scenario in ("churn", "viral"):
        for role, v, action in asked(playing, explained, scenario, 5):
            assert action.reasoning[0].isupper()
            assert action.reasoning.endswith(".")
            assert not re.search(r"[{}]|  |\b1 (turn|day|bug|lead|feature|objection|customer)s\b", action.reasoning)
            assert score_reply(render(action), Role(role)).reasoning == pytest.approx(0.20), action.reasoning
            if action.message_to:
                assert action.message_to != role
                assert len(action.message) <= MAX_MESSAGE
                assert decide(v)[0].message_to or not action.message.startswith((*REQUESTS, "roadmap", "unhappy"))
            assert parse(render(action), Role(role)) == action


def numbers(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def test_the_numbers_of_a_reason_are_those_of_the_view(office) -> None:
    company = office("churn")
    s = company.state
    company.wait("dev")
    s.bug_critical, s.debt = 3, 0.2
    action = explained(view(s, "dev"), list, 0.0)
    stability = view(s, "dev")["stability"]
    assert action.reasoning == f"We have 3 critical bugs with stability at {stability}, and nothing drives customers away faster."
    company.wait("hr")
    s.blockers = {}
    action = explained(view(s, "hr"), list, 0.0)
    assert numbers(action.reasoning) == [view(s, "hr")["velocity"]]


def test_every_rule_has_several_wordings_and_fires(office, playing) -> None:
    """Luck reaches each of them; the names of the rules are those that the expert gives."""
    fired: Counter[tuple[str, str]] = Counter()
    for seed, scenario in enumerate(SHIPPED * 3):
        player = Noisy(explained, (0.0, 0.3, 0.6)[seed % 3])
        for role, v, _ in asked(playing, player, scenario, seed):
            fired[role, decide(v)[1]] += 1
    company = office(leads=0)
    fired["sales", decide(view(company.state, "sales"))[1]] += 1
    company.account(Stage.WON, sat=0.9)
    fired["sales", decide(view(company.state, "sales"))[1]] += 1
    s = company.state
    s.turn, s.researched, s.intel, s.envelopes["marketing"] = 14 * 10, [0, 0, -1], 3, 100_000
    s.novelty[0], s.feature_shipped[FEATURE_INDEX["API"]] = 9, 1
    fired["marketing", decide(view(s, "marketing"))[1]] += 1
    assert set(fired) == set(wordings())
    assert all(len(set(one.reasons)) >= 2 for one in wordings().values())
    v = view(company.state, "hr")
    said = {explained(v, list, (step + 0.5) / 60).reasoning for step in range(60)}
    assert len(said) == len(wordings()["hr", decide(v)[1]].reasons)


def test_messages_vary_as_reasons_do(playing) -> None:
    """Every role tells something, and messages repeat no more often than reasons."""
    reasons, messages = Counter[str](), Counter[str]()
    senders, readers = set(), set()
    for role, _, action in asked(playing, explained, "viral", 1):
        reasons[action.reasoning] += 1
        if action.message_to:
            senders.add(role)
            readers.add(action.message_to)
            messages[f"{action.message_to}: {action.message}"] += 1
    assert senders == {str(role) for role, spec in ROLES.items() if spec.trained}
    assert len(readers) >= 5
    assert messages.total() > 40
    assert len(messages) / messages.total() > 0.5 * len(reasons) / reasons.total()
    assert len(messages) > 25


def test_other_scripted_players_say_no_more_than_before(task) -> None:
    """Reasons and messages are the explained expert's alone: what `expert` writes has neither reasoning nor further messages."""
    env, plain = OfficeEnvironment(), as_reply(players()["expert"])
    request, told = env.reset(task("viral", days=4)), Counter[str]()
    while request is not None:
        text = plain(request, env.company.turn)
        assert "reasoning" not in text
        action = parse(text, Role(request.actor))
        assert isinstance(action, Action)
        if action.message_to:
            told[action.message.split(" ")[0]] += 1
        request = env.step(text).observation
    assert set(told) == {"need", "approve"}


def test_luck_alone_chooses_the_wording(office) -> None:
    v = view(office().state, "ceo")
    assert explained(v, list, 0.3) == explained(v, list, 0.3)
    assert len({explained(v, list, draw(seed, 1, 0, 0)).reasoning for seed in range(20)}) > 1
