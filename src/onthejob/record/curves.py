"""Metrics of a run over its iterations: what `runs show --curve` prints and the viewer draws."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from onthejob.record.from_rows import Metric

LOOP = "loop"
"""Scope of the loop's metrics."""
SHARE = "stop_"
"""Prefix of the shares of trajectories by stop reason. Those of an iteration sum to 1, and shares of 0 are not recorded."""
DONE, CUT = f"{SHARE}done", f"{SHARE}max_turns"


class Series(NamedTuple):
    """One metric over the iterations that have it."""

    scope: str
    name: str
    iterations: tuple[int, ...]
    values: tuple[float, ...]
    """One per iteration; NaN where it was recorded so."""


def series(metrics: Iterable[Metric]) -> list[Series]:
    """The metrics of a run as series, by scope and name.

    A share by stop reason is 0 where its iteration recorded others only. Where trajectories end by themselves or at the limit of
    turns, `stop_done` is present even if no trajectory ended so: the curve of an agent that never stops is a line at 0.

    Args:
        metrics: of one run, ascending by iteration.
    """
    found: dict[tuple[str, str], dict[int, float]] = {}
    for metric in metrics:
        found.setdefault((metric.scope, metric.name), {})[metric.iteration] = metric.value
    shares = [values for (scope, name), values in found.items() if scope == LOOP and name.startswith(SHARE)]
    if (LOOP, CUT) in found:
        shares.append(found.setdefault((LOOP, DONE), {}))
    counted = sorted({iteration for values in shares for iteration in values})
    for values in shares:
        values |= {iteration: values.get(iteration, 0.0) for iteration in counted}
    return [
        Series(scope, name, tuple(sorted(values)), tuple(values[iteration] for iteration in sorted(values)))
        for (scope, name), values in sorted(found.items())
    ]
