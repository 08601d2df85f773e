"""findings: what a comparison says about one team, as lines of words and numbers: in a terminal, a report and the viewer alike.

They are read from a comparison's document (`onthejob.evaluate.pass_fail.document`), so that a comparison that was kept says the
same as on the day it was made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from onthejob.evaluate.behaviours import INVALID, UNNAMED, Counts, shifts
from onthejob.evaluate.comparison import OVERALL
from onthejob.evaluate.numbers import decoding_words, describe, number
from onthejob.evaluate.quality_file import quality_of
from onthejob.evaluate.scores import Cell, Quality
from onthejob.evaluate.statistics import IntervalEstimate, mean_interval, paired_difference, ratio_interval
from onthejob.evaluate.verdict import Verdict, advice, signed, verdict

FLOOR, CEILINGS = "random", ("expert", "heuristic")
"""Teams that are 0 and 1 of the scale: random legal play, and one of these; without them the best scripted player."""
CHANGES = 3
"""Actions of a role whose shares are listed, at most."""
LEAST_CHANGE = 0.02
"""Changes of a share below this are not listed."""


class About(StrEnum):
    """Subject of a line."""

    RESULT = "result"
    SCALE = "scale"
    ROLES = "roles"
    CHANGES = "changes"
    NEXT = "next"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One finding."""

    part: About
    subject: str
    """A team or a role; empty for a sentence."""
    word: Verdict | None
    """Of a paired difference; None for a line that has none."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What is known about one team."""

    featured: str
    start: str
    """The team that it was trained from; empty where none took part."""
    metric: str
    question: str
    """What the first line answers."""
    answer: Verdict
    headings: Mapping[About, str]
    """Of the parts that have lines: what is measured, over which tasks and how."""
    lines: tuple[Line, ...]

    def of(self, part: About) -> tuple[Line, ...]:
        """The lines of one part."""
        return tuple(line for line in self.lines if line.part is part)

    def as_dict(self) -> dict[str, Any]:
        """JSON-serialisable."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The numbers from which findings are made, all of one metric over the same tasks."""

    values: Mapping[str, Mapping[str, float]]
    """Team -> task -> value, in the order of the teams."""
    difference: Callable[[str, str], IntervalEstimate | None]
    """(first, second) -> paired difference."""
    strata: Mapping[str, str] = field(default_factory=dict)
    """Task -> stratum; empty for none."""
    clusters: Mapping[str, str] = field(default_factory=dict)
    """Task -> what it shares its luck with; empty where tasks are independent."""
    seed: int = 0
    valid: Mapping[str, float] = field(default_factory=dict)
    """Team -> share of valid replies."""
    actions: Mapping[str, Mapping[str, Counts]] = field(default_factory=dict)
    """Team -> actor -> action -> how often."""
    quality: Quality | None = None
    scripted: tuple[str, ...] = ()
    """Teams of the environment's own players."""
    unit: str = "task"
    """What is paired, in the singular."""

    def share(self, team: str, floor: str, ceiling: str) -> IntervalEstimate:
        """Gain of `team` over `floor` as a share of the gain of `ceiling`, over the tasks of all three."""
        low, high, own = (self.values[name] for name in (floor, ceiling, team))
        tasks = [task for task in own if task in low and task in high]
        gains, whole = [own[task] - low[task] for task in tasks], [high[task] - low[task] for task in tasks]
        clusters, strata = self._keys(self.clusters, tasks), self._keys(self.strata, tasks)
        return ratio_interval(gains, whole, clusters, strata=strata, seed=self.seed)

    def mean(self, team: str) -> IntervalEstimate:
        """Mean of `team` over its tasks."""
        values = self.values[team]
        clusters, strata = self._keys(self.clusters, values), self._keys(self.strata, values)
        return mean_interval(list(values.values()), clusters, strata=strata, seed=self.seed)

    def _keys(self, keys: Mapping[str, str], tasks: Iterable[str]) -> list[str] | None:
        return [keys[task] for task in tasks] if keys else None


def evidence_of(held: Mapping[str, Any], metric: str) -> Evidence:
    """What a comparison's document says about `metric`.

    Raises:
        LookupError, TypeError, ValueError: it is no document of a comparison.
    """
    finished = {row["team"] for row in held["episodes"]}
    failed = {row["task_id"] for row in held.get("failed", ()) if row["team"] in finished}
    teams = list(dict.fromkeys(row["team"] for row in held["means"]))
    values: dict[str, dict[str, float]] = {team: {} for team in teams}
    for row in held["episodes"]:
        if row["task_id"] not in failed and metric in row:
            values[row["team"]][row["task_id"]] = float(row[metric])
    differences = {
        (row["first"], row["second"]): IntervalEstimate.from_dict(row)
        for row in held["differences"]
        if row["metric"] == metric and row["stratum"] == OVERALL
    }
    means = {(row["team"], row["metric"]): row["mean"] for row in held["means"] if row["stratum"] == OVERALL}
    valid = {team: share for team in teams if (share := means.get((team, "valid_rate"))) is not None}
    quality = held.get("quality")

    def difference(first: str, second: str) -> IntervalEstimate | None:
        if (first, second) in differences:
            return differences[first, second]
        turned = differences.get((second, first))
        return None if turned is None else turned.turned()

    return Evidence(
        values=values,
        difference=difference,
        strata=held.get("strata", {}),
        seed=int(held["settings"].get("seed", 0)),
        valid=valid,
        actions=held.get("actions", {}),
        quality=None if quality is None else quality_of(quality),
        scripted=tuple(held.get("scripted", ())),
    )


def findings_of(held: Mapping[str, Any], *, featured: str = "", metric: str = "") -> Findings | None:
    """The findings of a comparison's document; None where a single team took part, or `metric` is unknown.

    Args:
        held: the document; `featured`, `start` and `headline` in it are what the command chose.
        featured: the team that is judged; empty for the command's choice, else the last one.
        metric: what counts; empty for the first of the headline.

    Raises:
        LookupError, TypeError, ValueError: it is no document of a comparison.
    """
    teams = list(dict.fromkeys(row["team"] for row in held["means"]))
    metrics = list(dict.fromkeys(row["metric"] for row in held["means"]))
    metric = metric or next((name for name in (*held.get("headline", ()), *HEADLINES) if name in metrics), "")
    featured = featured or str(held.get("featured") or (teams[-1] if teams else ""))
    if len(teams) < 2 or metric not in metrics or featured not in teams:
        return None
    temperature = float(held["settings"].get("temperature", 0.0))
    how = "greedy" if math.isclose(temperature, 0.0) else f"temperature {temperature:g}"
    start = str(held.get("start", ""))
    return findings(
        evidence_of(held, metric), featured=featured, start="" if start == featured else start, metric=metric, how=how
    )


HEADLINES = ("company_value", "reward", "passed", "assertion_rate", "team_reward", "episode_reward")
"""Metrics that count, of documents that name none."""


def findings(evidence: Evidence, *, featured: str, start: str, metric: str, how: str) -> Findings | None:
    """What `evidence` says about `featured`; None where it is compared with no other team.

    Args:
        evidence: values and differences of `metric`, higher being better.
        featured: the team.
        start: what it was trained from; empty where that did not take part.
        metric: its name in docs/metrics.md.
        how: decoding, for the line about the method.
    """
    others = [team for team in evidence.values if team != featured]
    others.sort(key=lambda team: team != start)
    pairs = [(team, found) for team in others if (found := evidence.difference(featured, team)) is not None]
    if not pairs:
        return None
    first, difference = pairs[0]
    name = metric.replace("_", " ").replace("/", " ")
    count = f"{difference.n} {evidence.unit}{'s' * (difference.n != 1)}"
    scale, scaled = _scale(evidence, featured, start, name)
    roles, judged = _roles(evidence, featured, first)
    helps = advice(difference, first, evidence.unit)
    lines = (
        *(Line(part=About.RESULT, subject=f"against {team}", word=verdict(found), text=signed(found)) for team, found in pairs),
        *scaled,
        *judged,
        *_changes(evidence, featured, first),
        *([Line(part=About.NEXT, subject="", word=None, text=helps)] if helps else []),
    )
    headings = {
        About.RESULT: f"{_capital(name)}, paired over {count}, {how}, {100 * difference.level:.0f} % intervals",
        About.SCALE: scale,
        About.ROLES: roles,
        About.CHANGES: f"What it does differently: shares of actions, {first} → {featured}",
        About.NEXT: "",
    }
    return Findings(
        featured=featured,
        start=start if start == first else "",
        metric=metric,
        question="Did training help?" if start == first else f"Is {featured} better than {first}?",
        answer=verdict(difference),
        headings={part: text for part, text in headings.items() if any(line.part is part for line in lines)},
        lines=lines,
    )


def _scale(evidence: Evidence, featured: str, start: str, name: str) -> tuple[str, list[Line]]:
    """Heading, and a line per team: its value, and its share of the way between the ends of the scale where both took part."""
    means = {team: evidence.mean(team) for team, values in evidence.values.items() if values}
    players = sorted((team for team in evidence.scripted if team in means), key=lambda team: -means[team].mean)
    ceiling = next((team for team in (*CEILINGS, *players) if team in means and team not in (featured, FLOOR)), "")
    shares: dict[str, IntervalEstimate] = {}
    heading = f"{_capital(name)}, mean"
    if FLOOR in means and ceiling and featured != FLOOR:
        shares = {team: evidence.share(team, FLOOR, ceiling) for team in means if team not in (FLOOR, ceiling)}
        shares = {team: share for team, share in shares.items() if math.isfinite(share.mean)}
        if shares:
            ends = f"{FLOOR} ({number(means[FLOOR].mean)}) to {ceiling} ({number(means[ceiling].mean)})"
            heading = f"{_capital(name)}, and the share of the way from {ends}"
    order = sorted((team for team in means if not shares or team in shares), key=lambda team: (team != featured, team != start))
    return heading, [
        Line(
            part=About.SCALE,
            subject=team,
            word=None,
            text=f"{number(means[team].mean)} · {_percent(shares[team])}" if shares else describe(means[team]),
        )
        for team in order
    ]


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]


def _percent(share: IntervalEstimate) -> str:
    middle = f"{100 * share.mean:.0f} %"
    bounded = math.isfinite(share.low) and math.isfinite(share.high)
    return f"{middle} [{100 * share.low:.0f}, {100 * share.high:.0f}]" if bounded else middle


def _roles(evidence: Evidence, featured: str, other: str) -> tuple[str, list[Line]]:
    """Heading; decision quality per role where both teams were judged, and valid replies."""
    lines, heading, quality = [], f"Replies, {other} → {featured}", evidence.quality
    if quality is not None:
        decoding = quality.decodings[0]
        for role in quality.actors:
            own, against = Cell(featured, role, decoding), Cell(other, role, decoding)
            if own in quality.cells and against in quality.cells:
                found = quality.difference(own, against)
                lines.append(Line(part=About.ROLES, subject=role, word=verdict(found), text=signed(found)))
        if lines:
            heading = f"Where: decision quality minus that of {other}, {decoding_words(decoding)}, paired by state"
    before, after = evidence.valid.get(other), evidence.valid.get(featured)
    if before is not None and after is not None:
        lines.append(Line(part=About.ROLES, subject="valid replies", word=None, text=f"{before:.0%} → {after:.0%}"))
    return heading, lines


def _changes(evidence: Evidence, featured: str, other: str) -> list[Line]:
    """Per role whose actions moved by more than chance: the largest changes of shares."""
    before, after = (_named(evidence.actions.get(team, {})) for team in (other, featured))
    lines = []
    for shift in shifts(before, after, seed=evidence.seed):
        if not shift.drift > 2.0 * shift.noise:
            continue
        moved = [row for row in shift.shares() if abs(row[2] - row[1]) >= LEAST_CHANGE][:CHANGES]
        told = ", ".join(f"{_words(name)} {100 * first:.0f} → {100 * then:.0f} %" for name, first, then in moved)
        if told:
            lines.append(Line(part=About.CHANGES, subject=shift.actor, word=None, text=told))
    return lines


def _named(actions: Mapping[str, Counts]) -> dict[str, Counts]:
    return {actor: counts for actor, counts in actions.items() if UNNAMED not in counts}


def _words(action: str) -> str:
    return "invalid replies" if action == INVALID else action.replace("_", " ").lower()


def held_out_evidence(
    start: Mapping[str, float], now: Mapping[str, float], *, names: tuple[str, str], seed: int, valid: Mapping[str, float]
) -> Evidence:
    """Two evaluations of a run on the same held-out tasks, as evidence.

    Args:
        start: task -> value before training.
        now: task -> value of the newest evaluation.
        names: of the two, in this order.
        seed: root of the resampling.
        valid: name -> share of valid replies.
    """
    shared = [task for task in start if task in now]
    before, after = [start[task] for task in shared], [now[task] for task in shared]
    found = paired_difference(after, before, seed=seed)
    return Evidence(
        values={name: {task: values[task] for task in shared} for name, values in zip(names, (start, now), strict=True)},
        difference=lambda first, second: found if (second, first) == names else found.turned(),
        seed=seed,
        valid=valid,
        unit="held-out task",
    )
