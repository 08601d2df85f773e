"""Harbor tasks in record and viewer: an episode is played again, shown with request and verdict, and played by a person."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from onthejob.api.app import create_app
from onthejob.cli import main
from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.plugins import resolve
from onthejob.testing import tiny_tokenizer

from .recording import harbor_run
from .test_game_tables import TOKEN, asking

REQUEST = "Write 42 to /app/answer.txt."
FILES = {
    "task.toml": '[metadata]\ncategory = "files"\n',
    "instruction.md": REQUEST,
    "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\n",
    "tests/test.sh": 'if [ "$(cat /app/answer.txt)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n',
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tasks")
    for path, text in FILES.items():
        (made / "train/answer" / path).parent.mkdir(parents=True, exist_ok=True)
        (made / "train/answer" / path).write_text(text, encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def root(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs, model = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("model")
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(model)
    harbor_run(runs, folder, tokenizer=tokenizer, model=str(model))
    return runs


def test_a_recorded_episode_is_played_again(root: Path, capsys: pytest.CaptureFixture[str]):
    """Blocks run again in order, so that the second one finds the shell that the first one left."""
    capsys.readouterr()
    assert main(["runs", "replay", str(root / "harbor"), "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["matches"], len(found["episodes"]), found["skipped"]) == (True, 4, {})
    assert found["prompts"] == found["turns"] > 4
    assert found["hash"] == found["recorded_hash"]


def test_a_recorded_episode_is_shown_with_its_request_and_verdict(root: Path, tmp_path: Path):
    app = create_app(token=TOKEN, hosts=("testserver",), runs=root, pages=tmp_path / "no pages")
    with TestClient(app, headers={"x-onthejob-token": TOKEN}) as client:

        def ask(path: str, **values: Any) -> Any:
            answer = client.get(f"/api/runs/harbor/{path}", params=values)
            assert answer.status_code == 200, answer.text
            return answer.json()

        rows = ask("episodes")
        assert len(rows) == 4
        solved = []
        for row in rows:
            shown = ask("episode", iteration=row["iteration"], episode=row["name"])
            assert REQUEST in json.dumps(shown)
            (verdict,) = shown["turns"][-1]["facts"]["verdicts"]
            assert (verdict["kind"], verdict["path"]) == ("tests", "reward")
            assert verdict["reason"] == ("" if verdict["passed"] else "is 0; test.sh ended with 0")
            assert len(shown["turns"]) == (3 if verdict["passed"] else shown["turns"][-1]["facts"]["turn"])
            solved.append(verdict["passed"])
        assert set(solved) == {True, False}


def test_a_person_does_a_task_in_the_viewer(folder: Path, tmp_path: Path):
    ref = f"harbor:{folder}"
    with asking(resolve(ref)(), ref, tmp_path) as ask:
        assert ask("config")["env"]["tasks"]["train"] == 1
        table = ask("tables", {"split": "train", "index": 0, "seats": {"agent": "human"}})
        assert table["asked"]["messages"][1]["content"] == f"{REQUEST}\n\nFiles:\n(none)"
        assert "test.sh" not in json.dumps(table)
        for text in (block("echo 42 > answer.txt"), DONE):
            table = ask(f"tables/{table['id']}/reply", {"text": text, "replies": table["replies"]})
        assert (table["stop"], table["metrics"]["passed"], table["paid"]["agent"]) == ("done", 1.0, 1.0)
