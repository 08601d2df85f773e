"""Compiles the shared library of `forward.c` and `training.c` that this machine needs.

That takes some seconds, once: the result is kept in the cache directory. Without a library torch computes the same, more slowly.
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
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onthejob.errors import ConfigError
from onthejob.files import published_file
from onthejob.models.fetch import cache_dir
from onthejob.models.native import structures

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

SOURCES = tuple(Path(__file__).with_name(name) for name in ("forward.c", "training.c"))
HEADERS = tuple(Path(__file__).with_name(name) for name in ("kernels.h", "products.h", "training.h", "tree_attention.h"))
PATIENCE_S = 120
"""For the compiler."""
_COMMON = ("-O3", "-std=gnu11", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi", "-fno-strict-aliasing")


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
            ("thread_bytes", number, [to(structures.Model), number]),
            ("forward", None, [to(structures.Model), to(structures.Batch), to(structures.Threads)]),
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
            # A missing compiler is no surprise; one that fails is.
            log.log(logging.WARNING if find_compiler() else logging.DEBUG, "%s cannot be used: %s", variant.name, error)
    return None, why


def trains(library: Library) -> bool:
    """Whether it is faster than torch in training: torch's bfloat16 products use AMX, which the compiled ones do not."""
    return library.pack == 1 or "amx_bf16" not in cpu_flags()


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


def _library(variant: Variant, *, bf16: bool) -> Path:
    """Path of a compiled library; compiles it when there is none.

    Raises:
        OSError: there is no compiler, or it fails.
    """
    source = b"".join(each.read_bytes() for each in (*HEADERS, *SOURCES))
    digest = hashlib.sha256(source + " ".join((*_COMMON, *variant.flags)).encode()).hexdigest()[:16]
    name = f"native-{variant.name}-{'bf16' if bf16 else 'fp32'}-{digest}.so"
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
    """Compile one variant, its sources side by side.

    Raises:
        OSError: the compiler fails, or takes more than two minutes for a source.
    """
    flags = [*_COMMON, *variant.flags, *more, f"-DBF16={int(bf16)}"]
    with tempfile.TemporaryDirectory() as folder:
        objects = [str(Path(folder) / f"{source.stem}.o") for source in SOURCES]
        _run([[*compiler, *flags, "-c", "-o", out, str(source)] for source, out in zip(SOURCES, objects, strict=True)])
        _run([[*compiler, *flags, "-shared", "-o", str(out), *objects, "-lm"]])


def _run(commands: Sequence[Sequence[str]]) -> None:
    """Run commands at the same time; OSError when one of them fails."""
    started = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for words in commands]
    try:
        for process, words in zip(started, commands, strict=True):
            _, said = process.communicate(timeout=PATIENCE_S)
            if process.returncode:
                raise OSError(f"{' '.join(words)} failed: {said.strip()[-500:]}")
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{commands[0][0]} took more than {PATIENCE_S} s") from error
    finally:
        for process in started:
            process.kill()
            process.wait()


def find_compiler() -> tuple[str, ...]:
    """Words that begin a call of a C compiler: $CC, gcc, clang, cc, or zig of the package ziglang; empty without one."""
    for words in (shlex.split(os.environ.get("CC", "")), ["gcc"], ["clang"], ["cc"]):
        if words and (path := shutil.which(words[0])):
            return (path, *words[1:])
    return (sys.executable, "-m", "ziglang", "cc") if find_spec("ziglang") else ()
