"""Settings in checkpoints of earlier versions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onthejob.errors import ConfigError
from onthejob.learn.advantage import AdvantageConfig
from onthejob.learn.learner import LearnerConfig
from onthejob.learn.loss import LossConfig
from onthejob.train.config import TrainConfig
from onthejob.train.settings import check_settings, settings_of


def parts() -> Any:
    return SimpleNamespace(
        config=TrainConfig(advantage=AdvantageConfig(scale="none")),
        learner=SimpleNamespace(config=LearnerConfig(loss=LossConfig(loss="dapo"))),
        judge=None,
        partners={},
        base_digest="0" * 64,
        pool=SimpleNamespace(identity=lambda: {"tasks": 8}),
        run=SimpleNamespace(path="runs/mine"),
    )


def test_a_run_of_before_the_move_resumes_with_its_advantages_and_its_loss() -> None:
    now = parts()
    then = settings_of(now)
    moved = {name: value for name, value in then.items() if name.startswith("advantage.")}
    assert moved["advantage.scale"] == "none"
    then = {name: value for name, value in then.items() if name not in moved}
    then |= {f"learner.{name}": value for name, value in moved.items()}
    then |= {"learner.advantage.negative_weight": 1.0, "learner.loss.loss": "bnpo"}
    check_settings(then, now)
    with pytest.raises(ConfigError, match=r'was made with advantage.scale "std" \(now "none"\)'):
        check_settings(then | {"learner.advantage.scale": "std"}, now)
    with pytest.raises(ConfigError, match=r'was made with learner.loss.loss "grpo" \(now "dapo"\)'):
        check_settings(then | {"learner.loss.loss": "grpo"}, now)
