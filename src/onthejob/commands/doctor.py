"""`onthejob doctor`: what this machine offers, and what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from onthejob.commands.cores import usable_cores
from onthejob.commands.terminal import Output, Terminal, bytes_text, table
from onthejob.errors import ConfigError

REQUIRED = ("torch", "transformers", "peft", "safetensors", "gguf", "numpy", "zstandard", "tyro", "rich", "pydantic")
OPTIONAL = ("pyarrow", "trl")
DISK_BYTES = 2_000_000_000
MEMORY_BYTES = 4_000_000_000


class DoctorLine(NamedTuple):
    """One line of the report."""

    name: str
    value: Any
    ok: bool
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """Check what the program needs on this machine. Ends with 1 when something necessary is missing.

    What only the claw's sandboxes need is shown as missing too, but is not necessary for the rest.
    """

    model: str = "smollm2-135m"
    """The model whose presence is checked: the embedded one or a local folder. Nothing is downloaded."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Print one line per finding."""
        findings = [*software(), *sandboxes(), *machine(), *storage(self.model)]
        rows = [(finding.name, finding.value, "ok" if finding.ok else finding.remedy) for finding in findings]
        terminal.result([finding._asdict() for finding in findings], table(("what", "found", "verdict"), rows))
        return 0 if all(finding.ok for finding in findings) else 1


def software() -> Iterator[DoctorLine]:
    """Versions of Python, this package, and what it depends on."""
    yield DoctorLine("python", platform.python_version(), sys.version_info >= (3, 11), "Python >= 3.11 is needed.")
    yield DoctorLine("onthejob", version("onthejob") or "not installed (run from the source tree)", True)
    for name in REQUIRED:
        found = version(name)
        yield DoctorLine(name, found or "missing", found is not None, f"pip install {name}")
    for name in OPTIONAL:
        yield DoctorLine(name, version(name) or "not installed (optional)", True)


def sandboxes() -> Iterator[DoctorLine]:
    """What the claw's sandboxes need of the machine. Whether they hold, `onthejob sandbox doctor` says."""
    from onthejob.envs.claw.sandbox.requirements import requirements

    for name, found, remedy in requirements():
        yield DoctorLine(f"sandbox: {name}", found or f"missing (the claw needs it). {remedy}", True)


def version(name: str) -> str | None:
    """Installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine() -> Iterator[DoctorLine]:
    """Cores, memory, threads, how fast float32 and bfloat16 are, and what samples and trains."""
    if version("torch") is None:
        return
    import torch

    from onthejob.models.base_model import measure_pace
    from onthejob.models.native.shared_library import foresee, trains

    cores = usable_cores()
    yield DoctorLine("cores usable", cores, True)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield DoctorLine("memory", bytes_text(memory), memory >= MEMORY_BYTES, f"At least {bytes_text(MEMORY_BYTES)} are needed.")
    threads = torch.get_num_threads()
    yield DoctorLine(
        "torch threads", threads, threads <= cores, f"Set OMP_NUM_THREADS={cores}: more threads than cores slow down."
    )
    capability = torch.backends.cpu.get_cpu_capability()
    yield DoctorLine("cpu capability", capability, True)
    yield DoctorLine("float32", f"{measure_pace():.2f} times as fast as bfloat16", True)
    for kind in ("bfloat16", "float32"):
        bf16 = kind == "bfloat16"
        variant, note = foresee(bf16=bf16)
        found = f"compiled code, {variant.name}" if variant else "torch"
        found += f" ({note})" if note else ""
        yield DoctorLine(f"sampler, {kind}", found, True)
        yield DoctorLine(f"training, {kind}", found if variant is None or trains(bf16=bf16) else "torch (which uses AMX)", True)
    yield DoctorLine("gpu", torch.cuda.get_device_name() if torch.cuda.is_available() else "none (the CPU is used)", True)


def storage(model: str) -> Iterator[DoctorLine]:
    """The cache directory, free disk space, and whether the model is there."""
    from onthejob.files import cache_dir

    directory = cache_dir()
    yield DoctorLine(
        "cache", directory, writable(directory), f"{directory} cannot be written. Set ONTHEJOB_CACHE to a folder that can."
    )
    existing = next(parent for parent in (directory, *directory.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    yield DoctorLine("disk free", bytes_text(free), free >= DISK_BYTES, f"At least {bytes_text(DISK_BYTES)} are needed.")
    path = present(model, directory)
    yield DoctorLine(f"model {model}", path or "not fetched", path is not None, f"onthejob model fetch {model}")


def present(model: str, cache: Path) -> Path | None:
    """Folder of a model that could be loaded now without a download, or None."""
    from onthejob.models.fetch import EMBEDDED, check_folder

    folders = sorted((cache / "models").glob(f"{model}-*")) if model in EMBEDDED else [Path(model).expanduser()]
    for folder in folders:
        try:
            return check_folder(folder)
        except ConfigError:
            continue
    return None


def writable(directory: Path) -> bool:
    """True when a file can be created in `directory` or, while that does not exist, in its nearest existing parent."""
    existing = next(parent for parent in (directory, *directory.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            return True
    except OSError:
        return False
