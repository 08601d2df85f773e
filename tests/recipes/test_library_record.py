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
ANSWERED = (Message("user", "They want a demo."),)


def test_a_record_becomes_conversations(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("library_record", repository / "recipes" / "library_record.py")
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path / "model")
    chat = ChatEncoder(tokenizer)

    def turn(prompt: tuple[int, ...], text: str) -> Turn:
        ids = chat.reply_ids(text)
        completion = Completion(text=text, token_ids=ids, logprobs=(-1.0,) * len(ids))
        return Turn(prompt_ids=prompt, completion=completion, policy_version="sales@0000")

    first, other = turn(chat.encode(ASKED), "Acme"), turn(chat.encode(ASKED), "nobody")
    again = turn(chat.extend(first.prompt_ids, first.completion.token_ids, ANSWERED), "Offer it")
    rows = (
        Trajectory(task_id="t", actor="sales", turns=(first, again), rewards=(0.5, 2.0), stop=StopReason.DONE),
        Trajectory(task_id="t", actor="sales", turns=(other,), rewards=(-1.0,), stop=StopReason.BRANCH),
    )
    group = Group(key="it0000/t/sales", actor="sales", trajectories=rows)
    with Run.create(tmp_path / "runs", config={}, name="kept") as run, run.iteration(0) as it:
        it.groups([group])
    options = [str(tmp_path / "runs" / "kept"), "--model", str(tmp_path / "model")]
    assert recipe.main([*options, "--actor", "sales"]) == 0
    said = [
        [*ASKED, Message("assistant", "Acme"), *ANSWERED, Message("assistant", "Offer it")],
        [*ASKED, Message("assistant", "nobody")],
    ]
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"key": "it0000/t/sales", "actor": "sales", "value": value, "messages": [message._asdict() for message in messages]}
        for value, messages in zip((2.5, -1.0), said, strict=True)
    ]
    with pytest.raises(SystemExit, match="recorded no group of dev"):
        recipe.main([*options, "--actor", "dev"])
    assert capsys.readouterr().out == ""
