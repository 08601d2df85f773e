"""Models in seats: whoever is seated answers from the next reply on."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

from fastapi.testclient import TestClient

from onthejob.api.app import create_app
from onthejob.api.players import Loaded
from onthejob.commands.seats import HostedOptions
from onthejob.commands.view import Away
from onthejob.envs.office.env import SEATS
from onthejob.models.chat import ChatEncoder
from onthejob.stack import Stack
from onthejob.testing import tiny_model
from onthejob.testing.chat_server import IDLE, Chat

TOKEN = "a-token-for-tests-0123"


def test_a_model_takes_a_seat_while_the_company_runs(tmp_path: Path):
    tiny = tiny_model()
    stack = Stack(model=tiny.model, chat=ChatEncoder(tiny.tokenizer), digest="tiny")
    asked: list[str] = []

    def load(source: str, seated: Collection[str]) -> Loaded:
        asked.append(source)
        return Loaded(team=stack.team(source, {}, SEATS), encoder=stack.chat)

    app = create_app(token=TOKEN, hosts=("testserver",), load=load, extra_players=["adapters/mine"], pages=tmp_path)
    with TestClient(app, headers={"x-onthejob-token": TOKEN}) as client:
        names = {player["name"]: player["kind"] for player in client.get("/api/models").json()}
        assert names["base"] == names["adapters/mine"] == "model"
        client.post("/api/reset", json={"days": 1})
        client.post("/api/step", json={})
        assert not asked, "a model is loaded when somebody wants it"
        changed = client.post("/api/reconfigure", json={"seats": {"dev": "base", "marketing": "base"}})
        assert changed.status_code == 200, changed.text
        client.post("/api/step", json={})
        client.post("/api/step", json={})
        client.post("/api/reconfigure", json={"seats": {"sales": "expert"}})
        client.post("/api/step", json={})
        frames = client.get("/api/state").json()["frames"][1:]
        assert set(asked) == {"base"}
        assert [frame["actor"] for frame in frames] == ["ceo", "dev", "marketing", "sales"]
        assert [frame["policy"] for frame in frames] == ["heuristic", "base", "base", "expert"]
        suggested = client.post("/api/suggest", json={"seq": 1, "player": "base", "count": 3}).json()
        assert suggested["role"] == "dev"
        assert len(suggested["replies"]) == 3


def test_a_hosted_model_takes_a_seat_and_is_corrected_and_accounted():
    chat = Chat()
    replies = iter(["let us sell", "still no JSON"])
    chat.reply = lambda body: next(replies, IDLE)
    with closing(chat), closing(Away(HostedOptions())) as away:
        app = create_app(token=TOKEN, hosts=("testserver",), hosted=away, extra_players=[chat.name])
        with TestClient(app, headers={"x-onthejob-token": TOKEN}) as client:
            named = {player["name"]: player for player in client.get("/api/models").json()}
            assert named[chat.name] == {"name": chat.name, "kind": "hosted", "note": ""}
            assert not chat.seen, "nobody is asked before somebody sits there"
            client.post("/api/reset", json={"days": 1})
            changed = client.post("/api/reconfigure", json={"seats": {"ceo": chat.name}})
            assert changed.json()["seats"]["ceo"] == chat.name
            client.post("/api/step", json={})
            client.post("/api/step", json={})
            first, second = client.get("/api/state").json()["frames"][1:3]
            assert (first["actor"], first["policy"], first["text"], first["valid"]) == ("ceo", f"{chat.name}#small", IDLE, True)
            assert second["policy"] == "heuristic"
            # Twice told what was wrong, each time with all that was said before.
            assert [len(body["messages"]) for body in chat.seen] == [2, 4, 6]
            assert chat.seen[2]["messages"][3]["role"] == "user"
            note = {player["name"]: player["note"] for player in client.get("/api/models").json()}[chat.name]
            assert note.startswith("3 requests, 45 tokens")
            suggested = client.post("/api/suggest", json={"seq": 0, "player": chat.name, "count": 2}).json()
            assert suggested["replies"] == [IDLE, IDLE]


def test_a_hosted_model_that_never_replies_well_loses_the_turn_and_a_dead_one_stops_the_company():
    chat = Chat()
    chat.reply = lambda body: "I would rather not."
    with closing(chat), closing(Away(HostedOptions())) as away:
        app = create_app(token=TOKEN, hosts=("testserver",), hosted=away)
        with TestClient(app, headers={"x-onthejob-token": TOKEN}) as client:
            client.post("/api/reset", json={"days": 1, "seats": {"ceo": chat.name}})
            client.post("/api/step", json={})
            frame = client.get("/api/state").json()["frames"][1]
            assert not frame["valid"]
            assert len(chat.seen) == 9
            chat.status = 401
            client.post("/api/reset", json={"days": 1, "playing": True, "pace_s": 0})
            for _ in range(200):
                status = client.get("/api/config").json()["worlds"][0]
                if status["error"]:
                    break
                time.sleep(0.05)
            assert status["length"] == 1, "our failure is no turn of the company"
            assert not status["playing"]


def test_without_hosted_models_their_names_are_refused_with_a_reason(tmp_path: Path):
    app = create_app(token=TOKEN, hosts=("testserver",), pages=tmp_path)
    with TestClient(app, headers={"x-onthejob-token": TOKEN}) as client:
        refused = client.post("/api/reconfigure", json={"seats": {"ceo": "openai:http://127.0.0.1:9/v1"}})
        assert (refused.status_code, "seats none" in refused.json()["detail"]) == (400, True)
