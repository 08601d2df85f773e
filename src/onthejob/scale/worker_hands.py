"""Workers and jobs as the queue of `scale.job_queue` sees them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from onthejob.errors import OnTheJobError
from onthejob.scale.worker_bench import JobOutcome, Packed


class Hand(Protocol):
    """One worker, as the queue sees it."""

    @property
    def name(self) -> str:
        """For messages, e.g. its host and process."""
        ...

    def ready(self) -> Future[Mapping[str, str]]:
        """Resolves to what the worker has `found_here` once it can work; fails when it cannot be started."""
        ...

    def do(self, jobs: bytes, shared: Any) -> Future[bytes]:
        """Send a message and what its job shares with others, or None; resolves to the answer, fails when the worker is lost."""
        ...

    def beats(self) -> int:
        """Reports that it is alive, as many as have arrived; 0 until it can send any."""
        ...

    def end(self, within_s: float) -> None:
        """End it: by itself when it can within `within_s` seconds, else it is killed."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class JobBatch:
    """Jobs that were submitted together."""

    keys: tuple[str, ...]
    outcomes: dict[str, JobOutcome] = field(default_factory=dict)
    failure: OnTheJobError | None = None
    over: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True, kw_only=True, eq=False)
class DispatchedItem:
    """A job that waits or is being done."""

    batch: JobBatch
    job: Packed
    work: float
    limit_s: float
    shared: Any = None
    losses: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class HandMessage:
    """Jobs that a worker was sent together."""

    items: list[DispatchedItem]
    sent: float
    """When the worker began it, or had it sent."""
    answer: Future[bytes] | None = None
    """Kept, as a backend may forget an answer that nothing refers to."""


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    """A worker and what it has to do."""

    hand: Hand
    started: float
    """By the driver's clock, as all times here."""
    number: int
    answer: Future[Mapping[str, str]] | None = None
    ready: bool = False
    held: deque[HandMessage] = field(default_factory=deque)
    own: deque[DispatchedItem] = field(default_factory=deque)
    """Waiting jobs of the places whose shelves it has."""
    beats: int = 0
    heard: float = 0.0
    """When its last report was found."""

    @property
    def jobs(self) -> int:
        """Jobs that it holds, or that wait for it."""
        return len(self.own) + sum(len(sent.items) for sent in self.held)

    def overdue(self, now: float, *, start_s: float, patience_s: float) -> str:
        """Why it counts as lost, in words; empty while it does not."""
        if (beats := self.hand.beats()) != self.beats:
            self.beats, self.heard = beats, now
        if self.beats and now - self.heard > patience_s:
            return (
                f"was silent for {patience_s:g} s: it is stopped, cannot be reached, or runs native code that keeps Python's lock"
            )
        if not self.ready:
            return f"was not ready within {start_s:g} s" if now - self.started > start_s else ""
        if not self.held:
            return ""
        allowed_s = sum(item.limit_s for item in self.held[0].items)
        return f"did not answer within {allowed_s:g} s" if now - self.held[0].sent > allowed_s else ""


def reason(error: BaseException) -> str:
    """The first line of an error; Ray adds twenty to it."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
