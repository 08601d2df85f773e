"""Waiting is visible: a command says that it starts before it loads what takes seconds."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from onthejob.cli import AT_ONCE, COMMANDS

HEAVY = ("torch", "numpy", "transformers", "fastapi", "uvicorn", "onthejob.learn.learner", "onthejob.evaluate", "onthejob.record")


QUICK = {f"onthejob.commands.{name}" for name in ("options", "removed", "terminal")}
"""Modules that parse the command line."""


def stderr_of(*words: str) -> list[str]:
    """What a command prints on stderr, with a line for every module that Python imported meanwhile."""
    call = [sys.executable, "-X", "importtime", "-m", "onthejob", *words]
    return subprocess.run(call, capture_output=True, text=True, timeout=300, check=False).stderr.splitlines()


# Options that are refused: the first line comes before anything else is looked at.
@pytest.mark.parametrize("words", [("train", "--resume", "nothing-here"), ("compare", "nothing-here"), ("view", "nothing-here")])
def test_the_first_line_comes_before_what_takes_time_to_load(words: tuple[str, ...]):
    lines = stderr_of(*words)
    first = next(index for index, line in enumerate(lines) if not line.startswith("import time:"))
    assert lines[first] == f"onthejob {words[0]}: starting"
    loaded = {re.sub(r"^import time:.*\| +", "", line) for line in lines[:first]}
    assert not {name for name in loaded if name.startswith(HEAVY)}
    assert not any(name.startswith("onthejob.commands.") for name in loaded - QUICK)


@pytest.mark.parametrize("words", [("train", "--help"), ("runs", "ls"), ("train", "--quiet", "--resume", "nothing-here")])
def test_who_asks_for_help_or_silence_or_a_quick_list_is_not_told(words: tuple[str, ...]):
    assert not [line for line in stderr_of(*words) if line.endswith(": starting")]


def test_commands_that_show_their_result_at_once_exist():
    assert set(COMMANDS) >= AT_ONCE
