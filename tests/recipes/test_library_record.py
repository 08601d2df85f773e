"""The recipe that turns a record into conversations."""

import importlib.util
import json
from pathlib import Path

import pytest

from onthejob.models.chat import ChatEncoder
from onthejob.record import Run
from onthejob.testing.tiny import tiny_tokenizer
from onthejob.types import Completion, Group, Message, StopReason, Trajectory, Turn

ASKED = (Message("system", "You sell."), Message("user", "Day 1\nWhom do you call?"))


def test_a_record_becomes_conversations(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("library_record", repository / "recipes" / "library_record.py")
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path / "model")
    chat = ChatEncoder(tokenizer)

    def reply(text: str, value: float) -> Trajectory:
        ids = chat.reply_ids(text)
        completion = Completion(text=text, token_ids=ids, logprobs=(-1.0,) * len(ids))
        turn = Turn(prompt_ids=chat.encode(ASKED), completion=completion, policy_version="sales@0000")
        return Trajectory(task_id="t", actor="sales", turns=(turn,), rewards=(value,), stop=StopReason.BRANCH)

    group = Group(key="it0000/t/sales", actor="sales", trajectories=(reply("Acme", 2.5), reply("nobody", -1.0)))
    with Run.create(tmp_path / "runs", config={}, name="kept") as run, run.iteration(0) as it:
        it.groups([group])
    options = [str(tmp_path / "runs" / "kept"), "--model", str(tmp_path / "model")]
    assert recipe.main([*options, "--actor", "sales"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {
        "key": "it0000/t/sales",
        "actor": "sales",
        "messages": [message._asdict() for message in ASKED],
        "replies": [{"content": "Acme", "value": 2.5}, {"content": "nobody", "value": -1.0}],
    }
    with pytest.raises(SystemExit, match="recorded no group of dev"):
        recipe.main([*options, "--actor", "dev"])
    assert capsys.readouterr().out == ""
