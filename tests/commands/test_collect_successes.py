"""`collect --policy ADAPTERS --passed`: what a model solved by itself, as demonstrations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onthejob.testing import tiny_model

LETTERS = '''
"""Say a word of even letters, by the sum of their codes: about half of a vocabulary."""

from onthejob import Env, Next, Split, Task


class Letters(Env):
    roles = ("pupil",)
    max_turns, max_new_tokens = 1, 1

    def tasks(self, split: Split) -> list[Task]:
        return self.seeded(split, count=6)

    def reset(self, task: Task) -> Next:
        return self.ask("pupil", "which letter", system="guess a letter")

    def step(self, reply: str) -> Next:
        return self.end(reward=0.5, metrics={"passed": float(sum(map(ord, reply.strip())) % 2 == 0)})

    def players(self):
        return {"good": lambda seen, seed: "b", "bad": lambda seen, seed: "a"}
'''


@pytest.fixture
def letters(tmp_path: Path) -> str:
    """The file, in the empty folder in which `call` runs commands."""
    (tmp_path / "letters.py").write_text(LETTERS, encoding="utf-8")
    return "letters.py"


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny = tiny_model(words=["which", "letter", "guess", *"ab"])
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    return folder


def even(row: dict[str, Any]) -> bool:
    return sum(map(ord, row["messages"][-1]["content"].strip())) % 2 == 0


def rows_of(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]


def test_a_models_own_successes_are_written_and_imitated(call, letters: str, tiny_path: Path) -> None:
    model = ("--model.name", str(tiny_path), "--model.dtype", "float32")
    asked = ("collect", "--env", letters, "--policy", "base", "--count", "60", "--temperature", "2", *model)
    every = call(*asked, "--out", "every")
    assert (every["policy"], every["episodes"], every["written"]) == ("base", 60, 60)
    wanted = [row for row in rows_of("every/pupil.jsonl") if even(row)]
    passed = call(*asked, "--passed", "--out", "passed")
    assert 0 < passed["written"] == len(wanted) < 60
    assert rows_of("passed/pupil.jsonl") == wanted
    # Another seed, other replies.
    call(*asked, "--seed", "1", "--out", "other")
    assert rows_of("other/pupil.jsonl") != rows_of("every/pupil.jsonl")

    call("sft", "passed", "--epochs", "10", "--lr", "0.02", "--lora.rank", "2", *model)
    better = call(*asked[:4], "adapters/sft", *asked[5:], "--passed", "--out", "again")
    assert better["written"] > passed["written"]


def test_a_player_that_passes_nothing_leaves_nothing_to_imitate(call, letters: str, tmp_path: Path) -> None:
    assert call("collect", "--env", letters, "--policy", "good", "--count", "6", "--passed")["written"] == 6
    said = call("collect", "--env", letters, "--policy", "bad", "--count", "6", "--passed", "--out", "none", code=2)
    assert "none of the 6 episodes of letters passed" in said
    assert not Path("none").exists()
    (tmp_path / "mute.py").write_text(LETTERS.replace('"passed"', '"found"').replace("Letters", "Mute"), encoding="utf-8")
    said = call("collect", "--env", "mute.py", "--policy", "good", "--count", "6", "--passed", code=2)
    assert "report no metric `passed`" in said


def test_the_claw_plays_gold_commands_or_a_player(call) -> None:
    call("collect", "--env", "claw", "--policy", "gold", "--count", "3", "--passed", "--out", "gold")
    assert len(rows_of("gold/agent.jsonl")) == 3
    said = call("collect", "--env", "claw", "--policy", "noop", "--count", "2", "--passed", code=2)
    assert "none of the 2 episodes of claw passed" in said
    said = call("collect", "--env", "claw", "--policy", "gold", "--gold.count", "5", code=2)
    assert "--policy plays none" in said
    said = call("collect", "--env", "claw", "--passed", "--temperature", "0.5", code=2)
    assert "--passed, --temperature without --policy" in said


def test_a_share_of_the_families_is_demonstrated(call) -> None:
    few = ("--gold.count", "12", "--gold.near-misses", "0")
    call("collect", "--env", "claw", *few, "--gold.families", "0.1", "--out", "tenth")
    families = {row["family"] for row in rows_of("tenth/agent.jsonl")}
    call("collect", "--env", "claw", *few, "--out", "all")
    assert 1 < len(families) <= 8 < len({row["family"] for row in rows_of("all/agent.jsonl")})
