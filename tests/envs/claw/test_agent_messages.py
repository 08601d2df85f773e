from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from onthejob.envs.claw.agent_messages import block, first_messages, system_text
from onthejob.envs.claw.protocol import ProtocolConfig
from onthejob.envs.claw.replies import parse
from onthejob.envs.claw.skills import HANDBOOK

PLAIN, WITH = ProtocolConfig(), ProtocolConfig(handbook=True)

FILES = {"in.csv": "a,3\nb,WORD\nc,OLD\nKEY=1\n", "in1.txt": "1\n", "in2.txt": "2\n", "place/a.tmp": "", "place/b.txt": ""}
STANDS_FOR = {"FILE1": "in1.txt", "FILE2": "in2.txt", "FILE": "in.csv", "FOLDER": "place", "OUT": "out"}


def test_the_handbook_is_one_more_part_of_the_system_message() -> None:
    assert system_text(WITH).startswith(system_text(PLAIN))
    assert [line for line in system_text(WITH).splitlines() if line.startswith("- ")] == [
        f"- {aim}: {command}" for aim, command in HANDBOOK.items()
    ]
    assert "WORD" not in system_text(PLAIN)


def test_the_system_message_is_the_same_for_all_tasks() -> None:
    for config in (PLAIN, WITH):
        first, second = (first_messages(intent, sizes, config)[0] for intent, sizes in (("a", {}), ("b", {"c": 1})))
        assert first == second


def contents(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("aim", HANDBOOK)
def test_every_command_of_the_handbook_does_something(aim: str, tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    command = HANDBOOK[aim]
    for placeholder, name in (STANDS_FOR | ({"FOLDER": "new"} if "mkdir" in command else {})).items():
        command = command.replace(placeholder, name)
    bash = shutil.which("bash")
    assert bash is not None
    before = contents(tmp_path)
    done = subprocess.run([bash, "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=10, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert contents(tmp_path) != before


def test_commands_are_fenced_so_that_they_are_read_back() -> None:
    for command in (*HANDBOOK.values(), "cat > a.md <<'E'\n```\ncode\n```\nE"):
        assert parse(block(command)).command == command
