"""Drawing tokens: the right distribution, the right log-probabilities, keyed by the seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onthejob.errors import ModelError
from onthejob.models.draw import draw, uniforms


def u(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_uniforms_are_a_function_of_the_seed():
    assert uniforms(3, 8).tolist() == uniforms(3, 20)[:8].tolist()
    assert uniforms(3, 8).tolist() != uniforms(4, 8).tolist()
    assert ((uniforms(2**70, 1000) >= 0) & (uniforms(2**70, 1000) < 1)).all()


def test_by_hand():
    logits = torch.log(torch.tensor([[0.5, 0.2, 0.3]]))
    tokens, logprobs = draw(logits, [0] * 5, u(0.0, 0.49, 0.51, 0.69, 0.999), temperature=1.0)
    assert tokens == [0, 0, 1, 1, 2]
    assert logprobs == pytest.approx(np.log([0.5, 0.5, 0.2, 0.2, 0.3]), abs=1e-6)
    # Temperature 0.5 squares the odds: 0.25 : 0.04 : 0.09 of 0.38.
    tokens, logprobs = draw(logits, [0, 0], u(0.65, 0.67), temperature=0.5)
    assert tokens == [0, 1]
    assert logprobs == pytest.approx(np.log([0.25 / 0.38, 0.04 / 0.38]), abs=1e-6)
    assert draw(logits, [0], u(0.99), temperature=0.0) == ([0], pytest.approx([np.log(0.5)], abs=1e-6))


@given(seed=st.integers(0, 10_000), vocab=st.sampled_from([5, 256, 257, 1000]), temperature=st.sampled_from([0.3, 1.0, 1.7]))
def test_equals_the_plain_inverse_distribution_function(seed: int, vocab: int, temperature: float):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(0, 4, (11, vocab))).float()
    rows = sorted(rng.integers(0, 11, 30).tolist())
    uniform = rng.random(30)
    tokens, logprobs = draw(logits, rows, torch.from_numpy(uniform), temperature=temperature)
    exact = (logits.double() / temperature).log_softmax(-1)
    assert logprobs == pytest.approx(exact[rows, tokens].tolist(), abs=1e-5)
    cdf = exact.exp().cumsum(-1)[rows].numpy()
    for token, value, sums in zip(tokens, uniform, cdf, strict=True):
        low = sums[token - 1] if token else 0.0
        assert low - 1e-5 <= value <= sums[token] + 1e-5


def test_tokens_of_no_mass_are_never_drawn():
    logits = torch.full((1, 600), -torch.inf)
    logits[0, [3, 300, 301]] = 0.0
    values = [0.0, 0.3333, 0.33334, 0.6667, 0.99999999999999]
    tokens, _ = draw(logits, [0] * 5, u(*values), temperature=1.0)
    assert set(tokens) <= {3, 300, 301}
    assert tokens[0] == 3
    assert tokens[-1] == 301


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_logits_are_refused(bad: float):
    logits = torch.zeros(1, 10)
    logits[0, 4] = bad
    with pytest.raises(ModelError, match="not finite"):
        draw(logits, [0], u(0.5), temperature=1.0)
