"""`onthejob model fetch|show|merge`: the base model on this machine, alone or with an adapter in its weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import tyro

from onthejob.commands.outputs import check_folder
from onthejob.commands.terminal import Output, Terminal, bytes_text, table
from onthejob.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from onthejob.types import Adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Bring a model into the cache and print its folder. A second call finds it there and downloads nothing."""

    model: tyro.conf.Positional[str] = "smollm2-135m"
    """`smollm2-135m` (embedded, checksum verified), a hub id such as `Qwen/Qwen3-0.6B`, or a local folder."""
    cache: Path | None = None
    """Folder of the models; default `$ONTHEJOB_CACHE`, else the user's cache directory."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Fetch, then print the folder."""
        from onthejob.models.fetch import fetch

        path = fetch(self.model, cache=self.cache, progress=terminal.progress)
        terminal.result({"model": self.model, "path": path, "bytes": folder_bytes(path)}, str(path))
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """Describe a model that is in the cache or in a folder (it is fetched first if need be)."""

    model: tyro.conf.Positional[str] = "smollm2-135m"
    """As for `model fetch`."""
    cache: Path | None = None
    """As for `model fetch`."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Read the model's own files; weights are hashed and not loaded."""
        from onthejob.models.fetch import fetch

        facts = describe(fetch(self.model, cache=self.cache, progress=terminal.progress))
        terminal.result(facts, table(("", self.model), [(key, value) for key, value in facts.items() if key != "bytes"]))
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Write base + adapter as one model, for programs that know no adapters; kept only when it computes the same."""

    adapter: tyro.conf.Positional[str]
    """`role@version`, e.g. sales@0007, or `role` for its newest version."""
    out: tyro.conf.Positional[Path]
    """New folder."""
    source: Annotated[str, tyro.conf.arg(name="from")] = "."
    """The run or folder that holds the adapter."""
    model: str = "smollm2-135m"
    """The base, as for `model fetch`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the written weights; bfloat16 rounds small updates away and is refused when too much is lost."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Find, merge, compare, and say how far the two differ."""
        from onthejob.commands.player_specs import adapters_folder
        from onthejob.learn.merge import merge_adapter
        from onthejob.models.fetch import fetch

        if self.out.exists():
            raise ConfigError(f"{self.out} exists. Name a new folder.")
        check_folder(self.out, "OUT")
        adapter = named_adapter(self.adapter, adapters_folder(self.source))
        done = merge_adapter(fetch(self.model, progress=terminal.progress), adapter, self.out, dtype=self.dtype)
        rows = [
            ("adapter", done.adapter),
            ("folder", str(done.path)),
            ("dtype", done.dtype),
            ("mean difference, nats", done.mean_difference),
            ("largest difference, nats", done.max_difference),
            ("temperature", done.temperature),
        ]
        terminal.result(done, table(("", "merged"), rows))
        return 0


def named_adapter(name: str, folder: Path) -> Adapter:
    """`role@version`, or the newest version of `role`, in a run or folder."""
    from onthejob.learn.adapter_files import read_adapter
    from onthejob.stack import adapter_folders, find_adapters

    role, _, version = name.partition("@")
    if not version:
        newest = find_adapters(folder)
        if role not in newest:
            raise ConfigError(f"{folder} has no adapter of {role!r}, only of {', '.join(newest)}.")
        return newest[role]
    found = [read_adapter(real) for path, real in adapter_folders(folder).items() if name in (path.name, real.name)]
    if len(found) != 1:
        raise ConfigError(f"{folder} holds {len(found)} adapters called {name!r}. Name the run or folder of one with --from.")
    return found[0]


def describe(path: Path) -> dict[str, Any]:
    """What the model's folder says about it: architecture, sizes, parameters and their type, and the digest of its weights.

    Raises:
        ModelError: The folder has no readable `config.json` or no safetensors weights.
    """
    from onthejob.models.base_model import weights_digest

    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path / 'config.json'} cannot be read as JSON ({error}). Fetch the model again.") from error
    tensors = list(stored_tensors(path))
    return {
        "path": path,
        "architecture": (config.get("architectures") or ["?"])[0],
        "layers": config.get("num_hidden_layers"),
        "hidden_size": config.get("hidden_size"),
        "attention_heads": config.get("num_attention_heads"),
        "key_value_heads": config.get("num_key_value_heads"),
        "vocabulary": config.get("vocab_size"),
        "context_tokens": config.get("max_position_embeddings"),
        "parameters": sum(prod(tensor.shape) for tensor in tensors),
        "dtype": ", ".join(sorted({tensor.dtype for tensor in tensors})),
        "digest": weights_digest(path),
        "bytes": folder_bytes(path),
        "size": bytes_text(folder_bytes(path)),
    }


class StoredTensor(NamedTuple):
    """One tensor of a model's folder, by its header."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As safetensors calls it, e.g. `BF16`."""


def stored_tensors(path: Path) -> Iterator[StoredTensor]:
    """The tensors in a model's folder; only headers are read.

    Raises:
        ModelError: there are no safetensors weights, or one file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        raise ModelError(f"{path} holds no *.safetensors weights. Only models in safetensors format are loaded.")
    for file in weights:
        try:
            with safe_open(file, framework="np") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - safe_open is not a mapping
                    part = tensors.get_slice(name)
                    yield StoredTensor(name, tuple(part.get_shape()), part.get_dtype())
        except SafetensorError as error:
            raise ModelError(f"{file} is not a readable safetensors file ({error}). Fetch the model again.") from error


NF4_BYTES = 0.52
"""Of a weight in 4 bits with its share of the doubly quantised scales."""
_KEPT = re.compile(r"embed|lm_head")
"""Names of the weights that quantisation leaves as they are."""


def weights_bytes(path: Path, dtype: str, *, nf4: bool = False) -> int:
    """Memory that a model's weights take when they are loaded, in bytes.

    Args:
        path: the model's folder.
        dtype: in which they are held, `float32` or `bfloat16`.
        nf4: linear layers but the head are held in 4 bits.

    Raises:
        ModelError: as `stored_tensors`.
    """
    plain = {"float32": 4, "bfloat16": 2}[dtype]
    return round(
        sum(
            prod(tensor.shape) * (NF4_BYTES if nf4 and len(tensor.shape) == 2 and not _KEPT.search(tensor.name) else plain)
            for tensor in stored_tensors(path)
        )
    )


def folder_bytes(path: Path) -> int:
    """Size of all files below `path`, in bytes."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
