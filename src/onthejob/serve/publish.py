"""A new adapter version goes live without a restart: admit, load, list, probe, switch, drain, unload, prune.

Every version has a new name and a new path; nothing is ever loaded in place (a server would re-read it at every step and mix its
cached prefixes). Traffic moves only after the server has shown that it computes the same numbers as the trainer; until then, and
when anything fails, the version before stays in its place.

Training calls `publish` in `train/state.py`, which calls `Sampler.publish`; a sampler on a server publishes by what stands here.
"""

from __future__ import annotations

import logging
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

from annotated_types import Gt, MinLen

from onthejob.errors import ConfigError, ContractError, OnTheJobError, ServeError
from onthejob.serve.intake import Intake
from onthejob.setting_ranges import check_ranges
from onthejob.types import Adapter

if TYPE_CHECKING:
    from peft import PeftModel

log = logging.getLogger(__name__)


class AdapterServer(Protocol):
    """What serves adapters by name: vLLM, or the sampler of this process."""

    def names(self) -> tuple[str, ...]:
        """Adapters that can be asked for now."""
        ...

    def load(self, adapter: Adapter) -> None:
        """Serve `adapter.path` as `adapter.name`; ServeError or ModelError when the server refuses."""
        ...

    def unload(self, name: str) -> None:
        """Serve `name` no longer."""
        ...

    def score(self, ids: Sequence[int], name: str | None) -> list[float]:
        """Log-probabilities of ids[1:] under the adapter (None: the base)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """How the server's numbers are compared with the trainer's."""

    ids: Annotated[tuple[int, ...], MinLen(2)]
    """A fixed text of at least two tokens."""
    mean_tolerance: Annotated[float, Gt(0)] = 0.1
    """Nats per token, mean absolute difference; about twice what bfloat16 and another order of summation make."""
    max_tolerance: Annotated[float, Gt(0)] = 1.0
    """Nats, largest difference of one token."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.mean_tolerance > self.max_tolerance:
            raise ConfigError(f"mean_tolerance must be <= max_tolerance, got {self.mean_tolerance} and {self.max_tolerance}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What one publish did."""

    adapter: Adapter
    """As it is served: its path lies in the server's store."""
    replaced: str | None
    """Name of the version before it."""
    probe_mean: float | None
    """Mean absolute difference to the trainer, nats per token; None when nothing was expected."""
    probe_max: float | None
    first_served_s: float
    """Seconds until traffic was switched."""
    total_s: float
    """Seconds until the version before was unloaded."""


class Publisher:
    """Which version of each role is live on one server. Safe to use from several threads; publishing is one at a time."""

    def __init__(
        self,
        server: AdapterServer,
        intake: Intake,
        *,
        probe: Probe | None = None,
        drain_s: float = 60.0,
        keep: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Publish to one server.

        Args:
            server: where adapters go.
            intake: checks and copies them.
            probe: compares numbers; None only checks that the server lists what was loaded.
            drain_s: seconds that replies under way are waited for before their adapter is unloaded.
            keep: newest versions of a role whose copies stay in the store, at least 2: one to roll back to.
            clock: monotonic seconds.
        """
        if keep < 2 or not drain_s >= 0:
            raise ConfigError(f"keep must be >= 2 (one version to roll back to) and drain_s >= 0, got {keep} and {drain_s}.")
        self._server, self._intake, self._probe, self._drain_s, self._keep = server, intake, probe, drain_s, keep
        self._clock = clock
        self._publishing = threading.Lock()
        self._state = threading.Condition()
        self._live: dict[str, Adapter] = {}
        self._expected: dict[str, tuple[float, ...]] = {}
        self._history: dict[str, list[Adapter]] = {}
        self._in_flight: dict[str, int] = {}

    @property
    def live(self) -> Mapping[str, Adapter]:
        """Role -> the version that answers."""
        with self._state:
            return dict(self._live)

    @contextmanager
    def lease(self, role: str) -> Iterator[Adapter]:
        """The role's live version, which stays loaded for as long as the `with` block lasts.

        Raises:
            ContractError: nothing was published for the role.
        """
        with self._state:
            if role not in self._live:
                raise ContractError(
                    f"no adapter of {role!r} is live; live are {sorted(self._live) or 'none'}. Publish one first."
                )
            adapter = self._live[role]
        with self.hold(adapter.name):
            yield adapter

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Keep `name` loaded for as long as the `with` block lasts."""
        with self._state:
            self._in_flight[name] = self._in_flight.get(name, 0) + 1
        try:
            yield
        finally:
            with self._state:
                self._in_flight[name] -= 1
                self._state.notify_all()

    def publish(self, source: Path, *, expected: Sequence[float] | None = None, replace: bool = False) -> Published:
        """Let the adapter directory `source` go live.

        Args:
            source: named `role@version`.
            expected: the trainer's log-probabilities of the probe; None skips the comparison (a version from elsewhere).
            replace: other weights of the same name may be live, of a run before this one: they make room first.

        Returns:
            What was done; when this version is live already, nothing was.

        Raises:
            ModelError: the adapter is refused; the server never saw it.
            ServeError: the server refused it, does not list it, or computes other numbers: what was live still is.
        """
        with self._publishing:
            started = self._clock()
            adapter = self._intake.admit(source)
            before = self.live.get(adapter.role)
            if before is not None and before.name == adapter.name:
                if before.digest == adapter.digest:
                    return Published(
                        adapter=before, replaced=None, probe_mean=None, probe_max=None, first_served_s=0.0, total_s=0.0
                    )
                if not replace:
                    raise ServeError(f"{adapter.name} is live with other weights. Versions are immutable: use the next number.")
            self._make_room(adapter)
            mean, largest = self._bring_up(adapter, before, expected)
            self._switch(adapter, expected)
            first = self._clock() - started
            if before is not None and before.name != adapter.name:
                self._retire(before.name)
            self._prune(adapter.role)
            total = self._clock() - started
            log.info("published %s in %.3f s (probe %s)", adapter.name, first, "-" if mean is None else f"{mean:.4f} nats")
            return Published(
                adapter=adapter,
                replaced=before.name if before else None,
                probe_mean=mean,
                probe_max=largest,
                first_served_s=first,
                total_s=total,
            )

    def rollback(self, role: str) -> Adapter:
        """Let the version before the live one answer again; the live one is unloaded and forgotten.

        Raises:
            ServeError: there is none, or the server refuses it.
        """
        with self._publishing:
            history = self._history.get(role, [])
            if len(history) < 2:
                raise ServeError(f"{role!r} has no earlier version to roll back to. Publish one.")
            bad, earlier = history[-1], history[-2]
            self._bring_up(earlier, bad, self._expected.get(earlier.name))
            with self._state:
                history.pop()
                self._live[role] = earlier
            self._retire(bad.name)
            log.warning("rolled back %s to %s", role, earlier.name)
            return earlier

    def _make_room(self, adapter: Adapter) -> None:
        """Take other weights of the same name off the server: it knows adapters by name alone."""
        with self._state:
            others = [
                known
                for known in self._history.get(adapter.role, [])
                if known.name == adapter.name and known.digest != adapter.digest
            ]
        if not others:
            return
        self._retire(adapter.name)
        if adapter.name in self._server.names():
            raise ServeError(f"{adapter.name} is still in use with other weights. Publish again when its replies are done.")
        with self._state:
            for known in others:
                self._history[adapter.role].remove(known)
                if self._live.get(adapter.role) == known:
                    del self._live[adapter.role]
            self._expected.pop(adapter.name, None)
        for known in others:
            shutil.rmtree(known.path, ignore_errors=True)

    def _bring_up(
        self, adapter: Adapter, before: Adapter | None, expected: Sequence[float] | None
    ) -> tuple[float | None, float | None]:
        """Load, list and probe; on any failure the adapter is gone from the server again."""
        try:
            if adapter.name not in self._server.names():
                self._server.load(adapter)
            listed = self._server.names()
            if adapter.name not in listed:
                raise ServeError(
                    f"the server took {adapter.name} and does not list it; listed are {', '.join(listed) or 'none'}."
                )
            return self._compare(adapter, before, expected)
        except BaseException:
            self._withdraw(adapter.name)
            raise

    def _compare(
        self, adapter: Adapter, before: Adapter | None, expected: Sequence[float] | None
    ) -> tuple[float | None, float | None]:
        probe = self._probe
        if probe is None:
            return None, None
        served = self._server.score(probe.ids, adapter.name)
        if len(served) != len(probe.ids) - 1 or not all(math.isfinite(value) for value in served):
            raise ServeError(f"{adapter.name} answers the probe with {len(served)} numbers or with one that is not finite.")
        if expected is None:
            return None, None
        if len(expected) != len(served):
            raise ContractError(f"the trainer gave {len(expected)} log-probabilities for a probe of {len(probe.ids)} tokens.")
        mean, largest = distance(served, expected)
        if mean > probe.mean_tolerance or largest > probe.max_tolerance:
            raise ServeError(
                f"{adapter.name} is served with other numbers than it was trained with: mean difference {mean:.3g}, largest "
                f"{largest:.3g} nats; allowed are {probe.mean_tolerance:g} and {probe.max_tolerance:g}. The version before stays."
            )
        known = self._expected.get(before.name) if before is not None else None
        if known is not None and distance(served, known)[0] < mean and distance(expected, known)[0] > probe.mean_tolerance:
            raise ServeError(
                f"{adapter.name} answers like {before.name if before else ''}: the server still uses the old weights."
            )
        return mean, largest

    def _switch(self, adapter: Adapter, expected: Sequence[float] | None) -> None:
        with self._state:
            self._live[adapter.role] = adapter
            # A run that continues from a checkpoint publishes an earlier version again: it is the newest then.
            history = self._history.setdefault(adapter.role, [])
            history[:] = [*(known for known in history if known.name != adapter.name), adapter]
            if expected is not None:
                self._expected[adapter.name] = tuple(expected)

    def _retire(self, name: str) -> None:
        """Unload when no request uses it any more; a server never loses an adapter under a request."""
        with self._state:
            if not self._state.wait_for(lambda: not self._in_flight.get(name), timeout=self._drain_s):
                log.warning("%s is still in use after %.0f s and stays loaded", name, self._drain_s)
                return
            self._in_flight.pop(name, None)
        self._withdraw(name)

    def _withdraw(self, name: str) -> None:
        try:
            if name in self._server.names():
                self._server.unload(name)
        except OnTheJobError as error:
            # A dead server holds no adapters; a living one is asked again at the next publish.
            log.warning("%s could not be unloaded: %s", name, error)

    def _prune(self, role: str) -> None:
        """Delete copies that no request can name: a server that lists a name whose files are gone dies at its next request."""
        try:
            listed = set(self._server.names())
        except OnTheJobError as error:
            log.warning("nothing is pruned while the server does not answer: %s", error)
            return
        history = self._history[role]
        for adapter in history[:-1]:
            if adapter.name in listed and not self._in_flight.get(adapter.name):
                self._withdraw(adapter.name)
        for adapter in history[: -self._keep]:
            if adapter.name not in self._server.names() and not self._in_flight.get(adapter.name):
                shutil.rmtree(adapter.path, ignore_errors=True)
                history.remove(adapter)
                self._expected.pop(adapter.name, None)


def distance(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Mean and largest absolute difference."""
    differences = [abs(x - y) for x, y in zip(a, b, strict=True)]
    return sum(differences) / len(differences), max(differences)


def trainer_scores(model: PeftModel, role: str, ids: Sequence[int]) -> list[float]:
    """What the trainer itself computes for a probe: log-probabilities of ids[1:] under `role`'s present weights."""
    import torch

    from onthejob.learn.lora import activate

    activate(model, role)
    device = next(model.parameters()).device
    row = torch.tensor([list(ids)], device=device)
    with torch.no_grad():
        logits = model(input_ids=row).logits[0, :-1].double()
    return torch.log_softmax(logits, dim=-1).gather(1, row[0, 1:, None]).squeeze(1).tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """How many adapters a server must hold."""

    max_loras: int
    """In one batch: every role, and one version that is being probed."""
    max_cpu_loras: int
    """Loaded at all. An unloaded one leaves only when another needs its place, so one place must be spare."""
    max_rank: int
    """The next rank that vLLM has kernels for."""

    @classmethod
    def for_roles(cls, roles: int, *, rank: int) -> Slots:
        """Sized for `roles` roles."""
        ranks = (1, 8, 16, 32, 64, 128, 256, 320, 512)
        fitting = [known for known in ranks if known >= rank]
        if roles < 1 or rank < 1 or not fitting:
            raise ConfigError(f"roles >= 1 and rank 1..512 are served, got {roles} and {rank}.")
        return cls(max_loras=roles + 1, max_cpu_loras=roles + 1, max_rank=fitting[0])
