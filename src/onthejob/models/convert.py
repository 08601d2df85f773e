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

_OF_TOKENIZER = ("backend", "bos_token", "eos_token", "model_max_length", "pad_token", "tokenizer_class", "unk_token")


def convert(gguf: Path, target: Path) -> None:
    """Write config, generation config, safetensors and tokenizer of `gguf` to the new folder `target`.

    Raises:
        ModelError: the file cannot be read, or its tokenizer does not know the control tokens of its chat template.
    """
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        said = _said(GGUFReader(gguf))
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
    _as_said(tokenizer, said)
    tokenizer.model_max_length = model.config.max_position_embeddings
    target.mkdir(parents=True)
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)
    _clean_tokenizer_config(target / "tokenizer_config.json")
    # As it will be loaded.
    _check(AutoTokenizer.from_pretrained(target, local_files_only=True), model, said)
    for file in target.iterdir():
        file.chmod(0o644)


def _said(reader: Any) -> dict[str, Any]:
    """What the file says of its tokenizer; its special tokens as texts."""
    said = {name: field.contents() for name in ("model", "pre") if (field := reader.get_field(f"tokenizer.ggml.{name}"))}
    tokens = reader.get_field("tokenizer.ggml.tokens")
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        field = reader.get_field(f"tokenizer.ggml.{key}_token_id")
        if field is not None and tokens is not None:
            said[f"{name}_token"] = tokens.contents(int(field.contents()))
    return said


def _as_said(tokenizer: Any, said: dict[str, Any]) -> None:
    """Set what some versions of the loader omit or guess (5.17: the special tokens, and another decoder)."""
    from tokenizers.decoders import ByteLevel

    for name, text in said.items():
        if name.endswith("_token"):
            setattr(tokenizer, name, text)
    if said.get("model") == "gpt2":
        backend = tokenizer.backend_tokenizer
        backend.decoder = ByteLevel()
        # All bytes are in the vocabulary: nothing is unknown.
        backend.model.unk_token, backend.model.fuse_unk, backend.model.byte_fallback = None, False, False
        backend.model.continuing_subword_prefix = backend.model.end_of_word_suffix = ""
    if said.get("pre") == "smollm":
        tokenizer.backend_tokenizer.normalizer = None
        _split_digits(tokenizer)


def _split_digits(tokenizer: Any) -> None:
    r"""Restore SmolLM's pre-tokenizer: digits stand alone before anything else is split.

    The loader knows GPT-2's pre-tokenizer only, which cuts white space before a digit differently ("\n\n1", "  7").
    """
    from tokenizers.pre_tokenizers import ByteLevel, Digits
    from tokenizers.pre_tokenizers import Sequence as Steps

    steps = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    tokenizer.backend_tokenizer.pre_tokenizer = Steps(steps)


def _check(tokenizer: Any, model: Any, said: dict[str, Any]) -> None:
    if not tokenizer.chat_template or tokenizer.eos_token_id is None:
        raise ModelError("the GGUF file has no chat template or no end-of-turn token: it is not an instruction-tuned model.")
    ids = tokenizer.encode(f"a{tokenizer.eos_token}", add_special_tokens=False)
    if ids[-1] != tokenizer.eos_token_id or max(ids) >= model.config.vocab_size:
        raise ModelError(f"the tokenizer of the GGUF file does not encode its own end token {tokenizer.eos_token!r}.")
    if tokenizer.eos_token != said.get("eos_token", tokenizer.eos_token):
        raise ModelError(f"the tokenizer ends replies with {tokenizer.eos_token!r}, the GGUF file with {said['eos_token']!r}.")
    text = 'na\u00efve \u65e5 ["x": 1]'
    back = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))
    if back != text:
        raise ModelError(f"the tokenizer of the GGUF file does not give back what it encoded: {text!r} became {back!r}.")


def _clean_tokenizer_config(path: Path) -> None:
    """Keep what describes the tokenizer and not its loading, and name the class that every transformers version knows."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config = {key: value for key, value in config.items() if key in _OF_TOKENIZER}
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
