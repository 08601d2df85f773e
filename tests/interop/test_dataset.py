"""`dataset:FILE`: rows become tasks, and replies are scored by what the command line names."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from onthejob.cli import main
from onthejob.envs.running import running
from onthejob.errors import ConfigError
from onthejob.interop.dataset import MATCHERS, Dataset
from onthejob.plugins import anchored, resolve
from onthejob.testing import check_environment, play_env
from onthejob.types import Message, Split

SUMS = [{"prompt": f"{a} + {b} =", "answer": str(a + b), "level": a} for a in range(10) for b in range(10)]


def written(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def of(path: Path, **options: Any) -> Dataset:
    return resolve(f"dataset:{path}")(**options)  # type: ignore[return-value]


def paid(env: Dataset, reply: str) -> float:
    """For the first training row."""
    playing = running(env)
    playing.reset(env.tasks(Split.TRAIN)[0])
    return playing.step(reply).rewards["agent"]


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    return written(tmp_path / "sums.jsonl", SUMS)


def test_it_keeps_the_promises_of_every_environment(sums: Path):
    env = of(sums)
    found = check_environment(lambda: running(env), env.tasks(Split.TRAIN)[:5], choose=lambda observation, seed: str(seed % 19))
    assert found.forks > 0


def test_every_row_is_in_one_split_and_equal_prompts_in_the_same(tmp_path: Path):
    env = of(written(tmp_path / "twice.jsonl", SUMS + SUMS))
    by_split = {split: env.tasks(split) for split in Split}
    assert sum(len(tasks) for tasks in by_split.values()) == 2 * len(SUMS)
    prompts = [{task.payload["prompt"] for task in tasks} for tasks in by_split.values()]
    assert sum(map(len, prompts)) == len(set().union(*prompts)) == len(SUMS)
    assert 60 < len(prompts[0]) < 95
    assert min(map(len, prompts)) > 0
    assert env.tasks(Split.DEV) == by_split[Split.DEV]


def test_a_column_may_name_the_split(tmp_path: Path):
    rows = [{"prompt": "a", "answer": "b", "split": name} for name in ("train", "validation", "test", "Training")]
    env = of(written(tmp_path / "named.jsonl", rows))
    assert [len(env.tasks(split)) for split in Split] == [2, 1, 1]
    wrong = of(written(tmp_path / "wrong.jsonl", [{**rows[0], "split": "holdout"}]))
    with pytest.raises(ConfigError, match=r"row 1: split must be one of train, training, dev, .* got 'holdout'"):
        wrong.tasks(Split.TRAIN)


def test_the_three_kinds_of_files_are_read_alike(sums: Path, tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    with (tmp_path / "sums.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(SUMS[0]))
        table.writeheader()
        table.writerows(SUMS)
    parquet.write_table(pyarrow.Table.from_pylist(SUMS), tmp_path / "sums.parquet")
    lines, columns = of(sums).tasks(Split.TEST), of(tmp_path / "sums.parquet").tasks(Split.TEST)
    assert [task.payload for task in lines] == [task.payload for task in columns]
    # CSV knows only texts.
    texts = of(tmp_path / "sums.csv").tasks(Split.TEST)
    assert [{**task.payload, "level": str(task.payload["level"])} for task in lines] == [task.payload for task in texts]


@pytest.mark.parametrize(
    ("matcher", "answer", "right", "wrong"),
    [
        ("exact", "New York", [" new  york\n", "NEW YORK"], ["New York!", "York", ""]),
        ("contains", "York", ["It is york.", "york"], ["Yorkshire", "", "New-Yorker"]),
        ("number", "1,200", ["so 1200", "3 and then 1200.0", "= 2400/2"], ["1200 or 3", "none", "1/0", "9" * 400]),
        ("number", "#### -3", ["-3", "x = -3.00"], ["3"]),
        ("choice", "B", ["B", "(B)", "The answer is B."], ["A, not B", "Because", "b"]),
        ("regex", r"\d{4}-\d\d", ["2026-11", " 2026-11 "], ["2026-1", "x 2026-11"]),
        ("json", '{"a": [1, 2]}', ['{ "a" : [1,2] }'], ["{'a': [1, 2]}", '{"a": [2, 1]}', "[" * 5_000, ""]),
    ],
)
def test_matchers(tmp_path: Path, matcher: str, answer: str, right: list[str], wrong: list[str]):
    env = of(written(tmp_path / "one.jsonl", [{"prompt": "?", "answer": answer, "split": "train"}]), reward=matcher)
    assert [paid(env, reply) for reply in right] == [1.0] * len(right)
    assert [paid(env, reply) for reply in wrong] == [0.0] * len(wrong)


@pytest.mark.parametrize(
    ("matcher", "answers"),
    [
        ("exact", ["New York", 4, None, [1, 2]]),
        ("contains", ["York", 0.5]),
        ("number", ["1,200", "6 * 7 = 42\n#### 42", -3]),
        ("choice", ["B", "(C) blue", "d"]),
        ("json", ['{"a": 1}', {"a": [1, None]}, [True]]),
    ],
)
def test_gold_replies_with_the_answer_and_earns_all(tmp_path: Path, matcher: str, answers: list[Any]):
    rows = [{"prompt": f"{number}?", "key": answer, "split": "train"} for number, answer in enumerate(answers)]
    env = of(written(tmp_path / "keys.jsonl", rows), reward=matcher, answer="key")
    played = [play_env(env, task, env.players()["gold"]) for task in env.tasks(Split.TRAIN)]
    assert [one.rewards for one in played] == [{"agent": 1.0}] * len(answers)


def test_gold_exists_only_where_an_answer_is_a_right_reply(sums: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "rewards.py").write_text(REWARDS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert of(sums, reward="regex").players() == {}
    assert of(sums, reward="rewards.py:in_trl").players() == {}
    named = of(sums, reward="rewards.py:in_trl", answer="answer")
    task = named.tasks(Split.TRAIN)[0]
    assert play_env(named, task, named.players()["gold"]).rewards["agent"] == 1.0 + task.payload["level"]
    with pytest.raises(ConfigError, match=r"row 1 has no column 'key'\. Correct --env\.answer"):
        of(sums, reward="rewards.py:in_trl", answer="key").tasks(Split.TRAIN)


def test_demonstrations_of_gold_are_those_of_every_reference_of_one_agent(sums: Path, tmp_path: Path):
    out = tmp_path / "shown"
    assert main(["collect", "--env", f"dataset:{sums}", "--policy", "gold", "--count", "4", "--out", str(out)]) == 0
    (file,) = out.iterdir()
    assert file.name == "agent.jsonl"
    first = json.loads(file.read_text(encoding="utf-8").splitlines()[0])
    assert first["messages"][-1] == {
        "role": "assistant",
        "content": next(row["answer"] for row in SUMS if row["prompt"] == first["messages"][-2]["content"]),
    }


def test_every_matcher_takes_every_reply(tmp_path: Path):
    for matcher in MATCHERS:
        env = of(written(tmp_path / "one.jsonl", [{"prompt": "?", "answer": "7"} for _ in range(9)]), reward=matcher)
        check_environment(lambda env=env: running(env), next(filter(None, map(env.tasks, Split)))[:1], choose=lambda *_: "7")


REWARDS = """
def brief(reply, row):
    return 1.0 - len(reply) / 10 + row["level"]

def in_trl(prompts, completions, answer, **columns):
    return [float(text == meant) + columns["level"][0] for text, meant in zip(completions, answer)]

def in_trl_talk(completions, answer):
    return [float(completion[0]["content"] == meant) for completion, meant in zip(completions, answer)]

def abstains(completions, **columns):
    return [None]

def broken(reply, row):
    return int(reply)

def endless(reply, row):
    return float("inf")

constant = 3
"""


def test_functions_of_ones_own_and_those_written_for_trl(sums: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "rewards.py").write_text(REWARDS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    first = of(sums).tasks(Split.TRAIN)[0].payload
    assert paid(of(sums, reward="rewards.py:brief"), "12345") == 0.5 + first["level"]
    assert paid(of(sums, reward="rewards.py:in_trl"), first["answer"]) == 1.0 + first["level"]
    assert paid(of(sums, reward="rewards.py:abstains"), "x") == 0.0
    talk = [{"prompt": [{"role": "user", "content": "a?"}], "answer": "b", "split": "train"}]
    assert paid(of(written(tmp_path / "talk.jsonl", talk), reward="rewards.py:in_trl_talk"), "b") == 1.0
    with pytest.raises(RuntimeError, match=r"the reward rewards\.py:broken raised ValueError: .* for the reply 'x'"):
        paid(of(sums, reward="rewards.py:broken"), "x")
    with pytest.raises(RuntimeError, match="must return a finite number, got inf"):
        paid(of(sums, reward="rewards.py:endless"), "x")


def test_conversations_keep_their_messages(tmp_path: Path):
    talk = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "2 + 2?"},
    ]
    env = of(written(tmp_path / "talk.jsonl", [{"prompt": talk, "answer": "4", "split": "train"}]))
    playing = running(env)
    first = playing.reset(env.tasks(Split.TRAIN)[0])
    assert list(first.messages) == [Message(message["role"], message["content"]) for message in talk]
    with_system = of(
        written(tmp_path / "plain.jsonl", [{"prompt": "2 + 2?", "answer": "4", "split": "train"}]), system="Be brief."
    )
    asked = running(with_system).reset(with_system.tasks(Split.TRAIN)[0])
    assert list(asked.messages) == [Message("system", "Be brief."), Message("user", "2 + 2?")]


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        ("", {}, "holds no row"),
        ("{]\n", {}, "line 1 is not JSON"),
        ("[1]\n", {}, "line 1 must be an object with a prompt"),
        (
            '{"question": "?", "answer": "1"}\n',
            {},
            "row 1 has no column 'prompt': it has question, answer. Name the prompt's with",
        ),
        ('{"prompt": "?", "key": "1"}\n', {}, "no column of answers for --env.reward exact: its columns are prompt, key"),
        ('{"prompt": 3, "answer": "1"}\n', {}, "row 1: a prompt is a text or a list of messages"),
        (
            '{"prompt": [{"role": "assistant", "content": "a"}], "answer": "1"}\n',
            {},
            "the last message of a prompt is the user's",
        ),
        ('{"prompt": "?", "answer": "1"}\n{"prompt": "?"}\n', {}, "row 2 has no column of answers"),
        ('{"prompt": "?", "answer": "1"}\n', {"answer": "key"}, "row 1 has no column 'key'. Correct --env.answer"),
        ('{"prompt": "?", "answer": "1"}\n', {"reward": "best"}, "--env.reward must be one of exact, contains, .* got 'best'"),
        ('{"prompt": "?", "answer": "1"}\n', {"reward": "gone.py:f"}, "there is no file gone.py"),
        ('{"prompt": "?", "answer": "1"}\n', {"reward": "json:dumpz"}, "json has no 'dumpz'"),
        ('{"prompt": "?", "answer": "1"}\n', {"reward": "math:pi"}, "is a float. Name a function"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_before_anything_is_played(
    tmp_path: Path, content: str, options: dict[str, str], said: str
):
    path = tmp_path / "rows.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        of(path, **options).tasks(Split.TRAIN)


def test_files_that_are_none_are_refused(tmp_path: Path):
    (tmp_path / "rows.txt").write_text("a", encoding="utf-8")
    for what, said in (
        (tmp_path / "rows.txt", "must end with one of .jsonl, .csv, .parquet, got '.txt'"),
        ("no.csv", "there is no file"),
    ):
        with pytest.raises(ConfigError, match=said):
            resolve(f"dataset:{what}")


def test_a_file_that_changed_is_read_again_and_has_another_fingerprint(sums: Path):
    env = of(sums)
    before, count = env.fingerprint(), sum(len(env.tasks(split)) for split in Split)
    written(sums, SUMS[:50])
    assert env.fingerprint() != before
    assert sum(len(env.tasks(split)) for split in Split) == 50 < count


def test_it_is_named_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "sums.jsonl", SUMS)
    assert main(["train", "--env", "dataset:sums.jsonl", "--env.reward", "number", "--print-config"]) == 0
    shown = capsys.readouterr().out
    assert f'ref = "{anchored(f"dataset:{tmp_path}/sums.jsonl")}"' in shown
    assert 'reward = "number"' in shown
    assert main(["train", "--env", "dataset:sums.jsonl", "--env.answer", "key"]) == 2
    assert "row 1 has no column 'key'" in capsys.readouterr().err
