"""Trajectory bundles: one JSON object per group, with its K rewards, advantages and trajectories side by side.

The shape in which a GRPO step of whole episodes is usually handed from one program to another (`trajectory_bundle.jsonl`). It is
a view of the record, made on demand; token ids and log-probabilities are those that were sampled, and every number comes back to
the last bit, so that an update from a bundle is the update from the record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

from onthejob.files import published_file
from onthejob.record.store import Run
from onthejob.types import Group, Trajectory

FILE = "trajectory_bundle.jsonl"
"""Usual name of the file."""
SCHEMA = 2
"""Version of the object's form."""


def bundle(
    group: Group, advantages_G: npt.NDArray[np.float64] | None, *, iteration: int, sampler: str | None, base: str | None = None
) -> dict[str, Any]:
    """One group as a JSON object.

    Args:
        group: as recorded; metrics of its episodes are in `facts["metrics"]` where it was made of whole episodes.
        advantages_G: of its trajectories, shape (K,); None for a dead group, whose advantages are all 0.
        iteration: that sampled it.
        sampler: who sampled it, as `onthejob train --sampler` names it.
        base: digest of the base model's weights.
    """
    rewards = [row.ret for row in group.trajectories]
    advantages = [0.0] * len(group) if advantages_G is None else [float(value) for value in advantages_G]
    whole = group.facts.get("source") == "episodes"
    metrics: Sequence[Mapping[str, float]] = group.facts["metrics"] if whole else [row.metrics for row in group.trajectories]
    return {
        "schema": SCHEMA,
        "iteration": iteration,
        "key": group.key,
        "task_id": group.trajectories[0].task_id,
        "actor": group.actor,
        "source": group.facts.get("source"),
        "sampler": sampler,
        "base": base,
        "k": len(group),
        "temperature": group.trajectories[0].turns[0].temperature,
        "trained": advantages_G is not None,
        "rewards": rewards,
        "advantages": advantages,
        "n_turns": [len(row.turns) for row in group.trajectories],
        "stops": [str(row.stop) for row in group.trajectories],
        "rewards_stats": {
            "mean": fmean(rewards),
            "stdev": stdev(rewards) if len(rewards) > 1 else 0.0,
            "min": min(rewards),
            "max": max(rewards),
            "spread": max(rewards) - min(rewards),
        },
        "rollouts": [
            _rollout(index, row, advantages[index], {**(metrics[index] if index < len(metrics) else {}), **row.metrics})
            for index, row in enumerate(group.trajectories)
        ],
    }


def bundles(run: Run, iteration: int | None = None, *, base: str | None = None) -> Iterator[dict[str, Any]]:
    """The groups of one iteration, or of all, in order; dead ones too. `base`: digest of the base model's weights.

    Raises:
        RecordError: the record cannot be read.
    """
    sampler = run.config.get("sampler")
    for number in run.iterations() if iteration is None else [iteration]:
        advantages = run.read_advantages(number)
        for group in run.read_groups(number):
            yield bundle(group, advantages.get(group.key), iteration=number, sampler=sampler, base=base)


def write_bundles(run: Run, path: Path, iteration: int | None = None, *, base: str | None = None) -> int:
    """Write the bundles of one iteration, or of all, as JSON lines, whole or not at all; returns how many.

    Raises:
        RecordError: the record cannot be read.
        OSError: the file cannot be written.
    """
    count = 0
    with run.frozen(), published_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for made in bundles(run, iteration, base=base):
            file.write(json.dumps(made, allow_nan=False) + "\n")
            count += 1
    return count


def _rollout(index: int, row: Trajectory, advantage: float, metrics: Mapping[str, float]) -> dict[str, Any]:
    return {
        "rollout_idx": index,
        "n_turns": len(row.turns),
        "stopped": str(row.stop),
        "reward": row.ret,
        "advantage": advantage,
        "metrics": dict(metrics),
        "turns": [
            {
                "turn": number,
                "agent_response": turn.completion.text,
                "policy": turn.policy_version,
                "kind": str(turn.kind),
                "temperature": turn.temperature,
                "finish": turn.completion.finish_reason,
                "parse_error": not turn.valid,
                "reward": reward,
                "prompt_ids": list(turn.prompt_ids),
                "completion_ids": list(turn.completion.token_ids),
                "logprobs": list(turn.completion.logprobs),
            }
            for number, (turn, reward) in enumerate(zip(row.turns, row.rewards, strict=True))
        ],
    }
