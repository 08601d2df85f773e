"""The judge of `train --judge`: what it grades by, and options of it that would have no effect."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onthejob.commands.named_env import Workplace
from onthejob.commands.player_specs import HostedLimits, HostedSeats
from onthejob.errors import ConfigError
from onthejob.rollout.judge import JudgeConfig
from onthejob.types import Rubric

if TYPE_CHECKING:
    from onthejob.commands.train import Train
    from onthejob.rollout.judge import Judge


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingOptions:
    """How much the judge of a run counts."""

    weight: float = 0.0
    """What a score of 1.0 above the group's mean adds to a reply's reward, 0 to 0.2; 0 only measures."""

    def __post_init__(self) -> None:
        JudgeConfig(weight=self.weight)


def check_judge(options: Train) -> None:
    """Refuse a judge that has nothing to grade here, and options of hosted models where there is none."""
    place, loop = options.place(), options.train
    if not options.judge:
        idle = _changed(options.judging, JudgingOptions(), "judging.")
        if not place.env.hosted_partner:
            idle += _changed(options.hosted, HostedLimits(), "hosted.")
        if idle:
            raise ConfigError(
                f"{', '.join(idle)} has no effect without --judge or a hosted partner. Name a model, or leave it out."
            )
        return
    rubric = rubric_of(place)
    graded = "branch" if rubric.unit == "decision" else "episodes"
    if loop.grouping != graded and place.env.max_turns > 1:
        what = "single decisions" if rubric.unit == "decision" else "whole episodes"
        raise ConfigError(
            f"--judge grades {what} in {place.name}, and --grouping {loop.grouping} compares others. Set --grouping {graded}, or "
            "leave --judge out."
        )


def rubric_of(place: Workplace) -> Rubric:
    """What a judge grades by there."""
    rubric = type(place.env).judge_rubric
    if rubric is None:
        raise ConfigError(
            f"{place.name} says nothing by which a judge could grade. State `judge_rubric` in the class "
            f"{type(place.env).__name__}, or leave --judge out."
        )
    return rubric


def _changed(given: Any, usual: Any, prefix: str) -> list[str]:
    """Flags of the options that are not at their defaults."""
    names = [option.name for option in dataclasses.fields(given) if getattr(given, option.name) != getattr(usual, option.name)]
    return [f"--{prefix}{name.replace('_', '-')}" for name in names]


def judge_of(spec: str, judging: JudgingOptions, hosted: HostedSeats, place: Workplace) -> Callable[[Path], Judge]:
    """What makes the judge that `spec` names, given the file in which its verdicts are kept."""
    from onthejob.models.hosted import Price
    from onthejob.rollout.judge import VERDICT_TOKENS, Judge

    client, entry, transport, accounts = hosted.client(spec)
    made = partial(
        Judge,
        client,
        transport,
        rubric=rubric_of(place),
        config=JudgeConfig(weight=judging.weight, max_tokens=max(VERDICT_TOKENS, entry.max_tokens)),
        accounts=accounts,
        price=Price(prompt=entry.input_usd, completion=entry.output_usd),
        schema=entry.schema_,
        temperature=entry.temperature,
    )
    return lambda cache: made(cache=cache)
