"""`onthejob collect` with the full profile: long prompts, reasoning before the message, and files that `sft` reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onthejob.commands.collect_office import demonstrations, with_reasoning
from onthejob.commands.sft_data import read_demonstrations
from onthejob.envs.office.actions import Action, parse
from onthejob.envs.office.env import SEATS
from onthejob.envs.office.prompt import system_text
from onthejob.envs.office.roles import Role
from onthejob.envs.office.tasks import office_tasks
from onthejob.office import Office
from onthejob.types import Split

FULL = ("--env.profile", "full", "--env.scenarios", "viral", "--env.seeds", "1", "--env.days", "6")


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for role in SEATS for line in (folder / f"{role}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def collected(call, tmp_path: Path) -> Path:
    call("collect", "--policy", "expert-explained", *FULL, "--random-share", "0", "--out", tmp_path / "full")
    return tmp_path / "full"


def test_full_prompts_are_answered_with_reasoning(collected: Path) -> None:
    found = rows(collected)
    assert len(found) == 6 * 12
    assert any("Memories:" in row["messages"][-1]["content"] for row in found)
    assert any("Team:" in row["messages"][-1]["content"] for row in found)
    for row in found:
        assert row["messages"][0]["content"] == system_text(row["role"], "full")
        keys = list(json.loads(row["reply"]))
        assert keys[:3] == ["action_type", "target", "reasoning"]
        assert keys[3:] in ([], ["message"])
        assert row["marked"] == "expert"
    assert sum("message" in json.loads(row["reply"]) for row in found) > 6
    assert len(read_demonstrations(collected / "dev.jsonl", 0)) == 12


def test_companies_are_those_of_the_expert(call, collected: Path, tmp_path: Path) -> None:
    """Reasons and messages are on top: every reply does what the expert's did, and earned the same."""
    call("collect", "--policy", "expert", *FULL, "--random-share", "0", "--out", tmp_path / "plain")
    for said, plain in zip(rows(collected), rows(tmp_path / "plain"), strict=True):
        one, other = (parse(row["reply"], Role(row["role"])) for row in (said, plain))
        assert isinstance(one, Action)
        assert isinstance(other, Action)
        assert (one.action_type, one.target, one.parameters) == (other.action_type, other.target, other.parameters)
        assert said["reward"] == plain["reward"]
        assert "reasoning" not in plain["reply"]


def test_prompts_are_held_to_the_budget_of_training(smollm2_tokenizer, smollm2_path: Path) -> None:
    (task,) = office_tasks(Split.TRAIN, seeds=1, scenarios=["viral"], days=6)
    office = Office(profile="full", prompt_budget=300, tokenizer=str(smollm2_path))
    lengths = [
        len(smollm2_tokenizer.encode(row["messages"][-1]["content"]))
        for row in demonstrations(task, "expert-explained", 0.0, office=office)
    ]
    assert (
        max(lengths)
        <= 300
        < max(
            len(smollm2_tokenizer.encode(row["messages"][-1]["content"]))
            for row in demonstrations(task, "expert-explained", 0.0, office=Office(profile="full"))
        )
    )


def test_the_reasoning_of_a_hosted_player_is_kept() -> None:
    written = '```json\n{"reasoning": "It is ready.", "target": "Acme", "action_type": "run demo"}\n```'
    key = '{"action_type":"RUN_DEMO","target":"Acme"}'
    assert with_reasoning(key, written, "sales") == '{"action_type":"RUN_DEMO","target":"Acme","reasoning":"It is ready."}'
