"""Errands: operations on files, drawn and combined at random, so that no two of these tasks have the same plan.

The other families are recipes: one plan each, with other names and numbers. These three per persona have no plan. Each instance
draws its operations from one table, chains them (a file that one makes is often what the next works on) and says them in drawn
words. What must hold at the end is computed in Python, from the same lines, independently of the gold commands.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from onthejob.envs.claw.draw import Draw
from onthejob.envs.claw.families.desk import CONTENT, Desk, Unsuitable
from onthejob.envs.claw.families.operations import OPERATIONS, Step
from onthejob.envs.claw.families.scene import Family, Scene
from onthejob.envs.claw.schema import MAX_ASSERTIONS, Difficulty
from onthejob.errors import ContractError


@dataclass(frozen=True, slots=True)
class _Place:
    """What the workspace of a persona looks like."""

    folders: tuple[str, ...]
    stems: tuple[str, ...]


_PLACES: MappingProxyType[str, _Place] = MappingProxyType(
    {
        "academic-author": _Place(
            ("paper", "drafts", "reviews", "submission"), ("intro", "related", "cover", "quotes", "sources", "reply")
        ),
        "backend-developer": _Place(
            ("service", "config", "ops", "fixtures"), ("routes", "hosts", "jobs", "flags", "changes", "queue")
        ),
        "data-science-researcher": _Place(
            ("data", "raw", "study", "tables"), ("survey", "samples", "cities", "readings", "groups", "codes")
        ),
        "devops-engineer": _Place(
            ("var", "infra", "nodes", "backups"), ("machines", "alerts", "disks", "access", "uptime", "shifts")
        ),
        "embedded-firmware-dev": _Place(
            ("boards", "include", "bench", "release"), ("pins", "sensors", "timings", "parts", "errata", "trace")
        ),
        "indie-game-dev": _Place(
            ("assets", "levels", "text", "builds"), ("monsters", "items", "lines", "scores", "names", "credits")
        ),
        "ml-engineer": _Place(
            ("runs", "configs", "eval", "datasets"), ("labels", "losses", "prompts", "params", "steps", "splits")
        ),
        "technical-writer": _Place(("docs", "pages", "terms", "archive"), ("guide", "faq", "index", "notes", "links", "steps")),
    }
)


_TRIALS = 500
"""Operations drawn for one task, at most; more than half of them fit the files there are."""


def _errands(s: Scene, d: Draw, place: _Place, steps: int, seeds: int) -> None:
    k = Desk(s, d, folders=place.folders, stems=place.stems)
    for kind in d.some(tuple(CONTENT), seeds):
        k.seed(kind)
    done: list[Step] = []
    left = steps
    for _ in range(_TRIALS):
        trial = k.copy()
        try:
            step = d.pick(OPERATIONS)(trial)
        except Unsuitable:
            continue
        # One assertion is left for a guard.
        if len(step.commands) <= left and len(trial.touched) < MAX_ASSERTIONS:
            k = trial
            done.append(step)
            left -= len(step.commands)
            if left == 0:
                break
    else:
        raise ContractError(f"{_TRIALS} operations were drawn and {left} of {steps} commands are still missing.")
    _say(s, k, [step.clause for step in done])
    _do(s, d, done)
    _expect(s, k)


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


def _family(persona: str, place: _Place, difficulty: Difficulty) -> Family:
    name, low, high, seeds = {
        Difficulty.EASY: ("errand", 1, 3, 2),
        Difficulty.MEDIUM: ("errands", 4, 6, 3),
        Difficulty.HARD: ("round", 8, 9, 4),
    }[difficulty]

    def build(s: Scene, d: Draw) -> None:
        _errands(s, d, place, d.number(low, high), seeds)

    build.__doc__ = f"Operations drawn at random, {low} to {high} commands."
    return Family(name=f"{name}-{persona}", persona=persona, difficulty=difficulty, build=build)


# By difficulty first, so that the splits of small corpora have all of them (see `splits`).
FAMILIES = tuple(_family(persona, place, difficulty) for difficulty in Difficulty for persona, place in _PLACES.items())
