"""The base model: loaded once per process, frozen, shared by the sampler and the learner."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from onthejob.errors import ConfigError, MissingDependency, ModelError
from onthejob.files import cache_dir
from onthejob.models.fetch import check_folder

log = logging.getLogger(__name__)

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBase:
    """A base model with what belongs to it."""

    model: Any
    """transformers PreTrainedModel in evaluation mode, all parameters frozen."""
    tokenizer: Any
    digest: str
    """sha256 over the weight files on disk: the identity that adapters name, whatever the dtype in memory."""


def check_device(device: str) -> None:
    """Refuse a GPU that is not there.

    Raises:
        ConfigError: torch finds none.
    """
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device is {device!r} but torch finds no GPU here. Use device cpu, or see `onthejob doctor`.")


def load_base(
    path: Path | str,
    *,
    dtype: Dtype = "bfloat16",
    device: str = "cpu",
    quantize: Literal["none", "nf4"] = "none",
    attention: str | None = None,
    tokenizer: Any = None,
) -> LoadedBase:
    """Load a local folder in HF format; never touches the network.

    Args:
        path: what `onthejob.models.fetch.fetch` returns.
        dtype: of the weights in memory.
        device: torch device.
        quantize: `nf4` holds the linear layers (not embeddings and head) in 4 bits, NF4 with double quantisation, and multiplies
            in `dtype`: a quarter of bfloat16's memory.
        attention: transformers' attn_implementation; None takes its default.
        tokenizer: the folder's, where it was read already; None reads it.

    Raises:
        ConfigError: unknown dtype, a GPU that is not there, or a folder that is missing or incomplete.
        MissingDependency: `nf4` without bitsandbytes.
        ModelError: the files cannot be loaded.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if dtype not in dtypes:
        raise ConfigError(f"dtype must be one of {', '.join(dtypes)}, got {dtype!r}.")
    check_device(device)
    folder = check_folder(Path(path))
    placed = _quantized(quantize, dtypes[dtype], device)
    try:
        with QuietTransformers():
            tokenizer = tokenizer or AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtypes[dtype], attn_implementation=attention, local_files_only=True, use_safetensors=True, **placed
            )
        if placed:
            _keep_layout(model)
        else:
            model = model.to(torch.device(device))
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ModelError(f"the model at {folder} cannot be loaded: {error}. Fetch it again or choose another folder.") from error
    return LoadedBase(model=model.eval().requires_grad_(False), tokenizer=tokenizer, digest=weights_digest(folder))


def pace_of_float32() -> float:
    """How many times as fast as bfloat16 float32 is on this CPU, in matrix products of a small model's size, one thread.

    What a CPU says of itself does not tell: one with native bfloat16 instructions may be slower with them, by what its kernels
    make of them (docs/log: 1.8 on a Xeon with avx512_bf16). Measured once and remembered in the cache directory, so that
    other work on the machine does not change the answer from command to command.
    """
    import torch

    memory = cache_dir() / "pace.json"
    machine = f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()} {_processor()}"
    try:
        return float(json.loads(memory.read_text(encoding="utf-8"))[machine])
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.debug("no remembered pace of %s: %s", machine, error)
    pace = measure_pace()
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        memory.write_text(json.dumps({machine: pace}), encoding="utf-8")
    except OSError as error:
        log.debug("the pace is not remembered: %s", error)
    return pace


def measure_pace() -> float:
    """What `pace_of_float32` remembers; takes a fifth of a second."""
    import torch

    seconds = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    operands = {dtype: (torch.ones(128, 576, dtype=dtype), torch.ones(1536, 576, dtype=dtype)) for dtype in seconds}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(40):
            # Short products in turns, the best of each: other work on the machine then matters little.
            for dtype, (x, weight) in operands.items():
                started = time.perf_counter()
                torch.nn.functional.linear(x, weight)
                seconds[dtype] = min(seconds[dtype], time.perf_counter() - started)
    finally:
        torch.set_num_threads(threads)
    return seconds[torch.bfloat16] / seconds[torch.float32]


def _processor() -> str:
    """What the CPU calls itself; empty where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def quicker_dtype(device: str = "cpu") -> Dtype:
    """float32 on a CPU where that is clearly faster, else bfloat16, which takes half of the memory."""
    return "float32" if device == "cpu" and pace_of_float32() > 1.2 else "bfloat16"


def _quantized(quantize: str, dtype: Any, device: str) -> dict[str, Any]:
    """Arguments of `from_pretrained`; quantised weights are made on their device and not moved afterwards."""
    if quantize == "none":
        return {}
    if quantize != "nf4":
        raise ConfigError(f"quantize must be none or nf4, got {quantize!r}.")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingDependency(
            "4-bit weights need bitsandbytes: pip install 'onthejob[quantized]'. Or set --model.quantize none."
        )
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    return {"quantization_config": config, "device_map": {"": device}}


def _keep_layout(model: Any) -> None:
    """Keep bitsandbytes (0.50) from repacking weights at a forward without gradients, as it does on CPUs with AVX512-BF16.

    Its kernel for repacked weights has no backward pass: what is trained after such a forward would get no gradient through them.
    """
    from bitsandbytes.nn import Linear4bit  # pyright: ignore[reportMissingImports]  # optional

    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False


def count_weights(folder: Path) -> int:
    """Numbers in a folder's safetensors files; their headers are read and nothing else."""
    total = 0
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        total += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    return total


def weights_digest(folder: Path) -> str:
    """sha256 over a folder's safetensors files in name order, remembered in the cache while their sizes and times stay."""
    files = sorted(folder.glob("*.safetensors"))
    stamp = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    memory = cache_dir() / "digests" / f"{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]}.json"
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
        if known["stamp"] == stamp:
            return known["digest"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.debug("no remembered digest of %s: %s", folder, error)
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        memory.write_text(json.dumps({"stamp": stamp, "digest": digest.hexdigest()}), encoding="utf-8")
    except OSError as error:
        log.debug("the digest of %s is not remembered: %s", folder, error)
    return digest.hexdigest()


def describe_base(path: Path | str, *, digest: str, dtype: Dtype = "bfloat16") -> LoadedBase:
    """A base without weights (torch device `meta`): shapes and tokenizer, for a process in which nothing is computed with it.

    Args:
        path: a folder with configuration and tokenizer; weights are not read.
        digest: of the weights that others compute with.
        dtype: of theirs.

    Raises:
        ConfigError: the folder is missing or incomplete.
        ModelError: its files cannot be read.
    """
    from transformers import AutoTokenizer

    folder = check_folder(Path(path), weights=False)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelError(f"the tokenizer at {folder} cannot be read: {error}. Fetch the model again.") from error
    return LoadedBase(model=skeleton(folder, dtype=dtype), tokenizer=tokenizer, digest=digest)


def skeleton(path: Path | str, *, dtype: Dtype = "bfloat16") -> Any:
    """The architecture of a folder's model, its weights on torch's device `meta`: takes no memory, and no weights file.

    Raises:
        ConfigError: the folder is missing or incomplete.
        ModelError: its configuration cannot be read, or is of no causal language model.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = check_folder(Path(path), weights=False)
    try:
        with torch.device("meta"):
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
            model: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelError(
            f"the model at {folder} cannot be described: {error}. Fetch it again or choose another folder."
        ) from error
    return model.eval().requires_grad_(False)


class QuietTransformers:
    """No progress bars of transformers inside the `with`; restores the setting."""

    def __enter__(self) -> None:
        from transformers.utils import logging as transformers_logging

        self._logging = transformers_logging
        self._was_enabled = transformers_logging.is_progress_bar_enabled()
        transformers_logging.disable_progress_bar()

    def __exit__(self, *_: object) -> None:
        if self._was_enabled:
            self._logging.enable_progress_bar()
