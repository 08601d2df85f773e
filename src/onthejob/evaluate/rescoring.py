"""Recorded whole episodes under other rules: what would have been learned from the same trajectories, or how they compare.

Nothing is sampled again. The caller says how long an episode would have been and what it would have been worth; here that becomes
returns and advantages of groups, or turns and passes of compared teams, next to those that were recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from onthejob.errors import RecordError
from onthejob.evaluate.pass_fail import Earlier
from onthejob.learn.advantage import AdvantageConfig, advantages
from onthejob.types import Completion, Group, StopReason, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One trajectory under the other rules."""

    turns: int
    """Turns it would have had, >= 1; when more than were recorded, all of those are kept."""
    reward: float
    """What it would have been paid."""
    passed: bool = False
    """The task would have been passed."""


Judge = Callable[[Trajectory, Mapping[str, float]], Judged]
"""(trajectory, metrics of its episode) -> what the other rules make of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """One group, as recorded and under the other rules; all per trajectory."""

    key: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    """Returns."""
    turns_before: tuple[int, ...]
    turns_after: tuple[int, ...]
    signs_before: tuple[int, ...]
    """-1, 0 or 1: which way the update pushed; 0 in a dead group."""
    signs_after: tuple[int, ...]
    advantages_before: tuple[float, ...]
    """Of all tokens of a trajectory; 0 in a dead group."""
    advantages_after: tuple[float, ...]


def rescore(
    groups: Sequence[Group],
    recorded: Mapping[str, npt.NDArray[np.float64] | None],
    judge: Judge,
    *,
    config: AdvantageConfig,
) -> list[Rescored]:
    """Groups under other rules.

    Args:
        groups: of whole episodes, as recorded.
        recorded: key -> their advantages, None for dead groups.
        judge: the other rules.
        config: how advantages are made of returns; that of the run.

    Raises:
        RecordError: a group holds no episodes with metrics, so it was not made of whole episodes.
    """
    found = []
    for group in groups:
        metrics = group.facts.get("metrics")
        if not isinstance(metrics, list) or len(metrics) != len(group):
            raise RecordError(f"group {group.key!r} is not made of whole episodes, so it has no grades to score again.")
        judged = [judge(row, known) for row, known in zip(group.trajectories, metrics, strict=True)]
        paid = replace(group, trajectories=tuple(map(_paid, group.trajectories, judged)))
        before, after = _each(recorded.get(group.key), len(group)), _each(advantages(paid, config), len(group))
        found.append(
            Rescored(
                key=group.key,
                before=tuple(row.ret for row in group.trajectories),
                after=tuple(item.reward for item in judged),
                turns_before=tuple(len(row.turns) for row in group.trajectories),
                turns_after=tuple(item.turns for item in judged),
                signs_before=_signs(before),
                signs_after=_signs(after),
                advantages_before=before,
                advantages_after=after,
            )
        )
    return found


def summary(rescored: Sequence[Rescored]) -> dict[str, dict[str, float]]:
    """Figure -> `before` and `after`; shares in [0, 1].

    Raises:
        RecordError: there are no groups.
    """
    if not rescored:
        raise RecordError("there are no groups to score again. `onthejob runs show` lists what a run has.")
    rows: dict[str, dict[str, float]] = {}
    for side, returns, turns, signs in (
        ("before", [g.before for g in rescored], [g.turns_before for g in rescored], [g.signs_before for g in rescored]),
        ("after", [g.after for g in rescored], [g.turns_after for g in rescored], [g.signs_after for g in rescored]),
    ):
        figures = {
            "reward": fmean(value for group in returns for value in group),
            "turns": fmean(value for group in turns for value in group),
            "all_zero_share": fmean(not any(group) for group in returns),
            "zero_variance_share": fmean(not any(group) for group in signs),
        }
        for name, value in figures.items():
            rows.setdefault(name, {})[side] = value
    return rows


def policy_delta(rescored: Sequence[Rescored]) -> dict[str, Any]:
    """How much the update would have differed: advantages with another sign and their mean absolute change, and turns saved."""
    changes = [abs(a - b) for group in rescored for a, b in zip(group.advantages_before, group.advantages_after, strict=True)]
    pairs = [pair for group in rescored for pair in zip(group.signs_before, group.signs_after, strict=True)]
    before, after = (
        sum(sum(turns) for turns in side) for side in zip(*((g.turns_before, g.turns_after) for g in rescored), strict=True)
    )
    return {
        "trajectories": len(pairs),
        "sign_changes": sum(a != b for a, b in pairs),
        "sign_change_share": fmean(a != b for a, b in pairs),
        "sign_reversals": sum(a * b < 0 for a, b in pairs),
        "advantage_change": fmean(changes),
        "turns_saved": before - after,
        "turns_saved_share": (before - after) / before if before else 0.0,
        "shortened": sum(a < b for group in rescored for a, b in zip(group.turns_after, group.turns_before, strict=True)),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One episode of a comparison, as it was played and under the other rules."""

    task_id: str
    turns: tuple[int, int]
    reward: tuple[float, float]
    passed: tuple[bool, bool]
    seconds: float
    """Wall time of the episode as it was played."""


def rescore_team(comparison: Earlier, team: str, judge: Judge) -> list[Replayed]:
    """One team's episodes of a comparison under other rules.

    Raises:
        RecordError: the comparison holds no replies of it.
    """
    found = []
    for key, result in comparison.results.items():
        if key.team != team:
            continue
        if not result.replies:
            raise RecordError(
                f"{comparison.path} holds no replies of {team} to {key.task_id}: it was made by an earlier version. Play the "
                "comparison again."
            )
        paid = result.metrics["episode_reward"]
        turns = tuple(Turn(prompt_ids=(), completion=Completion(text=said.text), policy_version=team) for said in result.replies)
        row = Trajectory(
            task_id=key.task_id,
            actor=result.replies[0].actor,
            turns=turns,
            rewards=(*(0.0 for _ in turns[1:]), paid),
            stop=StopReason(result.stop),
        )
        judged = judge(row, result.metrics)
        found.append(
            Replayed(
                task_id=key.task_id,
                turns=(len(turns), judged.turns),
                reward=(paid, judged.reward),
                passed=(bool(result.metrics["passed"]), judged.passed),
                seconds=result.metrics.get("wall_s", 0.0),
            )
        )
    return found


def saving(rows: Sequence[Replayed]) -> dict[str, float]:
    """What the other rules would have saved over one team's episodes: turns, and seconds at each episode's own pace."""
    saved = [before - after for before, after in (row.turns for row in rows)]
    total = sum(row.turns[0] for row in rows)
    return {
        "episodes": len(rows),
        "shortened": sum(turns > 0 for turns in saved),
        "shortened_share": fmean(turns > 0 for turns in saved),
        "turns": total,
        "turns_saved": sum(saved),
        "turns_saved_share": sum(saved) / total,
        "seconds_saved": sum(row.seconds * turns / row.turns[0] for row, turns in zip(rows, saved, strict=True)),
        "passed_before": sum(row.passed[0] for row in rows),
        "passed_after": sum(row.passed[1] for row in rows),
        "reward_before": fmean(row.reward[0] for row in rows),
        "reward_after": fmean(row.reward[1] for row in rows),
    }


def _paid(row: Trajectory, judged: Judged) -> Trajectory:
    turns = row.turns[: judged.turns]
    return replace(row, turns=turns, rewards=(*(0.0 for _ in turns[1:]), judged.reward))


def _each(values: npt.NDArray[np.float64] | None, size: int) -> tuple[float, ...]:
    return (0.0,) * size if values is None else tuple(map(float, values))


def _signs(values: Sequence[float]) -> tuple[int, ...]:
    return tuple(0 if abs(value) < 1e-9 else 1 if value > 0 else -1 for value in values)
