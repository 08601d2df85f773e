"""A learner whose updates are made by a crew: it takes the place of `LocalLearner` in the loop.

So several roles are updated at the same time. The state of every role stays here: a learner may be lost at any moment, a run
resumes from its own checkpoints, and adapters are saved and published where they always are. Rows are packed here too, so what
an update computes is the same, bit for bit on a CPU, wherever it is made.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from peft import PeftModel
from safetensors.torch import load
from torch import Tensor

from onthejob.learn.batch import Advantages, Batch
from onthejob.learn.learner import LearnerConfig, LocalLearner, UpdateMetrics
from onthejob.learn.lora import LoraSpec, Snapshot
from onthejob.scale.base_spec import BaseSpec
from onthejob.scale.learner_job import AskedUpdate, LearnerSpec, MadeUpdate
from onthejob.scale.runtime import Crew, Job
from onthejob.serve.remote import packed
from onthejob.types import Group

UPDATE_S = 3600.0
"""Usual limit of one update in seconds."""
TOKEN_S = 1.0
"""Seconds of an update per forwarded token, where that is more: above what a large model takes on few cores."""


class CrewLearner:
    """Updates are made by a crew; everything else is here."""

    def __init__(self, local: LocalLearner, crew: Crew, *, base: BaseSpec, lora: LoraSpec) -> None:
        """Wait until all learners of the crew can work.

        Args:
            local: holds the adapters here.
            crew: of `Runtime.crew`, with the facts of `base`.
            base: what they load; that of `local`.
            lora: shape of the adapters.

        Raises:
            ConfigError: one of them has another base, or other versions.
            ScaleError: none can be started.
        """
        self._local, self._crew = local, crew
        self._spec = LearnerSpec(
            base=base, roles=local.roles, lora=lora, config=local.config, layout=local.layout, seed=local.seed
        )
        self._lock = threading.Lock()
        crew.wait_ready(all_of_them=True)

    @property
    def at_once(self) -> int:
        """All roles: the crew takes the longest update first."""
        return len(self._local.roles)

    @property
    def model(self) -> PeftModel:
        """Holds the adapters here."""
        return self._local.model

    @property
    def config(self) -> LearnerConfig:
        """For all roles."""
        return self._local.config

    def collate(self, groups: Sequence[Group], advantages_G: Sequence[Advantages | None], /) -> list[Batch]:
        """As `LocalLearner.collate`."""
        return self._local.collate(groups, advantages_G)

    def export_state(self, role: str) -> dict[str, Tensor]:
        """As `LocalLearner.export_state`."""
        return self._local.export_state(role)

    def import_state(self, role: str, tensors: Mapping[str, Tensor]) -> None:
        """As `LocalLearner.import_state`."""
        self._local.import_state(role, tensors)

    def revert(self, role: str, before: Mapping[str, Tensor]) -> None:
        """As `LocalLearner.revert`."""
        self._local.revert(role, before)

    def update(self, role: str, batches: Sequence[Batch], *, reference: Snapshot | None = None) -> UpdateMetrics:
        """As `LocalLearner.update`; the crew's new state becomes ours. Different roles may be updated from different threads.

        Raises:
            ScaleError: learners keep being lost.
        """
        with self._lock:
            state = packed(self.export_state(role))
        start = None if reference is None else {f"lora/{name}": tensor for name, tensor in reference.tensors.items()}
        asked = AskedUpdate(role=role, state=state, reference=None if start is None else packed(start), batches=tuple(batches))
        nodes = sum(len(batch.row) for batch in batches)
        arguments: tuple[Any, ...] = (self._spec, asked)
        job = Job(
            key=asked.key,
            function="onthejob.scale.learner_job:update",
            arguments=arguments,
            work=max(1.0, nodes),
            shelf="learner",
            limit_s=max(UPDATE_S, TOKEN_S * nodes * self.config.epochs),
        )
        made: MadeUpdate = self._crew.submit([job])()[job.key]
        with self._lock:
            self.import_state(role, load(made.state))
        return made.metrics
