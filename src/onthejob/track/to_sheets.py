"""`sheets:ID`: the rows of episodes and turns in two worksheets of a Google spreadsheet, appended in batches.

A service account writes them: $GOOGLE_APPLICATION_CREDENTIALS names its key file, and the spreadsheet is shared with its address.
Texts are stored as they are (`RAW`), never executed as formulas. A request that is refused for its rate is sent again after the
pause that the server asks for; after any other failure the worksheets are read again, as the rows may have arrived.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onthejob.errors import ConfigError, TrackError
from onthejob.track.tables import EPISODES, FIRST, TURNS, RowSheet, Tables, columns_with, greatest_key
from onthejob.track.tracker import Row, RunInfo, Tracker

if TYPE_CHECKING:
    from gspread import Client, Spreadsheet, Worksheet

KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
ADDRESS = "ONTHEJOB_SHEETS_URL"
"""Variable with another address of the API than Google's, for a proxy or a test."""
GOOGLE = "https://sheets.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/spreadsheets"
ROWS_AT_ONCE = 500
TIMEOUT_S = 30.0
PAUSES = 6
"""Times that a request is sent again because of its rate."""
LONGEST_PAUSE_S = 64.0
ID_IN_URL = re.compile(r"/spreadsheets/d/([\w-]+)")


def check(what: str) -> None:
    """Refuse a missing id or key file."""
    if not what:
        raise ConfigError("--track sheets says no spreadsheet. Write sheets:ID, where ID is the long word in its address.")
    path = os.environ.get(KEY_FILE)
    if not path:
        raise ConfigError(f"--track sheets:{what} needs a service account. Set {KEY_FILE} to its JSON key file.")
    try:
        kind = json.loads(Path(path).read_text(encoding="utf-8"))["type"]
    except OSError as error:
        raise ConfigError(f"{KEY_FILE} names a file that cannot be read: {error.strerror or error}. Correct the path.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{KEY_FILE} names a file that is no key of a service account. Download a JSON key of one.") from error
    if kind != "service_account":
        raise ConfigError(f"{KEY_FILE} names credentials of the type {kind!r}. Download a JSON key of a service account.")


def tracker(what: str) -> Tracker:
    """The tracker of the spreadsheet with the id or address `what`."""
    found = ID_IN_URL.search(what)
    return Sheets(found[1] if found else what)


class Sheets(Tables):
    """One spreadsheet."""

    def __init__(self, id: str) -> None:
        super().__init__()
        self._id = id

    def opened(self, run: RunInfo) -> Mapping[str, RowSheet]:
        """Open the spreadsheet; worksheets that it lacks are added.

        Raises:
            TrackError: there is none of this id, or it is not shared with the service account.
        """
        from gspread.exceptions import APIError, SpreadsheetNotFound

        try:
            book = client(os.environ).open_by_key(self._id)
            there = {sheet.title: sheet for sheet in book.worksheets()}
        except (APIError, PermissionError, SpreadsheetNotFound) as error:
            if isinstance(error, APIError) and error.code not in (403, 404):
                raise
            raise TrackError(
                f"spreadsheet {self._id} is not there or not shared with the service account. Share it, as editor, with the "
                f"address `client_email` of {KEY_FILE}."
            ) from error
        return {name: GoogleSheet(book, name, there.get(name)) for name in (EPISODES, TURNS)}


class GoogleSheet:
    """One worksheet."""

    def __init__(self, book: Spreadsheet, name: str, there: Worksheet | None) -> None:
        """Read its headings, or write them.

        Raises:
            TrackError: the worksheet is another one's.
        """
        first = FIRST[name]
        self._sheet: Worksheet = there or book.add_worksheet(name, rows=1, cols=len(first))
        self._columns = [str(value) for value in self._sheet.row_values(1)]
        if not self._columns:
            self._columns = list(first)
            self._head()
        if self._columns[: len(first)] != list(first):
            raise TrackError(f"worksheet {name!r} does not begin with the columns {', '.join(first[:4])}, ... Rename it.")

    def newest(self, id: str) -> str:
        """The greatest key of run `id`."""
        return greatest_key(self._sheet.col_values(self._columns.index("key") + 1), id)

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows, some hundreds per request."""
        from gspread.utils import InsertDataOption, ValueInputOption

        columns = columns_with(self._columns, rows)
        if columns != self._columns:
            self._columns = columns
            self._head()
        for begin in range(0, len(rows), ROWS_AT_ONCE):
            part = [[_cell(row.get(column)) for column in columns] for row in rows[begin : begin + ROWS_AT_ONCE]]
            self._sheet.append_rows(
                part,
                value_input_option=ValueInputOption.raw,
                insert_data_option=InsertDataOption.insert_rows,
                table_range="A1",
            )

    def _head(self) -> None:
        if self._sheet.col_count < len(self._columns):
            self._sheet.resize(cols=len(self._columns))
        self._sheet.update([self._columns], "A1", raw=True)


def client(environ: Mapping[str, str]) -> Client:
    """A client of the Sheets API for the service account of the environment."""
    from google.oauth2.service_account import Credentials
    from gspread import Client, HTTPClient

    address = environ.get(ADDRESS, GOOGLE).rstrip("/")

    class Patient(HTTPClient):
        """Waits when requests are too many, and reaches the API at its address."""

        def request(self, method: str, endpoint: str, *args: Any, **options: Any) -> Any:
            """Send one request, again after a pause when the answer is 429."""
            from gspread.exceptions import APIError

            endpoint = address + endpoint.removeprefix(GOOGLE)
            for number in range(PAUSES):
                try:
                    return super().request(method, endpoint, *args, **options)
                except APIError as error:
                    if error.response.status_code != 429:
                        raise
                    time.sleep(pause_of(error.response.headers.get("Retry-After"), number))
            return super().request(method, endpoint, *args, **options)

    credentials = Credentials.from_service_account_file(environ[KEY_FILE], scopes=[SCOPE])
    made = Client(auth=credentials, http_client=Patient)
    made.set_timeout(TIMEOUT_S)
    return made


def pause_of(asked: str | None, number: int) -> float:
    """Seconds to wait: what the server asks for, else 1, 2, 4, ... by the `number` of earlier waits."""
    try:
        return min(LONGEST_PAUSE_S, max(0.0, float(asked or "")))
    except ValueError:
        return min(LONGEST_PAUSE_S, 2.0**number)


def _cell(value: str | int | float | bool | None) -> str | int | float | bool:
    return "" if value is None else value
