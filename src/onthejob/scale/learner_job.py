"""The worker's side of an update: a role's state and its rows in, the next state out.

A learner keeps the base model and nothing that an update depends on. So the same request gives the same answer from any learner,
and one that is lost costs the time of its update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from safetensors.torch import load
from torch import Tensor

from onthejob.learn import lora
from onthejob.learn.batch import Batch
from onthejob.learn.forward import Layout
from onthejob.learn.learner import LearnerConfig, LocalLearner, UpdateMetrics
from onthejob.learn.lora import LoraSpec, Snapshot
from onthejob.scale.base_spec import BaseSpec
from onthejob.serve.remote import digest_of, packed


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSpec:
    """What every update of a run has in common."""

    base: BaseSpec
    roles: tuple[str, ...]
    lora: LoraSpec
    config: LearnerConfig
    layout: Layout
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedUpdate:
    """One update of one role."""

    role: str
    state: bytes
    """What it starts from, as `serve.remote.packed` writes `Learner.export_state`."""
    reference: bytes | None
    """The adapter of the KL term's reference, in the same form."""
    batches: tuple[Batch, ...]
    """All rows of the update, as the driver's own learner packs them."""

    @property
    def key(self) -> str:
        """Names the update by its role and what it starts from."""
        return f"update/{self.role}/{digest_of(self.state)[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpdate:
    """What an update led to."""

    state: bytes
    metrics: UpdateMetrics


@dataclass(slots=True, kw_only=True)
class _Held:
    """The model of this worker, with the adapters of all roles, which every update overwrites."""

    model: Any
    spec: LearnerSpec

    def close(self) -> None:
        self.model = None


def update(shelf: dict[str, Any], spec: LearnerSpec, asked: AskedUpdate) -> MadeUpdate:
    """Make one update; a job.

    Raises:
        ConfigError, ModelError: the base cannot be loaded.
        TrainingError: the state is incomplete, or a loss of the user's failed.
    """
    held = shelf.get("model")
    if held is None or held.spec != spec:
        model = lora.attach(spec.base.load().model, spec.roles, spec.lora, seed=spec.seed)
        held = shelf["model"] = _Held(model=model, spec=spec)
    learner = LocalLearner(held.model, [asked.role], config=spec.config, seed=spec.seed, layout=spec.layout)
    reference = None
    if asked.reference is not None:
        lora.load_state(held.model, asked.role, _adapter(load(asked.reference)))
        reference = Snapshot.take(held.model, asked.role)
    learner.import_state(asked.role, load(asked.state))
    metrics = learner.update(asked.role, asked.batches, reference=reference)
    return MadeUpdate(state=packed(learner.export_state(asked.role)), metrics=metrics)


def _adapter(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("lora/"): tensor for name, tensor in tensors.items() if name.startswith("lora/")}
