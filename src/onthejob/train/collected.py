"""Collected turns: what seats in training mode did in a running company, kept as a run that `train` and `sft` read.

Each turn is an iteration of the run, on disk when the next one is played: token ids and log-probabilities as sampled, the
snapshot before it, and what the reply paid to every role. What the turns of the other seats pay afterwards is written with the
next one, or at the end of the company.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from onthejob.errors import ConfigError, ContractError, RecordError
from onthejob.record.store import Run
from onthejob.rollout.branch import forkable
from onthejob.rollout.episode import TurnRecord
from onthejob.rollout.library import Entry
from onthejob.rollout.origin import Origin, facts_of, read_origin
from onthejob.rollout.seats import Mode
from onthejob.types import Completion, Environment, Kind, Sampling, Split, StopReason, Task, Trajectory, Turn

TEMPERATURE = 1.0
"""At which a seat in training mode samples where nothing else is said: that of training."""
FACT = "collected"
"""Name among an episode's recorded facts."""
BASELINE_DAYS = 3
"""A turn is compared with those of its role that lie at most so many days before or after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A reply that can be trained on, and the moment for which it was sampled."""

    snapshot: bytes
    """Before the turn, in the profile in which the prompt was rendered."""
    day: int
    """As `Entry.day`."""
    prompt_ids: tuple[int, ...]
    completion: Completion
    sampling: Sampling
    policy: str
    """Identity of what replied: base, adapter and number format, as `Team.fingerprints` has it."""


class TurnRecorder:
    """Appends turns to a run, those of several companies at the same time. May be used from any thread."""

    def __init__(self, run: Run) -> None:
        """`run`: open for writing, and closed by `close`; turns that it holds already stay."""
        last = run.last_iteration()
        self._run, self._lock = run, threading.Lock()
        self._first = self._next = 0 if last is None else last + 1
        self._companies: list[CompanyRecorder] = []

    @property
    def count(self) -> int:
        """Records that were added."""
        return self._next - self._first

    def begin(self, task: Task) -> CompanyRecorder:
        """A company that is played from now on, or again from an earlier moment."""
        with self._lock:
            name = f"{self._first:06d}.{len(self._companies)}/{task.id}"
            company = CompanyRecorder(self, task, name)
            self._companies.append(company)
        return company

    def close(self) -> None:
        """Write what the last turns of all companies paid, and close the run. Safe to call twice."""
        for company in self._companies:
            company.finish(over=False)
        self._run.close()

    def _append(self, name: str, **given: Any) -> None:
        """Record one iteration; the caller holds the lock."""
        with self._run.iteration(self._next) as record:
            record.episode(name, **given)
        self._next += 1


class CompanyRecorder:
    """The turns of one company, in the order in which they are played; made by `TurnRecorder.begin`."""

    def __init__(self, recorder: TurnRecorder, task: Task, name: str) -> None:
        self._recorder, self._task, self._name = recorder, task, name
        self._paid: list[tuple[int, Mapping[str, float]]] = []
        """(turn, rewards) of the other seats' turns since the last record."""
        self._over = False

    def turn(
        self,
        played: TurnRecord,
        *,
        at: int,
        sampled: Sampled | None = None,
        stop: StopReason | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Add a turn.

        Args:
            played: what was replied, and what it paid.
            at: turn of the environment before it, as `state()["turn"]` counts.
            sampled: of a seat in training mode; None of every other one.
            stop: why the episode ended with this turn; None: it continues.
            metrics: of the environment after it, where it was sampled.

        Raises:
            RecordError: the run cannot be written.
        """
        with self._recorder._lock:
            if self._over:
                return
            if sampled is None:
                self._paid.append((at, dict(played.rewards)))
            else:
                self._sampled(played, at, sampled, stop, metrics or {})
        if stop is not None:
            self.finish(over=True)

    def _sampled(
        self, played: TurnRecord, at: int, sampled: Sampled, stop: StopReason | None, metrics: Mapping[str, float]
    ) -> None:
        turn = Turn(
            prompt_ids=sampled.prompt_ids,
            completion=sampled.completion,
            policy_version=played.policy,
            kind=played.kind,
            temperature=sampled.sampling.temperature,
            valid=played.valid,
        )
        # A segment of one turn is cut after it, where the episode continues: so `runs replay` finds it again.
        ended = stop or StopReason.MAX_TURNS
        try:
            self._write(turn, played, at, sampled, ended, metrics, over=stop is not None)
        except RecordError:
            self._paid.append((at, dict(played.rewards)))
            raise
        self._paid = []
        self._over = stop is not None

    def _write(
        self,
        turn: Turn,
        played: TurnRecord,
        at: int,
        sampled: Sampled,
        ended: StopReason,
        metrics: Mapping[str, float],
        *,
        over: bool,
    ) -> None:
        task, actor = self._task, played.actor
        reward = played.rewards.get(actor, 0.0)
        self._recorder._append(
            f"{task.id}/t{at:03d}/{actor}",
            policies={actor: played.policy},
            metrics=metrics,
            trajectories=[Trajectory(task_id=task.id, actor=actor, turns=(turn,), rewards=(reward,), stop=ended)],
            timeline=[asdict(played)],
            facts={
                "task": task.id,
                "stop": str(ended),
                "error": None,
                "unseated": {},
                **facts_of(Origin(task=task, start=sampled.snapshot)),
                FACT: {
                    "company": self._name,
                    "turn": at,
                    "day": sampled.day,
                    "policy": sampled.policy,
                    "max_new_tokens": sampled.sampling.max_new_tokens,
                    "paid": self._paid,
                    "over": over,
                },
            },
        )

    def finish(self, *, over: bool) -> None:
        """End the company; `over` when its episode has come to its end. Safe to call twice.

        Raises:
            RecordError: the run cannot be written.
        """
        with self._recorder._lock:
            if self._over:
                return
            self._over = True
            if self._paid or over:
                held = {"company": self._name, "paid": self._paid, "over": over}
                facts = {"task": self._task.id, "error": None, FACT: held}
                self._recorder._append(f"{self._task.id}/end", policies={}, metrics={}, facts=facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedTurn:
    """A turn of a seat in training mode."""

    number: int
    """Iteration of the run that holds it."""
    company: str
    """Which one, as it was founded: after an undo it is another one."""
    task: Task
    actor: str
    snapshot: bytes
    day: int
    at: int
    """Turn of the environment before it."""
    turn: Turn
    policy: str
    """As `Sampled.policy`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """All that a run of collected turns holds."""

    path: Path
    """Of the run."""
    config: Mapping[str, Any]
    """The environment, the model and the sampling, as a run of training names them."""
    turns: tuple[CollectedTurn, ...]
    """In the order in which they were played."""
    paid: Mapping[str, Sequence[tuple[int, Mapping[str, float]]]]
    """Company -> (turn, rewards) of its turns, ascending: all of them from the first collected one on."""
    over: frozenset[str]
    """Companies whose episode came to its end."""

    def returns(self, window: int) -> list[tuple[CollectedTurn, float]]:
        """Each turn with what its own role was paid in `window` turns of the environment from it on, undiscounted.

        An episode that ends earlier counts to its end. Turns after which less was played, or recorded, are omitted.
        """
        found = []
        for turn in self.turns:
            rows = self.paid[turn.company]
            until = turn.at + window
            if turn.company in self.over or rows[-1][0] >= until - 1:
                paid = math.fsum(rewards.get(turn.actor, 0.0) for at, rewards in rows if turn.at <= at < until)
                found.append((turn, paid))
        return found


def read_collected(run: Run) -> Collected:
    """The collected turns of a run.

    Raises:
        ConfigError: it holds none, or some of dev or test tasks.
        RecordError: a record is damaged.
    """
    require_collected(run)
    turns: list[CollectedTurn] = []
    paid: dict[str, list[tuple[int, Mapping[str, float]]]] = {}
    over: set[str] = set()
    for episode in run.read_episodes():
        where = f"record {episode.iteration} of {run.path}"
        try:
            held = episode.facts[FACT]
            company, rows = str(held["company"]), paid.setdefault(str(held["company"]), [])
            rows += [(int(at), {str(role): float(reward) for role, reward in rewards.items()}) for at, rewards in held["paid"]]
            if held["over"]:
                over.add(company)
            if not episode.trajectories:
                continue
            origin, (row,) = read_origin(episode.facts, where), episode.timeline
            (trajectory,) = episode.trajectories
            (turn,) = trajectory.turns
            if origin is None or origin.start is None or row["actor"] != trajectory.actor:
                raise ValueError("it has no snapshot, or one of another seat")
            rows.append((int(held["turn"]), {str(role): float(reward) for role, reward in row["rewards"].items()}))
            turns.append(
                CollectedTurn(
                    number=episode.iteration,
                    company=company,
                    task=origin.task,
                    actor=trajectory.actor,
                    snapshot=origin.start,
                    day=int(held["day"]),
                    at=int(held["turn"]),
                    turn=turn,
                    policy=str(held["policy"]),
                )
            )
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise RecordError(f"{where} is no collected turn: {error}. Restore run.sqlite from a copy.") from error
    if not turns:
        raise ConfigError(f"{run.path} holds no turn yet. Play with a seat in training mode.")
    refuse_evaluation([turn.task for turn in turns])
    return Collected(path=run.path, config=run.config, turns=tuple(turns), paid=paid, over=frozenset(over))


def require_collected(run: Run) -> None:
    """Refuse a run of another kind.

    Raises:
        ConfigError: it was not written by seats in training mode.
    """
    if run.config.get("mode") != Mode.TRAINING:
        raise ConfigError(
            f"{run.path} is no run of collected turns. `onthejob play` and `onthejob view` write one with --collect NAME and "
            "--mode training."
        )


def refuse_evaluation(tasks: Sequence[Task]) -> None:
    """Refuse tasks that are kept for evaluation.

    Raises:
        ConfigError: one of split dev or test.
    """
    for task in tasks:
        if task.split is not Split.TRAIN:
            raise ConfigError(
                f"training refuses held-out tasks: {task.id} with seed {task.seed} is of split {task.split}. Play with a "
                "training seed; without --seed, --collect takes one."
            )


def library_of(turns: Sequence[CollectedTurn], make_env: Callable[[], Environment]) -> list[Entry]:
    """The states before decisions among `turns`, each restored once in an environment of `make_env`.

    Raises:
        ConfigError: the environment refuses to train on a task, or cannot restore a snapshot.
        ContractError: the environment is not `Forkable`.
        RecordError: another role is asked in a snapshot.
    """
    env = forkable(make_env)
    entries = []
    try:
        for task in {turn.task.id: turn.task for turn in turns}.values():
            env.reset(task)
        for turn in turns:
            if turn.turn.kind is not Kind.ACT:
                continue
            try:
                pending = env.restore(turn.snapshot)
            except ContractError as error:
                raise ConfigError(
                    f"the snapshot of record {turn.number} cannot be restored: {error} Collect turns again with this version."
                ) from error
            if pending is None or pending.actor != turn.actor or not pending.fresh:
                raise RecordError(f"the snapshot of record {turn.number} does not ask {turn.actor}. Restore run.sqlite.")
            entries.append(Entry(task=turn.task, day=turn.day, actor=turn.actor, snapshot=turn.snapshot))
    finally:
        env.close()
    return entries


def better_paid(returns: Sequence[tuple[CollectedTurn, float]], keep_share: float) -> list[CollectedTurn]:
    """The turns that were paid more than usual, at most the share `keep_share` of each role's, in the order of play.

    Usual is the mean return of the same role and scenario within `BASELINE_DAYS` days: a company that grows pays more
    for the same decision every day. Replies that could not be used count in it and are never kept.
    """
    met: dict[tuple[str, str, int], list[float]] = {}
    for turn, paid in returns:
        met.setdefault(_moment(turn, turn.day), []).append(paid)
    above: dict[str, list[tuple[float, CollectedTurn]]] = {}
    count: Counter[str] = Counter()
    for turn, paid in returns:
        count[turn.actor] += 1
        days = range(turn.day - BASELINE_DAYS, turn.day + BASELINE_DAYS + 1)
        usual = fmean(other for day in days for other in met.get(_moment(turn, day), ()))
        if turn.turn.valid and paid - usual > 1e-9 * max(1.0, abs(usual)):
            above.setdefault(turn.actor, []).append((paid - usual, turn))
    kept: list[CollectedTurn] = []
    for actor, found in above.items():
        best = sorted(found, key=lambda pair: pair[0], reverse=True)
        kept += [turn for _, turn in best[: math.ceil(keep_share * count[actor])]]
    return sorted(kept, key=lambda turn: turn.number)


def _moment(turn: CollectedTurn, day: int) -> tuple[str, str, int]:
    return turn.actor, str(turn.task.payload.get("scenario", turn.task.env)), day
