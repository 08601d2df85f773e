"""`train --judge` where whole episodes are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checks.servers.chat_server import Chat
from onthejob.record import Run

WORDS = '''
"""Two letters one after the other; the judge likes an a."""

from onthejob import Env, Next, Rubric, Split, Task


class Words(Env):
    roles = ("player",)
    max_turns, max_new_tokens = 2, 3
    judge_rubric = Rubric(
        text="Grade the letters: 5 is an a, 1 is none.", unit="episode", who="player", what="game", situation="pick", good="a a"
    )

    def tasks(self, split: Split) -> list[Task]:
        return self.seeded(split, count=40)

    def reset(self, task: Task) -> Next:
        self.picked = 0
        return self.ask("player", "pick a letter", legal=list("abcdefgh"))

    def step(self, reply: str) -> Next:
        self.picked += 1
        return self.end(reward=float(reply.strip() == "b")) if self.picked == 2 else self.tell("pick a letter")
'''


def likes_a(body: dict[str, Any]) -> str:
    """5 where an `a` was picked."""
    game = body["messages"][1]["content"].split("Game:\n")[1].split("\n", 1)[1].rsplit("\n", 3)[0]
    return '{"score": 5}' if "a" in game.replace("pick a letter", "").replace("assistant", "").split() else '{"score": 1}'


def test_a_judged_run_of_whole_episodes_is_recorded_and_replayed(call, chat: Chat, letter_model: Path, tmp_path: Path):
    (tmp_path / "words.py").write_text(WORDS, encoding="utf-8")
    chat.reply = likes_a
    model = ("--model.name", str(letter_model), "--model.dtype", "float32")
    small = ("--collect.episodes", "2", "--branch.group-size", "4", "--lora.rank", "2", "--iterations", "1", "--name", "judged")
    train = ("train", "--env", "words.py", *small, *model, "--judge", f"{chat.name}#judge")
    call(*train, "--judging.weight", "0.2")
    with Run.open(Path("runs/judged"), readonly=True) as run:
        rows = [row for group in run.read_groups(1) for row in group.trajectories]
        counted = {metric.name: metric.value for metric in run.read_metrics("judge")}
        groups = list(run.read_groups(1))
    assert (len(rows), counted["judged"], counted["judge_missing"]) == (8, 8.0, 0.0)
    for group in groups:
        mean = sum(row.metrics["judge"] for row in group.trajectories) / len(group)
        for row in group.trajectories:
            said = [turn.completion.text.strip() for turn in row.turns]
            assert row.metrics["judge"] == float("a" in said)
            assert row.ret == pytest.approx(row.metrics["env_return"] + 0.2 * (row.metrics["judge"] - mean))
    assert len({row.metrics["judge"] for row in rows}) == 2, "both scores were given"
    assert call("runs", "replay", "judged")["matches"]
    (tmp_path / "words.py").write_text(WORDS.replace("judge_rubric = Rubric", "judged = Rubric"), encoding="utf-8")
    (tmp_path / "words.py").rename(tmp_path / "silent.py")
    silent = [word.replace("words.py", "silent.py") for word in train]
    assert "words says nothing by which a judge could grade. State `judge_rubric`" in call(*silent, "--name", "b", code=2)
