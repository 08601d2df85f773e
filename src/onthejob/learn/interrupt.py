"""Ends an update from another thread, between two layers: a row of a large model takes seconds, a thread cannot be killed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn


class Interrupted(Exception):
    """The computation ended because it was asked to."""


class Interrupt:
    """A request to end: made in one thread, met in the one that computes."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def ask(self) -> None:
        """Make the request; it cannot be taken back."""
        self._asked.set()

    def check(self, *_: object) -> None:
        """Meet the request, if there is one.

        Raises:
            Interrupted: there is.
        """
        if self._asked.is_set():
            raise Interrupted

    @contextmanager
    def watched(self, model: nn.Module) -> Iterator[None]:
        """For the duration of a `with` block, meet the request after every layer of `model`, forward and backward.

        Layers are the members of its `ModuleList`s. What they compute is the same to the bit.

        Raises:
            Interrupted: from the model's forward or `backward()`; gradients are partial then.
        """

        def passed(_: nn.Module, __: Any, output: Any) -> None:
            self.check()
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, Tensor) and first.requires_grad:
                first.register_hook(self.check)

        with ExitStack() as hooks:
            for layers in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
                watches = _watches.setdefault(layers, [])
                watches.append(self)
                hooks.callback(watches.remove, self)
                for layer in layers:
                    hooks.callback(layer.register_forward_hook(passed).remove)
            yield


_watches: weakref.WeakKeyDictionary[nn.ModuleList, list[Interrupt]] = weakref.WeakKeyDictionary()
"""Who watches these layers."""


def check(layers: nn.ModuleList) -> None:
    """Meet the requests of those who watch `layers`: for code that computes a layer without calling it.

    Raises:
        Interrupted: there is one.
    """
    for interrupt in list(_watches.get(layers, ())):
        interrupt.check()
