"""`sheets:ID` against a server on loopback that speaks the used part of the Google Sheets API and of the token endpoint."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

import pytest

pytest.importorskip("gspread")
pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class Google:
    """One spreadsheet, the tokens that are valid, and failures that are to come."""

    def __init__(self) -> None:
        self.sheets: dict[str, list[list[Any]]] = {}
        self.columns: dict[str, int] = {}
        self.valid: set[str] = set()
        self.issued = 0
        self.failures: list[tuple[str, int, bool, dict[str, str]]] = []
        """What the path must hold, status, whether the request is executed all the same, headers."""
        self.requests: list[tuple[str, str, int]] = []
        """Method, path, status."""
        self.lock = threading.Lock()

    def answer(self, method: str, url: str, token: str, body: Any) -> tuple[int, Any, dict[str, str]]:
        path = unquote(urlparse(url).path)
        if path == "/token":
            self.issued += 1
            self.valid = {f"token-{self.issued}"}
            return 200, {"access_token": f"token-{self.issued}", "expires_in": 3600, "token_type": "Bearer"}, {}
        if token not in self.valid:
            return 401, {"error": {"code": 401, "message": "invalid credentials", "status": "UNAUTHENTICATED"}}, {}
        for index, (part, status, executed, headers) in enumerate(self.failures):
            if part in path:
                del self.failures[index]
                if executed:
                    self._execute(method, path, url, body)
                return status, {"error": {"code": status, "message": "not now", "status": "UNAVAILABLE"}}, headers
        found = self._execute(method, path, url, body)
        if found is None:
            return 404, {"error": {"code": 404, "message": f"{path} was not found", "status": "NOT_FOUND"}}, {}
        return 200, found, {}

    def _execute(self, method: str, path: str, url: str, body: Any) -> Any:
        query = parse_qs(urlparse(url).query)
        if not path.startswith("/v4/spreadsheets/SHEET"):
            return None
        rest = path.removeprefix("/v4/spreadsheets/SHEET")
        if method == "GET" and not rest:
            return {
                "spreadsheetId": "SHEET",
                "properties": {"title": "runs"},
                "sheets": [{"properties": self._properties(number, name)} for number, name in enumerate(self.sheets)],
            }
        if rest == ":batchUpdate":
            return {"spreadsheetId": "SHEET", "replies": [self._change(request) for request in body["requests"]]}
        match = re.fullmatch(r"/values/'?(\w+)'?!?([A-Z]*)(\d*)(?::([A-Z]*)(\d*))?(:append)?", rest)
        assert match is not None, rest
        name, column, row, _, _, appended = match.groups()
        rows = self.sheets[name]
        if appended:
            assert query["valueInputOption"] == ["RAW"]
            rows += body["values"]
            return {"updates": {"updatedRows": len(body["values"])}}
        if method == "PUT":
            assert query["valueInputOption"] == ["RAW"]
            rows[0:1] = body["values"]
            return {"updatedRows": 1}
        if column:
            place = ord(column) - ord("A")
            return {"majorDimension": "COLUMNS", "values": [[line[place] for line in rows]]} if rows else {}
        return {"majorDimension": "ROWS", "values": rows[int(row or 1) - 1 : int(row or 1)]} if rows else {}

    def _change(self, request: dict[str, Any]) -> Any:
        if "addSheet" in request:
            given = request["addSheet"]["properties"]
            self.sheets[given["title"]] = []
            self.columns[given["title"]] = given["gridProperties"]["columnCount"]
            return {"addSheet": {"properties": self._properties(len(self.sheets) - 1, given["title"])}}
        changed = request["updateSheetProperties"]["properties"]
        self.columns[list(self.sheets)[changed["sheetId"]]] = changed["gridProperties"]["columnCount"]
        return {}

    def _properties(self, number: int, name: str) -> dict[str, Any]:
        grid = {"rowCount": max(1, len(self.sheets[name])), "columnCount": self.columns[name]}
        return {"sheetId": number, "title": name, "index": number, "gridProperties": grid}

    def statuses(self, part: str) -> list[int]:
        return [status for _, path, status in self.requests if part in path]


class Handler(BaseHTTPRequestHandler):
    google: Google

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        given = json.loads(body) if body and self.headers.get_content_type() == "application/json" else None
        with self.google.lock:
            status, found, headers = self.google.answer(self.command, self.path, token, given)
            self.google.requests.append((self.command, unquote(self.path), status))
        data = json.dumps(found).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = _serve

    def log_message(self, format: str, *args: Any) -> None:
        """Be silent."""


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    """The server, and a service account whose tokens it gives out."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    made = Google()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"google": made}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()
    account = {
        "type": "service_account",
        "client_email": "writer@example.iam.gserviceaccount.com",
        "private_key": pem,
        "private_key_id": "1",
        "token_uri": f"{address}/token",
    }
    path = tmp_path / "account.json"
    path.write_text(json.dumps(account), encoding="utf-8")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.setenv("ONTHEJOB_SHEETS_URL", address)
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


def check(google: Google, rows: tuple[int, int]) -> None:
    """Each row of the record is there once, in order."""
    for name, count in zip(("episodes", "turns"), rows, strict=True):
        keys = [row[1] for row in google.sheets[name][1:]]
        assert len(keys) == count
        assert keys == sorted(set(keys))
        assert google.sheets[name][0][:2] == ["run", "key"]
        assert google.columns[name] >= len(google.sheets[name][0])


def test_rows_are_appended_once_in_batches(recorder, sync, rows_of, google: Google):
    recorder.add(3)
    sync("sheets:SHEET")
    check(google, rows_of(recorder.path))
    assert len(google.statuses(":append")) == 2, "one request per worksheet"
    recorder.add(1)
    sync("sheets:https://docs.google.com/spreadsheets/d/SHEET/edit#gid=0")
    sync("sheets:SHEET")
    check(google, rows_of(recorder.path))
    turns = google.sheets["turns"]
    assert {type(row[turns[0].index("reward")]) for row in turns[1:]} <= {int, float}
    assert google.issued == 3, "one token per command"


def test_too_many_requests_are_repeated_after_the_pause_that_is_asked_for(recorder, sync, rows_of, google: Google):
    recorder.add(2)
    google.failures = [(":append", 429, False, {"Retry-After": "0.3"}), (":append", 429, False, {}), ("SHEET", 429, False, {})]
    sync("sheets:SHEET")
    check(google, rows_of(recorder.path))
    assert google.statuses(":append") == [429, 429, 200, 200]


@pytest.mark.parametrize("executed", [False, True])
def test_an_answer_that_is_lost_doubles_nothing(recorder, sync, rows_of, google: Google, executed: bool):
    recorder.add(2)
    google.failures = [(":append", 503, executed, {}), ("turns", 503, executed, {})]
    sync("sheets:SHEET")
    check(google, rows_of(recorder.path))


def test_an_expired_token_is_renewed(recorder, sync, rows_of, google: Google):
    recorder.add(1)
    google.failures = [("SHEET", 401, False, {})]
    sync("sheets:SHEET")
    check(google, rows_of(recorder.path))
    assert google.issued == 2


def test_a_spreadsheet_that_is_not_shared_is_said(recorder, sync, google: Google):
    recorder.add(1)
    said = sync("sheets:OTHER", code=1)
    assert "not there or not shared with the service account" in said
    assert "PRIVATE KEY" not in said
    google.failures = [("SHEET", 403, False, {})]
    assert "Share it, as editor" in sync("sheets:SHEET", code=1)


def test_a_key_file_of_another_kind_is_refused(recorder, sync, google: Google, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recorder.add(1)
    for text, said in (("{}", "no key of a service account"), ('{"type": "authorized_user"}', "'authorized_user'")):
        (tmp_path / "other.json").write_text(text)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "other.json"))
        assert said in sync("sheets:SHEET", code=2)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    assert "cannot be read" in sync("sheets:SHEET", code=2)
