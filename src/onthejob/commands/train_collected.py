"""`onthejob train --collected`: a run that starts in the states of collected turns."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from onthejob.commands.collected_runs import check_same_place, load_collected
from onthejob.commands.terminal import Terminal
from onthejob.errors import ConfigError
from onthejob.rollout.collect import CollectConfig
from onthejob.rollout.library import Entry
from onthejob.train.config import TrainConfig
from onthejob.types import Environment

if TYPE_CHECKING:
    from onthejob.commands.train import Train
    from onthejob.train.collected import Collected

SHARES = ("fresh_share", "partner_share", "keep_share")
"""Options of `collect` that start segments elsewhere, or add other states to the library."""
LIBRARY = ("library_tasks", "library_per_day", "library_refresh")
"""Options of the loop that fill a library with other states."""


def fitted_to_collected(loop: TrainConfig, usual: TrainConfig) -> CollectConfig:
    """`loop.collect`, in which every segment starts in the library, and nothing enters it."""
    given = {
        f"--collect.{name.replace('_', '-')}": 0
        for name in SHARES
        if getattr(loop.collect, name) not in (0.0, getattr(usual.collect, name))
    }
    given |= {
        f"--{name.replace('_', '-')}": getattr(usual, name) for name in LIBRARY if getattr(loop, name) != getattr(usual, name)
    }
    if given:
        neutral = " ".join(f"{flag} {value}" for flag, value in given.items())
        raise ConfigError(
            f"{', '.join(given)} has no effect with --collected: every segment starts in a collected turn, and the library holds "
            f"those alone. Leave it out; where --config sets it, add {neutral}."
        )
    return dataclasses.replace(loop.collect, **dict.fromkeys(SHARES, 0.0))


def check_collected(options: Train) -> None:
    """Refuse options with which no segment can start in a collected turn."""
    if not options.collected:
        return
    if options.train.grouping != "branch":
        raise ConfigError(
            f"--collected starts segments in states, and --grouping {options.train.grouping} compares whole episodes. Leave one "
            "of them out."
        )
    if options.from_groups or options.from_bundles is not None:
        raise ConfigError("--collected has no effect where nothing is played (--from-groups, --from-bundles). Leave it out.")


def with_collected(options: Train) -> tuple[Train, Collected | None]:
    """`options` for the roles that are trained on collected turns, and those turns; as they are, and None, without --collected.

    Raises:
        ConfigError: no such run, none of a named role in it, or it was collected in another environment.
        RecordError: it is damaged.
    """
    if not options.collected:
        return options, None
    place = options.place()
    frozen = {seat.partition("=")[0] for seat in options.freeze}
    rest = tuple(role for role in place.roles if role not in frozen)
    collected = load_collected(options.collected, () if options.roles == rest else options.roles)
    check_same_place(collected, place)
    actors = {turn.actor for turn in collected.turns}
    roles = tuple(role for role in options.roles if role in actors)
    if not roles:
        raise ConfigError(
            f"{options.collected} has turns of {', '.join(sorted(actors))} only, who are not trained. Name --roles."
        )
    turns = tuple(turn for turn in collected.turns if turn.actor in roles)
    return dataclasses.replace(options, roles=roles), dataclasses.replace(collected, turns=turns)


def collected_states(collected: Collected | None, make_env: Callable[[], Environment], terminal: Terminal) -> list[Entry]:
    """The states in which segments start; none without --collected.

    Raises:
        ConfigError: the environment refuses a task or a snapshot.
        RecordError: a snapshot is not that of its turn.
    """
    if collected is None:
        return []
    from onthejob.train.collected import library_of

    states = library_of(collected.turns, make_env)
    counts = ", ".join(f"{role} {count}" for role, count in Counter(state.actor for state in states).items())
    terminal.progress(f"{collected.path}: {len(states)} collected turns ({counts})")
    return states
