"""`onthejob runs replay`: play a game again from its replay file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from onthejob.commands.terminal import Output, Terminal, table
from onthejob.errors import RecordError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayGame:
    """Play a game again from its replay file, and compare the hash of all that happens with the file's."""

    path: tyro.conf.Positional[Path]
    """The file that `onthejob play --policy human` wrote."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Play, then print hash and figures; 1 when the hash is another one."""
        from onthejob.commands.office import make_office
        from onthejob.rollout.replay import Replay, execute

        replay = Replay.read(self.path)
        if replay.task.env != "office":
            raise RecordError(f"{self.path} is a game of {replay.task.env!r}, and only games of the office can be replayed.")
        env = make_office()()
        found = execute(env, replay.task, replay.replies)
        same = found == replay.hash
        metrics = env.state()["metrics"]
        data = {"task": replay.task.id, "replies": len(replay.replies), "hash": found, "matches": same, "metrics": metrics}
        verdict = "the same game" if same else f"another game: the file says {replay.hash}"
        terminal.result(
            data,
            f"{replay.task.id}, {len(replay.replies)} replies: {verdict}",
            f"hash {found}",
            table(("metric", "value"), list(metrics.items())),
        )
        return 0 if same else 1
