"""Hosted models, swaps, merging and the training worker from the command line, against servers on loopback."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from checks.servers.chat_server import IDLE, Chat
from onthejob.cli import main
from onthejob.learn import adapter_files, lora
from onthejob.models.base_model import weights_digest
from onthejob.record import Run
from onthejob.rollout.seats import give_order
from onthejob.serve.supervisor import free_port
from onthejob.testing import tiny_model


def test_a_hosted_model_plays_and_is_accounted(call, chat: Chat, secret: str, tmp_path: Path):
    told = call("play", "office", "--seat", f"sales={chat.name}", "--env.days", "2", "--transcript", "t.jsonl")
    account = told["hosted"]["sales"]
    assert account["outcomes"] == {"ok": account["turns"]}
    assert account["prompt_tokens"] == 10 * account["turns"]
    assert set(told["hosted"]) == {"sales"}
    schema = chat.seen[0]["response_format"]["json_schema"]["schema"]
    assert "CLOSE_DEAL" in schema["properties"]["action_type"]["enum"]
    policies = {(turn["actor"], turn["policy"]) for turn in map(json.loads, (tmp_path / "t.jsonl").read_text().splitlines())}
    assert ("sales", f"{chat.name}#small") in policies
    assert ("dev", "heuristic") in policies
    assert secret not in (tmp_path / "t.jsonl").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("play", "office", "--env.days", "1", "--env.retries", "0", "--team"),
        ("play", "claw", "--env.count", "64", "--policy"),
        ("compare", "--env.scenarios", "baseline", "--env.seeds", "1", "--env.days", "1", "--env.retries", "0"),
        ("compare", "--env", "claw", "--env.count", "64", "--limit", "1"),
    ],
)
def test_a_stated_limit_of_a_reply_is_what_is_sent(call, chat: Chat, words: tuple[str, ...]):
    """Without one a hosted model may write as much as the catalogue says, as it may think first."""
    chat.reply = lambda body: None if len(chat.seen) > 2 else IDLE
    named = f"{chat.name}#small"
    for limit, sent in ((("--max-new-tokens", "24"), 24), ((), 256), (("--max-new-tokens", "32"), 32)):
        chat.seen.clear()
        call(*words, named, *limit, "--hosted.attempts", "1", code=1)
        assert {body["max_tokens"] for body in chat.seen} == {sent}, limit


def test_a_stated_limit_is_kept_when_the_reply_is_cut(call, chat: Chat):
    chat.finish = "length"
    words = ("play", "office", "--seat", f"sales={chat.name}#small", "--env.days", "1", "--env.retries", "0")
    call(*words, "--max-new-tokens", "24")
    assert {body["max_tokens"] for body in chat.seen} == {24}
    chat.seen.clear()
    call(*words)
    assert {body["max_tokens"] for body in chat.seen} == {256, 512}


def test_a_server_that_cannot_be_reached_is_named_while_it_is_waited_for(tmp_path, monkeypatch, capsys, secret: str):
    monkeypatch.chdir(tmp_path)
    url = f"http://127.0.0.1:{free_port()}/v1"
    assert main(["play", "office", "--team", f"openai:{url}", "--hosted.attempts", "1"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "onthejob play: starting"
    assert f"asking {url} which model it serves" in said[1]
    assert "connection: ConnectError at" in said[-1]


def test_feedback_grows_until_the_eighth_try(call, chat: Chat):
    chat.reply = lambda body: "I think we should sell more."
    told = call("play", "office", "--seat", f"sales={chat.name}", "--env.days", "1")
    assert told["actors"]["sales"]["valid"] == 0
    lengths = [len(body["messages"]) for body in chat.seen[:9]]
    assert lengths == [2, 4, 6, 8, 10, 12, 14, 16, 18]
    feedback = [body["messages"][-1]["content"] for body in chat.seen[1:9]]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(feedback))
    assert told["actors"]["sales"]["retries"] == 8 * told["hosted"]["sales"]["turns"] // 9
    chat.seen.clear()
    call("play", "office", "--seat", f"sales={chat.name}", "--env.days", "1", "--env.retries", "0")
    assert {len(body["messages"]) for body in chat.seen} == {2}


def test_a_hosted_model_reflects_and_reads_what_it_concluded(call, chat: Chat):
    """Its own words come back among the insights of its later prompts, and of no other's."""
    lesson = "Two calls win a lead"
    chat.reply = lambda body: IDLE if "response_format" in body else f"{lesson} [0]\nPlan: call twice"
    words = ("play", "office", "--seat", f"sales={chat.name}", "--env.days", "6", "--env.profile", "full")
    told = call(*words, "--env.reflect")
    asked = [index for index, body in enumerate(chat.seen) if "response_format" not in body]
    assert len(asked) == 1, "once in 84 turns"
    before, after = chat.seen[: asked[0]], chat.seen[asked[0] + 1 :]
    assert not any(lesson in str(body["messages"]) for body in before)
    assert after
    assert all(lesson in body["messages"][-1]["content"] for body in after)
    assert all("Plan: call twice" in body["messages"][-1]["content"] for body in after)
    assert told["stop"] == "horizon", "the reflection took no turn from the company"
    assert told["turns"] == 72 + 1 + 5, "six seats, twice a day, and a reflection of each"
    chat.seen.clear()
    call(*words)
    assert all("response_format" in body for body in chat.seen), "by default a template reflects"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("play", "--env.reflect", "--env.profile", "full"), "--env.reflect has no effect without a model"),
        (("play", "--env.prompt-budget", "200"), "--env.prompt-budget has no effect without a model: scripted"),
        (("compare", "heuristic", "expert", "--env.prompt-budget", "200"), "--env.prompt-budget has no effect"),
        (("compare", "heuristic", "--env.reflect", "--env.profile", "full"), "--env.reflect has no effect"),
        (("compare", "base", "--env.reflect"), "reflect needs the memories of the full profile"),
        (("compare", "base", "--env.prompt-budget", "0"), "budget must be >= 1"),
        (("train", "--env.reflect"), "reflect needs the memories of the full profile"),
        (("train", "--env", "claw", "--env.prompt-budget", "200"), "Unrecognized options: --env.prompt-budget"),
        (("office", "behaviours", "--prompt-budget", "200"), "--prompt-budget has no effect without a model: scripted"),
        (("office", "behaviours", "--reflect"), "--reflect has no effect without a model"),
        (
            ("office", "behaviours", "--teams", "base", "--reflect", "--memory", "off"),
            "reflect needs the memories of the full profile",
        ),
        (("office", "behaviours", "--teams", "base", "--reflect", "--replays", "a.json"), "--reflect does not fit --replays"),
        (("serve", "env", "--env.prompt-budget", "200"), "--env.prompt-budget needs --env.tokenizer here"),
        (("serve", "env", "--max-new-tokens", "64"), "needs --env.tokenizer without --env.prompt-budget"),
        (("serve", "env", "--env.reflect"), "reflect needs the memories of the full profile"),
        (("serve", "env", "--env.retries", "9"), "retries must be in 0..8, got 9"),
        (("serve", "env", "claw", "--env.reflect"), "Unrecognized options: --env.reflect"),
        (("play", "--env.tokenizer", "x", "--seat", "sales=base"), "--env.tokenizer has no effect without --env.prompt-budget"),
    ],
)
def test_options_of_prompts_that_nobody_reads_are_refused(call, words: tuple[str, ...], said: str):
    assert said in " ".join(call(*words, code=2).replace("\u2502", " ").split())
    assert not Path("runs").exists()


def test_a_provider_that_fails_ends_the_episode_and_is_no_bad_reply(call, chat: Chat):
    chat.status = 403
    said = call("play", "office", "--seat", f"sales={chat.name}#small", "--env.days", "1", code=1)
    assert said["stop"] == "error"
    assert "authentication" in said["error"]
    assert said["metrics"] == {}
    assert said["hosted"]["sales"]["outcomes"] == {"authentication": 1}


def test_hosted_models_are_compared_and_cached(call, chat: Chat):
    words = (
        "compare",
        "heuristic",
        f"small={chat.name}#small",
        "--env.scenarios",
        "baseline",
        "--env.seeds",
        "1",
        "--env.days",
        "1",
    )
    told = call(*words)
    assert {row["team"] for row in told["means"]} == {"heuristic", "small"}
    asked = len(chat.seen)
    assert asked > 0
    again = call(*words)
    assert len(chat.seen) == asked
    assert again["means"][0]["mean"] == told["means"][0]["mean"]


def test_demonstrations_of_a_hosted_model_are_canonical(call, chat: Chat, tmp_path: Path):
    chat.reply = lambda body: '```json\n{"target": "", "action_type": "idle", "reasoning": "none"}\n```'
    one = ("--env.scenarios", "baseline", "--env.seeds", "1", "--env.days", "1")
    call("collect", "--policy", f"{chat.name}#small", "--random-share", "0", *one, "--out", "demos")
    rows = [json.loads(line) for path in (tmp_path / "demos").glob("*.jsonl") for line in path.read_text().splitlines()]
    assert {row["reply"] for row in rows} == {IDLE}
    assert rows[0]["messages"][0]["role"] == "system"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("play", "office", "--team", "anthropic:claude-haiku-4-5"), "ANTHROPIC_API_KEY"),
        (("play", "office", "--team", "openai:"), "names no hosted model"),
        (("compare", "openai:https://user:pw@example.com/v1"), "no user"),
        (("policy", "swap", "boss", "expert"), "role must be one of"),
        (("policy", "swap", "sales", "nobody"), "unknown player"),
        (("train", "--judging.weight", "0.1"), "no effect without --judge"),
        (("train", "--judging.weight", "0.5", "--judge", "anthropic:x"), "0.2"),
        (("serve", "trainer"), "ONTHEJOB_TRAINER_TOKEN"),
        (("serve", "model", "nothing"), "unknown player"),
        (("model", "merge", "sales@0001", "out"), "0 adapters called"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_loaded(call, monkeypatch, words: tuple[str, ...], said: str):
    for name in ("ANTHROPIC_API_KEY", "ONTHEJOB_TRAINER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert said in call(*words, code=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--env.partner", "bedrock:small"), "Set AWS_DEFAULT_REGION"),
        (("--env.partner", "anthropic:claude-haiku-4-5"), "Set the environment variable ANTHROPIC_API_KEY"),
        (("--judge", "anthropic:claude-haiku-4-5"), "Set the environment variable ANTHROPIC_API_KEY"),
    ],
)
def test_a_hosted_colleague_who_cannot_come_leaves_no_run(
    call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], said: str
):
    pytest.importorskip("botocore", reason="the bedrock extra is not installed")
    for name in ("ANTHROPIC_API_KEY", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    # Before the base model is looked for.
    assert said in call("train", "--roles", "sales", *words, "--model.name", "no/model", code=2)
    assert said in call("train", "--smoke", "--roles", "sales", *words, "--model.name", "no/model", code=2)
    assert not Path("runs").exists()


def test_hosted_colleagues_play_and_judge_in_training(call, chat: Chat, tiny_base: Path):
    def reply(body: dict[str, Any]) -> str:
        asked = json.dumps(body["messages"])
        if "score" not in json.dumps(body["response_format"]):
            return IDLE
        return '{"score": 5}' if "RUN_DEMO\\" in asked.split("Decision:")[1] else '{"score": 1}'

    chat.reply = reply
    small = (
        "--env.scenarios",
        "baseline",
        "--env.days",
        "1",
        "--library-tasks",
        "0",
        "--scale-states",
        "0",
        "--sampling.max-new-tokens",
        "4",
    )
    small += (
        "--collect.episodes",
        "1",
        "--collect.segment-turns",
        "7",
        "--collect.fresh-share",
        "1",
        "--collect.partner-share",
        "0",
    )
    small += ("--branch.group-size", "2", "--branch.turns", "2", "--branch.worlds", "1", "--iterations", "1", "--lora.rank", "2")
    who = ("--env.partner", f"{chat.name}#colleague", "--judge", f"{chat.name}#judge")
    call("train", "--dry-run", "--roles", "sales", *who, *small, "--name", "a", "--model.name", tiny_base)
    assert {body["model"] for body in chat.seen} == {"colleague", "judge"}
    assert {body["max_tokens"] for body in chat.seen if body["model"] == "judge"} == {256}, "the catalogue's, above 64"
    with Run.open(Path("runs/a"), readonly=True) as run:
        (episode,) = run.read_episodes(1)
        (judged,) = run.read_metrics("judge", iteration=1, name="judged")
    played = {turn["actor"]: turn["policy"] for turn in episode.timeline}
    assert played["dev"] == f"{chat.name}#colleague"
    assert played["sales"] == "sales@0000"
    assert judged.value == 2.0, "the replies of one group"
    assert Path("runs/a/judge.sqlite").is_file(), "a resumed run asks nothing twice"


def test_a_worker_that_can_be_reached_needs_a_certificate(call, monkeypatch):
    monkeypatch.setenv("ONTHEJOB_TRAINER_TOKEN", "0123456789abcdef")
    assert "--tls-cert" in call("serve", "trainer", "--host", "0.0.0.0", code=2)


def test_seats_change_hands_while_the_episode_runs(call, chat: Chat, tmp_path: Path):
    """The hosted model's second turn is the last: by then an order has put another in its place."""

    def reply(body: dict[str, Any]) -> str:
        if len(chat.seen) == 2:
            give_order(tmp_path / "orders.json", "sales", "expert")
        return IDLE

    chat.reply = reply
    seat = f"sales={chat.name}#small"
    call("play", "office", "--seat", seat, "--env.days", "3", "--orders", "orders.json", "--transcript", "t.jsonl")
    turns = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    who = [turn["policy"] for turn in turns if turn["actor"] == "sales"]
    assert who[:2] == [f"{chat.name}#small"] * 2
    assert set(who[2:]) == {"expert"}
    assert {turn["policy"] for turn in turns if turn["actor"] != "sales"} == {"heuristic"}


def test_an_order_is_written_beside_the_others(call, tmp_path: Path):
    call("policy", "swap", "sales", "expert")
    assert call("policy", "swap", "dev", "random") == {"orders": {"sales": "expert", "dev": "random"}}
    assert json.loads((tmp_path / "orders.json").read_text()) == {"sales": "expert", "dev": "random"}


@pytest.fixture
def tiny_base(tmp_path: Path) -> Path:
    """A folder with a tiny model."""
    tiny = tiny_model()
    tiny.model.save_pretrained(tmp_path / "base")
    tiny.tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def test_a_run_can_be_merged_into_one_model(call, tmp_path: Path, tiny_base: Path):
    model = lora.attach(tiny_model().model, ["sales"], lora.LoraSpec(rank=2), seed=0)
    digest = weights_digest(tiny_base)
    for version in (1, 2):
        adapter_files.save_adapter(
            model, "sales", tmp_path / "adapters", version=version, parent=None, base_digest=digest, dtype="float32"
        )
        for name, parameter in lora.parameters(model, "sales").items():
            if ".lora_B." in name:
                parameter.data.add_(0.1)
    told = call("model", "merge", "sales", "merged", "--from", "adapters", "--model", tiny_base)
    assert told["adapter"] == "sales@0002"
    assert told["max_difference"] < 1e-2
    assert (tmp_path / "merged" / "model.safetensors").is_file()
    assert "exists" in call("model", "merge", "sales@0001", "merged", "--from", "adapters", "--model", tiny_base, code=2)
