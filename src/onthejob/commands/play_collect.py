"""The turns of `onthejob play office --mode training`, kept as they happen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onthejob.envs.office.env import OfficeEnvironment
from onthejob.rollout.contract import state_metrics
from onthejob.rollout.episode import LiveEpisode
from onthejob.rollout.wrapped import WrappedPolicy
from onthejob.train.collected import Sampled, TurnRecorder
from onthejob.types import Completion, Context, Kind, Policy, Sampling, Task


class Keeping:
    """Writes the turns of an episode to a run, those of seats in training mode so that they can be trained on."""

    def __init__(self, recorder: TurnRecorder, env: OfficeEnvironment, task: Task, sampling: Sampling) -> None:
        """Begin with `task`.

        Args:
            recorder: of the run.
            env: in which the episode is going to be played.
            task: that is played.
            sampling: of every reply.
        """
        self._company, self._env, self._sampling = recorder.begin(task), env, sampling
        self._sampled: dict[str, Sampled] = {}
        """Role -> its newest reply, until it is played."""
        env.reset(task)
        self._at, self._before = env.company.turn, env.snapshot()
        """Of the pending turn: before its prompt is rendered, which counts as a use of the memories in it."""

    def policy(self, role: str, policy: Policy, fingerprint: str) -> Policy:
        """`policy` for the seat of `role` in training mode; `fingerprint` as in `Sampled.policy`."""

        def note(context: Context, completion: Completion) -> None:
            # A reflection is no decision: it is kept as any other turn.
            if context.observation.kind is Kind.ACT:
                self._sampled[role] = Sampled(
                    snapshot=self._before,
                    day=self._env.company.day + 1,
                    prompt_ids=context.prompt_ids,
                    completion=completion,
                    sampling=self._sampling,
                    policy=fingerprint,
                )

        return Noted(policy, note)

    def on_turn(self, episode: LiveEpisode) -> None:
        """Keep the turn that was just played."""
        sampled = self._sampled.pop(episode.last.actor, None)
        metrics = state_metrics(self._env.state(), "the office") if sampled is not None else None
        self._company.turn(episode.last, at=self._at, sampled=sampled, stop=episode.stop, metrics=metrics)
        self._at = self._env.company.turn
        if episode.active:
            self._before = self._env.snapshot()


class Noted(WrappedPolicy):
    """A policy whose replies are noted before they are played."""

    def __init__(self, policy: Policy, note: Callable[[Context, Completion], None]) -> None:
        """`note` receives each request with its reply."""
        super().__init__(policy)
        self._note = note

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        completions = super().act(contexts, sampling)
        for context, completion in zip(contexts, completions, strict=True):
            self._note(context, completion)
        return completions
