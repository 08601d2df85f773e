"""`onthejob tasks synth --by`: what a hosted model writes becomes a task only when it is proven to be one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checks.servers.chat_server import Chat, conversation
from onthejob.claw import Claw
from onthejob.commands.author import ROLE, WRITTEN, correction, draft, examples, json_object, reply_schema, request_text
from onthejob.envs.claw.lint import Fault, Problem, validate_candidate
from onthejob.envs.claw.splits import split_of
from onthejob.envs.claw.task_schema import ClawTask, load_tasks
from onthejob.types import Split


def written(number: int, **changes: Any) -> dict[str, Any]:
    """A right task: count the lines of a log that hold a word."""
    log = "".join(f"{'ERROR' if line % 3 == 0 else 'INFO'} line {line}\n" for line in range(10 + 3 * number))
    answer = str(log.count("ERROR"))
    return {
        "intent": "Count the ERROR lines of app.log into report/errors.txt. Leave app.log as it is.",
        "workspace_seed": {"files": [{"path": "app.log", "kind": "text", "content": log, "size_bytes": 0}]},
        "verifiable_assertions": [
            {"kind": "file_contents_match_regex", "path": "report/errors.txt", "regex": rf"^\s*{answer}\s*$", "must_contain": []},
            {"kind": "file_unchanged", "path": "app.log", "guard": True, "regex": "", "must_contain": []},
        ],
        "estimated_steps": draft(number, seed=0).difficulty.steps.start,
        "gold": ["mkdir -p report\ngrep -c ERROR app.log > report/errors.txt"],
        "answers": [answer],
        **changes,
    }


def test_only_what_is_proven_is_accepted(call, chat: Chat):
    trivial = written(2, verifiable_assertions=[{"kind": "file_unchanged", "path": "app.log"}], answers=[])
    failing = written(3, gold=["mkdir -p report\ngrep -c INFO app.log > report/errors.txt"])
    scripts: list[list[str | None]] = [
        [f"Here it is:\n```json\n{json.dumps(written(0), indent=1)}\n```"],
        ["I would rather talk about the weather.", json.dumps(written(1))],
        [json.dumps(trivial)] * 3,
        [json.dumps(failing)] * 3,
        [json.dumps(written(0, estimated_steps=draft(4, seed=0).difficulty.steps.start)), None],
    ]
    asked = [request_text(draft(number, seed=0)) for number in range(len(scripts))]
    assert len(set(asked)) == len(asked)

    def reply(body: dict[str, Any]) -> str | None:
        shown = conversation(body)
        return scripts[asked.index(shown[1][1])][sum(role == "assistant" for role, _ in shown)]

    chat.reply = reply
    told = call("tasks", "synth", "--by", chat.name, "--count", "5", "--out", "corpus", "--hosted.attempts", "1", code=1)
    counts = told["candidates"]
    assert (counts["asked"], counts["accepted"], counts["refused"]) == (1 + 2 + 3 + 3 + 2, 2, 1 + 3 + 3 + 1)
    assert counts["reasons"] == {"form": 1, "nothing-to-do": 3, "proof": 3, "repeated": 1}
    assert counts["unanswered"] == {"overloaded": 1}
    assert told["hosted"][ROLE]["requests"] == counts["asked"] == len(chat.seen)
    last = {shown[1][1]: shown for shown in map(conversation, chat.seen)}
    assert "no JSON object" in last[asked[1]][-1][1]
    assert "doing nothing passes" in last[asked[2]][-1][1]
    assert "the gold commands do not pass" in last[asked[3]][-1][1]
    assert {role for role, _ in last[asked[3]][::2][1:]} == {"assistant"}, "what was wrong follows what was written"
    assert chat.seen[0]["response_format"]["json_schema"]["schema"] == reply_schema()

    tasks = load_tasks(Path("corpus/train.jsonl"))
    assert [task.id for task in tasks] == [draft(number, seed=0).id for number in (0, 1)]
    assert [task.gold for task in tasks] == [tuple(written(number)["gold"]) for number in (0, 1)]
    assert call("tasks", "validate", "corpus/train.jsonl")["problems"] == {}
    place = Claw(folder=Path("corpus"))
    assert {task.split for task in place.tasks(Split.TRAIN)} == {Split.TRAIN}
    for split in (Split.DEV, Split.TEST):
        assert [task.id for task in place.tasks(split)] == [task.id for task in Claw().tasks(split)], (
            "nothing written is held out"
        )
    assert call("play", "claw", "--env.folder", "corpus", "--task", tasks[1].id)["metrics"]["passed"] == 1.0
    assert "holds a corpus already" in call("tasks", "synth", "--by", chat.name, "--out", "corpus", code=2)


def test_a_provider_that_answers_nobody_is_not_asked_for_all(call, chat: Chat):
    chat.status = 403
    words = ("--by", f"{chat.name}#small", "--count", "9", "--out", "corpus", "--hosted.parallel", "2")
    told = call("tasks", "synth", *words, code=1)
    assert told["candidates"]["unanswered"] == {"authentication": 2}
    assert len(chat.seen) == 2
    assert not Path("corpus").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--by", "gold"), "--by names a hosted model, got 'gold'"),
        (("--by", "anthropic:claude-haiku-4-5"), "ANTHROPIC_API_KEY"),
        (("--by", "openai:http://127.0.0.1:9/v1#m", "--tries", "0"), "tries >= 1"),
        (("--tries", "4"), "--tries has no effect without --by"),
        (("--hosted.parallel", "2"), "--hosted has no effect without --by"),
    ],
)
def test_options_that_cannot_work_are_refused(call, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert said in " ".join(call("tasks", "synth", "--out", "x", *words, code=2).split())
    assert not Path("x").exists()


def test_what_is_asked_for_is_drawn_by_the_seed():
    drafts = [draft(number, seed=3) for number in range(16)]
    assert drafts == [draft(number, seed=3) for number in range(16)]
    assert drafts != [draft(number, seed=4) for number in range(16)]
    for lap in (drafts[:8], drafts[8:]):
        assert len({wanted.persona.name for wanted in lap}) == 8, "every persona asks before one asks again"
    assert {wanted.difficulty.value for wanted in drafts} == {"easy", "medium", "hard"}
    assert all(2 <= len(set(wanted.skills)) <= 4 for wanted in drafts)


def test_ids_families_and_personas_are_not_the_models_to_choose():
    wanted = draft(0, seed=0)
    posing = written(0, task_id="synth-backend-developer-00", family="status-counts", difficulty="hard", persona={"name": "x"})
    task = validate_candidate(wanted.complete(posing))
    assert isinstance(task, ClawTask)
    assert (task.id, task.family) == (wanted.id, f"written-{wanted.persona.name}-{wanted.difficulty}")
    assert (task.persona, task.difficulty) == (wanted.persona, wanted.difficulty)


def test_the_prompt_shows_right_tasks_that_may_be_trained_on():
    for task in examples():
        assert split_of(task) is Split.TRAIN
        record = {key: value for key, value in task.to_record().items() if key in WRITTEN}
        assert set(record) == set(reply_schema()["properties"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}', {"a": 1}),
        ('Sure:\n```json\n{"a": "two\nlines"}\n``` Enjoy.', {"a": "two\nlines"}),
        ('{"a": 1} {"b": 2}', {"a": 1}),
        ('{"a": ', None),
        ("[1]", None),
        ("", None),
        ('{"a":' * 100_000, None),
    ],
)
def test_the_object_in_a_reply(text: str, found: dict[str, Any] | None):
    assert json_object(text) == found


def test_a_long_list_of_problems_is_cut():
    said = correction([Problem(fault=Fault.LEAK, message=f"number {n}.") for n in range(20)])
    assert said.count("leak: ") == 8
    assert "and 12 more" in said
