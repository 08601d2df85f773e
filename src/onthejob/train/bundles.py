"""Updates from trajectory bundles: what other runs or programs sampled, as a run of its own that plays nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onthejob.files import sha256
from onthejob.learn.sharing import adapter_sets, joined
from onthejob.record.bundle_file import Bundled, by_iteration
from onthejob.rollout.summary import summarise
from onthejob.train.attempt import attempt_update
from onthejob.train.config import TrainConfig
from onthejob.train.reports import RoleReport, TrainResult, role_metrics
from onthejob.train.state import share_state
from onthejob.types import Adapter, Group

if TYPE_CHECKING:
    from onthejob.learn.learner import Learner
    from onthejob.learn.lora import Snapshot
    from onthejob.record.store import Run

log = logging.getLogger(__name__)


def train_on_bundles(
    config: TrainConfig,
    bundled: Sequence[Bundled],
    *,
    file: Path,
    learner: Learner,
    run: Run,
    roles: Sequence[str],
    references: Mapping[str, Snapshot],
    base_digest: str,
    on_progress: Callable[[int, int, Sequence[RoleReport]], None] | None = None,
) -> TrainResult:
    """Make one update of each role from the groups of each of the bundles' iterations, in their order.

    The run's iteration 0 holds the adapters as they are in `learner`; iteration n holds the groups of the n-th of the bundles'
    iterations and the adapters that they made. It has neither episodes nor checkpoints, so it cannot be resumed. With the
    settings, the seed and the start of the run that sampled the bundles, the adapters are that run's, on the CPU bit for bit.

    Args:
        config: of which `adapters` and `advantage` are used.
        bundled: as `read_bundles` gave them.
        file: from which they were read, for the record.
        learner: its adapters of `roles` are changed.
        run: open for writing, empty.
        roles: whose groups are used.
        references: role -> policy of the KL term.
        base_digest: of the base's weights, written into every adapter.
        on_progress: called with (update, updates, one report per role) after each was recorded.

    Returns:
        How it ended: always `iterations`.

    Raises:
        RecordError: the run cannot be written.
        ConfigError: as `Learner.update`.
    """
    steps = by_iteration(bundled)
    for members in adapter_sets(config.adapters, roles).values():
        share_state(learner, members)
    updates = _Updates(
        config=config,
        learner=learner,
        run=run,
        roles=tuple(roles),
        references=references,
        base_digest=base_digest,
        adapters={},
    )
    updates.adapters |= {role: updates.saved(role, 0) for role in roles}
    with run.iteration(0) as record:
        for adapter in updates.adapters.values():
            record.adapter(adapter)
        record.event("bundles", {"file": str(file.absolute()), "sha256": sha256(file), "iterations": list(steps)})
    for number, groups in enumerate(steps.values(), start=1):
        reports = updates.step([group for group in groups if group.actor in roles], number)
        if on_progress is not None:
            on_progress(number, len(steps), reports)
    return TrainResult(stop="iterations", iterations=len(steps), adapters=updates.adapters)


@dataclass(slots=True, kw_only=True)
class _Updates:
    config: TrainConfig
    learner: Learner
    run: Run
    roles: tuple[str, ...]
    references: Mapping[str, Snapshot]
    base_digest: str
    adapters: dict[str, Adapter]
    """Role -> its newest one."""

    def step(self, groups: Sequence[Group], number: int) -> list[RoleReport]:
        """Update every adapter once from `groups`, and record both as iteration `number`."""
        from onthejob.learn.advantage import Signal, estimate

        estimates = {group.key: estimate(group, self.config.advantage) for group in groups}
        metrics: dict[str, Mapping[str, float]] = {}
        made: list[Adapter] = []
        problems: list[tuple[str, dict[str, Any]]] = []
        for lead, members in adapter_sets(self.config.adapters, self.roles).items():
            taught = joined(groups, members)
            known = [estimates[group.key] for group in taught]
            if all(one.advantages is None for one in known):
                continue
            done, problem = attempt_update(self.learner, members, taught, known, reference=self.references[lead])
            metrics.update((role, done.as_dict()) for role in members)
            if problem is not None:
                kept = self.adapters[lead].name
                log.warning("%s: %s in update %d is not kept and continues from %s", problem, lead, number, kept)
                problems.append((problem, {"role": lead, "kept": kept, "reason": done.skipped, "kl": done.kl}))
                continue
            share_state(self.learner, members)
            made += [self.saved(role, number) for role in members]
        self.adapters |= {adapter.role: adapter for adapter in made}
        reports = []
        for role in self.roles:
            own = [group for group in groups if group.actor == role]
            summary = summarise(own, alive=sum(estimates[group.key].signal is not Signal.DEAD for group in own))
            name, published = self.adapters[role].name, any(adapter.role == role for adapter in made)
            reports.append(
                RoleReport(role=role, summary=summary, update=metrics.get(role, {}), adapter=name, published=published)
            )
        with self.run.iteration(number) as record:
            record.groups(groups, [estimates[group.key].advantages for group in groups])
            for report in reports:
                record.metrics(f"train/{report.role}", {**role_metrics(report), **report.update})
            for adapter in made:
                record.adapter(adapter)
            for kind, payload in problems:
                record.event(kind, payload)
        return reports

    def saved(self, role: str, version: int) -> Adapter:
        """The adapter of `role` as it is now, in the run's folder."""
        from onthejob.learn.adapter_files import save_adapter

        return save_adapter(
            self.learner.model,
            role,
            self.run.adapter_path(role, version).parent,
            version=version,
            parent=self.adapters[role].name if role in self.adapters else None,
            base_digest=self.base_digest,
            dtype="float32",
        )
