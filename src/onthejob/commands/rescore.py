"""`onthejob runs rescore`: the claw's recorded or compared episodes under another reward or another table of stop sentinels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from onthejob.claw import Claw, Corpus
from onthejob.commands.removed import check_record
from onthejob.commands.runs import RUNS, existing_run, run_folder
from onthejob.commands.terminal import Output, Terminal, table
from onthejob.envs.claw.env import ClawEnvironment
from onthejob.envs.claw.episode_reward import RewardConfig, reward_of
from onthejob.envs.claw.replies import parse
from onthejob.envs.claw.stops import StopTable, stop_table
from onthejob.errors import ConfigError, RecordError
from onthejob.types import Split, StopReason, Task, Trajectory, Turn

if TYPE_CHECKING:
    from onthejob.envs.claw.sandbox import SandboxHost
    from onthejob.evaluate.pass_fail import Earlier
    from onthejob.evaluate.rescoring import Judged


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoreRun:
    """Score recorded episodes again, under another reward or stop table: what would have been learned, or saved?

    An episode that would have ended earlier is cut there. When other commands would have run than did, those are run in a sandbox
    and graded, so that a changed grade is seen; --unchecked takes the recorded grade instead. An episode that the other table
    would not have ended counts as one that continues to the last turn and changes nothing.
    """

    path: tyro.conf.Positional[str]
    """A run's folder or its name in `runs/`, or a comparison: the name under which `compare --name` kept it, or a file that
    `compare --json` printed."""
    reward: Literal["shaped", "binary"] | None = None
    """The other reward; None keeps that of the record."""
    turn_penalty: float | None = None
    """The other cost of using all turns; None keeps that of the record."""
    stops: str | None = None
    """The other table of stop sentinels: `standard`, `seed` or `literal`; None keeps that of the record."""
    iteration: int | None = None
    """With a run: only the groups of this iteration; None takes all."""
    teams: tuple[str, ...] = ()
    """With a comparison: only these teams; none means all."""
    unchecked: bool = False
    """Run nothing again: take recorded grades for what would have been graded earlier."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Print both sides, and what differs."""
        if self.reward is None and self.turn_penalty is None and self.stops is None:
            raise ConfigError("nothing would change. Give --reward, --turn-penalty or --stops.")
        comparison = comparison_file(self.path)
        if comparison is None:
            if self.teams:
                raise ConfigError("--teams has no effect on a run. Leave it out, or name a comparison.")
            return self._groups(existing_run(Path(self.path)), terminal)
        if self.iteration is not None:
            raise ConfigError("--iteration has no effect on a comparison. Leave it out, or name a run.")
        return self._teams(comparison, terminal)

    def _groups(self, folder: Path, terminal: Terminal) -> int:
        """The groups of a run."""
        from onthejob.commands.train import recorded_options
        from onthejob.evaluate.rescoring import policy_delta, rescore, summary
        from onthejob.record import Run

        with Run.open(folder, readonly=True) as run, ExitStack() as stack:
            if lost := [name for name in check_record(run.config)[1] if name.startswith("learner.advantage.")]:
                raise ConfigError(
                    f"{run.path} was made with --{lost[0]}, which this version does not have, so its advantages cannot be "
                    "computed again. Rescore it with the version that made it."
                )
            options = recorded_options(run)
            place = options.own
            if not isinstance(place, Claw):
                raise RecordError(f"{run.path} is a run of the {options.env}; only grades of the claw can be scored again.")
            other = self._rules(place)
            judge = Judging(place, other, find=Corpus(other).find, unchecked=self.unchecked, stack=stack)
            groups = list(run.read_groups(self.iteration))
            advantages = run.read_advantages(self.iteration)
            found = rescore(groups, advantages, judge, config=options.train.advantage)
            path = run.path
        figures, delta = summary(found), policy_delta(found)
        data = {"run": path, "groups": len(found), **figures, **delta, "grades": dict(judge.grades), "groups_rescored": found}
        rows = [(name, sides["before"], sides["after"]) for name, sides in figures.items()]
        terminal.result(
            data,
            table(("", "recorded", "rescored"), rows, title=f"{path}: {len(found)} groups, {delta['trajectories']} trajectories"),
            f"advantages with another sign: {delta['sign_changes']} ({delta['sign_change_share']:.1%}), "
            f"of which reversed: {delta['sign_reversals']}; mean absolute change: {delta['advantage_change']:.3f}",
            f"turns saved: {delta['turns_saved']} ({delta['turns_saved_share']:.1%}); episodes that end earlier: "
            f"{delta['shortened']} of {delta['trajectories']}",
            "final grades: " + ", ".join(f"{count} {known}" for known, count in judge.grades.items() if count),
        )
        return 0

    def _teams(self, path: Path, terminal: Terminal) -> int:
        """The episodes of a comparison, team by team."""
        from onthejob.commands.env_options import read_options
        from onthejob.commands.train import Train
        from onthejob.evaluate.pass_fail import read_comparison
        from onthejob.evaluate.rescoring import rescore_team, saving

        comparison = read_comparison(path)
        if not comparison.env:
            raise RecordError(f"{path} does not say what was played: it was made by an earlier version. Play it again.")
        options = read_options(Train, {"env": dict(comparison.env)}, str(path))
        place = options.own
        if not isinstance(place, Claw):
            raise RecordError(f"{path} compares teams in the {options.env}; only grades of the claw can be scored again.")
        if unknown := [team for team in self.teams if team not in comparison.teams]:
            raise ConfigError(f"{path} has no team {', '.join(unknown)}; its teams are {', '.join(comparison.teams)}.")
        other, data, known = self._rules(place), {}, {}
        with ExitStack() as stack:
            judge = Judging(place, other, find=Compared(place, comparison).find, unchecked=self.unchecked, stack=stack)
            for team in self.teams or comparison.teams:
                before = judge.grades.copy()
                rows = rescore_team(comparison, team, judge)
                known[team] = {grade: judge.grades[grade] - before[grade] for grade in judge.grades}
                data[team] = {**saving(rows), "grades": known[team], "tasks": rows}
        lines = [
            f"{team}: {found['shortened']} of {found['episodes']} episodes ({found['shortened_share']:.1%}) end earlier, which "
            f"saves {found['turns_saved']} of {found['turns']} turns, about {found['seconds_saved']:.0f} s; final grades: "
            + ", ".join(f"{count} {grade}" for grade, count in known[team].items() if count)
            for team, found in data.items()
        ]
        columns = ("team", "episodes", "passed", "rescored", "reward", "rescored", "turns", "rescored")
        shown = [
            (
                team,
                found["episodes"],
                *(found["passed_before"], found["passed_after"], found["reward_before"], found["reward_after"]),
                *(found["turns"], found["turns"] - found["turns_saved"]),
            )
            for team, found in data.items()
        ]
        terminal.result({"comparison": path, "teams": data}, table(columns, shown, title=str(path)), *lines)
        return 0

    def _rules(self, place: Claw) -> Claw:
        """The workplace under the other rules."""
        own = place.rules.reward
        mode = self.reward or own.mode
        kept = own.turn_penalty if mode == own.mode and mode == "shaped" else None
        reward = RewardConfig(mode=mode, turn_penalty=kept if self.turn_penalty is None else self.turn_penalty)
        protocol = replace(place.rules.protocol, stops=self.stops or place.rules.protocol.stops)
        return replace(place, rules=replace(place.rules, reward=reward, protocol=protocol))


def comparison_file(named: str) -> Path | None:
    """The file of a comparison, by its path or by the name under which it was kept; None where a run is meant."""
    from onthejob.evaluate.pass_fail import kept_path

    if (path := Path(named)).is_file():
        return path
    kept = kept_path(RUNS, named)
    return kept if kept.is_file() and not run_folder(path).exists() else None


class Compared:
    """The tasks of a comparison by id; read when the first is asked for."""

    def __init__(self, place: Claw, comparison: Earlier) -> None:
        self._place, self._comparison = place, comparison
        self._tasks: dict[str, Task] | None = None

    def find(self, wanted: str) -> Task | None:
        """The task of this id; None when there is none, or one of another content."""
        from onthejob.evaluate.comparison import task_key

        if self._tasks is None:
            self._tasks = {task.id: task for task in self._place.tasks(Split(self._comparison.split))}
        task = self._tasks.get(wanted)
        return task if task is not None and task_key(task) == self._comparison.tasks.get(wanted) else None


class Known(StrEnum):
    """How the grade of an episode under the other rules is known."""

    NOT_AFFECTED = "not affected"
    """The same commands would have run, so the workspace and its grade are those that were recorded; nothing was run again."""
    UNCHANGED = "unchanged"
    """Other commands would have run: those were run again, and the grade is the same."""
    CHANGED = "changed"
    """The same, and the grade is another."""
    ASSUMED = "assumed"
    """The episode would have continued in an unknown way; it is taken to change nothing."""
    NOT_CHECKED = "not checked"
    """Other commands would have run, but they were not run again; the recorded grade is taken."""


class Judging:
    """What the other rules make of one trajectory; counts how its grade is known."""

    def __init__(
        self, place: Claw, other: Claw, *, find: Callable[[str], Task | None], unchecked: bool, stack: ExitStack
    ) -> None:
        """Nothing is opened before it is needed.

        Args:
            place: the rules under which the trajectories were played.
            other: the other rules.
            find: the task of an id; None where it is gone.
            unchecked: never run anything.
            stack: closes the sandboxes.
        """
        self.grades = Counter({str(known): 0 for known in Known})
        self._other, self._unchecked, self._stack = other, unchecked, stack
        self._own_stops, self._stops = stop_table(place.rules.protocol.stops), stop_table(other.rules.protocol.stops)
        self._find = find
        self._env: ClawEnvironment | None = None

    def __call__(self, row: Trajectory, metrics: Mapping[str, float]) -> Judged:
        from onthejob.evaluate.rescoring import Judged

        turns = self._length(row)
        found, known = metrics, Known.ASSUMED
        if turns <= len(row.turns):
            again, known = self._known(row, turns, metrics)
            found = metrics if again is None else again
        self.grades[str(known)] += 1
        protocol, config = self._other.rules.protocol, self._other.rules.reward
        parts = reward_of(
            bool(found["passed"]), found["assertion_rate"], turns=turns, max_turns=protocol.max_turns, config=config
        )
        return Judged(turns=turns, reward=sum(parts.values()), passed=bool(found["passed"]))

    def _length(self, row: Trajectory) -> int:
        """Turns under the other table."""
        for number, turn in enumerate(row.turns, start=1):
            if parse(turn.completion.text, self._stops).stop is not None:
                return number
        return self._other.rules.protocol.max_turns if row.stop is StopReason.DONE else len(row.turns)

    def _known(self, row: Trajectory, turns: int, metrics: Mapping[str, float]) -> tuple[Mapping[str, float] | None, Known]:
        """The grade after `turns` turns where it had to be found out, and how it is known."""
        if _commands(row.turns, self._own_stops) == _commands(row.turns[:turns], self._stops):
            return None, Known.NOT_AFFECTED
        again = None if self._unchecked else self._graded(row, turns)
        return again, Known.NOT_CHECKED if again is None else _verdict(metrics, again)

    def _graded(self, row: Trajectory, turns: int) -> Mapping[str, float] | None:
        """The metrics of the episode's first `turns` turns, run again; None when its task is gone or it did not end."""
        task = self._find(row.task_id)
        if task is None:
            return None
        if self._env is None:
            self._env = ClawEnvironment(self._other.rules, host=self._stack.enter_context(_host(self._other)))
            self._stack.callback(self._env.close)
        self._env.reset(task)
        for turn in row.turns[:turns]:
            if self._env.step(turn.completion.text).observation is None:
                return self._env.state()["metrics"]
        return None


def _commands(turns: Sequence[Turn], stops: StopTable) -> list[str]:
    """What these turns run; a table may also take a line out of what another one runs."""
    commands = (parse(turn.completion.text, stops).command for turn in turns)
    return [command for command in commands if command is not None]


def _verdict(before: Mapping[str, float], after: Mapping[str, float]) -> Known:
    same = (before["passed"], before["assertion_rate"]) == (after["passed"], after["assertion_rate"])
    return Known.UNCHANGED if same else Known.CHANGED


def _host(place: Claw) -> SandboxHost:
    from onthejob.envs.claw.sandbox import open_host

    return open_host(unsafe=place.unsafe, data=place.data)
