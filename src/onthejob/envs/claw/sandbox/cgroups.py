"""Process and memory limits of a whole sandbox, with control groups of version 1 or 2, where this process may make them.

A host's groups are named `onthejob-<pid namespace>-<pid>-<start time>`, so that a later host on the same machine can tell
which of them belong to a process that is gone, and remove them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PREFIX = "onthejob"
REMOVE_S = 10.0


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """One folder of a control group hierarchy in which this host may make groups."""

    path: Path
    version: int
    controllers: tuple[str, ...]
    """`pids`, `memory` or both."""


class Cgroups:
    """The groups of one host."""

    def __init__(self) -> None:
        self.groups: list[ControlGroup] = []
        self.problems: dict[str, str] = {}
        """Controller -> why it cannot be used."""
        for controller in ("pids", "memory"):
            if any(controller in group.controllers for group in self.groups):
                continue
            self.problems[controller] = "no hierarchy has this controller"
            for version, folder in candidates(controller):
                if version == 2 and any(group.path.parent == folder for group in self.groups):
                    # Without this controller; trying again there would remove the group that works.
                    self.problems[controller] = f"{folder}: the controller is not enabled there"
                    continue
                sweep(folder)
                try:
                    self.groups.append(self._claim(folder, version, controller))
                except OSError as error:
                    self.problems[controller] = f"{folder}: {error.strerror}"
                else:
                    del self.problems[controller]
                    break

    def detail(self, controller: str) -> str:
        """How the controller is used, or why not."""
        for group in self.groups:
            if controller in group.controllers:
                return f"cgroup v{group.version}"
        return self.problems[controller]

    def make(self, name: str, *, processes: int, memory: int) -> list[Path]:
        """One group per hierarchy, with its limits set and read back.

        Raises:
            OSError: A limit cannot be set.
        """
        made = []
        try:
            for group in self.groups:
                path = group.path / name
                path.mkdir()
                made.append(path)
                if "pids" in group.controllers:
                    limit(path / "pids.max", processes)
                if "memory" in group.controllers and group.version == 2:
                    limit(path / "memory.max", memory)
                    limit_if_there(path / "memory.swap.max", 0)
                elif "memory" in group.controllers:
                    limit(path / "memory.limit_in_bytes", memory)
                    limit_if_there(path / "memory.memsw.limit_in_bytes", memory)
        except OSError:
            self.remove(made)
            raise
        return made

    def remove(self, paths: list[Path]) -> list[Path]:
        """Kill what is in the groups and remove them; returns those that would not go."""
        return [path for path in paths if not remove(path)]

    def close(self) -> None:
        """Remove everything of this host."""
        for group in self.groups:
            remove_tree(group.path)
        self.groups.clear()

    def _claim(self, folder: Path, version: int, controller: str) -> ControlGroup:
        """Make this host's folder, and prove with a child process that limits and membership work."""
        path = folder / own_name()
        path.mkdir(exist_ok=True)
        try:
            found = (controller,)
            if version == 2:
                offered = (path / "cgroup.controllers").read_text().split()
                found = tuple(name for name in ("pids", "memory") if name in offered)
                (path / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in found))
                if controller not in found:
                    raise OSError(2, "the controller is not enabled here")
            group = ControlGroup(path, version, found)
            trial = path / "trial"
            trial.mkdir()
            file, value = ("pids.max", 64) if controller == "pids" else (memory_file(version), 1 << 30)
            limit(trial / file, value)
            join_and_leave(trial)
            if not remove(trial):
                raise OSError(16, "a group with no process cannot be removed")
        except OSError:
            remove_tree(path)
            raise
        return group


def memory_file(version: int) -> str:
    """Name of the file that holds the memory limit."""
    return "memory.max" if version == 2 else "memory.limit_in_bytes"


def join_and_leave(group: Path) -> None:
    """A child enters the group and ends; raises OSError when it may not."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            join([group])
            code = 0
        except OSError as error:
            code = error.errno or 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 0:
        raise OSError(code, f"a process may not enter: {os.strerror(code)}")


def join(groups: list[Path]) -> None:
    """Move this process into the groups."""
    for group in groups:
        # Not through a text file's buffers: the child of a fork should touch little.
        file = os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, b"0")
        finally:
            os.close(file)


def limit(file: Path, value: int) -> None:
    """Write a limit and see that it holds (the kernel may round memory down to pages)."""
    file.write_text(str(value))
    found = file.read_text().strip()
    if not found.isdigit() or not value - 65_536 < int(found) <= value:
        raise OSError(22, f"{file.name} is {found!r} after {value} was written")


def limit_if_there(file: Path, value: int) -> None:
    """Limit swap where the kernel counts it."""
    try:
        file.write_text(str(value))
    except OSError:
        return


def candidates(controller: str, *, proc: Path = Path("/proc/self")) -> Iterator[tuple[int, Path]]:
    """Version and folder where the process of `proc` might make groups: its own one first, then the ones above."""
    mine: dict[str, str] = {}
    for line in (proc / "cgroup").read_text(encoding="utf-8").splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            mine[name] = path
    for line in (proc / "mountinfo").read_text(encoding="utf-8").splitlines():
        left, right = line.split(" - ", 1)
        root, mount = left.split(" ")[3:5]
        kind, _, options = right.split(" ")[:3]
        if kind == "cgroup" and controller in options.split(","):
            version, own = 1, mine.get(controller, "/")
        elif kind == "cgroup2":
            version, own = 2, mine.get("", "/")
        else:
            continue
        top = Path(mount)
        inner = own.removeprefix(root if root != "/" else "").strip("/")
        folder = top / inner
        # A path that leads outside (the process was moved) stands for the top.
        if ".." in folder.parts or not folder.is_dir():
            folder = top
        while True:
            yield version, folder
            if folder == top:
                break
            folder = folder.parent


def own_name() -> str:
    """Name of this process's groups."""
    return f"{PREFIX}-{Path('/proc/self/ns/pid').stat().st_ino}-{os.getpid()}-{start_time(os.getpid())}"


def start_time(pid: int) -> str | None:
    """Clock ticks between boot and the start of process `pid`; None when it does not exist or is dead and not yet reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def sweep(folder: Path) -> None:
    """Remove the groups of hosts that are gone, and kill what is still in them."""
    own = f"{PREFIX}-{Path('/proc/self/ns/pid').stat().st_ino}-"
    try:
        found = [path for path in folder.iterdir() if path.name.startswith(own)]
    except OSError:
        return
    for path in found:
        pid, _, started = path.name.removeprefix(own).partition("-")
        if pid.isdigit() and start_time(int(pid)) != started:
            remove_tree(path)


def remove_tree(path: Path) -> None:
    """Remove a group and the groups in it."""
    try:
        children = [child for child in path.iterdir() if child.is_dir()]
    except OSError:
        return
    for child in children:
        remove_tree(child)
    remove(path)


def remove(path: Path) -> bool:
    """Kill the members and remove the group; False when it is still there after ten seconds."""
    deadline = time.monotonic() + REMOVE_S
    while True:
        try:
            path.rmdir()
            return True
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() > deadline:
                return False
        try:
            for pid in (path / "cgroup.procs").read_text().split():
                # 0 stands for a process that this pid namespace cannot name; `kill(0)` would be ourselves.
                if int(pid) > 0:
                    os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass
        time.sleep(0.002)
