"""Commands refuse what cannot fit the model's context before they read its weights: here they could not be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import LlamaConfig

from onthejob.testing import tiny_tokenizer


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """A model with a context of 64 tokens and broken weights."""
    folder = tmp_path / "short"
    tokenizer = tiny_tokenizer()
    LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=64, eos_token_id=2).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"broken")
    return folder


def test_a_prompt_that_cannot_fit_is_refused_before_the_model_is_loaded(call, short: Path):
    model = ("--model.name", short, "--model.dtype", "float32")
    for words in (
        ("play", "office", "--team", "base", "--env.days", "1"),
        ("play", "office", "--seat", "hr=base", "--env.days", "1"),
        ("compare", "base", "--env.scenarios", "baseline", "--env.seeds", "1", "--env.days", "1"),
        ("train", "--roles", "hr", "--env.scenarios", "baseline", "--env.days", "1"),
    ):
        said = call(*words, *model, code=2)
        assert "the model's context of 64 tokens leaves 0 for what a role is shown, besides a reply of up to 48" in said
        assert "state --env.prompt-budget" in said
    # Where the length of a prompt was stated, it is looked at.
    said = call("play", "office", "--team", "base", "--env.days", "1", "--env.prompt-budget", "900", *model, code=2)
    assert "tokens; with a reply of up to 48 it exceeds the model's context of 64" in said
    assert not Path("runs").exists()


def test_demonstrations_that_cannot_fit_or_be_read_are_refused_before_the_model_is_loaded(call, short: Path):
    data = Path("d")
    data.mkdir()

    def refused(*rows: object) -> str:
        (data / "solver.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return call("sft", data, "--out", "o", "--model.name", short, "--model.dtype", "float32", code=2)

    good = {"messages": [{"role": "user", "content": "Sell"}], "reply": "WAIT"}
    long = {"messages": [{"role": "user", "content": "é" * 40}], "reply": "WAIT"}
    assert "1 of 2 demonstrations in d/solver.jsonl exceed the model's context of 64 tokens; the longest is line 2" in refused(
        good, long
    )
    null = {"messages": [{"role": "user", "content": "Sell"}, {"role": "assistant", "content": None}]}
    assert "line 2 of d/solver.jsonl is not a demonstration: the content of a message of assistant is null" in refused(good, null)
    assert "a tool must be" in refused(good | {"tools": [{"name": "f"}]})
    parts = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "reply": "WAIT"}
    assert "a part of type 'image_url'" in refused(parts)
    assert not Path("o").exists()


def test_an_argument_that_the_template_does_not_read_is_refused(call, short: Path):
    said = call(
        "play", "office", "--team", "base", "--model.name", short, "--model.template-arguments", "enable_thinking=false", code=2
    )
    assert "no argument enable_thinking; it reads none" in said
