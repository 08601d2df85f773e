"""From a record to what trackers receive: the metrics, sampled transcripts, and rows of episodes and turns of one iteration.

Everything of an iteration is read into memory and the record is closed before any of it is sent: a sink that is slow never holds
the record open.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onthejob.keys import keyed_sample
from onthejob.record import RecordedEpisode, Run
from onthejob.texts import printable
from onthejob.track.tracker import Row

LONGEST = 30_000
"""Characters of a cell; spreadsheets refuse more than 32,767."""
LONGEST_SHOWN = 2_000
"""Characters of a text in a sampled transcript."""
MOST_TURNS = 40
"""Turns of one sampled transcript."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """What one iteration gives to a tracker."""

    step: int
    metrics: Mapping[str, float]
    transcripts: Sequence[Row]
    episodes: Sequence[Row]
    turns: Sequence[Row]


def read_packet(run: Run, step: int, *, id: str, transcripts: int, tables: bool) -> Packet:
    """Read iteration `step`.

    Args:
        run: open for reading.
        step: the iteration.
        id: of the run, for the keys of rows.
        transcripts: episodes whose turns are sampled.
        tables: also make rows of all episodes and turns.
    """
    metrics = {f"{metric.scope}/{metric.name}": metric.value for metric in run.read_metrics(iteration=step)}
    names = [episode.name for episode in run.read_episodes(step, turns=False)]
    chosen = set(keyed_sample(names, min(transcripts, len(names)), step, "transcripts"))
    shown: list[Row] = []
    episodes: list[Row] = []
    turns: list[Row] = []
    for position, name in enumerate(names):
        if not tables and name not in chosen:
            continue
        for episode in run.read_episodes(step, name):
            if name in chosen:
                shown += transcript_rows(episode)
            if tables:
                key = f"{id}/{step:06d}/{position:05d}"
                episodes.append(episode_row(episode, run=run.name, key=key))
                turns += turn_rows(episode, run=run.name, key=key)
    return Packet(step=step, metrics=metrics, transcripts=shown, episodes=episodes, turns=turns)


def episode_row(episode: RecordedEpisode, *, run: str, key: str) -> Row:
    """One row: what was played, how it ended, what each role was paid, and the episode's metrics."""
    paid = _paid(episode)
    row: dict[str, Any] = {
        "run": run,
        "key": key,
        "iteration": episode.iteration,
        "episode": episode.name,
        "task": episode.facts.get("task"),
        "stop": episode.facts.get("stop"),
        "error": episode.facts.get("error"),
        "turns": episode.steps,
        "reward": sum(paid.values()),
        "policies": dict(episode.policies),
    }
    row |= {f"reward.{role}": value for role, value in sorted(paid.items())}
    row |= {f"metrics.{name}": value for name, value in sorted(episode.metrics.items())}
    return {column: cell(value) for column, value in row.items()}


def turn_rows(episode: RecordedEpisode, *, run: str, key: str) -> list[Row]:
    """One row per turn: role, action, its reward, the parts of it, and the rewards of other roles at the same step."""
    rows: list[Row] = []
    for number, turn in enumerate(episode.timeline):
        actor, rewards = turn["actor"], turn["rewards"]
        others = {role: value for role, value in rewards.items() if role != actor and value}
        row = {
            "run": run,
            "key": f"{key}/{number:05d}",
            "iteration": episode.iteration,
            "episode": episode.name,
            "task": episode.facts.get("task"),
            "turn": number,
            "actor": actor,
            "policy": turn["policy"],
            "kind": turn["kind"],
            "valid": turn["valid"],
            "action": turn["text"],
            "reward": rewards.get(actor, 0.0),
            "others": others or None,
        }
        row |= {f"part.{name}": value for name, value in sorted(turn.get("parts", {}).get(actor, {}).items())}
        rows.append({column: cell(value) for column, value in row.items()})
    return rows


def transcript_rows(episode: RecordedEpisode) -> list[Row]:
    """The first turns of an episode, for people to read."""
    rows: list[Row] = []
    for number, turn in enumerate(episode.timeline[:MOST_TURNS]):
        rows.append(
            {
                "episode": cell(episode.name),
                "turn": number,
                "actor": cell(turn["actor"]),
                "policy": cell(turn["policy"]),
                "valid": bool(turn["valid"]),
                "reward": float(turn["rewards"].get(turn["actor"], 0.0)),
                "reply": _clipped(printable(turn["text"]), LONGEST_SHOWN),
            }
        )
    return rows


def cell(value: Any) -> str | int | float | bool | None:
    """A value as a table takes it: texts printable and clipped, structures as JSON, NaN and infinities empty."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return _clipped(printable(text), LONGEST)


def _paid(episode: RecordedEpisode) -> dict[str, float]:
    paid: dict[str, float] = dict.fromkeys(episode.policies, 0.0)
    for turn in episode.timeline:
        for role, value in turn["rewards"].items():
            paid[role] = paid.get(role, 0.0) + value
    for role, value in (episode.facts.get("unseated") or {}).items():
        paid[role] = paid.get(role, 0.0) + value
    return paid


def _clipped(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
