"""A loss and an estimator of the user's: equal to ours where they say the same, refused where they cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from onthejob.errors import ConfigError, TrainingError
from onthejob.learn import lora
from onthejob.learn.advantage import AdvantageConfig, advantages
from onthejob.learn.learner import LearnerConfig, LocalLearner
from onthejob.learn.lora import weight_delta
from onthejob.learn.loss import LossConfig

from .conftest import make_group, make_turn, random_groups, tiny_peft, update

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_update.py"


def updated(loss: LossConfig, advantage: AdvantageConfig | None = None, **options) -> tuple[dict[str, torch.Tensor], float]:
    """The adapter after two updates, and the norm of the last gradient."""
    config = LearnerConfig(lr=1e-2, loss=loss, **options)
    learner = LocalLearner(tiny_peft(("sales",), moved=True), ("sales",), config=config)
    for seed in (0, 1):
        metrics = update(learner, "sales", random_groups(seed), advantage=advantage)
        assert metrics.skipped == ""
    return lora.state(learner.model, "sales"), metrics.grad_norm


@pytest.mark.parametrize("options", [{}, {"epochs": 2}, {"max_tokens": 80}])
def test_a_loss_that_says_the_same_as_grpo_trains_the_same(options):
    theirs, theirs_norm = updated(LossConfig(loss=f"{EXAMPLE}:clipped"), **options)
    ours, ours_norm = updated(LossConfig(), **options)
    # Tokens without an advantage are omitted from ours, so that rows are cut elsewhere and sums differ in their last bits.
    assert theirs_norm == pytest.approx(ours_norm, rel=1e-5)
    assert weight_delta(theirs, ours).max_abs < 1e-5
    plain, _ = updated(LossConfig(loss="reinforce"), **options)
    assert weight_delta(theirs, plain).max_abs > 1e-4


def test_an_estimator_decides_what_is_better():
    group = make_group(*((ret, make_turn([1, 2], [3 + index])) for index, ret in enumerate((1.0, 0.0, 0.0, 3.0))))
    config = AdvantageConfig(estimator=f"{EXAMPLE}:leave_one_out")
    found = advantages(group, config)
    others = [1.0, 4 / 3, 4 / 3, 1 / 3]
    assert found is not None
    assert found.tolist() == pytest.approx([ret - mean for ret, mean in zip((1.0, 0.0, 0.0, 3.0), others, strict=True)])
    equal = make_group(*((2.0, make_turn([1, 2], [3 + index])) for index in range(3)))
    assert advantages(equal, config) is None, "only zeros teach nothing"
    trained, norm = updated(LossConfig(), config)
    assert norm > 0
    assert weight_delta(trained, updated(LossConfig())[0]).max_abs > 0


BAD = """
import numpy as np
import torch

calls = []


def raises(terms):
    raise KeyError("gone")


def total(terms):
    return -(terms.logprobs * terms.advantage).sum()


def cut(terms):
    return -(terms.logprobs * terms.advantage).detach()


def number(terms):
    return 3.0


def infinite(terms):
    return terms.logprobs * torch.inf


def short(returns, usable):
    return returns[:-1]


def undefined(returns, usable):
    return returns * np.nan


def breaks(returns, usable):
    raise ZeroDivisionError("no others")


constant = 3
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "raised KeyError: 'gone'"),
        ("total", r"must return a tensor with a loss for each of the \d+ tokens, got shape \(\)"),
        ("cut", "returned a tensor without gradient"),
        ("number", "got a float"),
    ],
)
def test_a_loss_that_cannot_be_minimised_says_so(tmp_path: Path, name: str, said: str):
    path = tmp_path / "bad.py"
    path.write_text(BAD, encoding="utf-8")
    with pytest.raises(TrainingError, match=said):
        updated(LossConfig(loss=f"{path}:{name}"))


def test_a_loss_that_is_not_finite_makes_no_step(tmp_path: Path):
    path = tmp_path / "bad.py"
    path.write_text(BAD, encoding="utf-8")
    learner = LocalLearner(tiny_peft(("sales",)), ("sales",), config=LearnerConfig(loss=LossConfig(loss=f"{path}:infinite")))
    metrics = update(learner, "sales", random_groups(0))
    assert metrics.skipped
    assert metrics.steps == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("short", r"must return 4 finite numbers"),
        ("undefined", "must return 4 finite numbers"),
        ("breaks", "ZeroDivisionError: no others"),
    ],
)
def test_an_estimator_that_gives_no_advantages_says_so(tmp_path: Path, name: str, said: str):
    path = tmp_path / "bad.py"
    path.write_text(BAD, encoding="utf-8")
    group = make_group(*((float(index), make_turn([1, 2], [3 + index])) for index in range(4)))
    with pytest.raises(TrainingError, match=said):
        advantages(group, AdvantageConfig(estimator=f"{path}:{name}"))


def test_what_names_no_function_is_refused(tmp_path: Path):
    path = tmp_path / "bad.py"
    path.write_text(BAD, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"loss must be one of grpo.*or path/to/file\.py:function; got 'grpoo'"):
        LossConfig(loss="grpoo")
    with pytest.raises(ConfigError, match=r"estimator must be group or path/to/file\.py:function, got 'mean'"):
        AdvantageConfig(estimator="mean")
    with pytest.raises(ConfigError, match="no effect with the estimator a:b: scale, eps"):
        AdvantageConfig(estimator="a:b", scale="none", eps=1.0)
    with pytest.raises(ConfigError, match="is a int"):
        advantages(
            make_group((1.0, make_turn([1], [2])), (0.0, make_turn([1], [3]))), AdvantageConfig(estimator=f"{path}:constant")
        )
    with pytest.raises(ConfigError, match="has no 'nothing'"):
        updated(LossConfig(loss=f"{path}:nothing"))
