"""`onthejob office gates`: measures whether the office can be trained on, prints what was found, and fails when a gate fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from onthejob.commands.cores import usable_cores
from onthejob.commands.outputs import check_writable
from onthejob.commands.terminal import Output, Terminal, duration_text, table
from onthejob.errors import ConfigError
from onthejob.processes import worker_pool

if TYPE_CHECKING:
    from checks.office.gates.finding import Finding

SECTION = "gates"
"""Markers of the table in a page: `<!-- gates:begin -->` and `<!-- gates:end -->`."""
PROGRESS_S = 30.0
"""Seconds between two lines of progress."""
COLUMNS = ("gate", "what", "value", "unit", "95 % interval", "needed", "holds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """Check with scripted players whether the office can be trained on. Ends with 1 when a gate fails.

    Twelve gates: order of policies, agreement of reward and outcome, exploits by one seat, influence of every role, headroom,
    variety of scenarios, worth of messages, scoping, determinism, position, signal for GRPO, books. docs/gates.md explains them.
    """

    quick: bool = False
    """Few seeds and no oracle: about two minutes on two cores. Without it the oracle alone takes fifty."""
    only: tuple[str, ...] = ()
    """Measure these gates only, by short name: order agreement deviation influence headroom variety messages scoping
    determinism position signal books luck."""
    seeds: int | None = None
    """Episodes per team and scenario; 30, or 12 with --quick."""
    influence_seeds: int | None = None
    """Episodes of the experts, ablations, muted teams and other orders of roles; 60, or 24 with --quick."""
    deviation_seeds: int | None = None
    """Episodes per exploit, seat and scenario; 30, or 3 with --quick."""
    partner_seeds: int | None = None
    """Episodes per exploit, seat and scenario among random and exploiting partners; 10, or 1 with --quick."""
    oracle_seeds: int | None = None
    """Episodes of the look-ahead oracle per scenario; 10, or none with --quick."""
    windows: int | None = None
    """Look-ahead windows per role and scenario; 6, or 1 with --quick."""
    states: int | None = None
    """States per role and scenario in which sampled actions are compared; 7, or 2 with --quick."""
    scenarios: tuple[str, ...] = ("all",)
    """Scenario names or TOML files; `all` for the shipped ones."""
    days: int = 30
    """Length of the episodes in days, 3 to 90. The gates are meant for 30."""
    workers: int | None = None
    """Processes; by default one per core, 0 measures in this one."""
    cache: Path | None = None
    """Keep what is measured in this SQLite file. Stopped and run again with it, the command measures what is missing."""
    doc: Path | None = None
    """Also write the table into this Markdown file, between its gate markers; the table of docs/gates.md was made so."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Measure, print one row per finding, and say which gates failed."""
        from checks.office.gates.finding import Statistics
        from checks.office.gates.gate import QUICK, Counts
        from checks.office.gates.measure import GATES, measure
        from checks.office.gates.measured import MeasuredJobs
        from checks.office.handbook import replace_section
        from onthejob.evaluate.statistics import paired_difference, spearman
        from onthejob.office import scenarios_named

        base = QUICK if self.quick else Counts()
        counts = Counts(
            scenarios=scenarios_named(self.scenarios),
            seeds=base.seeds if self.seeds is None else self.seeds,
            influence_seeds=base.influence_seeds if self.influence_seeds is None else self.influence_seeds,
            deviation_seeds=base.deviation_seeds if self.deviation_seeds is None else self.deviation_seeds,
            partner_seeds=base.partner_seeds if self.partner_seeds is None else self.partner_seeds,
            oracle_seeds=base.oracle_seeds if self.oracle_seeds is None else self.oracle_seeds,
            windows=base.windows if self.windows is None else self.windows,
            states=base.states if self.states is None else self.states,
            days=self.days,
        )
        unknown = [name for name in self.only if name not in GATES]
        if unknown:
            raise ConfigError(f"there is no gate {unknown[0]!r}. Give some of {', '.join(GATES)}.")
        gates = [gate for name, gate in GATES.items() if name in self.only or not self.only]
        if self.workers is not None and self.workers < 0:
            raise ConfigError(f"workers must be >= 0, got {self.workers}. Use 0 to measure in this process.")
        if self.doc is not None:
            # Before minutes of measuring: the page must have a place for the table.
            try:
                page = self.doc.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"--doc {self.doc} cannot be read: {error}. Name a page with a section for the table."
                ) from error
            check_writable(self.doc, "--doc")
            replace_section(page, SECTION, "")
        workers = usable_cores() if self.workers is None else self.workers
        start = time.monotonic()
        statistics = Statistics(partial(paired_difference, seed=0), spearman)
        with ExitStack() as opened:
            kept = None if self.cache is None else opened.enter_context(MeasuredJobs(self.cache))
            mapper = opened.enter_context(Workers(workers))
            say = _progress(terminal, start)
            findings = measure(counts, statistics, gates=gates, mapper=mapper, kept=kept, on_progress=say)
        elapsed = time.monotonic() - start
        failed = [finding for finding in findings if finding.passed is False]
        asked = sum(finding.passed is not None for finding in findings)
        verdict = f"{asked - len(failed)} of {asked} hold; {elapsed:.0f} s"
        verdict += "".join(f"\nFAILED {finding.gate}: {finding.what}" for finding in failed)
        if self.doc is not None:
            more = f"{counts.influence_seeds} for small differences, {counts.deviation_seeds} per deviation"
            more += f", {counts.partner_seeds} among strangers"
            more += f", {counts.oracle_seeds} of the oracle"
            each = f"{counts.windows} look-ahead windows and {counts.states} states per role and scenario"
            head = f"Measured with {counts.seeds} seeds per team and scenario ({more}), {each}."
            write_section(self.doc, f"{head}\n\n{markdown(findings)}")
        data = {"passed": not failed, "counts": counts, "seconds": elapsed, "findings": findings}
        terminal.result(data, table(COLUMNS, [row(finding) for finding in findings]), "", verdict)
        return 1 if failed else 0


class Workers:
    """A mapper: in this process, or over worker processes that are gone when the block ends."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]:
        if self._workers == 0:
            return map
        self._pool = worker_pool(self._workers)
        return self._pool.map

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def _progress(terminal: Terminal, start: float) -> Callable[[int, int], None]:
    """Report progress every half minute, as the first jobs are the longest, and at the end."""
    last = start

    def say(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done == total or now - last >= PROGRESS_S:
            last = now
            spent = now - start
            left = f", at most about {duration_text(spent / done * (total - done))} left" if 0 < done < total else ""
            terminal.progress(f"gates: {done} of {total} jobs, {duration_text(spent)}{left}")

    return say


def row(finding: Finding) -> tuple[Any, ...]:
    """One line of the table."""
    interval = "" if finding.low is None or finding.high is None else f"{finding.low:,.4g} to {finding.high:,.4g}"
    if finding.unit == "$" and finding.low is not None and finding.high is not None:
        interval = f"{finding.low:,.0f} to {finding.high:,.0f}"
    holds = "reported" if finding.passed is None else "yes" if finding.passed else "NO"
    return finding.gate, finding.what, finding.value, finding.unit, interval, finding.needed, holds


def markdown(findings: Sequence[Finding]) -> str:
    """The table as Markdown."""
    from onthejob.commands.terminal import cell

    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(cell(item) for item in row(finding)) + " |" for finding in findings]
    return "\n".join(lines)


def write_section(path: Path, section: str) -> None:
    """Replace what is between the gate markers of `path`.

    Raises:
        ConfigError: the markers are missing.
    """
    from checks.office.handbook import replace_section

    path.write_text(replace_section(path.read_text(encoding="utf-8"), SECTION, section), encoding="utf-8")
