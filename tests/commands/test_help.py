"""`train --help` is one screen, `--help-all` has every option once, and neither cuts anything."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from onthejob.cli import COMMANDS, main
from onthejob.commands.brief import WIDTH

SHORT = {"--loss", "--advantage"}
"""Second names of options, which stand in the same entry."""


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a command prints at 80 columns."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))

    def run(*words: str) -> str:
        capsys.readouterr()
        assert main(list(words)) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("env", ["office", "claw"])
def test_the_common_options_fit_one_screen(shown: Callable[..., str], env: str):
    lines = shown("train", "--env", env, "--help").splitlines()
    assert len(lines) <= 25
    assert all(len(line) <= WIDTH for line in lines)
    assert "…" not in "".join(lines)
    listed = re.findall(r"^  --([a-z-]+)", "\n".join(lines), flags=re.MULTILINE)
    assert listed == [name.replace("_", "-") for name in COMMANDS["train"].common]
    assert len(listed) == 10
    text = " ".join(" ".join(lines).split())
    assert "`onthejob train --help-all` lists every option." in text
    assert f"[{env}]" in text
    assert re.search(r"--iterations N +.*\[30\]", text)


def test_every_option_is_listed_once_and_there_are_at_most_ninety(shown: Callable[..., str]):
    from onthejob.commands.train import Train

    from ..test_options_ignored import leaves

    text = shown("train", "--help-all")
    # An entry begins at the left, behind a border that may be blank; two blanks separate its names from what is said about it.
    entries = [line[2:].split("  ")[0] for line in text.splitlines() if re.match(r"[│ ] --[a-z]", line)]
    listed = [flag for entry in entries for flag in re.findall(r"--[a-z0-9.-]+", entry) if flag not in SHORT]
    options = {
        name.removeprefix("train.").replace("_", "-") for name in leaves(Train()) if not name.startswith(("output.", "scale."))
    }
    ours = [flag for flag in listed if not flag.startswith(("--env.", "--scale."))]
    assert sorted(ours) == sorted(f"--{name}" for name in options if name != "own")
    assert len(ours) <= 90
    assert [flag for flag in listed if flag.startswith("--env.")], "the environment's are listed too"
    lines = text.splitlines()
    assert [line for line in lines if len(line) > WIDTH] == []
    assert "…" not in text
    assert "Every command also takes --json" in text


def test_help_of_other_commands_is_whole(shown: Callable[..., str]):
    assert shown("scenarios", "lint", "--help") == shown("scenarios", "lint", "--help-all")


def test_options_of_every_command_are_taken_where_they_are_not_listed(capsys: pytest.CaptureFixture[str]):
    assert main(["train", "--json", "--quiet", "--print-config"]) == 0
    assert capsys.readouterr().out.startswith("{")
