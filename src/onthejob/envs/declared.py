"""What the class of an Env says of itself, refused where it cannot be played."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from onthejob.envs.env import Env
from onthejob.errors import ConfigError

LIMITS = (
    "roles", "max_turns", "max_new_tokens", "threads", "processes", "step_limit_s", "forks", "partner", "bad_call_reward",
)  # fmt: skip
"""What a class states and may also offer as an option, by annotating it."""
ROLE = re.compile(r"[a-z][a-z0-9_]*")


def check_roles(roles: Any, name: str) -> None:
    """Refuse roles that cannot be trained.

    `name` is the environment's, for the message.

    Raises:
        ConfigError: there are none, one has no name for an adapter, or one occurs twice.
    """
    if not isinstance(roles, (tuple, list)) or not roles or not all(isinstance(role, str) for role in roles):
        raise ConfigError(f"{name}.roles must name who is asked, got {roles!r}. Write e.g. roles = ('player',).")
    if wrong := [role for role in roles if not ROLE.fullmatch(role)]:
        raise ConfigError(f"{name}.roles must match [a-z][a-z0-9_]*, as adapters carry the names; got {', '.join(wrong)}.")
    if len(set(roles)) != len(roles):
        raise ConfigError(f"{name}.roles names a role twice: {', '.join(roles)}. Give each a name of its own.")


def check_class(kind: type[Env]) -> None:
    """Refuse an environment that cannot be played, from what its class says.

    Raises:
        ConfigError: says what is missing and how to write it.
    """
    name = kind.__name__
    check_roles(kind.roles, name)
    needed = ("tasks", "reset", "step") if kind.make_environment is Env.make_environment else ("tasks",)
    if missing := [method for method in needed if getattr(kind, method) is getattr(Env, method)]:
        raise ConfigError(f"{name} lacks {', '.join(missing)}. An Env needs roles, tasks(split), reset(task) and step(reply).")
    for method, limit in (("max_turns", kind.max_turns), ("max_new_tokens", kind.max_new_tokens), ("threads", kind.threads)):
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ConfigError(f"{name}.{method} must be a whole number >= 1, got {limit!r}.")
    if isinstance(kind.processes, bool) or not isinstance(kind.processes, int) or kind.processes < 0:
        raise ConfigError(f"{name}.processes must be a whole number >= 0, got {kind.processes!r}.")
    if not kind.step_limit_s > 0:
        raise ConfigError(f"{name}.step_limit_s must be > 0 seconds, got {kind.step_limit_s!r}.")
    if kind.forks not in ("copy", "replay", "no"):
        raise ConfigError(f"{name}.forks must be 'copy', 'replay' or 'no', got {kind.forks!r}.")
    for one in dataclasses.fields(kind):  # type: ignore[arg-type]
        if one.name == "ref" or (hasattr(Env, one.name) and one.name not in LIMITS):
            raise ConfigError(f"{name} has an option {one.name!r}, which means something else for every Env. Call it otherwise.")
        if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{name}: option {one.name!r} needs a default, e.g. `{one.name}: int = 9`.")


def options_of(env: Env) -> dict[str, Any]:
    """Name -> value of an environment's options."""
    return {one.name: getattr(env, one.name) for one in dataclasses.fields(env)}  # type: ignore[arg-type]
