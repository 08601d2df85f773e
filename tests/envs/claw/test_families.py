"""Every family: what its tasks ask for can be done, is not done yet, and differs from instance to instance."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from onthejob.envs.claw.families import FAMILIES, errands
from onthejob.envs.claw.families.desk import Desk
from onthejob.envs.claw.families.operations import OPERATIONS, Step
from onthejob.envs.claw.families.scene import GREETINGS, THANKS, Scene, literal
from onthejob.envs.claw.gold_proof import Proof
from onthejob.envs.claw.keyed_choices import Draw
from onthejob.envs.claw.personas import CARDS
from onthejob.envs.claw.skills import Skill
from onthejob.envs.claw.synthesize import content_key, instance, synthesize
from onthejob.envs.claw.task_schema import Assertion, AssertionKind, ClawTask, Difficulty

from .plain_bash import play


def proof(task: ClawTask, folder: Path) -> Proof:
    return Proof(noop=play(task, (), folder / "noop"), gold=play(task, task.gold, folder / "gold"))


def test_eight_personas_with_eight_recipes_three_kinds_of_errands_and_two_new_ones_each() -> None:
    assert list(CARDS) == [
        "academic-author",
        "backend-developer",
        "data-science-researcher",
        "devops-engineer",
        "embedded-firmware-dev",
        "indie-game-dev",
        "ml-engineer",
        "technical-writer",
    ]
    assert len(FAMILIES) == 104
    new = {family.name for family in (*errands.NEW_TEST, *errands.NEW_DEV)}
    for persona in CARDS:
        own = [family for family in FAMILIES.values() if family.persona == persona]
        levels = Counter(family.difficulty for family in own if family.name not in new)
        assert levels == {Difficulty.EASY: 4, Difficulty.MEDIUM: 4, Difficulty.HARD: 3}
        assert len({family.difficulty for family in own if family.name in new}) == 2
    assert all(family.summary.endswith(".") for family in FAMILIES.values())


def test_each_persona_works_with_its_focus_skills() -> None:
    for name, card in CARDS.items():
        used = {skill for f in FAMILIES.values() if f.persona == name for skill in instance(f, 0).skills}
        assert set(card.focus) <= used, (name, set(card.focus) - used)


def test_all_skills_and_assertion_kinds_occur() -> None:
    tasks = [instance(family, 0) for family in FAMILIES.values()]
    assert {skill for task in tasks for skill in task.skills} == set(Skill)
    assert {assertion.kind for task in tasks for assertion in task.assertions} == set(AssertionKind)


@pytest.mark.parametrize("name", FAMILIES)
def test_doing_nothing_fails_and_gold_passes(name: str, tmp_path: Path) -> None:
    task = instance(FAMILIES[name], 3, seed=5)
    shown = proof(task, tmp_path)
    assert not shown.problems
    # Guards aside, nothing holds before the work is done, so a partial reward is earned by work.
    guards = sum(assertion.guard for assertion in task.assertions)
    assert shown.noop.n_passed == guards < shown.noop.total
    assert guards <= 2


@pytest.mark.parametrize("name", FAMILIES)
def test_instances_differ_in_more_than_wording(name: str) -> None:
    tasks = [instance(FAMILIES[name], index) for index in range(12)]
    assert len({content_key(task) for task in tasks}) == 12
    assert len({task.intent for task in tasks}) == 12
    assert len({task.gold for task in tasks}) >= 6
    without_values = {" ".join(word for word in task.intent.split() if word.isalpha()) for task in tasks}
    assert len(without_values) >= 2, "the wording must vary"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if place % 8 else []) for place, name in enumerate(FAMILIES)]
)
def test_a_family_does_not_run_dry(name: str) -> None:
    """A hundred more instances: hardly a request comes twice, even with greeting and thanks taken off."""
    tasks = [instance(FAMILIES[name], index, seed=9) for index in range(100)]
    assert len({content_key(task) for task in tasks}) == 100
    assert len({bare(task.intent) for task in tasks}) >= 97
    assert len({task.gold for task in tasks}) >= 90


def bare(intent: str) -> str:
    """A request without greeting and thanks."""
    greeting = max((text for text in GREETINGS if intent.startswith(text)), key=len)
    thanks = max((text for text in THANKS if intent.endswith(text)), key=len)
    return intent.removeprefix(greeting).removesuffix(thanks).rstrip()


@pytest.mark.parametrize("name", FAMILIES)
def test_half_of_the_gold_does_not_pass(name: str, tmp_path: Path) -> None:
    """Every task needs its last commands: an assertion notices when the final gold line that changes something is omitted."""
    task = instance(FAMILIES[name], 1)
    lines = [line for block in task.gold for line in block.splitlines()]
    while ">" not in lines[-1] and lines[-1].startswith(("cat ", "head ", "rm have")):  # only looks, or tidies up
        lines.pop()
    assert not play(task, lines[:-1], tmp_path / "all-but-one").passed


ERRANDS = [family.name for family in errands.FAMILIES]
NEW = {family.name for family in (*errands.NEW_TEST, *errands.NEW_DEV)}


@pytest.fixture
def plan_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], list[int]]:
    """The operations of an errand, as places in their table, read from its gold commands."""
    drawn: dict[tuple[str, ...], int] = {}

    def noted(place: int, operation: Callable[[Desk], Step]) -> Callable[[Desk], Step]:
        def draw(desk: Desk) -> Step:
            step = operation(desk)
            drawn[step.commands] = place
            return step

        return draw

    def plan(name: str, index: int) -> list[int]:
        drawn.clear()
        lines = [line for block in instance(FAMILIES[name], index, seed=3).gold for line in block.splitlines()]
        found = []
        while lines:
            commands = next(made for made in drawn if tuple(lines[: len(made)]) == made)
            found.append(drawn[commands])
            del lines[: len(commands)]
        return found

    monkeypatch.setattr(errands, "OPERATIONS", [noted(*pair) for pair in enumerate(OPERATIONS)])
    return plan


def test_errands_use_every_operation(plan_of: Callable[[str, int], list[int]]) -> None:
    """In tasks that are kept: an operation whose tasks the linter refuses would be missing."""
    for names in (set(ERRANDS) - NEW, NEW):
        assert {place for name in names for index in range(6) for place in plan_of(name, index)} == set(range(len(OPERATIONS)))


def test_new_errands_consist_of_pairs_that_no_other_has(plan_of: Callable[[str, int], list[int]]) -> None:
    assert 0.2 < len(errands.NEW_PAIRS) / (len(OPERATIONS) * (len(OPERATIONS) - 1) / 2) < 0.3
    for name in ERRANDS:
        for index in range(8):
            plan = plan_of(name, index)
            news = {(min(pair), max(pair)) in errands.NEW_PAIRS for pair in pairwise(plan)}
            assert news == {True} if name in NEW else True not in news, (name, index, plan)


@pytest.mark.parametrize("name", ERRANDS[::3])
def test_the_last_command_of_an_errand_counts(name: str, tmp_path: Path) -> None:
    for index in range(8):
        task = instance(FAMILIES[name], index, seed=6)
        lines = [line for block in task.gold for line in block.splitlines()]
        assert play(task, lines, tmp_path / f"{index}-all").passed
        assert not play(task, lines[:-1], tmp_path / f"{index}-most").passed, (task.intent, lines[-1])


def test_words_of_errands_are_words_however_they_are_read() -> None:
    """A replaced or searched word occurs in no other case and in no longer word of the file."""
    desk = Desk(Scene(Draw("words")), Draw("words"), folders=("a",), stems=("b",))
    desk.make("f.txt", ["The thaw is over", "the end", "too late", "it took long", "plain words", "more"], "prose")
    assert {desk.word("f.txt") for _ in range(200)} == {"thaw", "over", "end", "late", "took", "long", "plain", "words", "more"}


def test_a_wrong_count_is_noticed(tmp_path: Path) -> None:
    """The checks are exact: a result that merely contains the right number fails."""
    task = instance(FAMILIES["count-entries"], 0)
    (answer,) = task.answers
    out = next(a.path for a in task.assertions if a.kind is AssertionKind.FILE_CONTENTS_MATCH_REGEX)
    for index, (written, right) in enumerate(
        [(answer, True), (f" {answer} ", True), (f"1{answer}", False), (f"{answer}\n0", False)]
    ):
        assert play(task, [f"printf '{written}\\n' > {out}"], tmp_path / str(index)).passed is right


def test_a_broken_gold_command_is_reported(tmp_path: Path) -> None:
    task = instance(FAMILIES["rename-figure"], 0)
    broken = dataclasses.replace(task, gold=("true",))
    (problem,) = proof(broken, tmp_path).problems
    assert "gold commands do not pass" in problem.message
    assert "file_not_exists" in problem.message
    (problem,) = Proof(noop=play(task, (), tmp_path / "again"), gold=None).problems
    assert "there are no gold commands" in problem.message
    guard = Assertion(kind=AssertionKind.FILE_UNCHANGED, path=task.files[0].path, guard=True)
    (tmp_path / "guarded").mkdir()
    (problem,) = proof(dataclasses.replace(task, assertions=(guard,), gold=("true",)), tmp_path / "guarded").problems
    assert "doing nothing passes" in problem.message


def test_exact_contents_are_exact() -> None:
    import re

    scene = Scene(Draw("x"))
    scene.exact("f", ["a.b (c) [d]*", "\\cite{x}\ty|z^$?+"])
    (assertion,) = scene.assertions
    text = "a.b (c) [d]*\n\\cite{x}\ty|z^$?+"
    for ending in ("", "\n", " \n\n"):
        assert re.search(assertion.regex, text + ending)
    for wrong in ("x" + text, text + "x", text.replace(".", ","), text.replace("\n", " "), "\n" + text, text + "\nmore"):
        assert not re.search(assertion.regex, wrong)
    assert re.fullmatch(literal("$HOME/*.txt"), "$HOME/*.txt")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_corpus_of_1000_is_proven_task_by_task(tmp_path: Path) -> None:
    wrong = {}
    for task in synthesize(1000):
        folder = tmp_path / task.id
        folder.mkdir()
        if problems := proof(task, folder).problems:
            wrong[task.id] = problems
    assert not wrong
