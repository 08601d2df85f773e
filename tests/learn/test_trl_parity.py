"""TRL 1.16 as the oracle: its `_compute_loss` on left-padded rows against ours on one packed row, loss and LoRA gradients."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Importing TRL warns about its own optional dependencies.
    import trl
    from trl import GRPOConfig, GRPOTrainer

from onthejob.learn.advantage import AdvantageConfig, advantages
from onthejob.learn.batch import Batch, collate
from onthejob.learn.forward import score
from onthejob.learn.loss import CORRECTION_MAX, LossConfig, policy_loss
from onthejob.types import Completion, Group, StopReason, Trajectory, Turn

from .conftest import gradients, tiny_base, tiny_peft
from .trl_losses import BETA, DELTA

TEMPERATURE = 0.7
LIMIT = 16
MAX_TOKENS = 4096
OWN = Path(__file__).with_name("trl_losses.py")


@pytest.fixture(scope="module")
def model():
    # TRL's reference and forward patching expect the adapter to be called `default`.
    return tiny_peft(("default",))


@pytest.fixture(scope="module")
def trainer(model, tmp_path_factory):
    assert trl.__version__ == "1.16.0"
    words = {f"w{i}": i for i in range(512)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), pad_token="w0", eos_token="w2"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Constructing the oracle is not what is tested.
        config = GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("trl")),
            use_cpu=True,
            bf16=False,
            report_to="none",
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=LIMIT,
            temperature=TEMPERATURE,
            gradient_checkpointing=False,
            disable_tqdm=True,
        )
        made = GRPOTrainer(
            # A model of its own: TRL wraps its forward for good. Weights are copied below.
            model=tiny_peft(("default",)),
            args=config,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            train_dataset=Dataset.from_list([{"prompt": "w3 w4"}] * 4),
            processing_class=tokenizer,
        )
    made.current_gradient_accumulation_steps = 1
    args: Any = made.args
    args.steps_per_generation = 1
    return made


def episode(seed: int, *, observed: bool = True, lower: float = 0.0) -> tuple[list[Group], list[np.ndarray]]:
    """Two groups with prompts of 5 to 12 tokens; if `observed`, two replies of each are two turns, an observation in between.

    The sampler's log-probabilities are `lower` than usual, in nats.
    """
    rng = np.random.default_rng(seed)

    def draw(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.integers(3, 512, int(rng.integers(low, high + 1))).tolist())

    def turn(prompt: tuple[int, ...], reply: tuple[int, ...]) -> Turn:
        logprobs = tuple((-5.5 - lower - 1.5 * rng.random(len(reply))).tolist())
        completion = Completion(text="", token_ids=reply, logprobs=logprobs)
        return Turn(prompt_ids=prompt, completion=completion, policy_version="t", temperature=TEMPERATURE)

    groups = []
    for index in range(2):
        prompt, trajectories = draw(5, 12), []
        for member in range(4):
            turns = [turn(prompt, draw(1, 5))]
            if observed and member < 2:
                context = turns[0].prompt_ids + turns[0].completion.token_ids + draw(1, 4)
                turns.append(turn(context, draw(1, 4)))
            rewards = (float(rng.normal()), *[0.0] * (len(turns) - 1))
            trajectories.append(
                Trajectory(task_id="t", actor="default", turns=tuple(turns), rewards=rewards, stop=StopReason.BRANCH)
            )
        groups.append(Group(key=f"g{index}", actor="default", trajectories=tuple(trajectories)))
    values = [advantages(group, AdvantageConfig()) for group in groups]
    return groups, [value for value in values if value is not None]


def padded(groups: list[Group], values: list[np.ndarray], extra: Mapping[str, list[np.ndarray]]) -> dict[str, Any]:
    """TRL's inputs: left-padded prompts, right-padded completions, `tool_mask` 0 on observations."""
    rows = []
    for group in groups:
        for trajectory in group.trajectories:
            first, last = trajectory.turns[0], trajectory.turns[-1]
            completion = (last.prompt_ids + last.completion.token_ids)[len(first.prompt_ids) :]
            trained = np.zeros(len(completion), dtype=np.int64)
            for turn in trajectory.turns:
                start = len(turn.prompt_ids) - len(first.prompt_ids)
                trained[start : start + len(turn.completion.token_ids)] = 1
            rows.append((first.prompt_ids, completion, trained))
    width = max(len(prompt) for prompt, _, _ in rows)
    length = max(len(completion) for _, completion, _ in rows)
    inputs = {name: torch.zeros(len(rows), width, dtype=torch.long) for name in ("prompt_ids", "prompt_mask")}
    inputs |= {
        name: torch.zeros(len(rows), length, dtype=torch.long) for name in ("completion_ids", "completion_mask", "tool_mask")
    }
    inputs |= {name: torch.zeros(len(rows), length) for name in extra}
    for i, (prompt, completion, trained) in enumerate(rows):
        inputs["prompt_ids"][i, width - len(prompt) :] = torch.tensor(prompt)
        inputs["prompt_mask"][i, width - len(prompt) :] = 1
        inputs["completion_ids"][i, : len(completion)] = torch.tensor(completion)
        inputs["completion_mask"][i, : len(completion)] = 1
        inputs["tool_mask"][i, : len(completion)] = torch.from_numpy(trained)
        for name, terms in extra.items():
            inputs[name][i, np.flatnonzero(trained)] = torch.from_numpy(terms[i])
    inputs["advantages"] = torch.tensor(np.concatenate(values), dtype=torch.float32)
    inputs["num_items_in_batch"] = inputs["tool_mask"].sum()
    return inputs


def by_trajectory(batch: Batch, terms: np.ndarray) -> list[np.ndarray]:
    """Terms of a packed row as TRL orders them: trajectory by trajectory, turn by turn."""
    order = np.lexsort((batch.row.term_offset, batch.row.term_source))
    return [terms[order][batch.trajectory[order] == i] for i in range(batch.trajectories)]


def settings(
    trainer: GRPOTrainer,
    config: LossConfig,
    *,
    loss: str = "",
    level: str = "token",
    beta: float | None = None,
    delta: float | None = None,
    kl_ratio: bool = False,
) -> None:
    """TRL's settings: those of `config`, and those that ours has no option for."""
    trainer.loss_type = loss or ("grpo" if config.loss == "gspo" or config.own else config.loss)
    trainer.importance_sampling_level = "sequence" if config.loss == "gspo" else level
    trainer.beta = config.beta if beta is None else beta
    trainer.epsilon_low, trainer.epsilon_high = config.epsilon_low, config.epsilon_high
    args: Any = trainer.args
    args.delta = delta
    args.use_bias_correction_kl = kl_ratio
    trainer.max_completion_length = LIMIT
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = config.corrects


def correction_ratio(config: LossConfig, old: torch.Tensor, sampled: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """TRL computes it while generating (grpo_trainer.py 2660-2707); its formulas, written out for padded rows."""
    gap = (old - sampled) * mask
    if config.correction == "token_truncate":
        return gap.exp().clamp(max=CORRECTION_MAX)
    ratio = gap.sum(-1, keepdim=True).exp()
    return ratio.masked_fill(ratio > CORRECTION_MAX, 0.0)


def compare(
    trainer: GRPOTrainer,
    model,
    config: LossConfig,
    *,
    seed: int,
    off_policy: bool = True,
    observed: bool = True,
    **theirs_alone: Any,
) -> None:
    # So that some weights of a correction lie above its bound, and others do not.
    groups, values = episode(seed, observed=observed, lower=1.2 if config.corrects else 0.0)
    (batch,) = collate(groups, values, max_tokens=MAX_TOKENS)
    noise = np.random.default_rng(seed + 100)
    with torch.no_grad():
        present = score(model, batch.row).logprobs.numpy()
    old = (present + 0.4 * noise.normal(size=len(batch))).astype(np.float32) if off_policy else None
    with_kl = config.beta or theirs_alone.get("beta")
    reference = (present + 0.3 * noise.normal(size=len(batch))).astype(np.float32) if with_kl else None
    extra = {"sampling_per_token_logps": batch.sampled}
    extra |= {} if old is None else {"old_per_token_logps": old}
    extra |= {} if reference is None else {"ref_per_token_logps": reference}
    inputs = padded(groups, values, {name: by_trajectory(batch, terms) for name, terms in extra.items()})
    if config.corrects:
        ratio = correction_ratio(config, inputs["old_per_token_logps"], inputs["sampling_per_token_logps"], inputs["tool_mask"])
        bounded = (ratio == CORRECTION_MAX) | (ratio == 0)
        assert bounded.any()
        assert not bounded.all()
        inputs["importance_sampling_ratio"] = ratio
    settings(trainer, config, **theirs_alone)
    trainer.model.train()
    theirs = trainer._compute_loss(trainer.model, inputs)
    theirs.backward()
    expected = gradients(trainer.model, "default")

    ours = policy_loss(
        score(model, batch.row).logprobs,
        batch,
        config,
        old=None if old is None else torch.from_numpy(old),
        reference=None if reference is None else torch.from_numpy(reference),
    )
    ours.loss.backward()
    found = gradients(model, "default")
    assert abs(ours.loss.item() - theirs.item()) <= 1e-5
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    assert largest > 1e-4
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-5 * max(1.0, largest))


def options(loss: str) -> dict[str, Any]:
    if loss == "cispo":
        return {"epsilon_high": 1.5}
    return {"max_completion_tokens": LIMIT} if loss == "dr_grpo" else {}


VARIANTS = [
    LossConfig(loss=loss, beta=beta, **options(loss))
    for loss, beta in itertools.product(("grpo", "dapo", "dr_grpo", "cispo"), (0.0, 0.04))
]


@pytest.mark.parametrize("observed", [True, False], ids=["masked", "unmasked"])
@pytest.mark.parametrize("config", VARIANTS, ids=lambda c: f"{c.loss}-{c.beta}")
def test_loss_and_gradients_equal_trl(trainer, model, config, observed):
    compare(trainer, model, config, seed=VARIANTS.index(config), observed=observed)


@pytest.mark.parametrize(
    "config",
    [
        LossConfig(loss="gspo", epsilon_low=3e-4, epsilon_high=4e-4),
        LossConfig(loss="gspo", epsilon_low=3e-4, epsilon_high=4e-4, beta=0.04),
        LossConfig(loss="grpo", epsilon_low=0.1, epsilon_high=0.4),
        LossConfig(loss="dapo", epsilon_high=0.28, beta=0.1),
        LossConfig(correction="token_truncate"),
        LossConfig(loss="dapo", correction="sequence_mask", beta=0.04),
    ],
    ids=str,
)
def test_clipping_and_corrections_equal_trl(trainer, model, config):
    compare(trainer, model, config, seed=50)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("two_sided", {"delta": DELTA}),
        ("by_sequence", {"level": "sequence"}),
        ("corrected_kl", {"beta": BETA, "kl_ratio": True}),
    ],
)
def test_what_is_no_option_here_is_a_loss_of_ones_own(trainer, model, name, theirs):
    compare(trainer, model, LossConfig(loss=f"{OWN}:{name}"), seed=60, **theirs)


def test_on_one_device_bnpo_is_dapo(trainer, model):
    compare(trainer, model, LossConfig(loss="dapo"), seed=65, loss="bnpo")


@pytest.mark.parametrize("loss", ["grpo", "dapo", "dr_grpo", "cispo"])
def test_on_policy_without_old_logprobs_equals_trl(trainer, model, loss):
    compare(trainer, model, LossConfig(loss=loss, **options(loss)), seed=70, off_policy=False)


def test_the_two_models_are_equal_at_the_start(trainer, model):
    for (name, ours), theirs in zip(model.state_dict().items(), trainer.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
    assert torch.equal(tiny_base().lm_head.weight, tiny_base().lm_head.weight)
