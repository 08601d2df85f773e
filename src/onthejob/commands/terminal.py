"""How a command speaks: results on stdout (tables, or one JSON document), progress and errors on stderr.

The library itself never prints; it logs, and takes callbacks where progress is of interest.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, SupportsFloat

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.logging import RichHandler
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onthejob.texts import encodable, printable, secrets_of_environment, without

PIPE_COLUMNS = 200
TEXT_COLUMNS = 20
"""Columns of the terminal that a text in a table gets at least, unless it is shorter: enough for a date with its time."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What is printed, and how."""

    json: bool = False
    """Print the result as one JSON document on stdout instead of tables."""
    quiet: bool = False
    """No progress and no log lines below warnings."""
    debug: bool = False
    """Log details, and show the traceback of an error."""


class PlainHandler(logging.Handler):
    """A log line as it is: rich's own handler fills it up with blanks to the width of the terminal that a pipe is not."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        self._console.print(shown(self.format(record)), markup=False, soft_wrap=True)


def _cleaned(record: logging.LogRecord) -> bool:
    """Let a record pass with its message and traceback as a terminal may show them."""
    record.msg, record.args = shown(record.getMessage()), ()
    if record.exc_info:
        record.exc_text = shown(logging.Formatter().formatException(record.exc_info))
    return True


class Terminal:
    """The two streams of one command."""

    def __init__(self, output: Output) -> None:
        self.json = output.json
        self.quiet = output.quiet
        # A pipe has no width; rich's 80 columns would break rows and log lines that a script wants whole.
        self.out, self.err = (
            Console(stderr=err, highlight=False, width=None if stream.isatty() or "COLUMNS" in os.environ else PIPE_COLUMNS)
            for stream, err in ((sys.stdout, False), (sys.stderr, True))
        )
        level = logging.DEBUG if output.debug else logging.WARNING if output.quiet else logging.INFO
        if self.err.is_terminal:
            handler: logging.Handler = RichHandler(console=self.err, show_path=output.debug, rich_tracebacks=False)
            handler.addFilter(_cleaned)
            form = "%(message)s"
        else:
            handler = PlainHandler(self.err)
            form = "%(asctime)s %(levelname)s " + "%(name)s: " * output.debug + "%(message)s"
        handler.setLevel(level)
        handler.setFormatter(logging.Formatter(form, datefmt="%H:%M:%S"))
        log = logging.getLogger("onthejob")
        log.handlers[:] = [handler]
        log.setLevel(level)
        log.propagate = False

    def progress(self, message: str) -> None:
        """Report progress on stderr; silent with --quiet."""
        if not self.quiet:
            self.err.print(shown(message), markup=False)

    def warn(self, message: str) -> None:
        """Say on stderr what the user should know, even with --quiet."""
        self.err.print(shown(f"warning: {message}"), style="yellow", markup=False)

    def say(self, text: str) -> None:
        """Print a text on stdout as it is, lines unbroken."""
        self.out.print(shown(text), markup=False, soft_wrap=True)

    def result(self, data: Any, *renderables: RenderableType) -> None:
        """Print `data` as JSON when asked for, else `renderables` (tables and lines for people)."""
        if self.json:
            self.out.file.write(json.dumps(jsonable(data), indent=2, allow_nan=False) + "\n")
            return
        for index, renderable in enumerate(renderables):
            if index and not isinstance(renderable, str) and not isinstance(renderables[index - 1], str):
                self.out.print()
            # Text is printed as it is: a TOML table's name in brackets is not markup.
            self.out.print(shown(renderable) if isinstance(renderable, str) else renderable, markup=False)


def shown(text: str) -> str:
    """`text` as a terminal may show it: without what it would obey or cannot write, and without this user's keys."""
    return printable(without(text, secrets_of_environment(os.environ)))


def jsonable(value: Any) -> Any:
    """`value` in JSON's types: dataclasses and mappings become objects, paths and enums strings, non-finite numbers null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return jsonable(value.value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [jsonable(item) for item in value]
    if isinstance(value, str):
        return encodable(without(value, secrets_of_environment(os.environ)))
    if value is None or isinstance(value, (int, bool)):
        return value
    if isinstance(value, SupportsFloat):
        # A NumPy or torch scalar.
        return jsonable(float(value))
    return str(value)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Rows under headings where the terminal is wide enough, else each row as a paragraph: nothing is ever cut."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int]
    """Columns that hold numbers: right-aligned, and never broken into lines."""
    title: str | None = None

    @property
    def least_width(self) -> int:
        """Columns of the terminal below which a name or a number would be broken, or a text have less than `TEXT_COLUMNS`."""
        widths = [
            max(cell_len(line) for cells in column for line in cells.split("\n"))
            for column in zip(self.columns, *self.rows, strict=True)
        ]
        shown = [width if index in {0, *self.numeric} else min(width, TEXT_COLUMNS) for index, width in enumerate(widths)]
        return sum(shown) + 2 * (len(shown) - 1)

    def _table(self) -> Table:
        made = Table(title=self.title, title_justify="left", header_style="bold", box=None, pad_edge=False)
        for index, column in enumerate(self.columns):
            number = index in self.numeric
            made.add_column(column, justify="right" if number else "left", no_wrap=number or index == 0, overflow="fold")
        for row in self.rows:
            made.add_row(*row)
        return made

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Choose the form by the width at hand."""
        if self.least_width <= options.max_width:
            yield self._table()
            return
        if self.title is not None:
            yield Text(self.title, style="table.title")
        for name, *cells in self.rows:
            # A name stands for itself, a number for nothing.
            yield Text(f"{self.columns[0]} {name}" if 0 in self.numeric else name, style="bold", overflow="fold")
            facts = [
                Text.assemble((column, "dim"), " ", text) if column else Text(text)
                for column, text in zip(self.columns[1:], cells, strict=True)
            ]
            line = Text(" · ").join(facts)
            line.overflow = "fold"
            yield Padding(line, (0, 0, 0, 2))


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None) -> Listing:
    """A table whose numeric columns are right-aligned.

    Args:
        columns: Headings.
        rows: One cell per column; floats are shown with four significant digits.
        title: Printed above the table.
    """
    numeric = (
        index
        for index in range(len(columns))
        if rows and all(isinstance(row[index], (int, float)) or row[index] is None for row in rows)
    )
    texts = tuple(tuple(cell(item) for item in row) for row in rows)
    return Listing(columns=tuple(columns), rows=texts, numeric=frozenset(numeric), title=title)


def cell(value: Any) -> str:
    """One value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if not math.isfinite(value):
            return "-"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return shown(str(value))


def bytes_text(count: int) -> str:
    """A size in the unit people would choose."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count = count / 1000  # type: ignore[assignment]
    return f"{count:.4g} GB"


def duration_text(seconds: float) -> str:
    """A time in the unit people would choose."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
