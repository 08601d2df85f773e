"""What the checks of an official task need of a machine: the programs they run and the modules they import, read from their text.

A need that this machine cannot meet makes a task one that cannot be checked here, which is no score. It depends on the task and
the machine alone and never on what an agent left, so that no agent can end an episode without a grade. What a check puts
together at run time is not seen.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from onthejob.envs.claw.sandbox.hidden import hidden_folders
from onthejob.envs.claw.sandbox.inside import missing_modules, missing_programs, sources

RUNS = re.compile(rb"\bsubprocess\b|\bsystem\(|\bpopen\(|\bwhich\(")
"""Occurs in every file that runs a program by `RUNNERS`."""
IMPORTS = re.compile(rb"^[ \t]*(?:from|import)[ \t]+(.+?)(?:[ \t]import\b.*)?$", re.MULTILINE)
RUNNERS = {"run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "system", "popen", "which"}
"""Functions of subprocess, os and shutil that are given a program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What checks need besides Python and its library."""

    programs: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    """Top-level names."""

    @classmethod
    def of_all(cls, several: Iterable[Needs]) -> Needs:
        """Everything that any of them needs."""
        held = list(several)
        return cls(
            programs=frozenset(name for needs in held for name in needs.programs),
            modules=frozenset(name for needs in held for name in needs.modules),
        )

    @property
    def names(self) -> set[str]:
        """All of them as they are reported."""
        return {"python3", *self.programs, *(f"Python module {name}" for name in self.modules)}

    def missing(self) -> list[str]:
        """Those that sandboxes of this machine do not have, in order of name."""
        provided = {source.name.removesuffix(".py") for source in sources()} if self.programs or self.modules else set()
        programs = missing_programs({"python3", *self.programs}, provided=provided)
        modules = missing_modules(self.modules, provided=provided, hidden=hidden_folders() if self.modules else ())
        return sorted({*programs, *(f"Python module {name}" for name in modules)})


def needs_of(checks: Mapping[str, bytes], *, own: str) -> Needs:
    """The needs of all Python files among `checks`; a file that cannot be parsed has none.

    `own` is the request and the paths of the task's files: what is named there is the agent's to make.
    """
    programs: set[str] = set()
    modules: set[str] = set()
    beside = {path.split("/")[0].removesuffix(".py") for path in checks}
    library = {*sys.stdlib_module_names, *beside}
    for path, data in checks.items():
        if not path.endswith(".py") or not (RUNS.search(data) or _imports_more(data, library)):
            continue
        try:
            tree = ast.parse(data)
        except (SyntaxError, ValueError, RecursionError):
            continue
        modules.update(_imports(tree))
        if RUNS.search(data):
            found = _Reader(tree)
            programs |= found.programs
            modules |= found.modules
    modules -= library
    return Needs(
        programs=frozenset(name for name in programs if not _is_named(name, own)),
        modules=frozenset(name for name in modules if not _is_named(name, own)),
    )


def _imports_more(data: bytes, library: Set[str]) -> bool:
    """False when all imports are of `library`: then nothing need be parsed, which takes a second per hundred files."""
    for words in IMPORTS.findall(data):
        names = {part.split()[0].split(".")[0] for part in words.decode("utf-8", "replace").split(",") if part.split()}
        if ";" in words.decode("utf-8", "replace") or not names <= library:
            return True
    return False


def _is_named(name: str, own: str) -> bool:
    """True when a file or folder of this name occurs in `own`."""
    return re.search(rf"(?<![\w-]){re.escape(name)}(\.\w|/)", own) is not None


class _Reader:
    """Programs, and modules run as such, in one file."""

    def __init__(self, tree: ast.Module) -> None:
        self.modules: set[str] = set()
        self.programs: set[str] = set()
        # A function that hands its argument on to one of them is given a program too.
        runners = RUNNERS | {
            function.name
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef) and any(_called(node) in RUNNERS for node in ast.walk(function))
        }
        assigned = _assigned(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _called(node) in runners:
                given = [*node.args[:1], *(word.value for word in node.keywords if word.arg in ("args", "cmd", "command"))]
                for value in given:
                    values = assigned.get(value.id, []) if isinstance(value, ast.Name) else [value]
                    for words in values:
                        self._add(words, text=_called(node) in RUNNERS)

    def _add(self, words: ast.expr, *, text: bool) -> None:
        """The program in a list of words, or in a command line where one is expected."""
        if isinstance(words, ast.List | ast.Tuple):
            if words.elts and all(isinstance(inner, ast.List | ast.Tuple) for inner in words.elts):
                for inner in words.elts:
                    self._add(inner, text=text)
                return
            found = [_constant(word) for word in words.elts]
            if found[:1] != [""] and found:
                self._keep(found[0])
            if "-m" in found[1:2] and len(found) > 2 and found[2]:
                self.modules.add(found[2].split(".")[0])
        elif text and (line := _constant(words)):
            try:
                first = shlex.split(line)[:1]
            except ValueError:
                return
            self._keep(first[0] if first else "")

    def _keep(self, program: str) -> None:
        # A path belongs to the workspace, but for those of the system.
        if program and not re.search(r"\s", program) and ("/" not in program or program.startswith(("/usr/", "/bin/"))):
            self.programs.add(program)


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def _assigned(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """Name -> what is assigned to it anywhere, or looped over by it."""
    found: dict[str, list[ast.expr]] = {}
    pairs: Iterable[tuple[ast.expr, ast.expr]] = [
        *((target, node.value) for node in ast.walk(tree) if isinstance(node, ast.Assign) for target in node.targets),
        *((node.target, node.iter) for node in ast.walk(tree) if isinstance(node, ast.For)),
    ]
    for target, value in pairs:
        if isinstance(target, ast.Name):
            found.setdefault(target.id, []).append(value)
    return found


def _called(node: ast.AST) -> str:
    """The last name of what a call calls; empty for everything else."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""


def _constant(node: ast.expr) -> str:
    """The text of a constant, or that before the first value of an f-string; else empty."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0] if isinstance(node.values[0], ast.Constant) else node
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
