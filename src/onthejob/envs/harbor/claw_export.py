"""Claw tasks as tasks in the Harbor format, for other frameworks and for `harbor:FOLDER`.

The workspace is the task's folder at the same path. `tests/check.py` needs nothing but Python and checks the assertions as the
claw's grader does; its `reward` is 1 when all hold, else 0, and `assertions` is the share that does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from onthejob.envs.claw.sandbox.sandbox_interface import WORKSPACE
from onthejob.envs.claw.task_schema import AssertionKind, ClawTask

AGENT_S, TESTS_S = 300, 60
CHECK = '''"""Checks the assertions of assertions.json in the workspace, without following links."""

import hashlib
import json
import os
import re
import stat
from pathlib import Path

FOUND = json.loads((Path(__file__).parent / "assertions.json").read_text())
MOST_BYTES = 1 << 20


def mode_of(path):
    """Mode of what is at a path below the workspace; 0 where there is nothing, None where the way leads through a link."""
    place = Path(FOUND["workspace"])
    for part in path.split("/")[:-1]:
        place = place / part
        try:
            mode = os.lstat(place).st_mode
        except FileNotFoundError:
            return 0
        if stat.S_ISREG(mode):
            return 0
        if not stat.S_ISDIR(mode):
            return None
    try:
        return os.lstat(place / path.split("/")[-1]).st_mode
    except FileNotFoundError:
        return 0


def data_of(path, limit):
    """Bytes of a regular file of at most `limit` bytes, else None."""
    mode = mode_of(path)
    file = Path(FOUND["workspace"]) / path
    if not mode or not stat.S_ISREG(mode) or file.stat().st_size > limit:
        return None
    return file.read_bytes()


def holds(one):
    """Whether an assertion holds."""
    kind, mode = one["kind"], mode_of(one["path"])
    if kind == "file_exists":
        return bool(mode) and (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    if kind == "file_not_exists":
        return mode == 0
    data = data_of(one["path"], float("inf") if kind == "file_unchanged" else MOST_BYTES)
    if data is None:
        return False
    if kind == "file_unchanged":
        return hashlib.sha256(data).hexdigest() == one["sha256"]
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    if kind == "file_contents_contain":
        return all(part in text for part in one["must_contain"])
    return re.search(one["regex"], text) is not None


results = [holds(one) for one in FOUND["assertions"]]
print(json.dumps({"reward": float(all(results)), "assertions": sum(results) / len(results)}))
'''
TEST = "#!/bin/bash\nmkdir -p /logs/verifier\npython3 /tests/check.py > /logs/verifier/reward.json\n"
SOLVE = f'#!/bin/bash\ncd {WORKSPACE}\nfor step in /solution/step-*.sh; do bash "$step"; done\n'


def files_of(task: ClawTask) -> dict[str, bytes]:
    """The files of a claw task's folder in the Harbor format, by path."""
    seeded = {file.path: file.data for file in task.files}
    assertions = []
    for one in task.assertions:
        row: dict[str, object] = {"kind": str(one.kind), "path": one.path}
        if one.kind is AssertionKind.FILE_CONTENTS_CONTAIN:
            row["must_contain"] = list(one.must_contain)
        elif one.kind is AssertionKind.FILE_CONTENTS_MATCH_REGEX:
            row["regex"] = one.regex
        elif one.kind is AssertionKind.FILE_UNCHANGED:
            row["sha256"] = hashlib.sha256(seeded[one.path]).hexdigest()
        assertions.append(row)
    metadata = {"category": task.family, "difficulty": str(task.difficulty), "persona": task.persona.name}
    toml = [
        'schema_version = "1.1"', "", "[metadata]", *(f"{name} = {json.dumps(value)}" for name, value in metadata.items()), "",
        "[verifier]", f"timeout_sec = {TESTS_S}.0", "", "[agent]", f"timeout_sec = {AGENT_S}.0", "",
    ]  # fmt: skip
    dockerfile = f"FROM ubuntu:24.04\nWORKDIR {WORKSPACE}\n" + (f"COPY files/ {WORKSPACE}/\n" if seeded else "")
    checks = {"workspace": WORKSPACE, "assertions": assertions}
    texts = {
        "task.toml": "\n".join(toml),
        "instruction.md": f"{task.intent}\n",
        "environment/Dockerfile": dockerfile,
        "tests/test.sh": TEST,
        "tests/check.py": CHECK,
        "tests/assertions.json": json.dumps(checks, indent=1, ensure_ascii=False) + "\n",
        "solution/solve.sh": SOLVE,
        **{f"solution/step-{number:02d}.sh": f"{block}\n" for number, block in enumerate(task.gold, start=1)},
    }
    made = {path: text.encode() for path, text in texts.items()}
    return made | {f"environment/files/{path}": data for path, data in seeded.items()}


def write(tasks: Mapping[str, ClawTask], folder: Path) -> None:
    """Write tasks as folders below `folder`, by name.

    Raises:
        OSError: a file cannot be written.
    """
    for name, task in tasks.items():
        write_files(files_of(task), folder / name)


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files of one task; scripts can be executed.

    Raises:
        OSError: a file cannot be written.
    """
    for path, data in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        if path.endswith(".sh"):
            file.chmod(0o755)
