"""Runs of the loop in toy workplaces with an untaught tiny model: seconds each, and every reply is noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from onthejob.learn.learner import Learner, LearnerConfig
from onthejob.learn.lora import LoraSpec, attach
from onthejob.loop import train
from onthejob.models.chat import ChatEncoder
from onthejob.models.sampler import Sampler
from onthejob.models.scripted import ScriptedPolicy
from onthejob.record.store import Run
from onthejob.rollout.pool import TaskPool
from onthejob.testing import heuristic_reply, tiny_model, toy_tasks
from onthejob.train import Setup, TrainConfig, TrainResult
from onthejob.types import Environment

HEURISTIC = ScriptedPolicy(heuristic_reply, version="heuristic")


@dataclass
class Started:
    """One run and everything it needs; `train` may be called again to resume it."""

    run: Run
    learner: Learner
    sampler: Sampler
    roles: tuple[str, ...]

    def train(
        self, config: TrainConfig, make_env: Callable[[], Environment], *, resume: bool = False, **changes: Any
    ) -> TrainResult:
        arguments: dict[str, Any] = {
            "pool": TaskPool(toy_tasks(8), seed=0),
            "learner": self.learner,
            "sampler": self.sampler,
            "encoder": self.sampler.chat,
            "run": self.run,
            "partners": {"maker": HEURISTIC, "seller": HEURISTIC},
            "roles": self.roles,
        }
        return train(Setup(config=config, make_env=make_env, **(arguments | changes)), resume=resume)


Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Makes a run with fresh adapters of the named roles; the same name opens the run again."""
    runs: list[Run] = []

    def make(roles: Sequence[str] = ("maker", "seller"), *, name: str = "run", lr: float = 1e-3) -> Started:
        tiny = tiny_model(seed=0)
        model = attach(tiny.model, tuple(roles), LoraSpec(rank=2, alpha=4), seed=1)
        path = tmp_path / name
        run = Run.open(path) if path.exists() else Run.create(tmp_path, config={}, name=name)
        runs.append(run)
        learner = Learner(model, tuple(roles), config=LearnerConfig(lr=lr), seed=0)
        return Started(run, learner, Sampler(model, ChatEncoder(tiny.tokenizer)), tuple(roles))

    yield make
    for run in runs:
        run.close()
