"""Recorded play, executed again: what differs from the record, and on which turn first.

The record holds replies, where an episode began (`rollout.origin`, or its task) and all that followed. Workplaces are
deterministic, so playing the replies again must give what was: who was asked, with which prompt, what each reply did and paid,
how it ended, and what the branches of each group were worth. Where it does not, the rules have changed, or the record has.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onthejob.errors import ContractError, RecordError
from onthejob.record.codec import dump_json, load_json
from onthejob.record.from_rows import Episode
from onthejob.rollout.branch import BranchConfig, BranchFailure, BranchScorer, ReplyScores, Scales, ScoreRequest, score_replies
from onthejob.rollout.episode import Encoder, LiveEpisode, TurnRecord
from onthejob.rollout.episode import Episode as LiveEnd
from onthejob.rollout.origin import Origin
from onthejob.rollout.reward import ENV_RETURN
from onthejob.rollout.stand_ins import Rates
from onthejob.types import (
    Completion,
    Context,
    Environment,
    Forkable,
    Group,
    Kind,
    Observation,
    Sampling,
    StopReason,
    Trajectory,
    Turn,
)

TOLERANCE = 1e-9
"""Relative: the record holds doubles, and the same sums are made in the same order."""
SCORED = 1e-6
"""The same for values of branches, which are sums of many."""
PLACES = frozenset({"backend", "layers"})
"""Facts that tell where something ran, and not what happened."""


class Difference(NamedTuple):
    """Where replayed play leaves the record."""

    turn: int
    """Number of the reply in the episode, from 0; as many as there are replies: at the end."""
    actor: str
    """Who replied; empty at the end."""
    what: str
    recorded: Any
    found: Any


@dataclass(slots=True, kw_only=True)
class Played:
    """One recorded episode, executed again."""

    iteration: int
    name: str
    turns: int = 0
    """Replies executed and found equal."""
    groups: int = 0
    """Groups whose branches were executed and found equal."""
    prompts: int = 0
    """Prompts that were rendered again and found equal, token by token."""
    difference: Difference | None = None
    """The first one."""
    hash: str = ""
    """sha256 over the replayed episode, empty where it did not come to its end."""
    recorded_hash: str = ""
    """The same over the recorded one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the record's values were computed with."""

    branch: BranchConfig = field(default_factory=BranchConfig)
    scales: Mapping[str, Scales] = field(default_factory=dict)
    scorer: BranchScorer | None = None
    """Executes branches; None leaves them out."""
    encoder: Encoder | None = None
    """Renders prompts; None leaves them out."""


class Replayed(NamedTuple):
    """A policy that says what was said; `LiveEpisode` asks it only who it is."""

    version: str
    reads: str

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        """No policy is asked: the replies are in the record."""
        raise ContractError("recorded replies are stepped, not sampled. Play with another policy.")


def begin(env: Environment, origin: Origin, where: str) -> Observation | None:
    """Move `env` to where the episode `where` began.

    Raises:
        RecordError: the snapshot is of another version.
    """
    pending = env.reset(origin.task)
    if origin.start is None:
        return pending
    try:
        if not isinstance(env, Forkable):
            raise ContractError(f"{type(env).__name__} takes no snapshots")
        return env.restore(origin.start)
    except ContractError as error:
        raise RecordError(f"{where} was recorded by another version: {error}") from error


def place_of(key: str) -> tuple[str, str] | None:
    """(episode, actor) of a branch group, as its key says; None for another key."""
    # it0003/s02/TASK/t044/dev, see `rollout.collect`.
    parts = key.split("/")
    return ("/".join(parts[1:-2]), parts[-1]) if len(parts) >= 5 else None


def learners_of(group: Group, origin: Origin) -> Rates:
    """Actors that a stand-in continued in the branches of `group`, with its rates."""
    return {} if group.facts.get("partners") else origin.stand_ins


def same_numbers(found: Mapping[str, float], recorded: Mapping[str, float], *, tolerance: float = TOLERANCE) -> bool:
    """True when both have the same names and, within `tolerance`, the same numbers."""
    return set(found) == set(recorded) and all(_close(found[name], recorded[name], tolerance) for name in found)


class Sampled(NamedTuple):
    """What was sampled in one episode."""

    branched: Mapping[int, Group]
    """Turn of the environment -> the group that was sampled there and scored by branches."""
    whole: Mapping[str, Trajectory]
    """Actor -> its trajectory, where groups are made of whole episodes."""


def sampled_in(episodes: Sequence[Episode], groups: Iterable[Group]) -> list[Sampled]:
    """What of an iteration's `groups` was sampled in each of its `episodes`."""
    branched: dict[str, dict[int, Group]] = {}
    whole: dict[str, list[Group]] = {}
    for group in groups:
        place = place_of(group.key)
        if group.facts.get("source") == "branch" and place is not None:
            branched.setdefault(place[0], {})[int(group.facts["turn"])] = group
        elif group.trajectories:
            whole.setdefault(group.trajectories[0].task_id, []).append(group)
    found = []
    taken: dict[str, int] = {}
    for episode in episodes:
        own: dict[str, Trajectory] = {}
        if episode.facts.get("error") is None:  # episodes that failed are in no group
            task = str(episode.facts.get("task"))
            place = taken[task] = taken.get(task, -1) + 1
            own = {group.actor: group.trajectories[place] for group in whole.get(task, ()) if place < len(group.trajectories)}
        found.append(Sampled(branched.get(episode.name, {}), own))
    return found


def play_again(env: Environment, episode: Episode, origin: Origin, sampled: Sampled, rules: Rules) -> Played:
    """Execute a recorded episode, and the branches of its groups, up to the first difference.

    Args:
        env: of the rules under which it was recorded.
        episode: with its timeline.
        origin: where it began.
        sampled: what was sampled in it.
        rules: what the recorded values were computed with.

    Raises:
        RecordError: its beginning cannot be reached.
    """
    where = f"episode {episode.name!r} of iteration {episode.iteration}"
    played = Played(iteration=episode.iteration, name=episode.name)
    live = LiveEpisode(env, origin.task, begin(env, origin, where), encoder=rules.encoder, start=origin.start)
    digest, recorded = hashlib.sha256(), hashlib.sha256()
    asked: dict[str, int] = {}
    stop = StopReason.CONTEXT if episode.facts.get("stop") == StopReason.CONTEXT else None
    if stop is not None and not episode.timeline and live.active:
        live.cut(stop)
    for number, row in enumerate(episode.timeline):
        actor = str(row["actor"])
        ending = stop if number == len(episode.timeline) - 1 else None
        differs = _differs(live, row, sampled, asked.get(actor, 0), origin, rules, played, digest, ending=ending)
        if differs is not None:
            played.difference = Difference(number, actor, *differs)
            return played
        asked[actor] = asked.get(actor, 0) + 1
        _add(recorded, _effect(row))
        played.turns += 1
    end = live.finish()
    _add(digest, _known(end.metrics))
    _add(recorded, episode.metrics)
    differs = _differs_at_end(end, episode, sampled)
    if differs is not None:
        played.difference = Difference(len(episode.timeline), "", *differs)
        return played
    played.hash, played.recorded_hash = digest.hexdigest(), recorded.hexdigest()
    return played


class _Differs(NamedTuple):
    what: str
    recorded: Any
    found: Any


def _differs(
    live: LiveEpisode,
    row: Mapping[str, Any],
    sampled: Sampled,
    place: int,
    origin: Origin,
    rules: Rules,
    played: Played,
    digest: hashlib._Hash,
    *,
    ending: StopReason | None,
) -> _Differs | None:
    """Play one recorded turn, the `place`-th of its actor; says what differs first.

    `ending`: an episode that would continue was ended from outside after this turn, because the model's context was full.
    """
    actor, text = str(row["actor"]), str(row["text"])
    if not live.active:
        return _Differs("who is asked", actor, "no role: the episode is over")
    pending = live.pending()
    if (actor, str(row["kind"])) != (pending.actor, str(pending.kind)):
        return _Differs("who is asked for what", [actor, str(row["kind"])], [pending.actor, str(pending.kind)])
    # A reflection is asked for before the decision of the same turn, and is none.
    group = sampled.branched.get(int(live.env.state().get("turn", -1))) if pending.kind is Kind.ACT else None
    turn = _turn_of(sampled, group, actor, place)
    if turn is not None and turn.completion.text != text:
        return _Differs("the reply that was sampled", turn.completion.text, text)
    if group is not None and rules.scorer is not None:
        differs = _differs_in_branches(live, group, origin, rules)
        if differs is not None:
            return differs
        played.groups += 1
    tokens = rules.encoder is not None and turn is not None and bool(turn.prompt_ids)
    policy = Replayed(str(row["policy"]), "tokens" if tokens else "view")
    context = live.context(policy, 0)
    if tokens and turn is not None:
        if context.prompt_ids != turn.prompt_ids:
            return _Differs("the prompt's tokens", *_around(turn.prompt_ids, context.prompt_ids))
        played.prompts += 1
    completion = turn.completion if turn is not None else Completion(text=text)
    if live.advance(context, completion, policy=policy, sampling=Sampling()) is None:
        return _Differs("what the reply did", "a step", live.error)
    if ending is not None and live.active:
        live.cut(ending)
    effect = _effect_of(live.last)
    expected = _effect(row)
    for name, recorded in expected.items():
        found = effect[name]
        same = same_numbers(found, recorded) if name == "rewards" else _same_parts(found, recorded) if name == "parts" else None
        if same is False or (same is None and found != recorded):
            return _Differs(name, *_first(recorded, found))
    _add(digest, effect)
    return None


def _turn_of(sampled: Sampled, group: Group | None, actor: str, place: int) -> Turn | None:
    """The turn as it was sampled, with its tokens; None for a player that is not trained."""
    if group is not None and "chosen" in group.facts:
        return group.trajectories[int(group.facts["chosen"])].turns[0]
    whole = sampled.whole.get(actor)
    return whole.turns[place] if whole is not None and place < len(whole.turns) else None


def _differs_in_branches(live: LiveEpisode, group: Group, origin: Origin, rules: Rules) -> _Differs | None:
    """Score the group's replies again in the state that is reached."""
    env, facts = live.env, group.facts
    if not isinstance(env, Forkable) or rules.scorer is None:
        return None
    texts = tuple(member.turns[0].completion.text for member in group.trajectories)
    keys = tuple(env.canonical(text) for text in texts)
    if keys != tuple(facts["keys"]):
        return _Differs("what the group's replies would do", *_around(tuple(facts["keys"]), keys))
    request = ScoreRequest(
        snapshot=env.snapshot(),
        actor=group.actor,
        replies=texts,
        keys=keys,
        worlds=tuple(int(world) for world in facts["worlds"]),
        stand_ins=learners_of(group, origin),
    )
    (scores,) = score_replies(rules.scorer, [request], rules.branch, rules.scales)
    if isinstance(scores, BranchFailure):
        return _Differs("the group's branches", "values", str(scores))
    for key, values in facts["by_world"].items():
        found = scores.by_world[key]
        if len(values) != len(found) or not all(_close(a, b, SCORED) for a, b in zip(found, values, strict=True)):
            return _Differs(f"value in each world of {key[:80]!r}", list(values), list(found))
    return _differs_in_members(group, scores)


def _differs_in_members(group: Group, scores: ReplyScores) -> _Differs | None:
    for index, member in enumerate(group.trajectories):
        if member.turns[0].valid != scores.valid[index]:
            return _Differs(f"whether reply {index} of the group is usable", member.turns[0].valid, scores.valid[index])
        # A function of the user's is not called again: the environment's return was kept. Neither is a judge, who added to it.
        value = member.metrics.get(ENV_RETURN, member.ret)
        judged = "judge_weight" in group.facts and ENV_RETURN not in member.metrics
        if not judged and not _close(scores.values[index], value, SCORED):
            return _Differs(f"reward of reply {index} of the group", value, scores.values[index])
    return None


def _differs_at_end(end: LiveEnd, episode: Episode, sampled: Sampled) -> _Differs | None:
    if str(end.stop) != str(episode.facts.get("stop")):
        return _Differs("why it ended", episode.facts.get("stop"), str(end.stop))
    if not same_numbers(end.metrics, episode.metrics):
        return _Differs("metrics at the end", *_first(dict(episode.metrics), _known(end.metrics)))
    for actor, recorded in sampled.whole.items():
        found = end.trajectories[actor].rewards if actor in end.trajectories else ()
        if (value := recorded.metrics.get(ENV_RETURN)) is not None:
            if not _near(sum(found), value):
                return _Differs(f"return of {actor}'s trajectory", value, sum(found))
            continue
        if len(found) != len(recorded.rewards) or not all(map(_near, found, recorded.rewards)):
            return _Differs(f"rewards of {actor}'s trajectory", list(recorded.rewards), list(found))
    return None


def _effect(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a recorded reply did, as far as it can be compared."""
    facts = {name: value for name, value in row["facts"].items() if name not in PLACES}
    return {"valid": row["valid"], "facts": facts, "rewards": row["rewards"], "parts": row["parts"]}


def _effect_of(step: TurnRecord) -> dict[str, Any]:
    """The same of a reply that was just played, in the record's types."""
    row = {"valid": step.valid, "facts": dict(step.facts), "rewards": dict(step.rewards), "parts": dict(step.parts)}
    return _effect(_known(row))


def _known(value: Any) -> Any:
    """As it would come out of the record."""
    return load_json(dump_json(value, "replayed play"))


def _add(digest: hashlib._Hash, value: Any) -> None:
    digest.update(json.dumps(value, sort_keys=True).encode() + b"\n")


def _same_parts(found: Mapping[str, Mapping[str, float]], recorded: Mapping[str, Mapping[str, float]]) -> bool:
    return set(found) == set(recorded) and all(same_numbers(found[name], recorded[name]) for name in found)


def _first(recorded: Mapping[str, Any] | Any, found: Mapping[str, Any] | Any) -> tuple[Any, Any]:
    """The entries of two mappings that differ, or both values as they are."""
    if not isinstance(recorded, Mapping) or not isinstance(found, Mapping):
        return recorded, found
    names = [name for name in {**recorded, **found} if recorded.get(name) != found.get(name)]
    return {name: recorded.get(name) for name in names}, {name: found.get(name) for name in names}


def _around(recorded: Sequence[Any], found: Sequence[Any]) -> tuple[Any, Any]:
    """The first place at which two sequences differ."""
    at = next((i for i, (a, b) in enumerate(zip(recorded, found, strict=False)) if a != b), min(len(recorded), len(found)))
    return {"at": at, "length": len(recorded), "is": list(recorded[at : at + 8])}, {
        "at": at,
        "length": len(found),
        "is": list(found[at : at + 8]),
    }


def _near(found: float, recorded: float) -> bool:
    return _close(found, recorded, TOLERANCE)


def _close(found: float, recorded: float, tolerance: float) -> bool:
    both_nan = math.isnan(found) and math.isnan(recorded)
    return both_nan or math.isclose(found, recorded, rel_tol=tolerance, abs_tol=tolerance)
