"""The function of `train --reward`: found and checked before a model is loaded."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from onthejob.errors import ConfigError
from onthejob.plugins import function_of
from onthejob.rollout.reward import COLUMNS, RewardFunction
from onthejob.types import Split

if TYPE_CHECKING:
    from onthejob.commands.train import Train

FORM = "Write it as in TRL: `def reward(prompts, completions, **columns) -> list[float]`."


def check_reward(options: Train) -> None:
    """Refuse a function of --reward that cannot be called, or that has no effect here."""
    ref = options.reward
    if not ref:
        return
    if options.from_groups:
        raise ConfigError("--reward has no effect with --from-groups: the record holds the rewards. Leave it out.")
    if options.train.advantage.shrink:
        raise ConfigError(
            "--advantage.shrink compares the environment's values of a reply in several worlds, which --reward replaces. "
            "Leave one of them out."
        )
    function = function_of(ref, "--reward")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"--reward {ref} is async. {FORM}")
    parameters = _parameters(options)
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    if isinstance(function, type) or "completions" not in [one.name for one in named]:
        raise ConfigError(f"--reward {ref} has no parameter `completions`. {FORM}")
    task = next(iter(options.place().tasks(Split.TRAIN)))
    known = {*COLUMNS, *task.payload} - {"prompt"}
    # A parameter that can be given by position only is missing in `named`, and so is never known.
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    asked = [one.name for one in parameters if one.kind not in open_ended and one.default is one.empty]
    unknown = [name for name in asked if name not in known or name not in [one.name for one in named]]
    if unknown:
        raise ConfigError(
            f"--reward {ref} asks for {', '.join(unknown)}, and {options.env} has {', '.join(sorted(known))}. "
            "Correct the names, or give them defaults."
        )


def reward_of(options: Train) -> RewardFunction | None:
    """The function of --reward; None without one."""
    if not options.reward:
        return None
    parameters = _parameters(options)
    every = any(one.kind is one.VAR_KEYWORD for one in parameters)
    return RewardFunction(
        function_of(options.reward, "--reward"),
        options.reward,
        takes=None if every else [one.name for one in parameters],
    )


def _parameters(options: Train) -> list[inspect.Parameter]:
    """Of the function; none for one that is written in C and states none."""
    try:
        return list(inspect.signature(function_of(options.reward, "--reward")).parameters.values())
    except (TypeError, ValueError):
        return []
