"""Prompts fit the model that plays: local, hosted with a window in the catalogue, or served with one that is reported."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from checks.commands.behaviours import Behaviours
from checks.servers.chat_server import Chat
from onthejob.api.asking import Asking
from onthejob.cli import main
from onthejob.commands.named_env import NamedEnv
from onthejob.commands.player_specs import HostedOptions, ModelOptions
from onthejob.commands.prompt_lengths import opened
from onthejob.commands.serve_office import EnvOffice
from onthejob.commands.terminal import Output, Terminal
from onthejob.commands.train import Train
from onthejob.commands.view import Away
from onthejob.commands.view_models import Loader
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.fitting import PINNED_BYTES
from onthejob.errors import ConfigError
from onthejob.models.chat import ChatEncoder
from onthejob.models.counting import chat_window, estimated_tokens
from onthejob.models.encoder import load_encoder
from onthejob.office import Office
from onthejob.office_players import scripted_players
from onthejob.testing import tiny_model

FULL = ("--env.profile", "full", "--env.scenarios", "viral")
POSSIBLE = {"ceo": ("REVIEW_STRATEGY", ""), "dev": ("REFACTOR", ""), "marketing": ("OPTIMIZE_FUNNEL", ""),
            "sales": ("UPDATE_PIPELINE", ""), "content": ("WRITE_BLOG", "sync"), "hr": ("TEAM_SYNC", "")}  # fmt: skip
QUIET = Terminal(Output(quiet=True))


def chat_of(folder: Path) -> ChatEncoder:
    return load_encoder(folder)


def budget_in(folder: Path, office: Office, *, reply: int) -> int | None:
    window = chat_window(chat_of(folder), reply=reply)
    assert window is not None
    budget = office.budget_for(window)
    return None if budget is None else budget.tokens


@pytest.fixture
def loud(chat: Chat) -> Chat:
    """A hosted model that writes to HR as much as it may, which fills its prompt."""

    def reply(body: dict[str, Any]) -> str:
        role = body["messages"][0]["content"].split(" of a startup")[0].split(", ")[-1]
        action, target = POSSIBLE[role]
        return json.dumps({"action_type": action, "target": target, "message": "hr: " + "1234567890, " * 20})

    chat.reply = reply
    return chat


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a context in which the full prompt of a company of some days does not fit."""
    folder = tmp_path_factory.mktemp("short")
    tiny = tiny_model(layers=1, hidden=32, heads=2, kv_heads=1)
    tiny.model.config.max_position_embeddings = 2_600
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    return folder


def model(folder: Path) -> tuple[str, ...]:
    return ("--model.name", str(folder), "--model.dtype", "float32", "--max-new-tokens", "4")


def test_a_local_model_plays_on_where_its_prompts_were_too_long(call, loud: Chat, short: Path):
    words = ("play", "office", "--team", f"{loud.name}#small", "--seat", "hr=base", "--env.days", "2", "--env.retries", "0")
    words += (*FULL, *model(short))
    told = call(*words, "--env.prompt-budget", "20000")
    assert (told["stop"], told["turns"] < 24) == ("context", True), "the budget that is stated overrides the context"
    told = call(*words)
    assert (told["stop"], told["turns"]) == ("horizon", 12 * 2)


def test_a_comparison_keys_its_episodes_by_what_the_model_was_shown(call, short: Path, tmp_path: Path):
    """A context that is stated otherwise is another prompt, though the weights are the same; scripted teams stay cached."""
    words = ("compare", "heuristic", "base", "--env.scenarios", "baseline", "--env.seeds", "1", "--env.days", "1")

    def cached(folder: Path) -> int:
        call(*words, *model(folder))
        with closing(sqlite3.connect("runs/evaluation.sqlite")) as kept:
            return kept.execute("SELECT COUNT(*) FROM episodes").fetchone()[0]

    assert cached(short) == 2
    assert cached(short) == 2
    config = json.loads((short / "config.json").read_text())
    other = tmp_path / "other"
    other.mkdir()
    for file in short.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    (other / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 5_000}))
    assert cached(other) == 3
    (other / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 50_000}))
    assert cached(other) == 4
    assert cached(short) == 4


def asked(chat: Chat) -> list[int]:
    """The estimated length of every user message that began a context."""
    return [estimated_tokens(body["messages"][1]["content"]) for body in chat.seen if len(body["messages"]) == 2]


@pytest.mark.parametrize("named", ["", "#small"])
def test_a_server_says_how_long_its_context_is(call, loud: Chat, named: str):
    words = ("play", "office", "--team", f"{loud.name}{named}", "--env.days", "3", *FULL)
    words += ("--env.retries", "0", "--max-new-tokens", "64")
    call(*words)
    free = asked(loud)
    loud.seen.clear()
    loud.window = 3_000
    call(*words)
    held = asked(loud)
    assert len(held) == len(free) == 36
    assert max(free) > 3_000 > max(held) > PINNED_BYTES
    whole = [sum(estimated_tokens(message["content"]) for message in body["messages"]) for body in loud.seen]
    assert max(whole) < 3_000 - 64
    assert sum(most == least for most, least in zip(free, held, strict=True)) > 10, "what fits is as it was"
    loud.seen.clear()
    loud.window = 600
    assert "context of 600 tokens leaves" in call(*words, code=2)
    assert loud.seen == []


def test_a_catalogue_states_how_long_a_context_is_and_what_is_estimated_is_said(
    chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    own = tmp_path / "own.toml"
    text = f'[endpoints.here]\nurl = "{chat.url}"\n[models.ours]\nprovider = "openai"\nid = "small"\nendpoint = "here"\n'
    monkeypatch.setenv("ONTHEJOB_CATALOGUE", str(own))
    monkeypatch.chdir(tmp_path)

    def play(more: str, *words: str) -> str:
        own.write_text(text + more)
        chat.seen.clear()
        capsys.readouterr()
        seat = ("--seat", "sales=openai:ours", "--env.days", "2", "--max-new-tokens", "64", "--env.retries", "0")
        assert main(["play", "office", *seat, *FULL, *words]) == 0
        return " ".join(capsys.readouterr().err.split())

    assert "estimated" not in play("")
    assert "estimated" not in play("window = 200_000\n"), "no prompt can exceed it"
    said = play("window = 4_000\n")
    assert "openai:ours has a context of 4000 tokens: user messages of up to" in said
    assert "estimated from above" in said
    said = play("window = 4_000\n", "--env.prompt-budget", "900")
    assert "the tokens of --env.prompt-budget are estimated from above" in said
    assert "has a context of" not in said
    assert max(asked(chat)) <= 900


def test_a_hosted_model_that_is_collected_from_is_shown_what_fits(call, loud: Chat, tmp_path: Path):
    words = ("collect", "--policy", f"{loud.name}#small", "--env.seeds", "1", "--env.days", "3", "--out", *FULL)

    def collected(name: str) -> list[str]:
        call(*words[:-4], str(tmp_path / name), *words[-4:])
        rows = [json.loads(line) for line in (tmp_path / name / "hr.jsonl").read_text().splitlines()]
        return [row["messages"][1]["content"] for row in rows]

    free = collected("free")
    assert max(asked(loud)) > 3_000
    loud.seen.clear()
    loud.window = 3_000
    assert collected("held") == free, "who imitates may have another context"
    assert 3_000 > max(asked(loud)) > PINNED_BYTES


LISTS = """
from dataclasses import dataclass

from onthejob import Env, Message
from onthejob.types import PromptBudget, Step, StopReason, TextObservation


@dataclass(frozen=True)
class Listed(TextObservation):
    def within(self, budget):
        text = self.messages[-1].content
        while budget.count(text) > budget.tokens:
            text = text[: len(text) // 2]
        return [Message("user", text)]


class Reading:
    def reset(self, task):
        return Listed(actor="reader", messages=(Message("user", "a word, " * 2_000),))

    def step(self, reply):
        return Step(rewards={"reader": 1.0}, observation=None, stop=StopReason.DONE)

    def state(self):
        return {"metrics": {}}

    def close(self):
        pass


class Lists(Env):
    "Say anything of a long list."

    roles, forks, max_turns = ("reader",), "no", 1

    def tasks(self, split):
        return self.seeded(split, count=1, family="lists")

    def make_environment(self):
        return Reading()

    def budget_for(self, window):
        return PromptBudget(tokens=window.tokens - window.reply - 50, count=window.count, estimated=window.estimated)
"""


@pytest.mark.parametrize("command", ["play", "collect", "compare"])
def test_prompts_of_an_environment_of_ones_own_fit(call, chat: Chat, short: Path, tmp_path: Path, command: str):
    file = tmp_path / "lists.py"
    file.write_text(LISTS)
    chat.window = 3_000
    here = {
        "play": ("play", str(file), "--policy", f"{chat.name}#small"),
        "collect": ("collect", "--env", str(file), "--policy", f"{chat.name}#small", "--count", "1"),
        "compare": ("compare", f"{chat.name}#small", "--env", str(file)),
    }[command]
    call(*here)
    assert [900 < estimated_tokens(body["messages"][-1]["content"]) < 3_000 for body in chat.seen] == [True]
    if command == "play":
        told = call("play", str(file), "--policy", "base", *model(short))
        assert (told["stop"], told["turns"]) == ("done", 1)


def test_hosted_models_are_shown_no_more_than_a_stated_budget(call, loud: Chat):
    words = ("play", "office", "--team", f"{loud.name}#small", "--env.days", "2", "--env.retries", "0", *FULL)
    call(*words)
    assert max(asked(loud)) > 2_000
    loud.seen.clear()
    call(*words, "--env.prompt-budget", "700")
    assert 600 < max(asked(loud)) <= 700
    loud.seen.clear()
    one = ("--env.scenarios", "viral", "--env.seeds", "1", "--env.days", "2", "--env.profile", "full", "--env.retries", "0")
    call("compare", f"{loud.name}#small", *one, "--env.prompt-budget", "700")
    assert 600 < max(asked(loud)) <= 700


def test_a_run_records_the_budget_that_its_context_leaves(short: Path):
    options = Train(own=Office(seeds=2, profile="full"), model=ModelOptions(name=str(short))).fitted()
    expected = budget_in(short, Office(profile="full"), reply=options.train.sampling.max_new_tokens)
    assert expected is not None
    with opened(options, QUIET) as (fitted, make_env):
        own = fitted.own
        assert (own.prompt_budget, own.tokenizer) == (expected, str(short))
        assert fitted._settings()["env"]["prompt_budget"] == expected
        env = make_env()
        assert isinstance(env, OfficeEnvironment)
        assert env.config.budget == expected
    with opened(options, QUIET, new=False) as (fitted, _):
        assert fitted.own.prompt_budget is None, "a run that goes on keeps what its record says"
    stated = Train(own=Office(seeds=2, profile="full", prompt_budget=900), model=ModelOptions(name=str(short))).fitted()
    with opened(stated, QUIET) as (fitted, _):
        assert fitted.own.prompt_budget == 900


def test_behaviours_are_measured_with_prompts_that_fit(short: Path):
    measured = Behaviours(teams=("base",), model=ModelOptions(name=str(short)), max_new_tokens=8)
    expected = budget_in(short, Office(profile="full"), reply=8)
    assert measured._fitted(scripted_players(), QUIET).budget == expected is not None
    scripted = Behaviours(teams=("expert",), model=ModelOptions(name="./nowhere"))
    assert scripted._fitted(scripted_players(), QUIET).budget is None, "no tokenizer is looked for"


def test_a_server_prunes_to_the_context_of_the_model_that_clients_train(short: Path):
    def fitted(*, limit: int | None = None, **options: Any) -> Office:
        place = NamedEnv(ref="office", env=Office(**options))
        return EnvOffice(max_new_tokens=limit).fitted(place, QUIET).env  # type: ignore[return-value]

    office = fitted(profile="full", tokenizer=str(short))
    assert office.prompt_budget == budget_in(short, Office(profile="full"), reply=Office.max_new_tokens)
    office.check_options()
    roomy = fitted(profile="full", tokenizer=str(short), limit=256)
    shorter = 256 - Office.max_new_tokens
    assert roomy.prompt_budget == budget_in(short, Office(profile="full"), reply=256) == office.prompt_budget - shorter
    assert fitted(profile="full", tokenizer=str(short), prompt_budget=900).prompt_budget == 900
    assert fitted(profile="full").prompt_budget is None
    for wrong in (
        {"limit": 64},
        {"limit": 64, "tokenizer": str(short), "prompt_budget": 900},
        {"limit": 0, "tokenizer": str(short)},
    ):
        with pytest.raises(ConfigError, match=r"--max-new-tokens must be >= 1 and needs --env\.tokenizer"):
            fitted(**wrong)


def test_a_seat_of_the_viewer_reads_what_the_context_of_its_base_holds(short: Path):
    load = Loader(ModelOptions(name=str(short), dtype="float32"), Asking(profile="full"), lambda line: None)
    asking = load("base").asking["ceo"]
    expected = budget_in(short, Office(profile="full"), reply=Office.max_new_tokens)
    assert (asking.budget, asking.tokenizer) == (expected, str(short))
    assert asking.describe() == f"full prompt of up to {expected} tokens, replies of up to 48 tokens"
    assert Asking().describe() == "compact prompt within its context, replies of up to 48 tokens"


def test_a_hosted_model_in_the_viewer_is_shown_what_fits(chat: Chat, secret: str):
    with closing(Away(HostedOptions())) as away:
        assert away.policy(chat.name).prompt_budget is None
        chat.window = 8_192
        budget = away.policy(f"{chat.name}#small").prompt_budget
        assert budget is not None
        # Replies of up to 512, and corrections, for which at most a half is kept.
        assert PINNED_BYTES < budget.tokens < (8_192 - 512) // 2
        assert budget.estimated
        assert chat.seen == []


def test_single_decisions_are_judged_by_prompts_that_fit(call, loud: Chat):
    small = ("--env.scenarios", "viral", "--env.seeds", "1", "--env.days", "2", "--env.profile", "full")
    small += ("--per-role", "4", "--worlds", "2", "--turns", "4", "--candidates", "4", "--max-new-tokens", "64")
    words = ("eval", f"{loud.name}#small", *small)
    call(*words, "--states", "whole.bin")
    assert max(asked(loud)) > 2_600
    loud.seen.clear()
    loud.window = 2_600
    call(*words, "--states", "whole.bin", "--roles", "hr")
    assert PINNED_BYTES < max(asked(loud)) < 2_600, "replies to a longer prompt are not taken from the cache"
