"""The run to which a viewer's companies add the turns of seats in training mode; made when the first such seat is taken."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable

from onthejob.api.asking import Asking
from onthejob.errors import ConfigError
from onthejob.record import Run
from onthejob.train.collected import TurnRecorder


class CollectingRun:
    """The run of a viewer's collected turns. May be used from any thread."""

    def __init__(self, name: str, open_run: Callable[[Asking], Run]) -> None:
        """Nothing is written before a seat is in training mode.

        Args:
            name: of the run, as it is shown.
            open_run: makes the run of seats that are asked so, or opens it for more turns.
        """
        self.name = name
        self._open = open_run
        self._lock = threading.Lock()
        self._held: tuple[Asking, TurnRecorder] | None = None

    def recorder(self, asking: Asking) -> TurnRecorder:
        """The writer of the turns of seats that are asked like this.

        Raises:
            ConfigError: the run holds turns of seats that are asked otherwise.
            RecordError: it cannot be written.
        """
        asking = plain(asking)
        with self._lock:
            if self._held is None:
                self._held = asking, TurnRecorder(self._open(asking))
            first, recorder = self._held
        old, new = dataclasses.asdict(first), dataclasses.asdict(asking)
        if differs := [f"{name} {old[name]} (here {new[name]})" for name in old if old[name] != new[name]]:
            raise ConfigError(
                f"this viewer collects turns of seats with {', '.join(differs)} in {self.name}: a run has turns of one base that "
                "is asked alike. Start the viewer again with another --collect for others."
            )
        return recorder

    def close(self) -> None:
        """Write what is left, and close the run."""
        with self._lock:
            if self._held is not None:
                self._held[1].close()


def plain(asking: Asking) -> Asking:
    """`asking` without a tokenizer that counts nothing."""
    return asking if asking.budget is not None else dataclasses.replace(asking, tokenizer="")
