"""terminal: what a pipe is given stays whole."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from rich.console import Console

from onthejob.commands.terminal import table

SCRIPT = """
import logging
from onthejob.commands.terminal import Output, Terminal
terminal = Terminal(Output())
terminal.result({}, "row " * 40)
terminal.progress("progress " * 18)
logging.getLogger("onthejob.anything").info("log " * 40)
"""


def test_lines_are_not_broken_where_there_is_no_terminal():
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["row " * 40]
    progress, logged = done.stderr.splitlines()
    assert progress.count("progress") == 18
    assert logged.count("log ") == 40
    assert logged.endswith("log ")


ODD = ["\x1b[31mred", "\x07bell", "\x9b2J", "half \ud83d", "\u202etxt", "a key of ours: 0123456789abcdef"]
FAILS = f"""
import logging
from onthejob.commands.terminal import Output, Terminal
terminal, log = Terminal(Output()), logging.getLogger("onthejob.anything")
for odd in {ODD!r}:
    terminal.progress(odd); terminal.warn(odd); terminal.say(odd); terminal.result({{}}, odd)
    log.warning("%s", odd)
    try:
        try:
            raise ValueError(odd)
        except ValueError as error:
            raise RuntimeError(f"because of {{odd}}") from error
    except RuntimeError:
        log.exception("failed: %s", odd)
"""


@pytest.mark.parametrize("kind", ["a pipe", "a terminal"])
def test_texts_and_tracebacks_are_shown_without_controls_and_keys(kind: str):
    environ = {**os.environ, "SERVERS_TOKEN": "0123456789abcdef", "TERM": "dumb"}
    environ |= {"TTY_COMPATIBLE": "1", "COLUMNS": "200"} if kind == "a terminal" else {}
    done = subprocess.run([sys.executable, "-c", FAILS], env=environ, capture_output=True, timeout=240, check=True)
    for shown in (done.stdout.decode(), done.stderr.decode()):
        assert shown.count("\ufffd") >= 10
        assert shown.count("[redacted]") >= 2
        assert not any(mark in shown for mark in ("\x1b", "\x07", "\x9b", "\u202e", "0123456789abcdef"))
    assert done.stderr.decode().count("Traceback") == 2 * len(ODD)


RUNS = [
    ("20261127-213922-01", "2026-11-27T21:39:22", 51, 1204, 19_283, 96, 3, "12.4 MB"),
    ("20261127-213922-second-attempt-with-a-long-name", None, 100_000, 1, 0, 0, 1, "2.83 GB"),
]
COLUMNS = ("name", "created (UTC)", "iteration", "groups", "turns", "episodes", "adapters", "record")


@pytest.mark.parametrize("width", [40, 80, 100, 120, 160])
def test_a_table_cuts_no_name_and_no_number_on_a_narrow_terminal(width: int):
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(table(COLUMNS, RUNS, title="runs of this folder"))
    lines = capture.get().splitlines()
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    assert "…" not in text
    for name, created, *_, size in RUNS:
        assert name in text.replace("\n", "") if width < 50 else name in text
        assert (created or "-") in text
        assert size in " ".join(text.split())
    for heading in COLUMNS[1:]:
        assert heading in " ".join(text.split())
    assert "100000" in text


def test_a_table_is_a_table_where_there_is_room():
    console = Console(width=80, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(table(("stock", "at the start"), [("cash", 100_000.0), ("leads", 3)]))
    assert capture.get().splitlines()[1].split() == ["cash", "100,000"]
    assert "·" not in capture.get()
