"""`onthejob scenarios list|show|lint`: the office's starting situations, which are files a user can add."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from onthejob.commands.terminal import Output, Terminal, table
from onthejob.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class List:
    """List the scenarios that ship with the package, and those that are held out from training."""

    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Print one row per scenario."""
        from onthejob.envs.office.company_state import HELD_OUT
        from onthejob.envs.office.scenarios import SHIPPED, is_held_out, load

        scenarios = [load(name) for name in (*SHIPPED, *HELD_OUT)]
        rows = [
            (
                s.name,
                s.title,
                s.pressure,
                f"${s.cash:,}",
                s.customers,
                s.leads,
                len(s.schedule),
                "held out" if is_held_out(s) else "",
            )
            for s in scenarios
        ]
        columns = ("name", "title", "pressure", "cash", "customers", "leads", "events", "training")
        terminal.result(scenarios, table(columns, rows))
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """Show one scenario: starting stocks and calendar."""

    scenario: tyro.conf.Positional[str]
    """A shipped name, or the path of a TOML file."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Print stocks, then the calendar."""
        from onthejob.envs.office.scenarios import load

        scenario = load(self.scenario)
        stocks = [(f.name, getattr(scenario, f.name)) for f in dataclasses.fields(scenario) if f.name != "schedule"]
        calendar = [(event.day, event.kind) for event in scenario.schedule]
        terminal.result(scenario, table(("stock", "at the start"), stocks), "", table(("day", "event"), calendar))
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lint:
    """Check scenario files and say in plain sentences what is wrong with them. Ends with 2 when something is."""

    files: tyro.conf.Positional[tuple[Path, ...]]
    """TOML files to check."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Print the problems per file."""
        if not self.files:
            raise ConfigError("scenarios lint needs at least one TOML file, got none. Give its path.")
        found = {str(path): problems(path) for path in self.files}
        lines = [f"{path}: {problem}" for path, listed in found.items() for problem in listed or ["ok"]]
        terminal.result(found, "\n".join(lines))
        return 2 if any(found.values()) else 0


def problems(path: Path) -> list[str]:
    """What is wrong with one scenario file; empty when nothing is."""
    from onthejob.envs.office.scenarios import lint

    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        return [f"cannot be read: {error.strerror}"]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return [f"is not valid TOML: {error}"]
    return lint(data)
