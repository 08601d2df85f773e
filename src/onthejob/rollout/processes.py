"""Pools of worker processes that end with the process that made them, however that ends: also when it is killed."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection
from multiprocessing.managers import SyncManager
from queue import Queue
from typing import Any, Literal

# Not fork: a process in which torch has started threads can deadlock when forked.
Method = Literal["spawn", "forkserver"]


def worker_pool(workers: int, *, method: Method = "spawn") -> ProcessPoolExecutor:
    """A pool whose processes do not outlive this one.

    Args:
        workers: processes, >= 1.
        method: how they are started; `forkserver`, where there is one, starts many of them sooner.
    """
    known = method if method in multiprocessing.get_all_start_methods() else "spawn"
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(known), initializer=end_with_parent)


@contextmanager
def message_queue() -> Iterator[Queue[Any]]:
    """A queue that can be handed to what runs in a `worker_pool`, kept by a process that does not outlive this one either."""
    manager = SyncManager(ctx=multiprocessing.get_context("spawn"))
    manager.start(initializer=end_with_parent)
    with manager:
        yield manager.Queue()


def end_with_parent() -> None:
    """Called in a child: it ends as soon as its parent is gone, whatever it is doing or waiting for."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        # The sentinel becomes readable when the parent is gone.
        threading.Thread(target=lambda: (connection.wait([parent.sentinel]), os._exit(1)), daemon=True).start()
