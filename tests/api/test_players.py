"""Models in seats: whoever is seated answers from the next reply on."""

from __future__ import annotations

from pathlib import Path

from fastapi.testclient import TestClient

from onthejob.api.app import create_app
from onthejob.envs.office.env import SEATS
from onthejob.evaluate.teams import Team
from onthejob.models.chat import ChatEncoder
from onthejob.stack import Stack
from onthejob.testing import tiny_model

TOKEN = "a-token-for-tests-0123"


def test_a_model_takes_a_seat_while_the_company_runs(tmp_path: Path):
    tiny = tiny_model()
    stack = Stack(model=tiny.model, chat=ChatEncoder(tiny.tokenizer), digest="tiny")
    asked: list[str] = []

    def load(source: str) -> tuple[Team, ChatEncoder]:
        asked.append(source)
        return stack.team(source, {}, SEATS), stack.chat

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
        assert asked == ["base"]
        assert [frame["actor"] for frame in frames] == ["ceo", "dev", "marketing", "sales"]
        assert [frame["policy"] for frame in frames] == ["heuristic", "base", "base", "expert"]
        suggested = client.post("/api/suggest", json={"seq": 1, "player": "base", "count": 3}).json()
        assert suggested["role"] == "dev"
        assert len(suggested["replies"]) == 3
