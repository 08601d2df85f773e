"""`onthejob sandbox doctor`: which layers isolate an agent's commands on this machine, and whether they hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import tyro

from onthejob.commands.terminal import Output, Terminal, table
from onthejob.errors import ConfigError, SandboxError


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """Show what isolates sandboxes here, and attack them. Ends with 1 when there is no sandbox or an attack succeeds.

    Some attacks use a core fully for a second or two. The fork bomb and the memory hog are tried only inside control groups.
    """

    faults: tuple[int, ...] = ()
    """Numbers of the faults to try; all by default."""
    probe_only: bool = False
    """Only show the layers; attack nothing."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Print the layers and one row per fault."""
        from onthejob.envs.claw.sandbox.faults import FAULTS, try_one
        from onthejob.envs.claw.sandbox.host import BwrapHost

        unknown = sorted(set(self.faults) - {fault.number for fault in FAULTS})
        if unknown:
            known = ", ".join(str(fault.number) for fault in FAULTS)
            raise ConfigError(f"there is no fault {unknown[0]}; known: {known}.")
        if self.faults and self.probe_only:
            raise ConfigError("--faults has no effect with --probe-only. Leave one of them out.")
        try:
            host = BwrapHost()
        except SandboxError as error:
            terminal.result({"backend": None, "error": str(error)}, f"no sandbox on this machine: {error}")
            return 1
        with host:
            layers = table(("layer", "active", "how"), host.report.layers, title=f"backend: {host.report.backend}")
            outcomes = []
            for fault in () if self.probe_only else FAULTS:
                if not self.faults or fault.number in self.faults:
                    outcomes.append(try_one(host, fault))
                    terminal.progress(f"{fault.number} {fault.title}: {outcomes[-1].verdict}")
        failed = [outcome for outcome in outcomes if outcome.verdict == "FAILED"]
        held = sum(outcome.verdict == "held" for outcome in outcomes)
        rows = [(outcome.number, outcome.title, outcome.verdict, outcome.seconds, outcome.detail) for outcome in outcomes]
        found = table(("fault", "title", "verdict", "seconds", "detail"), rows)
        verdict = f"{held} held, {len(failed)} failed, {len(outcomes) - held - len(failed)} not tried"
        data = {
            "backend": host.report.backend,
            "layers": [layer._asdict() for layer in host.report.layers],
            "faults": outcomes,
            "passed": not failed,
        }
        terminal.result(data, layers, *(() if self.probe_only else ("", found, verdict)))
        return 1 if failed else 0
