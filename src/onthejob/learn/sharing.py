"""Which roles share one adapter: their adapters hold equal weights, and one update is made of the groups of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onthejob.errors import ConfigError
from onthejob.types import Adapter

PER_ROLE, SHARED = "per-role", "shared"


def adapter_sets(option: str, roles: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """First role of each set -> the roles of the set, itself included, in the order of `roles`; every role is in one set.

    Args:
        option: `per-role`, `shared`, or sets of two or more roles such as `a+b,c+d`; a role that none names has its own.
        roles: all that are trained.

    Raises:
        ConfigError: a role that is not trained, or one that is named twice.
    """
    if option == PER_ROLE:
        named: list[list[str]] = []
    elif option == SHARED:
        named = [list(roles)]
    else:
        named = [[role.strip() for role in part.split("+")] for part in option.split(",")]
    flat = [role for part in named for role in part]
    if unknown := [role for role in flat if role not in roles]:
        raise ConfigError(
            f"--adapters must be {PER_ROLE}, {SHARED}, or sets of trained roles such as a+b,c; the trained ones are "
            f"{', '.join(roles)}, got {unknown[0]!r} in {option!r}."
        )
    if twice := [role for role in roles if flat.count(role) > 1]:
        raise ConfigError(f"--adapters {option} names {twice[0]} twice. A role has one adapter.")
    set_of = {role: tuple(one for one in roles if one in part) for part in named for role in part}
    sets = [set_of.get(role, (role,)) for role in roles]
    return {members[0]: members for members in sets}


def check_equal(option: str, roles: Sequence[str], adapters: Mapping[str, Adapter], where: str) -> None:
    """Refuse adapters to begin from that are not equal within a set.

    Raises:
        ConfigError: names two roles whose adapters differ.
    """
    for members in adapter_sets(option, roles).values():
        held = {role: adapters[role].digest if role in adapters else "" for role in members}
        if other := [role for role in members if held[role] != held[members[0]]]:
            raise ConfigError(
                f"--adapters {option}: {members[0]} and {other[0]} share one adapter, and {where} holds two that differ. Make "
                f"one with `onthejob sft --adapters {option}`, or begin without --init."
            )
