"""Options of the training loop, and what cannot work said before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Literal, TypeVar

import tyro
from annotated_types import Ge, Interval

from onthejob.errors import ConfigError
from onthejob.learn.advantage import AdvantageConfig
from onthejob.learn.sharing import PER_ROLE
from onthejob.rollout.branch import BranchConfig
from onthejob.rollout.collect import CollectConfig
from onthejob.setting_ranges import Usual, check_ranges
from onthejob.types import Sampling

T = TypeVar("T")
NotAnOption = Annotated[T, tyro.conf.Suppress, tyro.conf.Fixed]
"""A setting of the library that no command line and no file states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Options of the loop. Model, adapters and learner have options of their own."""

    seed: Annotated[int, Ge(0)] = 0
    """Root of everything random."""
    iterations: Annotated[int, Ge(1)] = 30
    """Iterations, with at most one update of a role each. The run stops earlier when the pool has converged."""
    minutes: Annotated[float, Ge(0), Usual("Set --minutes 60, or 0 for no limit.")] = 0.0
    """Time limit of training in minutes, or 0 for none. It counts once the model is loaded. Measuring scales and habits takes at
    most a third of it. An iteration begins only when it ends in time at the pace of those before it; one is always made, and
    an evaluation under way is finished. --resume continues for as long again."""
    grouping: Literal["branch", "episodes"] = "branch"
    """`branch`: replies to one prompt, scored in forks. `episodes`: whole episodes of one task, where nothing can be forked."""
    collect: CollectConfig = field(default_factory=CollectConfig)
    """What is played in one iteration."""
    branch: BranchConfig = field(default_factory=BranchConfig)
    """How replies are scored; `group_size` also counts the episodes per task when grouping by episodes."""
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    """How the returns of a group become advantages."""
    sampling: Sampling = field(default_factory=Sampling)
    """Temperature must be > 0: greedy replies are all alike and teach nothing."""
    max_turns: NotAnOption[Annotated[int, Ge(1), Usual("The environment has its own.")]] = 1_000
    """Turn limit of whole episodes (grouping `episodes`, and filling the snapshot library); in `onthejob train` the
    environment's."""
    opponents: str = "present"
    """Whom trained roles meet in the seats of other trained roles: `present`, all as they are now and all trained at once, or
    `past:N`, self-play against earlier versions: one role is trained in each episode, and each other one plays as a version drawn
    from its present one and the N before it. Needs two or more trained roles and --sampler in-process."""
    adapters: str = PER_ROLE
    """Which roles share an adapter: `per-role`, none; `shared`, all; or sets such as `dev+hr,sales+content`; every other
    role has its own. One update is made of the groups of all roles of a set, and each of them is given its result."""
    prefer_spread: bool = False
    """Draw training tasks in proportion to how much the returns of a group differ in their family, instead of evenly: less is
    spent on what is mastered or hopeless (see `rollout.pool`)."""
    patience: Annotated[int, Ge(1)] = 3
    """Iterations in a row without one group that could teach something, after which the task pool grows, or has converged where
    it cannot. With 1 the first such iteration decides, which may be chance where few tasks are drawn."""
    workers: int = 0
    """Processes for branch scoring; 0 scores in the main process. Grouping `episodes`: threads that step the environments."""
    library_per_day: int = 16
    """Snapshots kept per day of an episode (grouping `branch`)."""
    library_tasks: Annotated[int, Ge(0)] = 8
    """Tasks that the partners play at the start to fill the snapshot library; 0 starts with an empty library. Segments among
    partners continue to start from these states, the others from where current play got."""
    library_share: NotAnOption[Annotated[float, Interval(gt=0, le=1), Usual("0.2 is usual.")]] = 0.2
    """Share of the states of those tasks that is kept, in (0, 1]."""
    library_refresh: Annotated[int, Ge(0)] = 0
    """Tasks that the stand-ins of the policies play at the start and after every iteration, and of whose states `library_share`
    enters the library: what the present team reaches on any day, which short segments from the partners' play do not. Needs
    branch.continuation `stand_ins` or `both`."""
    scale_states: Annotated[int, Ge(0)] = 200
    """States from which the value scales of the roles are measured; 0 sets all scales to 1. The first stand-ins, where there are
    any, choose as the policies do in these states; with 0 the partners continue all branches of the first iteration."""
    eval_every: Annotated[int, Ge(0)] = 0
    """Iterations between evaluations, or 0 for none. Held-out tasks are played, for the first time before any update."""
    best_metric: str = "score"
    """Which result of the evaluation chooses the best iteration (larger is better)."""
    dry_run: bool = False
    """Collect and score without any update."""

    def __post_init__(self) -> None:
        check_ranges(self, "--")
        if self.opponents != "present" and not self.past:
            raise ConfigError(f"opponents must be present or past:N with N >= 1, got {self.opponents!r}. Set --opponents past:4.")
        if not 0.0 < self.sampling.temperature < float("inf"):
            raise ConfigError(f"temperature must be > 0 to train, got {self.sampling.temperature}. Set --sampling.temperature 1.")
        if self.sampling.max_new_tokens < 1:
            raise ConfigError(
                f"max_new_tokens must be >= 1, got {self.sampling.max_new_tokens}. Set --sampling.max-new-tokens 64."
            )
        if self.library_refresh and (self.grouping != "branch" or not self.branch.imitates):
            raise ConfigError(
                f"library_refresh is {self.library_refresh} but no policy is imitated. Set --branch.continuation stand_ins, or 0."
            )
        if self.grouping == "episodes" and (idle := self._of_branches()):
            raise ConfigError(
                f"{', '.join(idle)}: no effect where whole episodes are compared (grouping episodes); only branches use it. "
                "Leave it out."
            )
        if self.grouping == "branch" and self.library_tasks == 0 and self.scale_states > 0:
            raise ConfigError("scales are measured in the states of the library. Set --library-tasks 8, or --scale-states 0.")

    @property
    def past(self) -> int:
        """How many versions before the present one are met; 0 without opponents from the past."""
        kind, _, number = self.opponents.partition(":")
        return int(number) if kind == "past" and number.isdecimal() and len(number) < 6 else 0

    def _of_branches(self) -> list[str]:
        """Options that were set and that only the grouping by branches reads."""
        usual = (
            ("branch.", self.branch, BranchConfig(), {"group_size"}),
            ("collect.", self.collect, CollectConfig(), {"episodes"}),
        )
        found = [
            f"{prefix}{option.name}"
            for prefix, given, default, read in usual
            for option in fields(given)
            if option.name not in read and getattr(given, option.name) != getattr(default, option.name)
        ]
        own = {option.name: option.default for option in fields(self)}
        found += [name for name in ("library_per_day", "library_share") if getattr(self, name) != own[name]]
        return found + [name for name in ("library_tasks", "scale_states") if getattr(self, name) not in (0, own[name])]


def check_advantages(config: TrainConfig) -> None:
    """Refuse advantages that this grouping cannot give.

    Raises:
        ConfigError: they are to be shrunk by what differs between worlds, and there are none.
    """
    advantage = config.advantage
    if advantage.shrink and config.grouping != "branch":
        raise ConfigError(
            f"advantage.shrink needs the values of replies in several worlds, which grouping {config.grouping} does not have. "
            "Leave it out."
        )
    if advantage.shrink and config.branch.worlds < 2:
        raise ConfigError("advantage.shrink compares worlds, and branch.worlds is 1. Set --branch.worlds 4, or leave shrink out.")
    usual = replace(advantage, invalid_gap=AdvantageConfig().invalid_gap, invalid_ceiling=AdvantageConfig().invalid_ceiling)
    if config.grouping == "episodes" and advantage != usual:
        raise ConfigError(
            "advantage.invalid_gap and advantage.invalid_ceiling place replies that could not be used, and a whole episode is "
            "judged by its return alone (grouping episodes). Leave them out."
        )


def check_opponents(config: TrainConfig, roles: Sequence[str]) -> None:
    """Refuse opponents where no trained role meets another.

    Raises:
        ConfigError: one role is trained.
    """
    if config.past and len(roles) < 2:
        raise ConfigError(
            f"--opponents {config.opponents} needs two or more trained roles that meet each other, got {', '.join(roles)}. "
            "Train more of them with --roles, or leave it out."
        )
