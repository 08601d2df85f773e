"""Trajectory bundles read back: the groups of a `trajectory_bundle.jsonl`, of this program or of one that writes its form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from onthejob.errors import RecordError
from onthejob.files import json_lines
from onthejob.record.bundle import SCHEMA
from onthejob.types import Completion, Group, Kind, StopReason, Trajectory, Turn


class Bundled(NamedTuple):
    """One line of the file."""

    line: int
    """From 1."""
    iteration: int
    group: Group
    sampler: str | None
    """Who sampled it, as `onthejob train --sampler` names it; None where the file does not say."""
    base: str | None
    """Digest of the weights of the base model that sampled it; None where the file does not say."""


def read_bundles(path: Path) -> list[Bundled]:
    """Every group of a file, as it was recorded but for facts that only the record holds.

    Returns are the sums of the turns' rewards, and advantages are not read: the trainer computes them from the returns.

    Raises:
        RecordError: the file cannot be read, or a line is no bundle; names the line.
    """
    try:
        lines = json_lines(path)
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(
            f"{path} cannot be read: {error}. Give a file that `onthejob runs export RUN --bundles` wrote."
        ) from error
    found = [_read(path, number, line) for number, line in lines]
    keys: set[str] = set()
    for one in found:
        if one.group.key in keys:
            raise RecordError(
                f"line {one.line} of {path} repeats the group {one.group.key!r}. Give bundles of different runs one by one."
            )
        keys.add(one.group.key)
    if not found:
        raise RecordError(f"{path} holds no bundle. `onthejob runs export RUN --bundles` writes those of a run.")
    return found


Finite = Annotated[float, Field(allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0)]


class _Lenient(BaseModel):
    # Other programs may note more than is read here.
    model_config = ConfigDict(extra="ignore", strict=True)


class _Turn(_Lenient):
    agent_response: str
    policy: str
    kind: str
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    finish: Literal["stop", "length"]
    parse_error: bool
    reward: Finite
    prompt_ids: Annotated[list[TokenId], Field(min_length=1)]
    completion_ids: Annotated[list[TokenId], Field(min_length=1)]
    logprobs: list[Finite]


class _Rollout(_Lenient):
    stopped: str
    reward: Finite
    metrics: dict[str, Finite]
    turns: Annotated[list[_Turn], Field(min_length=1)]


class _Bundle(_Lenient):
    schema_: Annotated[int, Field(alias="schema")]
    iteration: Annotated[int, Field(ge=0)]
    key: str
    task_id: str
    actor: str
    source: str | None
    sampler: str | None
    base: str | None
    rollouts: Annotated[list[_Rollout], Field(min_length=1)]


def _read(path: Path, number: int, line: str) -> Bundled:
    try:
        read = _Bundle.model_validate_json(line)
        if read.schema_ != SCHEMA:
            raise ValueError(f"its schema is {read.schema_}, and this version reads {SCHEMA}")
        trajectories = tuple(_trajectory(read, row) for row in read.rollouts)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise RecordError(f"line {number} of {path} is no bundle: {where}: {first['msg']}. Export it again.") from error
    except ValueError as error:
        raise RecordError(f"line {number} of {path} is no bundle: {error}. Export it again.") from error
    facts: dict[str, object] = {"source": read.source}
    if read.source == "episodes":
        facts["metrics"] = [row.metrics for row in read.rollouts]
    group = Group(key=read.key, actor=read.actor, trajectories=trajectories, facts=facts)
    return Bundled(number, read.iteration, group, read.sampler, read.base)


def _trajectory(read: _Bundle, row: _Rollout) -> Trajectory:
    rewards = tuple(turn.reward for turn in row.turns)
    if not math.isclose(sum(rewards), row.reward, rel_tol=1e-9, abs_tol=1e-9):
        raise ValueError(f"a rollout's reward is {row.reward}, and its turns were paid {sum(rewards)}")
    return Trajectory(
        task_id=read.task_id,
        actor=read.actor,
        turns=tuple(map(_turn, row.turns)),
        rewards=rewards,
        stop=StopReason(row.stopped),
        metrics={} if read.source == "episodes" else row.metrics,
    )


def _turn(row: _Turn) -> Turn:
    if len(row.logprobs) != len(row.completion_ids):
        raise ValueError(f"a turn has {len(row.completion_ids)} completion_ids and {len(row.logprobs)} logprobs")
    completion = Completion(
        text=row.agent_response,
        token_ids=tuple(row.completion_ids),
        logprobs=tuple(row.logprobs),
        finish_reason=row.finish,
    )
    return Turn(
        prompt_ids=tuple(row.prompt_ids),
        completion=completion,
        policy_version=row.policy,
        kind=Kind(row.kind),
        temperature=row.temperature,
        valid=not row.parse_error,
    )


def by_iteration(bundled: Sequence[Bundled]) -> dict[int, list[Group]]:
    """Iteration -> its groups, in order."""
    found: dict[int, list[Group]] = {}
    for one in sorted(bundled, key=lambda one: one.iteration):
        found.setdefault(one.iteration, []).append(one.group)
    return found
