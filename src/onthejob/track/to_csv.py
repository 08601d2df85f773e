"""`FILE.csv`: the rows of episodes and turns in two files, `FILE-episodes.csv` and `FILE-turns.csv`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from onthejob.errors import TrackError
from onthejob.files import published_file
from onthejob.track.tables import EPISODES, FIRST, TURNS, RowSheet, Tables, columns_with, greatest_key
from onthejob.track.to_jsonl import append, writable
from onthejob.track.tracker import Row, RunInfo, Tracker

END = "\r\n"
"""Of a row. Texts hold line feeds alone, so that a row that a kill has cut is recognised by its end."""
FORMULA = ("=", "+", "-", "@", "\t")
"""First characters of texts that a spreadsheet would execute; they get an apostrophe in front."""


def check(what: str) -> None:
    """Refuse files that cannot be written."""
    for name in (EPISODES, TURNS):
        writable(path_of(what, name), what)


def tracker(what: str) -> Tracker:
    """The tracker that writes the two files next to `what`."""
    return Csv(what)


def path_of(what: str, table: str) -> Path:
    """The file of one table."""
    path = Path(what)
    return path.with_name(f"{path.stem}-{table}{path.suffix}")


class Csv(Tables):
    """Two files."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def opened(self, run: RunInfo) -> Mapping[str, RowSheet]:
        return {name: CsvSheet(path_of(self._what, name), FIRST[name]) for name in (EPISODES, TURNS)}


class CsvSheet:
    """One file; new columns rewrite it."""

    def __init__(self, path: Path, first: Sequence[str]) -> None:
        """Read the headings, and remove a row that is not whole.

        Raises:
            TrackError: the file is another one's.
        """
        self._path, self._columns = path, list(first)
        if not path.exists():
            return
        content = path.read_bytes()
        whole = content.rfind(END.encode()) + len(END) if END.encode() in content else 0
        if whole < len(content):
            with path.open("rb+") as file:
                file.truncate(whole)
        if whole:
            self._columns = next(self._rows())
            if self._columns[: len(first)] != list(first):
                raise TrackError(f"{path} does not begin with the columns {', '.join(first[:4])}, ... Name another file.")

    def newest(self, id: str) -> str:
        """The greatest key of run `id`."""
        place = self._columns.index("key")
        return greatest_key([row[place] for row in self._rows() if len(row) > place], id)

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows, after the headings when they are the first."""
        columns = columns_with(self._columns, rows)
        if columns != self._columns or not self._path.exists() or not self._path.stat().st_size:
            # Whole or not at all: under a heading more, every row changes.
            before = [row + [""] * (len(columns) - len(row)) for row in list(self._rows())[1:]]
            with published_file(self._path) as temporary:
                temporary.write_text(_lines([columns, *before]), encoding="utf-8", newline="")
            self._columns = columns
        append(self._path, _lines([[_cell(row.get(column)) for column in columns] for row in rows]).encode())

    def _rows(self) -> Iterator[list[str]]:
        if self._path.exists():
            with self._path.open(encoding="utf-8", newline="") as file:
                yield from csv.reader(file)


def _cell(value: str | int | float | bool | None) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        text = value.replace("\r\n", "\n").replace("\r", "\n")
        return f"'{text}" if text.startswith(FORMULA) else text
    return str(value)


def _lines(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=END).writerows(rows)
    return text.getvalue()
