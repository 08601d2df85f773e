"""A hosted model in the agent's seat of Harbor tasks, by one option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checks.servers.chat_server import Chat, conversation
from onthejob.envs.claw.agent_messages import DONE, block

FILES = {
    "task.toml": '[metadata]\ncategory = "files"\n',
    "instruction.md": "Write the answer, which is in given.txt, to /app/answer.txt.",
    "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\nCOPY given.txt .\n",
    "environment/given.txt": "42\n",
    "tests/test.sh": "if cmp /app/answer.txt /app/given.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path, text in FILES.items():
        (tmp_path / "tasks/test/copy" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tasks/test/copy" / path).write_text(text, encoding="utf-8")
    return tmp_path / "tasks"


def agent(body: dict[str, Any]) -> str:
    """A model that looks, then does what the output says, then stops."""
    last = conversation(body)[-1][1]
    if "Files:" in last:
        return f"I look first.\n{block('cat given.txt')}"
    if "stdout:" in last:
        return block(f"echo {last.split()[-1]} > answer.txt")
    return DONE


def test_it_plays_a_task(call, chat: Chat, folder: Path):
    chat.reply = agent
    told = call("play", f"harbor:{folder}", "--policy", f"{chat.name}#small", "--split", "test")
    assert (told["turns"], told["metrics"]["passed"], told["stop"]) == (3, 1.0, "done")
    assert told["hosted"]["agent"]["outcomes"] == {"ok": 3}
    assert [role for role, _ in conversation(chat.seen[2])] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert "given.txt (3 bytes)" in conversation(chat.seen[0])[1][1]


def test_it_is_compared(call, chat: Chat, folder: Path):
    chat.reply = agent
    told = call("compare", f"{chat.name}#small", "noop", "--env", f"harbor:{folder}", "--split", "test")
    passed = {row["team"]: row["mean"] for row in told["means"] if row["metric"] == "passed" and row["stratum"] == "all"}
    assert passed == {f"{chat.name}#small": 1.0, "noop": 0.0}
