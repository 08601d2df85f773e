"""`onthejob sandbox doctor`: which layers isolate an agent's commands on this machine, and whether they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import tyro

from onthejob.checkout import checks_folder
from onthejob.commands.terminal import Output, Terminal, table
from onthejob.envs.claw.sandbox.sandbox_interface import SandboxHost
from onthejob.errors import ConfigError, SandboxError

PROGRAMS = {
    "python": "python --version",
    "pytest": "pytest --version && python -m pytest --version >/dev/null",
    "PyYAML": "python -c 'import yaml; print(yaml.__version__)'",
}
"""What public tasks and their checks use, and the command that shows its version."""
VERSION_S = 120.0
"""Seconds for one version; a first start of Python may be slow."""


class Program(NamedTuple):
    """One of `PROGRAMS`, as it was found inside."""

    name: str
    found: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """Show what isolates sandboxes here and what commands find inside, and attack them.

    Ends with 1 when there is no sandbox or an attack succeeds.

    Some attacks use a core fully for a second or two. The fork bomb and the memory hog are tried only inside control groups. A
    checkout of the project has further attacks, which are tried too.
    """

    faults: tuple[int, ...] = ()
    """Numbers of the faults to try; all by default."""
    probe_only: bool = False
    """Only show the layers; attack nothing."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Print the layers and one row per fault."""
        from onthejob.envs.claw.sandbox.faults import all_faults, try_one
        from onthejob.envs.claw.sandbox.host import BwrapHost
        from onthejob.envs.claw.sandbox.requirements import describe_bwrap, find_bwrap
        from onthejob.envs.claw.sandbox.shared_outside import shared

        faults = all_faults()
        unknown = sorted(set(self.faults) - {fault.number for fault in faults})
        if unknown:
            known = ", ".join(str(fault.number) for fault in faults)
            raise ConfigError(f"there is no fault {unknown[0]}{elsewhere()}; known: {known}.")
        if self.faults and self.probe_only:
            raise ConfigError("--faults has no effect with --probe-only. Leave one of them out.")
        try:
            host = BwrapHost()
        except SandboxError as error:
            terminal.result({"backend": None, "error": str(error)}, f"no sandbox on this machine: {error}")
            return 1
        bwrap = find_bwrap()
        bubblewrap = bwrap and describe_bwrap(bwrap)
        with host:
            layers = table(
                ("layer", "active", "how"), host.report.layers, title=f"backend: {host.report.backend}; bubblewrap {bubblewrap}"
            )
            programs = list(inside(host))
            outcomes = []
            for fault in () if self.probe_only else faults:
                if not self.faults or fault.number in self.faults:
                    outcomes.append(try_one(host, fault))
                    terminal.progress(f"{fault.number} {fault.title}: {outcomes[-1].verdict}")
        failed = [outcome for outcome in outcomes if outcome.verdict == "FAILED"]
        held = sum(outcome.verdict == "held" for outcome in outcomes)
        rows = [(outcome.number, outcome.title, outcome.verdict, outcome.seconds, outcome.detail) for outcome in outcomes]
        found = table(("fault", "title", "verdict", "seconds", "detail"), rows)
        verdict = f"{held} held, {len(failed)} failed, {len(outcomes) - held - len(failed)} not tried{elsewhere()}"
        data = {
            "backend": host.report.backend,
            "bubblewrap": bubblewrap,
            "layers": [layer._asdict() for layer in host.report.layers],
            "inside": [program._asdict() for program in programs],
            "shared": [one._asdict() for one in shared()],
            "faults": outcomes,
            "passed": not failed,
        }
        shown = table(("inside", "found", "version"), programs)
        others = table(("not of one sandbox alone", "shared by", "effect"), shared())
        terminal.result(data, layers, "", shown, "", others, *(() if self.probe_only else ("", found, verdict)))
        return 1 if failed else 0


def elsewhere() -> str:
    """A remark on attacks that this installation does not have; empty in a checkout."""
    return "" if checks_folder() is not None else " (further attacks are in checks/sandbox of the project's repository)"


def inside(host: SandboxHost) -> Iterator[Program]:
    """What a command finds of `PROGRAMS`. Without one, official tasks whose checks need it cannot be checked."""
    with host.open({}) as sandbox:
        for name, command in PROGRAMS.items():
            result = sandbox.run(command, timeout_s=VERSION_S)
            said = (result.stdout if result.exit_code == 0 else result.stderr).decode("utf-8", "replace").strip().splitlines()
            yield Program(name, result.exit_code == 0, said[-1] if said else f"exit code {result.exit_code}")
