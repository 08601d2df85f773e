"""Tasks in the format of the public ClawGym repository, from a folder that the user names; none of its files are ours.

    task_0000/data_entry.json       task_id, user_query, input_mount_dir, metadata
    task_0000/input_files/**        the workspace at the start
    task_0000/reward/check.py       prints {"name of a check": 0.0 to 1.0, ...} for a workspace; the score is their mean
    task_0000/reward/reward.sh      calls check.py and prints the mean; not run here

Running the checks is `onthejob.envs.claw.checks`.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onthejob.envs.claw.needs import Needs, needs_of
from onthejob.envs.claw.sandbox.sandbox_interface import Content, Item, Kind, as_item
from onthejob.envs.claw.separation import why_inseparable
from onthejob.errors import ConfigError
from onthejob.types import Split, Task

FORMAT = "clawgym"
MARK = "checks_run_agent_code"
"""Key of a payload whose task is graded by checks that may run the agent's code with their own rights; the value says why."""
FOLDERS = {Split.TRAIN: "clawgym_train", Split.DEV: "clawgym_train", Split.TEST: "clawgym_eval"}
"""Where the tasks of a split lie; every tenth training task is for dev."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Official:
    """One task as it lies in its folder."""

    id: str
    query: str
    files: Mapping[str, Content]
    """`input_files`, by path."""
    checks: Mapping[str, bytes]
    """`reward`, by path."""
    category: str
    digest: str
    """sha256 over all of it."""

    @property
    def needs(self) -> Needs:
        """What its checks need of a machine."""
        return needs_of(self.checks, own=" ".join([self.query, *self.files]))

    @property
    def checks_run_agent_code(self) -> str:
        """The reason why a program of the agent's could write its own grade; empty when it cannot."""
        return why_inseparable(self.checks)


def official_tasks(root: Path, split: Split) -> list[Task]:
    """The tasks of a split below `root`, which holds `clawgym_train` and `clawgym_eval`, by name.

    Raises:
        ConfigError: there is no such folder, or a task in it is not in the format.
    """
    return [as_task(folder, split) for folder in _folders(root, split)]


def checkable(root: Path, split: Split) -> tuple[list[Task], dict[str, list[str]]]:
    """As `official_tasks`, those whose checks can run here; and the id of every other task with what it lacks.

    Raises:
        ConfigError: as `official_tasks`.
    """
    found = [(folder, read(folder)) for folder in _folders(root, split)]
    tasks = [_as_task(folder, split, task) for folder, task in found]
    needs = [task.needs for _, task in found]
    absent = set(Needs.of_all(needs).missing())
    lacking = {
        task.id: sorted(need.names & absent) for task, need in zip(tasks, needs, strict=True) if not need.names.isdisjoint(absent)
    }
    return [task for task in tasks if task.id not in lacking], lacking


def _folders(root: Path, split: Split) -> list[Path]:
    folder = root / FOLDERS[split]
    found = sorted(path for path in folder.glob("*") if path.is_dir()) if folder.is_dir() else []
    if not found:
        raise ConfigError(
            f"{folder} holds no ClawGym tasks. Give the folder that holds {' and '.join(sorted({*FOLDERS.values()}))}."
        )
    if split is not Split.TEST:
        found = [path for index, path in enumerate(found) if (index % 10 == 9) is (split is Split.DEV)]
    return found


def as_task(folder: Path, split: Split) -> Task:
    """The task in `folder`; its payload names the folder and a digest of what is in it, and has `MARK` where that holds.

    Raises:
        ConfigError: as `read`.
    """
    return _as_task(folder, split, read(folder))


def _as_task(folder: Path, split: Split, found: Official) -> Task:
    payload = {"format": FORMAT, "folder": str(folder.resolve()), "digest": found.digest, "family": found.category or FORMAT}
    if reason := found.checks_run_agent_code:
        payload[MARK] = reason
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
    require_unchanged(payload, found.digest)
    return found


def require_unchanged(payload: Mapping[str, Any], digest: str) -> None:
    """Refuse a folder that has changed since its task was loaded.

    `digest` is that of the folder now; `payload` names the folder and the digest of then.

    Raises:
        ConfigError: the digests differ.
    """
    if digest != payload.get("digest"):
        raise ConfigError(f"{payload['folder']} is not what it was when the task was loaded. Load the tasks again.")


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
    files = tree_of(folder / "input_files")
    checks = {path: as_item(path, item).data for path, item in tree_of(folder / "reward").items() if not path.endswith("/")}
    if "check.py" not in checks:
        raise ConfigError(f"{folder} has no reward/check.py, so nothing can be graded. Give the folder of a ClawGym task.")
    metadata = record.get("metadata")
    category = str(metadata.get("category", "")) if isinstance(metadata, dict) else ""
    digest = hashlib.sha256(json.dumps([record["task_id"], record["user_query"]]).encode())
    add_tree(digest, "files", files)
    add_tree(digest, "checks", checks)
    return Official(
        id=record["task_id"],
        query=record["user_query"].strip(),
        files=files,
        checks=checks,
        category=category,
        digest=digest.hexdigest(),
    )


def add_tree(digest: hashlib._Hash, name: str, held: Mapping[str, Content]) -> None:
    """Add the files of a folder to a task's digest: paths, contents, and whether they may be executed."""
    for path, content in held.items():
        item = as_item(path, content)
        digest.update(f"\0{name}/{path}\0{len(item.data)}\0".encode() + item.data)
        if item.mode & stat.S_IXUSR and item.kind is Kind.FILE:
            digest.update(b"\0executable")


def tree_of(folder: Path) -> dict[str, Content]:
    """Path -> content of what lies below `folder`; nothing when there is none.

    A file that its owner may execute is an item of mode 755, as git has it, and an empty folder's path ends with `/`. Links are
    omitted.
    """
    found: dict[str, Content] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            continue
        if path.is_file():
            data = path.read_bytes()
            found[name] = Item(data=data, mode=0o755) if path.stat().st_mode & stat.S_IXUSR else data
        elif path.is_dir() and not any(path.iterdir()):
            found[f"{name}/"] = b""
    return found
