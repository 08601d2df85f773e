"""No option of training takes a number that is not finite, or is outside of its range."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, get_type_hints

import pytest

from onthejob.errors import ConfigError
from onthejob.learn.advantage import AdvantageConfig
from onthejob.learn.learner import LearnerConfig
from onthejob.learn.lora import LoraSpec
from onthejob.learn.loss import LossConfig
from onthejob.learn.sft import SftConfig
from onthejob.rollout.branch import BranchConfig
from onthejob.rollout.collect import CollectConfig
from onthejob.train import TrainConfig
from onthejob.types import Sampling

CONFIGS = (LossConfig, AdvantageConfig, LearnerConfig, SftConfig, LoraSpec, CollectConfig, BranchConfig, TrainConfig)
OUTSIDE: dict[type, dict[str, tuple[float, ...]]] = {
    LossConfig: {
        "epsilon_low": (-0.1, 1.0), "epsilon_high": (0.0,), "beta": (-1.0,), "entropy": (),
    },
    AdvantageConfig: {
        "eps": (0.0,), "bound": (0.0,), "invalid_gap": (-1.0,), "invalid_ceiling": (0.0,),
    },
    LearnerConfig: {
        "lr": (-1.0,), "logit_scale_lr": (-1.0,), "max_kl": (-1.0,),
    },
    SftConfig: {"lr": (-1.0,), "minutes": (-1.0,)},
    LoraSpec: {"alpha": (0.0, -1.0)},
    CollectConfig: dict.fromkeys(("fresh_share", "partner_share", "keep_share"), (-0.1, 1.1)),
    BranchConfig: {"outcome_weight": (-1.0,), "return_weight": (-1.0,)},
    TrainConfig: {"library_share": (0.0, 1.1), "minutes": (-1.0,)},
}  # fmt: skip


def floats(config: type) -> list[str]:
    """Names of the options that take a float, or None instead."""
    hints = get_type_hints(config)
    return [f.name for f in dataclasses.fields(config) if hints[f.name] in (float, float | None)]


CASES: list[tuple[type, dict[str, Any]]] = [
    (config, {name: value})
    for config in CONFIGS
    for name in floats(config)
    for value in (math.nan, math.inf, -math.inf, *OUTSIDE[config][name])
]


@pytest.mark.parametrize(
    ("config", "options"),
    [
        *CASES,
        *((LearnerConfig, {"betas": pair}) for value in (math.nan, math.inf, 1.0, -0.1) for pair in ((value, 0.9), (0.9, value))),
        *((TrainConfig, {"sampling": Sampling(temperature=value)}) for value in (math.nan, math.inf, -math.inf, 0.0, -1.0)),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else " ".join(f"{name}={held}" for name, held in value.items()),
)
def test_it_is_refused_and_named(config: type, options: dict[str, Any]):
    ((name, value),) = options.items()
    with pytest.raises(ConfigError) as refusal:
        config(**options)
    said = str(refusal.value)
    shown = value.temperature if isinstance(value, Sampling) else value
    assert ("temperature" if isinstance(value, Sampling) else name) in said
    assert str(shown) in said
    assert said.count(".") >= 2 or "Set" in said, "a remedy follows"


def test_every_float_option_was_found():
    assert {config: set(floats(config)) for config in CONFIGS} == {config: set(ranges) for config, ranges in OUTSIDE.items()}
