"""Jobs of the tests, importable by every worker as `jobs` (this folder is on their path)."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any


def square(number: int) -> int:
    return number * number


def slow_square(number: int, seconds: float) -> int:
    time.sleep(seconds)
    return number * number


def fail(text: str) -> None:
    raise ValueError(text)


def process() -> int:
    return os.getpid()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(mark: str, number: int) -> int:
    """Ends its worker the first time, and is done by another one the second time."""
    try:
        Path(mark).touch(exist_ok=False)
    except FileExistsError:
        return number * number
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def stop_once(mark: str, number: int) -> int:
    """Its worker hangs the first time."""
    try:
        Path(mark).touch(exist_ok=False)
    except FileExistsError:
        return number * number
    os.kill(os.getpid(), signal.SIGSTOP)
    return 0


def keep_the_lock(seconds: int) -> int:
    """Native code that runs without giving up Python's lock."""
    ctypes.PyDLL(None).sleep(seconds)
    return seconds


class Counted:
    def __init__(self) -> None:
        self.calls = 0

    def close(self) -> None:
        self.calls = -1


def visit(shelf: dict[str, Any]) -> tuple[int, int]:
    """Which process this is, and how often the shelf was visited before."""
    counted = shelf.setdefault("counted", Counted())
    counted.calls += 1
    return os.getpid(), counted.calls - 1


def leave(shelf: dict[str, Any]) -> None:
    shelf.clear()


def weigh(number: int, shared: list[bytes]) -> int:
    """How many bytes were shared."""
    return number * sum(map(len, shared))


def environment() -> dict[str, str]:
    return dict(os.environ)


def unsendable() -> Any:
    return lambda: None


def of_a_child(number: int) -> int:
    """Computed in a process of the worker's own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(square, (number,))


def base_of_process(base: str) -> dict[str, str]:
    """A base that differs between the main process and all others."""
    here = multiprocessing.parent_process() is None
    return {"base": f"{base}-here" if here else f"{base}-there"}


def sandbox_of_node() -> dict[str, str]:
    """A sandbox that a node with another cache lacks."""
    return {"sandbox": "without bubblewrap" if os.environ.get("ONTHEJOB_CACHE", "").endswith("odd") else "usable"}


def base_of_node() -> dict[str, str]:
    """A base that differs on a node with another cache."""
    return {"base": "of another cache" if os.environ.get("ONTHEJOB_CACHE", "").endswith("odd") else "of this one"}
