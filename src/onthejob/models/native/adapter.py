"""An adapter's factors as the compiled code takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from onthejob.models.adapter_weights import FusedLora
from onthejob.models.native import structures

if TYPE_CHECKING:
    from onthejob.models.native.engine import NativeEngine

GATE_UP = 2
"""Place of gate and up among a layer's projections that read the same input: q, k, v; o; gate, up; down."""


class NativeAdapter:
    """Factors of an adapter in float32, packed as weights are; ranks are filled up with zeros to whole vectors."""

    def __init__(self, engine: NativeEngine, fused: Sequence[Sequence[FusedLora | None]]) -> None:
        self._kept: list[Tensor] = []
        self.table = (structures.Lora * (4 * len(fused)))()
        for index, parts in enumerate(fused):
            for number, part in enumerate(parts):
                if part is not None:
                    self.table[4 * index + number] = self._packed(engine, number, part)
        self.rank = max(entry.rank for entry in self.table)

    def _packed(self, engine: NativeEngine, number: int, part: FusedLora) -> structures.Lora:
        outputs, lanes = engine.outputs[number], engine.library.lanes
        factors = part.factors(outputs)
        each = max(-(-len(found[0]) // lanes) * lanes for found in factors if found is not None)
        inputs = next(found[0].shape[1] for found in factors if found is not None)
        a = torch.zeros(len(outputs), each, inputs)
        b = torch.zeros(sum(outputs), each)
        starts = [sum(outputs[:index]) for index in range(len(outputs))]
        for index, found in enumerate(factors):
            if found is not None:
                rank = len(found[0])
                a[index, :rank] = found[0]
                b[starts[index] : starts[index] + outputs[index], :rank] = found[1]
        packed_a = a.view(-1, lanes, inputs).transpose(1, 2).contiguous()
        packed_b = b.view(-1, lanes, each).transpose(1, 2)
        begins = torch.tensor([each * index for index, size in enumerate(outputs) for _ in range(size // lanes)])
        if number == GATE_UP:
            # In turn, as the weights are.
            packed_b = torch.stack(packed_b.chunk(2), 1).flatten(0, 1)
            begins = torch.stack(begins.chunk(2), 1).flatten()
        packed_b = packed_b.contiguous()
        self._kept += [packed_a, packed_b, begins]
        return structures.Lora(
            a=packed_a.data_ptr(), b=packed_b.data_ptr(), from_=begins.data_ptr(), rank=len(outputs) * each, each=each
        )
