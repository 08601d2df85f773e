"""Turns a GGUF file into a folder in HF format, once: `python -m onthejob.models.convert FILE FOLDER`.

The weights are written as bfloat16. SmolLM2's matrices were released in bfloat16 and the file keeps 4-bit approximations of them
(8-bit for the embedding); rounding the dequantised numbers to bfloat16 moves them by 0.13 % in relative norm, far below
what the quantisation did, and every later load in float32 or bfloat16 starts from the same numbers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from onthejob.errors import ModelError


def convert(gguf: Path, target: Path) -> None:
    """Write config, generation config, safetensors and tokenizer of `gguf` to the new folder `target`.

    Raises:
        ModelError: the file cannot be read, or its tokenizer does not know the control tokens of its chat template.
    """
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        field = GGUFReader(gguf).get_field("tokenizer.ggml.pre")
        model: Any = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
        )
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{gguf} cannot be read as a GGUF model: {error}") from error
    # The loader marks the model as quantised although its weights are plain now; saved so, it could not be loaded again.
    model.hf_quantizer = None
    model.is_quantized = False
    del model.config.quantization_config
    if field is not None and field.contents() == "smollm":
        _split_digits(tokenizer)
    tokenizer.model_max_length = model.config.max_position_embeddings
    _check(tokenizer, model)
    target.mkdir(parents=True)
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)
    _clean_tokenizer_config(target / "tokenizer_config.json")
    for file in target.iterdir():
        file.chmod(0o644)


def _split_digits(tokenizer: Any) -> None:
    r"""Restore SmolLM's pre-tokenizer: digits stand alone before anything else is split.

    The loader knows GPT-2's pre-tokenizer only, which cuts white space before a digit differently ("\n\n1", "  7").
    """
    from tokenizers.pre_tokenizers import ByteLevel, Digits
    from tokenizers.pre_tokenizers import Sequence as Steps

    steps = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    tokenizer.backend_tokenizer.pre_tokenizer = Steps(steps)


def _check(tokenizer: Any, model: Any) -> None:
    if not tokenizer.chat_template or tokenizer.eos_token_id is None:
        raise ModelError("the GGUF file has no chat template or no end-of-turn token: it is not an instruction-tuned model.")
    ids = tokenizer.encode(f"a{tokenizer.eos_token}", add_special_tokens=False)
    if ids[-1] != tokenizer.eos_token_id or max(ids) >= model.config.vocab_size:
        raise ModelError(f"the tokenizer of the GGUF file does not encode its own end token {tokenizer.eos_token!r}.")


def _clean_tokenizer_config(path: Path) -> None:
    """Drop what describes this loading rather than the tokenizer, and name the class that every transformers version knows."""
    config = json.loads(path.read_text(encoding="utf-8"))
    for key in ("is_local", "local_files_only"):
        config.pop(key, None)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
