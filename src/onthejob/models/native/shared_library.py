"""The shared library of `forward.c` and `training.c` that this machine needs.

It comes with the wheel, or is compiled: that takes some seconds, once, as the result is kept in the cache directory. Without a
library torch computes the same, more slowly.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onthejob.errors import ConfigError
from onthejob.files import cache_dir, published_file
from onthejob.models.native import structures
from onthejob.models.native.compiling import SOURCES, VARIANTS, Variant, compile_library, find_compiler, needed_compiler

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

SHIPPED = Path(__file__).with_name("built")
"""Where a wheel has the libraries that `hatch_build.py` compiled."""


class Library:
    """One compiled variant for one number type."""

    def __init__(self, path: Path, variant: Variant, *, bf16: bool) -> None:
        """Load a shared library.

        Raises:
            OSError: it cannot be loaded, or was compiled from another source.
        """
        self.variant, self.path, self.pack = variant, path, 2 if bf16 else 1
        self.lanes: int
        """Numbers of a vector, by which weights and caches are laid out."""
        self.shares: int
        """Sums of a key's gradient that are made apart in a backward pass."""
        self.forward: Any
        self.draw: Any
        self.pack_cache: Any
        self.thread_bytes: Any
        self.training_stage: Any
        self.training_bytes: Any
        self.training_row: Any
        found = ctypes.CDLL(str(path))
        number, pointer, to = ctypes.c_int64, ctypes.c_void_p, ctypes.POINTER
        for name, result, given in (
            ("sizes", number, [number]),
            ("thread_bytes", number, [to(structures.ModelStruct), number]),
            ("forward", None, [to(structures.ModelStruct), to(structures.BatchStruct), to(structures.Threads)]),
            ("draw", None, [to(structures.Draws), to(structures.Threads)]),
            ("pack_cache", None, [to(structures.Cache), *[number] * 5, pointer, pointer, *[number] * 4]),
            ("training_sizes", number, [number]),
            ("training_row", number, [number, number]),
            ("training_bytes", number, [to(structures.Trained), to(structures.Tree)]),
            (
                "training_stage",
                None,
                [*map(to, (structures.Trained, structures.Tree, structures.Gradients, structures.Threads)), number],
            ),
        ):
            function = getattr(found, name)
            function.restype, function.argtypes = result, given
            setattr(self, name, function)
        known = [*map(ctypes.sizeof, structures.SAMPLING)]
        *stated, self.lanes, pack = (found.sizes(number) for number in range(len(known) + 2))
        trained = [*map(ctypes.sizeof, structures.TRAINING)]
        *stated_too, self.shares = (found.training_sizes(number) for number in range(len(trained) + 1))
        if stated != known or stated_too != trained or pack != self.pack:
            raise OSError(f"{path} was compiled from another version of {' or '.join(each.name for each in SOURCES)}")


def load_library(*, bf16: bool) -> Library | None:
    """The best library for this machine; None without one, and `why_none` says why.

    Args:
        bf16: for bfloat16 weights; False for float32.
    """
    return _load(bf16, _wanted())[0]


def why_none(*, bf16: bool) -> str:
    """Why `load_library` gives none; empty when it gives one."""
    return _load(bf16, _wanted())[1]


def _wanted() -> str:
    """`auto`, `off`, or the name of a variant."""
    return os.environ.get("ONTHEJOB_NATIVE", "auto")


@functools.cache
def _load(bf16: bool, wanted: str) -> tuple[Library | None, str]:
    suiting, why = _suiting(bf16, wanted)
    for variant in suiting:
        try:
            return _open(variant), ""
        except OSError as error:
            why = str(error)
            # A missing compiler is no surprise; one that fails is.
            log.log(logging.WARNING if find_compiler() else logging.DEBUG, "%s cannot be used: %s", variant.name, error)
    return None, why


def _suiting(bf16: bool, wanted: str) -> tuple[list[Variant], str]:
    """Variants that this machine can run, best first; without any, why."""
    names = [variant.name for variant in VARIANTS]
    if wanted not in ("auto", "off", *names):
        raise ConfigError(f"ONTHEJOB_NATIVE must be one of {', '.join(('auto', 'off', *names))}, got {wanted!r}.")
    if wanted == "off":
        return [], "ONTHEJOB_NATIVE=off"
    if sys.platform != "linux":
        return [], "compiled code runs on Linux only"
    best = 0 if wanted == "auto" else names.index(wanted)
    allowed = [each for each in VARIANTS[best:] if each.bf16 == bf16 and each.machine == platform.machine()]
    if not allowed:
        return (
            [],
            f"{platform.machine()} has no code for {'bfloat16' if bf16 else 'float32'}{'' if best == 0 else f' up to {wanted}'}",
        )
    found = [each for each in allowed if each.needs <= cpu_flags()]
    return found, "" if found else f"this processor cannot run {' or '.join(each.name for each in allowed)}"


def foresee(*, bf16: bool) -> tuple[Variant | None, str]:
    """What `load_library` will use, found without compiling anything; and why there is none, or that it has to be compiled."""
    suiting, why = _suiting(bf16, _wanted())
    if not suiting:
        return None, why
    there = (SHIPPED / suiting[0].file_name, _cached(suiting[0]))
    if any(path.is_file() for path in there):
        return suiting[0], ""
    try:
        needed_compiler()
    except OSError as error:
        return None, str(error)
    return suiting[0], "compiled at the first use"


def trains(*, bf16: bool) -> bool:
    """Whether it is faster than torch in training: torch's bfloat16 products use AMX, which the compiled ones do not."""
    return not bf16 or "amx_bf16" not in cpu_flags()


@functools.cache
def cpu_flags() -> frozenset[str]:
    """What the first processor of /proc/cpuinfo states; nothing where there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")
    return frozenset(line.partition(":")[2].split())


@functools.cache
def torch_threads() -> tuple[int, int, int]:
    """Addresses of GOMP_parallel, omp_get_thread_num and omp_get_num_threads of the runtime that torch uses; zeros without it."""
    import torch

    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*")) + sorted(
        (Path(torch.__file__).parent.parent / "torch.libs").glob("libgomp*")
    ):
        runtime = ctypes.CDLL(str(path))
        found = [
            ctypes.cast(getattr(runtime, name), ctypes.c_void_p).value or 0
            for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        ]
        return found[0], found[1], found[2]
    return 0, 0, 0


def addresses(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Where the elements of each begin."""
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}


def team() -> structures.Threads:
    """The threads that torch would use now."""
    import torch

    parallel, thread, threads = torch_threads()
    return structures.Threads(parallel=parallel, thread=thread, threads=threads, count=torch.get_num_threads())


def _open(variant: Variant) -> Library:
    """The library that was shipped, or the one in the cache, which is compiled when it is missing.

    Raises:
        OSError: there is none, and no compiler, or it fails.
    """
    shipped = SHIPPED / variant.file_name
    if shipped.is_file():
        try:
            return Library(shipped, variant, bf16=variant.bf16)
        except OSError as error:  # of a newer system than this one
            log.info("%s cannot be loaded, so it is compiled here: %s", shipped, error)
    path = _cached(variant)
    if not path.is_file():
        compiler = needed_compiler()
        path.parent.mkdir(parents=True, exist_ok=True)
        with published_file(path) as temporary:
            compile_library(compiler, variant, temporary, bf16=variant.bf16)
    return Library(path, variant, bf16=variant.bf16)


def _cached(variant: Variant) -> Path:
    return cache_dir() / "native" / variant.file_name
