"""pulse: progress of episodes that are played side by side for minutes."""

from __future__ import annotations

from collections.abc import Sequence

from onthejob.progress import Progress
from onthejob.rollout.episode import LiveEpisode


class Pulse:
    """Logs now and then how many episodes are still played, at which turn the slowest is, and for how long at most."""

    def __init__(self, what: str, *, rounds: int | None = None) -> None:
        """Begin.

        Args:
            what: is played; begins every line.
            rounds: turns that every episode plays at most, for an estimate of the time that is left.
        """
        self._progress = Progress(what)
        self._rounds = rounds
        self._played = 0
        self._tokens = 0

    def beat(self, episodes: Sequence[LiveEpisode], tokens: int) -> None:
        """After a round of turns: all episodes, and how many tokens were sampled in it."""
        self._tokens += tokens
        self._played += 1
        active = [episode.turn for episode in episodes if episode.active]
        if active and self._progress.due:
            pace = f", {self._tokens / max(self._progress.seconds, 1e-9):.0f} tokens/s" if self._tokens else ""
            said = f"{len(active)} of {len(episodes)} episodes under way, at turn {min(active)}{self._left()}{pace}"
            self._progress.say(said)

    def _left(self) -> str:
        """The time that the turns still allowed take at the pace so far: episodes that end early make it shorter."""
        if self._rounds is None:
            return ""
        left = self._progress.seconds / self._played * (self._rounds - self._played)
        return f" of {self._rounds}" + (f", at most about {left:,.0f} s left" if self._played < self._rounds else "")
