"""Tools of an environment: running what a reply calls, its forks, and tokens that only grow."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from onthejob.calls import write_call, write_calls
from onthejob.envs.running import Forking, running
from onthejob.models.chat import ChatEncoder
from onthejob.plugins import resolve
from onthejob.record import Run
from onthejob.rollout.play import play
from onthejob.testing import check_env, tiny_model
from onthejob.types import Completion, Sampling, Split, ToolCall

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "tools.py")


def begun() -> Forking:
    env = resolve(EXAMPLE)()
    run = running(env)
    assert isinstance(run, Forking)
    run.reset(env.tasks(Split.TRAIN)[0])
    return run


def test_the_example_keeps_the_contract():
    check_env(resolve(EXAMPLE)())
    assert len(Path(EXAMPLE).read_text(encoding="utf-8").splitlines()) <= 40


def test_calls_are_run_in_order_and_bad_ones_are_feedback():
    run = begun()
    step = run.step(write_calls("", [ToolCall("price", {"good": "nut"}), ToolCall("price", {}), ToolCall("fly", {})]))
    assert step.observation is not None
    assert (step.valid, step.rewards, step.observation.fresh) == (False, {"clerk": -0.1}, False)
    assert [message.role for message in step.observation.messages] == ["tool"] * 3
    said = [message.content for message in step.observation.messages]
    assert said[0].startswith("Error: KeyError")
    assert said[1].startswith("Error: wrong arguments of price: good: Field required")
    assert said[2].startswith("Error: there is no tool 'fly'")
    assert step.facts["calls"][0]["error"]
    step = run.step("<tool_call>{")
    assert step.observation is not None
    assert (step.valid, step.observation.messages[0].role) == (False, "user")


def test_forks_are_exact_over_tool_turns():
    run = begun()
    run.step(write_call("price", good="eggs"))
    fork = run.fork()
    assert fork.observe() == run.observe()
    assert fork.step(write_call("price", good="figs")) == run.step(write_call("price", good="figs"))


class Writing:
    version, reads = "writing", "tokens"

    def __init__(self, chat: ChatEncoder) -> None:
        self.chat = chat

    def act(self, contexts, sampling):
        ids = [self.chat.reply_ids(f" {context.observation.view['next']}") for context in contexts]
        return [Completion(text=self.chat.decode(one), token_ids=one, logprobs=(0.0,) * len(one)) for one in ids]


def test_tokens_only_grow_over_tool_turns(smollm2_tokenizer):
    env, chat = resolve(EXAMPLE)(), ChatEncoder(smollm2_tokenizer)
    tasks, sampling = env.tasks(Split.TRAIN)[:1], Sampling(max_new_tokens=64)
    (episode,) = play([running(env)], tasks, {"clerk": Writing(chat)}, sampling, seed=0, encoder=chat, max_turns=4)
    (trajectory,) = episode.trajectories.values()
    assert trajectory.ret == pytest.approx(1.0)
    for before, after in pairwise(trajectory.turns):
        said = (*before.prompt_ids, *before.completion.token_ids)
        assert after.prompt_ids[: len(said)] == said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_example_is_collected_imitated_and_trained(tmp_path: Path):
    """The whole way with a tiny model: its record says which calls were made."""
    tiny = tiny_model(words=["price", "good", *"0123456789"])
    tiny.model.save_pretrained(tmp_path / "model")
    tiny.tokenizer.save_pretrained(tmp_path / "model")
    model = ("--model.name", str(tmp_path / "model"), "--model.dtype", "float32")
    small = ("--collect.episodes", "2", "--branch.group-size", "4", "--lora.rank", "2", "--workers", "0", "--iterations", "2")
    commands = (
        ("collect", "--env", EXAMPLE, "--policy", "random", "--count", "6", "--out", "shown"),
        ("sft", "shown", "--out", "adapters/shop", "--lora.rank", "2", *model),
        ("train", "--env", EXAMPLE, "--init", "adapters/shop", "--name", "shop", *small, *model),
    )
    for words in commands:
        command = [sys.executable, "-m", "onthejob", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stderr
    row = json.loads((tmp_path / "shown" / "clerk.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert row["tools"][0]["function"]["name"] == "price"
    with Run.open(tmp_path / "runs" / "shop", readonly=True) as run:
        assert run.last_iteration() == 2
