"""Who plays, as written on the command line: `heuristic`, `base`, a run, a folder of adapters, or `NAME=` one of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from onthejob.commands.runs import RUNS
from onthejob.envs.office.env import SEATS
from onthejob.envs.office.policies import players
from onthejob.errors import ConfigError
from onthejob.evaluate.teams import Team, scripted_team
from onthejob.players import scripted

if TYPE_CHECKING:
    from onthejob.stack import Stack

BASE = "base"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The language model behind `base` and behind every adapter."""

    name: str = "smollm2-135m"
    """As for `onthejob model fetch`."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of the base's weights in memory; bfloat16 is faster where the CPU multiplies it natively (see `onthejob doctor`)."""
    device: str = "cpu"
    """torch device: `cpu`, or `cuda` with an NVIDIA GPU."""


def load_model(options: ModelOptions, progress: Callable[[str], None]) -> Stack:
    """The model of these options."""
    from onthejob.stack import load_stack

    return load_stack(options.name, dtype=options.dtype, device=options.device, progress=progress)


def adapters_folder(source: str) -> Path:
    """The folder that `source` names: a path, or the name of a run in `runs/`.

    Raises:
        ConfigError: neither exists.
    """
    for folder in (Path(source), RUNS / source):
        if folder.exists():
            return folder
    known = ", ".join((BASE, *sorted(players())))
    raise ConfigError(
        f"nobody is called {source!r}: give {known}, a run's folder (or its name in {RUNS}/), or a folder of adapters."
    )


def teams(specs: Sequence[str], options: ModelOptions, progress: Callable[[str], None]) -> tuple[list[Team], Stack | None]:
    """One team per spec, and the model that was loaded for them, if any needed one.

    Raises:
        ConfigError: a spec names nothing that can play.
    """
    named = [(name or Path(source).name, source) for name, _, source in (spec.rpartition("=") for spec in specs)]
    shipped = players()
    # Every name is checked before a model is loaded: a typing mistake should not cost a minute.
    folders = {source: adapters_folder(source) for _, source in named if source not in shipped and source != BASE}
    needs_model = any(source not in shipped for _, source in named)
    stack = load_model(options, progress) if needs_model else None
    made: list[Team] = []
    for name, source in named:
        if stack is None or source in shipped:
            made.append(scripted_team(name, scripted(source), SEATS))
        else:
            from onthejob.stack import find_adapters

            made.append(stack.team(name, find_adapters(folders[source]) if source in folders else {}, SEATS))
    return made, stack
