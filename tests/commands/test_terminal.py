"""terminal: what a pipe is given stays whole."""

from __future__ import annotations

import os
import subprocess
import sys

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
