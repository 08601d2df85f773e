"""How many cores a command may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores that this process may run on, at least 1.

    Not `os.cpu_count()`: in a container, under `taskset` or a batch system that counts cores which belong to others, and threads
    that wait for each other on too few cores are several times slower than one thread alone.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
