"""`harbor:FOLDER`: tasks in the Harbor format (Terminal-Bench 2 and its descendants), in our sandbox instead of a container.

FOLDER is a task, or holds tasks; folders train, dev and test in it state the split. Else a task's split is drawn from its name
without difficulty and number, so that variants of one topic are never on both sides. What cannot run here is skipped with its
reason, and the verdict of a task's own tests is the reward.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.claw.env import ACTOR, ClawConfig, ClawEnvironment
from onthejob.envs.claw.episode_reward import RewardConfig
from onthejob.envs.claw.policies import idle, noop
from onthejob.envs.claw.protocol import ProtocolConfig
from onthejob.envs.claw.sandbox.sandbox_interface import MIB, Limits
from onthejob.envs.env import Env
from onthejob.envs.exchange import Reply
from onthejob.envs.harbor.container_engine import Engine, EngineName
from onthejob.envs.harbor.folder import HarborTask, task_folders, topic
from onthejob.envs.harbor.harbor_work import MARK, Images, harbor_work, load, open_images, payload_of
from onthejob.envs.harbor.packages import HERE, System, system_at
from onthejob.envs.harbor.proof import PLAYABLE, Finding, solution_script
from onthejob.envs.harbor.support import Support, read_supported
from onthejob.errors import ConfigError, ContractError
from onthejob.files import cache_dir
from onthejob.interop.content_split import drawn_split
from onthejob.types import Observation, Split, Task

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborRules:
    """How episodes are played and paid."""

    protocol: ProtocolConfig = field(
        default_factory=lambda: ProtocolConfig(max_turns=20, command_s=60.0, conversation_chars=48_000)
    )
    """Turns, time and what the agent sees; all commands together also have the task's own time."""
    reward: RewardConfig = field(default_factory=lambda: RewardConfig(turn_penalty=0.0))
    """What an episode is worth: the verdict, less what turns cost; `binary` pays 1 for a verdict of at least 1."""
    sandbox: Limits = field(
        default_factory=lambda: Limits(
            workspace_bytes=256 * MIB,
            workspace_files=16_384,
            processes=128,
            memory_bytes=1_024 * MIB,
            address_bytes=4_096 * MIB,
            file_bytes=256 * MIB,
            open_files=1_024,
        )
    )
    """What one sandbox may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTask:
    """A task of a folder."""

    id: str
    task: HarborTask | None
    """Without its files; None where it is not in the format."""
    support: Support
    split: Split


class Harbor(Env):
    """Tasks in the Harbor format in a sandbox without Docker; the reward is the verdict of each task's own tests.

    Write one bash block per turn, and TASK_COMPLETE when the task is done.
    """

    roles = (ACTOR,)
    folder: ClassVar[str] = ""
    """Of the tasks; `environment` makes a subclass of each."""
    headline = ("passed", "reward", "turns", "clean_stop", "wall_s")
    shown_metrics = ("passed", "reward", "clean_stop", "turns", "parse_errors", "commands_failed", "completion_tokens", "wall_s")
    max_new_tokens = 256
    threads = 4
    forks = "no"
    usual_group_size = 4
    open_files = 6

    allow_marked: bool = False
    """Train also on tasks whose tests may run the agent's code, so that it could write its own verdict. They are always among dev
    and test tasks, and comparisons can show them apart (grouping `tests`)."""
    validated: Path | None = None
    """Report of `onthejob tasks validate --report`: play only tasks that it found right or unproven."""
    rootfs: Path | None = None
    """Root file system that stands for the images of all tasks instead of this machine's system: a folder that debootstrap
    made, or to which an image was exported. It is never written to."""
    engine: EngineName = "none"
    """Container engine that makes the images of tasks that cannot run without it: other packages, RUN lines, bases. It only
    builds; the tasks run in the sandbox. Each image is kept in the cache."""
    rules: Annotated[HarborRules, tyro.conf.arg(name="")] = field(default_factory=HarborRules)
    """How episodes are played and paid."""

    def __post_init__(self) -> None:
        self.max_turns = self.rules.protocol.max_turns  # type: ignore[misc]
        self._opened: list[tuple[Images, ExitStack]] = []

    def open(self) -> None:
        opened = ExitStack()
        data, engine = [Path(self.folder)], engine_at(self.engine)
        images = opened.enter_context(open_images(self.rules.sandbox, data=data, rootfs=self.rootfs, engine=engine))
        self._opened.append((images, opened))

    def close(self) -> None:
        if self._opened:
            self._opened.pop()[1].close()

    def make_environment(self) -> ClawEnvironment:
        if not self._opened:
            raise ContractError("harbor makes environments while it is open: call open first, and close at the end.")
        images, _ = self._opened[-1]
        rules = self.rules
        config = ClawConfig(protocol=rules.protocol, reward=rules.reward, sandbox=rules.sandbox)
        return ClawEnvironment(config, host=images.host, work=partial(harbor_work, images=images))

    def tasks(self, split: Split) -> list[Task]:
        """The tasks of a split that can run here; the log counts the others by their reasons."""
        of_split = [one for one in self._found() if one.split is split]
        runnable = [one for one in of_split if not one.support.refusals]
        if len(runnable) < len(of_split):
            _say_refused(split, of_split)
        tasks = [_task(one.id, one.task, one.support, split) for one in runnable if one.task is not None]
        if self.validated is not None:
            playable = _playable(self.validated)
            tasks = [task for task in tasks if task.id in playable]
        marked = {task.id: task.payload[MARK] for task in tasks if MARK in task.payload}
        if split is Split.TRAIN and marked and not self.allow_marked:
            log.warning(
                "%d of %d training tasks are skipped: their tests may run the agent's code (--env.allow-marked takes them in), "
                "e.g. %s: %s", len(marked), len(tasks), *next(iter(marked.items())),
            )  # fmt: skip
            tasks = [task for task in tasks if task.id not in marked]
        if not tasks:
            raise ConfigError(
                f"{self.folder} has no task of split {split} that can be played here. "
                "`onthejob tasks validate --env harbor:FOLDER` shows why."
            )
        return tasks

    def task_splits(self) -> tuple[Split, ...]:
        there = {one.split for one in self._found() if not one.support.refusals and self._takes(one)}
        return tuple(split for split in Split if split in there)

    def _found(self) -> tuple[FoundTask, ...]:
        return found_in(self.folder, system_at(self.rootfs), None if self.engine == "none" else self.engine)

    def _takes(self, one: FoundTask) -> bool:
        return self.allow_marked or one.split is not Split.TRAIN or not one.support.mark

    def check_options(self, *, training: bool = False) -> None:
        if self.validated is not None:
            _playable(self.validated)
        check_engine(self.engine, self.rootfs, prefix="--env.")
        if not self.task_splits():
            raise ConfigError(
                f"{self.folder} has no task that can be played here. `onthejob tasks validate --env harbor:FOLDER` shows why."
            )

    def anchored(self) -> Mapping[str, Any]:
        paths = {"validated": self.validated, "rootfs": self.rootfs}
        return {name: str(path.expanduser().absolute()) for name, path in paths.items() if path is not None}

    def groupings(self) -> Mapping[str, Callable[[Task], str]]:
        return {"family": self.family, "difficulty": difficulty, "tests": tests}

    def public_facts(self, task: Task) -> Mapping[str, Any]:
        return {name: task.payload[name] for name in ("family", "difficulty") if name in task.payload}

    def players(self) -> Mapping[str, Reply]:
        return self.players_for(())

    def players_for(self, tasks: Sequence[Task]) -> Mapping[str, Reply]:
        scripts = {task.id: script for task in tasks if (script := solution_script(load(task.payload)))}
        known: dict[str, Reply] = {"gold": partial(_gold, scripts)} if scripts or not tasks else {}
        return {**known, "noop": noop, "idle": idle}

    def fingerprint(self) -> str:
        """Of all tasks' files."""
        digests = [one.task.digest if one.task else "" for one in self._found()]
        return hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:16]


def environment(path: str) -> type[Harbor]:
    """The environment of one folder."""
    folder = Path(path).expanduser().absolute()
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {path}. Name a folder of tasks in the Harbor format: harbor:FOLDER.")
    task_folders(folder)
    return _kind(str(folder))


def anchored(path: str) -> str:
    """The folder's absolute path."""
    return str(Path(path).expanduser().absolute())


@cache
def _kind(folder: str) -> type[Harbor]:
    name = "".join(char if char.isalnum() else "_" for char in Path(folder).name) or "tasks"
    doc = f"Tasks of {Path(folder).name} in the Harbor format; the reward is the verdict of each task's own tests."
    return type(name, (Harbor,), {"folder": folder, "__module__": __name__, "__doc__": doc})


def engine_at(name: EngineName) -> Engine | None:
    """The engine of a name, whose images are kept in the user's cache; None for `none`.

    Raises:
        ConfigError: it is not installed.
    """
    return None if name == "none" else Engine(name, cache_dir() / "images")


def check_engine(name: EngineName, rootfs: Path | None, *, prefix: str) -> None:
    """Refuse an engine that has nothing to do or is not there.

    Raises:
        ConfigError: says which, with `prefix` before the names of options.
    """
    if name != "none" and rootfs is not None:
        raise ConfigError(f"{prefix}rootfs stands for all images, so {prefix}engine has none to make. Leave one of them out.")
    engine_at(name)


@cache
def found_in(folder: str, system: System = HERE, engine: str | None = None) -> tuple[FoundTask, ...]:
    """The tasks of a folder, by name, read once per process, root file system and engine."""
    found = []
    for path, stated in task_folders(Path(folder)):
        task, support = read_supported(path, system, engine)
        split = stated or (Split.TRAIN if str(path) == folder else drawn_split(topic(path.name)))
        slim = None if task is None else replace(task, environment={}, tests={}, solution={})
        found.append(FoundTask(id="-".join(path.relative_to(folder).parts) or path.name, task=slim, support=support, split=split))
    return tuple(found)


def _task(name: str, task: HarborTask, support: Support, split: Split) -> Task:
    payload = payload_of(task, support.mark)
    return Task(id=name, env=Harbor.__name__.lower(), split=split, seed=int(task.digest[:8], 16), payload=payload)


def _say_refused(split: Split, found: Sequence[FoundTask]) -> None:
    reasons = Counter(str(one.support.refusals[0].reason) for one in found if one.support.refusals)
    log.warning(
        "%d of %d tasks of %s cannot run here and are skipped: %s",
        reasons.total(), len(found), split, ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common()),
    )  # fmt: skip


def _playable(report: Path) -> set[str]:
    """Names of the tasks that a report of `tasks validate` found right or unproven."""
    try:
        rows = json.loads(report.expanduser().read_text(encoding="utf-8"))["tasks"]
        return {name for name, row in rows.items() if Finding(row["finding"]) in PLAYABLE}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"--env.validated {report} is no report of `onthejob tasks validate --report`: {error}.") from error


def _gold(scripts: Mapping[str, str], seen: Observation, _seed: int) -> str:
    """Runs the task's own solution in one block, then says that it is done."""
    name = str(seen.view["task"])
    if name not in scripts:
        raise ConfigError(f"task {name!r} has no solution. Play another policy.")
    return block(scripts[name]) if seen.view["turn"] == 0 else DONE


def difficulty(task: Task) -> str:
    """As its authors say."""
    return str(task.payload.get("difficulty", "-"))


def tests(task: Task) -> str:
    """Whether the tests of a task may run the agent's code."""
    return "tests that run the agent's code" if MARK in task.payload else "tests apart from the agent's code"
