"""What memory a model server gave back when it ended, and what still holds the rest.

A worker of a killed server can live on and keep all that it had; on machines whose GPU shares the system's memory that is
everything. Memory is measured without this process's own, which grows meanwhile.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from onthejob.serve.supervisor import MemoryUse, memory

PATIENCE_S = 10.0
"""Seconds that a driver may take to give back what is free."""
SMALL = 512 << 20
"""Bytes that may be missing without a word: other programs take and free memory meanwhile."""
SHARE = 0.25
"""Share of what the server held that may be missing."""
NAMED = 5
"""Holders that are named at most."""
WORTH_NAMING = 64 << 20
_SHARED = Path("/dev/shm")


class Holder(NamedTuple):
    """What holds memory after the server has ended."""

    name: str
    """`python (process 123)`, or a file in /dev/shm."""
    bytes: int
    kind: str
    """`system` or `gpu`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """One end of a model server; all in bytes."""

    why: str
    """`restart`, `killed` (it had ended by itself or was killed), or `stop`."""
    held: MemoryUse
    """By the server's processes; `gpu` None where the driver does not say."""
    freed: MemoryUse
    """What other programs than this one held less afterwards."""
    holders: tuple[Holder, ...] = ()
    """What holds memory now, the largest first; empty where all came back."""

    @property
    def missing(self) -> MemoryUse:
        """Held before and not given back, at least 0."""
        gpu = None if self.held.gpu is None or self.freed.gpu is None else max(0, self.held.gpu - self.freed.gpu)
        return MemoryUse(system=max(0, self.held.system - self.freed.system), gpu=gpu)

    @property
    def complete(self) -> bool:
        """What the server held has come back, but for what may be missing."""
        missing, held = self.missing, self.held
        pairs = [(missing.system, held.system), (missing.gpu or 0, held.gpu or 0)]
        return all(lost <= max(SMALL, SHARE * had) for lost, had in pairs)

    def as_dict(self) -> dict[str, Any]:
        """For the record; JSON."""
        return {
            "why": self.why,
            "held": asdict(self.held),
            "freed": asdict(self.freed),
            "complete": self.complete,
            "holders": [holder._asdict() for holder in self.holders],
        }

    def said(self) -> str:
        """One sentence for the log."""
        parts = [f"{_mib(self.freed.system)} of {_mib(self.held.system)} MiB of memory"]
        if self.held.gpu is not None and self.freed.gpu is not None:
            parts.append(f"{_mib(self.freed.gpu)} of {_mib(self.held.gpu)} MiB of GPU memory")
        return f"the model server ended ({self.why}) and gave back {' and '.join(parts)}"

    def warning(self) -> str:
        """What is said when memory is missing."""
        held_by = ", ".join(f"{holder.name} {_mib(holder.bytes)} MiB ({holder.kind})" for holder in self.holders)
        return (
            f"{self.said()}. What holds memory now: {held_by or 'nothing that can be seen'}. End it, or the next start may fail."
        )


class Meter:
    """Measures memory on this machine."""

    def beside(self) -> MemoryUse:
        """In use by other programs than this one."""
        used = memory()
        own = self.held_by([os.getpid()])
        return MemoryUse(system=used.system - own.system, gpu=None if used.gpu is None else used.gpu - (own.gpu or 0))

    def held_by(self, processes: Collection[int]) -> MemoryUse:
        """By these processes; memory that several share is divided among them."""
        on_gpu = _gpu_processes()
        known = None if on_gpu is None or not (own := [on_gpu[pid] for pid in processes if pid in on_gpu]) else sum(own)
        return MemoryUse(system=sum(map(_proportional, processes)), gpu=known)

    def server(self, processes: Collection[int], idle: MemoryUse) -> MemoryUse:
        """By a server of these processes that has just started, where `idle` was in use by other programs before.

        Where the driver does not say what processes hold (in containers, and where GPU and system share their memory), what the
        start added is the server's.
        """
        held, now = self.held_by(processes), self.beside()
        if held.gpu is not None or shutil.which("nvidia-smi") is None:
            return held
        if now.gpu is not None and idle.gpu is not None:
            return MemoryUse(system=held.system, gpu=max(0, now.gpu - idle.gpu))
        return MemoryUse(system=max(held.system, now.system - idle.system), gpu=None)

    def holders(self, since: float) -> tuple[Holder, ...]:
        """What holds memory and began after `since` (Unix time), or holds GPU memory; without this process."""
        found = [
            Holder(_named(pid), size, "gpu") for pid, size in (_gpu_processes() or {}).items() if pid != os.getpid()
        ]  # fmt: skip
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid() and _begun(int(entry.name)) >= since:
                found.append(Holder(_named(int(entry.name)), _proportional(int(entry.name)), "system"))
        if _SHARED.is_dir():
            found += [Holder(str(path), _blocks(path), "system") for path in _SHARED.iterdir() if _mtime(path) >= since]
        large = sorted((holder for holder in found if holder.bytes >= WORTH_NAMING), key=lambda holder: -holder.bytes)
        return tuple(large[:NAMED])


def account(
    why: str,
    *,
    held: MemoryUse,
    before: MemoryUse,
    since: float,
    meter: Meter,
    patience_s: float = PATIENCE_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Freed:
    """What an ended server gave back.

    Args:
        why: it ended.
        held: by its processes before.
        before: in use by other programs than this one before.
        since: Unix time of its start.
        meter: measures.
        patience_s: how long is waited for memory that is missing.
        sleep: waits.
    """
    left = patience_s
    while True:
        after = meter.beside()
        gpu = None if before.gpu is None or after.gpu is None else before.gpu - after.gpu
        done = Freed(why=why, held=held, freed=MemoryUse(system=before.system - after.system, gpu=gpu))
        if done.complete:
            return done
        if left <= 0:
            return Freed(why=why, held=held, freed=done.freed, holders=meter.holders(since))
        sleep(0.5)
        left -= 0.5


def _proportional(pid: int) -> int:
    """Memory of a process, bytes, without mapped files, which the system may drop; 0 when it is gone or not ours to see."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith(("Pss_Anon:", "Pss_Shmem:")))


def _gpu_processes() -> dict[int, int] | None:
    """Process -> bytes of GPU memory; None without an NVIDIA GPU, empty where the driver names no processes (containers)."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found: dict[int, int] = {}
    for line in done.stdout.splitlines():
        pid, _, size = line.partition(",")
        if pid.strip().isdigit() and size.strip().isdigit():
            found[int(pid)] = found.get(int(pid), 0) + (int(size) << 20)
    return found


def _named(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        name = "a process of another user or container"
    return f"{name} (process {pid})"


def _begun(pid: int) -> float:
    """Unix time at which a process began, to a second; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        about = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    booted = next(int(line.split()[1]) for line in about if line.startswith("btime "))
    return booted + int(fields[19]) / os.sysconf("SC_CLK_TCK") + 1.0


def _mtime(path: Path) -> float:
    """Unix time of a file's last change; 0 when it is gone."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _blocks(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


def _mib(size: int) -> str:
    return f"{size >> 20:,}"
