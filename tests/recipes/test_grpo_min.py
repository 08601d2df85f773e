"""The one-file algorithm computes the same numbers as the library's packed path, and runs."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from onthejob.learn.advantage import AdvantageConfig, advantages
from onthejob.learn.batch import collate
from onthejob.learn.forward import score
from onthejob.learn.loss import LossConfig, policy_loss
from onthejob.types import Completion, Group, StopReason, Trajectory, Turn

# PEFT asks transformers for an attribute under its old name.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")


@pytest.fixture(scope="module")
def recipe(repository: Path) -> ModuleType:
    path = repository / "recipes" / "grpo_min.py"
    spec = importlib.util.spec_from_file_location("grpo_min", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["grpo_min"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def as_group(sampled, values: list[float], legal: list[bool]) -> Group:
    rows = []
    for index, (value, ok) in enumerate(zip(values, legal, strict=True)):
        keep = sampled.mask[index].bool()
        completion = Completion(
            text=sampled.texts[index],
            token_ids=tuple(sampled.tokens[index][keep].tolist()),
            logprobs=tuple(sampled.logprobs[index][keep].tolist()),
        )
        turn = Turn(prompt_ids=tuple(sampled.prompt.tolist()), completion=completion, policy_version="maker@0000", valid=ok)
        rows.append(Trajectory(task_id="t", actor="maker", turns=(turn,), rewards=(value,), stop=StopReason.BRANCH))
    return Group(key=f"g{len(sampled.prompt)}", actor="maker", trajectories=tuple(rows))


def test_it_stays_one_readable_file(repository: Path):
    text = (repository / "recipes" / "grpo_min.py").read_text()
    assert len(text.splitlines()) <= 260
    names = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in names if name and name.startswith("onthejob.learn")]


@pytest.mark.parametrize(
    ("values", "legal"),
    [
        ([1.0, 2.0, 4.0, 4.0], [True] * 4),
        ([1.0, 2.0, -9.0, 3.0], [True, True, False, True]),
        ([2.0, 2.0, -9.0, 2.0], [True, True, False, True]),
        ([5.0, -9.0, -9.0, -9.0], [True, False, False, False]),
        ([2.0, 2.0], [True, True]),
        ([0.0, 0.0], [False, False]),
        ([0.1 + 0.2, 0.3], [True, True]),
    ],
)
def test_advantages_equal_the_librarys(recipe: ModuleType, values: list[float], legal: list[bool]):
    turns = [Turn(prompt_ids=(1,), completion=Completion(text="x"), policy_version="v", valid=ok) for ok in legal]
    rows = tuple(
        Trajectory(task_id="t", actor="a", turns=(turn,), rewards=(value,), stop=StopReason.BRANCH)
        for turn, value in zip(turns, values, strict=True)
    )
    theirs = advantages(Group(key="k", actor="a", trajectories=rows), AdvantageConfig())
    mine = recipe.group_advantages(values, legal)
    assert (mine is None) == (theirs is None)
    if mine is not None and theirs is not None:
        np.testing.assert_allclose(mine.numpy(), theirs, atol=1e-6)


def test_loss_and_gradients_equal_the_librarys_packed_path(recipe: ModuleType):
    options = recipe.Options(taught=10, new_tokens=5)
    model, tokenizer = recipe.build(None, options)
    model.set_adapter("maker")
    adapter = {name: p for name, p in model.named_parameters() if ".maker." in name}
    groups, ours, theirs_advantages = [], [], []
    values, legal = [0.5, -1.0, 2.0, -9.0], [True, True, True, False]
    samples = []
    for index in range(2):
        _, observation = recipe.some_state("maker", "parity", index, seed=1)
        prompt = recipe.prompt_ids(tokenizer, observation)
        samples.append(recipe.sample(model, tokenizer, prompt, 4, new_tokens=5, seed=index))
    with torch.no_grad():  # off policy by enough that some ratios are clipped
        generator = torch.Generator().manual_seed(0)
        for parameter in adapter.values():
            parameter += 0.15 * torch.randn(parameter.shape, generator=generator)
    ratios = []
    for sampled in samples:
        weights = recipe.group_advantages(values, legal)
        logprobs = recipe.token_logprobs(model, sampled.prompt, sampled.tokens)
        ratios.append(((logprobs - sampled.logprobs).exp() * sampled.mask).flatten())
        ours.append(recipe.grpo_loss(logprobs, sampled.logprobs, weights, sampled.mask, clip=0.2))
        groups.append(as_group(sampled, values, legal))
        theirs_advantages.append(weights.double().numpy())
    assert (torch.cat(ratios) > 1.2).any()
    assert ((torch.cat(ratios) > 0) & (torch.cat(ratios) < 0.8)).any()
    loss = torch.stack(ours).mean()
    loss.backward()
    expected = {name: p.grad.clone() for name, p in adapter.items() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    total = 0.0
    for batch in collate(groups, theirs_advantages, max_tokens=4096):
        sampled = torch.from_numpy(batch.sampled)
        output = policy_loss(score(model, batch.row).logprobs, batch, LossConfig(loss="grpo"), old=sampled)
        output.loss.backward()
        total += output.loss.item()
    assert total == pytest.approx(loss.item(), abs=1e-5)
    assert expected
    for name, gradient in expected.items():
        found = adapter[name].grad
        assert found is not None
        torch.testing.assert_close(found, gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_the_documented_command_learns(recipe: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    (line,) = re.findall(r"^ *python recipes/(grpo_min\.py --tiny)", recipe.__doc__ or "", flags=re.MULTILINE)
    monkeypatch.setattr("sys.argv", shlex.split(line))
    recipe.main()
    printed = capsys.readouterr().out
    live = [int(number) for number in re.findall(r"live (\d+)/8", printed)]
    assert len(live) == 2 * recipe.Options().updates
    assert sum(live) > 0.5 * 8 * len(live)
    before, after = map(float, re.findall(r"held-out seeds: (\d+) before, (\d+) after", printed)[0])
    assert after > 1.1 * before


def test_a_model_that_was_never_taught_is_a_failure(recipe: ModuleType):
    options = recipe.Options(updates=1, groups=2, replies=2, worlds=1, turns=1, taught=0)
    with pytest.raises(SystemExit, match="Nothing was learned: in every group all replies were worth the same"):
        recipe.train(None, options, episodes=1)
