from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from onthejob.errors import ConfigError, TrainingError
from onthejob.learn.advantage import AdvantageConfig, advantages
from onthejob.learn.batch import Batch, collate
from onthejob.learn.forward import score
from onthejob.learn.loss import LossConfig, policy_loss

from .conftest import gradients, make_group, make_turn, random_groups, tiny_peft

LIMIT = 8
ALL = [
    LossConfig(loss="grpo"),
    LossConfig(loss="dr_grpo", max_completion_tokens=LIMIT),
    LossConfig(loss="dapo", epsilon_high=0.28),
    LossConfig(loss="cispo", epsilon_high=5.0),
    LossConfig(loss="gspo"),
    LossConfig(loss="reinforce"),
    LossConfig(loss="expected"),
    LossConfig(loss="expected", entropy=-0.3),
    LossConfig(loss="dapo", entropy=0.2),
]


def name_of(config: LossConfig) -> str:
    return f"{config.loss} with entropy" if config.entropy else config.loss


def two_replies(sampled: tuple[float, float, float] = (-1.0, -2.0, -3.0)) -> Batch:
    """One group: a reply of two tokens with advantage 1, a reply of one token with advantage -2."""
    group = make_group((1, make_turn([1], [2, 3], logprobs=sampled[:2])), (0, make_turn([1], [4], logprobs=sampled[2:])))
    (batch,) = collate([group], [np.array([1.0, -2.0])], max_tokens=10)
    assert batch.trajectory.tolist() == [0, 0, 1]
    return batch


def value(config: LossConfig, logprobs: list[float], **others: list[float]) -> float:
    tensors = {name: torch.tensor(numbers) for name, numbers in others.items()}
    return policy_loss(torch.tensor(logprobs), two_replies(), config, **tensors).loss.item()


def test_normalisations_by_hand():
    # Ratios 1.1, 0.9 (advantage 1) and 1.0 (advantage -2), none clipped at 0.2.
    old = [-1.0, -1.0, -1.0]
    new = [-1 + math.log(1.1), -1 + math.log(0.9), -1.0]
    assert value(LossConfig(loss="grpo"), new, old=old) == pytest.approx((-(1.1 + 0.9) / 2 + 2) / 2)
    assert value(LossConfig(loss="dapo"), new, old=old) == pytest.approx((-1.1 - 0.9 + 2) / 3)
    assert value(LossConfig(loss="dr_grpo", max_completion_tokens=8), new, old=old) == pytest.approx((-1.1 - 0.9 + 2) / (2 * 8))
    # gspo: one ratio, exp((ln 1.1 + ln 0.9) / 2)
    assert value(LossConfig(loss="gspo"), new, old=old) == pytest.approx((-math.sqrt(0.99) + 2) / 2)
    # cispo: -ratio * advantage * logprob over all tokens
    expected = (-1.1 * new[0] - 0.9 * new[1] + 2 * new[2]) / 3
    assert value(LossConfig(loss="cispo", epsilon_high=5.0), new, old=old) == pytest.approx(expected, abs=1e-6)
    expected = (-new[0] - new[1] + 2 * new[2]) / 2
    assert value(LossConfig(loss="reinforce"), new, old=old) == pytest.approx(expected, abs=1e-6)


def test_the_expected_advantage_by_hand():
    # Replies of probability 0.3 * 0.5 and 0.05, advantages 1 and -2: three quarters and a quarter of what they have together.
    new = [math.log(0.3), math.log(0.5), math.log(0.05)]
    assert value(LossConfig(loss="expected"), new) == pytest.approx(-(0.75 * 1 - 0.25 * 2), abs=1e-6)
    # Against a reference, each token's divergence counts as in `reinforce`: summed over a trajectory, mean over trajectories.
    config, reference = LossConfig(loss="expected", beta=0.5), [number - 0.1 for number in new]
    kl = math.exp(-0.1) + 0.1 - 1
    assert value(config, new, reference=reference) == pytest.approx(-0.25 + 0.5 * 3 * kl / 2, abs=1e-6)


def test_what_is_expected_of_invalid_replies_by_hand():
    # A legal reply of advantage 0, and one of four samples that cannot be used: sampled with 0.02, now 0.01, advantage -2.
    legal, invalid = make_turn([1], [2], logprobs=[-1.0]), make_turn([1], [4], logprobs=[math.log(0.02)], valid=False)
    group = make_group((0, legal), (0, legal), (0, legal), (0, invalid))
    (batch,) = collate([group], [np.array([0.0, 0.0, 0.0, -2.0])], max_tokens=10)
    logprobs = torch.where(torch.from_numpy(batch.legal), -1.0, math.log(0.01)).requires_grad_()
    loss = policy_loss(logprobs, batch, LossConfig(loss="expected")).loss
    assert loss.item() == pytest.approx(0.5 * 2 / 4)
    loss.backward()
    torch.testing.assert_close(logprobs.grad, torch.where(torch.from_numpy(batch.legal), 0.0, 0.25))
    # A legal reply may have become as much likelier as it likes.
    rare = make_group((0, make_turn([1], [2], logprobs=[-500.0])), (1, legal), (0, invalid))
    (batch,) = collate([rare], [np.array([-1.0, 1.0, -2.0])], max_tokens=10)
    logprobs = torch.full((len(batch),), -1.0, requires_grad=True)
    policy_loss(logprobs, batch, LossConfig(loss="expected")).loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()
    # Where the sampler did not say how likely it was, it is taken for as likely as now.
    silent = make_group((0, legal), (0, make_turn([1], [4], logprobs=[math.nan], valid=False)))
    (batch,) = collate([silent], [np.array([0.0, -2.0])], max_tokens=10)
    assert policy_loss(torch.tensor([-1.0, -9.0]), batch, LossConfig(loss="expected")).loss.item() == pytest.approx(1.0)


def test_how_often_a_reply_was_sampled_does_not_change_what_is_expected():
    first, second, third = (make_turn([1], ids) for ids in ([2, 3], [4], [5]))
    other = make_group((0, make_turn([7], [2])), (0, make_turn([7], [3])), key="other")
    found = []
    for copies in (1, 3):
        group = make_group(*[(1, first)] * copies, (0, second), (-1, third))
        values = [np.array([2.0] * copies + [0.0, -1.0]), np.array([1.0, -1.0])]
        (batch,) = collate([group, other], values, max_tokens=100)
        pairs = torch.linspace(-2, -1, len(batch.row.pair_token)).requires_grad_()
        loss = policy_loss(pairs[torch.from_numpy(batch.row.term_pair)], batch, LossConfig(loss="expected")).loss
        loss.backward()
        assert pairs.grad is not None
        found.append((loss.item(), pairs.grad))
    assert found[1][0] == pytest.approx(found[0][0], abs=1e-6)
    torch.testing.assert_close(found[1][1], found[0][1])


def test_what_is_expected_is_the_exact_policy_gradient_when_all_replies_are_there():
    logits = torch.tensor([0.3, -0.2, 1.1, 0.0], requires_grad=True)
    pays = [1.0, 0.0, -1.0, 2.0]
    group = make_group(*((pay, make_turn([1], [token], logprobs=[math.nan])) for token, pay in enumerate(pays)))
    (batch,) = collate([group], [np.array(pays)], max_tokens=100)
    tokens = torch.from_numpy(batch.row.pair_token[batch.row.term_pair])
    policy_loss(torch.log_softmax(logits, 0)[tokens], batch, LossConfig(loss="expected")).loss.backward()
    found, logits.grad = logits.grad, None
    (-(torch.softmax(logits, 0) * torch.tensor(pays)).sum()).backward()
    torch.testing.assert_close(found, logits.grad)


def test_what_a_group_expects_needs_all_of_its_rows():
    group = make_group((1, make_turn([1, 2], [3, 4, 5])), (0, make_turn([1, 2], [6, 7, 8])))
    batches = collate([group], [np.array([1.0, -1.0])], max_tokens=5)
    assert [(batch.complete, batch.whole) for batch in batches] == [(True, False)] * 2
    with pytest.raises(TrainingError, match="all rows of a group"):
        policy_loss(torch.zeros(len(batches[0])), batches[0], LossConfig(loss="expected"))


def test_what_a_group_expects_is_the_same_in_one_row_and_with_turns_in_rows_of_their_own():
    good = (make_turn([1, 2], [3, 4]), make_turn([5, 6], [7, 8]))
    poor = (make_turn([1, 2], [9, 10, 11]), make_turn([5, 12], [7]))
    other = make_group((1, make_turn([20], [21])), (0, make_turn([20], [22])), key="other")
    groups, values = [make_group((1, good), (0, poor)), other], [np.array([1.0, -1.0]), np.array([0.5, -0.5])]
    found = []
    for max_tokens in (100, 5):
        batches = collate(groups, values, max_tokens=max_tokens)
        numbers = torch.linspace(-2, -1, 30).requires_grad_()  # Of each token.
        rows = [(batch, numbers[torch.from_numpy(batch.row.pair_token[batch.row.term_pair])]) for batch in batches]
        loss = torch.stack(
            [
                policy_loss(present, batch, LossConfig(loss="expected"), others=[row for row in rows if row[0] is not batch]).loss
                for batch, present in rows
            ]
        ).sum()
        loss.backward()
        found.append((loss.item(), numbers.grad))
        assert all(batch.complete for batch in batches) == (max_tokens == 100)
    assert found[1][0] == pytest.approx(found[0][0], abs=1e-6)
    torch.testing.assert_close(found[1][1], found[0][1])


def test_clipping_by_hand():
    old = [0.0, 0.0, 0.0]
    new = [math.log(1.5), math.log(0.5), math.log(0.5)]
    # advantage 1: min(1.5, 1.2) = 1.2 and min(0.5, 0.8) = 0.5; advantage -2: min(-1, -1.6) = -1.6
    assert value(LossConfig(loss="dapo"), new, old=old) == pytest.approx((-1.2 - 0.5 + 1.6) / 3)
    # clip-higher: 1.4
    assert value(LossConfig(loss="dapo", epsilon_high=0.4), new, old=old) == pytest.approx((-1.4 - 0.5 + 1.6) / 3)
    # a ratio of 7 with a negative advantage is not capped
    huge = [0.0, 0.0, math.log(7)]
    assert value(LossConfig(loss="dapo"), huge, old=old) == pytest.approx((-1 - 1 + 14) / 3)


def test_clip_fractions_are_counted():
    logprobs = torch.tensor([math.log(1.5), math.log(0.5), math.log(0.5)])
    sums = policy_loss(logprobs, two_replies(), LossConfig(), old=torch.zeros(3)).sums
    assert (sums["clip_ratio/high_mean"], sums["clip_ratio/low_mean"], sums["clip_ratio/region_mean"]) == (1, 1, 2)
    capped = policy_loss(logprobs, two_replies(), LossConfig(loss="cispo", epsilon_high=1.2), old=torch.zeros(3))
    assert capped.sums["cispo_clip_ratio"] == 1


def test_the_kl_estimate_by_hand():
    new, reference = [-1.0, -2.0, -3.0], [-1.5, -2.0, -2.5]
    kl = (math.exp(-0.5) + 0.5 - 1 + math.exp(0.5) - 0.5 - 1) / 3
    without = value(LossConfig(loss="dapo"), new)
    assert value(LossConfig(loss="dapo", beta=0.5), new, reference=reference) == pytest.approx(without + 0.5 * kl, abs=1e-6)
    measured = policy_loss(torch.tensor(new), two_replies(), LossConfig(), reference=torch.tensor(reference))
    assert measured.sums["kl"] / 3 == pytest.approx(kl, abs=1e-6)
    assert measured.loss.item() == pytest.approx(value(LossConfig(), new))  # Measured, not trained on.


def test_the_kl_estimate_is_unbiased_and_never_negative():
    generator = torch.Generator().manual_seed(0)
    p, q = torch.softmax(torch.randn(2, 7, generator=generator), dim=-1)
    exact = (p * (p / q).log()).sum()
    gap = (q / p).log()
    k3 = gap.exp() - gap - 1
    torch.testing.assert_close((p * k3).sum(), exact)
    assert (k3 >= 0).all()


def test_corrections_by_hand():
    # Trainer minus sampler: ln 4, ln 0.5 and 0; per trajectory ln 2 and 0. With ln 8 first a trajectory has ln 4.
    logprobs = torch.full((3,), -1.0)
    for kind, first, (a, b, c) in (
        ("token_truncate", 4, (3, 0.5, 1)),
        ("sequence_mask", 4, (2, 2, 1)),
        ("sequence_mask", 8, (0, 0, 1)),
    ):
        batch = two_replies((-1 - math.log(first), -1 - math.log(0.5), -1.0))
        output = policy_loss(logprobs, batch, LossConfig(loss="dapo", correction=kind))
        assert output.loss.item() == pytest.approx((-a - b + 2 * c) / 3, abs=1e-6), kind
        assert output.sums["sampling/importance_sampling_ratio/mean"] == pytest.approx(a + b + c, abs=1e-5)
        difference = output.sums["sampling/sampling_logp_difference/mean"]
        assert difference == pytest.approx(math.log(first) + math.log(2), abs=1e-5)


def test_a_missing_sampler_logprob_is_no_correction():
    batch = two_replies((math.nan, -1.0, -1.0))
    config = LossConfig(loss="dapo", correction="token_truncate")
    assert policy_loss(torch.full((3,), -1.0), batch, config).loss.item() == pytest.approx((-1 - 1 + 2) / 3)


@pytest.mark.parametrize("config", [config for config in ALL if config.loss != "expected"], ids=name_of)
def test_on_policy_gradient_is_reinforce(config):
    """On policy all ratios are 1, nothing is clipped, and the gradient is advantage times grad log-probability."""
    logprobs = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    entropy = torch.tensor([0.5, 1.0, 2.0], requires_grad=True)
    output = policy_loss(logprobs, two_replies(), config, reference=logprobs.detach(), entropy=entropy)
    output.loss.backward()
    weights = {
        "grpo": (0.25, 0.25, 0.5),
        "gspo": (0.25, 0.25, 0.5),
        "dr_grpo": (1 / 16, 1 / 16, 1 / 16),
        "reinforce": (0.5, 0.5, 0.5),
    }.get(config.loss, (1 / 3, 1 / 3, 1 / 3))
    expected = torch.tensor([-weights[0], -weights[1], 2 * weights[2]])
    torch.testing.assert_close(logprobs.grad, expected)
    if config.entropy:  # Weighed as the rewards are, and more of it lowers the loss where it is a bonus.
        torch.testing.assert_close(entropy.grad, -config.entropy * torch.tensor(weights))
    else:
        assert entropy.grad is None
    assert output.sums["ratio"] == 3
    assert output.maxima["ratio_max"] == 1
    assert output.sums["kl"] == 0
    assert sum(count for name, count in output.sums.items() if "clip" in name) == 0


@pytest.mark.parametrize("config", ALL, ids=name_of)
def test_gradients_do_not_depend_on_how_the_update_is_cut(config):
    model = tiny_peft()
    groups = random_groups(3, groups=8, size=4)
    values = [advantages(group, AdvantageConfig()) for group in groups]
    found = {}
    for max_tokens, share in itertools.product((10_000, 90, 40), (True, False)):
        batches = collate(groups, values, max_tokens=max_tokens, share=share)
        present = [(batch, score(model, batch.row).logprobs.detach()) for batch in batches]
        total = 0.0
        for batch in batches:
            scores = score(model, batch.row)
            shifted = scores.logprobs
            old = (shifted - 0.1 * torch.sin(shifted)).detach()
            others = [(other, numbers) for other, numbers in present if other is not batch] if config.by_group else []
            output = policy_loss(shifted, batch, config, old=old, entropy=scores.entropy, others=others)
            output.loss.backward()
            total += output.loss.item()
        found[max_tokens, share] = (len(batches), total, gradients(model))
    rows, loss, expected = found.pop((10_000, True))
    assert rows == 1
    assert len({count for count, _, _ in found.values()}) >= 3
    for _, other, grads in found.values():
        assert other == pytest.approx(loss, abs=1e-6)
        for name, gradient in expected.items():
            torch.testing.assert_close(grads[name], gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))


def test_gradients_do_not_depend_on_the_order_of_groups_and_replies():
    model = tiny_peft()
    groups = random_groups(4, groups=3, size=4)
    values = [advantages(group, AdvantageConfig()) for group in groups]
    flipped = [make_group(*((t.ret, t.turns) for t in reversed(g.trajectories)), key=g.key) for g in reversed(groups)]
    other_values = [v[::-1].copy() for v in reversed(values)]
    results = []
    for some, advantage in ((groups, values), (flipped, other_values)):
        (batch,) = collate(some, advantage, max_tokens=10_000)
        policy_loss(score(model, batch.row).logprobs, batch, LossConfig()).loss.backward()
        results.append(gradients(model))
    for name, gradient in results[0].items():
        torch.testing.assert_close(results[1][name], gradient, rtol=1e-5, atol=1e-6 * float(gradient.abs().max()))


def test_a_trajectory_of_many_contexts_weighs_as_one():
    """Two replies of three tokens: in one context, or each token in a context of its own."""
    batch = collate(
        [make_group((1, [make_turn([9 + i], [2]) for i in range(3)]), (0, make_turn([1], [2, 3, 4])))],
        [np.array([1.0, -1.0])],
        max_tokens=100,
    )[0]
    logprobs = torch.full((6,), -1.0, requires_grad=True)
    policy_loss(logprobs, batch, LossConfig()).loss.backward()
    assert logprobs.grad is not None
    for index, sign in ((0, -1), (1, 1)):
        assert logprobs.grad[batch.trajectory == index].sum().item() == pytest.approx(sign * 0.5)


def test_trajectory_level_losses_need_whole_trajectories():
    group = make_group((1, [make_turn([1, 2], [3]), make_turn([8, 9], [3])]), (0, make_turn([1, 2], [5])))
    batches = collate([group], [np.array([1.0, -1.0])], max_tokens=4)
    assert not batches[0].complete
    logprobs = torch.zeros(len(batches[0]))
    policy_loss(logprobs, batches[0], LossConfig())
    for config in (LossConfig(loss="gspo"), LossConfig(correction="sequence_mask")):
        with pytest.raises(TrainingError, match="Raise max_tokens"):
            policy_loss(logprobs, batches[0], config)


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "ppo"},
        {"loss": "bnpo"},
        {"correction": "tis"},
        {"correction": "token_mask"},
        {"epsilon_low": 1.0},
        {"epsilon_high": 0.0},
        {"loss": "expected", "correction": "sequence_mask"},
        {"entropy": math.inf},
        {"beta": -1.0},
        {"beta": math.nan},
        {"max_completion_tokens": 8},
        {"loss": "dr_grpo", "max_completion_tokens": 0},
    ],
    ids=str,
)
def test_unknown_and_ineffective_options_are_errors(options):
    with pytest.raises(ConfigError):
        LossConfig(**options)


def test_dr_grpo_without_its_constant_is_an_error():
    with pytest.raises(ConfigError, match="constant denominator"):
        policy_loss(torch.zeros(3), two_replies(), LossConfig(loss="dr_grpo"))


def test_the_entropy_term_without_entropies_is_an_error():
    with pytest.raises(ConfigError, match="needs the terms' entropy"):
        policy_loss(torch.zeros(3), two_replies(), LossConfig(entropy=-0.1))


def test_kl_without_a_reference_is_an_error():
    with pytest.raises(ConfigError, match="reference"):
        policy_loss(torch.zeros(3), two_replies(), LossConfig(beta=0.1))
