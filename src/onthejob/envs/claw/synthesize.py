"""Corpora of tasks, reproducible from a seed.

Task k of a corpus belongs to persona k mod 8 and has the number k // 8 there; the number says which of the persona's families
(number mod families) and which instance of it (number // families). So the corpus of 200 tasks is the beginning of the corpus of
1,000, and the same id with the same seed is always the same task.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection

from onthejob.envs.claw.families import FAMILIES
from onthejob.envs.claw.families.scene import Family, Scene
from onthejob.envs.claw.keyed_choices import Draw
from onthejob.envs.claw.lint import lint
from onthejob.envs.claw.personas import CARDS
from onthejob.envs.claw.skills import skills_of
from onthejob.envs.claw.task_schema import MAX_ASSERTIONS, ClawTask
from onthejob.errors import ConfigError, ContractError

ATTEMPTS = 40
"""Draws of one instance before a family counts as broken."""


def synthesize(count: int, *, seed: int = 0) -> list[ClawTask]:
    """The first `count` tasks of a seed: personas in turn, families in turn, no two with the same files and assertions.

    Args:
        count: >= 1; 200 and 1,000 are the usual corpora.
        seed: >= 0; other seeds are other corpora.

    Raises:
        ConfigError: `count` or `seed` is out of range.
    """
    if count < 1 or count > 100_000 or seed < 0:
        raise ConfigError(
            f"a corpus has 1 to 100000 tasks and a seed >= 0, got {count} and {seed}. Try 200 or 1000 tasks, seed 0."
        )
    seen: set[str] = set()
    tasks = []
    for k in range(count):
        families = families_of(list(CARDS)[k % len(CARDS)])
        number = k // len(CARDS)
        task = instance(families[number % len(families)], number // len(families), seed=seed, avoid=seen)
        seen.add(content_key(task))
        tasks.append(task)
    return tasks


def families_of(persona: str) -> list[Family]:
    """The families of one persona in their fixed order."""
    return [family for family in FAMILIES.values() if family.persona == persona]


def instance(family: Family, index: int, *, seed: int = 0, avoid: Collection[str] = ()) -> ClawTask:
    """One task of a family.

    Args:
        family: One of `FAMILIES`.
        index: >= 0; which instance.
        seed: >= 0; the corpus it belongs to.
        avoid: `content_key`s of tasks that it must not repeat.

    Raises:
        ContractError: The family makes no acceptable task: a defect of its build function.
    """
    reasons = ""
    for attempt in range(ATTEMPTS):
        task = _draw(family, index, seed, attempt)
        problems = lint(task)
        if not problems and content_key(task) not in avoid:
            return task
        reasons = "; ".join(map(str, problems)) or "it repeats another task"
    raise ContractError(f"family {family.name}, instance {index}, seed {seed}: no task in {ATTEMPTS} draws; the last: {reasons}")


def _draw(family: Family, index: int, seed: int, attempt: int) -> ClawTask:
    draw = Draw("claw", seed, family.name, index, attempt)
    scene = Scene(draw)
    family.build(scene, draw)
    card = CARDS[family.persona]
    for file in draw.some(card.clutter, draw.below(3)):
        scene.files.setdefault(file.path, file)
    families = families_of(family.persona)
    number = index * len(families) + families.index(family)
    corpus = f"s{seed}-" if seed else ""
    if not 1 <= len(scene.assertions) <= MAX_ASSERTIONS or scene.steps not in family.difficulty.steps:
        raise ContractError(
            f"family {family.name} has {len(scene.assertions)} assertions and {scene.steps} gold steps; allowed are "
            f"1 to {MAX_ASSERTIONS} and, for {family.difficulty} tasks, {family.difficulty.steps}. Correct its build function."
        )
    return ClawTask(
        id=f"synth-{family.persona}-{corpus}{number:02}",
        family=family.name,
        persona=card.persona,
        intent=scene.intent,
        files=tuple(scene.files[path] for path in sorted(scene.files)),
        skills=skills_of(scene.turns),
        assertions=tuple(scene.assertions),
        difficulty=family.difficulty,
        estimated_steps=scene.steps,
        gold=tuple(scene.turns),
        answers=tuple(dict.fromkeys(scene.answers)),
    )


def instance_of(task: ClawTask) -> int | None:
    """Which instance of its family a synthesized task is, or None for a task of other origin."""
    family = FAMILIES.get(task.family)
    found = re.fullmatch(r"synth-(.+?)-(?:s\d+-)?(\d+)", task.id)
    if family is None or found is None or found[1] != family.persona:
        return None
    return int(found[2]) // len(families_of(family.persona))


def content_key(task: ClawTask) -> str:
    """Equal for tasks with equal files and assertions, whatever their wording."""
    record = task.to_record()
    return _digest([record["workspace_seed"], record["verifiable_assertions"]])


def corpus_digest(tasks: Collection[ClawTask]) -> str:
    """sha256 over the records of the tasks, in order: equal for equal corpora."""
    return _digest([task.to_record() for task in tasks])


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
