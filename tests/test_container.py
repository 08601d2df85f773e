"""The container recipe names files that exist and a command that the package has."""

from __future__ import annotations

import json
import re
from pathlib import Path

from onthejob.cli import COMMANDS, parse
from onthejob.commands.servers import Trainer


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


def test_what_the_container_copies_exists_and_is_not_ignored(repository: Path):
    text = (repository / "container/Dockerfile").read_text(encoding="utf-8")
    sent = (repository / ".dockerignore").read_text(encoding="utf-8").split()
    copied = [name for line in re.findall(r"^COPY (.*) \S+$", text, flags=re.MULTILINE) for name in line.split()]
    assert {"pyproject.toml", "src"} <= set(copied)
    for name in copied:
        assert (repository / name).exists(), name
        assert f"!{name}" in sent, name
