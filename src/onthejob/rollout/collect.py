"""collect: on-policy groups for one iteration.

Segments of several episodes are played in lock-step. Wherever a trained actor decides, K replies are sampled to one prompt;
each is scored by branches (`submit_replies`); and play continues from a reply chosen without looking at the scores, so that the
states are those which the policies reach and not those which luck favoured. For the same reason play need not wait for the
scores: worker processes compute them while the next replies are sampled.

Where requests append to a conversation, a group's prompt is the whole conversation so far, token for token. A segment that began
in a snapshot ends where a conversation from before it continues, because a snapshot holds no tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Annotated

from annotated_types import Ge, Interval

from onthejob.errors import ConfigError
from onthejob.keys import keyed_seed, keyed_uniform
from onthejob.rollout.branch import (
    BranchConfig,
    BranchFailure,
    BranchScorer,
    ReplyScores,
    Scales,
    ScoreRequest,
    branch_group,
    forkable,
    group_worlds,
    submit_replies,
)
from onthejob.rollout.continuation import Answered, Continuations, continuable
from onthejob.rollout.contract import state_count, state_metrics
from onthejob.rollout.episode import Encoder, Episode
from onthejob.rollout.library import Entry, SnapshotLibrary, entry_of
from onthejob.rollout.opponents import Opponents
from onthejob.rollout.play import act_each, outgrown, policy_for, require_trainable
from onthejob.rollout.pulse import Pulse
from onthejob.rollout.segments import Segment, begin_segment, count_origins
from onthejob.rollout.stand_ins import Habits, Rates
from onthejob.setting_ranges import check_ranges
from onthejob.types import Completion, Context, Environment, Group, Imitable, Kind, Policy, Sampling, Task

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectConfig:
    """What is played in one iteration."""

    episodes: Annotated[int, Ge(1)] = 4
    """Segments played in lock-step (or, when grouping by episodes, tasks of which K episodes each are played)."""
    segment_turns: Annotated[int, Ge(1)] = 14
    """Turns after which a segment ends; every turn of a trained actor on the way is one group."""
    fresh_share: Annotated[float, Interval(ge=0, le=1)] = 0.25
    """Share of segments that start at the beginning of a task, in [0, 1]; the others start from the snapshot library."""
    partner_share: Annotated[float, Interval(ge=0, le=1)] = 0.25
    """Share of segments in which one trained actor plays among the environment's scripted partners, in [0, 1]. They start in
    states that the partners reached, and the partners continue their branches. Such a segment holds few groups, as most of
    its turns are theirs."""
    keep_share: Annotated[float, Interval(ge=0, le=1)] = 0.1
    """Share of the states visited without partners that enter the snapshot library, in [0, 1]."""

    def __post_init__(self) -> None:
        check_ranges(self, "--collect.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """What one iteration produced."""

    groups: tuple[Group, ...]
    """In order of segment and turn."""
    episodes: tuple[Episode, ...]
    """The segments (or episodes) as they were played."""
    visited: tuple[Entry, ...] = ()
    """States for the snapshot library."""
    dropped: int = 0
    """Groups without scores because an episode ended in an error."""
    unheld: int = 0
    """Segments that ended early because a conversation from before their start continued."""
    failure: str = ""
    """What a branch or an episode raised, where one of the dropped groups was lost to that."""
    habits: tuple[tuple[str, Habits], ...] = ()
    """(actor, what the replies chose) of every group, where stand-ins continue branches."""
    stand_ins: Rates = field(default_factory=dict)
    """Who they were."""
    continued: int = 0
    """Tokens that the policies sampled to play branches on."""
    starts: Mapping[str, int] = field(default_factory=dict)
    """How many segments began `fresh`, from the `library`, and how many were played among `partners`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """One pending request: K contexts, which differ in their seed, where a group is wanted, else one."""

    segment: Segment
    policy: Policy
    contexts: Sequence[Context]
    wants_group: bool
    chosen: int
    """Of the K replies, the one with which play continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """The groups of one round, being scored."""

    groups: Sequence[Callable[[ReplyScores], Group]]
    """Each makes its group when it receives the scores."""
    places: Sequence[tuple[int, int]]
    """(segment, turn) of each group."""
    scores: Callable[[], list[ReplyScores | BranchFailure]]
    """Waits for them."""


class Collector:
    """Holds what stays the same between iterations: environments, scorer, partners, scales."""

    def __init__(
        self,
        make_env: Callable[[], Environment],
        scorer: BranchScorer,
        *,
        config: CollectConfig,
        branch: BranchConfig,
        scales: Mapping[str, Scales],
        trained: Sequence[str],
        partners: Mapping[str, Policy],
        encoder: Encoder,
    ) -> None:
        """Build one environment per segment.

        Args:
            make_env: creates a `Forkable`.
            scorer: runs the branches.
            config: what is played.
            branch: how replies are scored.
            scales: frozen scales of every trained actor.
            trained: actors whose decisions become groups.
            partners: actor -> scripted policy of the environment, for every actor.
            encoder: messages -> token ids.
        """
        if not trained:
            raise ConfigError("trained is empty. Name at least one actor.")
        self._envs = [forkable(make_env) for _ in range(config.episodes)]
        if branch.imitates and not isinstance(self._envs[0], Imitable):
            name = type(self._envs[0]).__name__
            raise ConfigError(f"{name} offers no stand-ins for the policies. Set --branch.continuation partners.")
        if branch.continuation == "policy":
            continuable(self._envs[0])
        self._scorer, self._config, self._branch, self._scales = scorer, config, branch, scales
        self._trained, self._partners, self._encoder = tuple(trained), partners, encoder

    def collect(
        self,
        tasks: Sequence[Task],
        policies: Mapping[str, Policy],
        sampling: Sampling,
        *,
        library: SnapshotLibrary,
        partner_library: SnapshotLibrary | None = None,
        seed: int,
        prefix: str,
        stand_ins: Rates | None = None,
        opponents: Opponents | None = None,
    ) -> Collection:
        """Play one iteration's segments; deterministic in all arguments.

        Args:
            tasks: for segments that start at the beginning of a task; at least `config.episodes`.
            policies: actor -> current policy; actors without one are played by their partner.
            sampling: of trained actors and of the others alike.
            library: states to start from; it is read, not changed.
            partner_library: the same for segments among partners; None takes them from `library` too.
            seed: root of everything random in this iteration.
            prefix: begins every group's key, e.g. `it0003`.
            stand_ins: who plays the trained actors' parts in branches; None leaves them to the partners.
            opponents: whom a trained actor meets in segments that are not played among partners, where it is then the only one
                that is trained; None trains all in them, as they are now.
        """
        segments: list[Segment] = []
        for index, env in enumerate(self._envs):
            segment = begin_segment(
                index,
                env,
                tasks[index],
                policies=policies,
                partners=self._partners,
                trained=self._trained,
                library=library,
                partner_library=partner_library or library,
                fresh_share=self._config.fresh_share,
                partner_share=self._config.partner_share,
                opponents=opponents,
                # All follow the first one that is up.
                actor=next((segment.live.pending().actor for segment in segments if segment.live.active), None),
                encoder=self._encoder,
                seed=seed,
            )
            segments.append(segment)
        rounds: list[_Round] = []
        played_on = None
        if self._branch.continuation == "policy":
            played_on = Continuations(self._branch, self._scales, self._partners, sampling, what=prefix)
        habits: list[tuple[str, Habits]] = []
        visited: dict[tuple[int, int], Entry] = {}
        dropped, unheld, pulse = 0, 0, Pulse(prefix, rounds=self._config.segment_turns)
        for turn in range(self._config.segment_turns):
            unheld += sum(segment.end_unheld() for segment in segments if segment.live.active)
            asks = [self._ask(segment) for segment in segments if segment.live.active]
            for ask in asks:
                if not ask.segment.live.fits(ask.contexts[0], sampling):
                    outgrown(ask.segment.live)
            asks = [ask for ask in asks if ask.segment.live.active]
            if not asks:
                break
            answers = _answer(asks, sampling)
            wanted = [(ask, replies) for ask, replies in answers if ask.wants_group]
            dropped += sum(ask.wants_group for ask in asks) - len(wanted)
            if self._branch.imitates:
                habits += [_habits_in(ask, replies) for ask, replies in wanted if not ask.segment.partners]
            rounds.append(self._score(wanted, sampling, prefix, turn, stand_ins or {}, played_on))
            tokens = sum(len(reply.token_ids) for _, replies in answers for reply in replies)
            pulse.beat([segment.live for segment in segments], tokens)
            for ask, replies in answers:
                segment = ask.segment
                if (entry := self._kept(segment, turn)) is not None:
                    visited[segment.index, turn] = entry
                segment.live.advance(ask.contexts[ask.chosen], replies[ask.chosen], policy=ask.policy, sampling=sampling)
        if played_on is not None:
            played_on.play()
        groups: dict[tuple[int, int], Group] = {}
        failure = ""
        for round_ in rounds:
            for place, group, scored in zip(round_.places, round_.groups, round_.scores(), strict=True):
                if isinstance(scored, BranchFailure):
                    log.warning("a group of segment %d, turn %d is dropped: %s", *place, scored)
                    failure = str(scored)
                    dropped += 1
                else:
                    groups[place] = group(scored)
        return Collection(
            groups=tuple(groups[place] for place in sorted(groups)),
            episodes=tuple(segment.live.finish() for segment in segments),
            visited=tuple(visited[place] for place in sorted(visited)),
            dropped=dropped,
            unheld=unheld,
            failure=failure,
            habits=tuple(habits),
            stand_ins=(stand_ins or {}) if self._branch.imitates else {},
            continued=0 if played_on is None else played_on.tokens,
            starts=count_origins(segments),
        )

    def _ask(self, segment: Segment) -> _Ask:
        live = segment.live
        observation, policy = live.pending(), policy_for(live, segment.policies)
        # Retries and reflections are not decisions of the workplace: they are answered, and not branched.
        wants_group = observation.actor in segment.learners and observation.kind is Kind.ACT
        if wants_group:
            require_trainable(observation.actor, policy)
        count = self._branch.group_size if wants_group else 1
        seeds = [keyed_seed(segment.seed, "reply", live.turn, k) for k in range(count)]
        first = live.context(policy, seeds[0])
        return _Ask(
            segment=segment,
            policy=policy,
            contexts=[first, *(replace(first, seed=seed) for seed in seeds[1:])],
            wants_group=wants_group,
            chosen=keyed_seed(segment.seed, "choice", live.turn) % count if wants_group else 0,
        )

    def _kept(self, segment: Segment, turn: int) -> Entry | None:
        """The present state, where it enters the library."""
        if segment.partners or keyed_uniform(segment.seed, "keep", turn) >= self._config.keep_share:
            return None
        entry = entry_of(segment.env, segment.live.task, turn=segment.begun + segment.live.turn)
        # Where no days are counted, 0 is a task's first request. Every fresh segment begins with one, and in a conversation,
        # which only begins there, the few in the library would begin all others.
        return entry if entry is not None and entry.day > 0 else None

    def _score(
        self,
        wanted: Sequence[tuple[_Ask, list[Completion]]],
        sampling: Sampling,
        prefix: str,
        turn: int,
        stand_ins: Rates,
        played_on: Continuations | None,
    ) -> _Round:
        """Begin to score this round's groups; all that belongs to the present moment is taken down now."""
        requests = [self._request(ask, replies, stand_ins) for ask, replies in wanted]
        if played_on is None:
            scores = submit_replies(self._scorer, requests, self._branch, self._scales)
        else:
            scores = played_on.submit(requests, [_answered(ask, replies) for ask, replies in wanted])
        return _Round(
            groups=[_group_of(ask, replies, sampling, prefix) for ask, replies in wanted],
            places=[(ask.segment.index, turn) for ask, _ in wanted],
            scores=scores,
        )

    def _request(self, ask: _Ask, replies: Sequence[Completion], stand_ins: Rates) -> ScoreRequest:
        segment, texts = ask.segment, tuple(reply.text for reply in replies)
        # Habits are those of the team's own play, so they say little about what the learner does among partners.
        imitated = frozenset[str]() if segment.partners else segment.learners
        return ScoreRequest(
            snapshot=segment.env.snapshot(),
            actor=segment.live.pending().actor,
            replies=texts,
            keys=tuple(segment.env.canonical(text) for text in texts),
            worlds=group_worlds(segment.seed, "group", segment.live.turn, count=self._branch.worlds),
            stand_ins={actor: rates for actor, rates in stand_ins.items() if actor in imitated},
        )


def _answer(asks: Sequence[_Ask], sampling: Sampling) -> list[tuple[_Ask, list[Completion]]]:
    """One `act` call per policy over all requests of the round; requests whose policy failed are omitted."""
    by_policy: dict[int, list[_Ask]] = {}
    for ask in asks:
        by_policy.setdefault(id(ask.policy), []).append(ask)
    answered: list[tuple[_Ask, list[Completion]]] = []
    for same in by_policy.values():
        flat = iter(act_each(same[0].policy, [context for ask in same for context in ask.contexts], sampling))
        for ask in same:
            own = list(islice(flat, len(ask.contexts)))
            failures = [completion for completion in own if isinstance(completion, Exception)]
            if failures:
                ask.segment.live.fail(failures[0])
            else:
                answered.append((ask, [completion for completion in own if isinstance(completion, Completion)]))
    return sorted(answered, key=lambda pair: pair[0].segment.index)


def _habits_in(ask: _Ask, replies: Sequence[Completion]) -> tuple[str, Habits]:
    env = ask.segment.env
    assert isinstance(env, Imitable)
    return ask.segment.live.pending().actor, env.habits([reply.text for reply in replies])


def _answered(ask: _Ask, replies: Sequence[Completion]) -> Answered:
    segment = ask.segment
    return Answered(
        live=segment.live,
        context=ask.contexts[0],
        completions=replies,
        policy=ask.policy,
        seats=segment.policies,
        seed=keyed_seed(segment.seed, "branches", segment.live.turn),
    )


def _group_of(ask: _Ask, replies: Sequence[Completion], sampling: Sampling, prefix: str) -> Callable[[ReplyScores], Group]:
    """Makes the group of these replies from their scores; the state is described as it is now."""
    segment, live = ask.segment, ask.segment.live
    state, name = segment.env.state(), type(segment.env).__name__
    counted = state_count(state, "turn", name)
    turn, actor = live.turn if counted is None else counted, live.pending().actor
    return partial(
        branch_group,
        f"{prefix}/s{segment.index:02d}/{live.task.id}/t{turn:03d}/{actor}",
        live.task.id,
        ask.contexts[0].prompt_ids,
        replies,
        actor=actor,
        policy_version=ask.policy.version,
        sampling=sampling,
        kind=live.pending().kind,
        facts={
            "chosen": ask.chosen,
            "origin": segment.origin,
            "partners": segment.partners,
            "turn": turn,
            "day": state.get("day"),
            "metrics": state_metrics(state, name),
        },
    )
