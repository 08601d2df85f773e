"""Fixtures of tests that run commands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.servers.chat_server import Chat
from onthejob.cli import main
from onthejob.commands.collect_office import demonstrations
from onthejob.envs.office.tasks import office_tasks
from onthejob.testing import teach, tiny_model
from onthejob.types import Message, Split


@pytest.fixture
def chat() -> Iterator[Chat]:
    """A hosted model's server on loopback."""
    made = Chat()
    yield made
    made.close()


@pytest.fixture(scope="session")
def letter_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model that answers with some letter."""
    folder = tmp_path_factory.mktemp("letter-model")
    tiny = tiny_model(words=["pick", "letter", *"abcdefgh"])
    teach(tiny, [((Message("user", "pick a letter"),), letter) for letter in "abcdefgh"], steps=60, batch=8)
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def office_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model whose tokenizer knows the words of the office's prompts."""
    folder = tmp_path_factory.mktemp("office-model")
    tasks = office_tasks(Split.TRAIN, seeds=8, scenarios=["baseline"], days=3)
    # Random legal replies of one role teach the format and leave every decision open, so that groups differ. HR has few targets,
    # so that a model this small is often legal whatever the scenario's numbers are.
    shown = [row for task in tasks for row in demonstrations(task, "random", 0.0) if row["role"] == "hr"]
    examples = [(tuple(Message(**message) for message in row["messages"]), row["reply"]) for row in shown]
    texts = " ".join(message.content for messages, _ in examples for message in messages)
    # Words of the prompts and the fixed parts of a reply become single tokens, which keeps the sequences short.
    words = {word for word in re.findall(r"[A-Za-z_]+", texts) if len(word) > 2}
    tiny = tiny_model(words=[*sorted(words), '{"action_type":"', '","target":"', '"}'])
    teach(tiny, examples, steps=120, batch=8)
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    """The key of hosted models in the environment, which no command may show."""
    key = "sk-never-to-be-seen-0123456789"
    monkeypatch.setenv("ONTHEJOB_ENDPOINT_KEY", key)
    return key


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: str) -> Callable[..., Any]:
    """Run a command in an empty folder; returns its JSON, or what it said on stderr when it wrote none.

    `code` is the exit code that is expected.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONTHEJOB_CACHE", str(tmp_path / "cache"))

    def run(*words: str | Path, code: int = 0) -> Any:
        capsys.readouterr()
        got = main([*(str(word) for word in words), "--json", "--quiet"])
        captured = capsys.readouterr()
        assert got == code, captured
        assert secret not in captured.out + captured.err
        return json.loads(captured.out) if captured.out else captured.err

    return run
