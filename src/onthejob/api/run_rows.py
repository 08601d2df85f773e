"""The runs of a folder as the pages list them: status, outcome, what people wrote about them; and opening one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onthejob.api.schema_runs import AgainstView, NotesAsk, NotesView, OutcomeView, RunRow
from onthejob.api.tokens import Tokens, model_of
from onthejob.errors import RecordError
from onthejob.evaluate.findings import About
from onthejob.evaluate.outcomes import Outcomes, RunDifference, RunOutcome
from onthejob.evaluate.verdict import signed, verdict
from onthejob.record import Run, RunSummary, list_runs
from onthejob.record.database import FILE
from onthejob.record.listing import short_ref
from onthejob.record.notes import Notes, read_notes, write_notes
from onthejob.record.store import check_name


class Runs:
    """The runs of one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.outcomes = Outcomes(root)
        self._tokens: dict[str, Tokens] = {}

    @contextmanager
    def open(self, name: str, *, skip_damaged: bool = False) -> Iterator[Run]:
        """One run, for reading; `skip_damaged` as in `Run.open`.

        Raises:
            RecordError: there is none of this name, or it cannot be read.
        """
        check_name(name, "run")
        with Run.open(self.root / name, readonly=True, skip_damaged=skip_damaged) as run:
            yield run

    def tokens(self, config: Mapping[str, Any]) -> Tokens:
        """The tokenizer of the run's model."""
        model = model_of(config)
        return self._tokens.setdefault(model, Tokens(model))

    def list(self) -> list[RunRow]:
        """All runs by name."""
        return [self.row(found) for found in list_runs(self.root)] if self.root.is_dir() else []

    def row(self, s: RunSummary) -> RunRow:
        """One line about a run."""
        found = self.outcomes.of(s.name, s.last_iteration) if s.error is None else None
        return RunRow(
            name=s.name,
            status=s.status,
            roles=list(s.roles),
            model=s.model,
            seconds=s.seconds,
            outcome=None if found is None else outcome_view(found),
            notes=_notes_view(read_notes(s.path)),
            env=short_ref(s.env),
            created_at=s.created_at,
            last_iteration=s.last_iteration,
            groups=s.groups,
            episodes=s.episodes,
            turns=s.turns,
            adapters=s.adapters,
            size_bytes=s.size_bytes,
            unverified=s.unverified,
            damaged=s.damaged,
            error=s.error,
        )

    def note(self, name: str, asked: NotesAsk) -> NotesView:
        """Write what people say about a run; its record stays as it is.

        Raises:
            ConfigError: a tag or the note is too long or malformed.
            RecordError: there is no such run, or its folder cannot be written.
        """
        check_name(name, "run")
        if not (self.root / name / FILE).is_file():
            raise RecordError(f"there is no run {name!r}.")
        notes = Notes(tags=tuple(asked.tags), note=asked.note, star=asked.star)
        write_notes(self.root / name, notes)
        return _notes_view(notes)


def outcome_view(found: RunOutcome) -> OutcomeView:
    """The first line of a verdict."""
    line = found.findings.of(About.RESULT)[0]
    return OutcomeView(
        word=found.findings.answer,
        against=line.subject,
        text=line.text,
        metric=found.findings.metric,
        comparison=found.comparison,
    )


def against_view(found: RunDifference) -> AgainstView:
    """A paired difference in words."""
    return AgainstView(
        word=verdict(found.estimate),
        text=signed(found.estimate),
        metric=found.metric,
        tasks=found.estimate.n,
        comparison=found.comparison,
    )


def _notes_view(notes: Notes) -> NotesView:
    return NotesView(tags=list(notes.tags), note=notes.note, star=notes.star)
