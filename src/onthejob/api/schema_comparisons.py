"""What the viewer reads of matched comparisons and their verdicts; units as in `onthejob.api.schema_office`."""

from __future__ import annotations

from typing import Any

from onthejob.api.schema_office import Sent


class EstimateView(Sent):
    """A number with its interval; null where there is none."""

    mean: float | None
    low: float | None
    high: float | None
    n: int
    minimum: float | None = None


class MeanView(EstimateView):
    """What one team reached."""

    team: str
    metric: str
    stratum: str


class DifferenceView(EstimateView):
    """`first` minus `second`, paired by task."""

    first: str
    second: str
    metric: str
    stratum: str


class McNemarView(Sent):
    """Two teams on tasks that are passed or failed."""

    first: str
    second: str
    metric: str
    only_first: int
    only_second: int
    both: int
    neither: int
    p: float


class ComparedTask(Sent):
    """One task of a comparison."""

    task: str
    values: dict[str, float | None]
    """Team -> what it reached in the metric that was asked for."""


class FindingLine(Sent):
    """One line of a verdict: a team or a role, the word for its paired difference, and its numbers."""

    part: str
    """`result`, `scale`, `roles`, `changes` or `next`."""
    subject: str
    word: str | None
    """`better`, `worse`, `no difference shown` or `too few to say`; null where no difference is meant."""
    text: str


class FindingsView(Sent):
    """What is known about one team, in words that follow from paired intervals."""

    featured: str
    start: str
    """The team that it was trained from; empty where none took part."""
    metric: str
    question: str
    answer: str
    headings: dict[str, str]
    """Of the parts, in their order."""
    lines: list[FindingLine]


class ComparisonInfo(Sent):
    """One line of the list of comparisons."""

    name: str
    teams: list[str]
    tasks: int
    error: str | None
    """Why it cannot be read."""


class ComparisonView(Sent):
    """A matched comparison, as `onthejob compare --name` kept it."""

    name: str
    teams: list[str]
    tasks: int
    settings: dict[str, Any]
    metrics: list[str]
    strata: list[str]
    """`all`, then each group of tasks."""
    means: list[MeanView]
    differences: list[DifferenceView]
    mcnemar: list[McNemarView]
    failed: int
    """Episodes that ended in an error; they are excluded with their pairs."""
    verdict: FindingsView | None
