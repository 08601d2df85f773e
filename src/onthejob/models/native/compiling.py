"""Which shared libraries `forward.c` and `training.c` make, and how they are compiled.

Needs Python alone: `hatch_build.py` loads this file by its path where nothing else of the package can be imported.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

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
    bf16: bool
    """For bfloat16 weights, whose pairs it multiplies natively; without that bfloat16 gains little. Else for float32."""

    @property
    def file_name(self) -> str:
        """Of its library, from the sources as they are."""
        source = b"".join(each.read_bytes() for each in (*HEADERS, *SOURCES))
        digest = hashlib.sha256(source + " ".join((*_COMMON, *self.flags)).encode()).hexdigest()[:16]
        return f"native-{self.name}-{'bf16' if self.bf16 else 'fp32'}-{digest}.so"


_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma", "-mf16c")
_AVX512_NEEDS = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "fma"})
VARIANTS = (
    Variant(
        name="avx512-bf16",
        machine="x86_64",
        needs=_AVX512_NEEDS | {"avx512_bf16"},
        flags=(*_AVX512, "-mavx512bf16"),
        bf16=True,
    ),
    Variant(name="avx512", machine="x86_64", needs=_AVX512_NEEDS, flags=_AVX512, bf16=False),
    Variant(name="avx2", machine="x86_64", needs=frozenset({"avx2", "fma"}), flags=("-mavx2", "-mfma"), bf16=False),
    Variant(name="neon", machine="aarch64", needs=frozenset({"asimd"}), flags=(), bf16=False),
)
"""Best first."""


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


def compile_all(machine: str, folder: Path) -> list[Path]:
    """The libraries of every variant for a kind of processor (`x86_64`, `aarch64`), in `folder` under their names.

    Raises:
        OSError: there is no compiler, or it fails.
    """
    found = []
    for variant in VARIANTS:
        if variant.machine == machine:
            found.append(folder / variant.file_name)
            compile_library(needed_compiler(), variant, found[-1], bf16=variant.bf16)
    return found


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
            with process:  # closes its pipes, too
                process.kill()


def find_compiler() -> tuple[str, ...]:
    """Words that begin a call of a C compiler: $CC, gcc, clang, cc, or zig of the package ziglang; empty without one."""
    for words in (shlex.split(os.environ.get("CC", "")), ["gcc"], ["clang"], ["cc"]):
        if words and (path := shutil.which(words[0])):
            return (path, *words[1:])
    return (sys.executable, "-m", "ziglang", "cc") if find_spec("ziglang") else ()


def needed_compiler() -> tuple[str, ...]:
    """`find_compiler`; OSError without one."""
    if not (found := find_compiler()):
        raise OSError("there is no C compiler. Install gcc or clang, or the package ziglang: pip install ziglang")
    return found
