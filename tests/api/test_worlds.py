"""Worlds: frames are what happened, the past is reached exactly, a person may take moves back."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from onthejob.api.players import Players
from onthejob.api.schema_office import Reset
from onthejob.api.world import World
from onthejob.api.worlds import Worlds
from onthejob.compat.served import served
from onthejob.envs.office.env import OfficeConfig, OfficeEnvironment
from onthejob.envs.office.reward_parts import PARTS
from onthejob.errors import RecordError
from onthejob.office import Office
from onthejob.office_players import team
from onthejob.rollout.by_hand import Game
from onthejob.rollout.game_file import Replay

ROOT = Path(__file__).parent.parent.parent


def played(**given: Any) -> World:
    """A world of two days, played to its end in this thread."""
    world = Worlds(Players(), Reset(days=2, seed=1_003, **given)).get("live")
    while not world.status().done:
        world.step(None)
    return world


def test_a_recorded_game_is_told_again_and_refused_under_other_rules(tmp_path: Path):
    game = Game(OfficeEnvironment(), served(Office()).task_of(1_002, {"days": 1}), "sales", team("heuristic"))
    game.reply("nonsense")
    game.replay(OfficeEnvironment()).write(tmp_path / "game.json")
    replay = Replay.read(tmp_path / "game.json")
    frames = Worlds(Players(), Reset(), replay).get("live").frames(0)
    assert [frame.text for frame in frames.frames if frame.actor not in ("", "customer", "night")] == [
        said.text for said in replay.replies
    ]
    assert (frames.seats.seed, frames.seats.days) == (1_002, 1)
    assert next(frame for frame in frames.frames if frame.actor == "sales").valid is False
    wrong = replace(replay, replies=replay.replies[1:])
    with pytest.raises(RecordError, match="other rules"):
        Worlds(Players(), Reset(), wrong)


def test_every_turn_and_night_is_one_frame_and_pays_what_the_workplace_paid():
    world = played()
    frames = world.frames(0).frames
    assert [frame.seq for frame in frames] == list(range(31))
    assert [frame.turn for frame in frames if frame.actor != "night"] == list(range(-1, 28))
    env = OfficeEnvironment(OfficeConfig(profile="full"))
    request = env.reset(world.task)
    total: dict[str, float] = {}
    for frame in frames[1:]:
        if frame.actor not in ("customer", "night"):
            assert request is not None
            assert request.actor == frame.actor
            step = env.step(frame.text)
            request = step.observation
            for role, reward in step.rewards.items():
                total[role] = total.get(role, 0.0) + reward
        for role, line in frame.parts.items():
            assert len(line) == len(PARTS)
            assert sum(line) == pytest.approx(frame.rewards[role])
    told = {role: sum(frame.rewards[role] for frame in frames[1:]) for role in total}
    assert told == pytest.approx(total)
    assert frames[-1].kpis.cash == pytest.approx(env.state()["metrics"]["cash"])
    assert frames[-1].kpis.value == pytest.approx(env.state()["metrics"]["company_value"])


def test_leaving_out_what_did_not_change_loses_nothing():
    world = played()
    whole = world.frames(0)
    for start in (1, 9, 20):
        part = world.frames(start)
        accounts = part.base.accounts
        expected = []
        for frame in whole.frames[:start]:
            expected = frame.accounts if frame.accounts is not None else expected
        assert accounts == expected
        assert part.frames == whole.frames[start:]


def test_the_past_is_reached_exactly():
    world = played()
    for frame in world.frames(0).frames:
        company = world.at(frame.seq).company
        shared_step = [other for other in world.frames(0).frames if other.step == frame.step]
        last = shared_step[-1]
        assert company.cash / 100 == last.kpis.cash
        assert company.turn == last.turn + 1 or frame.seq == 0


def test_a_person_plays_and_takes_back(client: TestClient):
    status = client.post("/api/reset", json={"human": "ceo", "days": 2}).json()
    seq = status["length"] - 1
    view = client.get("/api/prompt", params={"role": "ceo", "seq": seq}).json()
    assert view["asked"]
    assert {"header", "kpis", "call"} <= {section["key"] for section in view["sections"]}
    chosen = view["legal"][0]["text"]
    refused = client.post("/api/step", json={})
    assert refused.status_code == 409
    assert "yours" in refused.json()["detail"]
    after = client.post("/api/step", json={"text": chosen}).json()
    assert after["length"] > status["length"]
    state = client.get("/api/state").json()
    mine = state["frames"][seq + 1]
    assert (mine["actor"], mine["policy"], mine["text"]) == ("ceo", "human", chosen)
    assert state["frames"][-1]["waiting"] == "ceo"
    back = client.post("/api/undo", json={}).json()
    assert back["length"] == status["length"]
    assert back["epoch"] == status["epoch"] + 1
    assert client.post("/api/undo", json={}).status_code == 409


def test_undo_across_many_turns_tells_the_same_story():
    world = Worlds(Players(), Reset(days=6)).get("live")
    for _ in range(65):
        world.step(None)
    before = world.frames(0).frames
    for _ in range(8):
        assert world.undo()
    kept = world.frames(0).frames
    assert kept == before[: len(kept)]
    for _ in range(8):
        world.step(None)
    assert world.frames(0).frames == before


def test_an_unusable_reply_is_told_with_its_reason(client: TestClient):
    client.post("/api/reset", json={"human": "ceo", "days": 1})
    client.post("/api/step", json={"text": "let us be bold"})
    frame = client.get("/api/state").json()["frames"][1]
    assert not frame["valid"]
    assert frame["why"]
    assert frame["rewards"]["ceo"] < 0


def test_reconfigure_seats_somebody_else(client: TestClient):
    client.post("/api/reset", json={"days": 1})
    client.post("/api/step", json={})
    changed = client.post("/api/reconfigure", json={"seats": {"dev": "expert"}}).json()
    assert changed["seats"]["dev"] == "expert"
    client.post("/api/step", json={})
    assert [frame["policy"] for frame in client.get("/api/state").json()["frames"][1:]] == ["heuristic", "expert"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("reset", {"scenario": "nowhere"}, 400),
        ("reset", {"scenario": "../../secrets.toml"}, 400),
        ("reset", {"seats": {"sales": "nobody"}}, 400),
        ("reset", {"seats": {"janitor": "expert"}}, 422),
        ("reset", {"days": 0}, 422),
        ("reset", {"colour": "red"}, 422),
        ("step", {"world": "race-1"}, 400),
        ("step", {"text": "x" * 9_000}, 422),
        ("branches", {"seq": 500, "replies": ["x"]}, 409),
        ("branches", {"replies": []}, 422),
    ],
)
def test_bad_requests_are_refused_with_a_reason(client: TestClient, path: str, body: dict[str, Any], status: int):
    refused = client.post(f"/api/{path}", json=body)
    assert refused.status_code == status, refused.text
    assert refused.json()["detail"]


def test_branches_compare_replies_under_the_same_luck(client: TestClient):
    client.post("/api/reset", json={"days": 3})
    view = client.get("/api/prompt", params={"role": "ceo"}).json()
    texts = [legal["text"] for legal in view["legal"][:3]]
    found = client.post("/api/branches", json={"replies": [*texts, texts[0], "no action"], "worlds": 3, "turns": 20}).json()
    replies = found["replies"]
    assert replies[3]["same_as"] == 0
    assert replies[3]["outcomes"] == replies[0]["outcomes"]
    assert not replies[4]["valid"]
    assert replies[4]["advantage"] is None
    means = [sum(reply["outcomes"]) / 3 for reply in replies]
    assert [reply["mean"] for reply in replies] == pytest.approx(means)
    legal = means[:4]
    centre = sum(legal) / 4
    spread = (sum((mean - centre) ** 2 for mean in legal) / 3) ** 0.5
    assert replies[1]["advantage"] == pytest.approx((means[1] - centre) / spread)
    # Looking into the future changes nothing.
    assert client.get("/api/config").json()["worlds"][0]["length"] == 1


def test_the_live_feed_sends_every_turn_once_and_follows_an_undo(client: TestClient):
    client.post("/api/reset", json={"days": 2, "pace_s": 0, "playing": True})
    with client.websocket_connect("/ws/live") as socket:
        frames: list[dict[str, Any]] = []
        while not frames or frames[-1]["waiting"]:
            part = json.loads(socket.receive_text())
            assert part["start"] == len(frames)
            frames += part["frames"]
        assert [frame["seq"] for frame in frames] == list(range(31))
        assert client.post("/api/undo", json={}).status_code == 200
        while True:
            part = json.loads(socket.receive_text())
            if part["seats"]["epoch"] > 1:
                break
        frames = frames[: part["start"]] + part["frames"]
        assert len(frames) == part["seats"]["length"] < 31
        for ugly in ("", "{", "[1]", '{"from_seq": -4}', '{"from_seq": "x"}', '{"from_seq": 1e9}', "[" * 5_000, "\x00"):
            socket.send_text(ugly)
        socket.send_bytes(b"\xff\xfe")
        socket.send_text('{"from_seq": 3}')
        part = json.loads(socket.receive_text())
        assert part["start"] == 3
        assert part["frames"] == frames[3:]


def test_a_world_does_not_wait_for_a_client_that_never_reads(client: TestClient):
    with client.websocket_connect("/ws/live"):
        client.post("/api/reset", json={"days": 30, "pace_s": 0, "playing": True})
        deadline = time.monotonic() + 60
        while (status := client.get("/api/config").json()["worlds"][0])["playing"] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert status["length"] == 451


def test_memories_belong_to_the_moment(client: TestClient):
    client.post("/api/reset", json={"days": 2, "pace_s": 0})
    for _ in range(10):
        client.post("/api/step", json={})
    early = client.get("/api/memory", params={"role": "sales", "seq": 1}).json()
    late = client.get("/api/memory", params={"role": "sales", "seq": 10}).json()
    assert len(late) > len(early)
    assert late[: len(early)] == early


def test_the_types_of_the_pages_are_those_of_the_api():
    """`python viewer/openapi.py && npm --prefix viewer run types` makes them anew."""
    from onthejob.api.app import openapi

    now: Any = openapi()
    kept = json.loads((ROOT / "viewer" / "openapi.json").read_text(encoding="utf-8"))
    ours = {name: set(schema.get("properties", ())) for name, schema in now["components"]["schemas"].items()}
    theirs = {name: set(schema.get("properties", ())) for name, schema in kept["components"]["schemas"].items()}
    # FastAPI's own schema of a validation error differs between its versions.
    for schemas in (ours, theirs):
        schemas.pop("ValidationError", None)
        schemas.pop("HTTPValidationError", None)
    assert ours == theirs
    assert set(now["paths"]) == set(kept["paths"])
