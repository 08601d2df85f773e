"""pulse: progress of episodes that are played side by side for minutes."""

from __future__ import annotations

from collections.abc import Sequence

from onthejob.progress import Progress
from onthejob.rollout.episode import LiveEpisode


class Pulse:
    """Logs now and then how many episodes are still played, and at which turn the slowest is."""

    def __init__(self, what: str) -> None:
        """`what` is played begins every line."""
        self._progress = Progress(what)
        self._tokens = 0

    def beat(self, episodes: Sequence[LiveEpisode], tokens: int) -> None:
        """After a round of turns: all episodes, and how many tokens were sampled in it."""
        self._tokens += tokens
        active = [episode.turn for episode in episodes if episode.active]
        if active and self._progress.due:
            pace = f", {self._tokens / max(self._progress.seconds, 1e-9):.0f} tokens/s" if self._tokens else ""
            self._progress.say(f"{len(active)} of {len(episodes)} episodes under way, at turn {min(active)}{pace}")
