"""The context and the end tokens that a model's configuration states, and what is refused beyond them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import BloomConfig, GenerationConfig, GPT2Config, LlamaConfig, MambaConfig

from onthejob.errors import ConfigError, ModelError
from onthejob.models.chat import ChatEncoder
from onthejob.models.encoder import load_encoder
from onthejob.models.sampler import LocalSampler
from onthejob.models.window import context_window
from onthejob.types import Message, Sampling


def llama(**rope: object) -> LlamaConfig:
    return LlamaConfig(max_position_embeddings=2048, rope_parameters={"rope_theta": 1e4, **rope} if rope else None)


@pytest.mark.parametrize(
    ("config", "window"),
    [
        (llama(), 2048),
        (llama(rope_type="linear", factor=2.0), 4096),
        (llama(rope_type="dynamic", factor=2.0), 4096),
        (llama(rope_type="yarn", factor=4.0, original_max_position_embeddings=2048), 8192),
        (llama(rope_type="yarn", factor=4.0, original_max_position_embeddings=512), 2048),
        (
            llama(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
            2048,
        ),
        (GPT2Config(n_positions=64), 64),
        (MambaConfig(), None),
        (BloomConfig(), None),
    ],
)
def test_the_context_is_what_the_configuration_states(config: object, window: int | None):
    assert context_window(config) == window


def test_an_encoder_takes_context_and_all_end_tokens_from_the_folder(make_model, tokenizer, tmp_path: Path):
    make_model("llama").config.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    chat = load_encoder(tmp_path)
    assert (chat.window, chat.end_ids) == (512, {2})
    GenerationConfig(eos_token_id=[2, 0, 17]).save_pretrained(tmp_path)
    chat = load_encoder(tmp_path)
    assert chat.end_ids == {0, 2, 17}
    # What is imitated still ends as the template ends a turn, and a reply that ends otherwise is not closed again.
    assert chat.reply_ids("a")[-1] == 2
    first = chat.encode([Message("user", "x")])
    assert 2 not in chat.extend(first, (70, 0), [Message("user", "y")])[len(first) : len(first) + 3]
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        load_encoder(tmp_path)


def test_a_reply_ends_at_every_end_token(make_model, tokenizer):
    model = make_model("llama")
    with torch.no_grad():  # The likeliest token of every step is 17.
        model.lm_head.weight[17] += 50 * torch.ones(64).sign()
    prompt = (5, 6, 7)
    sampling = Sampling(temperature=0.0, max_new_tokens=6)
    (free,) = LocalSampler(model, ChatEncoder(tokenizer)).generate([prompt], adapter=None, sampling=sampling, seeds=[0])
    ended = LocalSampler(model, ChatEncoder(tokenizer, end_ids=[free.token_ids[1]]))
    (reply,) = ended.generate([prompt], adapter=None, sampling=sampling, seeds=[0])
    assert (free.finish_reason, len(free.token_ids)) == ("length", 6)
    assert reply.finish_reason == "stop"
    assert reply.token_ids == free.token_ids[: len(reply.token_ids)]
    assert len(reply.token_ids) <= 2
    assert ended.chat.decode(reply.token_ids) == reply.text


def test_the_sampler_refuses_what_exceeds_the_context(make_model, chat: ChatEncoder):
    sampler = LocalSampler(make_model("llama"), chat)
    fits = tuple(range(3, 7)) * 126  # 504 tokens of 512
    sampler.generate([fits], adapter=None, sampling=Sampling(max_new_tokens=8), seeds=[0])
    with pytest.raises(ConfigError, match="a prompt of 504 tokens with a reply of up to 9 exceeds the model's context of 512"):
        sampler.generate([(5,), fits], adapter=None, sampling=Sampling(max_new_tokens=9), seeds=[0, 1])
