"""Findings of `onthejob env check`: what each player earned, whether groups differ, which promises hold, and what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """What a role earned under one player, the other roles being played by the partner (random: all are)."""

    player: str
    role: str
    episodes: int
    mean: float
    low: float
    high: float
    turns: float
    invalid: float
    """Share of replies that could not be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Random replies to the same task: without a difference there is nothing to learn from."""

    role: str
    groups: int
    size: int
    differing: int
    spread: float
    """Mean standard deviation of the rewards within a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Something that should hold."""

    case: str
    ok: bool | None
    """None where it could not be found out."""
    found: str


@dataclass(slots=True)
class CheckReport:
    """What a check found."""

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    players: list[Player] = field(default_factory=list)
    groups: list[Groups] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Name -> value: prompts, turns, seconds, groupings."""

    def warn(self, message: str) -> None:
        """Note a warning once."""
        if message not in self.warnings:
            self.warnings.append(message)
