"""What a training job may ask of a worker: checked before it is claimed, because a job that kills its worker is tried again.

A job names texts, options and states. The holder of the token may still be another version, or a run whose numbers have gone
wrong; each is refused by name here, instead of by the kernel, a device assert or never.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ValidationError
from torch import Tensor

from onthejob.errors import ConfigError
from onthejob.learn.learner import LearnerConfig
from onthejob.models.adapter_weights import DTYPES, LOG_LOGIT_SCALE, MOST_LOG_SCALE, problem_of
from onthejob.models.window import context_window, refuse_longer
from onthejob.serve.messages import GROUPS, LEARNER_CONFIG
from onthejob.types import Group

if TYPE_CHECKING:
    from peft import PeftModel

MOST_PASSES = 1_000
"""Optimizer steps of one job."""
MOST_TOKENS = 65_536
"""Tokens of one text, and of one row."""
PART_DTYPES = (*DTYPES, torch.float64, torch.uint8, torch.int32, torch.int64)
"""Element types of moments, counts and the KL history in a learner's state."""
MASK_BYTES = 6
"""Bytes of memory per pair of tokens of a row: the mask of what attends to what, as it is made and as the model takes it."""


def checked_config(given: Mapping[str, Any]) -> LearnerConfig:
    """The learner's options of a job."""
    try:
        config = LEARNER_CONFIG.validate_python(given)
    except ValidationError as error:
        raise ConfigError(f"config: {_problem(error)}") from error
    unknown = next(_unknown(given, LEARNER_CONFIG.dump_python(config, mode="json")), None)
    if unknown is not None:
        raise ConfigError(f"config has the unknown option {unknown[:80]!r}. Run the same version of onthejob on both sides.")
    if config.loss.own:
        raise ConfigError("a training worker runs no function that a job names. Name a built-in loss.")
    config.loss.check_complete()
    if config.epochs > MOST_PASSES:
        raise ConfigError(f"epochs must be at most {MOST_PASSES}, got {config.epochs}. 1 is usual.")
    if config.max_tokens > MOST_TOKENS:
        raise ConfigError(f"max_tokens must be at most {MOST_TOKENS}, got {config.max_tokens}. 2048 is usual.")
    return config


def check_advantages(advantages_G: Sequence[Sequence[float]], groups: Sequence[Group]) -> None:
    """Refuse advantages that are not one per trajectory of each group.

    Raises:
        ConfigError: they are not.
    """
    if len(advantages_G) != len(groups):
        raise ConfigError(f"a job has a list of advantages per group, got {len(advantages_G)} for {len(groups)}.")
    for group, values in zip(groups, advantages_G, strict=True):
        if len(values) != len(group):
            raise ConfigError(f"group {group.key!r} has {len(group)} trajectories and {len(values)} advantages.")


def checked_groups(given: Sequence[Mapping[str, Any]], config: LearnerConfig, model: PeftModel) -> list[Group]:
    """The groups of a job."""
    try:
        groups = GROUPS.validate_python(given)
    except ValidationError as error:
        raise ConfigError(f"groups: {_problem(error)}") from error
    unknown = next(_unknown(given, GROUPS.dump_python(groups, mode="json")), None)
    if unknown is not None:
        raise ConfigError(f"groups have the unknown field {unknown[:80]!r}. Run the same version of onthejob on both sides.")
    odd = next(_not_finite(given, "groups"), None)
    if odd is not None:
        raise ConfigError(f"{odd} is not a finite number. Leave its trajectory out.")
    texts = [turn.prompt_ids + turn.completion.token_ids for group in groups for row in group.trajectories for turn in row.turns]
    check_tokens(texts, model)
    refuse_longer(context_window(model.config), texts, new_tokens=0)
    _check_memory(texts, config, model)
    return groups


def check_tokens(texts: Sequence[Sequence[int]], model: PeftModel) -> None:
    """Refuse ids that the model has no embedding for: an index error on a CPU, the end of the process on a GPU."""
    base: Any = model.get_base_model()
    known = base.get_input_embeddings().num_embeddings
    wrong = next((token for text in texts for token in text if not 0 <= token < known), None)
    if wrong is not None:
        raise ConfigError(f"token ids must be in 0..{known - 1}, got {wrong}. The run must use this worker's base model.")


def check_state(content: bytes, name: str) -> None:
    """Refuse a learner's state that would poison the adapter or the watch over its KL."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(content)
    except SafetensorError as error:
        raise ConfigError(f"state {name[:12]} is not in the safetensors format: {error}.") from error
    for key, tensor in tensors.items():
        if problem := _problem_of_part(key, tensor):
            raise ConfigError(f"state {name[:12]}: {key[:80]!r} {problem}. Resume from an older one.")
        if not (key in ("updates", "kls") or key.startswith("lora/") or (key.startswith("adam/") and key.count("/") >= 2)):
            raise ConfigError(f"state {name[:12]} holds {key[:80]!r}, which is no part of a learner's state.")
    updates, kls = tensors.get("updates"), tensors.get("kls")
    if updates is not None and (updates.numel() != 1 or updates.is_floating_point() or int(updates) < 0):
        raise ConfigError(f"state {name[:12]} must count its updates with one whole number >= 0.")
    if kls is not None and kls.ndim != 1:
        raise ConfigError(f"state {name[:12]} must hold its KL history as one row, got {tuple(kls.shape)}.")


def _problem_of_part(key: str, tensor: Tensor) -> str:
    """What makes a tensor no part of a learner's state, after its name in a sentence; empty when nothing does."""
    if key == f"lora/{LOG_LOGIT_SCALE}" and tensor.abs().max() > MOST_LOG_SCALE:
        return f"is beyond {MOST_LOG_SCALE:g}"
    if key.startswith("lora/"):
        return problem_of(tensor)
    if tensor.dtype not in PART_DTYPES:
        return f"has the type {tensor.dtype}, which no learner writes"
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        return "holds a number that is not finite"
    return ""


def _check_memory(texts: Sequence[Sequence[int]], config: LearnerConfig, model: PeftModel) -> None:
    lengths = list(map(len, texts))
    longest = max(lengths, default=0)
    tokens = max(longest, min(config.max_tokens, sum(lengths)))
    if longest > MOST_TOKENS:
        raise ConfigError(f"a text may have at most {MOST_TOKENS} tokens, got {longest}. Shorten the prompts.")
    needed, free = MASK_BYTES * tokens * tokens, free_memory(model.device)
    if needed > free:
        raise ConfigError(
            f"a row of {tokens} tokens needs {needed >> 20} MiB for its mask alone, {free >> 20} MiB are free here. "
            "Shorten the prompts, or lower --learner.max-tokens."
        )


def free_memory(device: torch.device) -> int:
    """Bytes that are free on the model's device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _unknown(given: Any, made: Any, place: str = "") -> Iterator[str]:
    """Places of the names in `given` that validation dropped."""
    if isinstance(given, Mapping) and isinstance(made, Mapping):
        for name, value in given.items():
            here = f"{place}.{name}".lstrip(".")
            if name not in made:
                yield here
            else:
                yield from _unknown(value, made[name], here)
    elif isinstance(given, list) and isinstance(made, list):
        for number, (one, other) in enumerate(zip(given, made, strict=False)):
            yield from _unknown(one, other, f"{place}.{number}".lstrip("."))


def _not_finite(value: Any, place: str) -> Iterator[str]:
    """Places of numbers that are not finite."""
    if isinstance(value, float):
        if not math.isfinite(value):
            yield place
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _not_finite(item, f"{place}.{name}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _not_finite(item, f"{place}.{number}")


def _problem(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}"
