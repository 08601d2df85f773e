"""Checkpoints: what is needed to continue after an iteration, as folders that are complete and checked, or not used.

`checkpoints/000007/` holds the given files and `manifest.json` with the sha256 of each. A checkpoint is written before its
iteration is committed, so every committed iteration has one; one without a commit is removed when the run is opened again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onthejob.errors import ContractError, RecordError
from onthejob.files import TEMPORARY, published, remove_folder, sha256
from onthejob.record.database import explained

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

KEPT = 2
"""The newest checkpoints are kept: the last one, and one to fall back to."""
KEPT_EVERY = 10
"""Checkpoints of every tenth iteration are kept for good."""
_MANIFEST = "manifest.json"

Files = Mapping[str, "bytes | Mapping[str, torch.Tensor]"]
"""File name -> bytes, or tensors by name (stored as safetensors)."""


def folder_of(run: Path, n: int) -> Path:
    """Folder of iteration `n`'s checkpoint."""
    return run / "checkpoints" / f"{n:06d}"


def numbers(run: Path) -> list[int]:
    """Iterations that have a checkpoint folder, ascending; whether it is valid is checked on reading."""
    root = run / "checkpoints"
    return sorted(int(path.name) for path in root.iterdir() if path.name.isdigit()) if root.is_dir() else []


def write(run: Path, n: int, files: Files) -> Path:
    """Write and publish the checkpoint of iteration `n`; an earlier uncommitted one is replaced.

    Raises:
        ContractError: a file name is not a plain name.
        RecordError: the disk is full or not writable; nothing is left behind then.
    """
    final = folder_of(run, n)
    for name in files:
        if not name or Path(name).name != name or name.startswith(".") or name == _MANIFEST:
            raise ContractError(f"a checkpoint's file name must be plain and not {_MANIFEST!r}, got {name!r}.")
    with explained("write checkpoint", final):
        final.parent.mkdir(exist_ok=True)
        if final.exists():
            remove_folder(final)
        with published(final) as folder:
            entries = {name: _write_file(folder / name, value) for name, value in files.items()}
            text = json.dumps({"iteration": n, "files": entries}, indent=1, sort_keys=True)
            (folder / _MANIFEST).write_text(text)
    return final


def _write_file(path: Path, value: bytes | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(value, bytes):
        path.write_bytes(value)
        kind = "bytes"
    else:
        _save_tensors(path, value)
        kind = "tensors"
    return {"kind": kind, "bytes": path.stat().st_size, "sha256": sha256(path)}


def _save_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        # Copies: safetensors refuses views and tensors that share memory, e.g. tied weights.
        save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        raise RecordError(f"cannot write {path}: {error}. Check free disk space and permissions.") from error


def check(run: Path, n: int) -> dict[str, Any]:
    """The manifest's files of checkpoint `n`, after comparing every file with its hash.

    Raises:
        RecordError: missing, incomplete or changed.
    """
    folder = folder_of(run, n)
    remedy = "Use an earlier checkpoint."
    with explained("read checkpoint", folder):
        if not (folder / _MANIFEST).is_file():
            raise RecordError(f"no complete checkpoint at {folder}: it has no {_MANIFEST}. {remedy}")
        try:
            manifest = json.loads((folder / _MANIFEST).read_text())
            entries = dict(manifest["files"])
            hashes = {name: (entry["kind"], entry["sha256"]) for name, entry in entries.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"the manifest of {folder} is damaged: {error}. {remedy}") from error
        for name, (_, expected) in hashes.items():
            path = folder / name
            if Path(name).name != name or not path.is_file():
                raise RecordError(f"checkpoint {folder} lacks {name!r}. {remedy}")
            if (found := sha256(path)) != expected:
                raise RecordError(f"checkpoint file {path} is damaged: sha256 {found}, expected {expected}. {remedy}")
    return entries


def read(run: Path, n: int) -> dict[str, bytes | dict[str, torch.Tensor]]:
    """The checked files of checkpoint `n`, in the form in which they were given."""
    entries = check(run, n)
    files: dict[str, bytes | dict[str, torch.Tensor]] = {}
    for name, entry in entries.items():
        path = folder_of(run, n) / name
        if entry["kind"] == "tensors":
            from safetensors.torch import load_file

            files[name] = load_file(path)
        else:
            files[name] = path.read_bytes()
    return files


def newest_valid(run: Path, committed: int | None) -> int | None:
    """The newest checkpoint <= `committed` whose files are all intact; damaged ones are logged and passed over."""
    for n in reversed(numbers(run)):
        if committed is None or n > committed:
            continue
        try:
            check(run, n)
        except RecordError as error:
            log.warning("checkpoint %d is not used: %s", n, error)
        else:
            return n
    return None


def remove_uncommitted(run: Path, committed: int | None) -> None:
    """Remove checkpoints after the last committed iteration and temporary folders of killed writers."""
    root = run / "checkpoints"
    if not root.is_dir():
        return
    for path in sorted(root.iterdir()):
        newer = path.name.isdigit() and (committed is None or int(path.name) > committed)
        if path.is_dir() and (newer or path.name.startswith(TEMPORARY)):
            log.info("removing uncommitted %s", path)
            remove_folder(path)


def prune(run: Path) -> None:
    """Keep the last `KEPT` checkpoints and every `KEPT_EVERY`th."""
    for n in numbers(run)[:-KEPT]:
        if n % KEPT_EVERY:
            remove_folder(folder_of(run, n))
