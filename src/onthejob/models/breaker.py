"""A circuit breaker: an endpoint that fails again and again is asked by one turn at a time until it answers.

Eight seats that each wait a minute for a dead endpoint, twice, send and pay for what cannot succeed, and keep a recovering server
down. Nor do the others fail at once: a pause of some seconds would then cost every episode under way. They wait for the one that
tries, as long as their own deadline allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated

from annotated_types import Ge, Gt

from onthejob.errors import ConfigError
from onthejob.setting_ranges import check_ranges

_MARGIN_S = 0.01
"""Before a deadline, so that the breaker's own answer comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerConfig:
    """When an endpoint counts as down."""

    failures: Annotated[int, Ge(1)] = 5
    """Failed attempts in a row that open the breaker."""
    pause_s: Annotated[float, Gt(0)] = 2.0
    """Seconds without an attempt after that; doubled by every attempt that fails, until one succeeds."""
    longest_pause_s: Annotated[float, Gt(0)] = 30.0
    """Seconds that a pause grows to."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.pause_s > self.longest_pause_s:
            raise ConfigError(f"pause_s must be <= longest_pause_s, got {self.pause_s} and {self.longest_pause_s}.")


class Admission(Enum):
    """What `Breaker.enter` said."""

    FREE = auto()
    """The endpoint answers; continue."""
    TRIAL = auto()
    """It did not; this attempt finds out whether it does again, and the others wait for it."""
    REFUSED = auto()
    """The deadline came first; nothing is to be sent or reported."""


class Breaker:
    """The state of one endpoint. All calls come from one event loop."""

    def __init__(self, config: BreakerConfig, *, clock: Callable[[], float]) -> None:
        """clock: monotonic seconds."""
        self._config, self._clock = config, clock
        self._failed = 0
        self._pause_s = config.pause_s
        self._until = 0.0
        self._trying = False
        self._changed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """True while at most one attempt is let through."""
        return self._failed >= self._config.failures

    async def enter(self, *, end: float) -> Admission:
        """Wait until an attempt may be made. What is not refused must be reported.

        Args:
            end: on the clock, when waiting has no sense any more.
        """
        while self.is_open:
            now = self._clock()
            if now >= self._until and not self._trying:
                self._trying = True
                return Admission.TRIAL
            left = end - _MARGIN_S - now
            if left <= 0:
                return Admission.REFUSED
            with suppress(TimeoutError):
                async with asyncio.timeout(left if self._trying else min(left, self._until - now)):
                    await self._changed.wait()
        return Admission.FREE

    def report(self, entry: Admission, *, failed: bool) -> None:
        """Record how an attempt ended; a refusal, too, shows that a server is there."""
        if entry is Admission.TRIAL:
            self._trying = False
        if not failed:
            self._failed, self._pause_s = 0, self._config.pause_s
        elif entry is Admission.TRIAL:
            self._pause_s = min(2 * self._pause_s, self._config.longest_pause_s)
            self._until = self._clock() + self._pause_s
        elif not self.is_open:
            # Attempts that were under way when it opened say nothing new.
            self._failed += 1
            self._until = self._clock() + self._pause_s
        self._changed.set()
        self._changed = asyncio.Event()
