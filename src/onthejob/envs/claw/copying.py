"""A dead sandbox's workspace as items for another one: with modes, times, empty folders, and links that stay inside.

A link is kept when following it, component by component and through other links, never leaves the workspace. One that leaves
it is left behind: a check would read something else through it than the agent's work, its own answers perhaps. Left behind are
also FIFOs, sockets and devices, on which a check would wait.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from onthejob.envs.claw.sandbox.sandbox_interface import MIB, WORKSPACE, Item, Kind, Limits
from onthejob.envs.claw.workspace import Unreadable, Workspace

COPIED_BYTES = 48 * MIB
"""What is copied of a workspace, at most; a larger one cannot be checked."""
COPIED_FILES = 4_096
"""The same in files, folders and links."""
MAX_DEPTH = 32
"""Folders deep; what lies deeper cannot be checked."""
MAX_LINKS = 40
"""Links on the way of one path; the kernel's own limit."""


def copied(root: Path, keep: Callable[[str, Mapping[str, Item]], bool] | None = None) -> dict[str, Item]:
    """What a dead sandbox left, by path; what its owner may not read is made readable, as it is for root.

    Args:
        root: its folder.
        keep: whether a link at a path, among all that was left, is taken along; None takes those that stay inside.

    Raises:
        Unreadable: too much, too deep, or a folder that cannot be read.
    """
    with Workspace(root) as workspace:
        walk = _Walk(workspace, root)
        walk.add("", 0)
    items = walk.found
    keep = keep or stays_inside
    return {path: item for path, item in items.items() if item.kind is not Kind.LINK or keep(path, items)}


def roomy(limits: Limits) -> Limits:
    """Limits under which a copy of any workspace fits that could be read, with room for what checks write."""
    return replace(
        limits,
        workspace_bytes=max(limits.workspace_bytes, 2 * COPIED_BYTES),
        workspace_files=max(limits.workspace_files, 4 * COPIED_FILES),
    )


class _Walk:
    """Everything below a folder, in order. Nothing runs there any more, so that looking twice sees the same."""

    def __init__(self, workspace: Workspace, root: Path) -> None:
        self.found: dict[str, Item] = {}
        self._workspace, self._root = workspace, root
        self._room = COPIED_BYTES

    def add(self, below: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise Unreadable(f"is more than {MAX_DEPTH} folders deep")
        try:
            with os.scandir(self._root / below) as entries:
                listed = sorted((entry.name, entry.stat(follow_symlinks=False)) for entry in entries)
        except OSError as error:
            raise Unreadable(f"cannot be read ({os.strerror(error.errno or 0)})") from error
        for name, status in listed:
            if len(self.found) >= COPIED_FILES:
                raise Unreadable(f"holds more than the {COPIED_FILES} files, folders and links that are checked")
            path = f"{below}/{name}" if below else name
            item = self._item(path, status)
            if item is not None:
                self.found[path] = item
            if stat.S_ISDIR(status.st_mode):
                self.add(path, depth + 1)

    def _item(self, path: str, status: os.stat_result) -> Item | None:
        mode, mtime_ns = stat.S_IMODE(status.st_mode), status.st_mtime_ns
        if stat.S_ISDIR(status.st_mode):
            return Item(kind=Kind.FOLDER, mode=mode | stat.S_IRWXU, mtime_ns=mtime_ns)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(self._root / path)  # noqa: PTH115 - the link's text, not a path
            return Item(kind=Kind.LINK, data=os.fsencode(target), mtime_ns=mtime_ns)
        if not stat.S_ISREG(status.st_mode):
            return None
        data = self._workspace.read(path, limit=self._room)
        self._room -= len(data)
        return Item(data=data, mode=mode | stat.S_IRUSR, mtime_ns=mtime_ns)


def stays_inside(path: str, items: Mapping[str, Item], *, workspace: str = WORKSPACE, forbidden: Collection[str] = ()) -> bool:
    """True when the kernel, following the link at `path`, looks at nothing outside of the workspace.

    Args:
        path: of the link.
        items: all that is in the workspace.
        workspace: its path inside; where it is `/`, nothing is outside.
        forbidden: names in the workspace's own folder that count as outside.
    """
    base = workspace.rstrip("/")
    place, todo, links = path.split("/")[:-1], [path.split("/")[-1]], 0
    while todo:
        part = todo.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            if place:
                place.pop()
            elif base:
                return False
            continue
        item = items.get("/".join([*place, part]))
        if item is None or item.kind is not Kind.LINK:
            place.append(part)
            if place[0] in forbidden:
                return False
            continue
        links += 1
        target = os.fsdecode(item.data)
        if links > MAX_LINKS:
            return False
        if target.startswith("/"):
            # Every absolute path begins outside; only the workspace's own comes back in.
            if not f"{target}/".startswith(f"{base}/"):
                return False
            place, target = [], target.removeprefix(base)
        todo = [*target.split("/"), *todo]
    return True
