"""Which tasks are trained on, which select checkpoints, and which are touched once. Decided before any rollout, by the id alone.

Of every family that training may see, each eight instances give five to train, one to dev and two to test; where the block
begins is shifted from family to family, so that small corpora keep the proportions too. Two kinds of families are never trained
on, and comparisons report them apart:

* twelve recipes, four for dev and eight (one per persona; three easy, three medium, two hard) for test. Their plans and some of
  their commands are new. (Those of `csv-column` and `set-parameter` are also single operations of errands.)
* sixteen new errands, eight (of the same difficulties) for dev and for test each. Every operation is known, every combination
  is new.
"""

from __future__ import annotations

from collections.abc import Collection

from onthejob.envs.claw.families import FAMILIES, errands
from onthejob.envs.claw.families.words import words_of
from onthejob.envs.claw.synthesize import content_key, instance, instance_of, synthesize
from onthejob.envs.claw.task_schema import ClawTask
from onthejob.errors import ConfigError
from onthejob.types import Split, Task

RECIPES_TEST = frozenset(
    words_of("uncited-references slow-endpoints csv-column bump-image bump-version loot-table set-parameter sort-glossary")
)
"""Recipes of which every instance is a test task. Drawn by lot, after the families of an earlier choice had been looked at."""
RECIPES_DEV = frozenset({"count-rows", "incident-bundle", "board-variant", "voice-script"})
"""Recipes of which every instance is a dev task."""
UNSEEN_TEST = RECIPES_TEST | {family.name for family in errands.NEW_TEST}
"""Families of which every instance is a test task."""
UNSEEN_DEV = RECIPES_DEV | {family.name for family in errands.NEW_DEV}
"""Families of which every instance is a dev task."""
GROWTH_FIRST = 10_000
"""Instances from here on are training tasks by which a pool grows; no corpus reaches them."""

_BLOCK = (Split.TRAIN, Split.TEST, Split.TRAIN, Split.DEV, Split.TRAIN, Split.TRAIN, Split.TEST, Split.TRAIN)


def split_of(task: ClawTask) -> Split:
    """The split of a synthesized task, from its family and instance.

    Raises:
        ConfigError: The task was not synthesized here, so that its split must be stated where it comes from.
    """
    index = instance_of(task)
    if index is None:
        raise ConfigError(
            f"task {task.id} of family {task.family!r} was not synthesized here; state its split where it is loaded."
        )
    if task.family in UNSEEN_TEST:
        return Split.TEST
    if task.family in UNSEEN_DEV:
        return Split.DEV
    if index >= GROWTH_FIRST:
        return Split.TRAIN
    return _BLOCK[(index + 3 * list(FAMILIES).index(task.family)) % len(_BLOCK)]


def is_unseen(task: ClawTask) -> bool:
    """True when the task's family is never trained on."""
    return task.family in UNSEEN_TEST | UNSEEN_DEV


def corpus(split: Split, *, count: int = 1000, seed: int = 0) -> list[ClawTask]:
    """The tasks of one split of the corpus of `count` tasks.

    Raises:
        ConfigError: As `synthesize`.
    """
    return [task for task in synthesize(count, seed=seed) if split_of(task) is split]


def growth(count: int, *, seed: int = 0, first: int = 0, avoid: Collection[ClawTask] = ()) -> list[ClawTask]:
    """More training tasks: families in turn, without those never trained on.

    Args:
        count: >= 1.
        seed: Of the corpus that grows.
        first: Skip so many, to grow again.
        avoid: Tasks that must not be repeated, usually the whole corpus.

    Raises:
        ConfigError: `count` or `first` is out of range.
    """
    if count < 1 or first < 0:
        raise ConfigError(f"growth needs count >= 1 and first >= 0, got {count} and {first}.")
    families = [family for family in FAMILIES.values() if family.name not in UNSEEN_TEST | UNSEEN_DEV]
    seen = {content_key(task) for task in avoid}
    tasks = []
    for k in range(first, first + count):
        task = instance(families[k % len(families)], GROWTH_FIRST + k // len(families), seed=seed, avoid=seen)
        seen.add(content_key(task))
        tasks.append(task)
    return tasks


def as_task(task: ClawTask, split: Split) -> Task:
    """The claw task as the loop knows it: its record is the payload, to which `family` and the split belong.

    The seed is taken from the content, because nothing in a shell episode is drawn.
    """
    return Task(id=task.id, env="claw", split=split, seed=int(content_key(task)[:8], 16), payload=task.to_record())


def claw_tasks(split: Split, *, count: int = 1000, seed: int = 0) -> list[Task]:
    """`corpus` as tasks of the loop, in corpus order."""
    return [as_task(task, split) for task in corpus(split, count=count, seed=seed)]
