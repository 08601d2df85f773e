"""`onthejob runs ls|show|check|export`: look at what was recorded. Nothing is written to the run, which may be under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import tyro

from onthejob.commands.outputs import check_folder
from onthejob.commands.run_card import card, env_text, notes_text, outcome_text, roles_text
from onthejob.commands.terminal import Output, Terminal, bytes_text, duration_text, jsonable, table
from onthejob.errors import ConfigError, RecordError

if TYPE_CHECKING:
    from onthejob.evaluate.outcomes import RunOutcome
    from onthejob.record import Damage, Run, RunSummary
    from onthejob.record.notes import Notes

RUNS = Path("runs")
SAVE = "Restore the run's folder from a copy. What is not listed has the content that was written."


def run_folder(named: Path) -> Path:
    """A run's folder by its path, or by its name in `runs/`; where there is neither, what was named."""
    inside = RUNS / named
    return inside if not named.exists() and inside.exists() else named


def existing_run(named: Path) -> Path:
    """As `run_folder`."""
    folder = run_folder(named)
    if not folder.exists():
        raise ConfigError(f"there is no run {named}: neither that folder nor {RUNS / named}. `onthejob runs ls` shows the runs.")
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Ls:
    """List the runs of a folder: how each was left, whether training helped, and what it was made of."""

    root: tyro.conf.Positional[Path] = RUNS
    """Folder that holds the runs."""
    find: str = ""
    """Only runs whose name, environment, roles, model, status, tags or note contain this text."""
    sort: Literal["name", "created", "time", "outcome"] = "name"
    """Order: by name, the newest first, the longest first, or the better ones first."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Print one row per run; one that cannot be read is listed with the reason."""
        from onthejob.evaluate.outcomes import Outcomes
        from onthejob.record import list_runs
        from onthejob.record.notes import read_notes

        # Before the first run there is no folder yet, which is no mistake; a folder that was named must exist.
        if not self.root.exists() and self.root != RUNS:
            raise ConfigError(f"there is no folder {self.root}. Name the folder that holds the runs.")
        outcomes = Outcomes(self.root)
        found = [
            _Listed(one, read_notes(one.path), outcomes.of(one.name, one.last_iteration) if one.error is None else None)
            for one in (list_runs(self.root) if self.root.exists() else [])
        ]
        listed = sorted((one for one in found if self.find.lower() in one.text.lower()), key=lambda one: one.order(self.sort))
        if self.sort == "created":
            listed.sort(key=lambda one: one.summary.created_at or "", reverse=True)
        rows = [one.row() for one in listed if one.summary.error is None]
        broken = [f"{one.summary.name}: {one.summary.error}" for one in listed if one.summary.error is not None]
        none = f"no runs in {self.root}" if not found else f"no run in {self.root} contains {self.find!r}"
        columns = ("name", "status", "outcome", "environment", "roles", "time", "iteration", "notes")
        terminal.result([one.data() for one in listed], table(columns, rows) if rows or broken else none, *broken)
        return 0


class _Listed(NamedTuple):
    """A run with what is known and written about it."""

    summary: RunSummary
    notes: Notes
    outcome: RunOutcome | None

    @property
    def text(self) -> str:
        """All that a search looks at."""
        one = self.summary
        return "\n".join((one.name, one.env, *one.roles, one.model, one.status, *self.notes.tags, self.notes.note))

    def order(self, by: str) -> tuple[float, str]:
        """Key of the order `by`, by name among equals."""
        from onthejob.evaluate.verdict import Verdict

        if by == "time":
            return -self.summary.seconds, self.summary.name
        if by == "outcome":
            ranks = [Verdict.BETTER, Verdict.NOT_SHOWN, Verdict.WORSE, Verdict.TOO_FEW]
            return float(len(ranks) if self.outcome is None else ranks.index(self.outcome.findings.answer)), self.summary.name
        return 0.0, self.summary.name

    def row(self) -> tuple[str, ...]:
        """Cells of `runs ls`."""
        one = self.summary
        state = "damaged" if one.damaged else "unverified" if one.unverified else ""
        return (
            one.name,
            f"{one.status} ({state})" if state else one.status,
            outcome_text(self.outcome),
            env_text(one.env),
            roles_text(one.roles) or "-",
            duration_text(one.seconds),
            "-" if one.last_iteration is None else str(one.last_iteration),
            notes_text(self.notes) or "-",
        )

    def data(self) -> dict[str, Any]:
        """For --json."""
        found = None if self.outcome is None else {"comparison": self.outcome.comparison, **self.outcome.findings.as_dict()}
        return {**jsonable(self.summary), "outcome": found, "notes": jsonable(self.notes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowRun:
    """Show one run on one screen: how it was left, what it was made of, whether training helped, and its newest numbers."""

    path: tyro.conf.Positional[Path]
    """The run's folder, or its name in `runs/`."""
    metrics: bool = False
    """Also show the newest value of every metric, and every adapter."""
    curve: tuple[str, ...] = ()
    """Show these metrics over the iterations instead, e.g. `--curve mean_turns stop_done kl reward`; docs/metrics.md names
    them."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Print the run's card, or curves; 1 when parts of the record are damaged."""
        from onthejob.evaluate.outcomes import Outcomes
        from onthejob.record import Run, show
        from onthejob.record.notes import read_notes

        if self.metrics and self.curve:
            raise ConfigError("--metrics has no effect with --curve, which shows chosen metrics. Leave one out.")
        folder = existing_run(self.path)
        with Run.open(folder, readonly=True, skip_damaged=True) as run:
            if self.curve:
                return self._curves(run, terminal)
            details = show(run)
        summary, notes = details.summary, read_notes(folder)
        outcome = Outcomes(folder.absolute().parent).of(summary.name, summary.last_iteration)
        metrics = [(scope, name, value) for scope, named in details.metrics.items() for name, value in named.items()]
        adapters = [(role, made[-1].name, made[-1].parent or "-", len(made)) for role, made in details.adapters.items()]
        found = None if outcome is None else {"comparison": outcome.comparison, **outcome.findings.as_dict()}
        terminal.result(
            {**jsonable(details), "outcome": found, "notes": jsonable(notes)},
            *card(details, outcome, notes),
            *([table(("scope", "metric", "newest"), metrics)] if self.metrics and metrics else []),
            *([table(("role", "adapter", "trained from", "versions"), adapters)] if self.metrics and adapters else []),
            *([table(FREED_COLUMNS, [_freed_row(one) for one in details.freed])] if details.freed else []),
            *_about_verification(details.damage, summary.unverified),
            *([] if self.metrics else [f"All newest values: onthejob runs show {self.path} --metrics"]),
        )
        return 1 if details.damage else 0

    def _curves(self, run: Run, terminal: Terminal) -> int:
        """One row per iteration, and one column per metric and scope in the order of --curve."""
        from onthejob.record import series

        known = series(run.read_metrics())
        if unknown := [name for name in self.curve if name not in {one.name for one in known}]:
            names = ", ".join(sorted({one.name for one in known})) or "none"
            raise ConfigError(f"--curve: {self.path} has no metric {unknown[0]!r}. It has {names}.")
        chosen = [one for name in dict.fromkeys(self.curve) for one in known if one.name == name]
        columns = [dict(zip(one.iterations, one.values, strict=True)) for one in chosen]
        rows = [(at, *(column.get(at) for column in columns)) for at in sorted({at for column in columns for at in column})]
        damage = tuple(run.damage)
        terminal.result(
            {"curves": [one._asdict() for one in chosen], "damage": damage},
            table(("iteration", *(f"{one.scope} {one.name}" for one in chosen)), rows),
            *_about_verification(damage, 0),
        )
        return 1 if damage else 0


FREED_COLUMNS = ("model server ended (UTC)", "why", "memory back", "of", "GPU memory back", "of", "held by")


def _freed_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    """One end of a run's model server."""

    def size(found: int | None) -> str:
        return "-" if found is None else bytes_text(max(0, found))

    held, freed = one["held"], one["freed"]
    by = ", ".join(f"{holder['name']} {bytes_text(holder['bytes'])}" for holder in one["holders"])
    sizes = (size(freed["system"]), size(held["system"]), size(freed["gpu"]), size(held["gpu"]))
    return (str(one["at"])[:19], str(one["why"]), *sizes, by or "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRun:
    """Check a run for damage: read all of it, compare with its checksums, and name every damaged part."""

    path: tyro.conf.Positional[Path]
    """The run's folder, or its name in `runs/`."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Print the damaged parts; exit code 1 when there is one."""
        from onthejob.record import check_run

        verdict = check_run(existing_run(self.path))
        state = f"{len(verdict.damage)} damaged parts" if verdict.damage else "no damage found"
        terminal.result(
            verdict,
            f"{verdict.path}: {verdict.iterations} iterations read, {state}",
            *_about_verification(verdict.damage, len(verdict.unverified)),
        )
        return 1 if verdict.damage else 0


def _about_verification(damage: Sequence[Damage], unverified: int) -> list[str]:
    """The damaged parts, and the number of iterations without checksums; empty when there are neither."""
    said = []
    if unverified:
        said.append(
            f"unverified: {unverified} iterations were recorded without checksums; a changed number in them is not noticed"
        )
    if damage:
        rows = [("-" if part.iteration is None else part.iteration, part.part, part.problem) for part in damage]
        said += [table(("iteration", "damaged part", "problem"), rows), SAVE]
    return said


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Write a run's tables (groups, turns, metrics, episodes, adapters, events) as files that other tools read."""

    path: tyro.conf.Positional[Path]
    """The run's folder, or its name in `runs/`."""
    out: Path | None = None
    """Folder of the files; default: `export` inside the run's folder."""
    format: Literal["jsonl", "parquet"] = "jsonl"
    """JSON lines, or Parquet (needs the extra `onthejob[export]`)."""
    bundles: bool = False
    """Write `trajectory_bundle.jsonl` in the place of the tables: per line one group with its K rewards, advantages and
    trajectories, which `train --from-bundles` and `sft --from-bundles` read."""
    iteration: int | None = None
    """With --bundles: only the groups of this iteration; None takes all."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Export what is not damaged, then print table and file, and what is missing; exit code 1 when something is."""
        from onthejob.record import Run, export

        if self.bundles and self.format != "jsonl":
            raise ConfigError(f"--format {self.format} has no effect with --bundles, which are JSON lines. Leave it out.")
        if self.iteration is not None and not self.bundles:
            raise ConfigError("--iteration has no effect without --bundles: tables hold all iterations. Leave it out.")
        path = existing_run(self.path)
        out = self.out or path / "export"
        check_folder(out, "--out")
        with Run.open(path, readonly=True, skip_damaged=True) as run:
            files = self._bundled(run, out) if self.bundles else export(run, out, self.format)
            damage, unverified = run.damage, len(run.unverified())
        terminal.result(
            {**files, "missing": damage},
            table(("table", "file", "size"), [(t, f, bytes_text(f.stat().st_size)) for t, f in files.items()]),
            *_about_verification(damage, unverified),
        )
        return 1 if damage else 0

    def _bundled(self, run: Run, out: Path) -> dict[str, Path]:
        from onthejob.record.bundle import FILE, write_bundles

        if self.iteration is not None and self.iteration not in run.iterations():
            raise ConfigError(f"{run.path} has no iteration {self.iteration}; its last one is {run.last_iteration()}.")
        if next(run.read_groups(self.iteration), None) is None:
            where = "" if self.iteration is None else f" in iteration {self.iteration}"
            raise ConfigError(f"{run.path} holds no group{where}. `onthejob runs show` lists what a run has.")
        file = out / FILE
        try:
            out.mkdir(parents=True, exist_ok=True)
            write_bundles(run, file, self.iteration, base=_base_of(run))
        except OSError as error:
            raise RecordError(f"cannot write {file}: {error}. Free space or choose another --out.") from error
        return {"bundles": file}


def _base_of(run: Run) -> str | None:
    """Digest of the base model's weights, from the run's adapters; None where they do not agree on one."""
    from onthejob.models.adapter_config import read_object
    from onthejob.stack import META

    found = {read_object(adapter.path / META).get("base_digest") for adapter in run.adapters()}
    return str(found.pop()) if len(found) == 1 else None
