"""pulse: what those who wait are told, in the log, while episodes are played side by side for minutes."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

from onthejob.rollout.episode import LiveEpisode
from onthejob.types import Completion

log = logging.getLogger(__name__)

EVERY_S = 30.0
"""Seconds between two lines, and before the first one: what is quick is silent."""


class Pulse:
    """Says from time to time how far episodes are."""

    def __init__(self, what: str) -> None:
        """`what` is played begins every line."""
        self._what = what
        self._tokens = 0
        self._begun = self._said = time.monotonic()

    def beat(self, episodes: Sequence[LiveEpisode], replies: Iterable[Completion]) -> None:
        """After a round of turns: all episodes, and the replies that were sampled in it."""
        self._tokens += sum(len(reply.token_ids) for reply in replies)
        now, active = time.monotonic(), [episode.turn for episode in episodes if episode.active]
        if now - self._said >= EVERY_S and active:
            self._said, pace = now, self._tokens / max(now - self._begun, 1e-9)
            where = f"{len(active)} of {len(episodes)} episodes under way, at turn {min(active)}"
            log.info("%s: %s%s", self._what, where, f", {pace:.0f} tokens/s" if self._tokens else "")
