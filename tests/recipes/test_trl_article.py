"""The article's settings in TRL: its numbers, its rule for the steps, what is collected, and that the tiny command learns."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shlex
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from checks.servers.chat_server import Chat
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.tasks import office_tasks
from onthejob.models.transport import Transport
from onthejob.office_players import scripted
from onthejob.testing import tiny_tokenizer
from onthejob.types import Context, Sampling, Split

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL, PEFT and transformers warn about each other


@pytest.fixture
def recipe(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(repository / "recipes")
    return importlib.import_module("trl_article")


def test_the_numbers_are_the_articles(recipe: ModuleType, tmp_path: Path) -> None:
    """GRPOConfig of the article, line by line; a large model gets it as it is."""
    article = {
        "num_generations": 4,
        "max_completion_length": 1024,
        "temperature": 0.9,
        "learning_rate": 2e-5,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 4,
        "num_train_epochs": 3,
        "bf16": True,
        "optim": "adamw_8bit",
    }
    assert dict(recipe.ARTICLE) == article
    found = recipe.settings(7, argparse.Namespace(tiny=False, out=tmp_path, seed=0))
    assert {name: found[name] for name in article} == article
    assert found["max_steps"] == 21
    assert (recipe.LORA.r, recipe.LORA.lora_alpha) == (32, 32)
    assert recipe.LORA.target_modules == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize(("rows", "steps"), [(1, 3), (16, 48), (17, 50), (420, 50)])
def test_steps_are_three_epochs_and_at_most_fifty(recipe: ModuleType, rows: int, steps: int) -> None:
    assert recipe.steps(rows) == steps


def test_prompts_are_what_the_role_was_asked_in_an_episode(recipe: ModuleType) -> None:
    args = argparse.Namespace(tiny=True, episodes=1, scenarios=["churn"], days=2)
    rows = recipe.collected("hr", args, tiny_tokenizer())
    (task,) = office_tasks(Split.TRAIN, seeds=1, scenarios=["churn"], days=2)
    env, asked = OfficeEnvironment(), []
    request = env.reset(task)
    while request is not None:
        if request.actor == "hr":
            asked.append([{"role": message.role, "content": message.content} for message in request.messages])
        (completion,) = scripted("expert").act([Context(observation=request, seed=task.seed)], Sampling())
        request = env.step(completion.text).observation
    assert [row["prompt"] for row in rows] == asked
    assert len(asked) == 4
    assert {row["role"] for row in rows} == {"hr"}


def test_prompts_of_a_large_model_are_full_and_held_to_their_budget(recipe: ModuleType) -> None:
    tokenizer = tiny_tokenizer()
    args = argparse.Namespace(tiny=False, episodes=1, scenarios=["viral"], days=6)
    rows = recipe.collected("sales", args, tokenizer)
    texts = [row["prompt"][-1]["content"] for row in rows]
    assert any("Memories:" in text for text in texts)
    assert max(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts) <= recipe.BUDGET


def test_the_reward_has_a_name_and_its_judge(recipe: ModuleType) -> None:
    paid = recipe.reward_of(lambda pairs: [0.5] * len(pairs))
    reply = json.dumps({"action_type": "TEAM_SYNC"})
    assert paid.__name__ == "article"
    assert paid(prompts=["p"], completions=[reply], role=["hr"], seed=[1]) == pytest.approx([0.9 + 0.5])


def test_a_model_judges_by_the_offices_rubric(recipe: ModuleType) -> None:
    def opinion(body: dict[str, Any]) -> str:
        asked = body["messages"][1]["content"]
        return json.dumps({"score": 4 if '"action_type":"RUN_DEMO"' in asked else 1})

    with closing(Chat()) as chat, closing(Transport()) as transport:
        chat.reply = opinion
        replies = [("Leads: Acme", '{"action_type":"RUN_DEMO"}'), ("Leads: Acme", "no")]
        assert recipe.opinions(f"{chat.name}#judge", transport)(replies) == pytest.approx([0.75, 0.0])
    assert "employee of a small company" in chat.seen[-1]["messages"][0]["content"]


@pytest.mark.slow
def test_the_tiny_command_of_the_page_learns(
    recipe: ModuleType, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (repository / "docs" / "compat.md").read_text(encoding="utf-8")
    commands = re.findall(r"^python recipes/trl_article\.py (.*)$", page, flags=re.MULTILINE)
    assert [line for line in commands if line in str(recipe.__doc__)] == commands
    assert recipe.main([*shlex.split(commands[0]), "--out", str(tmp_path)]) == 0
    means = [float(value) for value in re.findall(r"^update \d+  reward (\S+)", capsys.readouterr().out, flags=re.MULTILINE)]
    assert len(means) == 50
    assert sum(means[-10:]) > sum(means[:10])
    assert (tmp_path / "adapter_model.safetensors").is_file()


def test_it_stays_short(repository: Path) -> None:
    assert len((repository / "recipes" / "trl_article.py").read_text(encoding="utf-8").splitlines()) <= 180
