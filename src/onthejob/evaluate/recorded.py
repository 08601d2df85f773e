"""What a run's record tells the evaluation: training curves, scales, and decisions worth reading."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from onthejob.errors import ConfigError
from onthejob.evaluate.report_data import PANELS, AnnotatedReply, AnnotatedTurn, Curve, Panel
from onthejob.record.from_rows import Metric
from onthejob.rollout.branch import Scales
from onthejob.types import Group

TRAIN_SCOPE = "train/"
"""Scopes of training metrics are this and the role: `train/sales`."""
SCALES_SCOPE = "scales/"
"""Scopes of the frozen value scales: `scales/sales`, recorded in iteration 0."""


class RunReader(Protocol):
    """The part of `onthejob.record.store.Run` that a report needs."""

    def read_metrics(
        self, scope: str | None = None, *, iteration: int | None = None, name: str | None = None
    ) -> list[Metric]: ...

    def read_groups(self, iteration: int | None = None, actor: str | None = None) -> Iterator[Group]: ...

    def read_advantages(
        self, iteration: int | None = None, actor: str | None = None
    ) -> dict[str, npt.NDArray[np.float64] | None]: ...


class RecordedRun(RunReader, Protocol):
    """A `RunReader` that also tells what it was created with."""

    @property
    def config(self) -> dict[str, Any]: ...


def training_curves(run: RunReader, panels: Sequence[Panel] = PANELS) -> list[Curve]:
    """The recorded training metrics that the panels show, by panel and role."""
    wanted = {panel.metric: number for number, panel in enumerate(panels)}
    points: dict[tuple[int, str, str], list[tuple[int, float]]] = {}
    for metric in run.read_metrics():
        if metric.scope.startswith(TRAIN_SCOPE) and metric.name in wanted:
            number = wanted[metric.name]
            value = 1.0 - metric.value if panels[number].complement else metric.value
            key = (number, metric.name, metric.scope.removeprefix(TRAIN_SCOPE))
            points.setdefault(key, []).append((metric.iteration, value))
    return [Curve(role=role, metric=name, points=tuple(sorted(values))) for (_, name, role), values in sorted(points.items())]


def annotated_turns(run: RunReader, *, decode: Callable[[Sequence[int]], str], count: int = 5) -> list[AnnotatedTurn]:
    """`count` telling decisions of a run, from as many roles as possible.

    Per role the group with the most distinct replies, and among those with the clearest differences, is taken first; late
    iterations win ties because they show what training has become.

    Args:
        run: An open record.
        decode: Token ids of a prompt to text.
        count: How many to take, >= 1.
    """
    if count < 1:
        raise ConfigError(f"count must be >= 1, got {count}. Use 5.")
    advantages = run.read_advantages()
    best: dict[str, list[tuple[tuple[float, ...], Group]]] = {}
    for number, group in enumerate(run.read_groups()):
        given = advantages.get(group.key)
        if given is None or "by_world" not in group.facts:
            continue
        distinct = len(set(group.facts["keys"]))
        ranked = best.setdefault(group.actor, [])
        ranked.append(((float(min(distinct, 4)), round(float(np.std(given)), 3), float(number)), group))
        ranked.sort(key=lambda item: item[0], reverse=True)
        del ranked[count:]
    chosen = _one_of_each(([group for _, group in best[actor]] for actor in sorted(best)), count)
    return [annotate(group, advantages[group.key], decode=decode) for group in chosen]


def annotate(
    group: Group, advantages: npt.NDArray[np.float64] | None, *, decode: Callable[[Sequence[int]], str]
) -> AnnotatedTurn:
    """A branch group as recorded, for reading.

    Raises:
        ConfigError: The group was not scored by branches.
    """
    facts = group.facts
    if "by_world" not in facts or "keys" not in facts:
        raise ConfigError(f"group {group.key} has no branch values per world. Annotate groups whose source is 'branch'.")
    replies = []
    for index, trajectory in enumerate(group.trajectories):
        turn = trajectory.turns[0]
        replies.append(
            AnnotatedReply(
                text=turn.completion.text,
                valid=turn.valid,
                value=trajectory.ret,
                by_world=tuple(float(value) for value in facts["by_world"][facts["keys"][index]]),
                advantage=None if advantages is None else float(advantages[index]),
                chosen=facts.get("chosen") == index,
            )
        )
    first = group.trajectories[0].turns[0]
    return AnnotatedTurn(
        key=group.key,
        role=group.actor,
        policy=first.policy_version,
        prompt=decode(first.prompt_ids),
        replies=tuple(replies),
        worlds=tuple(int(world) for world in facts["worlds"]),
    )


def recorded_scales(run: RunReader) -> dict[str, Scales]:
    """Role -> the frozen scales with which the run's branches were valued; judge its policies on the same."""
    values: dict[str, dict[str, float]] = {}
    for metric in run.read_metrics(iteration=0):
        if metric.scope.startswith(SCALES_SCOPE):
            values.setdefault(metric.scope.removeprefix(SCALES_SCOPE), {})[metric.name] = metric.value
    return {role: Scales(outcome=found["outcome"], ret=found["return"]) for role, found in values.items()}


def _one_of_each(lists: Iterable[Sequence[Group]], count: int) -> list[Group]:
    """The first of every list, then the second of every list, ... until there are `count`."""
    columns = [list(groups) for groups in lists]
    ranked = [group for rank in range(count) for column in columns for group in column[rank : rank + 1]]
    return ranked[:count]
