"""Routes of recorded runs: lists, curves, groups with every token, episodes by turn. Only reads, also of a run in progress."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query

from onthejob.api.comparisons import findings_view
from onthejob.api.recorded_frames import episode_frames, rules_of, traces
from onthejob.api.run_rows import Runs
from onthejob.api.schema_office import Frames
from onthejob.api.schema_runs import (
    ActionShare,
    AdvantageRule,
    EpisodeRow,
    EpisodeTurn,
    EpisodeView,
    GroupPage,
    GroupRow,
    GroupView,
    MetricSeries,
    NotesAsk,
    NotesView,
    OverviewView,
    ReplyView,
    RunDamage,
    RunEvent,
    RunRow,
    RunView,
    Traces,
    TurnView,
)
from onthejob.api.tokens import Tokens
from onthejob.api.transcripts import read_by_turn, requests
from onthejob.errors import RecordError
from onthejob.evaluate.recorded import TRAIN_SCOPE, recorded_scales
from onthejob.learn.advantage import AdvantageConfig
from onthejob.record import series
from onthejob.record.from_rows import GroupHead, RecordedEpisode
from onthejob.record.listing import env_of, short_ref, summary
from onthejob.rollout.origin import read_origin
from onthejob.types import Group, Trajectory

Iteration = Annotated[int | None, Query(ge=0, le=2**31)]
Actor = Annotated[str | None, Query(max_length=40)]
Key = Annotated[str, Query(min_length=1, max_length=300)]


def routes(runs: Runs) -> APIRouter:
    """Everything about recorded runs."""
    api = APIRouter(prefix="/api/runs", tags=["runs"])

    @api.get("")
    def list_all() -> list[RunRow]:
        return runs.list()

    @api.get("/{name}")
    def show(name: str) -> RunView:
        with runs.open(name, skip_damaged=True) as run:
            metrics = run.read_metrics(iteration=run.last_iteration())
            scales = {role: {"outcome": one.outcome, "return": one.ret} for role, one in recorded_scales(run).items()}
            iterations, events = run.iterations(), run.read_events()
            return RunView(
                info=runs.row(summary(run)),
                config=_finite(run.config),
                iterations=iterations,
                actors=sorted({m.scope.removeprefix(TRAIN_SCOPE) for m in metrics if m.scope.startswith(TRAIN_SCOPE)}),
                events=[RunEvent(iteration=e.iteration, kind=e.kind, payload=_finite(e.payload)) for e in events],
                scales=_finite(scales),
                damage=[RunDamage(iteration=d.iteration, part=d.part) for d in run.damage],
            )

    @api.get("/{name}/overview")
    def overview(name: str) -> OverviewView:
        with runs.open(name, skip_damaged=True) as run:
            rows, found = [_row(head) for head in run.read_group_heads()], runs.outcomes.of(name, run.last_iteration())
        return OverviewView(
            verdict=None if found is None else findings_view(found.findings),
            comparison="" if found is None else found.comparison,
            telling=_telling(rows),
        )

    @api.post("/{name}/notes")
    def write_notes(name: str, asked: NotesAsk) -> NotesView:
        return runs.note(name, asked)

    @api.get("/{name}/metrics")
    def metrics(
        name: str,
        scope: Annotated[str | None, Query(max_length=200)] = None,
        metric: Annotated[list[str] | None, Query(max_length=50)] = None,
    ) -> list[MetricSeries]:
        wanted = set(metric or ())
        with runs.open(name) as run:
            found = series(run.read_metrics(scope))
        return [
            MetricSeries(scope=s, name=n, iterations=list(at), values=[_safe(value) for value in values])
            for s, n, at, values in found
            if not wanted or n in wanted
        ]

    @api.get("/{name}/groups")
    def groups(
        name: str,
        iteration: Iteration = None,
        actor: Actor = None,
        start: Annotated[int, Query(ge=0, le=2**31)] = 0,
        count: Annotated[int, Query(ge=1, le=500)] = 100,
    ) -> GroupPage:
        with runs.open(name) as run:
            rows = [_row(head) for head in run.read_group_heads(iteration, actor)]
        return GroupPage(total=len(rows), rows=rows[start : start + count])

    @api.get("/{name}/group")
    def group(name: str, key: Key) -> GroupView:
        with runs.open(name) as run, run.frozen():
            found = next(iter(run.read_groups(key=key)), None)
            if found is None:
                raise RecordError(f"run {name!r} has no group {key!r}.")
            keys = run.read_group_keys()
            place = next(index for index, (_, one) in enumerate(keys) if one == key)
            iteration = keys[place][0]
            advantages = run.read_advantages(iteration=iteration)[key]
            tokens = runs.tokens(run.config)
            return _group(
                found,
                env=env_of(run.config),
                iteration=iteration,
                advantages=None if advantages is None else advantages.tolist(),
                rule=_rule(run.config),
                tokens=tokens,
                previous=keys[place - 1][1] if place else None,
                following=keys[place + 1][1] if place + 1 < len(keys) else None,
            )

    @api.get("/{name}/drift")
    def drift(name: str, actor: Actor = None) -> list[ActionShare]:
        counts: dict[tuple[int, str], Counter[str]] = {}
        with runs.open(name) as run:
            for head in run.read_group_heads(None, actor):
                counted = counts.setdefault((head.iteration, head.actor), Counter())
                counted.update(_action(str(key)) for key in head.facts.get("keys", ()))
        return [
            ActionShare(iteration=n, actor=who, action=action, share=number / counted.total())
            for (n, who), counted in sorted(counts.items())
            for action, number in counted.most_common()
        ]

    @api.get("/{name}/episodes")
    def episodes(name: str, iteration: Iteration = None) -> list[EpisodeRow]:
        with runs.open(name) as run:
            return [_episode_row(episode) for episode in run.read_episodes(iteration, turns=False)]

    @api.get("/{name}/episode")
    def episode(name: str, iteration: Annotated[int, Query(ge=0, le=2**31)], episode: Key) -> EpisodeView:
        with runs.open(name) as run, run.frozen():
            found = next(iter(run.read_episodes(iteration, episode)), None)
            if found is None:
                raise RecordError(f"run {name!r} has no episode {episode!r} in iteration {iteration}.")
            asked = requests(run, found, runs.tokens(run.config))
        turns = [_episode_turn(n, turn, asked.get(n)) for n, turn in enumerate(found.timeline)]
        origin = read_origin(found.facts, f"episode {episode!r} of run {name!r}")
        return EpisodeView(row=_episode_row(found), turns=turns, office=origin is not None and origin.task.env == "office")

    @api.get("/{name}/office")
    def office(name: str, iteration: Annotated[int, Query(ge=0, le=2**31)], episode: Key) -> Frames:
        with runs.open(name) as run:
            found, rules = next(iter(run.read_episodes(iteration, episode)), None), rules_of(run)
        if found is None:
            raise RecordError(f"run {name!r} has no episode {episode!r} in iteration {iteration}.")
        return episode_frames(found, name, rules)

    @api.get("/{name}/branches")
    def branches(name: str, key: Key, world: Annotated[int, Query(ge=1, le=9_999)]) -> Traces:
        with runs.open(name) as run, run.frozen():
            found = next(iter(run.read_groups(key=key)), None)
            iteration = next((at for at, one in run.read_group_keys() if one == key), None)
            if found is None or iteration is None:
                raise RecordError(f"run {name!r} has no group {key!r}.")
            return traces(run, name, found, iteration, world)

    return api


def _row(head: GroupHead) -> GroupRow:
    keys = [str(key) for key in head.facts.get("keys", ())]
    legal = [ret for ret, valid in zip(head.returns, head.valid, strict=True) if valid]
    best = max(range(len(head.returns)), key=lambda i: head.returns[i]) if head.returns else None
    return GroupRow(
        key=head.key,
        iteration=head.iteration,
        actor=head.actor,
        size=len(head.returns),
        distinct=len(set(keys)) or len(set(head.returns)),
        invalid=head.valid.count(False),
        day=_whole(head.facts.get("day")),
        turn=_whole(head.facts.get("turn")),
        origin=str(head.facts.get("origin", head.facts.get("source", ""))),
        spread=_safe(float(np.std(legal, ddof=1))) or 0.0 if len(legal) > 1 else 0.0,
        best=_short(keys[best]) if best is not None and best < len(keys) else "",
        trained=head.trained,
    )


def _telling(rows: Sequence[GroupRow], most: int = 3) -> list[GroupRow]:
    """The groups with the largest spread of the newest third of the iterations, those of roles not yet shown first."""
    last = max((row.iteration for row in rows), default=0)
    newest = sorted((row for row in rows if 3 * row.iteration >= 2 * last and row.spread > 0), key=lambda row: -row.spread)
    chosen: list[GroupRow] = []
    while newest and len(chosen) < most:
        shown = {row.actor for row in chosen}
        chosen.append(next((row for row in newest if row.actor not in shown), newest[0]))
        newest.remove(chosen[-1])
    return chosen


def _group(
    group: Group,
    *,
    env: str,
    iteration: int,
    advantages: Sequence[float] | None,
    rule: AdvantageRule,
    tokens: Tokens,
    previous: str | None,
    following: str | None,
) -> GroupView:
    facts = group.facts
    keys = [str(key) for key in facts.get("keys", ())]
    by_world = facts.get("by_world", {})
    first = group.trajectories[0].turns[0] if group.trajectories and group.trajectories[0].turns else None
    replies = []
    for index, trajectory in enumerate(group.trajectories):
        key = keys[index] if index < len(keys) else ""
        advantage = advantages[index] if advantages is not None else None
        replies.append(_reply(trajectory, key, advantage, by_world.get(key, ()), tokens))
    shown = {name: value for name, value in facts.items() if name not in ("by_world", "keys", "worlds")}
    return GroupView(
        key=group.key,
        env=short_ref(env),
        iteration=iteration,
        actor=group.actor,
        prompt=tokens.text(first.prompt_ids) if first is not None else None,
        prompt_ids=len(first.prompt_ids) if first is not None else 0,
        rule=rule,
        source=str(facts.get("source", "")),
        worlds=[int(world) for world in facts.get("worlds", ())],
        chosen=_whole(facts.get("chosen")),
        facts=_finite(shown),
        replies=replies,
        previous=previous,
        next=following,
    )


def _reply(trajectory: Trajectory, key: str, advantage: float | None, by_world: Sequence[float], tokens: Tokens) -> ReplyView:
    turn = trajectory.turns[0]
    whole = len(trajectory.turns) > 1
    return ReplyView(
        text=turn.completion.text,
        valid=trajectory.valid,
        stop=str(trajectory.stop),
        policy=turn.policy_version,
        temperature=turn.temperature,
        finish=turn.completion.finish_reason,
        key=key,
        ids=list(turn.completion.token_ids),
        pieces=tokens.pieces(turn.completion.token_ids),
        logprobs=[_safe(value) or 0.0 for value in turn.completion.logprobs],
        ret=_safe(trajectory.ret) or 0.0,
        rewards=[_safe(value) or 0.0 for value in trajectory.rewards],
        metrics={name: float(value) for name, value in trajectory.metrics.items() if _safe(float(value)) is not None},
        advantage=advantage,
        by_world=[float(value) for value in by_world],
        turns=[
            TurnView(
                index=index,
                text=one.completion.text,
                kind=str(one.kind),
                valid=one.valid,
                reward=_safe(reward),
                policy=one.policy_version,
                prompt=asked,
            )
            for index, (one, reward, asked) in enumerate(
                zip(trajectory.turns, trajectory.rewards, read_by_turn(trajectory.turns, tokens), strict=True)
            )
        ]
        if whole
        else [],
    )


def _rule(config: Mapping[str, Any]) -> AdvantageRule:
    """What the run was configured with; the defaults where it does not say."""
    # Records of earlier versions have them in the learner's table.
    tables = (config.get(name) for name in ("learner", "train"))
    found = [table.get("advantage") for table in tables if isinstance(table, Mapping)]
    stated = next((given for given in found if isinstance(given, Mapping)), {})
    rule = {"negative_weight": 1.0, **asdict(AdvantageConfig()), **stated}
    return AdvantageRule.model_validate({name: rule[name] for name in AdvantageRule.model_fields})


def _episode_row(episode: RecordedEpisode) -> EpisodeRow:
    facts = episode.facts
    return EpisodeRow(
        iteration=episode.iteration,
        name=episode.name,
        policies=dict(episode.policies),
        metrics={name: _safe(value) for name, value in episode.metrics.items()},
        stop=str(facts.get("stop", "")),
        error=str(facts["error"]) if facts.get("error") else None,
        turns=episode.steps,
    )


def _episode_turn(number: int, turn: Mapping[str, Any], asked: str | None) -> EpisodeTurn:
    actor = str(turn.get("actor", ""))
    rewards = {str(role): _safe(float(amount)) or 0.0 for role, amount in turn.get("rewards", {}).items()}
    parts = turn.get("parts", {}).get(actor, {})
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
        facts=_finite(turn.get("facts", {})),
    )


def _action(key: str) -> str:
    """The action type of a canonical key."""
    try:
        return str(json.loads(key).get("action_type", key))
    except (ValueError, AttributeError):
        return key


def _short(key: str) -> str:
    """A canonical key as people read it."""
    try:
        fields = json.loads(key)
        return " ".join(str(fields[name]) for name in ("action_type", "target") if fields.get(name))
    except (ValueError, AttributeError, TypeError):
        return key


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _safe(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _finite(value: Any) -> Any:
    """JSON has no NaN: such numbers become null."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return _safe(value)
    return value
