"""Compiles the shared library of `forward.c` that this machine needs, and states its structures.

That takes a few seconds, once: the result is kept in the cache directory. Without a library the sampler computes the same with
torch, more slowly.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from onthejob.errors import ConfigError
from onthejob.files import published_file
from onthejob.models.fetch import cache_dir

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("forward.c")
PATIENCE_S = 120
"""For the compiler."""
_COMMON = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Instructions for which the source is compiled."""

    name: str
    machine: str
    needs: frozenset[str]
    """Flags of /proc/cpuinfo."""
    flags: tuple[str, ...]
    bfloat16: bool
    """It multiplies pairs of bfloat16 natively; without that bfloat16 gains little."""


_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma", "-mf16c")
_AVX512_NEEDS = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "fma"})
VARIANTS = (
    Variant(
        name="avx512-bf16",
        machine="x86_64",
        needs=_AVX512_NEEDS | {"avx512_bf16"},
        flags=(*_AVX512, "-mavx512bf16"),
        bfloat16=True,
    ),
    Variant(name="avx512", machine="x86_64", needs=_AVX512_NEEDS, flags=_AVX512, bfloat16=False),
    Variant(name="avx2", machine="x86_64", needs=frozenset({"avx2", "fma"}), flags=("-mavx2", "-mfma"), bfloat16=False),
)
"""Best first."""


class Lora(ctypes.Structure):
    """Factors of an adapter for projections that read the same input. See `forward.c`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "from_")),
        *((name, ctypes.c_int64) for name in ("rank", "each")),
    )


class Layer(ctypes.Structure):
    """Packed weights of a layer."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("qkv", "o", "gate_up", "down", "norm_attention", "norm_mlp"))


class Model(ctypes.Structure):
    """Sizes and packed weights of a model."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("layers", "hidden", "heads", "kv_heads", "dim", "inner", "vocab", "width")),
        ("eps", ctypes.c_float),
        ("layer", ctypes.POINTER(Layer)),
        *((name, ctypes.c_void_p) for name in ("embedding", "norm", "head", "cos", "sin")),
    )


class Cache(ctypes.Structure):
    """Packed keys and values of one prompt or row."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
        *((name, ctypes.c_int64) for name in ("layer_stride", "head_stride")),
    )


class Group(ctypes.Structure):
    """Rows that attend to the same tokens."""

    _fields_ = (
        ("shared", ctypes.c_int64 * 2),
        ("shared_tokens", ctypes.c_int64 * 2),
        ("first", ctypes.c_int64),
        ("count", ctypes.c_int64),
    )


class Batch(ctypes.Structure):
    """What one pass computes, and room for it."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("group", ctypes.POINTER(Group)),
        ("order", ctypes.c_void_p),
        ("cache", ctypes.POINTER(Cache)),
        *((name, ctypes.c_void_p) for name in ("token", "position", "own", "place")),
        ("outputs", ctypes.c_int64),
        ("output", ctypes.c_void_p),
        ("lora", ctypes.POINTER(Lora)),
        *((name, ctypes.c_void_p) for name in ("logits", "x", "h", "qkv", "attended", "inner", "wide", "low", "thread")),
        ("thread_bytes", ctypes.c_int64),
    )


class Draws(ctypes.Structure):
    """Draws of tokens from logits."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("rows", "vocab", "width")),
        ("first", ctypes.c_void_p),
        ("uniform", ctypes.c_void_p),
        ("temperature", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("mass", "token", "logprob")),
        ("wrong", ctypes.c_int64),
    )


class Threads(ctypes.Structure):
    """Functions of an OpenMP runtime, and how many threads it is asked for."""

    _fields_ = (
        ("parallel", ctypes.c_void_p),
        ("thread", ctypes.c_void_p),
        ("threads", ctypes.c_void_p),
        ("count", ctypes.c_int64),
    )


_STRUCTURES = (Model, Layer, Lora, Cache, Group, Batch, Threads, Draws)


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
        found = ctypes.CDLL(str(path))
        found.sizes.restype = found.thread_bytes.restype = ctypes.c_int64
        found.sizes.argtypes = [ctypes.c_int64]
        found.thread_bytes.argtypes = [ctypes.POINTER(Model), ctypes.c_int64]
        found.forward.restype = found.draw.restype = found.pack_cache.restype = None
        found.forward.argtypes = [ctypes.POINTER(Model), ctypes.POINTER(Batch), ctypes.POINTER(Threads)]
        found.draw.argtypes = [ctypes.POINTER(Draws), ctypes.POINTER(Threads)]
        number, pointer = ctypes.c_int64, ctypes.c_void_p
        found.pack_cache.argtypes = [ctypes.POINTER(Cache), *[number] * 5, pointer, pointer, *[number] * 4]
        *stated, self.lanes, pack = (found.sizes(number) for number in range(len(_STRUCTURES) + 2))
        if stated != [*map(ctypes.sizeof, _STRUCTURES)] or pack != self.pack:
            raise OSError(f"{path} was compiled from another version of {SOURCE.name}")
        self.forward, self.draw = found.forward, found.draw
        self.pack_cache, self.thread_bytes = found.pack_cache, found.thread_bytes


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
    allowed = ("auto", "off", *(variant.name for variant in VARIANTS))
    if wanted not in allowed:
        raise ConfigError(f"ONTHEJOB_NATIVE must be one of {', '.join(allowed)}, got {wanted!r}.")
    if wanted == "off":
        return None, "ONTHEJOB_NATIVE=off"
    if sys.platform != "linux":
        return None, "compiled code runs on Linux only"
    suiting = [each for each in VARIANTS if wanted in ("auto", each.name) and (each.bfloat16 or not bf16)]
    if not suiting:
        return None, f"{wanted} is used for float32 only"
    why = f"this processor cannot run {' or '.join(variant.name for variant in suiting)}"
    for variant in suiting:
        if variant.machine != platform.machine() or not variant.needs <= cpu_flags():
            continue
        try:
            return Library(_library(variant, bf16=bf16), variant, bf16=bf16), ""
        except OSError as error:
            why = str(error)
            log.debug("%s cannot be used: %s", variant.name, error)
    return None, why


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


def team() -> Threads:
    """The threads that torch would use now."""
    import torch

    parallel, thread, threads = torch_threads()
    return Threads(parallel=parallel, thread=thread, threads=threads, count=torch.get_num_threads())


def _library(variant: Variant, *, bf16: bool) -> Path:
    """Path of a compiled library; compiles it when there is none.

    Raises:
        OSError: there is no compiler, or it fails.
    """
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join((*_COMMON, *variant.flags)).encode()).hexdigest()[:16]
    name = f"forward-{variant.name}-{'bf16' if bf16 else 'fp32'}-{digest}.so"
    path = cache_dir() / "native" / name
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    compiler = find_compiler()
    if not compiler:
        raise OSError("there is no C compiler. Install gcc or clang, or the package ziglang: pip install ziglang")
    with published_file(path) as temporary:
        compile_library(compiler, variant, temporary, bf16=bf16)
    return path


def compile_library(compiler: Sequence[str], variant: Variant, out: Path, *, bf16: bool, more: Sequence[str] = ()) -> None:
    """Compile one variant.

    Raises:
        OSError: the compiler fails or takes more than two minutes.
    """
    words = [*compiler, *_COMMON, *variant.flags, *more, f"-DBF16={int(bf16)}", "-o", str(out), str(SOURCE), "-lm"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{compiler[0]} took more than {PATIENCE_S} s") from error
    if done.returncode:
        raise OSError(f"{' '.join(words)} failed: {done.stderr.strip()[-500:]}")


def find_compiler() -> tuple[str, ...]:
    """Words that begin a call of a C compiler: $CC, gcc, clang, cc, or zig of the package ziglang; empty without one."""
    for words in (shlex.split(os.environ.get("CC", "")), ["gcc"], ["clang"], ["cc"]):
        if words and (path := shutil.which(words[0])):
            return (path, *words[1:])
    return (sys.executable, "-m", "ziglang", "cc") if find_spec("ziglang") else ()
