"""The customer in the viewer: its words are shown, and a model that plays it has frames with replies of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from onthejob.api.app import create_app
from onthejob.api.frames import NIGHT
from onthejob.api.players import Players
from onthejob.api.schema_office import Frame, Reset
from onthejob.api.world import World
from onthejob.api.worlds import Worlds
from onthejob.compat.served import served
from onthejob.envs.office.company_state import PAINS
from onthejob.envs.office.env import CUSTOMER, SEATS, OfficeConfig, OfficeEnvironment
from onthejob.errors import ConfigError
from onthejob.office import Office
from onthejob.office_players import team
from onthejob.rollout.by_hand import Game
from onthejob.types import Completion, Context, Sampling

TOKEN = "a-token-for-tests-0123"
NAME = "openai:http://127.0.0.1:9/v1#buyer"
SAID = "it is slow on Mondays"
REPLIES = (
    json.dumps({"action_type": "EVALUATE_PRODUCT", "target": "", "message": f"dev: {SAID}"}),
    json.dumps({"action_type": "GIVE_FEEDBACK", "target": "", "reasoning": "somebody should know"}),
    "More features, please!",
    json.dumps({"action_type": "IDLE", "target": ""}),
)
"""Speaks, lets its action speak, cannot be used, does nothing."""


class Buyer:
    """A hosted model that gives `REPLIES` in turn, and repeats the one that is to be corrected."""

    version, reads = NAME, "messages"

    def __init__(self) -> None:
        self.read: list[tuple[str, ...]] = []

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        return [Completion(text=self._reply(context)) for context in contexts]

    def _reply(self, context: Context) -> str:
        self.read.append(tuple(message.content for message in context.messages))
        turns = sum(1 for read in self.read if len(read) == 2)
        return REPLIES[(turns - 1) % len(REPLIES)]


class Away:
    """Where the model comes from."""

    def __init__(self) -> None:
        self.buyer = Buyer()

    def policy(self, spec: str) -> Buyer:
        assert spec == NAME
        return self.buyer

    def spent(self) -> str:
        return ""


def found(days: int = 3, scenario: str = "churn", **seats: str) -> tuple[World, Away]:
    """A company without players yet."""
    away = Away()
    asked = Reset.model_validate({"scenario": scenario, "days": days, "seats": seats})
    return Worlds(Players(hosted=away), asked).get("live"), away


def played(days: int = 3, scenario: str = "churn", **seats: str) -> tuple[World, Away]:
    """A company that was played to its end in this thread."""
    world, away = found(days, scenario, **seats)
    while not world.status().done:
        world.step(None)
    return world, away


def of_customer(world: World) -> list[Frame]:
    return [frame for frame in world.frames(0).frames if frame.actor == CUSTOMER]


# Played by its script


@cache
def by_script() -> World:
    return played(20)[0]


def test_the_frames_of_a_company_hold_what_the_customer_says():
    """REQUEST_FEATURE speaks to Dev of a pain, GIVE_FEEDBACK to Sales of an account; its other actions tell no role anything."""
    told: dict[str, set[str]] = {}
    names: set[str] = set()
    for frame in by_script().frames(0).frames:
        names |= {account.name for account in frame.accounts or ()}
        if frame.actor != CUSTOMER:
            continue
        told.setdefault(frame.action, set())
        if frame.talk is None:
            assert frame.action not in ("REQUEST_FEATURE", "GIVE_FEEDBACK") or not frame.changed
            continue
        assert frame.talk.sender == CUSTOMER
        assert frame.changed
        told[frame.action].add(frame.talk.to)
        verb, _, what = frame.talk.text.partition(" ")
        assert (verb, what in (PAINS if verb == "need" else names)) in (("need", True), ("unhappy", True))
    assert told.pop("REQUEST_FEATURE") == {"dev"}
    assert told.pop("GIVE_FEEDBACK") == {"sales"}
    assert told
    assert not any(told.values())


def test_what_is_told_is_what_was_delivered():
    world, delivered = by_script(), 0
    frames = world.frames(0).frames
    for frame in [one for one in frames if one.actor == CUSTOMER and one.talk is not None][:12]:
        assert frame.talk is not None
        # The end of the reply to which the frame belongs: the message is in the inbox still.
        inbox = world.at(frame.seq).company.inbox[frame.talk.to]
        assert [frame.turn, CUSTOMER, frame.talk.text, frame.talk.to] in inbox
        delivered += 1
    assert delivered == 12


def test_the_script_has_no_replies():
    for frame in of_customer(by_script()):
        assert (frame.policy, frame.text) == ("world", "")
    assert set(by_script().status().seats) == set(SEATS)


# Played by a model


def test_a_models_frames_hold_its_replies_and_its_words():
    world, away = played(customer=NAME)
    frames = world.frames(0).frames
    assert world.status().seats[CUSTOMER] == NAME
    mine = of_customer(world)
    assert [(frame.policy, frame.text) for frame in mine] == [(NAME, text) for text in (*REPLIES, *REPLIES[:2])]
    speaks, feeds, lost, idle = mine[:4]
    assert speaks.talk is not None
    assert (speaks.talk.sender, speaks.talk.to, speaks.talk.text) == (CUSTOMER, "dev", SAID)
    assert feeds.talk is not None
    assert (feeds.talk.sender, feeds.talk.to, feeds.reasoning) == (CUSTOMER, "sales", "somebody should know")
    assert feeds.talk.text.startswith("unhappy ")
    assert (lost.valid, lost.talk, lost.rewards[CUSTOMER]) == (False, None, -1.0)
    assert "JSON" in lost.why
    assert (idle.valid, idle.changed, idle.talk) == (True, False, None)
    # Each turn is a step of its own; only a night belongs to the reply before it.
    turns = [frame for frame in frames[1:] if frame.actor != NIGHT]
    assert [frame.step for frame in turns] == list(range(1, 3 * 14 + 1))
    assert [frame.step for frame in frames if frame.actor == NIGHT] == [14, 28, 42]
    # It reads the full prompt, without memories, and may correct what cannot be used.
    asked = [read for read in away.buyer.read if len(read) == 2]
    assert len(asked) == 6
    assert all("Team:" in user and "Memories:" not in user and "Oracle" in system for system, user in asked)
    assert [len(read) for read in away.buyer.read[2:11]] == [2, 4, 6, 8, 10, 12, 14, 16, 18]


def test_the_frames_add_up_and_the_past_is_reached():
    world, _ = played(customer=NAME)
    frames = world.frames(0).frames
    env = OfficeEnvironment(OfficeConfig(profile="full", customer_asked=True))
    env.reset(world.task)
    for number in range(1, frames[-1].step + 1):
        step = env.step(next(frame.text for frame in frames if frame.step == number and frame.actor != NIGHT))
        paid = {role: sum(frame.rewards[role] for frame in frames if frame.step == number) for role in step.rewards}
        assert paid == pytest.approx(dict(step.rewards), abs=1e-9)
    assert env.observe() is None
    for frame in frames:
        after = [one for one in frames if one.step == frame.step][-1]
        there = world.at(frame.seq)
        assert there.company.turn == after.turn + 1
        assert there.company.cash / 100 == after.kpis.cash
        pending = there.observe()
        assert (pending.actor if pending is not None else "") == after.waiting


def test_taking_back_across_the_customer_tells_the_same_story():
    world, _ = found(customer=NAME)
    for _ in range(7):
        world.step(None)
    before = world.frames(0).frames
    assert before[-1].actor == CUSTOMER
    for left in (6, 5):
        assert world.undo()
        assert world.frames(0).frames == before[: left + 1]
    assert world.frames(0).frames[-1].waiting == "hr"


def test_a_person_waits_for_a_model_in_the_customers_seat():
    world, _ = found(customer=NAME)
    world.configure(human="sales")
    world.play_to_person(100)
    world.step(json.dumps({"action_type": "UPDATE_PIPELINE", "target": ""}))
    world.play_to_person()
    frames = world.frames(0).frames
    assert [frame.actor for frame in frames[4:8]] == ["sales", "content", "hr", CUSTOMER]
    assert frames[-1].waiting == "sales"
    assert world.undo()
    assert world.frames(0).frames[-1].actor == "marketing"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    app = create_app(token=TOKEN, hosts=("testserver",), hosted=Away(), pages=tmp_path)
    with TestClient(app, headers={"x-onthejob-token": TOKEN}) as made:
        yield made


def test_the_seat_is_given_and_taken_back_when_a_company_is_founded(client: TestClient):
    def seats(**asked: object) -> dict[str, str]:
        answer = client.post("/api/reset", json={"days": 1, **asked})
        assert answer.status_code == 200, answer.text
        return answer.json()["seats"]

    assert CUSTOMER not in seats()
    assert seats(seats={CUSTOMER: NAME})[CUSTOMER] == NAME
    assert seats(seed=1_001)[CUSTOMER] == NAME, "seats that are not named are kept"
    assert CUSTOMER not in seats(seats={CUSTOMER: "script"})
    for _ in range(7):
        client.post("/api/step", json={})
    (frame,) = [one for one in client.get("/api/state").json()["frames"] if one["actor"] == CUSTOMER]
    assert (frame["policy"], frame["text"]) == ("world", "")


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("reset", {"seats": {"customer": "expert"}}, 400, "the script plays the customer unless a model is named"),
        ("reset", {"seats": {"customer": "runs/mine"}}, 400, "takes `base` or a hosted model, got 'runs/mine'"),
        ("reset", {"seats": {"sales": "script"}}, 400, "unknown player 'script'"),
        ("reset", {"human": "customer"}, 422, "human"),
        ("reconfigure", {"seats": {"customer": NAME}}, 422, "customer"),
        ("reconfigure", {"human": "customer"}, 422, "human"),
    ],
)
def test_who_cannot_play_the_customer_is_refused(client: TestClient, path: str, body: dict[str, object], status: int, said: str):
    refused = client.post(f"/api/{path}", json=body)
    assert (refused.status_code, said in refused.text) == (status, True), refused.text


def test_replies_in_the_customers_turn_are_suggested_and_branched(client: TestClient):
    client.post("/api/reset", json={"days": 3, "scenario": "churn", "seats": {CUSTOMER: NAME}})
    for _ in range(6):
        client.post("/api/step", json={})
    refused = client.post("/api/suggest", json={"seq": 6, "player": "expert"})
    assert (refused.status_code, "unless a model is named" in refused.text) == (400, True)
    told = client.post("/api/suggest", json={"seq": 6, "player": NAME, "count": 2}).json()
    assert (told["role"], told["replies"]) == (CUSTOMER, list(REPLIES[:2]))
    found = client.post("/api/branches", json={"seq": 6, "replies": [*REPLIES], "worlds": 2, "turns": 20}).json()
    assert found["role"] == CUSTOMER
    assert [reply["valid"] for reply in found["replies"]] == [True, True, False, True]
    assert client.get("/api/prompt", params={"role": "sales", "seq": 6}).json()["asked"] is False


def test_a_recorded_game_keeps_its_script():
    game = Game(OfficeEnvironment(), served(Office()).task_of(1_002, {"days": 1}), "sales", team("heuristic"))
    replay = game.replay(OfficeEnvironment())
    with pytest.raises(ConfigError, match="in a recorded game the script plays the customer"):
        Worlds(Players(hosted=Away()), Reset.model_validate({"seats": {CUSTOMER: NAME}}), replay)
