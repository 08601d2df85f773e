"""Every table of every command is readable at 80, 100 and 120 columns: nothing is cut, and no line is longer."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType

from onthejob.cli import COMMANDS, main
from onthejob.commands.terminal import table
from onthejob.evaluate.evaluations import keep_evaluation
from onthejob.record import Run
from onthejob.record.notes import Notes, write_notes

ROOT = Path(__file__).parents[2]
WIDTHS = (80, 100, 120)
PLACES = {
    "src/onthejob/cli.py",
    "src/onthejob/commands/terminal.py",
    "src/onthejob/commands/run_card.py",
    "src/onthejob/evaluate/terminal_tables.py",
}
"""Files that make tables of their own; all others use `terminal.table`. tests/evaluate shows those of the last one."""
WORDS = ("sales", "a-run-with-a-long-name-2026-11-27", "smollm2-135m", "what a person would write about it, in a sentence", "-")


def printed(part: RenderableType, width: int) -> str:
    """What a terminal of this width shows, in one line, after a check that nothing is cut or too long."""
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(part)
    return checked(capture.get(), width)


def checked(text: str, width: int) -> str:
    lines = text.splitlines()
    assert all(cell_len(line) <= width for line in lines), [line for line in lines if cell_len(line) > width]
    assert "\u2026" not in text
    return " ".join(text.split())


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for folder in ("src/onthejob", "checks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def headings() -> dict[str, tuple[str, ...]]:
    """Place -> headings of every call of `table` that states them, itself or by a constant of its module."""
    found: dict[str, tuple[str, ...]] = {}
    for path, tree in sources():
        imported = {(one.module, name.name) for one in ast.walk(tree) if isinstance(one, ast.ImportFrom) for name in one.names}
        if ("onthejob.commands.terminal", "table") not in imported:
            continue
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "table" and node.args):
                continue
            stated = constants.get(node.args[0].id) if isinstance(node.args[0], ast.Name) else node.args[0]
            if isinstance(stated, (ast.Tuple, ast.List)):
                names = [one.value if isinstance(one, ast.Constant) else "reward" for one in stated.elts]
                found[f"{path.relative_to(ROOT)}:{node.lineno}"] = tuple(str(name) for name in names)
    return found


def test_tables_are_made_in_few_places():
    """A table made elsewhere would not be in these tests."""
    made = {
        str(path.relative_to(ROOT))
        for path, tree in sources()
        if any(isinstance(node, ast.ImportFrom) and node.module == "rich.table" for node in ast.walk(tree))
    }
    assert made == PLACES


HEADINGS = headings()


def test_the_tables_of_commands_are_found():
    assert len(HEADINGS) >= 40
    assert ("scope", "metric", "newest") in HEADINGS.values()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("place", HEADINGS)
def test_every_table_shows_its_headings_and_cells_whole(place: str, width: int):
    columns = HEADINGS[place]
    rows: list[list[Any]] = []
    for number in range(3):
        words = [WORDS[(number + column) % len(WORDS)] for column in range(len(columns))]
        # Every third column holds numbers.
        rows.append([1_234_567 * (number + 1) if column % 3 == 2 else word for column, word in enumerate(words)])
    text = printed(table(columns, rows), width)
    # Where each row is a paragraph, its first cell is the paragraph's title.
    for heading in columns[1:]:
        assert in_order(heading, text), heading
    for row in rows:
        for cell in row:
            assert in_order(str(cell), text), cell


def in_order(cell: str, text: str) -> bool:
    """Whether the words of a cell stand in `text` whole and in order: other columns' words may stand between folded lines."""
    return re.search(".*?".join(re.escape(word) for word in cell.split()), text, re.DOTALL) is not None


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_word_that_fits_is_broken(data: st.DataObject):
    width = data.draw(st.sampled_from(WIDTHS))
    word = st.text("abcdefghijklmnop-_@.0123456789", min_size=1, max_size=30)
    columns = data.draw(st.lists(word, min_size=1, max_size=12))
    cells = st.one_of(st.integers(-(10**9), 10**9), st.lists(word, min_size=1, max_size=9).map(" ".join))
    rows = data.draw(st.lists(st.tuples(*(cells for _ in columns)), min_size=1, max_size=4))
    text = printed(table(columns, rows), width)
    for cell in (str(cell) for row in rows for cell in row):
        for one in cell.split():
            assert one in text or len(one) > 20, one


@pytest.fixture
def at(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Runs a command as on a terminal of a width; returns what it prints, checked, in one line."""
    monkeypatch.chdir(tmp_path)

    def run(width: int, *words: str) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        assert main([*words, "--quiet"]) in (0, 1)
        return checked(capfd.readouterr().out, width)

    return run


def recorded(folder: Path) -> None:
    """Two runs, one with a verdict and notes, and one that was stopped."""
    config = {
        "env": {"ref": "/somewhere/negotiation.py", "rounds": 4},
        "model": {"name": "smollm2-135m"},
        "init": "adapters/warm-start-of-both",
        "learner": {"lr": 5e-4, "loss": {"loss": "expected"}},
        "train": {"iterations": 2, "grouping": "branch", "best_metric": "reward", "branch": {"group_size": 8}},
    }
    for name in ("negotiation-with-a-long-name-20261127", "b"):
        with Run.create(folder, config=config, name=name) as run:
            for n in range(3 if name == "b" else 2):
                with run.iteration(n) as it:
                    it.metrics(
                        "train/buyer", {"reward": -1.25, "valid_rate": 0.9375, "kl": 0.0123, "entropy": 1.5, "groups": 96.0}
                    )
                    it.metrics("time", {"iteration_s": 1234.5})
                    it.metrics("eval", {"reward": 0.5, "best_score": 0.5, "best_iteration": 1.0})
                    it.event("note", {"why": "because"})
    for n, mean in ((0, 0.0), (2, 1.5)):
        keep_evaluation(
            folder / "b", n, "reward", {f"t{k}": {"reward": mean + k * (1 + 0.1 * n), "valid_rate": 0.5} for k in range(8)}
        )
    write_notes(
        folder / "b", Notes(tags=("for the talk", "cautious"), note="a note of some length, about what was tried here", star=True)
    )


def test_runs(at, tmp_path: Path):
    recorded(tmp_path / "runs")
    for width in WIDTHS:
        runs_at(at, width)


def runs_at(at, width: int) -> None:
    listed = at(width, "runs", "ls")
    for said in (
        "negotiation-with-a-long-name-20261127",
        "stopped",
        "ended",
        "negotiation.py",
        "better",
        "62 min",
        "for the talk",
    ):
        assert in_order(said, listed), said
    assert listed.index("better") < listed.index("negotiation-with"), "by name"
    assert at(width, "runs", "ls", "--find", "stopped").count("negotiation.py") == 1
    card = at(width, "runs", "show", "b")
    for said in ("b ended", "iteration 2 of 2, 62 min", "adapters/warm-start-of-both", "groups of 8", "expected, lr 0.0005"):
        assert said in card
    for said in ("Did training help? BETTER", "against start better +", "buyer -1.25 0.9375", "cautious", "3 note"):
        assert said in card
    assert "rounds=4" in card
    everything = at(width, "runs", "show", "b", "--metrics")
    assert "iteration_s 1,234" in everything or "iteration_s 1,235" in everything
    at(width, "runs", "show", "b", "--curve", "reward", "kl")
    at(width, "runs", "check", "b")
    at(width, "runs", "export", "b")


SHOWN = {
    "tasks list": ("tasks", "list"),
    "scenarios list": ("scenarios", "list"),
    "scenarios show": ("scenarios", "show", "churn"),
    "env list": ("env", "list"),
    "env show": ("env", "show", "office"),
    "doctor": ("doctor",),
    "compare": ("compare", "random", "heuristic", "--env.seeds", "1", "--env.days", "1", "--cache", "c.sqlite"),
    "eval": (
        *("eval", "random", "heuristic", "--env.seeds", "1", "--env.days", "2", "--per-role", "2"),
        *("--worlds", "2", "--turns", "4", "--candidates", "2", "--cache", "c.sqlite"),
    ),
    "collect": ("collect", "--env.seeds", "1", "--env.scenarios", "baseline", "--env.days", "1"),
}  # fmt: skip
"""Commands that print a table, need no model, and take seconds."""


@pytest.mark.parametrize("name", SHOWN)
def test_what_commands_print(at, name: str):
    assert name in COMMANDS
    # Wider terminals break other lines, and show the same words.
    shown = [sorted(at(width, *SHOWN[name]).replace(" \u00b7", "").split()) for width in WIDTHS]
    assert len(shown[0]) > 10
    if name not in ("doctor", "tasks list", "compare", "eval", "collect", "scenarios list"):
        assert shown[0] == shown[1] == shown[2]


def test_a_table_holds_what_its_json_holds(at, capfd: pytest.CaptureFixture[str]):
    text = at(80, "tasks", "list")
    assert main(["tasks", "list", "--json"]) == 0
    for row in json.loads(capfd.readouterr().out):
        assert all(in_order(cell, text) for cell in row.values()), row


@pytest.mark.parametrize("width", WIDTHS)
def test_the_list_of_commands(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int):
    monkeypatch.setenv("COLUMNS", str(width))
    main(["--help"])
    text = checked(capfd.readouterr().out, width)
    assert all(path in text and in_order(entry.summary, text) for path, entry in COMMANDS.items())
