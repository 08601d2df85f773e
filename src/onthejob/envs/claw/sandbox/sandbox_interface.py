"""What a sandbox promises, whatever it is made of: limits in, results out, a dead workspace for the grader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol, Self

from onthejob.envs.claw.sandbox.arguments import BESIDE, INSIDE_UID
from onthejob.errors import ConfigError

MIB = 1 << 20
WORKSPACE = "/work"
"""The workspace's path inside."""
SYSTEM_NAMES = frozenset({"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "proc", "dev", "run"})
"""Folders of `/` that are the system's in every layout."""
NOT_RUN = 126
"""Exit code of a command that could not be given to bash (NUL byte, lone surrogate, too long); bash's own "cannot execute"."""
TIMED_OUT = 124
"""Exit code of a command that was killed at its timeout; that of coreutils' `timeout`."""
DIED = 137
"""Exit code of a command during which the whole sandbox died (out of memory): 128 + SIGKILL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one sandbox may use. All are enforced by the kernel; which of them are active is in the host's report."""

    workspace_bytes: int = 64 * MIB
    """Size of the workspace, bytes; writing more is ENOSPC."""
    workspace_files: int = 8_192
    """Files and folders in the workspace; creating more is ENOSPC."""
    tmp_bytes: int = 32 * MIB
    """Size of `/tmp` and `/dev/shm` together, bytes."""
    tmp_files: int = 2_048
    """Files and folders in `/tmp` and `/dev/shm` together."""
    processes: int = 64
    """Processes and threads alive at once, pid 1 included; forking more is EAGAIN."""
    memory_bytes: int = 256 * MIB
    """Memory of all processes and of the files in memory together, bytes. Active with a memory cgroup only."""
    address_bytes: int = 1_024 * MIB
    """Address space of one process, bytes."""
    file_bytes: int = 64 * MIB
    """Size of one file, bytes; more is SIGXFSZ."""
    open_files: int = 256
    """File descriptors of one process."""
    output_bytes: int = 16_384
    """How much of stdout, and of stderr, is kept, bytes; the true size is always reported."""
    command_bytes: int = MIB
    """Longest command, UTF-8 bytes; a longer one is not run."""
    start_s: float = 60.0
    """Seconds a sandbox may take to start."""
    grace_s: float = 30.0
    """Outer wall clock: seconds after a command's timeout in which pid 1 must have answered; then the sandbox is restarted."""

    def __post_init__(self) -> None:
        """Refuse limits that no command could live under.

        Raises:
            ConfigError: A limit is below its minimum.
        """
        minimum = {"processes": 4, "address_bytes": 64 * MIB, "memory_bytes": 32 * MIB, "open_files": 16}
        minimum |= {"workspace_bytes": 4_096, "workspace_files": 4, "tmp_bytes": 4_096, "tmp_files": 4}
        minimum |= {"file_bytes": 4_096, "output_bytes": 2, "command_bytes": 1, "start_s": 0.1, "grace_s": 0.1}
        # Not by `setting_ranges`: `make sandbox` runs this before any package is installed.
        for name, least in minimum.items():
            if not getattr(self, name) >= least:
                raise ConfigError(f"sandbox limit {name} must be >= {least}, got {getattr(self, name)}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What one command did. A command that fails, floods or hangs is data, never an exception."""

    exit_code: int
    """bash's exit code, 0-255; 128 + n when it was killed by signal n; 124 at the timeout; 126 when it could not be run."""
    stdout: bytes
    """What was kept. When `stdout_size` is larger, the first half is the beginning and the rest is the end of the output."""
    stderr: bytes
    stdout_size: int
    """Bytes written in all."""
    stderr_size: int
    timed_out: bool
    wall_s: float
    """Seconds from handing the command over to its result, monotonic."""
    restarted: bool = False
    """True when the sandbox died or stopped answering, and was started again on the same workspace."""
    shell_ended: bool = False
    """True when the persistent shell ended with the command (`exit`, `exec`, a timeout), and the next one begins another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLayout:
    """Where the files of a sandbox lie inside, and which user its commands run as."""

    root: bool = False
    """The files are `/` itself, all of it writable but for the folders of the system (/usr, /bin, /lib and the like, /proc, /dev,
    /run), and commands run as user 0 without any capability. Else they are `WORKSPACE`, all else is read-only, and commands run
    as user 1000."""
    beside: str = BESIDE
    """Path inside of the second, read-only folder: absolute, one folder below `/`."""

    @property
    def uid(self) -> int:
        """The user and group of commands, as they see them."""
        return 0 if self.root else INSIDE_UID


class Layer(NamedTuple):
    """One layer of isolation on this machine."""

    name: str
    active: bool
    detail: str
    """How it is done, or why not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """What isolates the sandboxes of a host; backend and active layers are recorded with every trajectory."""

    backend: str
    """`bwrap`, or `unsafe` (plain subprocess, no isolation)."""
    layers: tuple[Layer, ...]

    def active(self, name: str) -> bool:
        """True when the layer exists and is active."""
        return any(layer.active for layer in self.layers if layer.name == name)


class ItemKind(StrEnum):
    """What a `WorkspaceItem` is."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    """A symbolic link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceItem:
    """One file, folder or symbolic link to put into a workspace."""

    kind: ItemKind = ItemKind.FILE
    data: bytes = b""
    """Content of a file; target of a link, as its bytes; empty for a folder."""
    mode: int = 0o644
    """Permission bits; a link has none of its own."""
    mtime_ns: int | None = None
    """Time of the last modification, nanoseconds since 1970; None for the moment of writing."""


Content = bytes | WorkspaceItem
"""A file's bytes, or an item with its mode and time."""


class TreeEntry(NamedTuple):
    """One file, link or empty folder of a workspace."""

    mark: str
    """Differs when the content differs."""
    size: int | None
    """Bytes of a regular file."""


class Sandbox(Protocol):
    """One episode's place to work."""

    @property
    def backend(self) -> str:
        """As `HostReport.backend`."""
        ...

    def run(self, command: str, *, timeout_s: float = 10.0, start: str = "", persistent: bool = False) -> CommandResult:
        """Run `command` in a fresh `bash -c` at the workspace's root; `cd` and variables do not persist, files do.

        stdin is empty. Every process that the command left is dead when this returns.

        With `persistent` the command runs in a bash that begins with the first such call and stays: its folder, variables,
        functions, options and background processes are there in the next one. Between two calls all of them are stopped
        (SIGSTOP), so that only the time of calls counts. The shell ends, with all that it started, when a command ends it
        (`exit`, `exec`, a failure under `set -e`), at a timeout, and with the next call without `persistent`.

        Args:
            command: Any text. One with NUL bytes or lone surrogates, or a too long one, gives exit code 126.
            timeout_s: Seconds after which everything is killed, > 0.
            start: Bash text before the command, without a line break; with `persistent` only where a shell begins.
            persistent: Run it in the shell that stays.

        Raises:
            ConfigError: `timeout_s` is not a positive number, or this sandbox has no persistent shell.
            ContractError: The sandbox was collected or closed.
            SandboxError: The sandbox died and could not be started again.
        """
        ...

    @property
    def beside(self) -> str:
        """Path inside of the read-only folder that was given to `SandboxHost.open`; empty without one."""
        ...

    def survey(self) -> Mapping[str, TreeEntry]:
        """What the workspace holds between two commands, when nothing runs: path -> entry. To show what a command changed.

        Bounded: what lies too deep or is too many is omitted (see `survey` in `sandbox.surveying`).

        Raises:
            ContractError: The sandbox was closed.
        """
        ...

    def collect(self) -> Path:
        """Kill everything inside, wait until it is gone, and return the workspace's root for reading.

        The root is a real folder: `os.open(root, O_DIRECTORY | O_NOFOLLOW)` works in this process (another process cannot use
        the path). It holds whatever the agent left: symbolic links, FIFOs, any bytes in names. Valid until `close`; calling
        again returns the same path.

        Raises:
            ContractError: The sandbox was closed.
            SandboxError: The processes inside could not be proven dead, so nothing may be graded.
        """
        ...

    def close(self) -> None:
        """Kill what runs and remove everything. May be called again."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class SandboxHost(Protocol):
    """Makes sandboxes, and sees to it that none outlives this process."""

    @property
    def report(self) -> HostReport: ...

    def open(
        self,
        files: Mapping[str, Content],
        limits: Limits | None = None,
        *,
        beside: Mapping[str, Content] | None = None,
        layout: SandboxLayout | None = None,
    ) -> Sandbox:
        """A new sandbox whose workspace holds `files`.

        Args:
            files: Path relative to the workspace -> content. A path that ends with `/` is an empty folder (content `b""`).
            limits: None for the defaults.
            beside: The same for a second folder outside of the workspace, which nothing inside can change.
            layout: Where both lie inside; None for the usual one. With `root` no path may begin with a name of `SYSTEM_NAMES`.

        Raises:
            ConfigError: A path is absolute, empty, leaves the workspace, is used twice or as a folder, or the files do not fit.
            ContractError: The host was closed.
            SandboxError: The sandbox could not be started.
        """
        ...

    def close(self) -> None:
        """Close all sandboxes. May be called again."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def checked_paths(files: Mapping[str, Content], layout: SandboxLayout | None = None) -> dict[PurePosixPath, WorkspaceItem]:
    """The items to write, in an order in which folders come before what is in them.

    Raises:
        ConfigError: A path is not a plain relative one, two paths cannot both exist, or one is the system's in this layout.
    """
    made: dict[PurePosixPath, WorkspaceItem] = {}
    for name, content in files.items():
        path = PurePosixPath(name)
        parts = name.removesuffix("/").split("/")
        if "\0" in name or any(part in ("", ".", "..") or len(part.encode("utf-8", "replace")) > 255 for part in parts):
            raise ConfigError(f"a workspace path must be relative, without empty, `.` or `..` parts, got {name!r}.")
        if layout is not None and layout.root and parts[0] in SYSTEM_NAMES:
            raise ConfigError(f"/{parts[0]} is a folder of the system and takes no files, got {name!r}.")
        if path in made:
            raise ConfigError(f"the workspace path {name!r} is given twice.")
        made[path] = as_item(name, content)
    for path in made:
        for parent in path.parents:
            if parent in made and made[parent].kind is not ItemKind.FOLDER:
                raise ConfigError(f"the workspace path {str(parent)!r} is a {made[parent].kind} and cannot hold {path.name!r}.")
    return dict(sorted(made.items()))


def as_item(name: str, content: Content) -> WorkspaceItem:
    """The item at a path; plain bytes are a file, or an empty folder where the path ends with `/`.

    Raises:
        ConfigError: A folder came with content.
    """
    if isinstance(content, WorkspaceItem):
        item = content
    elif name.endswith("/"):
        item = WorkspaceItem(kind=ItemKind.FOLDER, data=bytes(content), mode=0o755)
    else:
        return WorkspaceItem(data=bytes(content))
    if (item.kind is ItemKind.FOLDER or name.endswith("/")) and item.data:
        raise ConfigError(f"a workspace path that ends with / is an empty folder; {name!r} came with {len(item.data)} bytes.")
    return item
