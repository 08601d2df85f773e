"""Half of a surrogate pair in a model's text is shown as U+FFFD, and the server continues."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from checks.servers.chat_server import IDLE, Chat
from onthejob.api.app import create_app
from onthejob.commands.player_specs import HostedOptions
from onthejob.commands.view import Away
from onthejob.record import Run
from onthejob.types import Completion, Group, StopReason, Trajectory, Turn

from .conftest import TOKEN

TEXTS = ["\ud800", "so \udfff what", "\ude00\ud83d", '{"action_type":"IDLE","target":"\ud800"}', "é\ud83d"]


@pytest.mark.parametrize("text", [*TEXTS, IDLE[:-1] + ',"reasoning":"\ud800"}'])
def test_a_hosted_models_company_stays_readable(text: str, tmp_path: Path):
    chat = Chat()
    chat.reply = lambda body: text
    with closing(chat), closing(Away(HostedOptions())) as away:
        app = create_app(token=TOKEN, hosts=("testserver",), hosted=away, pages=tmp_path)
        with TestClient(app, headers={"x-onthejob-token": TOKEN}) as client:
            assert client.post("/api/reset", json={"days": 1, "seats": {"ceo": chat.name}}).status_code == 200
            for _ in range(3):
                assert client.post("/api/step", json={}).status_code == 200
            shown = client.get("/api/state")
            assert shown.status_code == 200
            frame = shown.json()["frames"][1]
            assert (frame["actor"], frame["text"].count("\ufffd") > 0) == ("ceo", True)
            assert client.get("/api/prompt", params={"role": "dev", "seq": 2}).status_code == 200
            assert client.get("/api/memory", params={"role": "ceo", "seq": 2}).status_code == 200
            told = client.post("/api/suggest", json={"seq": 0, "player": chat.name, "count": 2})
            assert told.json()["replies"] == [frame["text"]] * 2
            with client.websocket_connect("/ws/live", headers={"host": "testserver"}) as feed:
                assert json.loads(feed.receive_text())["frames"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_recorded_run_stays_readable_and_keeps_the_original(text: str, tmp_path: Path):
    turn = Turn(prompt_ids=(1, 2), completion=Completion(text=text, token_ids=(3,), logprobs=(-0.5,)), policy_version="dev@0000")
    row = Trajectory(task_id="t", actor="dev", turns=(turn,), rewards=(1.0,), stop=StopReason.BRANCH)
    one = Group(key="it0000/0/dev", actor="dev", trajectories=(row, row), facts={"keys": [text, text]})
    with Run.create(tmp_path, config={}, name="first") as run, run.iteration(0) as it:
        it.groups([one], [None])
        it.event("note", {"why": text})
    app = create_app(token=TOKEN, hosts=("testserver",), runs=tmp_path, pages=tmp_path)
    with TestClient(app) as client:
        for path in ("/api/runs", "/api/runs/first", "/api/runs/first/groups"):
            assert client.get(path).status_code == 200, path
        shown = client.get("/api/runs/first/group", params={"key": one.key})
        assert shown.status_code == 200, shown.text
        assert "\ufffd" in shown.text
    with Run.open(tmp_path / "first", readonly=True) as run:
        (kept,) = run.read_groups(key=one.key)
    assert kept.trajectories[0].turns[0].completion.text == text
