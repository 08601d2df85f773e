"""Hands: threads that do an environment's work, so that a slow or hanging one does not keep a page waiting forever.

An environment that asks for one thread is opened, stepped and closed by one and the same. The threads are daemons: one that never
returns does not keep the process alive.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from onthejob.errors import ContractError

T = TypeVar("T")


class Hands:
    """A few threads that take work in the order in which it comes."""

    def __init__(self, threads: int, *, name: str, patience_s: float) -> None:
        """Start them.

        Args:
            threads: how many.
            name: of the environment, for messages.
            patience_s: seconds after which `do` stops waiting.
        """
        self._name, self._patience_s = name, patience_s
        self._work: queue.SimpleQueue[tuple[Future[object], Callable[[], object]] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(max(1, threads))
        ]
        for thread in self._threads:
            thread.start()

    def do(self, work: Callable[[], T]) -> T:
        """Run `work` in one of the threads and return its result; its exceptions are raised here.

        Raises:
            ContractError: it takes longer than `patience_s`. What was begun continues.
        """
        future: Future[T] = Future()
        self._work.put((future, work))  # type: ignore[arg-type]
        try:
            return future.result(timeout=self._patience_s)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise ContractError(
                f"{self._name} has not returned for {self._patience_s:g} s. Wait and load the page again, or end the command and "
                "look for what its reset or step waits for."
            ) from None

    def close(self) -> None:
        """Take no more work. A thread that is busy ends with the process."""
        for _ in self._threads:
            self._work.put(None)

    def _run(self) -> None:
        while (taken := self._work.get()) is not None:
            future, work = taken
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:
                # Also SystemExit, which a user's code may raise: it belongs to the caller, and the thread has to live.
                future.set_exception(error)
