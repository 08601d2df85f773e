"""ClawEnvironment: a shell agent's episode behind the protocol of `onthejob.types`.

Thin: parse the reply, run its command in the episode's sandbox, show the result; at the end kill the sandbox, grade what it
left and pay once. It never calls a model, and cannot be forked (a shell has no snapshot), so it is trained by whole episodes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from onthejob.envs.claw.agent_messages import first_messages
from onthejob.envs.claw.episode_reward import RewardConfig, reward_parts
from onthejob.envs.claw.grader import Grade, GraderConfig
from onthejob.envs.claw.protocol import ProtocolConfig, observe, shown
from onthejob.envs.claw.replies import FEEDBACK, ParsedReply, parse
from onthejob.envs.claw.sandbox import CommandResult, Limits, Sandbox, SandboxHost
from onthejob.envs.claw.sandbox.sandbox_interface import Content, ItemKind, TreeEntry, as_item
from onthejob.envs.claw.sandbox.surveying import changes
from onthejob.envs.claw.stops import stop_table
from onthejob.envs.claw.task_schema import AssertionKind
from onthejob.envs.claw.work import Work, work_of
from onthejob.errors import ContractError, SandboxError
from onthejob.types import Message, Step, StopReason, Task, TextObservation

T = TypeVar("T")
ACTOR = "agent"
SHOWN_CHANGES = 50
"""Changed files that a turn's facts name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClawConfig:
    """How episodes are played, graded and paid."""

    protocol: ProtocolConfig = field(default_factory=ProtocolConfig)
    """Turns, time and what the agent sees."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """What an episode is worth."""
    grader: GraderConfig = field(default_factory=GraderConfig)
    """Limits of grading."""
    sandbox: Limits = field(default_factory=Limits)
    """What one sandbox may use."""


@dataclass(slots=True)
class _Counts:
    turns: int = 0
    commands: int = 0
    parse_errors: int = 0
    failed: int = 0
    timeouts: int = 0
    restarts: int = 0
    chars: int = 0
    command_s: float = 0.0
    """Seconds that all commands took together."""


class _Acted(NamedTuple):
    """What one reply did."""

    read: ParsedReply
    facts: Mapping[str, Any]
    seen: Mapping[str, Any]


class ClawEnvironment:
    """One agent in one sandbox. Implements `onthejob.types.Environment`; the only actor is `agent`."""

    def __init__(
        self, config: ClawConfig | None = None, *, host: SandboxHost, work: Callable[[Task], Work] | None = None
    ) -> None:
        """Create an environment; `reset` starts an episode.

        Args:
            config: rules.
            host: makes the sandboxes; shared between environments and not closed by them.
            work: What an episode needs of a task, for tasks of another form; None reads those of the claw. It raises as `reset`.
        """
        self.config = config or ClawConfig()
        self._host = host
        self._work_of = work
        self._stops = stop_table(self.config.protocol.stops)
        self._task: Work | None = None
        self._sandbox: Sandbox | None = None
        self._files: Mapping[str, TreeEntry] = {}
        self._counts = _Counts()
        self._grade: Grade | None = None
        self._stop: StopReason | None = None
        self._parts: dict[str, float] = {}

    def reset(self, task: Task) -> TextObservation:
        """Seed a new workspace with the files of the task (see `onthejob.envs.claw.work`).

        Raises:
            ConfigError: the payload is no claw task.
            NotCheckable: the machine lacks what the task's checks need.
            SandboxError: no sandbox could be started.
        """
        self.close()
        self._task = work = self._read(task)
        self._counts, self._grade, self._stop, self._parts = _Counts(), None, None, {}
        self._sandbox = (work.host or self._host).open(work.files, self.config.sandbox, layout=work.layout)
        self._files = self._sandbox.survey()
        sizes = _sizes(work.files) if work.listed is None else work.listed
        messages = first_messages(work.intent, sizes, self.config.protocol, work.place)
        return self._observation(messages, {"files": [list(item) for item in sizes.items()]}, fresh=True)

    def step(self, reply: str) -> Step:
        """Run the reply's command, then end the episode if the reply, the turn limit or the conversation's limit says so.

        Raises:
            ContractError: no episode is running.
            SandboxError: the sandbox failed, which is our failure and not the agent's.
        """
        done = self._act(reply)
        facts, valid = dict(done.facts), done.read.problem is None
        stop = self._why_stop(done.read)
        if stop is not None:
            facts |= {} if done.read.stop is None else {"sentinel": done.read.stop}
            return self._finish(stop, facts, valid=valid)
        observation = self._observation((Message("user", str(facts["observation"])),), done.seen, fresh=False)
        return Step(rewards={}, observation=observation, valid=valid, facts=facts)

    def left_after(
        self, task: Task, replies: Sequence[str], read: Callable[[Path], T], *, within_s: float
    ) -> tuple[list[Mapping[str, Any]], T]:
        """Begin `task`, act on `replies`, end the sandbox, and let `read` see what they left; without a grade and unpaid.

        Args:
            task: as for `reset`.
            replies: all of them are acted on, whatever would have ended an episode.
            read: receives the root of the dead sandbox's workspace, see `onthejob.envs.claw.workspace`.
            within_s: seconds for all commands together.

        Returns:
            The facts of each reply, as `step` returns them but for the end of an episode, and what `read` returned.

        Raises:
            ConfigError: as of `reset`.
            SandboxError: as of `reset`; the sandbox failed, or the commands took longer.
        """
        self.reset(task)
        try:
            ends = time.monotonic() + within_s
            facts: list[Mapping[str, Any]] = []
            for reply in replies:
                facts.append(self._act(reply, most_s=_left_until(ends, within_s)).facts)
            _left_until(ends, within_s)
            assert self._sandbox is not None
            return facts, read(self._sandbox.collect())
        finally:
            self.close()

    def interrupt(self, stop: StopReason) -> Step:
        """End the episode between two replies, grade what was done until then, and pay for it.

        Raises:
            ContractError: no episode is running.
            SandboxError: the sandbox failed.
        """
        if self._task is None or self._sandbox is None:
            raise ContractError("no episode is running. Call reset first.")
        return self._finish(stop, {}, valid=True)

    def state(self) -> Mapping[str, Any]:
        """Where the episode stands. Metrics are counts, rates in [0, 1] and the reward; those of the grade come with the end."""
        task, counts = self._task, self._counts
        metrics = {
            "commands": float(counts.commands),
            "commands_failed": float(counts.failed),
            "timeouts": float(counts.timeouts),
            "parse_errors": float(counts.parse_errors),
            "restarts": float(counts.restarts),
        }
        if self._grade is not None and self._stop is not None:
            metrics |= _grade_metrics(self._grade)
            metrics |= {"reward": sum(self._parts.values()), "clean_stop": float(self._stop is StopReason.DONE)}
        return {
            "task": task.id if task else "",
            "persona": task.persona if task else "",
            "family": task.family if task else "",
            "difficulty": task.difficulty if task else "",
            "turn": counts.turns,
            "stop": str(self._stop) if self._stop else "",
            "backend": self._host.report.backend,
            "verdicts": [asdict(verdict) for verdict in self._grade.verdicts] if self._grade else [],
            "metrics": metrics,
        }

    def close(self) -> None:
        """Remove the sandbox; `reset` may be called again."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _read(self, task: Task) -> Work:
        if self._work_of is not None:
            return self._work_of(task)
        return work_of(task, host=self._host, grader=self.config.grader, limits=self.config.sandbox)

    def _act(self, reply: str, *, most_s: float = math.inf) -> _Acted:
        """Run the reply's command for at most `most_s` seconds.

        Raises:
            ContractError: no episode is running.
            SandboxError: the sandbox failed.
        """
        if self._task is None or self._sandbox is None:
            raise ContractError("no episode is running. Call reset first.")
        protocol, counts = self.config.protocol, self._counts
        counts.turns += 1
        read = parse(reply, self._stops)
        facts: dict[str, Any] = {"turn": counts.turns}
        seen: dict[str, Any] = {}
        text = ""
        if read.problem is not None:
            counts.parse_errors += 1
            text = FEEDBACK[read.problem]
            facts |= {"problem": str(read.problem), "why": text.partition("\n")[0]}
            seen["problem"] = str(read.problem)
        if read.command is not None:
            allowed_s = min(self._allowed_s(), most_s)
            result = self._sandbox.run(
                read.command, timeout_s=allowed_s, start=self._task.start, persistent=protocol.persistent_shell
            )
            counts.command_s += result.wall_s
            counts.commands += 1
            counts.failed += int(result.exit_code != 0)
            counts.timeouts += int(result.timed_out)
            counts.restarts += int(result.restarted)
            text = observe(result, replace(protocol, command_s=allowed_s), ignored=read.ignored)
            facts |= {"command": read.command, **_result_facts(result), "ignored_blocks": read.ignored, **self._changes()}
            # Of a shell that does not persist this would only lengthen the record.
            facts |= {"shell_ended": result.shell_ended} if protocol.persistent_shell else {}
            seen |= self._seen(result)
        counts.chars += len(reply) + len(text)
        facts["observation"] = text
        return _Acted(read, facts, seen)

    def _allowed_s(self) -> float:
        """Seconds that the next command may take."""
        protocol, total_s = self.config.protocol, None if self._task is None else self._task.total_s
        return protocol.command_s if total_s is None else min(protocol.command_s, max(1.0, total_s - self._counts.command_s))

    def _changes(self) -> dict[str, Any]:
        """Which files the command changed."""
        assert self._sandbox is not None
        before, self._files = self._files, self._sandbox.survey()
        found = changes(before, self._files)
        return {"files": found[:SHOWN_CHANGES], "files_left_out": max(0, len(found) - SHOWN_CHANGES)}

    def _why_stop(self, read: ParsedReply) -> StopReason | None:
        if read.stop is not None:
            return StopReason.DONE
        if self._counts.turns >= self.config.protocol.max_turns:
            return StopReason.MAX_TURNS
        if self._task is not None and self._task.total_s is not None and self._counts.command_s >= self._task.total_s:
            return StopReason.HORIZON
        return StopReason.CONTEXT if self._counts.chars > self.config.protocol.conversation_chars else None

    def _finish(self, stop: StopReason, facts: dict[str, Any], *, valid: bool) -> Step:
        """Kill the sandbox, grade what it left, pay."""
        assert self._task is not None
        assert self._sandbox is not None
        self._grade = self._task.grade(self._sandbox.collect())
        self.close()
        self._stop = stop
        self._parts = reward_parts(
            self._grade,
            turns=self._counts.turns,
            max_turns=self.config.protocol.max_turns,
            config=self.config.reward,
            part=self._task.part,
        )
        report = self._host.report
        facts |= {
            "verdicts": [asdict(verdict) for verdict in self._grade.verdicts],
            "backend": report.backend,
            "layers": [layer.name for layer in report.layers if layer.active],
        }
        return Step(
            rewards={ACTOR: sum(self._parts.values())},
            parts={ACTOR: self._parts},
            observation=None,
            stop=stop,
            valid=valid,
            facts=facts,
        )

    def _observation(self, messages: tuple[Message, ...], seen: Mapping[str, Any], *, fresh: bool) -> TextObservation:
        assert self._task is not None
        if fresh:
            self._counts.chars = sum(len(message.content) for message in messages)
        left = self.config.protocol.max_turns - self._counts.turns
        # The id lets a scripted policy know its script; the gold commands themselves are never in a view.
        view = {"task": self._task.id, "intent": self._task.intent, "turn": self._counts.turns, "turns_left": left, **seen}
        return TextObservation(actor=ACTOR, messages=messages, fresh=fresh, view=view)

    def _seen(self, result: CommandResult) -> dict[str, Any]:
        limit = self.config.protocol.output_chars
        return {
            "exit_code": result.exit_code,
            "timed_out": result.timed_out,
            "stdout": shown(result.stdout, result.stdout_size, limit=limit),
            "stderr": shown(result.stderr, result.stderr_size, limit=limit),
        }


def _left_until(ends: float, within_s: float) -> float:
    """Seconds until `ends`, more than 0.

    Raises:
        SandboxError: it has passed.
    """
    left = ends - time.monotonic()
    if left <= 0:
        raise SandboxError(f"the commands take longer than the {within_s:g} s that they may take here.")
    return left


def _sizes(files: Mapping[str, Content]) -> dict[str, int]:
    """Path -> size in bytes of every file."""
    items = {path: as_item(path, content) for path, content in files.items()}
    return {path: len(item.data) for path, item in items.items() if item.kind is ItemKind.FILE}


def _result_facts(result: CommandResult) -> dict[str, Any]:
    """What is recorded of a command; no times, so that a replay is identical."""
    return {
        "exit_code": result.exit_code,
        "timed_out": result.timed_out,
        "stdout_bytes": result.stdout_size,
        "stderr_bytes": result.stderr_size,
        "restarted": result.restarted,
    }


def _grade_metrics(grade: Grade) -> dict[str, float]:
    """The grade as numbers; `passed/KIND` and `total/KIND` count the assertions of one kind."""
    metrics = {
        **grade.metrics,
        "passed": float(grade.passed),
        "assertion_rate": grade.rate,
        "assertions_passed": float(grade.n_passed),
        "assertions_total": float(grade.total),
    }
    for kind in AssertionKind:
        of_kind = [verdict.passed for verdict in grade.verdicts if verdict.kind == kind.value]
        if of_kind:
            metrics |= {f"passed/{kind.value}": float(sum(of_kind)), f"total/{kind.value}": float(len(of_kind))}
    return metrics
