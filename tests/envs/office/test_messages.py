"""Messages reach their addressee whole, in either profile, and no one else but the CEO and the standup's board."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest

from onthejob.envs.office.actions import MAX_MESSAGE
from onthejob.envs.office.company_state import TURNS_PER_DAY, State
from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.handlers import COPIES_KEPT, KEPT, LONGEST_WAIT, READ_FOR
from onthejob.envs.office.handlers.customer import deliver
from onthejob.envs.office.prompt import messages
from onthejob.envs.office.roles import ROLES
from onthejob.envs.office.simulator import STANDUP_TURNS, actor_of
from onthejob.envs.office.views import copies, view

ADDRESSEES = tuple(str(role) for role in ROLES)
PAIRS = [(sender, to) for sender in SEATS for to in ADDRESSEES if sender != to]


@dataclass(frozen=True)
class Read:
    """One request as the role reads it."""

    turn: int
    role: str
    text: str


def whole(sender: str, turn: int) -> str:
    """A message of the full length that no other sender writes and no prompt holds by chance."""
    text = f"from {sender} on turn {turn}: "
    return text + "".join(chr(97 + (turn * 7 + index * index + len(sender)) % 26) for index in range(MAX_MESSAGE - len(text)))


def said(action: str, to: str, text: str) -> str:
    return json.dumps({"action_type": action, "target": "", "message": f"{to}: {text}"})


USUAL = {"ceo": "REVIEW_STRATEGY", "dev": "REFACTOR", "marketing": "OPTIMIZE_FUNNEL", "sales": "UPDATE_PIPELINE",
         "content": "REVISE_CONTENT", "hr": "TEAM_SYNC"}  # fmt: skip


def requests(env: OfficeEnvironment, write: dict[int, str], until: int) -> Iterator[Read]:
    """Play idle turns; on the turns of `write` the role acts with that reply."""
    observation = env.observe()
    while observation is not None and env.company.turn < until:
        turn = env.company.turn
        yield Read(turn, observation.actor, "\n".join(message.content for message in observation.messages))
        step = env.step(write.get(turn, '{"action_type":"IDLE","target":""}'))
        assert step.valid, step.facts
        observation = step.observation


def next_turn_of(role: str, after: int) -> int:
    return next(turn for turn in range(after + 1, after + 1 + TURNS_PER_DAY) if actor_of(turn) == role)


@pytest.mark.parametrize("profile", ["compact", "full"])
@pytest.mark.parametrize(("sender", "to"), PAIRS)
def test_a_message_arrives_whole_and_nowhere_else(task, profile: str, sender: str, to: str) -> None:
    """On the first and on the last turn of the sender in a day, in the standup and after it, from every state of the rotation."""
    for day in range(7):
        turns = [turn for turn in range(day * TURNS_PER_DAY, (day + 1) * TURNS_PER_DAY) if actor_of(turn) == sender]
        for turn in turns:
            env = OfficeEnvironment(OfficeConfig(profile=profile))
            env.reset(task("baseline", 1_000))
            list(requests(env, {}, turn))
            text = whole(sender, turn)
            action = USUAL[sender] if sender != "content" else "WRITE_BLOG"
            reply = json.loads(said(action, to, text)) | ({"target": "sync"} if sender == "content" else {})
            arrives = next_turn_of(to, turn) if to != "customer" else None
            holds = {read.role for read in requests(env, {turn: json.dumps(reply)}, turn + TURNS_PER_DAY) if text in read.text}
            public = turn % TURNS_PER_DAY < STANDUP_TURNS
            allowed = {to} | ({"ceo"} | (set(SEATS) if public else set()) if profile == "full" else set())
            assert holds - {sender} <= allowed, (turn, holds)
            if arrives is not None:
                assert to in holds, turn
                assert f"{sender}: {text}" in view(env.company, to)["inbox"] or env.company.turn > turn + READ_FOR
            else:
                assert f"{sender}: {text}" in view(env.company, "customer")["inbox"]


@pytest.mark.parametrize("profile", ["compact", "full"])
@pytest.mark.parametrize("to", SEATS)
def test_none_is_dropped_before_its_addressee_reads_it(task, profile: str, to: str) -> None:
    """All write to one role on every turn of a week: whatever was written is in the next prompt of that role."""
    env = OfficeEnvironment(OfficeConfig(profile=profile))
    observation = env.reset(task("baseline", 1_000))
    pending: list[str] = []
    read = 0
    while observation is not None and env.company.turn < 7 * TURNS_PER_DAY:
        turn, actor = env.company.turn, observation.actor
        if actor == to:
            text = observation.messages[-1].content
            assert [line for line in pending if line not in text] == [], turn
            read, pending = read + len(pending), []
            observation = env.step('{"action_type":"IDLE","target":""}').observation
            continue
        line = whole(actor, turn)
        target = {"content": "sync"}.get(actor, "")
        action = "WRITE_BLOG" if actor == "content" else USUAL[actor]
        step = env.step(json.dumps({"action_type": action, "target": target, "message": f"{to}: {line}"}))
        assert step.valid
        pending.append(f"{actor}: {line}")
        observation = step.observation
    assert read >= 7 * 10 - 7


def test_copies_never_push_out_the_ceos_own_messages(office) -> None:
    s: State = office().state
    deliver(s, "hr", "ceo", "first")
    for number in range(20):
        s.turn += 1
        deliver(s, "sales", "dev", f"copy {number}", reader="ceo")
    assert view(s, "ceo")["inbox"] == ["hr: first"]
    assert copies(s) == [f"sales to dev: copy {number}" for number in range(20 - COPIES_KEPT, 20)]


def test_what_was_read_makes_room(office) -> None:
    s: State = office().state
    for number in range(6):
        s.turn += LONGEST_WAIT
        deliver(s, "hr", "dev", f"message {number}")
    assert view(s, "dev")["inbox"] == [f"hr: message {number}" for number in range(6 - KEPT, 6)]


def test_no_role_waits_longer_than_the_limit() -> None:
    turns = {role: [turn for turn in range(40 * TURNS_PER_DAY) if actor_of(turn) == role] for role in ADDRESSEES}
    waits = {later - sooner for own in turns.values() for sooner, later in pairwise(own)}
    assert max(waits) < LONGEST_WAIT


def test_the_prompt_shows_what_the_view_holds(office) -> None:
    s: State = office().state
    text = whole("sales", 3)
    deliver(s, "sales", "dev", text)
    told = view(s, "dev")
    assert f"sales: {text}" in messages(told)[1].content.split("\n")
