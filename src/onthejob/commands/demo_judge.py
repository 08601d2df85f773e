"""Held-out decisions of the demo: judged before, during and after practice, always the same ones.

What was sampled and branched for a decision is kept, so that the start is judged once and every point of the curve is paired.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from onthejob.envs.office.env import SEATS, OfficeEnvironment
from onthejob.envs.office.tasks import office_tasks
from onthejob.evaluate.cache import EvaluationCache, source_fingerprint
from onthejob.evaluate.held_out import collect_states
from onthejob.evaluate.quality import decision_quality
from onthejob.evaluate.scores import Cell, QualityConfig, QualityResult
from onthejob.evaluate.statistics import IntervalEstimate
from onthejob.evaluate.teams import Team, scripted_team
from onthejob.evaluate.verdict import signed
from onthejob.models.adapter_policy import AdapterPolicy
from onthejob.office import make_office
from onthejob.office_players import scripted
from onthejob.rollout.branch import Scales
from onthejob.train import IterationReport
from onthejob.types import Adapter, Sampling, Split

if TYPE_CHECKING:
    from onthejob.models.sampler import LocalSampler
    from onthejob.stack import Stack

STEP, LEAST = 20, 40
"""Decisions that are judged between two looks at the clock, and at least; the learning curve uses the first `LEAST`."""
START, TRAINED = "start", "trained"
"""Names of the two compared policies."""
YARDSTICKS = ("random", "heuristic")
BAR = 28
"""Columns of the longest bar of the learning curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of the learning curve."""

    update: int
    reward: IntervalEstimate
    """Of a decision: what it earned the role within the horizon."""
    valid: float
    """Share of valid replies."""
    gain: IntervalEstimate | None
    """`reward` minus that of the start, paired by decision; None at the start."""
    best: float
    """Reward of the scripted heuristic on the same decisions: the length of the longest bar."""

    def metrics(self) -> dict[str, float]:
        """Values for the run's record."""
        return {"reward": self.reward.mean, "valid_rate": self.valid, "gain": 0.0 if self.gain is None else self.gain.mean}


class DemoJudge:
    """Judges versions of one role's adapter on held-out decisions, sampled at temperature 1."""

    def __init__(self, stack: Stack, sampler: LocalSampler, role: str, *, horizon: int, states: int) -> None:
        """Collect the decisions: two of each of `states` / 2 dev episodes that the heuristic plays."""
        self.sampler = sampler
        self.points: list[Point] = []
        self._stack, self._role = stack, role
        self._config = QualityConfig(
            worlds=tuple(range(10_000, 10_004)),
            turns=horizon,
            candidates=4,
            samples=1,
            decodings=(Sampling(temperature=1.0),),
            outcome_weight=0.0,
            return_weight=1.0,
        )
        self._cache = EvaluationCache(None, env=source_fingerprint(OfficeEnvironment))
        self._yardsticks = [scripted_team(name, scripted(name), SEATS) for name in YARDSTICKS]
        self._states = collect_states(
            office_tasks(Split.DEV, seeds=-(-states // 10), first=100),
            [scripted_team("heuristic", scripted("heuristic"), SEATS)],
            actors=(role,),
            per_role=states,
            env_factory=make_office(),
            sampling=Sampling(),
            seed=0,
            max_turns=420,
        )
        self._start: Adapter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cache.close()

    def look(self, update: int, adapter: Adapter) -> Point:
        """Judge `adapter` on the first decisions and add a point to the curve; the first look is at the start."""
        start = self._start = self._start or adapter
        quality = self._quality(LEAST, start, adapter)
        first, now = self._cell(START), self._cell(TRAINED)
        self.points.append(
            Point(
                update=update,
                reward=quality.reward(now),
                valid=quality.valid_rate(now),
                gain=quality.reward_difference(now, first) if adapter != start else None,
                best=quality.reward(self._cell("heuristic")).mean,
            )
        )
        return self.points[-1]

    def compare(self, start: Adapter, trained: Adapter, *, until: float, say: Callable[[str], None]) -> QualityResult:
        """The start, the trained adapter and the yardsticks on all decisions, or on as many as there is time for.

        Args:
            start: version 0.
            trained: the last version.
            until: `time.monotonic()` after which no further decisions are judged, once `LEAST` are.
            say: takes a line of progress.
        """
        self.sampler.publish(start, keep=True)
        count, began = LEAST, time.monotonic()
        quality = self._quality(count, start, trained)
        while count < len(self._states):
            spent = time.monotonic() - began
            more = min(count + STEP, len(self._states))
            # The first decisions are known from the curve in part, so the pace of the later ones is what counts.
            if time.monotonic() + spent > until:
                break
            began = time.monotonic()
            quality, count = self._quality(more, start, trained), more
            say(f"  {count} of {len(self._states)} decisions")
        return quality

    def _cell(self, team: str) -> Cell:
        from onthejob.evaluate.cache import decoding_name

        return Cell(team, self._role, decoding_name(self._config.decodings[0]))

    def _quality(self, count: int, start: Adapter, trained: Adapter) -> QualityResult:
        return decision_quality(
            self._states[:count],
            [*self._yardsticks, self._team(START, start), self._team(TRAINED, trained)],
            random=scripted("random"),
            env_factory=make_office(),
            cache=self._cache,
            config=self._config,
            scales={self._role: Scales()},
            encoder=self._stack.chat,
        )

    def _team(self, name: str, adapter: Adapter) -> Team:
        policy = AdapterPolicy(self.sampler, self._stack.chat, adapter=adapter.name)
        return Team(name=name, policies={self._role: policy}, fingerprints={self._role: self._stack.fingerprint(adapter)})


def curve_line(point: Point) -> str:
    """One line of the learning curve, at most 80 columns."""
    bar = "█" * round(BAR * min(1.0, max(0.0, point.reward.mean / point.best))) if point.best > 0 else ""
    gain = "the start" if point.gain is None else signed(point.gain)
    return f"  after {point.update:>2} updates {point.reward.mean:6.2f} {bar:<{BAR}} {gain}"


def progress_line(report: IterationReport) -> str:
    """One line of practice, at most 80 columns."""
    (role,) = report.roles
    summary = role.summary
    return (
        f"     update {report.iteration:>2}  {summary.groups} decisions, {summary.valid_rate:.0%} of the replies valid, "
        f"{report.seconds:.0f} s"
    )
