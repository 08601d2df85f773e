"""Errands: operations on files, drawn and combined at random, so that no two of these tasks have the same plan.

The other families are recipes: one plan each, with other names and numbers. These three per persona have no plan. Each instance
draws its operations from one table, chains them (a file that one makes is often what the next works on) and says them in drawn
words. What must hold at the end is computed in Python, from the same lines, independently of the gold commands.

A quarter of all pairs of operations, drawn by lot, never follow one another in them, in neither order. The new errands, two
families per persona that are never trained on, consist of such pairs alone: every operation is known, every combination is new.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from types import MappingProxyType
from typing import NamedTuple

from onthejob.envs.claw.families.desk import CONTENT, Desk, Step, Unsuitable
from onthejob.envs.claw.families.operations import OPERATIONS
from onthejob.envs.claw.families.scene import Family, Scene
from onthejob.envs.claw.keyed_choices import Draw
from onthejob.envs.claw.task_schema import MAX_ASSERTIONS, Difficulty
from onthejob.errors import ContractError

EASY, MEDIUM, HARD = Difficulty


class _Place(NamedTuple):
    """What the workspace of a persona looks like, and its new errands."""

    folders: str
    """Names, separated by spaces; so are the next ones."""
    stems: str
    test: Difficulty
    """Of its new errands for test, by lot."""
    dev: Difficulty
    """Of those for dev; by lot, another difficulty than for test."""


_PLACES: MappingProxyType[str, _Place] = MappingProxyType({
    "academic-author": _Place("paper drafts reviews submission", "intro related cover quotes sources reply", EASY, HARD),
    "backend-developer": _Place("service config ops fixtures", "routes hosts jobs flags changes queue", EASY, MEDIUM),
    "data-science-researcher": _Place("data raw study tables", "survey samples cities readings groups codes", MEDIUM, EASY),
    "devops-engineer": _Place("var infra nodes backups", "machines alerts disks access uptime shifts", HARD, MEDIUM),
    "embedded-firmware-dev": _Place("boards include bench release", "pins sensors timings parts errata trace", MEDIUM, EASY),
    "indie-game-dev": _Place("assets levels text builds", "monsters items lines scores names credits", MEDIUM, EASY),
    "ml-engineer": _Place("runs configs eval datasets", "labels losses prompts params steps splits", EASY, HARD),
    "technical-writer": _Place("docs pages terms archive", "guide faq index notes links steps", HARD, MEDIUM),
})  # fmt: skip
NEW_PAIRS = frozenset(
    pair
    for pair in combinations(range(len(OPERATIONS)), 2)
    if Draw("pairs never trained on", *(OPERATIONS[place].__name__ for place in pair)).below(4) == 0
)
"""Places in `OPERATIONS`, the smaller first, of two that follow one another in new errands only."""

_TRIALS, _STARTS = 200, 25
"""Operations drawn before a plan counts as one that leads nowhere, and plans begun before a family counts as broken."""


def _errands(s: Scene, d: Draw, place: _Place, steps: int, seeds: int, new: bool) -> None:
    k = Desk(s, d, folders=place.folders.split(), stems=place.stems.split())
    for kind in d.some(tuple(CONTENT), seeds):
        k.seed(kind)
    for _ in range(_STARTS):
        if (found := _plan(k, steps, new)) is not None:
            break
    else:
        raise ContractError(f"{_STARTS} plans were begun and none came to {steps} commands.")
    k, done = found
    _say(s, k, [step.clause for step in done])
    _do(s, d, done)
    _expect(s, k)


def _plan(start: Desk, steps: int, new: bool) -> tuple[Desk, list[Step]] | None:
    """Operations of together `steps` commands, and the desk after them; None when nothing fits any more."""
    k, done, left, last = start, [], steps, -1
    for _ in range(_TRIALS):
        choice = k.d.below(len(OPERATIONS))
        if done and ((min(last, choice), max(last, choice)) in NEW_PAIRS) is not new:
            continue
        trial = k.copy()
        try:
            step = OPERATIONS[choice](trial)
        except Unsuitable:
            continue
        # A new errand is a pair at least; and one assertion is left for a guard.
        most = left - 1 if new and not done else left
        if len(step.commands) <= most and len(trial.touched) < MAX_ASSERTIONS:
            k, last = trial, choice
            done.append(step)
            left -= len(step.commands)
            if left == 0:
                return k, done
    return None


def _say(s: Scene, k: Desk, clauses: list[str]) -> None:
    """One sentence per operation, or a list; that they are done in this order is said, as it matters."""
    d = k.d
    if len(clauses) == 1 or (len(clauses) <= 3 and d.below(2)):
        first = clauses[0] if clauses[0].split()[0] in k.named else clauses[0][0].upper() + clauses[0][1:]
        s.say(" ".join([f"{first}.", *(f"{d.pick(('Then', 'After that,', 'Next,'))} {clause}." for clause in clauses[1:])]))
    else:
        s.ask(("Some file work, in this order:", "Please do this, one after the other:", "These in turn:"), *clauses)


def _do(s: Scene, d: Draw, done: list[Step]) -> None:
    """Gold turns of one to three operations each."""
    bounds = [0]
    while bounds[-1] < len(done):
        bounds.append(min(len(done), bounds[-1] + d.number(1, 3)))
    for start, stop in pairwise(bounds):
        s.do(*(command for step in done[start:stop] for command in step.commands))


def _expect(s: Scene, k: Desk) -> None:
    for path in sorted(k.touched):
        if path in k.counts:
            s.value(path, k.counts[path])
        elif path in k.now:
            s.exact(path, k.now[path])
        elif path in s.files:
            s.gone(path)
    kept = [path for path in s.files if path not in k.touched]
    s.unchanged(*kept[: min(2, MAX_ASSERTIONS - len(s.assertions))])


def _family(persona: str, difficulty: Difficulty, new: bool = False) -> Family:
    name, low, high, seeds = {
        EASY: ("errand", 2 if new else 1, 3, 2),
        MEDIUM: ("errands", 4, 6, 3),
        HARD: ("round", 8, 9, 4),
    }[difficulty]

    def build(s: Scene, d: Draw) -> None:
        _errands(s, d, _PLACES[persona], d.number(low, high), seeds, new)

    how = "in combinations never trained on" if new else "at random"
    build.__doc__ = f"Operations drawn {how}, {low} to {high} commands."
    return Family(name=f"{'new-' * new}{name}-{persona}", persona=persona, difficulty=difficulty, build=build)


NEW_TEST = tuple(_family(persona, place.test, new=True) for persona, place in _PLACES.items())
NEW_DEV = tuple(_family(persona, place.dev, new=True) for persona, place in _PLACES.items())
"""New errands: those for test, those for dev."""
# By difficulty first, so that the splits of small corpora have all of them (see `splits`).
FAMILIES = (*(_family(persona, difficulty) for difficulty in Difficulty for persona in _PLACES), *NEW_TEST, *NEW_DEV)
