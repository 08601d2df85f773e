"""`onthejob serve env`: what it refuses before it listens."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from onthejob.cli import main
from onthejob.commands.serve import allow_files
from onthejob.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "70000"], "port must be in 0..65535, got 70000"),
        (["--max-sessions", "0"], "max_sessions must be >= 1, got 0"),
        (["--trainer-key-file", "nowhere/key"], "cannot be read"),
    ],
)
def test_wrong_options_end_in_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["serve", "env", *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("text", ["short", "", "one line of the key\nand another line"])
def test_a_key_is_one_long_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "key"
    file.write_text(text, encoding="utf-8")
    assert main(["serve", "env", "--trainer-key-file", str(file)]) == 2
    assert "one line of at least 16 characters" in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setitem(sys.modules, "openenv.core.env_server.http_server", None)
    monkeypatch.delitem(sys.modules, "onthejob.compat.openenv", raising=False)
    assert main(["serve", "env"]) == 2
    assert "pip install 'onthejob[openenv]'" in capsys.readouterr().err


def test_more_connections_than_the_system_allows_are_refused():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        allow_files(1_000)
        return
    with pytest.raises(ConfigError, match="open files"):
        allow_files(hard + 1)
