"""The office's scripted players as policies that a loop can seat."""

from __future__ import annotations

from collections.abc import Mapping

from onthejob.checkout import missing_player
from onthejob.envs.office.env import SEATS
from onthejob.envs.office.policies import Player, as_reply, players
from onthejob.envs.office.policies.partners import refuse_partner
from onthejob.errors import ConfigError
from onthejob.models.scripted import ScriptedPolicy
from onthejob.types import Policy


def as_policy(player: Player, *, version: str) -> ScriptedPolicy:
    """A player as a policy: its luck is keyed by the context's seed, its reply is the canonical JSON."""
    return ScriptedPolicy(as_reply(player), version=version)


def scripted(name: str) -> Policy:
    """One shipped player.

    Raises:
        ConfigError: no player of this name.
    """
    known = players()
    if name not in known:
        raise ConfigError(missing_player(name) or f"unknown scripted policy {name!r}; known are {', '.join(known)}.")
    return as_policy(known[name], version=name)


def scripted_players() -> dict[str, Policy]:
    """Name -> shipped player, those that are held out from training among them."""
    return {name: scripted(name) for name in players()}


def team(name: str) -> Mapping[str, Policy]:
    """The same player in all six seats."""
    policy = scripted(name)
    return dict.fromkeys(SEATS, policy)


def training_team(name: str) -> Mapping[str, Policy]:
    """As `team`, for training.

    Raises:
        ConfigError: no player of this name, or one that is held out from training.
    """
    refuse_partner(name)
    return team(name)
