"""Configuration files that we ship are accepted, every value in them arrives, and the ones for large models run on tiny ones."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from onthejob.cli import main
from onthejob.envs.office.env import OfficeConfig, OfficeEnvironment
from onthejob.envs.office.tasks import office_tasks
from onthejob.record import Run
from onthejob.testing.tiny import tiny_tokenizer
from onthejob.types import Split


def leaves(table: dict[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    for key, value in table.items():
        found |= leaves(value, (*path, key)) if isinstance(value, dict) else {(*path, key): value}
    return found


@pytest.fixture
def recipe(repository: Path, request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """`recipe(name)`: its file; skips where it names kept adapters and there are none."""

    def found(name: str) -> Path:
        file = repository / "recipes" / f"{name}.toml"
        if "adapters/" in file.read_text(encoding="utf-8"):
            request.getfixturevalue("kept_adapters")
        return file

    return found


@pytest.mark.parametrize("name", ["office", "office_qwen14b", "claw_qwen7b"])
def test_a_recipe_is_a_training_configuration(name: str, recipe: Callable[[str], Path], capsys: pytest.CaptureFixture[str]):
    file = recipe(name)
    assert main(["train", "--config", str(file), "--print-config", "--json"]) == 0
    settings = leaves(json.loads(capsys.readouterr().out))
    named = leaves(tomllib.loads(file.read_text(encoding="utf-8")))
    assert named
    if ("env", "reader") in named:
        # The folder is found from everywhere.
        named["env", "reader"] = str(Path(named["env", "reader"]).absolute())
    assert {path: settings[path] for path in named} == named


def test_prompts_and_replies_of_the_large_office_fit_where_they_must(repository: Path, smollm2_tokenizer):
    """Counted by a tokenizer of a third of Qwen's vocabulary, by which texts have more tokens."""
    config = tomllib.loads((repository / "recipes/office_qwen14b.toml").read_text(encoding="utf-8"))
    (task,) = office_tasks(Split.TRAIN, seeds=1, scenarios=["baseline"], days=1)
    env, around = OfficeEnvironment(OfficeConfig(profile="full")), set()
    observation = env.reset(task)
    while observation is not None:
        told = [{"role": message.role, "content": message.content} for message in observation.messages[:-1]]
        whole = smollm2_tokenizer.apply_chat_template(
            [*told, {"role": "user", "content": ""}], add_generation_prompt=True, tokenize=False
        )
        around.add(len(smollm2_tokenizer.encode(whole)))
        observation = env.step(observation.view["legal"][0]).observation
    assert max(around) > 200, "the system message and the template were counted"
    prompt = config["env"]["prompt_budget"] + max(around)
    assert prompt <= 3072
    assert prompt + config["train"]["sampling"]["max_new_tokens"] <= config["server"]["max_model_len"]
    replies = config["train"]["branch"]["group_size"] * config["train"]["sampling"]["max_new_tokens"]
    assert prompt + replies <= config["learner"]["max_tokens"], "one group in one row"


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A tiny random model of Qwen2.5's architecture, whose tokenizer knows the words of a workplace's prompts."""

    def make(words: str) -> Path:
        tokenizer = tiny_tokenizer(sorted({word for word in re.findall(r"[A-Za-z_]+", words) if len(word) > 2}))
        config = Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=32768,
            tie_word_embeddings=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
        folder = tmp_path_factory.mktemp("qwen")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


def prompts(env: OfficeEnvironment) -> str:
    (task,) = office_tasks(Split.TRAIN, seeds=1, scenarios=["baseline"], days=1)
    observation, texts = env.reset(task), []
    while observation is not None:
        texts += [message.content for message in observation.messages]
        observation = env.step(observation.view["legal"][0]).observation
    return " ".join(texts)


SMALL = {
    "office_qwen14b": (
        "--env.scenarios", "baseline", "--env.days", "2", "--env.seeds", "2", "--roles", "ceo", "dev", "--workers", "0",
        "--library-tasks", "5", "--scale-states", "4", "--branch.turns", "6", "--branch.worlds", "1",
        "--collect.episodes", "1", "--collect.segment-turns", "3", "--collect.partner-share", "0",
    ),
    "claw_qwen7b": (
        "--env.count", "100", "--env.growth", "0", "--env.protocol.max-turns", "2", "--collect.episodes", "2",
        "--workers", "2",
    ),
}  # fmt: skip
"""Fewer of everything but what the file is about: rank, group size, tokens, optimizer, checkpointing and loss stay."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "quantize"), [("office_qwen14b", "none"), ("office_qwen14b", "nf4"), ("claw_qwen7b", "none")])
def test_a_recipe_for_large_models_trains_a_tiny_one_of_the_architecture(
    name: str,
    quantize: str,
    qwen: Callable[[str], Path],
    recipe: Callable[[str], Path],
    repository: Path,
    runs_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    pytest.importorskip("bitsandbytes", reason="the quantized extra is not installed")
    file = recipe(name)
    words = prompts(OfficeEnvironment(OfficeConfig(profile="full"))) if name.startswith("office") else ""
    here = ("--model.device", "cpu", "--sampler", "in-process", "--model.quantize", quantize, "--sampling.max-new-tokens", "24")
    where = ["--model.name", str(qwen(words)), "--name", "tiny", "--json", "--quiet"]
    if "reader" in tomllib.loads(file.read_text(encoding="utf-8")).get("env", {}):
        where += ["--env.reader", str(repository / "adapters/claims")]
    capsys.readouterr()
    monkeypatch.chdir(runs_dir.parent)
    status = main(["train", "--config", str(file), *SMALL[name], *here, *where, "--iterations", "1"])
    said = capsys.readouterr()
    assert status == 0, said
    with Run.open(runs_dir / "tiny", readonly=True) as run:
        groups = list(run.read_groups(1))
        metrics = {(metric.scope, metric.name): metric.value for metric in run.read_metrics()}
    assert groups
    assert all(len(group.trajectories) == 4 for group in groups)
    assert all(value >= 0 for (_, kind), value in metrics.items() if kind == "grad_norm")
