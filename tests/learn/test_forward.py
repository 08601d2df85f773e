from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from onthejob.errors import ModelError
from onthejob.learn import lora
from onthejob.learn.batch import Path, Row, pack
from onthejob.learn.forward import Layout, _PairLogprobs, choose_layout, score
from onthejob.learn.tree_attention import ProductAttention, TreeBlock

from .conftest import VOCAB, gradients, random_groups, tiny_base, tiny_peft


def random_paths(seed: int = 0, *, temperature: float = 1.0) -> list[Path]:
    groups = random_groups(seed, groups=3, size=4)
    return [
        Path(
            ids=turn.prompt_ids + turn.completion.token_ids,
            context=len(turn.prompt_ids),
            temperature=temperature,
            owner=4 * unit + owner,
            unit=unit,
        )
        for unit, group in enumerate(groups)
        for owner, trajectory in enumerate(group.trajectories)
        for turn in trajectory.turns
    ]


def plain(model, paths: list[Path]) -> list[torch.Tensor]:
    """Each path by itself through the model's own forward: the definition."""
    found = []
    for path in paths:
        ids = torch.tensor([path.ids])
        logits = model(input_ids=ids).logits[0, path.context - 1 : -1].float() / path.temperature
        found.append(logits.log_softmax(-1).gather(-1, ids[0, path.context :, None])[:, 0])
    return found


def by_path(rows: list[Row], values: list[torch.Tensor], paths: list[Path]) -> list[torch.Tensor]:
    found = [torch.full((len(path.ids) - path.context,), torch.nan) for path in paths]
    for row, value in zip(rows, values, strict=True):
        for source, offset, number in zip(row.term_source, row.term_offset, value, strict=True):
            found[source][offset] = number
    return found


@pytest.fixture(params=["compiled", "torch"])
def code(request, monkeypatch):
    """What scores a tree: compiled code where there is some, and torch."""
    if request.param == "torch":
        monkeypatch.setattr("onthejob.learn.forward.native_scores", lambda *_, **__: None)


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("max_tokens", [10_000, 40, 2])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_packed_equals_one_sequence_at_a_time(layout, share, max_tokens, temperature):
    model = tiny_peft()
    paths = random_paths(temperature=temperature)
    torch.cat(plain(model, paths)).square().sum().backward()
    expected = gradients(model)
    rows = pack(paths, max_tokens=max_tokens, share=share)
    values = [score(model, row, layout=layout).logprobs for row in rows]
    for value in values:
        value.square().sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(torch.cat(by_path(rows, values, paths)), torch.cat(plain(model, paths)), rtol=1e-5, atol=1e-5)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5 * float(expected[name].abs().max()))


def test_sharing_needs_fewer_tokens():
    paths = random_paths()
    (shared,), (apart,) = pack(paths, max_tokens=10_000), pack(paths, max_tokens=10_000, share=False)
    assert len(shared) < 0.6 * len(apart)


@pytest.mark.usefixtures("code")
def test_bf16_base_stays_close_to_fp32():
    paths = random_paths()
    (row,) = pack(paths, max_tokens=10_000)
    exact, rounded = tiny_peft(), tiny_peft(dtype=torch.bfloat16)
    results = {}
    for name, model in (("fp32", exact), ("bf16", rounded)):
        logprobs = score(model, row).logprobs
        assert logprobs.dtype == torch.float32
        logprobs.mean().backward()
        results[name] = (logprobs.detach(), gradients(model))
    assert (results["fp32"][0] - results["bf16"][0]).abs().mean() < 0.05
    flat = {name: torch.cat([g.flatten() for g in grads.values()]) for name, (_, grads) in results.items()}
    assert flat["bf16"].dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(flat["fp32"], flat["bf16"], dim=0) > 0.99


def test_attention_by_products_has_the_gradients_of_attention():
    """Where bfloat16 attention is computed by our own products: equal to PyTorch's, gradients checked in float64."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 4, 6, 4), (1, 2, 6, 4), (1, 2, 6, 4))
    query, key, value = (torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes)
    # Nodes 0 to 3 are a sequence; 4 and 5 a second branch that leaves it after node 1, so that its keys are gathered.
    visible = torch.ones(6, 6, dtype=torch.bool).tril()
    visible[4:, 2:4] = False
    blocks = []
    for start, stop, keys in ((0, 4, None), (4, 6, torch.tensor([0, 1, 4, 5]))):
        seen = visible[start:stop, :stop] if keys is None else visible[start:stop, keys]
        bias = torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, -1e30)[None, None]
        depth = torch.tensor([0, 1, 2, 3, 2, 3])
        blocks.append(TreeBlock(start=start, stop=stop, keys=keys, bias=bias, depth=depth))

    def ours(*tensors: torch.Tensor) -> torch.Tensor:
        return ProductAttention.apply(*tensors, blocks, 0.3)

    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=visible[None, None], scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(ours(query, key, value), expected.transpose(1, 2))
    assert torch.autograd.gradcheck(ours, (query, key, value))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padded_layout_equals_tree_layout(dtype):
    model = tiny_peft(dtype=dtype)
    (row,) = pack(random_paths(), max_tokens=10_000)
    with torch.no_grad():
        tree, padded = (score(model, row, layout=layout) for layout in (Layout.TREE, Layout.PADDED))
    tolerance = 1e-5 if dtype == torch.float32 else 0.15
    torch.testing.assert_close(tree.logprobs, padded.logprobs, rtol=0, atol=tolerance)
    torch.testing.assert_close(tree.entropy, padded.entropy, rtol=0, atol=tolerance)


def test_a_completion_does_not_see_another_one():
    model = tiny_base()
    paths = [Path(ids=(5, 6, 7, 10 + k, 20 + k, 30 + k), context=3) for k in range(3)]
    changed = [*paths[:1], Path(ids=(5, 6, 7, 99, 98, 97), context=3), *paths[2:]]
    values = []
    for version in (paths, changed):
        (row,) = pack(version, max_tokens=100)
        with torch.no_grad():
            values.append(by_path([row], [score(model, row).logprobs], version))
    torch.testing.assert_close(values[0][0], values[1][0], rtol=0, atol=5e-6)
    torch.testing.assert_close(values[0][2], values[1][2], rtol=0, atol=5e-6)
    assert (values[0][1] - values[1][1]).abs().max() > 0.1


def test_an_observation_changes_what_follows_and_has_no_term():
    model = tiny_base()
    values = []
    for observation in ((40, 41), (50, 51)):
        paths = [Path(ids=(5, 6, 7, 8), context=2), Path(ids=(5, 6, 7, 8, *observation, 9), context=6)]
        (row,) = pack(paths, max_tokens=100)
        assert len(row) == 7
        assert set(row.pair_token.tolist()) == {7, 8, 9}
        with torch.no_grad():
            values.append(by_path([row], [score(model, row).logprobs], paths))
    torch.testing.assert_close(values[0][0], values[1][0], rtol=0, atol=1e-6)
    assert (values[0][1] - values[1][1]).abs().item() > 1e-4


def test_only_scored_tokens_have_gradients():
    """Gradients at the head: rows of unscored positions do not exist, and the prompt's last token serves all completions."""
    model = tiny_base()
    paths = [Path(ids=(5, 6, 7, 10 + k), context=3) for k in range(3)]
    (row,) = pack(paths, max_tokens=100)
    assert row.heads.tolist() == [2]
    logprobs = score(model, row).logprobs
    (gradient,) = torch.autograd.grad(logprobs.sum(), model.lm_head.weight, retain_graph=True)
    hidden = model.model(input_ids=torch.tensor([[5, 6, 7]])).last_hidden_state[0, -1]
    probability = torch.softmax(model.lm_head(hidden), -1)
    expected = -3 * probability[:, None] * hidden[None]
    expected[10:13] += hidden
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


def test_entropy_is_that_of_the_sampling_distribution():
    model = tiny_base()
    path = Path(ids=(5, 6, 7, 8), context=3, temperature=0.5)
    (row,) = pack([path], max_tokens=10)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1] / 0.5
        expected = torch.distributions.Categorical(logits=logits).entropy()
        torch.testing.assert_close(score(model, row).entropy[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (0.7, -2.0)], ids=["logprob", "entropy", "both"])
def test_gradients_of_logprob_and_entropy_are_those_of_autograd(temperature, weights):
    model = tiny_base()
    path = Path(ids=(5, 6, 7, 8), context=3, temperature=temperature)
    (row,) = pack([path], max_tokens=10)
    scores = score(model, row)
    ours = weights[0] * scores.logprobs[0] if weights[0] else 0.0
    ours = ours + weights[1] * scores.entropy[0] if weights[1] else ours
    found = torch.autograd.grad(ours, model.lm_head.weight)[0]
    logprobs = (model(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1] / temperature).log_softmax(-1)
    expected = weights[0] * logprobs[8] - weights[1] * (logprobs.exp() * logprobs).sum()
    torch.testing.assert_close(found, torch.autograd.grad(expected, model.lm_head.weight)[0], rtol=1e-4, atol=1e-6)


def test_a_certain_distribution_has_an_entropy_with_a_finite_gradient():
    logits = torch.tensor([[0.0, 2000.0, -2000.0]], requires_grad=True)
    heads = torch.tensor([0])
    _, entropy = _PairLogprobs.apply(logits, None, None, heads, torch.tensor([1]))
    entropy.sum().backward()
    assert entropy.item() == 0
    assert logits.grad is not None
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_many_head_positions_are_recomputed_in_chunks():
    paths = random_paths()
    (row,) = pack(paths, max_tokens=10_000)
    results = []
    for limit in (10_000, 7):
        model = tiny_peft()
        scores = score(model, row, head_rows=limit)
        scores.logprobs.square().sum().backward()
        results.append((scores.logprobs.detach(), scores.entropy, gradients(model)))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-5, atol=1e-6)
    for name, gradient in results[0][2].items():
        torch.testing.assert_close(gradient, results[1][2][name], rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))


def other(config: PreTrainedConfig):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,
}


@pytest.mark.parametrize(
    "config",
    [Qwen2Config(**SHAPE), Qwen3Config(**SHAPE), MistralConfig(**SHAPE, sliding_window=64)],
    ids=lambda c: c.model_type,
)
def test_other_architectures_use_the_tree(config):
    model = other(config)
    assert choose_layout(model) is Layout.TREE
    paths = random_paths()
    (row,) = pack(paths, max_tokens=10_000)
    with torch.no_grad():
        found = by_path([row], [score(model, row).logprobs], paths)
        torch.testing.assert_close(torch.cat(found), torch.cat(plain(model, paths)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_contexts_longer_than_a_sliding_window_are_exact_in_both_layouts(dtype):
    model = other(MistralConfig(**SHAPE, sliding_window=4)).to(dtype)
    assert choose_layout(model) is Layout.TREE
    paths = random_paths()
    (row,) = pack(paths, max_tokens=10_000)
    tolerance = 1e-5 if dtype is torch.float32 else 0.1
    with torch.no_grad():
        want = torch.cat(plain(model, paths)).float()
        for layout in Layout:
            found = torch.cat(by_path([row], [score(model, row, layout=layout).logprobs], paths))
            torch.testing.assert_close(found, want, rtol=tolerance, atol=tolerance)
        wide = other(MistralConfig(**SHAPE, sliding_window=None)).to(dtype)
        assert (torch.cat(plain(wide, paths)) - want).abs().max() > 0.5, "the window hides nothing"


def test_a_model_that_caps_its_logits_is_refused():
    with pytest.raises(ModelError, match="cap or scale"):
        choose_layout(other(Gemma2Config(**SHAPE, final_logit_softcapping=0.5)))


def test_learned_positions_work_too():
    model = other(GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3)).eval()
    layout = choose_layout(model)
    paths = random_paths()
    (row,) = pack(paths, max_tokens=10_000)
    with torch.no_grad():
        found = by_path([row], [score(model, row, layout=layout).logprobs], paths)
        torch.testing.assert_close(torch.cat(found), torch.cat(plain(model, paths)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_embedded_model_uses_the_tree(smollm2_path, dtype):
    model = AutoModelForCausalLM.from_pretrained(smollm2_path, dtype=dtype)
    tuned = lora.attach(model, ["sales"], lora.LoraSpec(rank=2), seed=0)
    with torch.no_grad():
        for name, parameter in lora.parameters(tuned, "sales").items():
            if ".lora_B." in name:
                parameter.copy_(1e-3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    assert choose_layout(tuned) is Layout.TREE


def test_not_a_language_model():
    with pytest.raises(ModelError, match="not a transformers"):
        choose_layout(torch.nn.Linear(2, 2))


def test_the_models_own_attention_is_put_back():
    model = tiny_base()
    before = model.config._attn_implementation
    (row,) = pack([Path(ids=(1, 2, 3), context=2)], max_tokens=10)
    score(model, row)
    assert model.config._attn_implementation == before
    broken = pack([Path(ids=(1, 2, VOCAB + 5), context=2)], max_tokens=10)[0]
    with pytest.raises(IndexError):
        score(model, broken)
    assert model.config._attn_implementation == before
    assert np.isfinite(score(model, row).logprobs.item())
