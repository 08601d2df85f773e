from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from onthejob.api.app import create_app
from onthejob.learn.advantage import AdvantageConfig, advantages
from onthejob.record import Run
from onthejob.types import Completion, Group, StopReason, Trajectory, Turn

TOKEN = "a-token-for-tests-0123"
RULE = {
    "estimator": "group",
    "scale": "std",
    "eps": 0.02,
    "shrink": False,
    "bound": None,
    "invalid_gap": 0.5,
    "invalid_ceiling": -1.5,
}
RETURNS = (0.5, 1.5, 1.0, 1.0)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with one recorded run: two groups, one episode, metrics with a NaN."""
    keys = ['{"action_type":"FIX_BUG","target":"major"}', '{"action_type":"REFACTOR"}', "invalid", '{"action_type":"REFACTOR"}']
    turns = [
        Turn(
            prompt_ids=(1, 2, 3),
            completion=Completion(text=text, token_ids=(7, 8), logprobs=(-0.5, -0.25)),
            policy_version="dev@0000",
            valid=text != "invalid",
        )
        for text in keys
    ]
    members = tuple(
        Trajectory(task_id="t", actor="dev", turns=(turn,), rewards=(ret,), stop=StopReason.BRANCH)
        for turn, ret in zip(turns, RETURNS, strict=True)
    )
    facts = {"keys": keys, "by_world": {key: [1.0, 2.0] for key in keys}, "worlds": [4, 5], "day": 3, "turn": 44, "chosen": 1}
    groups = [Group(key=f"it0001/{n}/dev", actor="dev", trajectories=members, facts=facts) for n in range(2)]
    config = {"learner": {"advantage": RULE}, "model": {"name": "no-such-model"}}
    given = advantages(groups[0], AdvantageConfig(**RULE))
    with Run.create(tmp_path / "runs", config=config, name="first") as run:
        with run.iteration(0) as it:
            it.metrics("scales/dev", {"outcome": 2.0, "return": 0.5})
        with run.iteration(1) as it:
            it.groups(groups, [given, None])
            it.metrics("train/dev", {"loss": 0.25, "kl": math.nan})
            it.event("note", {"why": "because"})
    return tmp_path / "runs"


@pytest.fixture
def client(runs: Path, tmp_path: Path) -> Iterator[TestClient]:
    """A browser on our own page, with the token."""
    app = create_app(token=TOKEN, hosts=("testserver",), runs=runs, open_run="first", pages=tmp_path / "no pages")
    with TestClient(app, headers={"x-onthejob-token": TOKEN}, raise_server_exceptions=True) as made:
        yield made
