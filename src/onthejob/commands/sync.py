"""`onthejob runs sync`: send a run's record to trackers and spreadsheets, afterwards or while it is being written."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from onthejob.commands.runs import existing_run
from onthejob.commands.terminal import Output, Terminal, table
from onthejob.errors import ConfigError

if TYPE_CHECKING:
    from onthejob.track.send_record import Sync as OneTracker


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """Send what a run has recorded to trackers; what they hold already is not sent again."""

    path: tyro.conf.Positional[Path]
    """The run's folder, or its name in `runs/`."""
    track: tuple[str, ...] = ()
    """Trackers: trackio, wandb, tensorboard, mlflow, jsonl, FILE.csv, FILE.xlsx, sheets:ID, or a class of your own as
    path/to/file.py:Class or package.module:Class."""
    follow: bool = False
    """Continue until the run ends; with one tracker."""
    adapters: bool = False
    """Also send adapters, where the tracker has a place for them: those of every tenth iteration and the newest."""
    transcripts: int = 4
    """Episodes per iteration of which a tracker gets the turns; 0 sends none."""
    with_parent: bool = False
    """With --follow, as training starts this command: it ends when standard input is closed, and SIGTERM says that the run has
    ended."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Send, and print what each tracker holds."""
        from onthejob.processes import end_with_pipe
        from onthejob.track.child import NICEST

        self._check()
        over = threading.Event()
        if self.with_parent:
            end_with_pipe(0)
            signal.signal(signal.SIGTERM, lambda *_: over.set())
            os.nice(NICEST)
        from onthejob.track.place import anchored, check_trackers, maker
        from onthejob.track.send_record import Sync as OneTracker
        from onthejob.track.send_record import once
        from onthejob.track.sent_state import held

        folder = existing_run(self.path)
        check_trackers(self.track)
        rows: list[dict[str, Any]] = []
        for name in map(anchored, self.track):
            sync = OneTracker(folder=folder, name=name, make=maker(name), adapters=self.adapters, transcripts=self.transcripts)
            # What libraries print is no result.
            with held(folder, name), contextlib.redirect_stdout(sys.stderr):
                try:
                    if self.follow:
                        self._follow(sync, over)
                    else:
                        once(sync, wait=over.wait)
                finally:
                    sync.close()
            rows.append({"tracker": name, "sent": sync.sent})
        terminal.result(rows, table(("tracker", "iterations sent"), [(row["tracker"], row["sent"]) for row in rows]))
        return 0

    def _follow(self, sync: OneTracker, over: threading.Event) -> None:
        from onthejob.track.send_record import follow, is_over

        if self.with_parent:
            follow(sync, ended=over.is_set, wait=lambda seconds: _pause(over, seconds))
        else:
            follow(sync, ended=lambda: is_over(sync.folder), wait=over.wait)

    def _check(self) -> None:
        if not self.track:
            raise ConfigError("--track names the tracker to which the run is sent, e.g. --track tensorboard. Add it.")
        if self.follow and len(self.track) > 1:
            raise ConfigError("--follow sends to one tracker. Start one command per tracker.")
        if self.with_parent and not self.follow:
            raise ConfigError("--with-parent has no effect without --follow. Add it, or leave both out.")
        if self.transcripts < 0:
            raise ConfigError(f"--transcripts must be >= 0 episodes per iteration, got {self.transcripts}.")


def _pause(over: threading.Event, seconds: float) -> None:
    """Wait; the end of the run cuts a wait short once, and afterwards waits are as long as they were meant."""
    if over.is_set():
        threading.Event().wait(seconds)
    else:
        over.wait(seconds)
