"""A base model with an adapter merged into its weights, for programs that know no adapters; proven equal before it is kept.

Training and serving never merge: rounding to bfloat16 loses most of a small update. A merged model is an export.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from onthejob.errors import ConfigError, ModelError
from onthejob.files import published
from onthejob.types import Adapter

TOLERANCES = {"float32": (1e-4, 1e-2), "bfloat16": (0.05, 0.5)}
"""dtype -> mean and largest difference of a token's log-probability, nats, between base + adapter and the merged model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A merged model on disk."""

    path: Path
    adapter: str
    dtype: str
    mean_difference: float
    """Of log-probabilities over the whole vocabulary at every position of a probe, nats, against base + adapter in float32."""
    max_difference: float
    """Of those of the probe's own tokens, nats."""
    tolerance: tuple[float, float]
    temperature: float
    """At which the merged model samples as the adapter does at temperature 1: the adapter's logit scale is not in its weights,
    but here and in the folder's `generation_config.json`."""


def merge_adapter(
    base: Path, adapter: Adapter, out: Path, *, dtype: Literal["float32", "bfloat16"] = "float32", probe: tuple[int, ...] = ()
) -> Merged:
    """Write base + adapter as one model folder.

    Args:
        base: folder of the base model.
        adapter: trained on it.
        out: new folder; refused when it exists.
        dtype: of the written weights.
        probe: token ids on which both are compared; empty takes 64 ids spread over the vocabulary.

    Raises:
        ConfigError: `out` exists.
        ModelError: the adapter does not fit, or the merged model differs by more than `TOLERANCES`; nothing is left then.
    """
    import torch
    from peft import PeftModel

    from onthejob.models.adapter_config import read_shape
    from onthejob.models.adapter_weights import read_logit_scale
    from onthejob.models.base_model import load_base, weights_digest

    if out.exists():
        raise ConfigError(f"{out} exists. Name a new folder.")
    read_shape(adapter.path)  # Refuses kinds of LoRA that PEFT would merge, and that nothing else here computes.
    config, digest = _peft_config(adapter), weights_digest(base)
    if (trained_on := _base_of(adapter)) and trained_on != digest:
        raise ModelError(f"adapter {adapter.name} was trained on the base {trained_on[:12]}, {base} is {digest[:12]}.")
    loaded = load_base(base, dtype="float32")
    try:
        with warnings.catch_warnings():  # As in lora.attach: PEFT asks transformers for a flag that was renamed since.
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
            model: Any = PeftModel.from_pretrained(loaded.model, adapter.path, config=config)
    except (ValueError, KeyError, RuntimeError, OSError) as error:
        raise ModelError(f"adapter {adapter.name} at {adapter.path} does not fit {base}: {error}.") from error
    vocabulary = loaded.model.get_input_embeddings().weight.shape[0]
    ids = torch.tensor([list(probe) or [index * vocabulary // 64 for index in range(64)]])
    with torch.no_grad():
        want = torch.log_softmax(model(input_ids=ids).logits[0].double(), dim=-1)
    merged = model.merge_and_unload().to(getattr(torch, dtype))
    temperature = 1 / read_logit_scale(adapter.path)
    if temperature != 1 and merged.generation_config is not None:
        merged.generation_config.update(do_sample=True, temperature=temperature)
    out.parent.mkdir(parents=True, exist_ok=True)
    with published(out) as partial:
        merged.save_pretrained(partial)
        loaded.tokenizer.save_pretrained(partial)
        again = load_base(partial, dtype=dtype)
        with torch.no_grad():
            got = torch.log_softmax(again.model(input_ids=ids).logits[0].double(), dim=-1)
        own = ids[0, 1:, None]
        # Tokens that are never sampled have log-probabilities below -20, whose differences mean nothing: weigh by probability.
        mean = float(((want - got).abs() * want.exp()).sum(dim=-1).mean())
        largest = float((want[:-1].gather(1, own) - got[:-1].gather(1, own)).abs().max())
        allowed = TOLERANCES[dtype]
        if not (mean <= allowed[0] and largest <= allowed[1]):
            raise ModelError(
                f"{adapter.name} merged as {dtype} differs by {mean:.3g} nats on average and {largest:.3g} at most, allowed are "
                f"{allowed[0]:g} and {allowed[1]:g}. Merge as float32."
            )
    return Merged(
        path=out,
        adapter=adapter.name,
        dtype=dtype,
        mean_difference=mean,
        max_difference=largest,
        tolerance=allowed,
        temperature=temperature,
    )


def _peft_config(adapter: Adapter) -> Any:
    from peft import LoraConfig

    try:
        config = LoraConfig.from_pretrained(str(adapter.path))
    except (ValueError, OSError, TypeError, KeyError) as error:
        raise ModelError(f"{adapter.path} holds no readable adapter_config.json ({error}).") from error
    return config


def _base_of(adapter: Adapter) -> str:
    try:
        return str(json.loads((adapter.path / "adapter_meta.json").read_text(encoding="utf-8"))["base_digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
