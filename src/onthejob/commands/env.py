"""`onthejob env new|check|list|show`: environments of your own, from the first file to a table of what they pay."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tyro

from onthejob.commands.env_options import EnvOptions, check_parsed
from onthejob.commands.named_env import Workplace
from onthejob.commands.terminal import Output, Terminal, table
from onthejob.envs.declared import LIMITS, options_of
from onthejob.envs.env import Env
from onthejob.errors import ConfigError, OnTheJobError, SandboxError
from onthejob.plugins import BUILT_IN, installed, resolve
from onthejob.types import Observation, Split


@dataclass(frozen=True, slots=True, kw_only=True)
class New:
    """Write an environment that runs as it is, and its test; then change it into your own work."""

    name: tyro.conf.Positional[str]
    """Name of the file and, in CamelCase, of the class: `my_task` gives my_task.py with MyTask, and test_my_task.py."""
    folder: Path = Path()
    """Folder of the two files."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Write both files and print the next commands."""
        from onthejob.commands.scaffold import write

        file, test = write(self.name, self.folder)
        commands = [
            f"onthejob env check {file}",
            f"python -m pytest {test}",
            f"onthejob train --env {file} --name {file.stem}",
            f"onthejob compare base {file.stem} --env {file}",
        ]
        lines = [f"wrote {file} and {test}", "next:", *(f"  {command}" for command in commands)]
        terminal.result({"environment": file, "test": test, "next": commands}, "\n".join(lines))
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Play an environment in many ways and say what is wrong with it. Ends with 1 when something is.

    The environment's own options are `--env.NAME`: `onthejob env check FILE --help` shows them.
    """

    ref: tyro.conf.Positional[str]
    """An environment as `path/to/file.py:Class`, `package.module:Class` or the name that an installed package gives it."""
    own: EnvOptions = None
    """Its options."""
    tasks: int = 8
    """Training tasks that are played."""
    group: int = 8
    """Random episodes of each task; a group in which all earn the same teaches nothing."""
    limit_s: float = 60.0
    """Seconds after which no further episode begins."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    @classmethod
    def starting(cls, env: str) -> Check:
        """The defaults for `env`."""
        return cls(ref=env)

    def run(self, terminal: Terminal) -> int:
        """Play, then print tables, warnings and errors."""
        from onthejob.commands.checking import check

        check_parsed(self.ref, self.own, "env check")
        place = Workplace(ref=self.ref, env=self.own)
        if not place.plain:
            raise ConfigError(
                f"`env check` plays reset and step of an Env, and {self.ref} brings an environment of its own. Check that with "
                "onthejob.testing.check_environment."
            )
        for option, value, least in (("--tasks", self.tasks, 1), ("--group", self.group, 2)):
            if value < least:
                raise ConfigError(f"{option} must be >= {least}, got {value}.")
        if not 0.0 < self.limit_s < float("inf"):
            raise ConfigError(f"--limit-s must be finite and > 0 seconds, got {self.limit_s}.")
        report = check(place, tasks=self.tasks, size=self.group, limit_s=self.limit_s, progress=terminal.progress)
        players = [
            (row.player, row.role, row.episodes, row.mean, row.low, row.high, row.turns, f"{row.invalid:.0%}")
            for row in report.players
        ]
        groups = [(row.role, f"{row.differing} of {row.groups}", row.size, row.spread) for row in report.groups]
        verdicts = {True: "yes", False: "no", None: "unknown"}
        cases = [(case.case, verdicts[case.ok], case.found) for case in report.cases]
        facts = [(name, value if isinstance(value, str) else f"{value:.4g}") for name, value in report.facts.items()]
        tables = [
            table(columns, rows)
            for columns, rows in (
                (("player", "role", "episodes", "reward", "lowest", "highest", "turns", "invalid"), players),
                (("role", "groups that differ", "random episodes each", "spread of rewards"), groups),
                (("case", "holds", "found"), cases),
                (("", place.name), facts),
            )
            if rows
        ]
        lines = [f"warning: {text}" for text in report.warnings] + [f"error: {text}" for text in report.errors]
        lines.append(f"{place.name}: {_count(len(report.errors), 'error')}, {_count(len(report.warnings), 'warning')}")
        data = {"ref": self.ref, "name": place.name, "roles": place.roles, **dataclasses.asdict(report)}
        terminal.result(data, *tables, *([""] if tables else []), "\n".join(lines))
        return 1 if report.errors else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class List:
    """List the built-in environments and those that installed packages offer."""

    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Print one row per environment; one that cannot be imported is listed with the reason."""
        rows = [
            {"name": name, "roles": kind.roles, "about": _first_line(kind), "from": "built in"}
            for name, kind in ((name, resolve(name)) for name in BUILT_IN)
        ]
        for name, point in installed().items():
            origin = point.value if point.dist is None else f"{point.dist.name} {point.dist.version} ({point.value})"
            try:
                found = resolve(name)
            except OnTheJobError as error:
                rows.append({"name": name, "roles": (), "about": f"cannot be used: {error}", "from": origin})
            else:
                rows.append({"name": name, "roles": tuple(found.roles), "about": _first_line(found), "from": origin})
        shown = [(row["name"], ", ".join(row["roles"]), row["about"], row["from"]) for row in rows]
        terminal.result(rows, table(("name", "roles", "about", "from"), shown))
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """Show an environment: roles, limits, options, players, tasks, and the first prompt of one task."""

    ref: tyro.conf.Positional[str]
    """As for `env check`, or `office` and `claw`."""
    own: EnvOptions = None
    """Its options."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    @classmethod
    def starting(cls, env: str) -> Show:
        """The defaults for `env`."""
        return cls(ref=env)

    def run(self, terminal: Terminal) -> int:
        """Print facts, options and the prompt."""
        check_parsed(self.ref, self.own, "env show")
        place = Workplace(ref=self.ref, env=self.own)
        place.check()
        facts: dict[str, Any] = {
            "name": place.name,
            "roles": list(place.roles),
            "max_turns": place.env.max_turns,
            "max_new_tokens": place.env.max_new_tokens,
            "threads": place.env.threads,
            "processes": place.env.processes,
            "headline": list(place.headline),
        }
        tasks = {split: _tasks(place, split) for split in Split}
        facts |= {f"tasks of {split!s}": len(found) for split, found in tasks.items()}
        facts["forks"] = _forks(place)
        facts["players"] = sorted(place.players(tasks[Split.TRAIN][:1]))
        options, helps = options_of(self.own), helps_of(type(self.own))
        asked = _asked(place, tasks)
        prompt = [] if asked is None else list(asked.messages)
        if asked is not None and asked.tools:
            facts["tools"] = [tool.name for tool in asked.tools]
        rows = [(name, ", ".join(value) or "none" if isinstance(value, list) else str(value)) for name, value in facts.items()]
        renderables: list[Any] = [table(("", _first_line(type(self.own))), rows)]
        if options:
            renderables.append(table(("option", "value", "about"), flags_of(self.own, "--env.")))
        if prompt:
            renderables += ["", "first prompt:", *(f"[{message.role}] {message.content}" for message in prompt)]
        described = {
            name: {"value": value, "about": helps.get(name, ""), "limit": name in LIMITS} for name, value in options.items()
        }
        data = {"ref": self.ref, **facts, "options": described, "prompt": [message._asdict() for message in prompt]}
        terminal.result(data, *renderables)
        return 0


def _count(number: int, word: str) -> str:
    return f"{number or 'no'} {word}{'' if number == 1 else 's'}"


def _first_line(kind: type) -> str:
    """Of a class's docstring; empty where it has none of its own."""
    written = vars(kind).get("__doc__") or ""
    # dataclass writes the signature where there is none.
    return "" if written.startswith(f"{kind.__name__}(") else written.strip().partition("\n")[0]


def _tasks(place: Workplace, split: Split) -> list[Any]:
    """The tasks of a split, which need not have any."""
    try:
        return place.tasks(split)
    except ConfigError:
        if split is Split.TRAIN:
            raise
        return []


def _forks(place: Workplace) -> str:
    from onthejob.testing.env_check import why_not_forked

    env = place.env
    if not place.plain:
        return "yes" if place.forkable else "no"
    with place.opened():
        refused = why_not_forked(env, place.tasks(Split.TRAIN)[0])
    return f"yes, by {env.forks}" if refused is None else f"no: {refused}"


def _asked(place: Workplace, tasks: Mapping[Split, list[Any]]) -> Observation | None:
    """What is asked first in the first training task; None where the machine cannot open the environment."""
    try:
        with place.opened() as make:
            env = make()
            try:
                return env.reset(tasks[Split.TRAIN][0])
            finally:
                env.close()
    except SandboxError:
        return None


def group_prefix(hint: Any, name: str) -> str:
    """What stands before the names of a group's options; nothing where tyro's `arg(name="")` puts them among those around it."""
    hidden = any(getattr(extra, "name", None) == "" for extra in getattr(hint, "__metadata__", ()))
    return "" if hidden else f"{name}."


def flags_of(options: Any, prefix: str) -> list[tuple[str, str, str]]:
    """Flag, value and help of every option, those of nested groups included."""
    found: list[tuple[str, str, str]] = []
    hints, helps = get_type_hints(type(options), include_extras=True), helps_of(type(options))
    for name, value in options_of(options).items():
        flag = f"{prefix}{name.replace('_', '-')}"
        if dataclasses.is_dataclass(value):
            found += flags_of(value, f"{prefix}{group_prefix(hints[name], name.replace('_', '-'))}")
        else:
            found.append((f"{prefix}no-{name.replace('_', '-')}" if value is True else flag, str(value), helps.get(name, "")))
    return found


def helps_of(kind: type) -> dict[str, str]:
    """Option -> the text below it or the comment behind it, as `--help` shows them."""
    found: dict[str, str] = {}
    for base in reversed([base for base in kind.__mro__ if base not in (Env, object)]):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):
            continue
        behind = {
            token.start[0]: token.string.lstrip("# ")
            for token in tokenize.generate_tokens(StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
        (written,) = ast.parse(source).body
        body = written.body if isinstance(written, ast.ClassDef) else []
        for place, node in enumerate(body):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            below = body[place + 1] if place + 1 < len(body) else None
            text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else None
            found[node.target.id] = " ".join(str(text).split()) if text else behind.get(node.end_lineno or 0, "")
    return found
