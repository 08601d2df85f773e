"""An agent program on the command line: checked, trained with a real model, killed and resumed."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from onthejob.record import Run
from onthejob.testing import teach, tiny_model
from onthejob.types import Message

PROGRAM = """
import json, os, urllib.request

def ask(messages):
    body = json.dumps({"model": "agent", "messages": messages}).encode()
    head = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, head)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

talk, paid = [{"role": "user", "content": "pick a letter"}], 0
wanted = "abcdefgh"[int(os.environ["ONTHEJOB_SEED"]) % 8]
for number in range(2):
    reply = ask(talk)
    paid += (reply.strip()[:1] >= wanted) + (len(reply) == 1)
    talk += [{"role": "assistant", "content": reply}, {"role": "user", "content": "pick a letter"}]
print(json.dumps({"reward": paid, "metrics": {"letters": len(reply)}}))
"""
SMALL = ("--collect.episodes", "2", "--branch.group-size", "4", "--lora.rank", "2", "--env.max-new-tokens", "3")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options for a tiny model that answers with some letter."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny = tiny_model(words=["pick", "letter", *"abcdefgh"])
    teach(tiny, [((Message("user", "pick a letter"),), letter) for letter in "abcdefgh"], steps=40, batch=8)
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    return "--model.name", str(folder), "--model.dtype", "float32"


@pytest.fixture
def reference(tmp_path: Path) -> str:
    """The program, in an empty folder."""
    (tmp_path / "letters.py").write_text(PROGRAM, encoding="utf-8")
    return f"program:{shlex.quote(sys.executable)} letters.py"


def ran(folder: Path, *words: str, code: int = 0) -> Any:
    """The JSON of a command that runs in the folder."""
    done = subprocess.run(
        [sys.executable, "-m", "onthejob", *words, "--json"], cwd=folder, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if done.stdout else done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_program_is_trained_token_for_token_and_a_killed_run_is_resumed_exactly(
    reference: str, model: tuple[str, ...], tmp_path: Path
):
    words = ("train", "--env", reference, *SMALL, *model)
    straight = ran(tmp_path, *words, "--iterations", "2", "--name", "straight")
    continued = 0
    with Run.open(tmp_path / "runs/straight", readonly=True) as run:
        assert run.config["env"]["ref"] == f"program:{sys.executable} {tmp_path}/letters.py"
        for group in run.read_groups(1):
            assert len(group.trajectories) == 4
            for trajectory in group.trajectories:
                first, second = trajectory.turns
                held = (*first.prompt_ids, *first.completion.token_ids)
                assert second.prompt_ids[: len(held)] == held
                assert len(second.prompt_ids) > len(held)
                continued += 1
    assert continued == 8
    command = [sys.executable, "-m", "onthejob", *words, "--iterations", "2", "--name", "killed", "--quiet"]
    with subprocess.Popen(command, cwd=tmp_path) as process:
        deadline = time.monotonic() + 500
        while last_iteration(tmp_path / "runs" / "killed") < 1:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    resumed = ran(tmp_path, "train", "--resume", "killed")
    assert resumed["iterations"] == 2
    assert resumed["adapters"]["agent"]["digest"] == straight["adapters"]["agent"]["digest"]


def last_iteration(folder: Path) -> int:
    """Of a run that may not exist yet."""
    if not (folder / "run.sqlite").is_file():
        return -1
    with Run.open(folder, readonly=True) as run:
        return run.last_iteration() or 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_program_is_checked(reference: str, tmp_path: Path):
    found = ran(tmp_path, "env", "check", reference, "--tasks", "2", "--group", "3", "--env.max-turns", "5")
    assert found["errors"] == []
    assert {row["role"] for row in found["players"]} == {"agent"}
    (tmp_path / "letters.py").write_text(f"{PROGRAM}\nint(reply)\n", encoding="utf-8")
    said = ran(tmp_path, "env", "check", reference, "--tasks", "2", "--group", "3", code=1)
    assert "ended with exit code 1" in json.dumps(said)
