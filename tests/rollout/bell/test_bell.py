"""The whole loop on an environment that the package has never heard of."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from onthejob.learn.learner import Learner, LearnerConfig
from onthejob.learn.lora import LoraSpec, attach
from onthejob.loop import train
from onthejob.models.chat import ChatEncoder
from onthejob.models.sampler import Sampler
from onthejob.record.bundle import write_bundles
from onthejob.record.store import Run
from onthejob.rollout.branch import BranchConfig
from onthejob.rollout.collect import CollectConfig
from onthejob.rollout.pool import TaskPool
from onthejob.rollout.summary import spreads, stop_mix
from onthejob.testing import check_environment, tiny_model
from onthejob.train import Setup, TrainConfig, TrainResult
from onthejob.types import Sampling, StopReason, Task

from .bell import Bell, bell_tasks

CONFIG = TrainConfig(
    iterations=9,
    grouping="episodes",
    collect=CollectConfig(episodes=3),
    branch=BranchConfig(group_size=4),
    sampling=Sampling(max_new_tokens=3),
    workers=2,
)
Play = Callable[[TaskPool], tuple[TrainResult, Run]]


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    """Trains `porter` on a pool, in a run of its own."""
    runs: list[Run] = []

    def go(pool: TaskPool) -> tuple[TrainResult, Run]:
        tiny = tiny_model(seed=0)
        model = attach(tiny.model, ("porter",), LoraSpec(rank=4, alpha=8), seed=1)
        run = Run.create(tmp_path, config={}, name=f"run{len(runs)}")
        runs.append(run)
        sampler = Sampler(model, ChatEncoder(tiny.tokenizer))
        learner = Learner(model, ("porter",), config=LearnerConfig(lr=3e-3), seed=0)
        made: dict[str, Any] = {"learner": learner, "sampler": sampler, "encoder": sampler.chat, "run": run}
        return train(Setup(config=CONFIG, make_env=Bell, pool=pool, partners={}, roles=("porter",), **made)), run

    yield go
    for run in runs:
        run.close()


def test_it_conforms_and_is_small():
    assert check_environment(Bell, bell_tasks(3)).steps == 6
    folder = Path(__file__).parent
    assert len((folder / "bell.py").read_text(encoding="utf-8").splitlines()) < 100


def test_the_loop_trains_on_it(play: Play):
    result, run = play(TaskPool(bell_tasks(6), seed=0))
    assert (result.stop, result.exit_code, result.iterations) == ("iterations", 0, 9)
    groups = list(run.read_groups(1))
    assert [len(group) for group in groups] == [4, 4, 4]
    assert all(len(row.turns) == 2 for group in groups for row in group.trajectories)
    assert result.adapters["porter"].version > 0
    (line, *_) = spreads(groups)
    assert line.std > 0.0
    assert line.stops == {StopReason.HORIZON: 4}
    assert stop_mix(groups) == {StopReason.HORIZON: 1.0}
    assert [metric.value for metric in run.read_metrics("loop", name="stop_horizon")] == [1.0] * 9
    assert [metric.value for metric in run.read_metrics("loop", name="mean_turns")] == [2.0] * 9


def test_an_iteration_is_a_bundle_of_rollouts(play: Play, tmp_path: Path):
    _, run = play(TaskPool(bell_tasks(6), seed=0))
    path = tmp_path / "trajectory_bundle.jsonl"
    assert write_bundles(run, path, 1) == 3
    groups, advantages = list(run.read_groups(1)), run.read_advantages(1)
    for line, group in zip(path.read_text(encoding="utf-8").splitlines(), groups, strict=True):
        made = json.loads(line)
        assert (made["k"], made["n_turns"], made["stops"]) == (4, [2] * 4, ["horizon"] * 4)
        assert made["rewards"] == [row.ret for row in group.trajectories]
        assert made["rewards_stats"]["spread"] == max(made["rewards"]) - min(made["rewards"])
        assert [rollout["metrics"]["paid"] for rollout in made["rollouts"]] == made["rewards"]
        values = advantages[group.key]
        assert made["trained"] == (values is not None)
        assert made["advantages"] == ([0.0] * 4 if values is None else values.tolist())
        turn = made["rollouts"][3]["turns"][1]
        assert turn["completion_ids"] == list(group.trajectories[3].turns[1].completion.token_ids)
        assert turn["logprobs"] == list(group.trajectories[3].turns[1].completion.logprobs)


def test_a_pool_with_nothing_to_teach_ends_the_run_as_a_result(play: Play):
    result, run = play(TaskPool(bell_tasks(6, lively=0), seed=0, patience=2))
    assert (result.stop, result.exit_code, result.iterations) == ("pool_converged", 3, 2)
    assert run.iterations() == [0, 1, 2]
    assert len(list(run.read_groups(2))) == 3
    assert run.latest_checkpoint() == 2


def test_a_pool_grows_before_it_converges(play: Play):
    def grow(number: int) -> Sequence[Task]:
        return bell_tasks(3, first=100 * number, lively=0) if number <= 2 else []

    result, run = play(TaskPool(bell_tasks(3, lively=0), seed=0, patience=2, grow=grow))
    assert (result.stop, result.exit_code, result.iterations) == ("pool_converged", 3, 6)
    assert [metric.value for metric in run.read_metrics("loop", name="pool_tasks")] == [3, 6, 6, 9, 9, 9]
    assert [metric.value for metric in run.read_metrics("pool/dull", name="family_alive_share")][-1] == 0.0


ROOMS = ("rollout", "train", "learn", "record", "models")


def code_words(path: Path) -> str:
    """The file's code without docstrings and comments, in lower case."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [line for line in body if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))]
            node.body = kept or [ast.Pass()]  # pyright: ignore[reportAttributeAccessIssue]
    return ast.unparse(tree).casefold()


def named(word: str, code: str) -> bool:
    """True when `word` stands in `code` by itself or as a part of a longer name."""
    return re.search(rf"(?<![a-z]){word}(?![a-z])", code) is not None


def test_the_loop_names_no_environment(repository: Path):
    package = repository / "src" / "onthejob"
    names = [path.name for path in (package / "envs").iterdir() if (path / "__init__.py").is_file()] + ["bell", "toyshell"]
    assert len(names) >= 3
    files = [path for room in ROOMS for path in (package / room).rglob("*.py")]
    assert len(files) > 40
    found = [(str(path.relative_to(package)), name) for path in files for name in names if named(name, code_words(path))]
    assert found == []
    assert named("office", code_words(package / "office_players.py"))
