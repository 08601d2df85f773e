"""`reasoning_gym:NAME`: every dataset of the package, its own answers, and replies that compute without end."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onthejob.cli import main
from onthejob.envs.running import running
from onthejob.errors import ConfigError
from onthejob.plugins import resolve
from onthejob.testing import check_env, play_env
from onthejob.types import Split, Task

if importlib.util.find_spec("reasoning_gym") is None:
    pytest.skip("reasoning-gym is not installed", allow_module_level=True)

from onthejob.interop.reasoning_gym import WITHOUT_ANSWER, ReasoningGym, parsed
from onthejob.interop.reasoning_gym_child import DRAWN_AT_ONCE
from onthejob.interop.reasoning_gym_items import Items, items

NAMES = items().names()
JUNK = ("I do not know.", '[[{"a": 1', "\ud800 -1e999")
HASHED = ("codeio", "isomorphic_strings", "polynomial_multiplication", "ransom_note", "word_ladder")
"""Datasets whose items depend on the order of sets of texts."""


def of(what: str, **options: Any) -> ReasoningGym:
    return resolve(f"reasoning_gym:{what}")(**options)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def other() -> Iterator[Items]:
    """The items of another process."""
    made = Items()
    yield made
    made.close()


def question(env: ReasoningGym, task: Task) -> str:
    return running(env).reset(task).messages[-1].content


def answer(env: ReasoningGym, task: Task) -> str:
    return env.players()["gold"](running(env).reset(task), 0)


def test_there_are_all_datasets_of_the_package():
    assert len(NAMES) >= 105
    assert {"chain_sum", "spell_backward", *HASHED, *WITHOUT_ANSWER, *DRAWN_AT_ONCE} <= set(NAMES)


def test_every_dataset_asks_scores_its_own_answer_and_takes_every_reply():
    for name in NAMES:
        env = of(name, count=3)
        task = env.tasks(Split.DEV)[0]
        players = env.players()
        assert bool(players) is (name not in WITHOUT_ANSWER), name
        if players:
            gold = play_env(env, task, players["gold"])
            assert gold.rewards["agent"] >= 0.99, name
            assert gold.invalid == 0, name
        for reply in JUNK:
            paid = play_env(env, task, lambda *_, reply=reply: reply).rewards["agent"]
            assert 0.0 <= paid <= 1.0, (name, reply)


def test_datasets_without_an_answer_have_none():
    for name in NAMES:
        assert (items().item(name, "{}", 1_000).answer is None) is (name in WITHOUT_ANSWER), name


def test_an_item_depends_on_its_seed_alone(other: Items):
    for name in (*HASHED, *DRAWN_AT_ONCE, "chain_sum", "pool_matrix"):
        seeds = range(100_000, 100_006)
        here = [items().item(name, "{}", seed) for seed in seeds]
        assert here == [other.item(name, "{}", seed) for seed in reversed(seeds)][::-1], name
        assert len({one.question for one in here}) == len(here), name


def test_items_are_those_that_the_package_makes_of_the_seed():
    names = ["chain_sum", "word_ladder", "survo", "sentence_reordering", "mini_sudoku", "group_anagrams", "knights_knaves"]
    program = (
        "import json, sys; from reasoning_gym import create_dataset\n"
        "print(json.dumps([create_dataset(name, seed=1007, size=1)[0]['question'] for name in json.loads(sys.argv[1])]))"
    )
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, json.dumps(names)],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert json.loads(found.stdout.splitlines()[-1]) == [items().item(name, "{}", 1_007).question for name in names]


def test_it_keeps_the_promises_of_every_environment():
    check_env(of("chain_sum", config="min_terms=2,max_terms=2", count=5))


def test_the_answer_is_what_stands_between_tags_or_the_whole_reply():
    env = of("chain_sum")
    task = env.tasks(Split.TRAIN)[0]
    right = answer(env, task)
    for reply in (
        f" {right}\n",
        f"<think>1?</think><answer>{right}</answer>",
        f"<answer>x</answer> no: <answer> {right} </answer>",
    ):
        assert play_env(env, task, lambda *_, reply=reply: reply).rewards == {"agent": 1.0}
    for reply in ("", "  \n", "<answer></answer>"):
        played = play_env(env, task, lambda *_, reply=reply: reply)
        assert (played.rewards["agent"], played.invalid) == (0.0, 1)


def test_no_request_contains_the_answer():
    env = of("spell_backward", config="min_word_len=8,max_word_len=9", system="direct")
    for task in env.tasks(Split.TRAIN)[:20]:
        seen = running(env).reset(task)
        right = answer(env, task)
        assert right
        assert right not in json.dumps([*map(tuple, seen.messages), dict(seen.view)])
        assert [message.role for message in seen.messages] == ["system", "user"]
        assert "<answer>" in seen.messages[0].content


@pytest.mark.parametrize("config", ["min_terms=2,max_terms=2,max_digits=1", "min_terms=2,max_terms=2,max_digits=2", ""])
def test_no_question_is_in_two_splits_whatever_the_count(config: str):
    env, longer = of("chain_sum", config=config, count=60), of("chain_sum", config=config, count=90)
    train = {question(longer, task) for task in longer.tasks(Split.TRAIN)}
    dev = {question(env, task) for task in env.tasks(Split.DEV)}
    test = {question(env, task) for task in env.tasks(Split.TEST)}
    assert len(train | dev | test) == len(train) + len(dev) + len(test)
    assert min(map(len, (train, dev, test))) >= 10


def test_too_few_different_questions_are_refused_with_the_remedy():
    # Four questions exist, and none of them is drawn into the test split.
    env = of("coin_flip", config="min_trials=1,max_trials=1")
    assert env.tasks(Split.TRAIN)
    with pytest.raises(ConfigError, match=r"coin_flip makes too few different questions .* none is of test.* Widen --env.config"):
        env.tasks(Split.TEST)


def test_datasets_are_mixed_in_equal_parts():
    env = of("chain_sum+gcd", config="chain_sum.min_terms=2,chain_sum.max_terms=2", count=6)
    tasks = env.tasks(Split.TEST)
    assert [env.family(task) for task in tasks] == ["chain_sum", "gcd"] * 3
    assert all(play_env(env, task, env.players()["gold"]).rewards["agent"] == 1.0 for task in tasks)
    assert len({task.id for split in Split for task in env.tasks(split)}) == 18
    assert len({task.seed for split in Split for task in env.tasks(split)}) == 18


@pytest.mark.parametrize(
    ("what", "config", "message"),
    [
        ("chain_sun", "", r"no dataset 'chain_sun'. Near it are chain_sum, "),
        ("composite", "", "Join names with \\+"),
        ("gcd+gcd", "", "names a dataset twice"),
        ("chain_sum", "terms=2", "chain_sum has no setting 'terms'; it has allow_negation, max_digits, .*min_terms"),
        ("chain_sum", "seed=2", "chain_sum has no setting 'seed'"),
        ("chain_sum", "min_terms=0", r'chain_sum refuses {"min_terms": 0}: min_terms must be positive'),
        ("chain_sum", "min_terms", "must be key=value,key=value or a JSON object .* got 'min_terms'"),
        ("chain_sum", '{"min_terms": ', "must be key=value,key=value or a JSON object"),
        ("chain_sum+gcd", "min_terms=2", "has the key 'min_terms'; with several datasets write chain_sum.KEY=value"),
    ],
)
def test_what_cannot_be_played_is_refused(what: str, config: str, message: str):
    with pytest.raises(ConfigError, match=message):
        of(what, config=config).tasks(Split.TRAIN)


def test_settings_are_read_in_both_forms():
    assert parsed("a=2, b=true,c=x y,d=-0.5") == parsed('{"a": 2, "b": true, "c": "x y", "d": -0.5}')
    short = of("chain_sum", config="min_terms=2,max_terms=2,min_digits=1,max_digits=1")
    task = short.tasks(Split.TRAIN)[0]
    assert (
        len(running(short).reset(task).messages[0].content) < len(running(of("chain_sum")).reset(task).messages[0].content) + 20
    )
    assert short.fingerprint() != of("chain_sum").fingerprint()
    assert "reasoning-gym 0." in short.fingerprint()


def test_replies_that_compute_without_end_or_crash_earn_nothing_and_harm_nothing(tmp_path: Path):
    env, file = of("string_insertion"), tmp_path / "made"
    task = env.tasks(Split.TRAIN)[0]
    replies = (
        f"__import__('os').system('touch {file}')",
        f"open({str(file)!r}, 'w').write('x')",
        "'x' * 10 ** 11",
        # The interpreter itself crashes, and the next reply is scored by a new process.
        "__import__('faulthandler')._sigsegv()",
        "[9 ** 9 ** 9 ** 9]",
    )
    for reply in replies:
        played = play_env(env, task, lambda *_, reply=reply: reply)
        assert (played.rewards["agent"], played.invalid) == (0.0, 1) or played.rewards["agent"] < 0.1, reply
    assert not file.exists()
    assert play_env(env, task, env.players()["gold"]).rewards["agent"] == 1.0


def test_a_reply_that_waits_is_ended():
    program = (
        "import signal, time\nfrom onthejob.interop import reasoning_gym_child as child\n"
        "child.SCORE_WALL_S = 0.2\nsignal.signal(signal.SIGALRM, child.overtime)\n"
        "try:\n    with child.Scoring():\n        time.sleep(60)\nexcept child.Overtime:\n    print('ended')"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert found.stdout == "ended\n"


def test_the_process_ends_with_the_one_that_began_it():
    program = (
        "import time\nfrom onthejob.interop.reasoning_gym_items import items\n"
        "items().names(); print(items()._process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(child)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_commands_take_it(capsys: pytest.CaptureFixture[str]):
    assert main(["play", "reasoning_gym:chain_sum", "--policy", "gold", "--env.config", "max_terms=2"]) == 0
    assert "+1.00" in capsys.readouterr().out
    assert main(["env", "check", "reasoning_gym:chain_sun"]) == 2
