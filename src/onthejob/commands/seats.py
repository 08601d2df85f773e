"""Who plays, as written on the command line: a scripted player, `base`, a run (`RUN:best`), adapters, or `NAME=` one of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from onthejob.commands.runs import RUNS
from onthejob.errors import ConfigError
from onthejob.evaluate.teams import Team, scripted_team
from onthejob.types import Adapter, Policy

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
    raise ConfigError(
        f"nobody is called {source!r}: give {BASE}, a scripted player, a run's folder (or its name in {RUNS}/), or a folder of "
        "adapters."
    )


def named_adapters(source: str) -> dict[str, Adapter]:
    """Role -> adapter of `source`: as `adapters_folder`, where a run may be followed by `:best` or `:ITERATION`.

    Raises:
        ConfigError: there is no such run or folder, or it has no adapter (of that iteration).
    """
    from onthejob.stack import find_adapters

    folder, at = place_and_iteration(source)
    return find_adapters(folder, at=at)


def place_and_iteration(source: str) -> tuple[Path, str]:
    """The folder, and what follows it after a colon; a folder whose own name has a colon is found too.

    Raises:
        ConfigError: there is no such folder.
    """
    name, colon, at = source.rpartition(":")
    if colon and (at == "best" or at.isdigit()) and not Path(source).exists():
        return adapters_folder(name), at
    return adapters_folder(source), ""


def teams(
    specs: Sequence[str],
    options: ModelOptions,
    progress: Callable[[str], None],
    *,
    seats: Sequence[str],
    shipped: Mapping[str, Policy],
) -> tuple[list[Team], Stack | None]:
    """One team per spec, and the model that was loaded for them, if any needed one.

    Args:
        specs: as written on the command line.
        options: the language model.
        progress: told what is being done.
        seats: actors that every team plays.
        shipped: the workplace's scripted players.

    Raises:
        ConfigError: a spec names nothing that can play.
    """
    named = [(name or Path(source).name, source) for name, _, source in (spec.rpartition("=") for spec in specs)]
    # Every name is checked before a model is loaded: a typing mistake should not cost a minute.
    for _, source in named:
        if source not in shipped and source != BASE:
            _check_source(source, shipped)
    needs_model = any(source not in shipped for _, source in named)
    stack = load_model(options, progress) if needs_model else None
    made: list[Team] = []
    for name, source in named:
        if stack is None or source in shipped:
            made.append(scripted_team(name, shipped[source], seats))
        else:
            made.append(stack.team(name, {} if source == BASE else named_adapters(source), seats))
    return made, stack


def _check_source(source: str, shipped: Mapping[str, Policy]) -> None:
    try:
        place_and_iteration(source)
    except ConfigError as error:
        raise ConfigError(f"{error} Here the scripted players are {', '.join(sorted(shipped))}.") from error
