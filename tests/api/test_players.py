"""Models in seats: a newly seated model answers from the next reply on."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from checks.servers.chat_server import IDLE, Chat
from onthejob.api.app import create_app
from onthejob.api.players import Loaded
from onthejob.commands.player_specs import HostedOptions
from onthejob.commands.view import Away
from onthejob.envs.office.env import SEATS
from onthejob.models.chat import ChatEncoder
from onthejob.stack import Stack
from onthejob.testing import tiny_model

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
            shown = {"name": chat.name, "kind": "hosted", "note": "", "needs": [], "ready": True, "spent": ""}
            assert named[chat.name] == shown
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
            spent = {player["name"]: player["spent"] for player in client.get("/api/models").json()}[chat.name]
            assert spent.startswith("3 requests, 45 tokens")
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


def test_the_catalogue_is_listed_with_what_each_model_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    own = tmp_path / "own.toml"
    own.write_text('local = ["me/mine"]\n[models.ours]\nprovider = "anthropic"\nid = "ours-1"\ninput_usd = 1\noutput_usd = 5\n')
    monkeypatch.setenv("ONTHEJOB_CATALOGUE", str(own))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-never-to-be-seen")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENROUTER_API_KEY", "  ")
    monkeypatch.setenv("ONTHEJOB_CACHE", str(tmp_path / "empty"))

    def load(source: str, seated: Collection[str]) -> Loaded:
        raise AssertionError("nothing is loaded for a list")

    with closing(Away(HostedOptions())) as away:
        app = create_app(token=TOKEN, hosts=("testserver",), hosted=away, load=load, pages=tmp_path)
        with TestClient(app, headers={"x-onthejob-token": TOKEN}) as client:
            answer = client.get("/api/models")
    assert "never-to-be-seen" not in answer.text
    found = {player["name"]: player for player in answer.json()}

    def needs(name: str) -> tuple[dict[str, bool | None], bool]:
        return {need["what"]: need["there"] for need in found[name]["needs"]}, found[name]["ready"]

    for model in ("claude-haiku-4-5", "claude-sonnet-5-5", "claude-opus-5-5", "ours"):
        assert needs(f"anthropic:{model}") == ({"ANTHROPIC_API_KEY": True}, True)
    assert needs("openai:gpt-4.1-mini") == ({"OPENAI_API_KEY": False}, False)
    for model in ("llama-3.3-70b", "qwen3-next-80b"):
        assert needs(f"openai:{model}") == ({"OPENROUTER_API_KEY": False}, False)
    (package, credentials), ready = (
        needs("bedrock:bedrock-claude-haiku-4-5")[0].items(),
        needs("bedrock:bedrock-llama-3.3-70b")[1],
    )
    assert package == ("onthejob[bedrock]", ready)
    assert credentials == ("AWS credentials", None)
    assert found["anthropic:ours"]["note"] == "$1 and $5 for a million tokens read and written"
    assert needs("base:smollm2-135m") == ({"weights": False}, True)
    assert needs("base:me/mine") == ({"weights": False}, True)
    assert found["base:me/mine"]["note"] == "fetched when it is first seated; prompts fit its context"
    priced = "$1 and $5 for a million tokens read and written; prompts fit its context of 200,000 tokens, by estimate"
    assert found["anthropic:claude-haiku-4-5"]["note"] == priced


def test_a_model_of_this_machine_is_seated_by_its_name(tmp_path: Path):
    tiny = tiny_model()
    stack = Stack(model=tiny.model, chat=ChatEncoder(tiny.tokenizer), digest="tiny")
    asked: list[tuple[str, set[str]]] = []

    def load(source: str, seated: Collection[str]) -> Loaded:
        asked.append((source, set(seated)))
        return Loaded(team=stack.team(source, {}, SEATS), encoder=stack.chat)

    app = create_app(token=TOKEN, hosts=("testserver",), load=load, pages=tmp_path)
    with TestClient(app, headers={"x-onthejob-token": TOKEN}) as client:
        client.post("/api/reset", json={"days": 1, "seats": {"dev": "base:me/mine"}})
        seats = client.post("/api/reconfigure", json={"seats": {"ceo": "base"}}).json()["seats"]
        assert (seats["ceo"], seats["dev"]) == ("base", "base:me/mine")
        refused = client.post("/api/reconfigure", json={"seats": {"ceo": "me/mine"}})
        assert (refused.status_code, "or base:MODEL" in refused.json()["detail"]) == (400, True)
    (first, beside), (second, sitting) = asked
    assert (first, beside) == ("base:me/mine", {"base:me/mine", "heuristic"})
    assert (second, sitting) == ("base", {"base", "base:me/mine", "heuristic"}), "those who sit keep their models"
