"""A hosted model as an author of claw tasks: asked for one, told what is wrong with it, believed only when it is proven.

What it writes is a candidate. It becomes a task when the linter finds nothing, doing nothing fails and the gold commands pass in
a sandbox, as for `onthejob tasks validate`. The model writes the work; who asks for it, how difficult it is and under which id
and family it is kept are ours, so that nothing written can pass itself off as a family that is held out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from onthejob.envs.claw.families import FAMILIES
from onthejob.envs.claw.form import MAX_GOLD_TURNS
from onthejob.envs.claw.gold_proof import Proof
from onthejob.envs.claw.keyed_choices import Draw
from onthejob.envs.claw.lint import Fault, Problem, validate_candidate
from onthejob.envs.claw.personas import CARDS
from onthejob.envs.claw.skills import DESCRIPTIONS, Skill, skills_of
from onthejob.envs.claw.splits import split_of
from onthejob.envs.claw.synthesize import content_key, instance
from onthejob.envs.claw.task_schema import MAX_ASSERTIONS, AssertionKind, ClawTask, Difficulty, FileKind, Persona
from onthejob.errors import ProviderError
from onthejob.rollout.play import act_each
from onthejob.types import Context, Message, Policy, Sampling, Split, TextObservation

ROLE = "author"
"""Under which the author's tokens and money are noted."""
SAMPLING = Sampling(temperature=1.0, max_new_tokens=4096)
EXAMPLES = ("error-lines", "status-counts")
"""Families of which the prompt shows a training task."""
WRITTEN = ("intent", "workspace_seed", "verifiable_assertions", "estimated_steps", "gold", "answers")
"""Keys of a task's record that the author writes."""
PROBLEMS_TOLD = 8

RULES = f"""You write tasks for a shell agent that works on files. A task is one JSON object:
- intent: the request, 1 to 3 sentences, as the persona would write it. It names every file or folder that is to be made, says
  what is wanted and never how, and states no answer.
- workspace_seed.files: what is there at the start. kind "text" has content; kind "binary-stub" has size_bytes (zero bytes that
  stand for an image or a model).
- verifiable_assertions: 1 to {MAX_ASSERTIONS} statements about the files at the end; the task is passed when all hold. Kinds:
  file_exists, file_not_exists, file_contents_contain (must_contain: substrings), file_contents_match_regex (regex for Python's
  re.search; no look-around or back-references), file_unchanged. What holds already at the start has "guard": true; at least one
  must not be a guard. Assert what only the finished work has, of text files only, and so that every right solution passes.
- gold: 1 to {MAX_GOLD_TURNS} bash blocks that solve it, each run by a new `bash -c` in the workspace. Relative paths, the usual
  file commands, no network, nothing outside the workspace.
- estimated_steps: elementary commands of a plain solution: easy 1 to 3, medium 4 to 7, hard 8 to 40.
- answers: values that have to be found out (a count, a name); each is part of an assertion, and of no request or path.
Your task is run: doing nothing must fail, and gold must pass. Write the JSON object and nothing else."""


def reply_schema(context: Context | None = None) -> dict[str, Any]:
    """What a candidate must look like, for models that can be held to it: one shape for all kinds of files and assertions."""
    text, texts = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
    kinds = {"type": "string", "enum": [kind.value for kind in AssertionKind]}
    file_kinds = {"type": "string", "enum": [kind.value for kind in FileKind]}
    file = _object(path=text, kind=file_kinds, content=text, size_bytes={"type": "integer"})
    assertion = _object(kind=kinds, path=text, must_contain=texts, regex=text, guard={"type": "boolean"})
    return _object(
        intent=text,
        workspace_seed=_object(files={"type": "array", "items": file}),
        verifiable_assertions={"type": "array", "items": assertion},
        estimated_steps={"type": "integer"},
        gold=texts,
        answers=texts,
    )


def examples() -> list[ClawTask]:
    """The tasks that the prompt shows: the first training instance of each of `EXAMPLES`."""
    shown = []
    for name in EXAMPLES:
        made = (instance(FAMILIES[name], index) for index in range(8))
        shown.append(next(task for task in made if split_of(task) is Split.TRAIN))
    return shown


def system_text() -> str:
    """The same for all tasks, so that a provider can cache it."""
    records = [{key: task.to_record()[key] for key in WRITTEN} for task in examples()]
    return "\n\n".join([RULES, *(f"Example:\n{json.dumps(record, ensure_ascii=False)}" for record in records)])


@dataclass(slots=True)
class Draft:
    """One task to be written: what is asked for, and the conversation about it so far."""

    id: str
    persona: Persona
    difficulty: Difficulty
    skills: tuple[Skill, ...]
    messages: list[Message] = field(default_factory=list)

    def complete(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """The whole record of a candidate."""
        gold = written.get("gold")
        used = skills_of(gold) if isinstance(gold, list) and all(isinstance(block, str) for block in gold) else ()
        return {
            **{key: written[key] for key in WRITTEN if key in written},
            "task_id": self.id,
            "family": f"written-{self.persona.name}-{self.difficulty}",
            "persona": {"name": self.persona.name, "role": self.persona.role, "context": self.persona.context},
            "difficulty": self.difficulty.value,
            "skills_required": [skill.value for skill in used],
        }


def draft(number: int, *, seed: int) -> Draft:
    """What task `number` of a seed is to be about: personas in drawn turns, difficulty and two to four skills drawn."""
    lap, place = divmod(number, len(CARDS))
    name = Draw("written", seed, "personas", lap).some(list(CARDS), len(CARDS))[place]
    draw, card = Draw("written", seed, number), CARDS[name]
    focus = draw.some(card.focus, 2)
    others = [skill for skill in Skill if skill not in focus]
    return Draft(
        id=f"written-{name}-s{seed}-{number:03}",
        persona=card.persona,
        difficulty=draw.pick(list(Difficulty)),
        skills=(*focus, *draw.some(others, draw.below(3))),
    )


def request_text(wanted: Draft) -> str:
    """What one task is to be about."""
    steps = wanted.difficulty.steps
    lines = [
        f"Persona: {wanted.persona.role}. {wanted.persona.context}",
        f"Difficulty: {wanted.difficulty}, so estimated_steps is {steps.start} to {steps.stop - 1}.",
        "Skills that the work should take:",
        *(f"- {skill}: {DESCRIPTIONS[skill]}" for skill in wanted.skills),
    ]
    return "\n".join(lines)


@dataclass(slots=True, kw_only=True)
class Counts:
    """What became of the requests for tasks."""

    asked: int = 0
    """Candidates that were asked for."""
    accepted: int = 0
    refused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """`Fault` -> refused candidates that have it; one may have several."""
    unanswered: Counter[str] = field(default_factory=Counter)
    """How the provider failed -> how often; such a task is not asked for again."""

    def as_dict(self) -> dict[str, Any]:
        """For the manifest; the commonest reasons first."""
        figures = {"asked": self.asked, "accepted": self.accepted, "refused": self.refused}
        return {**figures, "reasons": dict(self.reasons.most_common()), "unanswered": dict(self.unanswered.most_common())}


class Author:
    """Has tasks written, checks them, and gives them back to be corrected."""

    def __init__(
        self, policy: Policy, prove: Callable[[ClawTask], Proof], *, seed: int, tries: int, known: Collection[str], jobs: int
    ) -> None:
        """Nothing is asked yet.

        Args:
            policy: reads messages and writes JSON.
            prove: runs a task with nothing done and with its gold commands; called from several threads.
            seed: of what is asked for.
            tries: candidates per task at most, >= 1.
            known: `content_key`s of tasks that must not be repeated.
            jobs: candidates that are proven at the same time.
        """
        self._policy, self._prove, self._seed, self._tries, self._jobs = policy, prove, seed, tries, jobs
        self._known = set(known)
        self._system = Message("system", system_text())
        self.counts = Counts()

    def write(self, numbers: Sequence[int]) -> list[ClawTask]:
        """The tasks of these numbers that were written and proven, in order; all are asked for at the same time."""
        made: dict[str, ClawTask] = {}
        left = [draft(number, seed=self._seed) for number in numbers]
        ids = [wanted.id for wanted in left]
        for wanted in left:
            wanted.messages = [self._system, Message("user", request_text(wanted))]
        for _ in range(self._tries):
            left = self._round(left, made)
        return [made[name] for name in ids if name in made]

    def _round(self, drafts: list[Draft], made: dict[str, ClawTask]) -> list[Draft]:
        """One candidate for every draft; those to be corrected."""
        if not drafts:
            return []
        self.counts.asked += len(drafts)
        contexts = []
        for wanted in drafts:
            observation = TextObservation(actor=ROLE, messages=wanted.messages)
            contexts.append(Context(observation=observation, messages=tuple(wanted.messages)))
        answered: list[tuple[Draft, str]] = []
        for wanted, reply in zip(drafts, act_each(self._policy, contexts, SAMPLING), strict=True):
            if isinstance(reply, ProviderError):
                self.counts.unanswered[reply.outcome] += 1
            elif isinstance(reply, Exception):
                raise reply
            else:
                answered.append((wanted, reply.text))
        read = [self._read(wanted, text) for wanted, text in answered]
        left = []
        for (wanted, text), found in zip(answered, self._proven(read), strict=True):
            if isinstance(found, ClawTask) and content_key(found) in self._known:
                found = (
                    Problem(fault=Fault.REPEATED, message="its files and assertions are those of another. Write a new one."),
                )
            if isinstance(found, ClawTask):
                self.counts.accepted += 1
                self._known.add(content_key(found))
                made[wanted.id] = found
                continue
            self.counts.refused += 1
            self.counts.reasons.update({problem.fault.value for problem in found})
            wanted.messages += [Message("assistant", text), Message("user", correction(found))]
            left.append(wanted)
        return left

    def _read(self, wanted: Draft, text: str) -> ClawTask | tuple[Problem, ...]:
        written = json_object(text)
        if written is None:
            return (Problem(fault=Fault.FORM, message="there is no JSON object in the reply. Write one and nothing else."),)
        return validate_candidate(wanted.complete(written))

    def _proven(self, read: Sequence[ClawTask | tuple[Problem, ...]]) -> list[ClawTask | tuple[Problem, ...]]:
        def proven(found: ClawTask | tuple[Problem, ...]) -> ClawTask | tuple[Problem, ...]:
            return (self._prove(found).problems or found) if isinstance(found, ClawTask) else found

        with ThreadPoolExecutor(self._jobs) as threads:
            return list(threads.map(proven, read))


def json_object(text: str) -> dict[str, Any] | None:
    """The first JSON object in a reply, fenced or not, with line breaks in its strings or not; None when there is none."""
    start = text.find("{")
    if start < 0:
        return None
    try:
        found, _ = json.JSONDecoder(strict=False).raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return found


def correction(problems: Sequence[Problem]) -> str:
    """What is wrong with a candidate, for its author."""
    told = [f"- {problem}" for problem in problems[:PROBLEMS_TOLD]]
    more = [f"- and {len(problems) - PROBLEMS_TOLD} more"] if len(problems) > PROBLEMS_TOLD else []
    return "\n".join(["The task cannot be used:", *told, *more, "Write the whole JSON object again, corrected."])


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
