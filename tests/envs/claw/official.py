"""A task in the ClawGym format, and the end of an episode in it, for tests of official tasks and of their checks."""

from __future__ import annotations

import json
from pathlib import Path

from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.claw.env import ClawEnvironment
from onthejob.envs.claw.sandbox import SandboxHost
from onthejob.types import Task

CHECK = """
import json, sys
from pathlib import Path

def grade(transcript, workspace_path):
    root = Path(workspace_path)
    total = root / "output" / "total.txt"
    text = total.read_text().strip() if total.is_file() else ""
    polite = 0.5 if (root / "thanks.txt").exists() else 0.0
    return {"exists": float(total.is_file()), "right": float(text == "7"), "polite": polite}

print(json.dumps(grade([], sys.argv[1] if len(sys.argv) > 1 else ".")))
"""


def make(folder: Path, *, check: str = CHECK, number: int = 0) -> Path:
    """A task folder in the format."""
    task = folder / f"task_{number:04d}"
    (task / "input_files" / "input").mkdir(parents=True)
    (task / "input_files" / "input" / "numbers.txt").write_text("3\n4\n", encoding="utf-8")
    (task / "input_files" / "input" / "logo.bin").write_bytes(b"\xff\x00\xfe")
    (task / "reward").mkdir()
    (task / "reward" / "check.py").write_text(check, encoding="utf-8")
    (task / "reward" / "reward.sh").write_text("#!/usr/bin/env bash\nexit 1\n", encoding="utf-8")
    entry = {
        "task_id": task.name,
        "user_query": "Add the numbers in input/numbers.txt and write the sum to output/total.txt.",
        "metadata": {"category": "", "grading_type": "automated"},
        "input_mount_dir": "/somewhere/else",
    }
    (task / "data_entry.json").write_text(json.dumps(entry), encoding="utf-8")
    return task


def end(host: SandboxHost, task: Task, command: str | None) -> ClawEnvironment:
    """The environment after one command and the declaration."""
    env = ClawEnvironment(host=host)
    env.reset(task)
    if command is not None:
        env.step(block(command))
    env.step(DONE)
    return env
