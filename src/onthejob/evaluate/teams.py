"""Teams: a name for who sits in which seat, with fingerprints under which results are cached."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from onthejob.errors import ConfigError
from onthejob.rollout.reading import budget_of
from onthejob.types import Adapter, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """One row of a comparison."""

    name: str
    """Shown in tables, unique within a comparison."""
    policies: Mapping[str, Policy]
    """Actor -> who answers for it."""
    fingerprints: Mapping[str, str]
    """Actor -> identity of the policy's behaviour. Equal fingerprints must mean equal replies to equal prompts and seeds:
    results are cached under them. `adapter_fingerprint` makes one for an adapter; a name suffices for a scripted policy that
    lives in the environment's own folder, whose code is part of the cache key already."""
    learned: frozenset[str] = field(default_factory=frozenset)
    """Actors whose tokens and validity are counted as the model's; empty for a scripted team (then all are counted)."""

    def __post_init__(self) -> None:
        if missing := sorted(set(self.policies) - set(self.fingerprints)):
            raise ConfigError(f"team {self.name!r} lacks a fingerprint for {missing}. Give one for each policy.")
        if unknown := sorted(self.learned - set(self.policies)):
            raise ConfigError(f"team {self.name!r} names {unknown} as learned, but only has {sorted(self.policies)}.")

    def identity(self, actor: str) -> str:
        """Of what the actor replies to a request: its fingerprint, and how much of the prompt it is shown where that is limited.

        Another limit is another prompt, so what is cached under one limit is not found under the other.
        """
        budget = budget_of(self.policies[actor])
        return self.fingerprints[actor] + ("" if budget is None else f":prompt{budget.tokens}")

    @property
    def fingerprint(self) -> str:
        """Identity of the whole team, 24 hex digits; its name is not part of it."""
        lines = "\n".join(f"{actor}={self.identity(actor)}" for actor in sorted(self.policies))
        counted = ",".join(sorted(self.counted))
        return hashlib.sha256(f"{lines}\ncounted={counted}".encode()).hexdigest()[:24]

    @property
    def counted(self) -> frozenset[str]:
        """Actors whose validity, tokens and actions are reported."""
        return self.learned or frozenset(self.policies)


def one_seat(team: Team, partners: Team, actor: str) -> Team:
    """`team`'s policy in `actor`'s seat among `partners`: what this role alone has learned.

    Raises:
        ConfigError: One of the teams has no policy for `actor`.
    """
    for side in (team, partners):
        if actor not in side.policies:
            raise ConfigError(f"team {side.name!r} has no policy for {actor!r}, only {sorted(side.policies)}. Choose one.")
    return Team(
        name=f"{team.name}:{actor}",
        policies={**partners.policies, actor: team.policies[actor]},
        fingerprints={**partners.fingerprints, actor: team.fingerprints[actor]},
        learned=frozenset({actor}),
    )


def adapter_fingerprint(base_digest: str, adapter: Adapter | None, *, numerics: str = "") -> str:
    """Identity of a base model with or without an adapter. Names like `sales@0007` repeat between runs, digests do not.

    Args:
        base_digest: of the weights on disk.
        adapter: None for the base itself.
        numerics: in what the weights are held and computed, e.g. `float32-cpu`: near a tie another dtype replies otherwise.
    """
    name = f"lm:{base_digest[:24]}:{adapter.digest[:24] if adapter is not None else 'base'}"
    return f"{name}:{numerics}" if numerics else name


def scripted_team(name: str, policy: Policy, actors: Iterable[str]) -> Team:
    """One policy of the environment's own (heuristic, expert, random) in every seat."""
    seats = tuple(actors)
    return Team(name=name, policies=dict.fromkeys(seats, policy), fingerprints=dict.fromkeys(seats, policy.version))
