"""One episode in progress: builds contexts, steps the environment, and keeps every reward where it belongs.

Shared by `play` (whole episodes) and `collect` (branch groups), which differ only in how a reply is chosen. The invariant of
this file: the rewards of an actor's trajectory sum to everything the environment gave that actor. What comes before its first
turn is added to that turn, what comes after its last turn is added to the last one, and the rewards of actors who were never
asked are kept in `Episode.unseated`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Protocol

from onthejob.errors import ConfigError, ContractError
from onthejob.rollout.contract import accepted_step, check_messages, state_metrics
from onthejob.rollout.reading import messages_for
from onthejob.texts import encodable
from onthejob.types import (
    Completion,
    Context,
    Environment,
    Interruptible,
    Kind,
    Message,
    Observation,
    Policy,
    Sampling,
    Scored,
    Step,
    StopReason,
    Task,
    Trajectory,
    Turn,
)

log = logging.getLogger(__name__)


class Encoder(Protocol):
    """The part of `onthejob.models.chat.ChatEncoder` that playing needs."""

    @property
    def window(self) -> int | None:
        """Tokens that a prompt and its reply may have together; None sets no limit."""
        ...

    def encode(self, messages: Any, tools: Any = ()) -> tuple[int, ...]:
        """Token ids of a fresh context in which `tools` can be called, ending where a reply begins."""
        ...

    def extend(self, context_ids: Any, completion_ids: Any, messages: Any) -> tuple[int, ...]:
        """The context after a sampled reply and new messages; the given ids stay as they are."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorCounts:
    """What one actor did in one episode."""

    turns: int
    valid: int
    """Turns whose reply was parsed and legal."""
    retries: int
    """Turns that answered a `Kind.RETRY` request."""
    prompt_tokens: int
    completion_tokens: int
    clipped: int = 0
    """Turns whose reply was cut at the token limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One turn for the transcript; JSON-serialisable except for nothing: all fields are plain."""

    index: int
    """0-based position in the episode."""
    actor: str
    policy: str
    kind: Kind
    text: str
    valid: bool
    rewards: Mapping[str, float]
    parts: Mapping[str, Mapping[str, float]]
    facts: Mapping[str, Any]
    scores: Mapping[str, float] = field(default_factory=dict)
    """What a `types.Scored` environment measured of the text; records of earlier versions have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A finished episode (or a finished segment of one)."""

    task: Task
    trajectories: Mapping[str, Trajectory]
    """Actor -> its part, in order of first turn."""
    stop: StopReason
    metrics: Mapping[str, float]
    """`env.state()["metrics"]` at the end; empty after an error."""
    actors: Mapping[str, ActorCounts]
    transcript: tuple[TurnRecord, ...]
    unseated: Mapping[str, float] = field(default_factory=dict)
    """Rewards of actors who were never asked."""
    error: str | None = None
    """The exception, when `stop` is ERROR. Such an episode is never trained on."""
    start: bytes | None = None
    """Snapshot in which a segment began; None: it began with its task."""
    seconds: float = field(default=0.0, compare=False)
    """Wall time of its own: stepping the environment, and its share of the batches in which its replies were sampled. Grouped
    or parallel play makes the clock on the wall run less than the sum over episodes."""

    @property
    def turns(self) -> int:
        return len(self.transcript)


class LiveEpisode:
    """An environment with its pending request and everything recorded so far."""

    def __init__(
        self,
        env: Environment,
        task: Task,
        observation: Observation | None,
        *,
        encoder: Encoder | None,
        start: bytes | None = None,
    ) -> None:
        """`observation` is the pending request, as returned by `env.reset(task)` or `env.restore(start)`."""
        self.env = env
        self.task = task
        self.start = start
        self.observation = observation
        self.stop: StopReason | None = None
        self.error: str | None = None
        self.seconds = 0.0
        """Callers add the time of sampling; stepping is added here."""
        self.answered_by: dict[str, Policy] = {}
        """Actor -> who gave its last reply."""
        self._encoder = encoder
        self._tokens: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # actor -> (context ids, completion ids)
        self._messages: dict[str, list[Message]] = {}
        self._turns: dict[str, list[Turn]] = {}
        self._rewards: dict[str, list[float]] = {}
        self._early: dict[str, float] = {}
        self._transcript: list[TurnRecord] = []

    def branched(self, env: Environment, observation: Observation | None) -> LiveEpisode:
        """An episode in `env`, a fork of this one's environment, which continues the conversations held here.

        Its turns and rewards are its own: they begin with the fork.
        """
        made = LiveEpisode(env, self.task, observation, encoder=self._encoder, start=self.start)
        made._tokens, made._messages = dict(self._tokens), {actor: list(said) for actor, said in self._messages.items()}
        made._turns, made.answered_by = {actor: [] for actor in self._turns}, dict(self.answered_by)
        return made

    @property
    def rewards(self) -> dict[str, float]:
        """Actor -> all that the environment gave it so far."""
        paid = {actor: sum(rewards) for actor, rewards in self._rewards.items()}
        return _summed(paid, self._early)

    @property
    def active(self) -> bool:
        """True while a reply is awaited."""
        return self.observation is not None and self.stop is None

    @property
    def turn(self) -> int:
        """Turns played so far."""
        return len(self._transcript)

    def holds_context(self, policy: Policy) -> bool:
        """Whether all that the pending request appends to is known here.

        It is not where an episode that began in a snapshot continues a conversation from before the snapshot.
        """
        observation = self.pending()
        known = observation.fresh or self.start is None or observation.actor in self._turns
        return known or policy.reads == "view"

    def pending(self) -> Observation:
        """The request that awaits a reply."""
        if self.observation is None or self.stop is not None:
            raise ContractError(f"episode {self.task.id} is over after {self.turn} turns. Check `active` first.")
        return self.observation

    def context(self, policy: Policy, seed: int) -> Context:
        """What `policy` reads of the pending request.

        Raises:
            ConfigError: the policy reads tokens and there is no encoder, or it reads something unknown.
            ContractError: the request's messages cannot be rendered.
        """
        observation = self.pending()
        actor = observation.actor
        if policy.reads == "view":
            return Context(observation=observation, seed=seed)
        if policy.reads not in ("tokens", "messages"):
            raise ConfigError(f"policy.reads must be tokens, messages or view, got {policy.reads!r} from {policy.version}.")
        messages = messages_for(policy, observation)
        check_messages(messages, self._where())
        if policy.reads == "tokens":
            if self._encoder is None:
                raise ConfigError(f"policy {policy.version} reads tokens but encoder is None. Pass encoder=ChatEncoder(...).")
            held = None if observation.fresh else self._tokens.get(actor)
            ids = (
                self._encoder.encode(messages, observation.tools)
                if held is None
                else self._encoder.extend(held[0], held[1], messages)
            )
            return Context(observation=observation, prompt_ids=tuple(ids), seed=seed)
        held_messages = [] if observation.fresh else self._messages.get(actor, [])
        return Context(observation=observation, messages=(*held_messages, *messages), seed=seed)

    def fits(self, context: Context, sampling: Sampling) -> bool:
        """True when the prompt and a reply at its limit are within the model's context."""
        return not exceeds(self._encoder, context.prompt_ids, sampling)

    def advance(self, context: Context, completion: Completion, *, policy: Policy, sampling: Sampling) -> Step | None:
        """Step the environment with `completion` and record the turn; None when the environment raised, which ends the episode.

        Raises:
            ContractError: the environment returned something that the loop cannot use, as it would in every episode.
        """
        try:
            return self._advance(context, completion, policy, sampling)
        except ContractError:
            raise
        except Exception as error:
            self.fail(error)
            return None

    def _advance(self, context: Context, completion: Completion, policy: Policy, sampling: Sampling) -> Step:
        observation = self.pending()
        actor = observation.actor
        started = time.perf_counter()
        scores = self.env.scores(completion.text) if isinstance(self.env, Scored) else {}
        step = accepted_step(self.env.step(completion.text), self._where())
        self.seconds += time.perf_counter() - started
        if context.prompt_ids:
            self._tokens[actor] = (context.prompt_ids, completion.token_ids)
        if context.messages:
            self._messages[actor] = [*context.messages, Message("assistant", encodable(completion.text))]
        turn = Turn(
            prompt_ids=context.prompt_ids,
            completion=completion,
            policy_version=policy.version,
            kind=observation.kind,
            temperature=sampling.temperature,
            valid=step.valid,
        )
        self._turns.setdefault(actor, []).append(turn)
        self._rewards.setdefault(actor, []).append(self._early.pop(actor, 0.0))
        self._pay(step.rewards)
        self.answered_by[actor] = policy
        self._transcript.append(
            TurnRecord(
                index=self.turn,
                actor=actor,
                policy=policy.version,
                kind=observation.kind,
                text=completion.text,
                valid=step.valid,
                rewards=dict(step.rewards),
                parts={name: dict(parts) for name, parts in step.parts.items()},
                facts=dict(step.facts),
                scores=dict(scores),
            )
        )
        self.observation = step.observation
        if step.observation is None:
            self.stop = step.stop or StopReason.DONE
        return step

    def _where(self) -> str:
        """For a message about the environment."""
        return f"{type(self.env).__name__}, task {self.task.id}, turn {self.turn}"

    @property
    def last(self) -> TurnRecord:
        """The turn that was played last."""
        return self._transcript[-1]

    def cut(self, reason: StopReason = StopReason.MAX_TURNS) -> None:
        """End the episode from outside the task; what an `Interruptible` environment pays then belongs to the last turn."""
        self.stop = reason
        if not isinstance(self.env, Interruptible):
            return
        started = time.perf_counter()
        try:
            step = self.env.interrupt(reason)
        except Exception as error:
            self.fail(error)
            return
        self.seconds += time.perf_counter() - started
        self._pay(step.rewards)
        if self._transcript:
            before = self.last
            self._transcript[-1] = replace(
                before,
                rewards=_summed(before.rewards, step.rewards),
                parts={**before.parts}
                | {actor: _summed(before.parts.get(actor, {}), parts) for actor, parts in step.parts.items()},
                facts={**before.facts, **step.facts},
            )

    def _pay(self, rewards: Mapping[str, float]) -> None:
        """Add rewards to the last turn of each actor, or keep them for its first."""
        for rewarded, reward in rewards.items():
            if rewarded in self._rewards:
                self._rewards[rewarded][-1] += reward
            else:
                self._early[rewarded] = self._early.get(rewarded, 0.0) + reward

    def fail(self, error: Exception) -> None:
        """End the episode because of our failure; the traceback goes to the log, the message to the record."""
        self.error = f"{type(error).__name__}: {error}"
        self.stop = StopReason.ERROR
        log.warning("episode %s failed after %d turns: %s", self.task.id, self.turn, self.error, exc_info=error)

    def finish(self) -> Episode:
        """The immutable result; an episode that is still active counts as cut."""
        stop = self.stop or StopReason.MAX_TURNS
        metrics: Mapping[str, float] = {}
        if stop is not StopReason.ERROR:
            metrics = state_metrics(self.env.state(), self._where())
        trajectories = {
            actor: Trajectory(
                task_id=self.task.id, actor=actor, turns=tuple(turns), rewards=tuple(self._rewards[actor]), stop=stop
            )
            for actor, turns in self._turns.items()
        }
        return Episode(
            task=self.task,
            trajectories=trajectories,
            stop=stop,
            metrics=metrics,
            actors={actor: _counts(turns) for actor, turns in self._turns.items()},
            transcript=tuple(self._transcript),
            unseated=dict(self._early),
            error=self.error,
            start=self.start,
            seconds=self.seconds,
        )


def exceeds(encoder: Encoder | None, prompt_ids: Sequence[int], sampling: Sampling) -> bool:
    """True when a prompt and a reply at its limit exceed the encoder's context."""
    return encoder is not None and encoder.window is not None and len(prompt_ids) + sampling.max_new_tokens > encoder.window


def mean_scores(records: Iterable[TurnRecord]) -> dict[str, float]:
    """Name -> mean over the turns that were measured; empty where none was."""
    values: dict[str, list[float]] = {}
    for record in records:
        for name, value in record.scores.items():
            values.setdefault(name, []).append(value)
    return {name: fmean(found) for name, found in sorted(values.items())}


def _summed(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in {**first, **second}}


def _counts(turns: list[Turn]) -> ActorCounts:
    return ActorCounts(
        turns=len(turns),
        valid=sum(turn.valid for turn in turns),
        retries=sum(turn.kind is Kind.RETRY for turn in turns),
        prompt_tokens=sum(len(turn.prompt_ids) for turn in turns),
        completion_tokens=sum(len(turn.completion.token_ids) for turn in turns),
        clipped=sum(turn.completion.finish_reason == "length" for turn in turns),
    )
