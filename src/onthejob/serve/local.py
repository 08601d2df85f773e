"""The sampler of this process as a server of adapters, so that publishing is the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onthejob.types import Adapter

if TYPE_CHECKING:
    from peft import PeftModel

    from onthejob.models.sampler import Sampler


class LocalServer:
    """Implements `AdapterServer` on a `Sampler`; older versions stay until they are unloaded."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def names(self) -> tuple[str, ...]:
        return self._sampler.published

    def load(self, adapter: Adapter) -> None:
        self._sampler.publish(adapter, keep=True)

    def unload(self, name: str) -> None:
        self._sampler.withdraw(name)

    def score(self, ids: Sequence[int], name: str | None) -> list[float]:
        return self._sampler.score(ids, adapter=name)


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
