"""Tasks in the format of the public ClawGym repository, from a folder that the user names; none of its files are ours.

    task_0000/data_entry.json       task_id, user_query, input_mount_dir, metadata
    task_0000/input_files/**        the workspace at the start
    task_0000/reward/check.py       prints {"name of a check": 0.0 to 1.0, ...} for a workspace; the score is their mean
    task_0000/reward/reward.sh      calls check.py and prints the mean; not run here

The checks are programs of others that read what an agent left, and some run what it wrote. So they run in a second sandbox,
after the first one is dead: the agent's regular files are copied there, the checks lie beside them and not among them, and
Python runs isolated (`-I`), so that no file of the agent's (`json.py`, `sitecustomize.py`) is imported in the place of a module.
What they print must be one JSON object and nothing else; anything else scores 0.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onthejob.envs.claw.grader import Grade, Verdict
from onthejob.envs.claw.sandbox.contract import MIB, Limits, SandboxHost
from onthejob.envs.claw.workspace import Unreadable, Workspace
from onthejob.errors import ConfigError
from onthejob.types import Split, Task

FORMAT = "clawgym"
FOLDERS = {Split.TRAIN: "clawgym_train", Split.DEV: "clawgym_train", Split.TEST: "clawgym_eval"}
"""Where the tasks of a split lie; every tenth training task is for dev."""
CHECK_S = 60.0
"""Seconds the checks of one task may take."""
REPORT_BYTES = 2 * MIB
"""Longest report of the checks that is read."""
COPIED_BYTES = 48 * MIB
"""What is copied of a workspace, at most; a larger one cannot be checked."""
COPIED_FILES = 4_096
"""The same in files."""
MAX_DEPTH = 32
"""Folders deep; what lies deeper cannot be checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Official:
    """One task as it lies in its folder."""

    id: str
    query: str
    files: Mapping[str, bytes]
    """`input_files`, by path."""
    checks: Mapping[str, bytes]
    """`reward`, by path."""
    category: str
    digest: str
    """sha256 over all of it."""


def official_tasks(root: Path, split: Split) -> list[Task]:
    """The tasks of a split below `root`, which holds `clawgym_train` and `clawgym_eval`, by name.

    Raises:
        ConfigError: there is no such folder, or a task in it is not in the format.
    """
    folder = root / FOLDERS[split]
    found = sorted(path for path in folder.glob("*") if path.is_dir()) if folder.is_dir() else []
    if not found:
        raise ConfigError(
            f"{folder} holds no ClawGym tasks. Give the folder that holds {' and '.join(sorted({*FOLDERS.values()}))}."
        )
    if split is not Split.TEST:
        found = [path for index, path in enumerate(found) if (index % 10 == 9) is (split is Split.DEV)]
    return [as_task(path, split) for path in found]


def as_task(folder: Path, split: Split) -> Task:
    """The task in `folder`; its payload names the folder and a digest of what is in it.

    Raises:
        ConfigError: as `read`.
    """
    found = read(folder)
    payload = {"format": FORMAT, "folder": str(folder.resolve()), "digest": found.digest, "family": found.category or FORMAT}
    return Task(id=f"{folder.parent.name}-{found.id}", env="claw", split=split, seed=int(found.digest[:8], 16), payload=payload)


def is_official(payload: Mapping[str, Any]) -> bool:
    """True when the payload is one of `as_task`."""
    return payload.get("format") == FORMAT


def load(payload: Mapping[str, Any]) -> Official:
    """The task that the payload names.

    Raises:
        ConfigError: as `read`, or the folder no longer holds what it held.
    """
    found = read(Path(str(payload.get("folder", ""))))
    if found.digest != payload.get("digest"):
        raise ConfigError(f"{payload['folder']} is not what it was when the task was loaded. Load the tasks again.")
    return found


def read(folder: Path) -> Official:
    """The task in `folder`.

    Raises:
        ConfigError: a file is missing or not in the format; the message says which.
    """
    entry = folder / "data_entry.json"
    try:
        record = json.loads(entry.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{entry} cannot be read: {error}. Give the folder of a ClawGym task.") from error
    for key in ("task_id", "user_query"):
        if not isinstance(record, dict) or not isinstance(record.get(key), str) or not record[key].strip():
            raise ConfigError(f"{entry} must be an object with the text {key!r}.")
    files, checks = _tree(folder / "input_files"), _tree(folder / "reward")
    if "check.py" not in checks:
        raise ConfigError(f"{folder} has no reward/check.py, so nothing can be graded. Give the folder of a ClawGym task.")
    metadata = record.get("metadata")
    category = str(metadata.get("category", "")) if isinstance(metadata, dict) else ""
    digest = hashlib.sha256(json.dumps([record["task_id"], record["user_query"]]).encode())
    for kind, held in (("files", files), ("checks", checks)):
        for path, data in held.items():
            digest.update(f"\0{kind}/{path}\0{len(data)}\0".encode() + data)
    return Official(
        id=record["task_id"],
        query=record["user_query"].strip(),
        files=files,
        checks=checks,
        category=category,
        digest=digest.hexdigest(),
    )


def check(task: Official, root: Path, *, host: SandboxHost, limits: Limits) -> Grade:
    """What the task's checks say about the workspace of a dead sandbox; fails closed.

    Args:
        task: whose checks are run.
        root: the workspace's folder.
        host: makes the second sandbox.
        limits: of the first sandbox; the second may use as much and say more.

    Raises:
        SandboxError: the second sandbox failed, which is our failure and no grade.
    """
    try:
        left = copied(root)
    except Unreadable as error:
        return _failed(f"the workspace {error}")
    files = {f"workspace/{path}": data for path, data in left.items()} | {"workspace/": b""}
    files |= {f"reward/{path}": data for path, data in task.checks.items()}
    if left:
        del files["workspace/"]
    room = replace(
        limits,
        output_bytes=REPORT_BYTES,
        workspace_bytes=max(limits.workspace_bytes, 2 * COPIED_BYTES),
        workspace_files=max(limits.workspace_files, 4 * COPIED_FILES),
    )
    with host.open(files, room) as sandbox:
        result = sandbox.run("cd reward && python3 -I -B check.py ../workspace", timeout_s=CHECK_S)
    if result.timed_out:
        return _failed(f"the checks needed more than {CHECK_S:g} s")
    if result.exit_code != 0:
        said = result.stderr.decode("utf-8", "replace").strip().splitlines()
        return _failed(f"the checks ended with {result.exit_code}{': ' + said[-1][:200] if said else ''}")
    if result.stdout_size > len(result.stdout):
        return _failed(f"the checks printed {result.stdout_size} bytes")
    return graded(result.stdout)


def graded(report: bytes) -> Grade:
    """The grade in what the checks printed: one JSON object of numbers in [0, 1]."""
    try:
        scores = json.loads(report)
    except (ValueError, RecursionError):
        return _failed("the checks did not print one JSON value")
    if isinstance(scores, int | float) and not isinstance(scores, bool):
        scores = {"score": scores}
    if not isinstance(scores, dict) or not scores:
        return _failed("the checks printed no scores")
    verdicts, values = [], []
    for name, value in scores.items():
        known = isinstance(value, int | float) and 0.0 <= value <= 1.0
        values.append(float(value) if known else 0.0)
        reason = f"scored {values[-1]:g}" if known else f"is no number in [0, 1]: {str(value)[:60]!r}"
        verdicts.append(
            Verdict(kind="check", path=str(name), passed=values[-1] >= 1.0, reason="" if values[-1] >= 1.0 else reason)
        )
    return Grade(verdicts=tuple(verdicts), score=sum(values) / len(values))


def copied(root: Path) -> dict[str, bytes]:
    """The regular files of a dead sandbox's workspace; links, FIFOs and names that are no text are left behind.

    Raises:
        Unreadable: too much, too deep, or a folder that cannot be read.
    """
    found: dict[str, bytes] = {}
    room = COPIED_BYTES
    with Workspace(root) as workspace:
        paths = _files(root, "")
        if len(paths) > COPIED_FILES:
            raise Unreadable(f"holds {len(paths)} files, more than the {COPIED_FILES} that are checked")
        for path in paths:
            data = workspace.read(path, limit=room)
            room -= len(data)
            found[path] = data
    return found


def _files(root: Path, below: str, depth: int = 0) -> list[str]:
    """Paths of all regular files, in order. Nothing runs in `root` any more, so that looking twice sees the same."""
    if depth > MAX_DEPTH:
        raise Unreadable(f"is more than {MAX_DEPTH} folders deep")
    paths: list[str] = []
    try:
        with os.scandir(root / below) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                path = f"{below}/{entry.name}" if below else entry.name
                mode = entry.stat(follow_symlinks=False).st_mode
                if not _is_text(entry.name):
                    continue
                if stat.S_ISDIR(mode):
                    paths += _files(root, path, depth + 1)
                elif stat.S_ISREG(mode):
                    paths.append(path)
    except OSError as error:
        raise Unreadable(f"cannot be read ({os.strerror(error.errno or 0)})") from error
    return paths


def _is_text(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _failed(reason: str) -> Grade:
    return Grade(verdicts=(Verdict(kind="check", path="", passed=False, reason=reason),), score=0.0)


def _tree(folder: Path) -> dict[str, bytes]:
    """Path -> content of the regular files below `folder`; nothing when there is none."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
