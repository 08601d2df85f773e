"""The container recipes name files that exist and commands that the package has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from onthejob.cli import COMMANDS, parse
from onthejob.commands.servers import Trainer
from onthejob.commands.view_office import ViewOffice


def test_the_workers_container_starts_a_command_that_exists(repository: Path):
    text = (repository / "container/Dockerfile").read_text(encoding="utf-8")
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", text, flags=re.MULTILINE)
    program, *words = json.loads(entry)
    assert program.endswith("/onthejob")
    assert "serve trainer" in COMMANDS
    assert words[:2] == ["serve", "trainer"]
    told = parse(Trainer, words[2:], prog="onthejob serve trainer")
    assert isinstance(told, Trainer)
    assert told.serve_model
    assert (told.model.device, told.server.device, str(told.tls_cert)) == ("cuda", "cuda", "/tls/cert.pem")


def test_the_container_for_cpus_opens_the_viewer_with_the_kept_team(repository: Path):
    text = (repository / "container/cpu.Dockerfile").read_text(encoding="utf-8")
    (words,) = re.findall(r"^CMD (\[.*\])$", text, flags=re.MULTILINE)
    command, *rest = json.loads(words)
    told = parse(ViewOffice, rest, prog=f"onthejob {command}")
    assert isinstance(told, ViewOffice)
    assert (command, told.open, told.host) == ("view", False, "0.0.0.0")
    assert (repository / told.policy).is_dir()
    assert f"EXPOSE {told.port}\n" in text


@pytest.mark.parametrize("recipe", ["Dockerfile", "cpu.Dockerfile"])
def test_what_a_container_copies_exists_and_is_not_ignored(repository: Path, recipe: str):
    text = (repository / "container" / recipe).read_text(encoding="utf-8")
    sent = (repository / ".dockerignore").read_text(encoding="utf-8").split()
    lines = re.findall(r"^COPY (?!--from=)(?:--chown=\S+ )?(.*) \S+$", text, flags=re.MULTILINE)
    copied = [name for line in lines for name in line.split()]
    assert {"pyproject.toml", "src"} <= set(copied)
    for name in copied:
        assert (repository / name).exists(), name
        assert f"!{name}" in sent, name
