"""Players with which the office is measured: the exploiters, and experts that were fitted to one scenario each."""

from __future__ import annotations

from checks.office.players.exploiters import EXPLOITERS
from checks.office.players.tuned import tuned_experts
from onthejob.envs.office.policies import Player


def players() -> dict[str, Player]:
    """All of them by name."""
    return {f"tuned-{scenario}": player for scenario, player in tuned_experts().items()} | dict(EXPLOITERS)
