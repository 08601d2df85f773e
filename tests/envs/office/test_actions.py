"""Replies become actions or reasons, never exceptions."""

import itertools
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onthejob.envs.office.actions import (
    MAX_ATTEMPTS,
    MAX_MESSAGE,
    MAX_REPLY_BYTES,
    Action,
    Extracted,
    Invalid,
    UnusableReason,
    extract,
    feedback,
    parse,
    render,
)
from onthejob.envs.office.roles import ACTION_ALIASES, ROLES, Role
from onthejob.errors import ContractError


def accept(reply: str, role: Role = Role.SALES) -> Action:
    got = parse(reply, role)
    assert isinstance(got, Action), got
    return got


def reject(reply: str, role: Role = Role.SALES) -> Invalid:
    got = parse(reply, role)
    assert isinstance(got, Invalid), got
    return got


def find(reply: str) -> dict:
    got = extract(reply)
    assert isinstance(got, Extracted), got
    return got.fields


DEMO = '{"action_type":"RUN_DEMO","target":"Acme"}'


def test_compact_form():
    reply = '{"action_type":"RUN_DEMO","target":"Acme","message":"dev: Acme wants SSO",'
    reply += '"parameters":{"tier":"annual"},"reasoning":"it fits"}'
    assert accept(reply) == Action("RUN_DEMO", "Acme", {"tier": "annual"}, "it fits", "dev", "Acme wants SSO")
    assert accept(reply).clean


@pytest.mark.parametrize("role", list(Role))
def test_every_action_of_every_role_parses_for_exactly_its_owners(role):
    for spec in ROLES.values():
        for name in spec.actions:
            reply = f'{{"action_type":"{name}"}}'
            if name in ROLES[role].actions:
                assert accept(reply, role) == Action(name)
            else:
                got = reject(reply, role)
                assert got.reason is UnusableReason.WRONG_ROLE
                assert got.owners == tuple(owner for owner in Role if name in ROLES[owner].actions)
                assert role not in got.owners


def test_wrong_role_names_both_owners_of_a_shared_action():
    got = reject('{"action_type":"WRITE_DOCS"}', Role.HR)
    assert got.owners == (Role.DEV, Role.CONTENT)
    assert "dev and content" in got.feedback
    assert "you are hr" in got.feedback


def test_aliases():
    assert ACTION_ALIASES
    for alias, name in ACTION_ALIASES.items():
        owner = next(role for role in Role if name in ROLES[role].actions)
        assert parse(f'{{"action_type":"{alias}"}}', owner) == Action(name)


@pytest.mark.parametrize(
    ("reply", "clean"),
    [
        (DEMO, True),
        (f"  {DEMO}\n", True),
        ('{"action_type" : "run demo", "target" : " Acme "}', True),
        ('{"action_type":"RUN-DEMO","target":"Acme","mood":"good","confidence":0.9}', True),
        ('{"action_type":"RUN_DEMO","target":"Acme","message":null,"parameters":null,"reasoning":null}', True),
        (f"```json\n{DEMO}\n```", False),
        (f"Sure! Here is my action: {DEMO} Let me know.", False),
        (f"As {{sales}} I would {DEMO}", False),
        (f'{{"thought":"first"}} {DEMO}', False),
        (f'{DEMO}{{"action_type":"CLOSE_DEAL"}}', False),
        (f"[{DEMO}]", False),
        ('{"action_type":"RUN_DEMO","target":"Acme",}', False),
        ('{"action_type":"RUN_DEMO","target":"Acme","parameters":{},\n}', False),
        ('{"action_type":"RUN_DEMO","target":"Acme\n"}', False),
    ],
)
def test_tolerated_forms(reply, clean):
    got = accept(reply)
    assert got == Action("RUN_DEMO", "Acme")
    assert got.clean is clean


def test_repair_leaves_strings_alone():
    got = accept('{"action_type":"RUN_DEMO","target":"a,}","reasoning":"x,]",}')
    assert (got.target, got.reasoning) == ("a,}", "x,]")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("", UnusableReason.NOT_JSON),
        ("I would run a demo for Acme.", UnusableReason.NOT_JSON),
        ('{"action_type":"RUN_DEMO","target":"Ac', UnusableReason.NOT_JSON),
        ("{'action_type':'RUN_DEMO'}", UnusableReason.NOT_JSON),
        ('"RUN_DEMO"', UnusableReason.NOT_JSON),
        ('{"target":"Acme"}', UnusableReason.MISSING_ACTION),
        ('{"action_type":""}', UnusableReason.MISSING_ACTION),
        ('{"action_type":null}', UnusableReason.MISSING_ACTION),
        ('{"action_type":"DANCE"}', UnusableReason.UNKNOWN_ACTION),
        ('{"action_type":"SHIP_RELEASE"}', UnusableReason.WRONG_ROLE),
        ('{"action_type":7}', UnusableReason.WRONG_TYPE),
        ('{"action_type":["RUN_DEMO"]}', UnusableReason.WRONG_TYPE),
        ('{"action_type":"RUN_DEMO","target":3}', UnusableReason.WRONG_TYPE),
        ('{"action_type":"RUN_DEMO","target":["Acme"]}', UnusableReason.WRONG_TYPE),
        ('{"action_type":"RUN_DEMO","parameters":"annual"}', UnusableReason.WRONG_TYPE),
        ('{"action_type":"RUN_DEMO","message":{"to":"dev"}}', UnusableReason.WRONG_TYPE),
        ('{"action_type":"RUN_DEMO","reasoning":true}', UnusableReason.WRONG_TYPE),
        ('{"action_type":"RUN_DEMO","parameters":{"price":NaN}}', UnusableReason.BAD_NUMBER),
        ('{"action_type":"RUN_DEMO","parameters":{"price":-Infinity}}', UnusableReason.BAD_NUMBER),
        ('{"action_type":"RUN_DEMO","parameters":{"price":1e999}}', UnusableReason.BAD_NUMBER),
        ('{"action_type":"RUN_DEMO","parameters":{"price":1000000001}}', UnusableReason.BAD_NUMBER),
        ('{"action_type":"RUN_DEMO","parameters":{"a":[{"price":-1e12}]}}', UnusableReason.BAD_NUMBER),
        ('{"action_type":"RUN_DEMO","parameters":{"price":' + "9" * 5000 + "}}", UnusableReason.BAD_NUMBER),
        ('{"action_type":"RUN_DEMO","target":"A\\u0000"}', UnusableReason.CONTROL_CHARACTER),
        ('{"action_type":"RUN_DEMO","target":"A\x07"}', UnusableReason.CONTROL_CHARACTER),
        ('{"action_type":"RUN_DEMO","target":"A\\u001b[31m"}', UnusableReason.CONTROL_CHARACTER),
        ('{"action_type":"RUN_DEMO","target":"\\ud800"}', UnusableReason.CONTROL_CHARACTER),
        ('{"action_type":"RUN_DEMO","target":"\u202eemcA"}', UnusableReason.CONTROL_CHARACTER),
        ('{"action_type":"RUN_DEMO","parameters":{"\\u0001":1}}', UnusableReason.CONTROL_CHARACTER),
        ('{"action_type":"RUN_DEMO","parameters":' + '{"a":' * 8 + "1" + "}" * 9, UnusableReason.TOO_DEEP),
        ("{" * 4000, UnusableReason.TOO_DEEP),
        ('{"a":' * 1600, UnusableReason.TOO_DEEP),
        ('{"action_type":"RUN_DEMO","target":"' + "x" * 161 + '"}', UnusableReason.TOO_LONG),
        (DEMO + " " * MAX_REPLY_BYTES, UnusableReason.TOO_LONG),
        ('{"action_type":"RUN_DEMO","reasoning":"' + "é" * 4090 + '"}', UnusableReason.TOO_LONG),
    ],
)
def test_rejected_forms(reply, reason):
    got = reject(reply)
    assert got.reason is reason
    assert got.feedback
    assert got.excerpt.isascii()
    assert "\n" not in got.excerpt


def test_limits_are_inclusive():
    assert accept('{"action_type":"RUN_DEMO","parameters":' + '{"a":' * 7 + "1" + "}" * 8).parameters
    assert accept('{"action_type":"RUN_DEMO","parameters":{"a":1000000000,"b":-1e9}}').parameters == {
        "a": 10**9,
        "b": -(10**9),
    }
    assert accept('{"action_type":"RUN_DEMO","target":"' + "x" * 160 + '"}').target == "x" * 160
    assert isinstance(parse(DEMO.ljust(MAX_REPLY_BYTES), Role.SALES), Action)


def test_brackets_in_strings_are_not_depth():
    assert accept('{"action_type":"RUN_DEMO","target":"' + "[{" * 20 + '"}').target == "[{" * 20


@pytest.mark.parametrize(
    ("written", "to", "text"),
    [
        ("dev: we need SSO", "dev", "we need SSO"),
        ("all: hi", "all", "hi"),
        ("@Dev : hi", "dev", "hi"),
        ("Alex: hi", "dev", "hi"),
        ("customer: see you at 10:30", "customer", "see you at 10:30"),
        ("janitor: hi", None, ""),
        ("no colon", None, ""),
        ("dev:   ", None, ""),
        ("sales: note to self", None, ""),
        ("Sam: note to self", None, ""),
        ("dev: one\n\nSYSTEM: two", "dev", "one SYSTEM: two"),
        ("dev: " + "x" * 500, "dev", "x" * MAX_MESSAGE),
    ],
)
def test_messages(written, to, text):
    got = accept(json.dumps({"action_type": "RUN_DEMO", "message": written}))
    assert (got.message_to, got.message) == (to, text)


def test_no_text_keeps_a_line_break():
    got = parse('{"action_type":"RUN_DEMO","target":"A\\nB","parameters":{"body":["x\\r\\ny"]},"reasoning":"a\\tb"}', Role.SALES)
    assert got == Action("RUN_DEMO", "A B", {"body": ["x y"]}, "a b")


def test_render_is_compact_and_ordered():
    action = Action("RUN_DEMO", "Acmé", {"tier": "annual", "price": 1.5}, "why", "all", "hi: there")
    assert render(action) == (
        '{"action_type":"RUN_DEMO","target":"Acmé","reasoning":"why","message":"all: hi: there",'
        '"parameters":{"tier":"annual","price":1.5}}'
    )
    assert render(Action("RUN_DEMO", "Acme")) == DEMO


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(
    name=st.sampled_from([name for spec in ROLES.values() for name in spec.actions]),
    target=st.text(max_size=40),
    message=st.text(max_size=30)
    | st.builds("{}: {}".format, st.sampled_from(["dev", "all", "Jeeya", "x"]), st.text(max_size=300)),
    parameters=st.dictionaries(st.text(max_size=5), VALUES, max_size=3),
    reasoning=st.text(max_size=40),
    ascii_only=st.booleans(),
)
def test_round_trip(name, target, message, parameters, reasoning, ascii_only):
    fields = {"action_type": name, "target": target, "message": message, "parameters": parameters, "reasoning": reasoning}
    role = next(role for role in Role if name in ROLES[role].actions)
    action = parse(json.dumps(fields, ensure_ascii=ascii_only), role)
    if isinstance(action, Invalid):
        assert action.reason in (UnusableReason.CONTROL_CHARACTER, UnusableReason.TOO_DEEP)
        return
    again = accept(render(action), role)
    assert again == action
    assert again.clean
    assert render(again) == render(action)


JSONISH = st.text(alphabet='{}[]",:\\ \n0123456789.eE-+naNfIity_RUN_DEMOactontyp\x00\u202e\ud800', max_size=80)


@settings(max_examples=300)
@given(
    reply=st.text(max_size=60) | JSONISH | st.builds(lambda a, cut: a[:cut], st.just(DEMO * 2), st.integers(0, 80)),
    role=st.sampled_from(list(Role)),
)
def test_never_raises(reply, role):
    got = parse(reply, role)
    assert isinstance(got, Action | Invalid)
    if isinstance(got, Action):
        assert got.action_type in ROLES[role].actions


@pytest.mark.parametrize(
    "reply",
    [
        '"' * 8000,
        "{" + '\\"' * 4000,
        "{" * 8000,
        '{"' * 4000,
        '{"a' * 2700,
        "," * 8000,
        '{"a":"' + " " * 7000 + '\\n"',
        "{" + ", " * 4000,
        '{"x":"' + "\\" * 8000,
    ],
)
def test_hostile_replies_cost_little(reply):
    start = time.process_time()
    parse(reply, Role.SALES)
    assert time.process_time() - start < 0.2


def test_feedback_grows():
    invalid = reject("I think we should wait")
    legal = ROLES[Role.SALES].actions
    texts = [feedback(invalid, attempt, legal) for attempt in range(1, MAX_ATTEMPTS + 1)]
    for shorter, longer in itertools.pairwise(texts):
        assert longer.startswith(shorter + "\n")
    assert invalid.feedback in texts[0]
    assert "I think we should wait" in texts[1]
    assert all(name in texts[2] for name in legal)
    assert "last attempt" in texts[-1]
    assert not any("last attempt" in text for text in texts[:-1])
    examples = next(line for line in texts[6].splitlines() if line.startswith("Each")).split("reply: ")[1].split(" ")
    assert [accept(example).action_type for example in examples] == list(legal)


@pytest.mark.parametrize("attempt", [0, 9])
def test_feedback_refuses_other_attempts(attempt):
    with pytest.raises(ContractError, match=r"1\.\.8"):
        feedback(reject("", Role.HR), attempt, ROLES[Role.HR].actions)


def test_feedback_needs_legal_actions():
    with pytest.raises(ContractError, match="legal"):
        feedback(reject("", Role.HR), 1, ())


def test_extract_prefers_the_object_that_names_an_action():
    assert find('{"a":1} {"b":2}') == {"a": 1}
    assert find('{"a":1} {"action_type":"X"}') == {"action_type": "X"}


@pytest.mark.parametrize("broken", ['"p":NaN,', '"p":oops,', '"p":' + "[" * 9 + "],"])
def test_nothing_inside_a_broken_object_is_executed(broken):
    got = parse('{"action_type":"RUN_DEMO","parameters":{' + broken + '"q":{"action_type":"CLOSE_DEAL"}}}', Role.SALES)
    assert isinstance(got, Invalid)


def test_actions_are_values():
    assert hash(Action("A", "b", {"c": 1})) == hash(Action("A", "b", {"c": 1}))
    assert Action("A").parameters is not Action("A").parameters
