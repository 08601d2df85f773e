"""`train --reward` with a function of the user's, in any environment: its record, resume, replay and errors."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from onthejob.commands.train import Train, recorded_options
from onthejob.record import Run

EXAMPLES = Path(__file__).parents[2] / "examples"
LETTERS = '''
"""Name a letter."""

from onthejob import Env, Next, Split, Task

ALPHABET = "abcdefgh"


class Letters(Env):
    roles = ("player",)
    max_turns, max_new_tokens = 1, 3

    def tasks(self, split: Split) -> list[Task]:
        return self.seeded(split, count=40)

    def reset(self, task: Task) -> Next:
        return self.ask("player", "pick a letter", legal=list(ALPHABET))

    def step(self, reply: str) -> Next:
        said = reply.strip()
        return self.end(reward=ALPHABET.index(said) / 8 if said and said in ALPHABET else -1.0)

    def players(self):
        return {"always_a": lambda seen, seed: "a"}
'''
SMALL = ("--collect.episodes", "2", "--branch.group-size", "6", "--lora.rank", "2", "--sampling.temperature", "1")
BRANCH = (
    "--grouping", "branch", "--library-tasks", "10", "--scale-states", "4",
    "--collect.segment-turns", "1", "--branch.turns", "1", "--branch.worlds", "1",
)  # fmt: skip
TRL = """
def vowels(prompts, completions, **kwargs):
    assert len(prompts) == len(kwargs["role"]) == 6 and "pick a letter" in prompts[0]
    return [float(text.strip() in "ae") for text in completions]


async def later(completions):
    return [0.0 for _ in completions]


def answered(completions, answer):
    return [float(one == right) for one, right in zip(completions, answer)]


def short(completions):
    return [1.0]
"""


@pytest.fixture
def train(call, tmp_path: Path, letter_model: Path):
    """`onthejob train` in a folder that holds the environment, the example and functions in TRL's form."""
    (tmp_path / "letters.py").write_text(LETTERS, encoding="utf-8")
    (tmp_path / "mine.py").write_text(TRL, encoding="utf-8")
    shutil.copy(EXAMPLES / "my_reward.py", tmp_path)
    words = ("train", "--env", "letters.py:Letters", *SMALL, "--model.name", str(letter_model), "--model.dtype", "float32")
    return lambda *more, code=0: call(*words, *more, code=code)


def test_a_reward_is_recorded_resumed_and_its_updates_repeated(
    train, call, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    file, own = tmp_path / "my_reward.py", ("--reward", "my_reward.py:brief")
    straight = train(*own, "--iterations", "2", "--name", "straight")
    train(*own, "--iterations", "1", "--name", "again")
    with Run.open(Path("runs/again"), readonly=True) as run:
        assert run.config["reward"] == f"{file}:brief"
        assert set(run.config["sources"]) == {f"{file}:brief"}
        found = {row.name: row.value for row in run.read_metrics("reward") if row.iteration == 1}
        rows = [one for group in run.read_groups(1) for one in group.trajectories]
        assert found["reward_return"] == pytest.approx(sum(one.ret for one in rows) / len(rows))
        assert found["env_return"] == pytest.approx(sum(one.metrics["env_return"] for one in rows) / len(rows))
        for one in rows:
            assert one.ret == pytest.approx(one.metrics["env_return"] - 0.01 * len(one.turns[0].completion.text))
    resumed = call("train", "--resume", "again", "--extend", "2")
    assert resumed["adapters"]["player"]["digest"] == straight["adapters"]["player"]["digest"]

    with Run.open(Path("runs/straight"), readonly=True) as run:
        recorded = {row.name: row.value for row in run.read_metrics("train/player") if row.iteration == 2}
    repeated = train("--from-groups", "straight:2")
    assert repeated["player"]["delta_l2"] == recorded["delta_l2"], "the recorded update, without the function"

    # The commands keep their lines from the root's handlers.
    monkeypatch.setattr(logging.getLogger("onthejob"), "propagate", True)
    for warnings in (0, 1):
        with Run.open(Path("runs/again"), readonly=True) as run:
            recorded_options(run)
        assert caplog.text.count(f"the source of {file}:brief has changed since") == warnings
        file.write_text(file.read_text(encoding="utf-8") + "\n# Other thoughts.\n", encoding="utf-8")
    file.unlink()
    assert f"there is no file {file}" in " ".join(call("train", "--resume", "again", "--extend", "4", code=2).split())


@pytest.mark.parametrize("words", [(), BRANCH], ids=["episodes", "branches"])
def test_a_recorded_run_with_a_reward_is_executed_again(train, call, words: tuple[str, ...]):
    train("--reward", "mine.py:vowels", "--iterations", "1", "--name", "a", *words)
    with Run.open(Path("runs/a"), readonly=True) as run:
        rows = [one for group in run.read_groups(1) for one in group.trajectories]
    assert {(one.turns[0].completion.text.strip() in "ae", one.ret) for one in rows} == {(True, 1.0), (False, 0.0)}
    found = call("runs", "replay", "a")
    assert (found["matches"], found["differing"], found["groups"]) == (True, 0, 2 if words else 0)


def test_evaluation_takes_the_environments_reward(train):
    judged = ("--eval-every", "1", "--eval-tasks", "2", "--iterations", "1")
    train(*judged, "--name", "usual")
    train(*judged, "--reward", "mine.py:vowels", "--name", "own")
    figures = []
    for name in ("usual", "own"):
        with Run.open(Path("runs") / name, readonly=True) as run:
            figures.append([row.value for row in run.read_metrics("eval", iteration=0, name="episode_reward")])
    assert figures[0] == figures[1]
    assert figures[0]


def test_short_options_are_those_of_the_learner(train):
    mine = EXAMPLES / "my_update.py"
    loss, estimator = f"{mine}:clipped", f"{mine}:leave_one_out"
    short = train("--loss", loss, "--advantage", estimator, "--iterations", "1", "--name", "short")
    long = ("--learner.loss.loss", loss, "--advantage.estimator", estimator)
    assert short["adapters"] == {
        role: {**adapter, "path": short["adapters"][role]["path"]}
        for role, adapter in train(*long, "--iterations", "1", "--name", "long")["adapters"].items()
    }


def test_a_configuration_file_names_functions_by_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert f'reward = "{tmp_path / "my_reward.py"}:brief"' in Train(reward="my_reward.py:brief")._toml()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--reward", "exact"), "--reward must be path/to/file.py:function"),
        (("--reward", "my_reward.py:absent"), "my_reward.py has no 'absent'"),
        (("--reward", "absent.py:f"), "there is no file absent.py"),
        (("--reward", "letters.py:Letters"), "has no parameter `completions`. Write it as in TRL"),
        (("--reward", "shutil:copy"), "has no parameter `completions`. Write it as in TRL"),
        (("--reward", "mine.py:later"), "is async"),
        (("--reward", "mine.py:answered"), "asks for answer, and letters.py:Letters has completion_ids, completions"),
        (("--reward", "my_reward.py:brief", "--from-groups", "a:1"), "the record holds the rewards"),
        (("--reward", "my_reward.py:brief", "--advantage.shrink", *BRANCH, "--branch.worlds", "2"), "replaces"),
    ],
)
def test_what_is_refused_before_anything_is_loaded(train, words: tuple[str, ...], said: str):
    assert said in " ".join(train(*words, "--model.name", "absent/model", code=2).split())
    assert not Path("runs").exists()


def test_a_bad_reward_ends_a_run_with_one_sentence_and_keeps_the_record(train, tmp_path: Path):
    heard = " ".join(train("--reward", "mine.py:short", "--iterations", "1", "--name", "bad", code=1).split())
    assert f"--reward {tmp_path / 'mine.py'}:short returned 1 rewards for 6 completions" in heard
    with Run.open(Path("runs/bad"), readonly=True) as run:
        assert run.last_iteration() == 0
