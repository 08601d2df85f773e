"""The scorer's parts are the documented numbers, and its range ends where it says."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onthejob.envs.office.roles import Role
from onthejob.envs.office.scorer import MAX_SCORE, PARTS, score_reply

TEN = "one two three four five six seven eight nine ten"
BEST = {
    "action_type": "RUN_DEMO",
    "target": "Acme Corp",
    "parameters": {"tier": "annual"},
    "reasoning": TEN,
    "message": "dev: Acme wants SSO",
}


def total(fields: dict, role: Role = Role.SALES) -> float:
    return score_reply(json.dumps(fields), role, entities=["Acme Corp", "SSO"]).total


def test_the_ends_of_the_range():
    best = score_reply(json.dumps(BEST), Role.SALES, entities=["Acme Corp"])
    assert best.total == MAX_SCORE == 1.45
    assert best.as_dict() == {
        "json": 0.3,
        "clean": 0.1,
        "action_type": 0.2,
        "legal": 0.3,
        "reasoning": 0.2,
        "target": 0.1,
        "known_target": 0.1,
        "message": 0.1,
        "parameters": 0.05,
    }
    worst = score_reply("I will run a demo.", Role.SALES)
    assert worst.total == 0.0
    assert set(worst.as_dict().values()) == {0.0}


@pytest.mark.parametrize(
    ("change", "loss"),
    [
        ({"action_type": None}, 0.5),
        ({"action_type": "SHIP_RELEASE"}, 0.5),
        ({"action_type": "DANCE"}, 0.5),
        ({"reasoning": "one two three four five"}, 0.1),
        ({"reasoning": TEN.removesuffix(" ten")}, 0.1),
        ({"reasoning": "one two three four"}, 0.2),
        ({"reasoning": 10}, 0.2),
        ({"target": ""}, 0.2),
        ({"target": "Bolt"}, 0.1),
        ({"target": "Acme"}, 0.1),
        ({"target": "the ACME-CORP people"}, 0.0),
        ({"target": "Acme Corporate"}, 0.1),
        ({"target": ["Acme Corp"]}, 0.2),
        ({"message": "Acme wants SSO"}, 0.1),
        ({"message": "janitor: hello"}, 0.1),
        ({"message": "all: hello"}, 0.0),
        ({"message": {"dev": "x"}}, 0.1),
        ({"parameters": {}}, 0.05),
        ({"parameters": ["annual"]}, 0.05),
    ],
)
def test_each_part_by_itself(change, loss):
    assert total(BEST | change) == round(MAX_SCORE - loss, 2)


def test_text_around_the_object_costs_only_cleanness():
    reply = f"```json\n{json.dumps(BEST)}\n```"
    assert score_reply(reply, Role.SALES, entities=["acme corp"]).total == 1.35


def test_a_wrong_role_costs_more_than_no_action():
    assert total({"action_type": "SHIP_RELEASE"}) == 0.4
    assert total({"target": ""}) == 0.4
    assert total({"action_type": "RUN_DEMO"}) == 0.9


def test_broken_and_hostile_replies_score_zero():
    for reply in ("", "{", '{"action_type":"RUN_DEMO","target":"Ac', "{" * 5000, '{"a":NaN}', "x" * 9000):
        assert score_reply(reply, Role.SALES).total == 0.0


@given(
    fields=st.dictionaries(
        st.sampled_from(["action_type", "target", "message", "parameters", "reasoning"]),
        st.none() | st.integers() | st.text(max_size=30) | st.sampled_from(["RUN_DEMO", "SHIP_RELEASE", "dev: x", TEN, {"a": 1}]),
    ),
    around=st.text(max_size=10),
    role=st.sampled_from(list(Role)),
)
def test_parts_sum_to_a_total_in_range(fields, around, role):
    score = score_reply(around + json.dumps(fields) + around, role, entities=[TEN, "x"])
    assert 0.0 <= score.total <= MAX_SCORE
    assert sum(score.as_dict().values()) == pytest.approx(score.total)
    assert tuple(score.as_dict()) == PARTS
