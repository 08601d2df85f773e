"""Which engine runs a model in the in-process sampler."""

from __future__ import annotations

import copy
from typing import Any, Literal

from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer

from onthejob.errors import ContractError, ModelError
from onthejob.models.generic import GenericEngine
from onthejob.models.llama import LlamaEngine
from onthejob.models.native.engine import NativeEngine
from onthejob.models.native.shared_library import foresee

Engine = Literal["auto", "native", "torch", "transformers"]


def make_engine(model: Any, engine: Engine = "auto") -> LlamaEngine | NativeEngine | GenericEngine:
    """What runs a model; see `Sampler`.

    Raises:
        ModelError: the stated engine cannot run it here.
    """
    if engine == "transformers" or (engine == "auto" and not LlamaEngine.supports(model)):
        return GenericEngine(model)
    if not LlamaEngine.supports(model):
        raise ModelError(f"engine {engine!r} runs Llama-shaped models only, this is {model.config.model_type!r}. Use `auto`.")
    library = None if engine == "torch" else NativeEngine.library_for(model)
    if library is not None:
        return NativeEngine(model, library)
    if engine == "native":
        raise ModelError("there is no compiled code for this model on this machine. Use `auto`; `onthejob doctor` says more.")
    return LlamaEngine(model)


def is_batch_invariant(model: Any) -> bool:
    """Whether `auto` runs a model with compiled code, where a reply's numbers do not depend on what else is in its batch."""
    own = without_adapters(model)
    return LlamaEngine.supports(own) and NativeEngine.library_for(own) is not None


def engine_here(dtype: str) -> dict[str, str]:
    """`sampler` -> the name of the compiled code that this processor runs for weights of a dtype, or why it runs none."""
    variant, note = foresee(bf16=dtype == "bfloat16")
    return {"sampler": variant.name if variant is not None else f"no compiled code ({note})"}


def without_adapters(model: Any) -> Any:
    """A module tree of its own around the same weight tensors, with every PEFT layer replaced by what it wraps.

    So the sampler neither sees the adapters that are being trained nor changes any setting of the trained model.

    Raises:
        ContractError: an adapter is merged into the weights.
        ModelError: the model is not a causal language model.
    """
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    if base.get_output_embeddings() is None:
        raise ModelError(f"{type(base).__name__} has no language-model head. Load a causal language model.")
    shared = {id(tensor): tensor for tensor in (*base.parameters(), *base.buffers())}
    own = copy.deepcopy(base, shared)
    for name, module in list(own.named_modules()):
        if isinstance(module, BaseTunerLayer):
            if module.merged:
                raise ContractError(f"an adapter is merged into {name}. Unmerge it: the sampler adds adapters itself.")
            own.set_submodule(name, module.get_base_layer())
    # PEFT names a wrapped projection `q_proj.base_layer`; the replacement above restores the base's own names.
    return own.eval()
