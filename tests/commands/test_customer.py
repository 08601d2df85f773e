"""A model in the customer's seat from the command line, and where it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checks.servers.chat_server import IDLE, Chat
from onthejob.cli import main
from onthejob.rollout.seats import give_order
from onthejob.testing import tiny_model

SAYS = '{"action_type":"REQUEST_FEATURE","target":"","message":"sales: we wait for an offer"}'


def turns(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_hosted_model_plays_the_customer_and_is_accounted(call, chat: Chat, tmp_path: Path):
    chat.reply = lambda body: SAYS
    told = call("play", "office", "--seat", f"customer={chat.name}", "--env.days", "2", "--transcript", "t.jsonl")
    assert told["turns"] == 2 * 14, "the customer's turns are asked for"
    assert set(told["hosted"]) == {"customer"}
    assert told["hosted"]["customer"]["turns"] == told["actors"]["customer"]["turns"] == 4
    schema = chat.seen[0]["response_format"]["json_schema"]["schema"]
    assert "REQUEST_FEATURE" in schema["properties"]["action_type"]["enum"]
    assert chat.seen[0]["messages"][0]["content"].startswith("You are Oracle, customer of a startup")
    mine = [turn for turn in turns(tmp_path / "t.jsonl") if turn["actor"] == "customer"]
    assert {turn["facts"]["message"] for turn in mine} == {"sales: we wait for an offer"}
    assert all(turn["valid"] for turn in mine)


def test_without_a_model_the_script_plays_and_is_not_asked(call):
    told = call("play", "office", "--env.days", "2")
    assert told["turns"] == 2 * 12
    assert "customer" not in told["actors"]


def test_the_base_model_plays_the_customer(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ONTHEJOB_NATIVE", "off")  # compiling takes longer than the test
    tiny = tiny_model()
    tiny.model.save_pretrained(tmp_path / "base")
    tiny.tokenizer.save_pretrained(tmp_path / "base")
    words = ("--env.days", "1", "--model.name", str(tmp_path / "base"), "--max-new-tokens", "4")
    told = call("play", "office", "--seat", "customer=base", *words, "--transcript", "t.jsonl")
    assert told["actors"]["customer"]["turns"] == 2
    who = {turn["actor"]: turn["policy"] for turn in turns(tmp_path / "t.jsonl")}
    assert who.pop("customer") == "base"
    assert set(who.values()) == {"heuristic"}


def test_another_model_takes_the_seat_while_the_episode_runs_and_no_script_does(call, chat: Chat, tmp_path: Path, capsys):
    def reply(body: dict[str, Any]) -> str:
        give_order(tmp_path / "orders.json", "customer", f"{chat.name}#other" if len(chat.seen) == 1 else "expert")
        return IDLE

    chat.reply = reply
    words = ["play", "office", "--seat", f"customer={chat.name}#small", "--env.days", "2", "--orders", "orders.json"]
    assert main([*words, "--transcript", "t.jsonl", "--json"]) == 0
    who = [turn["policy"] for turn in turns(tmp_path / "t.jsonl") if turn["actor"] == "customer"]
    assert who == [f"{chat.name}#small", *[f"{chat.name}#other"] * 3]
    assert "the script plays the customer unless a model is named, got the scripted player 'expert'" in " ".join(
        capsys.readouterr().err.split()
    )
    assert call("policy", "swap", "customer", "base") == {"orders": {"customer": "base"}}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("play", "office", "--seat", "customer=expert"), "the script plays the customer unless a model is named"),
        (("play", "office", "--seat", "customer=human"), "takes `base` or a hosted model, got 'human'"),
        (("play", "office", "--seat", "customer=adapters/office"), "no adapter is trained as the customer"),
        (("play", "office", "--role", "customer", "--policy", "human"), "Invalid choice"),
        (
            ("play", "office", "--seat", "customer=base", "--env.reflect", "--env.profile", "full"),
            "--env.reflect has no effect without a model",
        ),
        (("view", "--no-open", "--seat", "customer=heuristic"), "the script plays the customer unless a model is named"),
        (("view", "--no-open", "--seat", "customer=runs/a"), "takes `base` or a hosted model, got 'runs/a'"),
        (("policy", "swap", "customer", "expert"), "the script plays the customer unless a model is named"),
        (("train", "--roles", "customer"), "The customer is part of the world: its script plays it here"),
        (("compare", "heuristic", "--alone", "customer"), "The customer is part of the world: its script plays it here"),
        (("eval", "heuristic", "--roles", "customer"), "The customer is part of the world: its script plays it here"),
    ],
)
def test_where_the_customer_is_no_seat_it_is_refused_with_the_reason(call, words: tuple[str, ...], said: str):
    told = " ".join(call(*words, code=2).replace("\u2502", " ").split())
    assert said in told
    assert not Path("runs").exists()
    assert not Path("orders.json").exists()


def test_a_game_by_hand_keeps_the_script(capsys: pytest.CaptureFixture[str]):
    assert main(["play", "office", "--role", "sales", "--policy", "human", "--seat", "customer=base"]) == 2
    assert "a scripted customer. Drop" in " ".join(capsys.readouterr().err.split())


def test_a_role_of_the_same_name_elsewhere_is_not_explained(call):
    said = call("train", "--env", "claw", "--roles", "customer", code=2)
    assert "roles must be some of agent, got customer" in said
    assert "part of the world" not in said
