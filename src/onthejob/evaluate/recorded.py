"""Scopes of a run's metrics, and the scales with which its branches were valued."""

from __future__ import annotations

from typing import Protocol

from onthejob.record.from_rows import Metric
from onthejob.rollout.branch import Scales

TRAIN_SCOPE = "train/"
"""Scopes of training metrics are this and the role: `train/sales`."""
SCALES_SCOPE = "scales/"
"""Scopes of the frozen value scales: `scales/sales`, recorded in iteration 0."""


class MetricsReader(Protocol):
    """The part of `onthejob.record.Run` that is read here."""

    def read_metrics(
        self, scope: str | None = None, *, iteration: int | None = None, name: str | None = None
    ) -> list[Metric]: ...


def recorded_scales(run: MetricsReader) -> dict[str, Scales]:
    """Role -> the frozen scales with which the run's branches were valued; judge its policies on the same."""
    values: dict[str, dict[str, float]] = {}
    for metric in run.read_metrics(iteration=0):
        if metric.scope.startswith(SCALES_SCOPE):
            values.setdefault(metric.scope.removeprefix(SCALES_SCOPE), {})[metric.name] = metric.value
    return {role: Scales(outcome=found["outcome"], ret=found["return"]) for role, found in values.items()}
