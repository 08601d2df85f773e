"""Routes of recorded runs: lists, curves, groups with every token, episodes by turn. Only reads, also of a run in progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from onthejob.api.changed_files import Changes
from onthejob.api.comparisons import findings_view
from onthejob.api.recorded_frames import branch_terms, episode_frames, rules_of, traces
from onthejob.api.recorded_rows import action_of, episode_row, episode_turn, finite, group_row, groups_of, safe, whole
from onthejob.api.run_rows import Runs, against_view
from onthejob.api.schema_office import Frames
from onthejob.api.schema_runs import (
    ActionShare,
    AdvantageRule,
    AgainstView,
    BranchTerms,
    ChangedFiles,
    EpisodeRow,
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
from onthejob.evaluate.reexecute import place_of
from onthejob.learn.advantage import AdvantageConfig
from onthejob.record import series
from onthejob.record.listing import env_of, short_ref, summary
from onthejob.rollout.origin import read_origin
from onthejob.types import Group, Trajectory

Iteration = Annotated[int | None, Query(ge=0, le=2**31)]
Actor = Annotated[str | None, Query(max_length=40)]
Key = Annotated[str, Query(min_length=1, max_length=300)]


def routes(runs: Runs, changes: Changes | None = None) -> APIRouter:
    """Everything about recorded runs.

    Args:
        runs: of one folder.
        changes: executes recorded commands again; None: none are executed.
    """
    changes = changes or Changes()
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
                config=finite(run.config),
                iterations=iterations,
                actors=sorted({m.scope.removeprefix(TRAIN_SCOPE) for m in metrics if m.scope.startswith(TRAIN_SCOPE)}),
                events=[RunEvent(iteration=e.iteration, kind=e.kind, payload=finite(e.payload)) for e in events],
                scales=finite(scales),
                damage=[RunDamage(iteration=d.iteration, part=d.part) for d in run.damage],
            )

    @api.get("/{name}/overview")
    def overview(name: str) -> OverviewView:
        with runs.open(name, skip_damaged=True) as run:
            rows, found = [group_row(head) for head in run.read_group_heads()], runs.outcomes.of(name, run.last_iteration())
        return OverviewView(
            verdict=None if found is None else findings_view(found.findings),
            comparison="" if found is None else found.comparison,
            telling=_telling(rows),
        )

    @api.get("/{name}/differences")
    def differences(name: str) -> dict[str, AgainstView]:
        """Run -> its paired difference from this one; runs that were never compared with it on the same tasks have none."""
        with runs.open(name, skip_damaged=True):
            found = runs.outcomes.differences(name)
        return {run: against_view(one) for run, one in found.items()}

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
            MetricSeries(scope=s, name=n, iterations=list(at), values=[safe(value) for value in values])
            for s, n, at, values in found
            if not wanted or n in wanted
        ]

    @api.get("/{name}/groups")
    def groups(
        name: str,
        iteration: Iteration = None,
        actor: Actor = None,
        start: Annotated[int, Query(ge=0, le=2**31)] = 0,
        count: Annotated[int, Query(ge=1, le=5_000)] = 100,
    ) -> GroupPage:
        with runs.open(name) as run:
            rows = [group_row(head) for head in run.read_group_heads(iteration, actor)]
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
                terms=branch_terms(run, found),
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
                counted.update(action_of(str(key)) for key in head.facts.get("keys", ()))
        return [
            ActionShare(iteration=n, actor=who, action=action, share=number / counted.total())
            for (n, who), counted in sorted(counts.items())
            for action, number in counted.most_common()
        ]

    @api.get("/{name}/episodes")
    def episodes(name: str, iteration: Iteration = None) -> list[EpisodeRow]:
        with runs.open(name) as run:
            return [episode_row(episode) for episode in run.read_episodes(iteration, turns=False)]

    @api.get("/{name}/episode")
    def episode(name: str, iteration: Annotated[int, Query(ge=0, le=2**31)], episode: Key) -> EpisodeView:
        with runs.open(name) as run, run.frozen():
            found = next(iter(run.read_episodes(iteration, episode)), None)
            if found is None:
                raise RecordError(f"run {name!r} has no episode {episode!r} in iteration {iteration}.")
            asked = requests(run, found, runs.tokens(run.config))
            sampled = groups_of((key for at, key in run.read_group_keys() if at == iteration), episode)
        turns = [episode_turn(n, turn, asked.get(n), sampled) for n, turn in enumerate(found.timeline)]
        origin = read_origin(found.facts, f"episode {episode!r} of run {name!r}")
        return EpisodeView(row=episode_row(found), turns=turns, office=origin is not None and origin.task.env == "office")

    @api.get("/{name}/files")
    def files(
        name: str,
        iteration: Annotated[int, Query(ge=0, le=2**31)],
        episode: Key,
        turn: Annotated[int, Query(ge=0, le=2**31)],
    ) -> ChangedFiles:
        with runs.open(name) as run:
            found, config = next(iter(run.read_episodes(iteration, episode)), None), run.config
        if found is None:
            raise RecordError(f"run {name!r} has no episode {episode!r} in iteration {iteration}.")
        return changes.of(name, config, found, turn)

    @api.get("/{name}/office")
    def office(name: str, iteration: Annotated[int, Query(ge=0, le=2**31)], episode: Key) -> Frames:
        with runs.open(name) as run:
            found, rules = next(iter(run.read_episodes(iteration, episode)), None), rules_of(run)
        if found is None:
            raise RecordError(f"run {name!r} has no episode {episode!r} in iteration {iteration}.")
        return episode_frames(found, name, rules)

    @api.get("/{name}/branches")
    def branches(
        name: str,
        key: Key,
        world: Annotated[int, Query(ge=1, le=9_999)],
        reply: Annotated[list[int] | None, Query(max_length=64)] = None,
    ) -> Traces:
        with runs.open(name) as run, run.frozen():
            found = next(iter(run.read_groups(key=key)), None)
            iteration = next((at for at, one in run.read_group_keys() if one == key), None)
            if found is None or iteration is None:
                raise RecordError(f"run {name!r} has no group {key!r}.")
            return traces(run, name, found, iteration, world, replies=reply)

    return api


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
    terms: BranchTerms | None,
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
    place = place_of(group.key)
    return GroupView(
        key=group.key,
        episode=place[0] if place else None,
        terms=terms,
        env=short_ref(env),
        iteration=iteration,
        actor=group.actor,
        prompt=tokens.text(first.prompt_ids) if first is not None else None,
        prompt_ids=len(first.prompt_ids) if first is not None else 0,
        rule=rule,
        source=str(facts.get("source", "")),
        worlds=[int(world) for world in facts.get("worlds", ())],
        chosen=whole(facts.get("chosen")),
        facts=finite(shown),
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
        logprobs=[safe(value) or 0.0 for value in turn.completion.logprobs],
        ret=safe(trajectory.ret) or 0.0,
        rewards=[safe(value) or 0.0 for value in trajectory.rewards],
        metrics={name: float(value) for name, value in trajectory.metrics.items() if safe(float(value)) is not None},
        advantage=advantage,
        by_world=[float(value) for value in by_world],
        turns=[
            TurnView(
                index=index,
                text=one.completion.text,
                kind=str(one.kind),
                valid=one.valid,
                reward=safe(reward),
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
