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
from dataclasses import dataclass, field
from functools import partial

from onthejob.errors import ConfigError
from onthejob.keys import keyed_choice, keyed_seed, keyed_uniform
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
from onthejob.rollout.episode import Encoder, Episode, LiveEpisode
from onthejob.rollout.library import Entry, SnapshotLibrary, entry_of
from onthejob.rollout.opponents import Opponents
from onthejob.rollout.play import act_each, advance, begin, outgrown, policy_for, start
from onthejob.rollout.pulse import Pulse
from onthejob.rollout.stand_ins import Habits, Rates
from onthejob.types import Completion, Context, Environment, Group, Imitable, Kind, Policy, Sampling, Task

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectConfig:
    """What is played in one iteration."""

    episodes: int = 4
    """Segments played in lock-step (or, when grouping by episodes, tasks of which K episodes each are played)."""
    segment_turns: int = 14
    """Turns after which a segment ends; every turn of a trained actor on the way is one group."""
    fresh_share: float = 0.25
    """Share of segments that start at the beginning of a task, in [0, 1]; the others start from the snapshot library."""
    partner_share: float = 0.25
    """Share of segments in which one trained actor plays among the environment's scripted partners, in [0, 1]. They start in
    states that the partners reached, and the partners continue their branches. Such a segment holds few groups, as most of
    its turns are theirs."""
    keep_share: float = 0.1
    """Share of the states visited without partners that enter the snapshot library, in [0, 1]."""

    def __post_init__(self) -> None:
        if self.episodes < 1 or self.segment_turns < 1:
            raise ConfigError(f"episodes and segment_turns must be >= 1, got {self.episodes} and {self.segment_turns}.")
        for name in ("fresh_share", "partner_share", "keep_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                flag = f"--collect.{name.replace('_', '-')}"
                raise ConfigError(f"{name} must be in [0, 1], got {getattr(self, name)}. Set {flag} 0.25.")


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


@dataclass(slots=True)
class _Segment:
    live: LiveEpisode
    learners: frozenset[str]
    policies: Mapping[str, Policy]
    seed: int
    origin: str
    partners: bool
    begun: int
    """Where in the episode it began, as `Entry.day` counts."""


@dataclass(slots=True)
class _Ask:
    """One pending request: `seeds` has K entries where a group is wanted, else one."""

    segment: int
    policy: Policy
    contexts: list[Context]
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
        self._scorer = scorer
        self._config = config
        self._branch = branch
        self._scales = scales
        self._trained = tuple(trained)
        self._partners = partners
        self._encoder = encoder

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
        segments: list[_Segment] = []
        for index in range(self._config.episodes):
            # Segments that ask the same actor in the same round share a batch, so all follow the first one that is up.
            actor = next((segment.live.pending().actor for segment in segments if segment.live.active), None)
            libraries = (library, partner_library or library)
            segments.append(self._start(index, tasks[index], policies, libraries, seed, actor, opponents))
        rounds: list[_Round] = []
        played_on = None
        if self._branch.continuation == "policy":
            played_on = Continuations(self._branch, self._scales, self._partners, sampling, what=prefix)
        habits: list[tuple[str, Habits]] = []
        visited: dict[tuple[int, int], Entry] = {}
        dropped, unheld, pulse = 0, 0, Pulse(prefix)
        for turn in range(self._config.segment_turns):
            unheld += sum(_ends_unheld(segment) for segment in segments if segment.live.active)
            asks = [self._ask(index, segment) for index, segment in enumerate(segments) if segment.live.active]
            for ask in asks:
                if not segments[ask.segment].live.fits(ask.contexts[0], sampling):
                    outgrown(segments[ask.segment].live)
            asks = [ask for ask in asks if segments[ask.segment].live.active]
            if not asks:
                break
            answers = self._answer(asks, segments, sampling)
            dropped += sum(ask.wants_group for ask in asks) - sum(ask.wants_group for ask, _ in answers)
            if self._branch.imitates:
                habits += [
                    self._habits(ask, segments[ask.segment], replies)
                    for ask, replies in answers
                    if ask.wants_group and not segments[ask.segment].partners
                ]
            rounds.append(self._score(answers, segments, sampling, prefix, turn, stand_ins or {}, played_on))
            pulse.beat([segment.live for segment in segments], [reply for _, replies in answers for reply in replies])
            for ask, completions in answers:
                segment = segments[ask.segment]
                if not segment.partners and keyed_uniform(segment.seed, "keep", turn) < self._config.keep_share:
                    reached = segment.begun + segment.live.turn
                    entry = entry_of(self._envs[ask.segment], segment.live.task, turn=reached)
                    # Where no days are counted, 0 is a task's first request. Every fresh segment begins with one, and in a
                    # conversation, which only begins there, the few in the library would begin all others.
                    if entry is not None and entry.day > 0:
                        visited[ask.segment, turn] = entry
                advance(segment.live, ask.contexts[ask.chosen], completions[ask.chosen], ask.policy, sampling)
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
            starts=_origins(segments),
        )

    def _start(
        self,
        index: int,
        task: Task,
        policies: Mapping[str, Policy],
        libraries: tuple[SnapshotLibrary, SnapshotLibrary],
        seed: int,
        actor: str | None,
        opponents: Opponents | None,
    ) -> _Segment:
        env, own = self._envs[index], keyed_seed(seed, "segment", index)
        among_partners = keyed_uniform(own, "partners") < self._config.partner_share
        library = libraries[among_partners]
        fresh = len(library) == 0 or keyed_uniform(own, "fresh") < self._config.fresh_share
        begun = 0
        if fresh:
            live = start(env, task, encoder=self._encoder)
        else:
            entry = library.sample(own, "start", actor=actor)
            begun = entry.day
            live = LiveEpisode(env, entry.task, None, encoder=self._encoder, start=entry.snapshot)
            begin(live, lambda: env.restore(entry.snapshot))
        learners = {keyed_choice(self._trained, own, "learner")} if among_partners else set(self._trained)
        current = {**self._partners, **policies}
        seats = {actor: current[actor] if actor in learners or not among_partners else self._partners.get(actor, current[actor])
                 for actor in current}  # fmt: skip
        if opponents is not None and not among_partners:
            learner, met = opponents.seated(own)
            learners, seats = {learner}, {**seats, **met}
        origin = "fresh" if fresh else "library"
        return _Segment(live, frozenset(learners), seats, own, origin, among_partners, begun)

    def _ask(self, index: int, segment: _Segment) -> _Ask:
        live = segment.live
        observation, policy = live.pending(), policy_for(live, segment.policies)
        # Retries and reflections are not decisions of the workplace: they are answered, and not branched.
        wants_group = observation.actor in segment.learners and observation.kind is Kind.ACT
        if wants_group:
            require_trainable(observation.actor, policy)
        count = self._branch.group_size if wants_group else 1
        first = live.context(policy, keyed_seed(segment.seed, "reply", live.turn, 0))
        contexts = [first] + [
            Context(
                observation=observation,
                prompt_ids=first.prompt_ids,
                messages=first.messages,
                seed=keyed_seed(segment.seed, "reply", live.turn, k),
            )
            for k in range(1, count)
        ]
        chosen = keyed_seed(segment.seed, "choice", live.turn) % count if wants_group else 0
        return _Ask(index, policy, contexts, wants_group, chosen)

    def _answer(
        self, asks: Sequence[_Ask], segments: Sequence[_Segment], sampling: Sampling
    ) -> list[tuple[_Ask, list[Completion]]]:
        """One `act` call per policy over all requests of the round; requests whose policy failed are omitted."""
        by_policy: dict[int, list[_Ask]] = {}
        for ask in asks:
            by_policy.setdefault(id(ask.policy), []).append(ask)
        answered: list[tuple[_Ask, list[Completion]]] = []
        for same in by_policy.values():
            flat = act_each(same[0].policy, [context for ask in same for context in ask.contexts], sampling)
            position = 0
            for ask in same:
                own = flat[position : position + len(ask.contexts)]
                position += len(ask.contexts)
                failures = [completion for completion in own if isinstance(completion, Exception)]
                if failures:
                    segments[ask.segment].live.fail(failures[0])
                else:
                    answered.append((ask, [completion for completion in own if isinstance(completion, Completion)]))
        return sorted(answered, key=lambda pair: pair[0].segment)

    def _score(
        self,
        answers: Sequence[tuple[_Ask, list[Completion]]],
        segments: Sequence[_Segment],
        sampling: Sampling,
        prefix: str,
        turn: int,
        stand_ins: Rates,
        played_on: Continuations | None,
    ) -> _Round:
        """Begin to score this round's groups; all that belongs to the present moment is taken down now."""
        wanted = [(ask, completions) for ask, completions in answers if ask.wants_group]
        requests = [self._request(ask, segments[ask.segment], completions, stand_ins) for ask, completions in wanted]
        if played_on is None:
            scores = submit_replies(self._scorer, requests, self._branch, self._scales)
        else:
            answered = [self._answered(ask, segments[ask.segment], completions) for ask, completions in wanted]
            scores = played_on.submit(requests, answered)
        return _Round(
            groups=[self._group(ask, segments[ask.segment], completions, sampling, prefix) for ask, completions in wanted],
            places=[(ask.segment, turn) for ask, _ in wanted],
            scores=scores,
        )

    def _answered(self, ask: _Ask, segment: _Segment, completions: Sequence[Completion]) -> Answered:
        return Answered(
            live=segment.live,
            context=ask.contexts[0],
            completions=completions,
            policy=ask.policy,
            seats=segment.policies,
            seed=keyed_seed(segment.seed, "branches", segment.live.turn),
        )

    def _habits(self, ask: _Ask, segment: _Segment, completions: Sequence[Completion]) -> tuple[str, Habits]:
        env = self._envs[ask.segment]
        assert isinstance(env, Imitable)
        return segment.live.pending().actor, env.habits([completion.text for completion in completions])

    def _request(self, ask: _Ask, segment: _Segment, completions: Sequence[Completion], stand_ins: Rates) -> ScoreRequest:
        env = self._envs[ask.segment]
        replies = tuple(completion.text for completion in completions)
        # Habits are those of the team's own play, so they say little about what the learner does among partners.
        imitated = frozenset[str]() if segment.partners else segment.learners
        return ScoreRequest(
            snapshot=env.snapshot(),
            actor=segment.live.pending().actor,
            replies=replies,
            keys=tuple(env.canonical(reply) for reply in replies),
            worlds=group_worlds(segment.seed, "group", segment.live.turn, count=self._branch.worlds),
            stand_ins={actor: rates for actor, rates in stand_ins.items() if actor in imitated},
        )

    def _group(
        self, ask: _Ask, segment: _Segment, completions: Sequence[Completion], sampling: Sampling, prefix: str
    ) -> Callable[[ReplyScores], Group]:
        live, state = segment.live, self._envs[ask.segment].state()
        counted = state_count(state, "turn", type(self._envs[ask.segment]).__name__)
        turn, actor = live.turn if counted is None else counted, live.pending().actor
        return partial(
            branch_group,
            f"{prefix}/s{ask.segment:02d}/{live.task.id}/t{turn:03d}/{actor}",
            live.task.id,
            ask.contexts[0].prompt_ids,
            completions,
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
                "metrics": state_metrics(state, type(self._envs[ask.segment]).__name__),
            },
        )


def _ends_unheld(segment: _Segment) -> bool:
    """Ends a segment whose next reply belongs to a conversation from before its start, of which the tokens are not known."""
    live = segment.live
    if live.holds_context(policy_for(live, segment.policies)):
        return False
    live.cut()
    return True


def _origins(segments: Sequence[_Segment]) -> dict[str, int]:
    counts = {"fresh": 0, "library": 0, "partners": 0}
    for segment in segments:
        counts[segment.origin] += 1
        counts["partners"] += int(segment.partners)
    return counts


def require_trainable(role: str, policy: Policy) -> None:
    """Refuse to train a seat whose policy returns text without the token ids and log-probabilities that were sampled.

    Raises:
        ConfigError: it reads no tokens.
    """
    if policy.reads != "tokens":
        raise ConfigError(
            f"{role!r} cannot be trained while {policy.version} sits there: it returns text without token ids and "
            "log-probabilities, and training uses no others. Seat a local model (base, a run, an adapter), or train another role."
        )
