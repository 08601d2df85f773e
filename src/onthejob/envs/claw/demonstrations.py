"""Conversations to imitate: gold commands as an agent would have run them, some of them not quite, with or without a clean end.

Every demonstration is played in a sandbox, so what stands between the replies is what an agent is shown. How many of them say at
the end that the task is done is a choice, because that is what a model learns of stopping: with nearly all it stops when it is
done; with two to five in a hundred (the seed's way: trajectories of a model that mostly worked on until its turns were used up)
it learns to work and never to stop.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Annotated, NamedTuple

from annotated_types import Ge, Interval

from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.claw.keyed_choices import Draw
from onthejob.envs.claw.quotes import quoted
from onthejob.envs.claw.task_schema import AssertionKind, ClawTask, FileKind
from onthejob.errors import ConfigError
from onthejob.setting_ranges import check_ranges
from onthejob.types import Environment, Message, Split, Task

MAX_DEMONSTRATIONS = 400
NEAR = 0.5
"""Share of the assertions that hold after a near miss, at least; never all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstrationConfig:
    """How many demonstrations of which kind."""

    count: Annotated[int, Interval(ge=1, le=MAX_DEMONSTRATIONS)] = 300
    """Demonstrations, 1 to 400, each of another training task."""
    clean_stops: Annotated[float, Interval(ge=0, le=1)] = 1.0
    """Share that says TASK_COMPLETE at the end; the others look around and do not. 0.02 to 0.05 is the seed's way."""
    near_misses: Annotated[float, Interval(ge=0, le=1)] = 0.1
    """Share in which one gold turn is omitted, so that most but not all assertions hold. As many as there are such tasks."""
    tail: Annotated[int, Ge(0)] = 3
    """Turns of looking around at the end of a demonstration that does not stop."""
    by_steps: bool = False
    """Choose tasks in proportion to their elementary commands, so that a demonstration shows more; else all are equally likely.
    Needs a corpus of at least twice `count` training tasks, as there is little to choose otherwise."""
    quotes: bool = False
    """Put the part of the request that is done above its commands, as a comment, so that a small model need not find it among the
    others while it writes the command."""
    per_family: Annotated[int, Ge(0)] = 0
    """So many of every family first (all, where there are fewer); what is left of `count` is chosen as above."""
    focus: tuple[str, ...] = ()
    """Families to which all that is left of `count` goes, evenly: those of which `per_family` are too few to learn them."""
    variety: bool = False
    """Take of every family those tasks first whose requests are worded unlike what is already taken. A family has a few wordings,
    and a small model fails in the ones that nothing showed it."""
    families: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Share of the families that are demonstrated, drawn by lot. Practice, which needs no demonstrations, has all of them."""
    seed: Annotated[int, Ge(0)] = 0
    """Of the choices."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.focus and not self.per_family:
            raise ConfigError("focus says where the demonstrations beyond per_family go; set per_family, e.g. 4.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One conversation, ending with a reply."""

    task: str
    family: str
    """The task's."""
    messages: tuple[Message, ...]
    stops: bool
    """It ends with TASK_COMPLETE."""
    near_miss: bool
    """A gold turn was omitted."""
    rate: float
    """Share of the assertions that held at its end, in [0, 1]."""

    @property
    def passed(self) -> bool:
        """True when all of them held."""
        return self.rate >= 1.0


class _Plan(NamedTuple):
    task: Task
    claw: ClawTask
    stops: bool
    near_miss: bool


def demonstrations(
    tasks: Sequence[Task],
    make_env: Callable[[], Environment],
    config: DemonstrationConfig,
    *,
    max_turns: int = 12,
    workers: int = 1,
) -> list[Demonstration]:
    """Play `config.count` demonstrations; the same arguments give the same ones, with any number of workers.

    Args:
        tasks: training tasks with gold commands.
        make_env: creates an environment.
        config: how many of which kind.
        max_turns: limit of an episode there.
        workers: demonstrations played at the same time.

    Raises:
        ConfigError: held-out tasks, fewer tasks than demonstrations (twice as many with `by_steps`), more families than
            `per_family` leaves room for, or a task without gold commands.
    """
    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(lambda plan: _demonstrate(plan, make_env, config, max_turns), _plans(tasks, config)))


def _plans(tasks: Sequence[Task], config: DemonstrationConfig) -> list[_Plan]:
    """Which tasks, and which of them end how: exact counts, drawn by lot."""
    held_out = [task for task in tasks if task.split is not Split.TRAIN]
    if held_out:
        raise ConfigError(f"demonstrations are of training tasks, got {held_out[0].id} of split {held_out[0].split}.")
    if len(tasks) < config.count:
        raise ConfigError(
            f"{config.count} demonstrations need as many training tasks, there are {len(tasks)}. Take a larger corpus."
        )
    if config.by_steps and len(tasks) < 2 * config.count:
        raise ConfigError(
            f"by_steps chooses among at least twice as many tasks, got {len(tasks)} for {config.count} demonstrations. "
            "Take a larger corpus, e.g. --env.count 3000."
        )
    known = [(task, ClawTask.from_record(task.payload, where=f"task {task.id!r}")) for task in tasks]
    names = list(dict.fromkeys(claw.family for _, claw in known))
    shown = set(Draw("families", config.seed).some(names, math.ceil(config.families * len(names))))
    chosen = _chosen([pair for pair in known if pair[1].family in shown], config)
    claws = [claw for _, claw in chosen]
    for claw in claws:
        if not claw.gold:
            raise ConfigError(f"task {claw.id} has no gold commands to demonstrate. Leave it out.")
    order = Draw("stops", config.seed).shuffled(range(config.count))
    stopping = set(order[: round(config.clean_stops * config.count)])
    several = [index for index, claw in enumerate(claws) if len(claw.gold) > 1]
    near = set(Draw("near misses", config.seed).shuffled(several)[: round(config.near_misses * config.count)])
    return [_Plan(task, claw, i in stopping, i in near) for i, (task, claw) in enumerate(chosen)]


def _chosen(tasks: Sequence[tuple[Task, ClawTask]], config: DemonstrationConfig) -> list[tuple[Task, ClawTask]]:
    """Different tasks, in drawn order."""
    draw = Draw("demonstrations", config.seed)
    if not config.by_steps and not config.per_family and not config.variety:
        return draw.some(tasks, config.count)

    def when(task: tuple[Task, ClawTask]) -> float:
        # Of clocks that tick at rates in proportion to the steps, the first to tick (Efraimidis and Spirakis 2006).
        return -math.log((draw.below(2**53) + 1) / 2**53) / (task[1].estimated_steps if config.by_steps else 1)

    order = sorted(tasks, key=when)
    if config.variety:
        order = _varied(order)
    places: Counter[str] = Counter()
    first, rest = [], []
    for task in order:
        family = task[1].family
        places[family] += 1
        if places[family] <= config.per_family:
            first.append(task)
        elif not config.focus or family in config.focus:
            # With a focus, one more of each family before a second one more; the sort below keeps the order.
            rest.append((places[family] if config.focus or config.variety else 0, task))
    if odd := sorted(set(config.focus) - places.keys()):
        raise ConfigError(f"focus: no training tasks of {', '.join(odd)}. There are {', '.join(sorted(places))}.")
    if len(first) > config.count:
        raise ConfigError(
            f"per_family {config.per_family} of {len(places)} families asks for {len(first)} demonstrations, "
            f"count allows {config.count}. "
            f"Set per_family to at most {config.count // len(places)}, or count to at least {len(first)}."
        )
    chosen = [*first, *(task for _, task in sorted(rest, key=itemgetter(0)))][: config.count]
    if len(chosen) < config.count:
        raise ConfigError(
            f"the families of focus have {len(rest)} tasks beyond per_family, count asks for {config.count - len(first)}. "
            "Take a larger corpus, e.g. --env.count 3000, or a larger per_family."
        )
    # In drawn order again: a reader of the beginning should not see the first of every family only.
    return draw.shuffled(chosen) if config.per_family or config.variety else chosen


def _varied(tasks: Sequence[tuple[Task, ClawTask]]) -> list[tuple[Task, ClawTask]]:
    """The tasks of every family in the order in which they say what none before them said; ties as given.

    What is said are pairs of neighbouring words of a sentence. Names and values, which stand in the gold commands too, are all
    the same word. A pair counts half as much each time that it was said, and a request what its pairs count on average.
    """
    families: dict[str, list[tuple[tuple[Task, ClawTask], set[tuple[str, str]]]]] = {}
    for task in tasks:
        families.setdefault(task[1].family, []).append((task, _word_pairs(task[1])))
    varied = []
    for left in families.values():
        said: Counter[tuple[str, str]] = Counter()
        while left:
            news = [sum(0.5 ** said[pair] for pair in pairs) / max(len(pairs), 1) for _, pairs in left]
            task, pairs = left.pop(news.index(max(news)))
            said.update(pairs)
            varied.append(task)
    return varied


def _word_pairs(claw: ClawTask) -> set[tuple[str, str]]:
    commands = "\n".join(claw.gold)
    pairs = set()
    for sentence in re.split(r"[.:;!?](?=\s|$)|\n", claw.intent):
        words = [word.strip(",()'\"") for word in sentence.split()]
        pairs.update(pairwise("" if word in commands else word.lower() for word in words))
    return pairs


def _demonstrate(plan: _Plan, make_env: Callable[[], Environment], config: DemonstrationConfig, max_turns: int) -> Demonstration:
    draw = Draw("demonstration", config.seed, plan.task.id)
    gold = [block(command) for command in (quoted(plan.claw.intent, plan.claw.gold) if config.quotes else plan.claw.gold)]
    env = make_env()
    try:
        if plan.near_miss:
            for left_out in draw.shuffled(range(len(gold))):
                made = _play(env, plan, [*gold[:left_out], *gold[left_out + 1 :]], draw, config, max_turns)
                if NEAR <= made.rate < 1.0:
                    return made
        # No turn could be omitted, or none was to be.
        return _play(env, plan._replace(near_miss=False), gold, draw, config, max_turns)
    finally:
        env.close()


def _play(
    env: Environment, plan: _Plan, replies: Sequence[str], draw: Draw, config: DemonstrationConfig, max_turns: int
) -> Demonstration:
    """Play `replies` and the end that the plan wants; what is graded is the workspace after the last of them."""
    observation = env.reset(plan.task)
    messages = list(observation.messages)
    room = max_turns - 1 - len(replies)
    ends = [DONE] if plan.stops else [block(_look(plan.claw, draw)) for _ in range(min(config.tail, room))]
    over = False
    for reply in (*replies, *ends):
        messages.append(Message("assistant", reply))
        step = env.step(reply)
        over = step.observation is None
        if step.observation is None:
            break
        messages += step.observation.messages
    if not over:
        env.step(DONE)
        # No reply followed what came after the last one.
        while messages[-1].role != "assistant":
            messages.pop()
    return Demonstration(
        task=plan.task.id,
        family=plan.claw.family,
        messages=tuple(messages),
        stops=messages[-1].content == DONE,
        near_miss=plan.near_miss,
        rate=env.state()["metrics"]["assertion_rate"],
    )


def _look(claw: ClawTask, draw: Draw) -> str:
    """A command that changes nothing; binary files are not read."""
    skipped = (AssertionKind.FILE_NOT_EXISTS, AssertionKind.FILE_EXISTS)
    binary = {file.path for file in claw.files if file.kind is FileKind.BINARY_STUB}
    made = [item.path for item in claw.assertions if item.kind not in skipped and item.path not in binary]
    return draw.pick(["ls", "ls -R", "find . -type f | sort", *(f"cat {shlex.quote(path)}" for path in made)])
