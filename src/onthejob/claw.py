"""The claw as an `Env`: which corpus is played under which rules, in sandboxes that live as long as it is open."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from onthejob.envs.claw.env import ACTOR, ClawConfig, ClawEnvironment
from onthejob.envs.claw.official import MARK, checkable
from onthejob.envs.claw.policies import Gold, idle, noop
from onthejob.envs.claw.splits import RECIPES_DEV, RECIPES_TEST, UNSEEN_DEV, UNSEEN_TEST, as_task, claw_tasks, growth, split_of
from onthejob.envs.claw.synthesize import instance_of, synthesize
from onthejob.envs.claw.task_schema import load_tasks
from onthejob.envs.env import Env
from onthejob.envs.exchange import Reply
from onthejob.errors import ConfigError, ContractError
from onthejob.evaluate.cache import source_fingerprint
from onthejob.rollout.pool import Grow, family_of
from onthejob.types import Rubric, Split, Task

if TYPE_CHECKING:
    from onthejob.envs.claw.sandbox import SandboxHost

log = logging.getLogger(__name__)


JUDGED = Rubric(
    text="""You grade how an agent did one task in a shell, one command per turn. Judge only how well it serves the task shown.
5: does the whole task with few commands, and says that it is done as soon as it is
4: does the whole task, with needless commands or later than it could
3: does a part of the task, or all of it and something that was not asked for
2: hardly gets anywhere, repeats what failed, or says that it is done when it is not
1: does nothing for the task, harms the files, or is no work at all""",
    unit="episode",
    who="agent",
    what="transcript",
    situation="Write the number of lines of notes/todo.txt, and nothing else, into count.txt. Files: notes/todo.txt (120 bytes).",
    good="```bash\nwc -l < notes/todo.txt > count.txt && cat count.txt\n```\nexit code: 0\nstdout:\n4\n\nTASK_COMPLETE",
)


class Claw(Env):
    """File work in a bash shell; the reward is the share of assertions about its files that hold, less a cost per turn.

    Write one bash block per turn, and TASK_COMPLETE when the task is done. Commands run in a sandbox.
    """

    roles = (ACTOR,)
    shown_metrics = (
        "passed",
        "assertion_rate",
        "clean_stop",
        "turns",
        "parse_errors",
        "commands_failed",
        "completions/clipped_ratio",
        "completion_tokens",
        "wall_s",
        "reward",
    )
    headline = ("passed", "assertion_rate", "turns", "clean_stop", "wall_s")
    max_new_tokens = 192
    threads = 4
    forks = "no"
    usual_group_size = 4
    judge_rubric = JUDGED
    # A sandbox is a socket, a workspace, a process, and two pipes when it starts.
    open_files = 6
    own_commands = MappingProxyType(
        {"Play": "onthejob.commands.play_claw:PlayClaw", "Collect": "onthejob.commands.collect_claw:CollectClaw"}
    )

    count: int = 1000
    """Tasks of the synthesized corpus, over the three splits; 200 and 1000 are the usual ones."""
    seed: int = 0
    """Seed of the synthesized corpus."""
    folder: Path | None = None
    """Take train.jsonl, dev.jsonl and test.jsonl from this folder (see `tasks synth`) instead of synthesizing them; a command
    needs only the splits that it plays."""
    official: Path | None = None
    """Play the official ClawGym tasks below this folder instead: it holds clawgym_train and clawgym_eval."""
    checks_run_agent_code: bool = False
    """Train also on official tasks whose checks may run the agent's code with their own rights, so that it could write its own
    grade. They are always among dev and test tasks, and comparisons can show them apart (grouping `checks`)."""
    growth: int = 104
    """Training tasks by which the pool grows when it has nothing more to teach; 0 never grows."""
    rounds: int = 4
    """How often it may grow; then the run ends as converged."""
    unsafe: bool = False
    """Run commands as plain subprocesses, without any isolation. Only on a machine that is itself disposable."""
    rules: Annotated[ClawConfig, tyro.conf.arg(name="")] = field(default_factory=ClawConfig)
    """How episodes are played, graded and paid."""

    def __post_init__(self) -> None:
        self.max_turns = self.rules.protocol.max_turns  # type: ignore[misc]
        self._hosts: list[tuple[SandboxHost, ExitStack]] = []

    def open(self) -> None:
        from onthejob.envs.claw.sandbox import open_host

        opened = ExitStack()
        self._hosts.append((opened.enter_context(open_host(unsafe=self.unsafe, data=self.data)), opened))

    def close(self) -> None:
        if self._hosts:
            self._hosts.pop()[1].close()

    def make_environment(self) -> ClawEnvironment:
        if not self._hosts:
            raise ContractError("the claw makes environments while it is open: call open first, and close at the end.")
        return ClawEnvironment(self.rules, host=self._hosts[-1][0])

    def full_fingerprint(self) -> str:
        if type(self) is not Claw:
            return ""
        return source_fingerprint(ClawEnvironment, settings=f"{self.rules!r} unsafe={self.unsafe}")

    @property
    def data(self) -> list[Path]:
        """Folders with tasks, which no command of an agent may see."""
        return [folder for folder in (self.folder, self.official) if folder is not None]

    def anchored(self) -> Mapping[str, Any]:
        folders = {"folder": self.folder, "official": self.official}
        return {name: str(path.expanduser().absolute()) for name, path in folders.items() if path is not None}

    def check_options(self, *, training: bool = False) -> None:
        if self.folder is not None and self.official is not None:
            raise ConfigError("--env.folder and --env.official both say which tasks. Leave one of them out.")
        other = "--env.folder" if self.folder is not None else "--env.official" if self.official is not None else ""
        if other and (self.count, self.seed) != (Claw().count, Claw().seed):
            raise ConfigError(f"--env.count and --env.seed have no effect with {other}. Leave them out.")
        if self.official is not None and (self.growth, self.rounds) != (Claw().growth, Claw().rounds):
            raise ConfigError("--env.growth and --env.rounds have no effect with --env.official, whose tasks are all there are.")
        if self.unsafe and self.rules.protocol.persistent_shell:
            raise ConfigError("--env.protocol.persistent-shell needs a sandbox. Leave it or --env.unsafe out.")
        if self.checks_run_agent_code and self.official is None:
            raise ConfigError("--env.checks-run-agent-code has no effect without --env.official. Leave it out.")
        if not 1 <= self.count <= 100_000 or self.seed < 0 or self.growth < 0 or self.rounds < 0:
            got = f"{self.count}, {self.seed}, {self.growth} and {self.rounds}"
            raise ConfigError(f"claw needs count in 1..100000, and seed, growth and rounds >= 0; got {got}.")
        for path in (self.folder, self.official):
            if path is not None and not path.is_dir():
                raise ConfigError(f"{path} is not a folder. Name one that holds the tasks.")
        if not self.task_splits():
            raise ConfigError(f"{self.folder} holds none of {', '.join(f'{split}.jsonl' for split in Split)}. Write one of them.")

    def tasks(self, split: Split) -> list[Task]:
        if self.official is not None:
            found = self._official(self.official, split)
        elif self.folder is not None:
            found = from_file(self.folder / f"{split}.jsonl", split)
        else:
            found = claw_tasks(split, count=self.count, seed=self.seed)
        if not found:
            raise ConfigError(f"there is no task of split {split} among these. Take a larger --env.count, or another folder.")
        return found

    def task_splits(self) -> tuple[Split, ...]:
        """Splits that have tasks: of a folder those with a file."""
        if self.folder is None:
            return tuple(Split)
        folder = self.folder
        return tuple(split for split in Split if (folder / f"{split}.jsonl").is_file())

    def _official(self, root: Path, split: Split) -> list[Task]:
        """The official tasks that can be checked here; the log counts the others by what they lack."""
        found, lacking = checkable(root, split)
        if lacking:
            counts = Counter(need for needs in lacking.values() for need in needs)
            log.warning(
                "%d of %d official tasks of %s cannot be checked here and are skipped; sandboxes of this machine lack %s",
                len(lacking),
                len(found) + len(lacking),
                split,
                ", ".join(f"{need} ({count})" for need, count in counts.most_common()),
            )
        if split is not Split.TRAIN or self.checks_run_agent_code:
            return found
        marked = {task.id: task.payload[MARK] for task in found if MARK in task.payload}
        if marked:
            log.warning(
                "%d of %d official training tasks are skipped: their checks may run the agent's code with their own rights "
                "(--env.checks-run-agent-code takes them in): %s",
                len(marked),
                len(found),
                "; ".join(f"{name}: {reason}" for name, reason in marked.items()),
            )
        return [task for task in found if task.id not in marked]

    def family(self, task: Task) -> str:
        return family_of(task)

    def groupings(self) -> Mapping[str, Callable[[Task], str]]:
        return {
            "persona": persona,
            "difficulty": difficulty,
            "families": seen,
            "families never trained on": novelty,
            "families and difficulty": seen_and_difficulty,
            **({} if self.official is None else {"checks": checks}),
        }

    def task_finder(self) -> Callable[[str], Task | None]:
        return Corpus(self).find

    def public_facts(self, task: Task) -> Mapping[str, Any]:
        return {key: task.payload[key] for key in PUBLIC if key in task.payload}

    def more_tasks(self) -> Grow | None:
        if self.growth == 0 or self.rounds == 0 or self.official is not None:
            return None
        return partial(more, self)

    def players(self) -> Mapping[str, Reply]:
        return self.players_for(())

    def players_for(self, tasks: Sequence[Task]) -> Mapping[str, Reply]:
        # Official tasks have no gold commands.
        solved = [task for task in tasks if "gold" in task.payload]
        known: dict[str, Reply] = {"gold": Gold(solved)} if solved or not tasks else {}
        return {**known, "noop": noop, "idle": idle}


PUBLIC = ("task_id", "family", "persona", "intent", "skills_required", "difficulty", "estimated_steps", "workspace_seed")
"""Keys of a task's record that strangers see; assertions, gold commands and answers are for the grader."""


class Corpus:
    """The training tasks of a place by id, also those by which its pool grew; synthesized when they are first asked for."""

    def __init__(self, place: Claw) -> None:
        self._place = place
        self._tasks: dict[str, Task] = {}
        self._rounds = -1
        """Growths of the pool that are in `_tasks`; -1 before the corpus is."""

    def find(self, wanted: str) -> Task | None:
        """The task of this id; None when there is none."""
        while wanted not in self._tasks:
            self._rounds += 1
            found = self._place.tasks(Split.TRAIN) if self._rounds == 0 else self._grown()
            if not found:
                return None
            self._tasks |= {task.id: task for task in found}
        return self._tasks[wanted]

    def _grown(self) -> Sequence[Task]:
        grow = self._place.more_tasks()
        return grow(self._rounds) if grow is not None else ()


def from_file(path: Path, split: Split) -> list[Task]:
    """The tasks of a file, which is of this split.

    Raises:
        ConfigError: the file is no corpus, or holds a synthesized task of another split.
    """
    tasks = load_tasks(path)
    for task in tasks:
        # Of tasks that were not synthesized here, the file alone says which split they belong to.
        if instance_of(task) is not None and split_of(task) is not split:
            raise ConfigError(f"{path} holds {task.id}, which is of split {split_of(task)}. Sort the tasks with `tasks synth`.")
    return [as_task(task, split) for task in tasks]


def more(place: Claw, number: int) -> list[Task]:
    """The training tasks of the pool's growth `number` (from 1), none of them in the corpus; empty when it may grow no more."""
    if number > place.rounds:
        return []
    # The usual corpus too, whatever part of it is trained on: its held-out tasks are what policies are compared on.
    avoid = synthesize(max(place.count, Claw().count), seed=place.seed)
    if place.folder is not None:
        avoid += [task for split in place.task_splits() for task in load_tasks(place.folder / f"{split}.jsonl")]
    # From the first growth on, so that none of them is repeated either.
    made = growth(number * place.growth, seed=place.seed, avoid=avoid)
    return [as_task(task, Split.TRAIN) for task in made[-place.growth :]]


def persona(task: Task) -> str:
    """Who asks."""
    return str(task.payload.get("persona", {}).get("name", "-"))


def difficulty(task: Task) -> str:
    """`easy`, `medium` or `hard`."""
    return str(task.payload.get("difficulty", "-"))


def seen(task: Task) -> str:
    """Whether training may see tasks of its family."""
    return "families never trained on" if task.payload.get("family") in UNSEEN_TEST | UNSEEN_DEV else "families of training"


def novelty(task: Task) -> str:
    """What is new about a family that is never trained on."""
    if task.payload.get("family") in RECIPES_TEST | RECIPES_DEV:
        return "recipes: plans and commands"
    return "errands: combinations" if seen(task) == "families never trained on" else "nothing"


def checks(task: Task) -> str:
    """Whether the checks of a task may run the agent's code with their own rights."""
    return "checks that run the agent's code" if MARK in task.payload else "checks apart from the agent's code"


def seen_and_difficulty(task: Task) -> str:
    """Both: what new instances of known work are worth at each difficulty, apart from work that is new."""
    return f"{seen(task)}, {difficulty(task)}"
