"""Every option of `train` has an effect in an environment, or is refused there: none is ignored without a word."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import tyro

from onthejob.claw import Claw
from onthejob.commands.train import PLACE, Train
from onthejob.commands.train_checks import check_options
from onthejob.errors import ConfigError

OF_BRANCHES = {
    "train.grouping", "train.collect.segment_turns", "train.collect.fresh_share", "train.collect.partner_share",
    "train.collect.keep_share", "train.branch.turns", "train.branch.worlds", "train.branch.outcome_weight",
    "train.branch.return_weight", "train.branch.continuation", "train.library_per_day", "train.library_tasks",
    "train.library_refresh", "train.scale_states", "train.advantage.shrink",
    "train.advantage.invalid_gap", "train.advantage.invalid_ceiling",
}  # fmt: skip
"""Only where decisions are branched, so not in the claw."""
OF_SEVERAL_ROLES = {"train.opponents", "train.adapters"}
WITH_A_MODEL = ("judging.", "hosted.")
"""Only with a judge or a hosted partner."""
WITH_ANOTHER_OPTION = {
    "eval_tasks": {"train.eval_every": 1},
    "eval_temperature": {"train.eval_every": 1},
    "train.library_refresh": {"train.branch.continuation": "stand_ins"},
}
"""Refused alone everywhere; what gives it an effect."""
NAMES = {
    "roles", "init", "collected", "freeze", "reward", "model.name", "model.template_arguments", "judge",
    "train.advantage.estimator",
}  # fmt: skip
"""Something of the user's, which is looked up; tested where that is."""
VALUES: dict[str, Any] = {
    "train.opponents": "past:2", "train.adapters": "shared", "learner.loss.loss": "dapo",
    "learner.betas": (0.5, 0.5), "lora.targets": ("q_proj",), "train.best_metric": "turns", "model.device": "cuda",
}  # fmt: skip
"""Another value of options that have no obvious one."""
IN_EVERY_PLACE = {
    "train.seed", "train.iterations", "train.minutes", "train.collect.episodes", "train.branch.group_size",
    "train.sampling.temperature", "train.sampling.max_new_tokens", "train.prefer_spread", "train.patience", "train.workers",
    "train.eval_every", "train.best_metric", "train.dry_run", "learner.lr", "learner.logit_scale_lr", "learner.warmup",
    "learner.decay", "learner.optimizer", "learner.betas", "learner.epochs", "learner.max_kl", "learner.max_tokens",
    "learner.gradient_checkpointing", "learner.loss.loss", "learner.loss.epsilon_low", "learner.loss.epsilon_high",
    "learner.loss.beta", "learner.loss.entropy", "learner.loss.correction", "train.advantage.scale", "train.advantage.eps",
    "train.advantage.bound", "lora.rank", "lora.alpha", "lora.targets", "lora.logit_scale", "model.dtype", "model.device",
    "model.quantize", "sampler", "server.device", "server.max_model_len", "server.gpu_memory", "server.eager",
}  # fmt: skip
"""What samples, updates and records, whatever is played."""


def leaves(options: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of all options."""
    hints = get_type_hints(type(options), include_extras=True)
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        elif tyro.conf.Fixed not in getattr(hints[field.name], "__metadata__", ()):
            yield prefix + field.name


OPTIONS = [name for name in leaves(Train()) if name.split(".")[0] not in (*PLACE, "own", "env")]


def with_values(options: Any, values: dict[str, Any]) -> Any:
    """`options` with all of these at once, by dotted name."""
    changed: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        first, _, rest = name.partition(".")
        if rest:
            inner.setdefault(first, {})[rest] = value
        else:
            changed[first] = value
    changed |= {name: with_values(getattr(options, name), below) for name, below in inner.items()}
    return dataclasses.replace(options, **changed)


def another(options: Any, name: str) -> Any:
    """A value of the option that is allowed, and not its default."""
    if name in VALUES:
        return VALUES[name]
    *outer, last = name.split(".")
    for part in outer:
        options = getattr(options, part)
    value, hint = getattr(options, last), get_type_hints(type(options))[last]
    if isinstance(value, bool):
        return not value
    if get_origin(hint) is Literal:
        return next(choice for choice in get_args(hint) if choice != value)
    if isinstance(value, Enum):
        return next(choice for choice in type(value) if choice != value)
    return 1 if value is None else value + 1 if isinstance(value, int) else value / 2 if value else 0.1


def check(env: str, name: str, *, more: dict[str, Any] | None = None) -> None:
    start = Train.starting(env)
    check_options(with_values(start, {**(more or {}), name: another(start, name)}).fitted())


def test_every_option_is_known_to_these_tests():
    known = OF_BRANCHES | OF_SEVERAL_ROLES | IN_EVERY_PLACE | NAMES | set(WITH_ANOTHER_OPTION)
    known |= {name for name in OPTIONS if name.startswith(WITH_A_MODEL)}
    assert set(OPTIONS) == known, "say in which environments a new option has an effect"


@pytest.mark.parametrize("name", sorted(OF_BRANCHES | OF_SEVERAL_ROLES))
def test_what_the_claw_would_ignore_is_refused(name: str):
    with pytest.raises(ConfigError, match=name.rpartition(".")[2].replace("_", "[_-]")):
        check("claw", name)


@pytest.mark.parametrize("name", sorted(IN_EVERY_PLACE | OF_BRANCHES | OF_SEVERAL_ROLES | set(WITH_ANOTHER_OPTION)))
def test_what_has_an_effect_is_taken(name: str):
    more = WITH_ANOTHER_OPTION.get(name, {})
    check("office", name, more=more)
    if name not in OF_BRANCHES | OF_SEVERAL_ROLES:
        check("claw", name, more=more)


@pytest.mark.parametrize("name", sorted(name for name in WITH_ANOTHER_OPTION if WITH_ANOTHER_OPTION[name]))
def test_what_needs_another_option_is_refused_without_it(name: str):
    for env in ("office", "claw"):
        with pytest.raises(ConfigError):
            check(env, name)


@pytest.mark.parametrize("name", [name for name in OPTIONS if name.startswith(WITH_A_MODEL)])
def test_options_of_a_judge_need_one(name: str):
    judge = {"judge": "anthropic:claude-haiku-4-5"}
    for env in ("office", "claw"):
        with pytest.raises(ConfigError, match=rf"--{name.replace('_', '-')} has no effect without --judge"):
            check(env, name)
        check(env, name, more=judge)


def test_a_judge_grades_what_is_compared():
    judge = {"judge": "anthropic:claude-haiku-4-5"}
    with pytest.raises(ConfigError, match="--judge grades single decisions in office, and --grouping episodes compares others"):
        check("office", "train.grouping", more={**judge, "train.library_tasks": 0, "train.scale_states": 0})
    with pytest.raises(ConfigError, match=r"--env\.growth and --env\.rounds have no effect with --env\.official"):
        Claw(official=Path(), growth=5).check_options()
