"""The base model that a learner or a sampler of a crew loads, and how its weights are compared with those of the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from onthejob.errors import OnTheJobError
from onthejob.scale.runtime import Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSpec:
    """One base model on a CPU. Every node has it at the same path, or fetches it by the same name."""

    model: str
    """As for `models.fetch.fetch`."""
    dtype: Literal["float32", "bfloat16"]
    """Of the weights in memory."""
    quantize: Literal["none", "nf4"] = "none"
    """As for `load_base`."""
    threads: int
    """Of torch, >= 1; those of the driver, as another number may change the last bits of a sum."""

    @property
    def facts(self) -> Facts:
        """What must be equal here and in a worker: the digest of the weights."""
        return Facts(functions=(("onthejob.scale.base_spec:base_here", (self.model,)),))

    def memory_bytes(self) -> int:
        """What the weights take in memory: as many numbers as the files hold, in `dtype`, or in 4 bits.

        Raises:
            ConfigError, ModelError: as `fetch`.
        """
        from onthejob.models.base_model import count_weights
        from onthejob.models.fetch import fetch

        bits = 4 if self.quantize == "nf4" else 32 if self.dtype == "float32" else 16
        return count_weights(fetch(self.model)) * bits // 8

    def load(self) -> Any:
        """The model and its tokenizer, a `LoadedBase`; sets the number of threads of this process.

        Raises:
            ConfigError, ModelError: as `fetch` and `load_base`.
        """
        import torch

        from onthejob.models.base_model import load_base
        from onthejob.models.fetch import fetch

        torch.set_num_threads(self.threads)
        return load_base(fetch(self.model), dtype=self.dtype, quantize=self.quantize)


def base_here(model: str) -> dict[str, str]:
    """`base` -> the first 12 digits of the digest of this node's weights of a model, or why there are none."""
    from onthejob.models.base_model import weights_digest
    from onthejob.models.fetch import fetch

    try:
        return {"base": weights_digest(fetch(model))[:12]}
    except OnTheJobError as error:
        return {"base": f"missing ({error})"}
