"""What the loop calls and does not hold: policies, the sampler, the learner and trackers, here or on another machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from onthejob.types.requests import PromptBudget
from onthejob.types.samples import Adapter, Completion, Context, Group, Sampling


class Policy(Protocol):
    """Who answers. Has no memory of its own: all state is in the environment, so that forks and replays are exact."""

    @property
    def version(self) -> str:
        """Recorded with every turn, e.g. `sales@0007`, `heuristic`, `openai:gpt-x`."""
        ...

    @property
    def reads(self) -> str:
        """`tokens`, `messages` or `view`: which part of the context `act` needs."""
        ...

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        """One completion per context, in order. Batched: an in-process model runs them as one lock-step batch."""
        ...


@runtime_checkable
class Budgeted(Protocol):
    """A policy whose model has a context of known size."""

    @property
    def prompt_budget(self) -> PromptBudget | None:
        """Budget of the prompts that it reads; None sets none."""
        ...


class Sampler(Protocol):
    """Samples replies of one base model and of adapters on it: in this process, on a server or on a training worker's machine.

    `onthejob.models.sampler.LocalSampler` is the one of this process.
    """

    @property
    def chat(self) -> Any:
        """Messages to tokens of the model, and back: a `ChatEncoder`."""
        ...

    @property
    def published(self) -> tuple[str, ...]:
        """Names of the adapters that can be sampled."""
        ...

    def publish(self, adapter: Adapter) -> None:
        """Let `adapter.name` be sampled from now on, in the place of its role's version before."""
        ...

    def generate(
        self, prompts: Sequence[tuple[int, ...]], *, adapter: str | None, sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        """One completion per prompt, in order.

        Args:
            prompts: token ids.
            adapter: a published one, or None for the base.
            sampling: temperature and token limit.
            seeds: one per prompt; a server may not use them.
        """
        ...


@runtime_checkable
class KeepsVersions(Protocol):
    """A sampler that can play several versions of a role at once."""

    @property
    def published(self) -> tuple[str, ...]:
        """Names of the adapters that can be sampled."""
        ...

    def publish(self, adapter: Adapter, *, keep: bool = False) -> None:
        """As `Sampler.publish`; with `keep` older versions of the role stay."""
        ...

    def withdraw(self, name: str) -> None:
        """Forget a published adapter."""
        ...


class Learner(Protocol):
    """Updates adapters of one model, role by role: in this process, or with a worker that makes the updates.

    `onthejob.learn.learner.LocalLearner` is the one of this process.
    """

    @property
    def model(self) -> Any:
        """The PEFT model that holds the adapters here."""
        ...

    @property
    def config(self) -> Any:
        """Its `LearnerConfig`."""
        ...

    @property
    def at_once(self) -> int:
        """Updates of different roles that may be asked for at the same time, from threads, >= 1."""
        ...

    def collate(self, groups: Sequence[Group], advantages_G: Sequence[Any], /) -> list[Any]:
        """The batches of one update: the tokens of the groups, each with its advantage. Empty where no group teaches anything.

        Args:
            groups: in any order.
            advantages_G: of each group one number per trajectory, or None where it teaches nothing.
        """
        ...

    def update(self, role: str, batches: Sequence[Any], *, reference: Any = None) -> Any:
        """Move the role's adapter down the loss of `batches`: forward, loss, backward and an optimizer step per epoch.

        Args:
            role: whose adapter.
            batches: from `collate`.
            reference: a `Snapshot`, the policy of the KL term.

        Returns:
            What was measured, an `UpdateMetrics`; its `problem` says why the result should not be used.
        """
        ...

    def revert(self, role: str, before: Mapping[str, Any]) -> None:
        """Take an update back: the role is as `export_state` told before it, and only the KL history remembers it."""
        ...

    def export_state(self, role: str) -> dict[str, Any]:
        """Tensors that the role's next update depends on: adapter, moments, counters."""
        ...

    def import_state(self, role: str, tensors: Mapping[str, Any]) -> None:
        """Continue from what `export_state` returned."""
        ...


Row = Mapping[str, str | int | float | bool | None]
"""Column -> cell, of what a tracker receives."""


@runtime_checkable
class Tracker(Protocol):
    """Receives what a run records, outside the loop: its iterations in ascending order, each at least once.

    A tracker of your own derives from it and overrides the methods that it needs; the others do nothing.
    """

    tables: bool = False
    """True: `episodes` and `turns` are called too. They are not even read for a tracker without a use for them."""

    def start(self, run: Any, sent: int | None) -> int | None:
        """Open the tracker, or open it again after an error or a kill.

        Args:
            run: a `RunInfo`.
            sent: newest iteration for which `flush` has returned; None when there is none.

        Returns:
            The newest iteration that the tracker holds completely; sending begins after it. A tracker that cannot tell returns
            `sent`; then an iteration is repeated when the process is killed between sending it and noting that.
        """
        return sent

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """All metrics of iteration `step`, named `SCOPE/NAME`, e.g. `train/sales/loss`; a value may be NaN."""

    def transcripts(self, step: int, rows: Sequence[Row]) -> None:
        """The turns of a few episodes of iteration `step`, a row each; texts are clipped."""

    def episodes(self, step: int, rows: Sequence[Row]) -> None:
        """All episodes of iteration `step`, a row each. Only with `tables`."""

    def turns(self, step: int, rows: Sequence[Row]) -> None:
        """All turns of iteration `step`, a row each. Only with `tables`."""

    def adapter(self, step: int, adapter: Adapter) -> None:
        """An adapter that the run keeps, as it was after iteration `step`; only with --adapters."""

    def flush(self) -> None:
        """Return when everything that was handed over is kept, or raise."""

    def finish(self) -> None:
        """Close the tracker; it may be started again later."""
