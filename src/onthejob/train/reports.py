"""What the loop tells about an iteration and about its end, and the metrics it records of them (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from onthejob.rollout.collect import Collection
from onthejob.rollout.episode import mean_scores
from onthejob.rollout.pool import FamilyStatistics, TaskPool
from onthejob.rollout.summary import GroupSummary, stop_mix
from onthejob.types import Adapter, Group, StopReason, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleReport:
    """One role in one iteration."""

    role: str
    summary: GroupSummary
    """Of the groups it collected: mean return, alive share, valid rate, ..."""
    update: Mapping[str, float]
    """What the learner reported: `kl`, `clip_ratio`, ...; empty when there was no update."""
    adapter: str
    """Name of the adapter that continues to play."""
    published: bool
    """True when this iteration made a new version."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Of the text of its replies, see `reply_scores`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationReport:
    """The argument of `on_progress` after an iteration was committed."""

    iteration: int
    iterations: int
    roles: tuple[RoleReport, ...]
    seconds: float
    tokens_per_second: float
    """Sampled tokens, those of continued branches among them, over the time of collecting."""
    eta_s: float
    """Seconds that the remaining iterations take at the median pace so far."""
    evaluation: Mapping[str, float] = field(default_factory=dict)
    loop: Mapping[str, float] = field(default_factory=dict)
    """What was recorded of collecting, see `loop_metrics`."""
    collapsed: bool = False
    """Within every group all replies were the same; see `collapsed`."""


def collapsed(groups: Sequence[Group]) -> bool:
    """True when within every group all trajectories have the same replies: the policy explores nothing, whatever is paid."""

    def said(row: Trajectory) -> tuple[str, ...]:
        return tuple(turn.completion.text for turn in row.turns)

    return bool(groups) and all(len({said(row) for row in group.trajectories}) == 1 for group in groups)


def reply_scores(collection: Collection, groups: Sequence[Group]) -> dict[str, float]:
    """What the environment measured of one role's replies: means over those from which play continued.

    They stand for all that were sampled, since they are chosen without looking at any value.

    Args:
        collection: of the iteration.
        groups: the role's; turns of partners in its seat are omitted.
    """
    played = {(group.actor, turn.policy_version) for group in groups for row in group.trajectories for turn in row.turns}
    return mean_scores(
        record for episode in collection.episodes for record in episode.transcript if (record.actor, record.policy) in played
    )


FEW = 5
"""With fewer iterations a policy hardly changes."""
ADVICE = (
    ", too few to learn from: give more --minutes, or fewer --collect.episodes or a smaller --branch.group-size for cheaper ones"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """How a run ended."""

    stop: Literal["iterations", "minutes", "pool_converged"]
    """All iterations are done, the time is up, or the pool has nothing more to teach."""
    iterations: int
    """Last committed iteration."""
    adapters: Mapping[str, Adapter]
    """Role -> its newest published adapter."""
    best_iteration: int | None = None
    """By `best_metric` on dev, 0 for the start; None without an evaluation."""
    best_score: float | None = None
    collapsed: bool = False
    """The pool has converged because replies no longer differ."""

    def ended(self, run: str) -> str:
        """How the run ended, for the last line.

        Args:
            run: its name.
        """
        if self.stop == "minutes":
            made = f"{self.iterations} iteration{'s' * (self.iterations != 1)}"
            return f"minutes (--resume {run} continues) after {made}{ADVICE if self.iterations < FEW else ''}"
        if self.collapsed:
            return (
                f"{self.stop} after {self.iterations} iterations, by collapse: in the last one all replies of every group were "
                "the same, so nothing was left to compare (bound each update with --learner.max-kl 0.1, or raise "
                "--sampling.temperature)"
            )
        return f"{self.stop} after {self.iterations} iterations"

    @property
    def exit_code(self) -> int:
        """0, or 3 when the pool has converged (a result, not a failure)."""
        return 3 if self.stop == "pool_converged" else 0


def line(report: IterationReport, grouping: str) -> str:
    """One iteration as people read it.

    Args:
        report: of the iteration.
        grouping: of the run; lengths and ends of episodes are shown where whole episodes are compared.
    """
    # The value of a branch is no reward: it is scaled, and the states are others in every iteration.
    what = "value" if grouping == "branch" else "reward"
    roles = "  ".join(_role(role.role, what, role.summary) for role in report.roles)
    score = "".join(f"  {name} {value:.3f}" for name, value in report.evaluation.items() if name.startswith("best_"))
    # Segments of branches have one length and end where it does.
    ends = "" if grouping == "branch" else _ends(report.loop)
    pace = f"{report.seconds:.0f} s, {report.tokens_per_second:.0f} tokens/s, {report.eta_s / 60:.0f} min left"
    return f"{report.iteration}/{report.iterations}  {roles}{ends}{score}  [{pace}]"


def _ends(loop: Mapping[str, float]) -> str:
    """Length of whole episodes, and the share of them that ended by themselves; these are names of metrics."""
    if "mean_turns" not in loop:
        return ""
    return f"  mean_turns {loop['mean_turns']:.2f}, stop_done {loop.get('stop_done', 0.0):.0%}"


def _role(role: str, what: str, found: GroupSummary) -> str:
    cut = f", {found.clipped_ratio:.0%} cut at the limit" if found.clipped_ratio else ""
    return f"{role} {what} {found.mean_return:+.3f} ({found.alive_share:.0%} alive, {found.valid_rate:.0%} valid{cut})"


def role_metrics(report: RoleReport) -> dict[str, float]:
    """Recorded metrics of one role, in addition to those of its learner."""
    summary = report.summary
    return {
        "reward": summary.mean_return,
        "reward_std": summary.return_std,
        "frac_reward_zero_std": 1.0 - summary.alive_share,
        "valid_rate": summary.valid_rate,
        "groups": float(summary.groups),
        "completions/mean_length": summary.mean_length,
        "completions/clipped_ratio": summary.clipped_ratio,
        "published": float(report.published),
        **report.scores,
    }


def loop_metrics(collection: Collection, *, library: int, pool: TaskPool) -> dict[str, float]:
    """What is recorded of collecting; `library` is the number of snapshots and `pool` the tasks afterwards."""
    failed = sum(episode.stop is StopReason.ERROR for episode in collection.episodes)
    return {
        "groups": float(len(collection.groups)),
        "groups_dropped": float(collection.dropped),
        "episodes": float(len(collection.episodes)),
        "episodes_failed": float(failed),
        "library": float(library),
        "mean_turns": fmean(episode.turns for episode in collection.episodes) if collection.episodes else 0.0,
        "pool_tasks": float(len(pool.tasks)),
        "pool_rounds": float(pool.rounds),
        **({"tokens_continued": float(collection.continued)} if collection.continued else {}),
        **{f"starts_{origin}": float(count) for origin, count in collection.starts.items()},
        **{f"stop_{stop}": share for stop, share in stop_mix(collection.groups).items()},
    }


def pool_metrics(statistics: FamilyStatistics) -> dict[str, float]:
    """What is recorded of one task family, over the whole run so far."""
    return {
        "family_groups": float(statistics.groups),
        "family_alive_share": statistics.alive_share,
        "family_return": statistics.mean_return,
        "family_spread": statistics.spread,
    }
