from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from onthejob.errors import ConfigError, ContractError, ModelError, TrainingError
from onthejob.learn import learner as module
from onthejob.learn import lora
from onthejob.learn.advantage import AdvantageConfig
from onthejob.learn.batch import collate
from onthejob.learn.forward import Layout, score
from onthejob.learn.learner import Learner, LearnerConfig
from onthejob.learn.lora import Snapshot, weight_delta
from onthejob.learn.loss import LossConfig
from onthejob.learn.optimize import MAX_GRAD_NORM, KlWatch
from onthejob.learn.trust_region import policy_kl, share_within, trajectory_changes

from .conftest import make_group, make_turn, random_groups, tiny_peft, update

ROLES = ("sales", "dev")
OWN = Path(__file__).with_name("own_functions.py")


def learner_for(roles=ROLES, *, dtype=torch.float32, moved=True, layout: Layout | None = None, **options) -> Learner:
    return Learner(tiny_peft(roles, dtype=dtype, moved=moved), roles, config=LearnerConfig(**options), layout=layout)


def digests(learner: Learner) -> dict[str, str]:
    return {
        name: hashlib.sha256(tensor.detach().cpu().float().numpy().tobytes()).hexdigest()
        for name, tensor in learner.model.state_dict().items()
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_moves_its_role_and_nothing_else(dtype):
    learner = learner_for(dtype=dtype, lr=1e-2)
    before, copy = digests(learner), Snapshot.take(learner.model, "sales")
    metrics = update(learner, "sales", random_groups(0))
    after = digests(learner)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {name for name in before if ".sales." in name}
    assert (metrics.delta_l2, metrics.delta_max) == weight_delta(copy, Snapshot.take(learner.model, "sales"))
    assert metrics.delta_l2 > 0
    update(learner, "dev", random_groups(1, actor="dev"))
    again = digests(learner)
    assert {name for name in after if after[name] != again[name]} == {name for name in before if ".dev." in name}


def test_learning_rate_zero_changes_nothing():
    learner = learner_for(lr=0.0)
    before = digests(learner)
    metrics = update(learner, "sales", random_groups(0))
    assert (metrics.delta_l2, metrics.delta_max, metrics.steps) == (0, 0, 1)
    assert digests(learner) == before


def test_roles_do_not_disturb_each_other():
    groups = {role: random_groups(index, actor=role) for index, role in enumerate(ROLES)}
    states = []
    for order in (ROLES, ROLES[::-1]):
        learner = learner_for(lr=1e-2)
        for _ in range(2):
            for role in order:
                update(learner, role, groups[role])
        states.append({role: lora.state(learner.model, role) for role in ROLES})
    for role in ROLES:
        assert weight_delta(states[0][role], states[1][role]) == (0, 0)


@pytest.mark.parametrize("loss", ["grpo", "dapo", "cispo", "dr_grpo", "gspo", "reinforce", "expected"])
def test_update_does_not_depend_on_the_size_of_rows(loss):
    config = LossConfig(loss=loss, max_completion_tokens=8 if loss == "dr_grpo" else None)
    groups = random_groups(2, groups=8, size=4)
    results = []
    # In 20 tokens not every group fits.
    for max_tokens in (10_000, 80, 20):
        learner = learner_for(("sales",), lr=1e-3, max_tokens=max_tokens, loss=config)
        metrics = update(learner, "sales", groups)
        # Adam divides by the gradient's own size, so weights are compared through the norm of an update of plain size.
        results.append((metrics, lora.state(learner.model, "sales")))
    assert [metrics.rows for metrics, _ in results] == sorted({metrics.rows for metrics, _ in results})
    for metrics, state in results[1:]:
        assert metrics.grad_norm == pytest.approx(results[0][0].grad_norm, rel=1e-5)
        assert metrics.loss == pytest.approx(results[0][0].loss, abs=1e-6)
        assert metrics.tokens == results[0][0].tokens
        assert weight_delta(state, results[0][1]).l2 < 0.02 * metrics.delta_l2


@pytest.mark.parametrize("loss", ["grpo", "expected"])
def test_a_trust_region_shortens_the_way_and_keeps_its_direction(loss):
    options = {"lr": 0.01, "epochs": 2, "loss": LossConfig(loss=loss)}
    groups = random_groups(0, groups=4)
    free, bound, wide = learner_for(**options), learner_for(**options, max_kl=0.05), learner_for(**options, max_kl=1e3)
    before = Snapshot.take(free.model, "sales")
    rows = collate(groups, [np.ones(len(group)) for group in groups], max_tokens=100_000)
    old = free.logprobs("sales", rows)
    metrics = [update(learner, "sales", groups) for learner in (free, bound, wide)]
    assert "step_kl" not in metrics[0].values
    assert metrics[1].values["step_kl"] <= 0.05 < metrics[2].values["step_kl"]
    assert metrics[1].values["step_share"] < metrics[2].values["step_share"] == 1.0
    after, shorter, same = (Snapshot.take(learner.model, "sales") for learner in (free, bound, wide))
    assert weight_delta(after, same) == (0, 0), "a bound that is not reached changes nothing"
    share = metrics[1].values["step_share"]
    for name, start in before.tensors.items():
        torch.testing.assert_close(shorter.tensors[name], start + share * (after.tensors[name] - start))
    assert metrics[1].delta_l2 == pytest.approx(share * metrics[0].delta_l2, rel=1e-3)
    measured = policy_kl(trajectory_changes(rows, old, bound.logprobs("sales", rows)))
    assert measured == pytest.approx(metrics[1].values["step_kl"], rel=1e-3)
    assert measured > 0.05 / 4, "no shorter than it has to be"


def test_policy_kl_is_the_divergence_from_the_later_policy():
    """Exact sums over all replies: the estimator's mean under the former policy is the divergence."""
    former, later = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    changes = np.log(later / former)
    exact = float(np.sum(former * np.log(former / later)))
    counts = (former * 10).astype(int)
    assert policy_kl(np.repeat(changes, counts).tolist()) == pytest.approx(exact)
    assert policy_kl([]) == policy_kl([0.0, 0.0]) == 0.0
    assert math.isfinite(policy_kl([1e9, -3.0]))


@pytest.mark.parametrize("broken", [math.nan, 1e6])
def test_a_way_on_which_nothing_is_near_enough_is_not_gone(broken):
    asked = []

    def kl_at(share: float) -> float:
        asked.append(share)
        return broken if share > 0 else 0.0

    assert share_within(0.1, kl_at) == (0.0, 0.0)
    assert asked[0] == 1.0
    assert asked[-1] == 0.0
    assert asked == sorted(asked, reverse=True)


def test_dead_groups_are_never_forwarded():
    same = make_turn([1, 2], [3])
    dead = [make_group((1, same), (1, same), key="equal"), make_group((0.1 + 0.2, same), (0.3, same), key="noise")]
    # Tokens outside of the vocabulary would raise as soon as they were forwarded.
    impossible = make_turn([99_999], [99_999])
    dead.append(make_group((2, impossible), (2, impossible), key="impossible"))
    learner = learner_for()
    before = digests(learner)
    metrics = update(learner, "sales", dead)
    assert metrics.skipped == "no live group"
    assert (metrics.rows, metrics.steps) == (0, 0)
    assert digests(learner) == before
    metrics = update(learner, "sales", [*dead, *random_groups(0, groups=1)])
    assert (metrics.trajectories, metrics.steps) == (4, 1)


def test_format_groups_are_trained_on():
    good, bad = make_turn([1, 2], [3]), make_turn([1, 2], [4], valid=False)
    metrics = update(learner_for(), "sales", [make_group((1, good), (1, good), (0, bad))])
    assert (metrics.trajectories, metrics.steps) == (3, 1)


def test_a_reply_with_positive_advantage_becomes_more_likely():
    learner = learner_for(("sales",), lr=5e-3, moved=False)
    better, worse = make_turn([1, 2, 3], [10, 11]), make_turn([1, 2, 3], [20, 21])
    group = make_group((1, better), (0, worse))
    (batch,) = _batches([group])
    first = learner.logprobs("sales", [batch])[0]
    for _ in range(10):
        update(learner, "sales", [group])
    last = learner.logprobs("sales", [batch])[0]
    assert (last - first)[batch.trajectory == 0].min() > 0.05
    assert (last - first)[batch.trajectory == 1].max() < -0.05


@pytest.mark.parametrize("lr", [3e-2, 0.0])
def test_a_bandit_is_learned_and_only_with_a_learning_rate(lr):
    """Four one-token replies pay 0, 0, 0 and 1; sampled from the policy itself, twelve updates of eight replies."""
    arms, prompt = [10, 20, 30, 40], (1, 2, 3)
    learner = learner_for(("sales",), lr=lr, moved=False)
    rng = np.random.default_rng(0)

    def share() -> np.ndarray:
        (batch,) = _batches([make_group(*((i, make_turn(prompt, [arm])) for i, arm in enumerate(arms)))])
        logprobs = learner.logprobs("sales", [batch])[0].double()
        return torch.softmax(logprobs, 0).numpy()

    start = share()[3]
    for _ in range(12):
        picks = rng.choice(4, size=8, p=share())
        update(learner, "sales", [make_group(*((float(k == 3), make_turn(prompt, [arms[k]])) for k in picks))])
    assert (share()[3] > 0.9) if lr else (share()[3] == start)


@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_non_finite_numbers_skip_the_update(broken):
    learner = learner_for(lr=1e-2)
    update(learner, "sales", random_groups(0))
    if broken == "loss":
        groups = [_with_logprobs(random_groups(1)[0], -1e4)]  # exp(1e4) is infinite
        learner = _with_loss(learner, LossConfig(loss=f"{OWN}:by_sampler"))
        update(learner, "sales", random_groups(0))
    else:
        groups = random_groups(1)
        parameter = next(iter(lora.parameters(learner.model, "sales").values()))
        handle = parameter.register_hook(lambda gradient: gradient * math.inf)
    before, state = digests(learner), learner.export_state("sales")
    metrics = update(learner, "sales", groups)
    assert metrics.skipped.startswith(f"non-finite {broken}")
    assert (metrics.steps, metrics.delta_l2) == (0, 0)
    assert digests(learner) == before
    after = learner.export_state("sales")
    for name, tensor in state.items():
        if name.startswith(("lora/", "adam/")):
            assert torch.equal(tensor, after[name]), name
    if broken == "gradient":
        handle.remove()
    assert update(learner, "sales", random_groups(1)).steps == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resumed_updates_equal_uninterrupted_ones_bit_for_bit(dtype):
    options = {"lr": 1e-2, "warmup": 3, "epochs": 2, "loss": LossConfig(beta=0.1)}
    groups = [random_groups(seed) for seed in range(6)]
    through = learner_for(dtype=dtype, **options)
    reference = Snapshot.take(through.model, "sales")
    reports = [update(through, "sales", some, reference=reference) for some in groups]

    first = learner_for(dtype=dtype, **options)
    for some in groups[:3]:
        update(first, "sales", some, reference=reference)
    saved = first.export_state("sales")
    update(first, "sales", groups[5], reference=reference)  # The copy must not follow.
    second = learner_for(dtype=dtype, moved=False, **options)
    second.import_state("sales", saved)
    resumed = [update(second, "sales", some, reference=reference) for some in groups[3:]]
    assert [_timeless(m) for m in resumed] == [_timeless(m) for m in reports[3:]]
    expected = through.export_state("sales")
    found = second.export_state("sales")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_broken_states_are_refused():
    learner = learner_for()
    update(learner, "sales", random_groups(0))
    state = learner.export_state("sales")
    with pytest.raises(TrainingError, match="incomplete"):
        learner.import_state("sales", {name: t for name, t in state.items() if name != "updates"})
    last = max(name for name in state if name.startswith("adam/")).split("/", 2)[2]
    partial = {name: t for name, t in state.items() if not name.startswith("adam/") or not name.endswith(last)}
    with pytest.raises(TrainingError, match="incomplete"):
        learner.import_state("sales", partial)
    update(learner, "sales", random_groups(1))
    now = digests(learner)
    with pytest.raises(TrainingError, match="incomplete"):
        learner.import_state("sales", partial)
    assert digests(learner) == now, "nothing was taken over"
    with pytest.raises(ModelError, match="names differ"):
        learner.import_state("sales", {name: t for name, t in state.items() if not name.startswith("lora/")})


def test_several_epochs_use_the_logprobs_from_before_the_first():
    groups = random_groups(0)
    metrics = update(learner_for(("sales",), lr=5e-2, epochs=4), "sales", groups)
    assert metrics.steps == 4
    assert metrics.values["ratio_max"] > 1.05
    assert metrics.values["clip_ratio/region_mean"] > 0
    single = update(learner_for(("sales",), lr=5e-2), "sales", groups)
    assert single.values["ratio_max"] == 1
    assert single.values["clip_ratio/region_mean"] == 0


def test_old_logprobs_take_no_pass_of_their_own(monkeypatch):
    passes = []

    def counted(*args, **options):
        passes.append(torch.is_grad_enabled())
        return score(*args, **options)

    monkeypatch.setattr(module, "score", counted)
    metrics = update(learner_for(("sales",), lr=5e-2, epochs=3, max_tokens=80), "sales", random_groups(4, groups=4, size=4))
    assert metrics.rows > 1
    assert (passes.count(True), passes.count(False)) == (3 * metrics.rows, 0)


@pytest.mark.parametrize("loss", ["grpo", "dapo", "cispo", "reinforce"])
def test_not_forwarding_what_has_no_advantage_changes_no_gradient(loss, monkeypatch):
    estimator = AdvantageConfig(estimator=f"{OWN}:only_better")
    groups, moved = random_groups(7, groups=3), []
    for skip in (True, False):
        with monkeypatch.context() as patch:
            if not skip:
                patch.setattr(module, "collate", lambda *args, skip_zero, **options: collate(*args, **options))
            learner = learner_for(("sales",), lr=1e-3, loss=LossConfig(loss=loss))
            moved.append((update(learner, "sales", groups, advantage=estimator), lora.state(learner.model, "sales")))
    (few, after_few), (everything, after_everything) = moved
    assert few.nodes < everything.nodes
    assert few.grad_norm == pytest.approx(everything.grad_norm, rel=1e-5)
    # A hundredth of the learning rate: where a gradient is near 0, Adam turns its rounding into part of a step.
    assert weight_delta(after_few, after_everything).max_abs < 1e-5
    assert (few.trajectories, few.tokens) == (everything.trajectories, everything.tokens)


def test_a_reply_without_advantage_still_has_its_part_of_what_is_expected():
    better, mean, worse = (make_turn([1, 2, 3], [token]) for token in (10, 20, 30))
    learner = learner_for(("sales",), lr=1e-2, loss=LossConfig(loss="expected"))
    scale = AdvantageConfig(scale="none")
    metrics = update(learner, "sales", [make_group((2, better), (1, mean), (0, worse))], advantage=scale)
    assert (metrics.trajectories, metrics.tokens, metrics.steps) == (3, 3, 1)
    assert metrics.values["ratio_max"] == 1
    assert metrics.nodes == 6  # the prompt's three, and one of each reply, that of the mean one too
    again = update(learner, "sales", [make_group((2, better), (1, mean), (0, worse))], advantage=scale)
    assert again.loss < metrics.loss


@pytest.mark.parametrize("loss", ["grpo", "reinforce", "expected"])
def test_the_entropy_term_makes_certain_or_uncertain_and_needs_all_replies(loss):
    turns = [make_turn([1, 2, 3], [token]) for token in (10, 20, 30)]
    group = make_group((1, turns[0]), (0.5, turns[1]), (0, turns[2]))
    entropies, nodes = {}, {}
    scale = AdvantageConfig(scale="none")
    for weight in (-10.0, 0.0, 10.0):
        config = LossConfig(loss=loss, entropy=weight)
        learner = learner_for(("sales",), lr=3e-3, loss=config)
        for _ in range(4):
            nodes[weight] = update(learner, "sales", [group], advantage=scale).nodes
        entropies[weight] = update(learner, "sales", [group], advantage=scale).entropy
    assert entropies[-10.0] < entropies[0.0] - 0.1
    assert entropies[10.0] > entropies[0.0] + 0.1
    if loss == "expected":  # which asks for every reply anyway
        assert nodes[10.0] == nodes[0.0]
    else:
        assert nodes[10.0] > nodes[0.0]


def test_reference_is_the_given_snapshot_and_not_the_base():
    learner = learner_for(lr=1e-2, loss=LossConfig(beta=0.1))
    own = Snapshot.take(learner.model, "sales")
    assert update(learner, "sales", random_groups(0), reference=own).kl == pytest.approx(0, abs=1e-9)
    assert update(learner, "sales", random_groups(0), reference=own).kl > 0
    base = Snapshot({name: torch.zeros_like(tensor) for name, tensor in own.tensors.items()})
    assert update(learner_for(loss=LossConfig(beta=0.1)), "sales", random_groups(0), reference=base).kl > 0.01
    with pytest.raises(ConfigError, match="reference"):
        update(learner, "sales", random_groups(0))


def test_a_strong_kl_term_holds_the_policy_near_the_reference():
    moved = []
    for beta in (0.0, 50.0):
        learner = learner_for(("sales",), lr=3e-3, loss=LossConfig(beta=beta))
        reference = Snapshot.take(learner.model, "sales")
        for _ in range(20):
            metrics = update(learner, "sales", random_groups(0), reference=reference)
        moved.append(metrics.kl)
    assert moved[1] < 0.2 * moved[0]


def test_warm_up_and_clipping():
    # A large weight of the entropy makes gradients far above the norm to which they are scaled down.
    learner = learner_for(lr=1e-2, warmup=4, loss=LossConfig(entropy=100.0))
    metrics = [update(learner, "sales", random_groups(0)) for _ in range(6)]
    assert [one.lr for one in metrics] == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])
    assert metrics[0].grad_norm > 2 * MAX_GRAD_NORM
    moments = learner.export_state("sales")
    norm = math.sqrt(sum(float(t.square().sum()) for n, t in moments.items() if n.startswith("adam/exp_avg/")))
    assert norm <= MAX_GRAD_NORM  # Moments saw clipped gradients.


def test_the_rate_falls_after_the_warmup_and_then_changes_nothing():
    learner = learner_for(("sales",), lr=1e-2, warmup=2, decay=4)
    metrics = [update(learner, "sales", random_groups(0)) for _ in range(7)]
    assert [one.lr for one in metrics] == pytest.approx([0.005, 0.01, 0.01, 0.0075, 0.005, 0.0025, 0.0])
    assert metrics[-1].delta_l2 == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_checkpointing_changes_nothing(dtype):
    deltas = []
    for on in (False, True):
        learner = learner_for(("sales",), dtype=dtype, lr=1e-3, gradient_checkpointing=on)
        metrics = update(learner, "sales", random_groups(0))
        deltas.append((metrics.grad_norm, lora.state(learner.model, "sales")))
    assert deltas[0][0] == pytest.approx(deltas[1][0], rel=1e-5)
    assert weight_delta(deltas[0][1], deltas[1][1]).max_abs < 1e-6


def test_layout_is_chosen_and_the_padded_one_trains_the_same():
    assert learner_for(("sales",)).layout is Layout.TREE
    tree, padded = (
        update(learner_for(("sales",), lr=1e-3, layout=layout), "sales", random_groups(0)) for layout in (None, Layout.PADDED)
    )
    assert tree.grad_norm == pytest.approx(padded.grad_norm, rel=1e-5)
    assert tree.nodes < padded.nodes


def test_kl_spikes():
    watch = KlWatch()
    assert not any(watch.spikes(0.01) for _ in range(5))
    assert not watch.spikes(0.9)
    assert watch.spikes(1.1)
    assert watch.spikes(math.nan)
    assert not watch.spikes(None)
    growing = KlWatch()
    assert not any(growing.spikes(kl) for kl in (0.0, 1e-4, 5e-4, 8e-4, 1.5e-3, 0.13)), "an agent that learns to stop"
    fresh = KlWatch()
    assert not fresh.spikes(1e6)  # No history, no median.
    for past in (10, 40, 200):  # It is measured before the update: what stays high however often it is refused is the policy's.
        staying = KlWatch(history=[0.02] * past)
        assert [staying.spikes(3.0) for _ in range(6)] == [True, True, True, False, False, False]
        assert KlWatch(history=staying.history).spikes(3.0) is False
    assert KlWatch(history=watch.history).spikes(1.1)


def test_a_kl_spike_is_reported_by_the_update():
    learner = learner_for(("sales",), lr=1e-4, moved=False)
    reference = Snapshot.take(learner.model, "sales")
    assert not any(update(learner, "sales", random_groups(s), reference=reference).kl_spike for s in range(6))
    with torch.no_grad():
        for name, parameter in lora.parameters(learner.model, "sales").items():
            if ".lora_B." in name:
                parameter.add_(0.2)
    assert update(learner, "sales", random_groups(9), reference=reference).kl_spike


def test_wrong_roles_are_errors():
    learner = learner_for()
    with pytest.raises(ContractError, match="does not train 'hr'"):
        update(learner, "hr", [])
    with pytest.raises(ContractError, match="belongs to 'dev'"):
        update(learner, "sales", random_groups(0, actor="dev"))
    with pytest.raises(ContractError, match="no adapter"):
        Learner(tiny_peft(), ["hr"], config=LearnerConfig())


def test_metrics_are_plain_numbers():
    learner = learner_for()
    metrics = update(learner, "sales", random_groups(0), reference=Snapshot.take(learner.model, "sales"))
    flat = metrics.as_dict()
    assert json.loads(json.dumps(flat)) == flat
    assert {"loss", "kl", "entropy", "delta_l2", "grad_norm", "clip_ratio/region_mean", "skipped"} <= flat.keys()
    expected = sum(len(t.turns[0].completion.token_ids) for g in random_groups(0) for t in g.trajectories)
    assert metrics.tokens == expected
    assert 0 < metrics.entropy < math.log(512)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": -1},
        {"lr": math.nan},
        {"warmup": -1},
        {"decay": -1},
        {"epochs": 0},
        {"max_tokens": 1},
    ],
    ids=str,
)
def test_bad_config(options):
    with pytest.raises(ConfigError):
        LearnerConfig(**options)


def test_mismatch_with_the_sampler_is_measured():
    learner = learner_for(("sales",))
    (group,) = random_groups(0, groups=1)
    (batch,) = _batches([group])
    with torch.no_grad():
        exact = score(learner.model, batch.row).logprobs
    gap = float((exact - torch.from_numpy(batch.sampled)).abs().mean())
    metrics = update(learner, "sales", [group])
    assert metrics.values["sampling/sampling_logp_difference/mean"] == pytest.approx(gap, rel=1e-5)


def _batches(groups):
    from onthejob.learn.batch import collate

    return collate(groups, [np.linspace(-1, 1, len(group)) for group in groups], max_tokens=10_000)


def _timeless(metrics):
    return dataclasses.replace(metrics, wall_s=0.0)


def _with_logprobs(group, value: float):
    members = []
    for t in group.trajectories:
        (turn,) = t.turns
        ids = turn.completion.token_ids
        members.append((-abs(t.ret) if t.ret else -1.0, make_turn(turn.prompt_ids, ids, logprobs=[value] * len(ids))))
    return make_group(*members)


def _with_loss(learner: Learner, loss: LossConfig) -> Learner:
    other = Learner(learner.model, learner.roles, config=dataclasses.replace(learner.config, loss=loss))
    return other
