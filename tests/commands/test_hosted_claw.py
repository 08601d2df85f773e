"""Hosted models in the claw: their append-only conversation, from the command line and through every client."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks.servers.chat_server import Chat, conversation
from onthejob.claw import Claw
from onthejob.cli import main
from onthejob.commands.named_env import Workplace
from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.claw.env import ACTOR
from onthejob.models.hosted import Accounts, HostedPolicy
from onthejob.models.providers import AnthropicClient
from onthejob.models.transport import Limits, Transport
from onthejob.rollout.play import play
from onthejob.types import Sampling, Split, Task

CORPUS = ("--env.count", "64")


@pytest.fixture
def spec_of(chat: Chat, secret: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """The server's model as a command line names it under a protocol."""

    def named(kind: str) -> str:
        if kind == "openai":
            return chat.name
        pytest.importorskip("botocore", reason="the bedrock extra is not installed")
        for name, value in {
            "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": chat.origin,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "AKIATEST",
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            monkeypatch.setenv(name, value)
        return "bedrock:small"

    return named


def longest() -> Task:
    """A training task of several gold turns."""
    return max(Claw(count=64).tasks(Split.TRAIN), key=lambda task: len(task.payload["gold"]))


def gold_of(tasks: list[Task]) -> Callable[[dict[str, Any]], str]:
    """Replies of a model that remembers nothing but the conversation it is shown: the next gold command of what is asked."""

    def reply(body: dict[str, Any]) -> str:
        shown = conversation(body)
        (gold,) = [task.payload["gold"] for task in tasks if str(task.payload["intent"]) in shown[1][1]]
        done = sum(role == "assistant" for role, _ in shown)
        return f"On to step {done + 1}.\n{block(gold[done])}" if done < len(gold) else DONE

    return reply


def check_conversation(requests: list[dict[str, Any]], replies: list[str]) -> None:
    """Every request repeats the one before, with the reply to it and what came of that behind."""
    shown = [conversation(body) for body in requests]
    assert [role for role, _ in shown[-1]] == ["system", *["user", "assistant"] * (len(shown) - 1), "user"]
    assert [text for role, text in shown[-1] if role == "assistant"] == replies[:-1]
    for before, after in itertools.pairwise(shown):
        assert after[: len(before)] == before
        assert after[-1][1].startswith("exit code: 0")


@pytest.mark.parametrize("kind", ["openai", "bedrock"])
def test_a_hosted_model_solves_a_task(call, chat: Chat, spec_of, kind: str):
    task = longest()
    chat.reply = gold_of([task])
    spec = spec_of(kind)
    told = call("play", "claw", "--policy", spec, *CORPUS, "--task", task.id, "--transcript", "t.jsonl")
    turns = len(task.payload["gold"]) + 1
    assert turns >= 4
    assert (told["metrics"]["passed"], told["stop"], told["turns"], told["error"]) == (1.0, "done", turns, None)
    account = told["hosted"][ACTOR]
    assert (account["turns"], account["requests"], account["outcomes"]) == (turns, turns, {"ok": turns})
    assert (account["prompt_tokens"], account["completion_tokens"]) == (10 * turns, 5 * turns)
    lines = [json.loads(line) for line in Path("t.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {line["policy"].partition("#")[0] for line in lines} == {spec}
    check_conversation(chat.seen, [line["text"] for line in lines])
    assert not any({"response_format", "outputConfig"} & set(body) for body in chat.seen), "a reply to a shell is free text"


def test_anthropics_client_solves_a_task(chat: Chat, secret: str):
    task = longest()
    chat.reply = gold_of([task])
    transport, accounts = Transport(Limits(deadline_s=20)), Accounts()
    client = AnthropicClient(transport, model="small", name="anthropic:small", key=secret, base_url=chat.origin)
    try:
        with Workplace(ref="claw", env=Claw()).opened() as make_env:
            env = make_env()
            seated = {ACTOR: HostedPolicy(client, transport, accounts=accounts)}
            (episode,) = play([env], [task], seated, Sampling(), seed=0, max_turns=12)
            env.close()
    finally:
        transport.close()
    assert (episode.metrics["passed"], episode.stop) == (1.0, "done")
    assert accounts.roles[ACTOR].outcomes == {"ok": episode.turns}
    check_conversation(chat.seen, [turn.text for turn in episode.transcript])


def test_a_provider_that_hangs_or_refuses_ends_the_episode_and_is_no_bad_reply(call, chat: Chat):
    words = ("play", "claw", "--policy", f"{chat.name}#small", *CORPUS, "--hosted.deadline-s", "0.5")

    def late(body: dict[str, Any]) -> str:
        time.sleep(0.0 if len(conversation(body)) == 2 else 2.0)
        return block("ls")

    chat.reply = late
    said = call(*words, code=1)
    assert (said["stop"], said["turns"], said["metrics"]) == ("error", 1, {})
    assert said["hosted"][ACTOR]["outcomes"] == {"ok": 1, "timeout": 1}
    chat.status = 403
    said = call(*words, code=1)
    assert "authentication" in said["error"]
    assert said["hosted"][ACTOR]["outcomes"] == {"authentication": 1}


def test_a_reply_with_nothing_to_run_is_the_models_mistake(call, chat: Chat):
    chat.reply = lambda body: "I shall look around first." if len(conversation(body)) < 6 else DONE
    told = call("play", "claw", "--policy", chat.name, *CORPUS)
    assert (told["stop"], told["turns"], told["metrics"]["parse_errors"]) == ("done", 3, 2.0)
    assert "```bash" in conversation(chat.seen[1])[-1][1], "it was told how to write a command"


def test_hosted_models_are_compared_and_cached(call, chat: Chat):
    tasks = Claw(count=64).tasks(Split.DEV)
    chat.reply = gold_of(tasks)
    words = ("compare", "noop", f"small={chat.name}#small", "--env", "claw", *CORPUS, "--limit", "3")
    told = call(*words)
    passed = {row["team"]: row["mean"] for row in told["means"] if row["metric"] == "passed" and row["stratum"] == "all"}
    assert passed == {"noop": 0.0, "small": 1.0}
    account = told["hosted"][ACTOR]
    assert account["requests"] == account["turns"] == len(chat.seen) > 3
    assert not any("response_format" in body for body in chat.seen)
    asked = len(chat.seen)
    again = call(*words)
    assert len(chat.seen) == asked, "finished episodes are cached"
    assert "hosted" not in again
    said = call(*words, "--hosted.free-text", code=2)
    assert "--hosted.free-text has no effect" in said


@pytest.mark.parametrize("odd", ["\ud800", "\udfff\ud800", "\x1b[2J\x07", "\u202e", "\x9b31m"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_odd_characters_of_a_model_end_no_game(call, capsys: pytest.CaptureFixture[str], chat: Chat, odd: str, form: str):
    replies = iter([f"Look: {odd}", f"{block('ls')}\n{odd}", block(f"echo {odd}")])
    chat.reply = lambda body: next(replies, DONE)
    words = ["play", "claw", "--policy", f"{chat.name}#small", *CORPUS]
    if form == "json":
        assert call(*words)["error"] is None
        return
    assert main(words) == 0
    shown = capsys.readouterr()
    assert (shown.out + shown.err).encode()
    assert not set("\x1b\x07\u202e\x9b") & set(shown.out + shown.err)
