"""References: files, modules and entry points, and one sentence for each that names nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onthejob.errors import ConfigError
from onthejob.plugins import anchored, installed, resolve

GAME = """
from onthejob import Env

class {name}(Env):
    roles = ("player",)

    def tasks(self, split):
        return self.seeded(split)

    def reset(self, task):
        return self.ask("player", "Go.")

    def step(self, reply):
        return self.end(reward=1.0)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder from which modules are imported; afterwards they are forgotten."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def install(folder: Path, **points: str) -> None:
    """What pip leaves behind for a package with entry points."""
    info = folder / "gamepack-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gamepack\nVersion: 1.2\n", encoding="utf-8")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[onthejob.envs]", *lines]) + "\n", encoding="utf-8")


def test_a_file_with_and_without_a_class(place: Path):
    (place / "one.py").write_text(GAME.format(name="One"), encoding="utf-8")
    (place / "two.py").write_text(GAME.format(name="One") + GAME.format(name="Two"), encoding="utf-8")
    assert resolve("one.py").__name__ == "One"
    assert resolve("one.py") is resolve(str(place / "one.py:One")), "a file is imported once"
    assert resolve("two.py:Two").__name__ == "Two"
    assert anchored("one.py:One") == f"{place / 'one.py'}:One"
    assert anchored("pack.games:One") == "pack.games:One"


def test_a_file_imports_its_neighbours(place: Path):
    (place / "rules.py").write_text("HIGHEST = 7\n", encoding="utf-8")
    (place / "game.py").write_text("from rules import HIGHEST\n" + GAME.format(name="Game"), encoding="utf-8")
    assert resolve("game.py").__name__ == "Game"


def test_a_module_and_an_entry_point(place: Path):
    (place / "gamepack.py").write_text(GAME.format(name="Game") + "number = 3\n", encoding="utf-8")
    install(place, game="gamepack:Game", gone="nowhere_else:Game", wrong="gamepack:number")
    assert resolve("gamepack:Game").__name__ == "Game"
    assert {"game", "gone", "wrong"} <= set(installed())
    assert resolve("game") is resolve("gamepack:Game")
    with pytest.raises(ConfigError, match=r"gone \(nowhere_else:Game\) cannot be imported: ModuleNotFoundError"):
        resolve("gone")
    with pytest.raises(ConfigError, match=r"wrong is a int, and an environment is a subclass of onthejob\.Env"):
        resolve("wrong")
    with pytest.raises(ConfigError, match=r"known are office, claw, .*game"):
        resolve("gmae")


@pytest.mark.parametrize(
    ("ref", "text", "message"),
    [
        ("none.py", None, "there is no file none.py. `onthejob env new NAME` writes one."),
        ("a.py", "x = (\n", "a.py cannot be imported: SyntaxError: '(' was never closed"),
        ("b.py", "import os\n\n1 / 0\n", "b.py cannot be imported: ZeroDivisionError: division by zero (line 3)."),
        ("c.py", "x = 1\n", "c.py defines no subclass of onthejob.Env. Name one class: c.py:Guess."),
        ("d.py", GAME.format(name="A") + GAME.format(name="B"), "d.py defines A, B. Name one class: d.py:A."),
        ("e.py:Gmae", GAME.format(name="Game"), "e.py has no 'Gmae'; it defines Game. Correct the name after the colon."),
        ("f.py:x", "x = 1\n", "f.py:x is a int, and an environment is a subclass of onthejob.Env. Derive it."),
        ("no_such_module:Game", None, "there is no module 'no_such_module'. Install its package, or name a file."),
        ("json:Game", None, "json has no 'Game'. Correct the name after the colon."),
        ("bad module:Game", None, "--env bad module:Game names no module."),
        ("broken_one:Game", "raise RuntimeError('no')\n", "importing broken_one fails: RuntimeError: no."),
        ("nonsense", None, "there is no environment 'nonsense': known are office, claw"),
    ],
    ids=lambda value: value if isinstance(value, str) and "\n" not in value and " " not in value else "",
)
def test_what_names_nothing_is_said_in_one_sentence(ref: str, text: str | None, message: str, place: Path):
    if text is not None:
        name = ref.partition(":")[0]
        (place / (name if name.endswith(".py") else f"{name}.py")).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        resolve(ref)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_failed_is_imported_again_once_it_is_mended(place: Path):
    file = place / "late.py"
    file.write_text("1 / 0\n", encoding="utf-8")
    with pytest.raises(ConfigError):
        resolve("late.py")
    file.write_text(GAME.format(name="Late"), encoding="utf-8")
    assert resolve("late.py").__name__ == "Late"
