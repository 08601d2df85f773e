"""Lines of a run's lists as the pages read them: groups in short, episodes in short, and an episode's turns."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from onthejob.api.schema_runs import EpisodeRow, EpisodeTurn, GroupRow
from onthejob.evaluate.reexecute import place_of
from onthejob.record.from_rows import GroupHead, RecordedEpisode
from onthejob.types import Kind


def group_row(head: GroupHead) -> GroupRow:
    """A group in short."""
    keys = [str(key) for key in head.facts.get("keys", ())]
    legal = [ret for ret, valid in zip(head.returns, head.valid, strict=True) if valid]
    best = max(range(len(head.returns)), key=lambda i: head.returns[i]) if head.returns else None
    place = place_of(head.key)
    actions = [short(key) for key in keys]
    return GroupRow(
        key=head.key,
        iteration=head.iteration,
        actor=head.actor,
        size=len(head.returns),
        distinct=len(set(keys)) or len(set(head.returns)),
        invalid=head.valid.count(False),
        day=whole(head.facts.get("day")),
        turn=whole(head.facts.get("turn")),
        origin=str(head.facts.get("origin", head.facts.get("source", ""))),
        spread=safe(float(np.std(legal, ddof=1))) or 0.0 if len(legal) > 1 else 0.0,
        best=actions[best] if best is not None and best < len(actions) else "",
        trained=head.trained,
        episode=place[0] if place else None,
        chosen=whole(head.facts.get("chosen")),
        actions=actions,
        returns=[safe(value) for value in head.returns],
        valid=list(head.valid),
    )


def episode_row(episode: RecordedEpisode) -> EpisodeRow:
    """An episode in short."""
    facts = episode.facts
    return EpisodeRow(
        iteration=episode.iteration,
        name=episode.name,
        policies=dict(episode.policies),
        metrics={name: safe(value) for name, value in episode.metrics.items()},
        stop=str(facts.get("stop", "")),
        error=str(facts["error"]) if facts.get("error") else None,
        turns=episode.steps,
    )


def episode_turn(number: int, turn: Mapping[str, Any], asked: str | None, groups: Mapping[tuple[int, str], str]) -> EpisodeTurn:
    """A step of an episode.

    Args:
        number: of the step, from 0.
        turn: as it was recorded.
        asked: the text that was read, where the record holds it.
        groups: (turn of the workplace, actor) -> key of the group whose replies were sampled there.
    """
    actor = str(turn.get("actor", ""))
    rewards = {str(role): safe(float(amount)) or 0.0 for role, amount in turn.get("rewards", {}).items()}
    parts = turn.get("parts", {}).get(actor, {})
    place = whole(turn.get("facts", {}).get("turn"))
    return EpisodeTurn(
        index=int(turn.get("index", number)),
        actor=actor,
        policy=str(turn.get("policy", "")),
        kind=str(turn.get("kind", "")),
        text=str(turn.get("text", "")),
        valid=bool(turn.get("valid", True)),
        reward=rewards.get(actor, 0.0),
        rewards=rewards,
        prompt=asked,
        parts={str(name): float(value) for name, value in parts.items() if value},
        facts=finite(turn.get("facts", {})),
        # A reflection is asked for in the same turn as the decision.
        group=groups.get((place, actor)) if place is not None and turn.get("kind") != Kind.REFLECT else None,
    )


def groups_of(keys: Iterable[str], episode: str) -> dict[tuple[int, str], str]:
    """(turn of the workplace, actor) -> key, of the groups whose replies were sampled in `episode`."""
    found: dict[tuple[int, str], str] = {}
    for key in keys:
        place = place_of(key)
        if place is None or place[0] != episode:
            continue
        turn = key.split("/")[-2].removeprefix("t")
        if turn.isdecimal():
            found[int(turn), place[1]] = key
    return found


def action_of(key: str) -> str:
    """The action type of a canonical key."""
    try:
        return str(json.loads(key).get("action_type", key))
    except (ValueError, AttributeError):
        return key


def short(key: str) -> str:
    """A canonical key as people read it."""
    try:
        fields = json.loads(key)
        return " ".join(str(fields[name]) for name in ("action_type", "target") if fields.get(name))
    except (ValueError, AttributeError, TypeError):
        return key


def whole(value: Any) -> int | None:
    """A whole number, or None for anything else."""
    return value if isinstance(value, int) else None


def safe(value: float) -> float | None:
    """JSON has no NaN and no infinity: None."""
    return value if math.isfinite(value) else None


def finite(value: Any) -> Any:
    """JSON has no NaN: such numbers become null."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float):
        return safe(value)
    return value
