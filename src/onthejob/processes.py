"""Pools of worker processes that end with the process that made them, however that ends: also when it is killed.

A worker begins to watch its parent before it imports what it works with, which may take many seconds on a busy machine: this
module imports the standard library only, and lies outside the rooms whose packages import more.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection, util
from multiprocessing.managers import SyncManager
from pathlib import Path
from queue import Queue
from typing import Any


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """A pool of `workers` >= 1 processes, none of which outlives this one.

    They are spawned. A process in which torch has started threads can deadlock when it is forked; a server that forks would
    stand between the workers and this process, and leaves its socket's folder behind when this process is killed.
    """
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=end_with_parent)


@contextmanager
def message_queue() -> Iterator[Queue[Any]]:
    """A queue that can be handed to what runs in a `worker_pool`, kept by a process that does not outlive this one either."""
    context = multiprocessing.get_context("spawn")
    if sys.platform == "linux":
        # A name and no file: below a deep temporary folder the path of a socket is too long, and a file outlives a kill.
        manager = SyncManager(f"\0onthejob-{secrets.token_hex(16)}", ctx=context)
        manager.start(initializer=end_with_parent)
    else:
        folder = util.get_temp_dir()  # the manager's process takes it for its socket too
        manager = SyncManager(ctx=context)
        manager.start(initializer=remove_with_parent, initargs=(folder,))
    with manager:
        yield manager.Queue()


def end_with_parent() -> None:
    """Called in a child: it is killed as soon as its parent is gone, whatever it is doing or waiting for."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        if sys.platform == "linux":
            _kill_at_hangup(parent.sentinel)
        # Elsewhere, and where the parent is gone already.
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def end_with_pipe(pipe: int) -> None:
    """Called in a program whose parent holds the other end of `pipe` and writes nothing: it is killed once the parent is gone."""
    if sys.platform == "linux":
        _kill_at_hangup(pipe)
    threading.Thread(target=_end_after, args=(pipe,), daemon=True).start()


def remove_with_parent(folder: str) -> None:
    """Called in a child that is mostly idle: when its parent is gone it removes the parent's `folder` and ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel, folder), daemon=True).start()


def _kill_at_hangup(pipe: int) -> None:
    """Have the kernel kill this process when the other end of `pipe` is closed, also while an import holds Python's lock.

    Not PR_SET_PDEATHSIG: that kills when the thread ends that made this process, which may have been one among many.
    """
    import fcntl

    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


def _end_after(sentinel: int, folder: str = "") -> None:
    """End this process when the sentinel becomes readable, which it does when the parent is gone."""
    connection.wait([sentinel])
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def children() -> dict[int, str]:
    """Process id -> name of this process's running children; empty where the system does not say (no /proc).

    Those that run a file of this package, e.g. the one in which verifiers runs, are not among them: the package ends them itself.
    """
    return {pid: name for pid, name in _children().items() if not _is_of_package(pid)}


def _children() -> dict[int, str]:
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it has ended in the meantime
        name, _, rest = text.partition("(")[2].rpartition(") ")
        state, parent = rest.split()[:2]
        if int(parent) == os.getpid() and state != "Z":
            found[int(folder.name)] = name
    return found


def _is_of_package(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.startswith(os.fsencode(Path(__file__).parent) + b"/") for word in words)
