"""Models of this machine in the viewer's seats: each base is loaded when its first player is asked for, within a memory limit."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from onthejob.api.asking import Asking, asking_in
from onthejob.commands.player_specs import BASE, PARTNER, ModelOptions, adapters_for, load_model
from onthejob.commands.prompt_lengths import Fit
from onthejob.envs.office.env import CUSTOMER, SEATS
from onthejob.errors import ConfigError
from onthejob.office import Office
from onthejob.office_players import scripted

if TYPE_CHECKING:
    from onthejob.api.players import Loaded
    from onthejob.models.chat import ChatEncoder
    from onthejob.stack import Stack
    from onthejob.types import Adapter

log = logging.getLogger(__name__)

GIB = 2**30
SHARE = 0.5
"""Of the machine's or the GPU's memory, which models may take where no limit is given."""


@dataclass(slots=True)
class _Base:
    """A base model in memory."""

    stack: Stack
    weights: int
    """Bytes."""


class _Found(NamedTuple):
    """What one source means."""

    base: str
    adapters: Mapping[str, Adapter]
    loaded: Loaded


class Loader:
    """Finds and keeps the models behind the names of seats."""

    def __init__(
        self, options: ModelOptions, usual: Asking, progress: Callable[[str], None], *, max_gib: float | None = None
    ) -> None:
        """Nothing is loaded before a model is asked for.

        Args:
            options: the base that `base` means, and how all bases are computed.
            usual: how models are asked whose training is not recorded.
            progress: receives a line per step.
            max_gib: of the weights of all bases together, GiB; None takes half of the machine's memory, or of the GPU's.
        """
        # Folders are compared by where they are: a run records them so.
        options = replace(options, name=_anchored(options.name))
        self._options, self._progress = options, progress
        self._usual = replace(usual, base=options.name, template_arguments=options.template_arguments)
        self._limit = max_gib * GIB if max_gib is not None else None
        self._bases: OrderedDict[str, _Base] = OrderedDict()
        """By name, the one that was asked for longest ago first."""
        self._loaded: dict[str, _Found] = {}
        """By source."""
        self._lock = threading.Lock()

    def __call__(self, source: str, seated: Collection[str] = ()) -> Loaded:
        """The models that `source` names: `base`, `base:MODEL`, a run or a folder of adapters.

        Args:
            source: of the seat.
            seated: sources whose models must stay.

        Raises:
            ConfigError: there is no such model or adapter, or it does not fit into memory with those that are seated.
            ModelError: it cannot be loaded.
        """
        with self._lock:
            bare = source == BASE or source.startswith(f"{BASE}:")
            # A run that continues has newer adapters than those that were loaded.
            adapters = {} if bare else adapters_for(source, SEATS)
            found = self._loaded.get(source)
            if found is None or found.adapters != adapters:
                found = self._bare(source, seated) if bare else self._adapted(source, adapters, seated)
                self._loaded[source] = found
            self._bases.move_to_end(found.base)
            return found.loaded

    def _bare(self, source: str, seated: Collection[str]) -> _Found:
        """A base without adapters."""
        from onthejob.api.players import Loaded

        base = _anchored(source.partition(":")[2]) or self._options.name
        stack = self._base(base, seated)
        seats = (*SEATS, CUSTOMER)
        asking = dict.fromkeys(seats, _fitted(replace(self._usual, base=base), stack.chat))
        return _Found(base, {}, Loaded(team=stack.team(source, {}, seats), encoder=stack.chat, asking=asking))

    def _adapted(self, source: str, adapters: Mapping[str, Adapter], seated: Collection[str]) -> _Found:
        """Adapters on the base of their run, asked as it asked them."""
        from onthejob.api.players import Loaded

        asking = {role: asking_in(adapter.path, self._usual) for role, adapter in adapters.items()}
        first = next(iter(asking.values()))
        if any(_made_with(one) != _made_with(first) for one in asking.values()):
            raise ConfigError(f"the adapters of {source} belong to different bases or templates. Name the run of one of them.")
        base = _still_there(first.base, self._options.name)
        stack = self._base(base, seated)
        if (first.template_arguments, first.window) != (self._options.template_arguments, None):
            stack = replace(stack, chat=_encoder(base, first))
        asking = {role: _fitted(replace(one, base=base), stack.chat) for role, one in asking.items()}
        team = stack.team(source, adapters, SEATS, others=scripted(PARTNER))
        return _Found(base, adapters, Loaded(team=team, encoder=stack.chat, asking=asking))

    def _base(self, name: str, seated: Collection[str]) -> Stack:
        """A base by name, loaded when it is not in memory; those in no seat make way."""
        if name not in self._bases:
            options = replace(self._options, name=name)
            weights = self._make_room(options, seated)
            self._bases[name] = _Base(load_model(options, self._progress), weights)
        return self._bases[name].stack

    def _make_room(self, options: ModelOptions, seated: Collection[str]) -> int:
        """Forget bases until `options.name` fits, and return the bytes of its weights."""
        from onthejob.commands.model import weights_bytes
        from onthejob.models.fetch import fetch

        folder = fetch(options.name, progress=self._progress)
        needed = weights_bytes(folder, options.settled_dtype(), nf4=options.quantize == "nf4")
        limit = self._limit if self._limit is not None else SHARE * _memory(options.device)
        needs = f"{options.name} needs {needed / GIB:.2f} GiB for its weights, and the limit of all models is {limit / GIB:.2f}"
        if needed > limit:
            raise ConfigError(f"{needs}. Raise --max-model-gib, or choose a smaller model or --model.quantize nf4.")
        held = {found.base for source, found in self._loaded.items() if source in seated}
        for base in [name for name in self._bases if name not in held]:
            if self._taken + needed <= limit:
                break
            self._forget(base)
        if self._taken + needed > limit:
            raise ConfigError(
                f"{needs}, of which {', '.join(self._bases)} in other seats takes {self._taken / GIB:.2f}. Give those seats to "
                "another player first, or raise --max-model-gib."
            )
        return needed

    @property
    def _taken(self) -> int:
        return sum(base.weights for base in self._bases.values())

    def _forget(self, base: str) -> None:
        self._progress(f"{base} makes way for another model")
        del self._bases[base]
        self._loaded = {source: found for source, found in self._loaded.items() if found.base != base}
        # Modules refer to themselves, so their memory is not free before a collection.
        gc.collect()


def _made_with(asking: Asking) -> tuple[object, ...]:
    return asking.base, asking.template_arguments, asking.window


def _fitted(asking: Asking, chat: ChatEncoder) -> Asking:
    """`asking` with the budget that the context of its base leaves, where its run states none."""
    if asking.budget is not None:
        return asking
    budget = Fit(env=Office(profile=asking.profile), reply=asking.max_new_tokens).local(chat)
    return asking if budget is None else replace(asking, budget=budget.tokens, tokenizer=asking.base)


def _anchored(model: str) -> str:
    """A model's name, with the whole path where it is a folder."""
    folder = Path(model).expanduser()
    return str(folder.absolute()) if model and folder.is_dir() else model


def _still_there(recorded: str, usual: str) -> str:
    """The base that a run records, or `usual` where it was a folder that has gone."""
    gone = recorded.startswith(("/", ".", "~")) and not Path(recorded).expanduser().is_dir()
    if gone:
        log.warning("the base model %s has gone; --model.name %s takes its place", recorded, usual)
    return usual if gone else recorded


def _encoder(base: str, asking: Asking) -> ChatEncoder:
    """An encoder of its own, with the template and the context of a run."""
    from onthejob.models.encoder import load_encoder
    from onthejob.models.fetch import fetch
    from onthejob.models.template import read_arguments

    chat = load_encoder(fetch(base), arguments=read_arguments(asking.template_arguments))
    if asking.window is not None:
        chat.limit(asking.window)
    return chat


def _memory(device: str) -> int:
    """Bytes of memory that `device` has in all."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
