"""Updates from trajectory bundles: what other runs or programs sampled, as a run of its own that plays nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onthejob.files import sha256
from onthejob.learn.sharing import adapter_sets
from onthejob.record.bundle_file import Bundled, by_iteration
from onthejob.rollout.summary import summarise
from onthejob.train.config import TrainConfig
from onthejob.train.recording import Updated, record_updates
from onthejob.train.reports import RoleReport, TrainResult, role_metrics
from onthejob.train.state import share_state
from onthejob.types import Adapter, Group

if TYPE_CHECKING:
    from onthejob.learn.learner import Learner
    from onthejob.learn.lora import Snapshot
    from onthejob.record.store import Run


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
        from onthejob.learn.advantage import count_signals, estimate

        estimates = {group.key: estimate(group, self.config.advantage) for group in groups}
        updates: dict[str, Updated] = {}
        lead_of: dict[str, str] = {}
        for lead, members in adapter_sets(self.config.adapters, self.roles).items():
            lead_of |= dict.fromkeys(members, lead)
            own = [group for role in members for group in groups if group.actor == role]
            taught = [estimates[group.key] for group in own]
            batches = self.learner.collate(own, [one.advantages for one in taught])
            if not batches:
                continue
            before, kept = self.learner.export_state(lead), self.adapters[lead].name
            metrics = self.learner.update(lead, batches, reference=self.references[lead])
            if metrics.problem:
                self.learner.revert(lead, before)
            share_state(self.learner, members)
            made = () if metrics.problem else tuple(self.saved(role, number) for role in members)
            self.adapters |= {adapter.role: adapter for adapter in made}
            updates[lead] = Updated(metrics=metrics, counts=count_signals(taught), kept=kept, adapters=made)
        reports = []
        for role in self.roles:
            own, update = [group for group in groups if group.actor == role], updates.get(lead_of[role])
            summary = summarise(own, alive=sum(estimates[group.key].alive for group in own))
            values = {} if update is None else update.values()
            published = update is not None and bool(update.adapters)
            name = self.adapters[role].name
            reports.append(RoleReport(role=role, summary=summary, update=values, adapter=name, published=published))
        with self.run.iteration(number) as record:
            record.groups(groups, [estimates[group.key].advantages for group in groups])
            for report in reports:
                record.metrics(f"train/{report.role}", {**role_metrics(report), **report.update})
            record_updates(record, updates)
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
