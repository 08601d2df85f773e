"""An option that a message names exists: advice that cannot be followed is worse than none."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from onthejob.claw import Claw
from onthejob.cli import COMMANDS, CommandEntry, command_class, parse
from onthejob.commands.env import flags_of
from onthejob.commands.env_options import typed
from onthejob.envs.env import Env
from onthejob.plugins import BUILT_IN, SCHEMES, resolve
from onthejob.setting_ranges import advice_on, declared

PACKAGE = Path(__file__).parent.parent / "src/onthejob"
CHECKS = Path(__file__).parent.parent / "checks"
GUESS = str(PACKAGE.parents[1] / "examples/guess.py")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:[.-][a-z0-9]+)*")
FOREIGN = re.compile(r"`?(?:pip install|tensorboard)\b[^`]*")
SPOKEN = {"warn", "warning", "progress", "info", "error"}
"""Methods that say something to the user, besides errors."""


def options_of(path: str, capsys: pytest.CaptureFixture[str], *envs: str) -> set[str]:
    """What the parser of a command takes, in these environments."""
    entry = COMMANDS[path]
    kind = command_class(path)
    capsys.readouterr()
    for one in [typed(kind, env) for env in envs] if entry.places else [kind]:
        with pytest.raises(SystemExit):
            parse(one, ["--help"], prog="onthejob")
    return set(OPTION.findall(capsys.readouterr().out))


def home(entry: CommandEntry) -> Path:
    """The module of a command."""
    return (CHECKS if entry.measures else PACKAGE) / "commands" / f"{entry.module}.py"


def forms() -> dict[Path, tuple[str, str]]:
    """Module in which an environment's own form of a command is -> (the command, the environment)."""
    found = {}
    for env in BUILT_IN:
        for name, ref in resolve(env).own_commands.items():
            (path,) = (path for path, entry in COMMANDS.items() if entry.name == name and entry.places)
            found[PACKAGE / (ref.partition(":")[0].removeprefix("onthejob.").replace(".", "/") + ".py")] = (path, env)
    return found


@cache
def messages(file: Path) -> tuple[tuple[int, str], ...]:
    """Line and text of every string in a raised error or in what is said to the user, and in constants that these use."""
    return tuple(_strings(ast.parse(file.read_text(encoding="utf-8"))))


def _strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        says = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SPOKEN
        if says or (isinstance(node, ast.Raise) and node.exc is not None):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def test_every_option_that_a_message_names_exists(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """In a command's own module it is an option of that command (or the message names the command), elsewhere of some command.

    In a module with an environment's own form of a command it is an option of that form.
    """
    monkeypatch.setenv("COLUMNS", "200")
    apart = forms()
    known = {path: options_of(path, capsys, *BUILT_IN, GUESS) for path in COMMANDS}
    # In the module of a command that has such forms: what it takes where there is none.
    common = {path: options_of(path, capsys, GUESS) for path in {path for path, _ in apart.values()}}
    formed = {file: options_of(path, capsys, env) for file, (path, env) in apart.items()}
    every = set().union(*known.values())
    for module in map(importlib.import_module, SCHEMES.values()):
        kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Env) and kind is not Env]
        fields = [field for kind in kinds for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
        every |= {f"--env.{field.name.replace('_', '-')}" for field in fields}
        every |= {f"--env.no-{field.name.replace('_', '-')}" for field in fields if field.default is True}
    every |= {flag for flag, _, _ in flags_of(Claw(), "--env.")}
    wrong = []
    for file in sorted([*PACKAGE.rglob("*.py"), *CHECKS.rglob("*.py")]):
        own = {path for path, entry in COMMANDS.items() if file == home(entry)}
        for line, text in messages(file):
            allowed = formed.get(file) or (set().union(*(common.get(path, known[path]) for path in own)) if own else every)
            allowed = set(allowed)
            allowed |= set().union(*(known[path] for path in COMMANDS if f"`{path}" in text or f"`onthejob {path}" in text))
            wrong += [
                f"{file.relative_to(PACKAGE.parents[1])}:{line} {name}"
                for name in OPTION.findall(FOREIGN.sub("", text))
                if name not in allowed
            ]
    assert wrong == []


def test_the_test_sees_messages():
    found = messages(PACKAGE / "rollout/branch.py")
    assert any("--branch.outcome-weight" in text for _, text in found)


CHECKED = re.compile(r'check_ranges\(self, "(--[\w.-]*)"\)')


def test_an_option_that_a_range_names_exists(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Their messages are made of the setting's name, so they are made here, for every setting with a range."""
    monkeypatch.setenv("COLUMNS", "200")
    every = set().union(*(options_of(path, capsys, *BUILT_IN) for path in COMMANDS))
    every |= {flag for flag, _, _ in flags_of(Claw(), "--env.")}
    named = set()
    for file in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(("onthejob", *file.relative_to(PACKAGE).with_suffix("").parts))
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and (option := CHECKED.search(ast.unparse(node).replace("'", '"'))):
                kind = getattr(importlib.import_module(module), node.name)
                named |= {(kind, flag) for name, _ in declared(kind) for flag in OPTION.findall(advice_on(kind, name, option[1]))}
    assert len(named) > 30
    assert {(kind.__name__, flag) for kind, flag in named if flag not in every} == set()
