"""`FILE.xlsx`: the rows of episodes and turns in two worksheets of a workbook, which is replaced as a whole each time."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onthejob.errors import TrackError
from onthejob.files import published_file
from onthejob.track.tables import EPISODES, FIRST, TURNS, RowSheet, Tables, columns_with, greatest_key
from onthejob.track.to_jsonl import writable
from onthejob.track.tracker import Row, RunInfo, Tracker

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet.worksheet import Worksheet

MOST_ROWS = 1_048_576
"""Of a worksheet, by the file format."""


def check(what: str) -> None:
    """Refuse a file that cannot be written."""
    writable(Path(what), what)


def tracker(what: str) -> Tracker:
    """The tracker that writes the workbook `what`."""
    return Xlsx(what)


class Xlsx(Tables):
    """One workbook."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._path = Path(what)

    def opened(self, run: RunInfo) -> Mapping[str, RowSheet]:
        """Read the workbook, or begin one.

        Raises:
            TrackError: the file is no workbook, or a worksheet of that name is another one's.
        """
        from openpyxl import Workbook, load_workbook
        from openpyxl.utils.exceptions import InvalidFileException

        if self._path.exists():
            try:
                book = load_workbook(self._path)
            except (InvalidFileException, zipfile.BadZipFile, KeyError, ValueError) as error:
                raise TrackError(f"{self._path} is no workbook: {error}. Name another file, or remove this one.") from error
        else:
            book = Workbook()
            book.remove(book.worksheets[0])
        self._book: Workbook = book
        return {name: XlsxSheet(self._book, name, FIRST[name], self._path) for name in (EPISODES, TURNS)}

    def flush(self) -> None:
        """Append what is new, and replace the file."""
        new = any(self._pending.values())
        super().flush()
        if new:
            with published_file(self._path) as temporary:
                self._book.save(temporary)


class XlsxSheet:
    """One worksheet in memory."""

    def __init__(self, book: Workbook, name: str, first: Sequence[str], path: Path) -> None:
        self._path = path
        if name in book.sheetnames:
            self._sheet: Worksheet = book[name]
            self._columns = [str(cell.value) for cell in self._sheet[1]]
            if self._columns[: len(first)] != list(first):
                raise TrackError(f"worksheet {name!r} of {path} does not begin with {', '.join(first[:4])}. Name another file.")
        else:
            self._sheet, self._columns = book.create_sheet(name), list(first)
            self._head()
            self._sheet.freeze_panes = "A2"

    def newest(self, id: str) -> str:
        """The greatest key of run `id`."""
        place = self._columns.index("key") + 1
        rows = self._sheet.iter_rows(min_row=2, min_col=place, max_col=place, values_only=True)
        return greatest_key([row[0] for row in rows], id)

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows to the worksheet.

        Raises:
            TrackError: it is full.
        """
        if self._sheet.max_row + len(rows) > MOST_ROWS:
            raise TrackError(f"{self._path} is full: a worksheet holds {MOST_ROWS:,} rows. Name another file.")
        columns = columns_with(self._columns, rows)
        if columns != self._columns:
            self._columns = columns
            self._head()
        for row in rows:
            number = self._sheet.max_row + 1
            for place, column in enumerate(columns, start=1):
                if row.get(column) is not None:
                    self._write(number, place, row[column])

    def _head(self) -> None:
        for place, column in enumerate(self._columns, start=1):
            self._write(1, place, column)

    def _write(self, row: int, place: int, value: Any) -> None:
        cell = self._sheet.cell(row, place)
        cell.value = value
        if isinstance(value, str):
            cell.data_type = "s"  # a reply that begins with `=` is a text and no formula
