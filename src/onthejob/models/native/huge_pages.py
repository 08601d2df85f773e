"""Memory in pages of 2 MiB, where the system has them: each fresh page costs a fault, and there are 512 times fewer of them."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MOST_KEPT = 0.1
"""Share of the machine's memory up to which a mapping is kept for the next pass."""
_LINE = 64
"""Bytes to whose multiples every tensor is aligned."""


class Room(NamedTuple):
    """What a tensor needs."""

    shape: Sequence[int]
    dtype: torch.dtype = torch.float32


class Memory:
    """Uninitialised tensors cut from one mapping; a mapping that is given back serves the next one.

    A pass over a row of tokens needs a gigabyte for a moment. A new one for each would cost a tenth of the pass.
    """

    def __init__(self) -> None:
        self._spare: list[Tensor] = []
        self._lock = threading.Lock()

    def take(self, rooms: Mapping[str, Room]) -> tuple[Tensor, dict[str, Tensor]]:
        """The mapping, for `give_back`, and its tensors."""
        sizes = {name: torch.Size(room.shape).numel() * room.dtype.itemsize for name, room in rooms.items()}
        whole = self._find(sum(size + -size % _LINE for size in sizes.values()))
        found, at = {}, 0
        for name, room in rooms.items():
            found[name] = whole[at : at + sizes[name]].view(room.dtype).view(*room.shape)
            at += sizes[name] + -sizes[name] % _LINE
        return whole, found

    def give_back(self, whole: Tensor) -> None:
        """Let the next one have this mapping, whose tensors are used no more; a large one goes back to the system."""
        if len(whole) <= MOST_KEPT * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            with self._lock:
                self._spare.append(whole)

    def _find(self, size: int) -> Tensor:
        with self._lock:
            fitting = [place for place, spare in enumerate(self._spare) if len(spare) >= size]
            if fitting:
                return self._spare.pop(min(fitting, key=lambda place: len(self._spare[place])))
            if self._spare:  # Replaces the largest, which is too small for what is done now.
                self._spare.pop(max(range(len(self._spare)), key=lambda place: len(self._spare[place])))
        return _mapped(size)


def _mapped(size: int) -> Tensor:
    mapping = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without large pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(mapping, dtype=torch.uint8)
