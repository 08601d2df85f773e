"""A language model that reads what a text claims: which of the product's features it says are there, or to come.

It is the embedded base with a LoRA adapter and one linear layer of its own. It reads the text, then the names of all features one
after the other; the hidden state behind each name goes into the layer, which gives the five `ANSWERS`. One pass judges all
features. `benchmarks/train_claims.py` trains it and saves the folder:

    adapter_config.json, adapter_model.safetensors   the LoRA adapter, in PEFT's format
    adapter_meta.json                                base_digest: sha256 of the base's weights
    head.safetensors                                 weight (5, hidden) and bias (5), float32
    reader.json                                      base: as for `onthejob model fetch`; features; bound in [0, 1]
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from onthejob.errors import ConfigError, ModelError
from onthejob.files import where_kept
from onthejob.models.adapter_weights import read_adapter_weights
from onthejob.models.base_model import load_base
from onthejob.models.fetch import fetch
from onthejob.types import Adapter

ANSWERS = ("none", "now", "coming", "denied", "other")
"""What a text may say of a feature: nothing, that it is there, that it will come, that it is not there, something else."""
NOW, COMING = 1, 2
QUESTION = "\n\nOur product:"
LONGEST, STRIDE = 160, 110
"""Tokens that are read at once, and from one such part of a longer text to the next."""


class Verdict(NamedTuple):
    """How likely a text says of a feature that the product has it; probabilities."""

    now: float
    coming: float


class Encoded(NamedTuple):
    """Token ids of a text and the names behind it, and the place of each name's last token."""

    ids: list[int]
    places: list[int]


class Encoder:
    """Texts as the model reads them."""

    def __init__(self, tokenizer: Any, features: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._question: list[int] = tokenizer.encode(QUESTION)
        self._names: list[list[int]] = [tokenizer.encode(f" {name}") for name in features]

    def parts(self, text: str) -> list[Encoded]:
        """The text, or overlapping parts of one of more than `LONGEST` tokens."""
        # Half a surrogate pair, which JSON can spell, is no character of UTF-8.
        ids = self._tokenizer.encode(text.encode("utf-8", "replace").decode())
        starts = range(0, max(1, len(ids) - LONGEST + STRIDE), STRIDE)
        return [self._with_names(ids[start : start + LONGEST]) for start in starts]

    def _with_names(self, ids: list[int]) -> Encoded:
        ids, places = ids + self._question, []
        for name in self._names:
            ids = ids + name
            places.append(len(ids) - 1)
        return Encoded(ids, places)


def answers(body: nn.Module, head: nn.Linear, batch: Sequence[Encoded]) -> Tensor:
    """Logits (texts, features, answers) of the body's hidden states behind the names."""
    size = max(len(one.ids) for one in batch)
    ids = torch.zeros(len(batch), size, dtype=torch.long, device=head.weight.device)
    mask = torch.zeros_like(ids)
    for row, one in enumerate(batch):
        ids[row, : len(one.ids)], mask[row, : len(one.ids)] = torch.tensor(one.ids), 1
    hidden = body(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    behind = torch.stack([hidden[row, one.places] for row, one in enumerate(batch)]).to(head.weight.dtype)
    with torch.autocast(behind.device.type, enabled=False):
        return head(behind)


class ClaimReader:
    """A trained reader. Same text, same machine, same verdict; texts are read one at a time, so batches change nothing."""

    def __init__(self, folder: Path | str, *, device: str = "cpu") -> None:
        """Load the base and the reader's own weights, merged, in float32.

        Args:
            folder: as `benchmarks/train_claims.py` saves it.
            device: torch device.

        Raises:
            ConfigError: the folder is not there, or the base cannot be found.
            ModelError: a file is missing or broken, or the base is another one.
        """
        folder = Path(folder)
        if not folder.is_dir():
            remedy = where_kept(folder) or "Name one with a trained reader, e.g. adapters/claims of the project's repository."
            raise ConfigError(f"reader {str(folder)!r} is not a folder. {remedy}")
        settings = _settings(folder)
        self.features: tuple[str, ...] = tuple(settings["features"])
        self.bound = float(settings["bound"])
        base = load_base(fetch(settings["base"]), dtype="float32", device=device)
        linear = {name: module for name, module in base.model.named_modules() if isinstance(module, nn.Linear)}
        shapes = {name: (module.out_features, module.in_features) for name, module in linear.items()}
        adapter = Adapter(role="claims", version=0, path=folder)
        pairs = read_adapter_weights(adapter, shapes, device=torch.device(device), base_digest=base.digest)
        with torch.no_grad():
            # This copy of the base is the reader's alone and float32, so merging loses nothing and nothing drifts.
            for name, pair in pairs.items():
                linear[name].weight += pair.b @ pair.a
        self._body: nn.Module = base.model.model
        self._head = _head(folder, base.model.config.hidden_size).to(device)
        self._encoder = Encoder(base.tokenizer, self.features)

    def read(self, text: str) -> Mapping[str, Verdict]:
        """What `text` claims of each feature; of a text in several parts the strongest claim counts."""
        with torch.inference_mode():
            chances = torch.cat([answers(self._body, self._head, [part]).softmax(-1) for part in self._encoder.parts(text)])
        claimed = chances[..., NOW] + chances[..., COMING]
        found = {}
        for number, (name, part) in enumerate(zip(self.features, claimed.argmax(0).tolist(), strict=True)):
            found[name] = Verdict(chances[part, number, NOW].item(), chances[part, number, COMING].item())
        return found


@lru_cache(maxsize=2)
def claim_reader(folder: str) -> ClaimReader:
    """One reader per folder and process; in a worker process it computes on one thread, as its siblings need the other cores."""
    if multiprocessing.parent_process() is not None:
        torch.set_num_threads(1)
    return ClaimReader(folder)


def _settings(folder: Path) -> dict[str, Any]:
    try:
        settings = json.loads((folder / "reader.json").read_text(encoding="utf-8"))
        fine = (
            isinstance(settings["base"], str)
            and settings["features"]
            and all(isinstance(name, str) for name in settings["features"])
            and 0 <= settings["bound"] <= 1
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"reader.json in {folder} cannot be read: {type(error).__name__} {error}. Train the reader again."
        ) from error
    if not fine:
        raise ModelError(f"reader.json in {folder} needs base, features and a bound in [0, 1], got {settings}. Train it again.")
    return settings


def _head(folder: Path, hidden: int) -> nn.Linear:
    head = nn.Linear(hidden, len(ANSWERS))
    try:
        head.load_state_dict(load_file(folder / "head.safetensors"))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ModelError(f"head.safetensors in {folder} cannot be used: {error}. Train the reader again.") from error
    return head.requires_grad_(False)
