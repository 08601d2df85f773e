"""branch: what a reply was worth, measured by stepping it in forks of the state it was written for.

All replies of a group meet the same worlds (the same luck), so their values differ by what they did and not by chance. Equal
replies are branched once: `canonical` names what a reply would do. Scoring is plain Python work on the CPU and can be spread
over processes; it gives the same numbers with any number of them.

    value = outcome_weight * (outcome per turn) / s_v + return_weight * (role return per turn) / s_r

with the frozen `Scales` of the role. Both terms are per turn, so the mix of the two does not depend on how much of the episode
remains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Gt, Interval

from onthejob.errors import ConfigError, ContractError
from onthejob.keys import keyed_seed
from onthejob.rollout.contract import accepted_branch
from onthejob.rollout.stand_ins import Rates
from onthejob.rollout.value import branch_value
from onthejob.scale.local import LocalRuntime
from onthejob.scale.runtime import LIMIT_S, Job, Runtime, ordered
from onthejob.setting_ranges import Reason, check_ranges
from onthejob.types import (
    Branch,
    Completion,
    Environment,
    Forkable,
    Group,
    Imitable,
    Kind,
    Sampling,
    StopReason,
    Trajectory,
    Turn,
)

Continuation = Literal["partners", "stand_ins", "both", "policy"]
STEP_S = 30.0
"""Seconds that a worker may take for one step of a branch, on average, before it counts as hung."""
BRANCH_WORLDS = 9_999
"""Branches live in worlds 1..9_999; 0 is the main line, 10_000 and above are for evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchConfig:
    """How the replies of a group are scored."""

    group_size: Annotated[int, Ge(2), Reason("to have a baseline")] = 8
    """Replies sampled to one prompt (K). At least 2: one reply has no baseline."""
    turns: Annotated[int, Ge(1)] = 140
    """Length of a branch in turns (H); it ends earlier when the episode does."""
    worlds: Annotated[int, Interval(ge=1, le=BRANCH_WORLDS)] = 4
    """Worlds over which a reply's value is averaged (m); shared by the group."""
    outcome_weight: Annotated[float, Ge(0)] = 1.0
    """Weight of the change of the environment's objective."""
    return_weight: Annotated[float, Ge(0)] = 0.25
    """Weight of the role's own return."""
    continuation: Continuation = "partners"
    """Rollout policy of branches, after the reply: the environment's scripted partners, quick imitations of the policies being
    trained (the environment must be `Imitable`), or both, each in every other world. With capable partners a branch hardly
    shows what a policy would keep leaving undone; with stand-ins alone it shows what is good among these weak ones. `policy`:
    the present policies themselves (the environment must be `Continuable`), which costs their replies, up to `turns` for each
    reply and world."""

    def __post_init__(self) -> None:
        check_ranges(self, "--branch.")
        if self.continuation == "both" and self.worlds % 2:
            raise ConfigError(f"worlds must be even where two kinds of players share them, got {self.worlds}. Set --worlds 4.")
        if self.outcome_weight == self.return_weight == 0.0:
            raise ConfigError("outcome_weight and return_weight must not both be 0. Set --branch.outcome-weight 1.")

    @property
    def imitates(self) -> bool:
        """True when stand-ins of the policies are needed."""
        return self.continuation in ("stand_ins", "both")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """What a typical difference between legal replies amounts to, for one role; frozen for a run."""

    outcome: Annotated[float, Gt(0)] = 1.0
    """s_v: standard deviation, between legal replies, of the outcome per turn."""
    ret: Annotated[float, Gt(0)] = 1.0
    """s_r: standard deviation, between legal replies, of the role's return per turn."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchJob:
    """One distinct reply to be branched from one state in several worlds."""

    snapshot: bytes
    reply: str
    worlds: tuple[int, ...]
    turns: int
    stand_ins: Rates = field(default_factory=dict)
    """Actors that a stand-in continues, with its rates."""
    continuation: Continuation = "stand_ins"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyScores:
    """What the replies to one prompt were worth, in the order of the replies."""

    keys: tuple[str, ...]
    values: tuple[float, ...]
    """Mean over worlds of the scaled value: the trajectory's reward."""
    outcomes: tuple[float, ...]
    """Mean over worlds of the unscaled outcome of the whole branch (office: dollars)."""
    returns: tuple[float, ...]
    """Mean over worlds of the role's unscaled return over the branch."""
    valid: tuple[bool, ...]
    worlds: tuple[int, ...]
    by_world: Mapping[str, tuple[float, ...]]
    """Canonical key -> scaled value in each of `worlds`."""
    turns: int
    """Turns by which outcomes and returns were divided: the longest branch of the group."""


def group_worlds(root: int, *keys: int | str, count: int) -> tuple[int, ...]:
    """`count` distinct worlds in 1..9_999, keyed; all replies of a group share them."""
    worlds, draw = list[int](), 0
    while len(worlds) < count:
        world = 1 + keyed_seed(root, *keys, "world", draw) % BRANCH_WORLDS
        if world not in worlds:
            worlds.append(world)
        draw += 1
    return tuple(worlds)


class BranchFailure(Exception):
    """The environment raised while branching: our failure, so the group is dropped and never scored as zero."""


BranchResult = tuple[Branch, ...] | BranchFailure


class BranchScorer:
    """Runs branch jobs, inline or by the workers of a runtime; results come in the order of the jobs either way."""

    def __init__(self, make_env: Callable[[], Environment], *, workers: int = 0, runtime: Runtime | None = None) -> None:
        """Start no process yet.

        Args:
            make_env: creates a `Forkable` environment; importable by name where there are workers (it is sent to them).
            workers: processes of this machine; 0 scores in this one.
            runtime: has the workers, in the place of such processes; it is not closed with the scorer.

        Raises:
            ConfigError: negative `workers`.
            ContractError: the environment is not `Forkable`.
        """
        self._own = LocalRuntime(workers)
        self._runtime = runtime or self._own
        self._make_env = make_env
        self._env = forkable(make_env)

    def run(self, jobs: Sequence[BranchJob]) -> list[BranchResult]:
        """For each job its branches, one per world, or what the environment raised.

        Raises:
            ScaleError: workers keep being lost.
        """
        return self.submit(jobs)()

    def submit(self, jobs: Sequence[BranchJob]) -> Callable[[], list[BranchResult]]:
        """Begin `jobs` and return at once with what waits for the results; without workers they are done here and now.

        Raises:
            ScaleError: what is returned raises it when workers keep being lost.
        """
        if not self._runtime.workers:
            done = [run_job(self._env, job) for job in jobs]
            return lambda: done
        sent = [
            Job(
                key=f"branch-{index:06d}",
                function="onthejob.rollout.branch:run_anywhere",
                arguments=(self._make_env, job),
                work=len(job.worlds) * job.turns,
                limit_s=max(LIMIT_S, STEP_S * len(job.worlds) * job.turns),
            )
            for index, job in enumerate(jobs)
        ]
        results = self._runtime.submit(sent)
        return lambda: ordered(results(), sent)

    def close(self) -> None:
        """End the worker processes that it made."""
        self._own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def forkable(make_env: Callable[[], Environment]) -> Forkable:
    """A new environment that can be forked.

    Raises:
        ContractError: it cannot.
    """
    env = make_env()
    if not isinstance(env, Forkable):
        raise ContractError(f"branch scoring needs a Forkable environment, got {type(env).__name__}. Group by episodes instead.")
    return env


def run_job(env: Forkable, job: BranchJob) -> BranchResult:
    """Branch `job.reply` in every world; `env` is moved to the job's state. What it raises is returned: it costs one group."""
    try:
        env.restore(job.snapshot)
        branches: list[Branch] = []
        for place, world in enumerate(job.worlds):
            if isinstance(env, Imitable):
                env.continue_with(playing_on(job.stand_ins, job.continuation, place))
            branch = env.branch(job.reply, world=world, turns=job.turns)
            branches.append(accepted_branch(branch, f"{type(env).__name__}, branch of {job.reply[:40]!r}"))
        return tuple(branches)
    except Exception as error:
        return BranchFailure(f"branch of {job.reply[:80]!r} raised {type(error).__name__}: {error}")


def playing_on(stand_ins: Rates, continuation: Continuation, place: int) -> Rates:
    """The stand-ins of the world at this place of a group's worlds: with `both` none in every second one."""
    return stand_ins if continuation == "stand_ins" or (continuation == "both" and place % 2 == 0) else {}


def run_anywhere(make_env: Callable[[], Environment], job: BranchJob) -> BranchResult:
    """As `run_job`, in whatever process; a job of the runtime."""
    # A fresh environment per job: building one costs little against its branches, and nothing outlives the job.
    return run_job(forkable(make_env), job)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """The replies to one prompt, to be scored together."""

    snapshot: bytes
    actor: str
    replies: tuple[str, ...]
    keys: tuple[str, ...]
    """Canonical key of each reply."""
    worlds: tuple[int, ...]
    stand_ins: Rates = field(default_factory=dict)
    """Actors that a stand-in continues, with its rates."""


def score_replies(
    scorer: BranchScorer, requests: Sequence[ScoreRequest], config: BranchConfig, scales: Mapping[str, Scales]
) -> list[ReplyScores | BranchFailure]:
    """Score the replies of several prompts in one go; each distinct canonical reply is branched once per world.

    Raises:
        ConfigError: an actor has no scales.
    """
    return submit_replies(scorer, requests, config, scales)()


def submit_replies(
    scorer: BranchScorer, requests: Sequence[ScoreRequest], config: BranchConfig, scales: Mapping[str, Scales]
) -> Callable[[], list[ReplyScores | BranchFailure]]:
    """Begin what `score_replies` does, and return at once with what waits for the scores.

    Raises:
        ConfigError: an actor has no scales.
    """
    jobs: list[BranchJob] = []
    for request in requests:
        if request.actor not in scales:
            raise ConfigError(f"no scales for actor {request.actor!r}; measured are {sorted(scales)}. Measure them first.")
        jobs += [
            BranchJob(
                snapshot=request.snapshot,
                reply=reply,
                worlds=request.worlds,
                turns=config.turns,
                stand_ins=request.stand_ins,
                continuation=config.continuation,
            )
            for reply in distinct(request).values()
        ]
    submitted = scorer.submit(jobs)

    def scores() -> list[ReplyScores | BranchFailure]:
        results = iter(submitted())
        return [_scores(request, results, config, scales[request.actor]) for request in requests]

    return scores


def _scores(
    request: ScoreRequest, results: Iterator[BranchResult], config: BranchConfig, scales: Scales
) -> ReplyScores | BranchFailure:
    """Takes the request's own results, one per distinct reply, from `results`."""
    found = {key: next(results) for key in distinct(request)}
    branches = {key: result for key, result in found.items() if not isinstance(result, BranchFailure)}
    failures = [result for result in found.values() if isinstance(result, BranchFailure)]
    return failures[-1] if failures else compose(request, branches, config, scales)


def distinct(request: ScoreRequest) -> dict[str, str]:
    """Canonical key -> the first reply that has it, in order of appearance."""
    first: dict[str, str] = {}
    for key, reply in zip(request.keys, request.replies, strict=True):
        first.setdefault(key, reply)
    return first


def compose(request: ScoreRequest, branches: Mapping[str, Sequence[Branch]], config: BranchConfig, scales: Scales) -> ReplyScores:
    """Values of the replies from their branches."""
    turns = max(branch.turns for of_key in branches.values() for branch in of_key)
    by_world = {
        key: tuple(
            branch_value(branch.outcome, branch.returns.get(request.actor, 0.0), turns=turns, weights=config, scales=scales)
            for branch in of_key
        )
        for key, of_key in branches.items()
    }
    outcomes = {key: sum(one.outcome for one in of_key) / len(of_key) for key, of_key in branches.items()}
    returns = {key: sum(one.returns.get(request.actor, 0.0) for one in of_key) / len(of_key) for key, of_key in branches.items()}
    valid = {key: all(branch.valid for branch in of_key) for key, of_key in branches.items()}
    return ReplyScores(
        keys=request.keys,
        values=tuple(sum(by_world[key]) / len(by_world[key]) for key in request.keys),
        outcomes=tuple(outcomes[key] for key in request.keys),
        returns=tuple(returns[key] for key in request.keys),
        valid=tuple(valid[key] for key in request.keys),
        worlds=request.worlds,
        by_world=by_world,
        turns=turns,
    )


def branch_group(
    key: str,
    task_id: str,
    prompt_ids: tuple[int, ...],
    completions: Sequence[Completion],
    scores: ReplyScores,
    *,
    actor: str,
    policy_version: str,
    sampling: Sampling,
    kind: Kind = Kind.ACT,
    facts: Mapping[str, Any] | None = None,
) -> Group:
    """The group of one-turn trajectories whose rewards are the branch values."""
    trajectories = tuple(
        Trajectory(
            task_id=task_id,
            actor=actor,
            turns=(
                Turn(
                    prompt_ids=prompt_ids,
                    completion=completion,
                    policy_version=policy_version,
                    kind=kind,
                    temperature=sampling.temperature,
                    valid=scores.valid[index],
                ),
            ),
            rewards=(scores.values[index],),
            stop=StopReason.BRANCH,
            metrics={"outcome": scores.outcomes[index], "return": scores.returns[index]},
        )
        for index, completion in enumerate(completions)
    )
    own: dict[str, Any] = {
        "source": "branch",
        "keys": list(scores.keys),
        "worlds": list(scores.worlds),
        "by_world": {name: list(values) for name, values in scores.by_world.items()},
        "turns": scores.turns,
    }
    return Group(key=key, actor=actor, trajectories=trajectories, facts={**own, **(facts or {})})
