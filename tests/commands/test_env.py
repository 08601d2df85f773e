"""`onthejob env`: a new environment runs as it is written, and every kind of broken one ends in the sentence that says so."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onthejob.cli import main
from onthejob.commands.named_env import Workplace
from onthejob.envs.running import Running
from onthejob.errors import ConfigError, ContractError
from onthejob.plugins import module_of, resolve
from onthejob.testing import check_env
from onthejob.testing.env_check import alike
from onthejob.types import Split

EXAMPLE = Path(__file__).parent.parent.parent / "examples/guess.py"
GOOD = {
    "head": "import random\nimport subprocess\nimport time\n\nfrom onthejob import Env, Next, Split, Task\n",
    "class": "class Pick(Env):",
    "fields": "roles = ('player',)\n    max_turns = 3",
    "tasks": "return self.seeded(split, count=20)",
    "begin": "self.left = 2",
    "ask": "return self.ask('player', f'Task {task.seed}: pick a or b.', legal=['a', 'b'])",
    "step": """
        if reply not in ('a', 'b'):
            return self.invalid('Pick a or b.', reward=-1.0)
        self.left -= 1
        if self.left:
            return self.tell('Again.')
        return self.end(reward=1.0 if reply == 'a' else 0.0)
    """,
    "players": "return {'first': lambda seen, seed: 'a'}",
    "more": "",
}
"""A right environment in pieces, any of which a broken one replaces."""


def source(**pieces: str) -> str:
    """The text of an environment."""
    parts = {name: textwrap.dedent(text).strip("\n") for name, text in {**GOOD, **pieces}.items()}
    inside = {name: parts[name].replace("\n", "\n        ") for name in ("tasks", "begin", "ask", "step", "players")}
    more = textwrap.indent(parts["more"], "    ")
    return (
        f"{parts['head']}\n\n{parts['class']}\n    {parts['fields']}\n\n"
        f"    def tasks(self, split):\n        {inside['tasks']}\n\n"
        f"    def reset(self, task):\n        {inside['begin']}\n        {inside['ask']}\n\n"
        f"    def step(self, reply):\n        {inside['step']}\n\n"
        f"    def players(self):\n        {inside['players']}\n\n{more}\n"
    )


PLAYS_TO_THE_END = "self.left -= 1\nreturn self.tell('Again.') if self.left else self.end(reward={})"
TWO_ROLES = "roles = ('player', 'rival')"

REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "syntax error": ({"head": "from onthejob import Env\nx = = 1\n"}, "cannot be imported: SyntaxError: invalid syntax"),
    "import error": ({"head": "from onthejob import Env\nimport nowhere_at_all\n"}, "No module named 'nowhere_at_all' (line 2)"),
    "not an Env": ({"class": "class Pick:"}, "defines no subclass of onthejob.Env"),
    "no roles": ({"fields": "max_turns = 3"}, "Pick.roles must name who is asked, got (). Write e.g. roles = ('player',)."),
    "roles are a number": ({"fields": "roles = 3"}, "Pick.roles must name who is asked, got 3"),
    "role with a capital": ({"fields": "roles = ('Player',)"}, "Pick.roles must match [a-z][a-z0-9_]*"),
    "role twice": ({"fields": "roles = ('player', 'player')"}, "Pick.roles names a role twice"),
    "defines __init__": ({"more": "def __init__(self):\n    pass"}, "Pick defines __init__. Write options as annotated fields"),
    "option without default": ({"more": "size: int"}, "Pick: option 'size' needs a default, e.g. `size: int = 9`."),
    "option named like a member": ({"more": "rng: int = 3"}, "Pick has an option 'rng', which means something else"),
    "max_turns 0": ({"fields": "roles = ('player',)\n    max_turns = 0"}, "Pick.max_turns must be a whole number >= 1, got 0."),
    "forks misspelt": ({"more": "forks = 'deep'"}, "Pick.forks must be 'copy', 'replay' or 'no', got 'deep'."),
}
"""Kinds that are refused before anything is played: exit code 2."""

WRONG: dict[str, tuple[dict[str, str], str]] = {
    "raises in reset": (
        {"begin": "self.left = {}['left']"},
        "Pick.reset, task pick-train-00000, turn 0, raised KeyError: 'left'",
    ),
    "raises in step": (
        {"step": "return self.end(reward=float(int(reply)))"},
        "No reply may raise: return self.invalid(feedback).",
    ),
    "raises for a broken reply": (
        {"step": "if '{' in reply:\n    raise ValueError('braces')\n" + PLAYS_TO_THE_END.format("float(reply == 'a')")},
        "raised ValueError: braces (line ",
    ),
    "reset returns None": (
        {"ask": "self.ask('player', 'Pick.')"},
        "Pick.reset, task pick-train-00000, turn 0, returned NoneType",
    ),
    "step returns None": ({"step": "self.left -= 1"}, "turn 1, returned NoneType: None. Return self.ask(...), self.tell(...)"),
    "reset ends": ({"ask": "return self.end(reward=1.0)"}, "ended before a role was asked. Return self.ask(role, text)."),
    "tell in reset": ({"ask": "return self.tell('Pick.')"}, "Pick.reset: no role has replied yet. Use self.ask(role, text)."),
    "NaN reward": ({"step": "return self.end(reward=float('nan'))"}, "pays player nan, and rewards are finite numbers."),
    "infinite reward": (
        {"step": "return self.tell('', reward=float('inf'))"},
        "pays player inf, and rewards are finite numbers.",
    ),
    "reward is text": ({"step": "return self.tell('Again.', reward='1')"}, "pays player '1', and rewards are finite numbers."),
    "unknown role asked": ({"ask": "return self.ask('palyer', 'Pick.')"}, "asks 'palyer', and the roles are player."),
    "unknown role paid": ({"step": "return self.end(rewards={'rival': 1.0})"}, "rewards 'rival', and the roles are player."),
    "reward twice": ({"step": "return self.end(reward=1, rewards={'player': 1})"}, "or rewards= by role, not both."),
    "text is no text": ({"ask": "return self.ask('player', 5)"}, "asks with text 5, which must be text. Pass a str."),
    "legal are numbers": (
        {"ask": "return self.ask('player', 'Pick.', legal=[1, 2])"},
        "lists the legal reply 1, and replies are texts.",
    ),
    "legal is one text": (
        {"ask": "return self.ask('player', 'Pick.', legal='ab')"},
        "Pick: legal is the text 'ab', and must list texts.",
    ),
    "view is not JSON": ({"ask": "return self.ask('player', 'Pick.', legal=['a', 'b'], view={'x': {1}})"}, "not of JSON's types"),
    "metric NaN": (
        {"step": "return self.end(reward=1, metrics={'x': float('nan')})"},
        "gives metric x the value nan, and metrics",
    ),
    "metric is text": ({"step": "return self.end(reward=1, metrics={'x': '3'})"}, "gives metric x the value '3', and metrics"),
    "not deterministic": (
        {"ask": "return self.ask('player', f'Pick {random.random()}.', legal=['a'])"},
        "Pick.reset, task pick-train-00000, turn 0, is not the same twice: once 'Pick 0.",
    ),
    "reward is not deterministic": (
        {"step": PLAYS_TO_THE_END.format("random.random()")},
        "is not the same twice: once 0.",
    ),
    "remembers the last episode": (
        {"step": "Pick.played += 1\n" + PLAYS_TO_THE_END.format("Pick.played"), "more": "played = 0"},
        "keep nothing from one episode to the next.",
    ),
    "changes its option": (
        {"begin": "self.size += 1\nself.left = 2", "more": "size: int = 3"},
        "Pick changes its option 'size' during an episode. Keep what changes under another name, set in reset.",
    ),
    "stated copy, lambda": (
        {"begin": "self.left, self.pick = 2, lambda: 'a'", "more": "forks = 'copy'"},
        "Pick cannot be forked: self.pick is a builtins.function, which cannot be copied.",
    ),
    "stated copy, same list twice": (
        {"begin": "self.left, self.a = 2, [1]\nself.b = self.a", "more": "forks = 'copy'"},
        "self.b and self.a are the same list, which a copy would separate.",
    ),
    "forks share a list": (
        {
            "begin": "self.left = 2\nLOG.clear()",
            "ask": "return self.ask('player', str(len(LOG)), legal=['a'])",
            "head": GOOD["head"] + "LOG = []\n",
            "step": "LOG.append(reply)\n" + PLAYS_TO_THE_END.format("len(LOG)").replace("'Again.'", "str(len(LOG))"),
        },
        "Keep the state of an episode in self, and nothing in the module or the class.",
    ),
    "tasks are empty": (
        {"tasks": "return []"},
        "Pick.tasks(train) returned []. Return a list of tasks, e.g. self.seeded(split).",
    ),
    "tasks of a wrong split": ({"tasks": "return self.seeded(Split.TEST)"}, "holds pick-test-00000 of split test."),
    "double ids": ({"tasks": "return self.seeded(split, count=3) * 2"}, "holds two tasks of one id. Give every task an id"),
    "tasks are dictionaries": ({"tasks": "return [{'id': 1}]"}, "holds {'id': 1}, which is no Task. Use self.seeded(split)."),
    "tasks change": (
        {"tasks": "return self.seeded(split, count=3, number=random.random())"},
        "Pick.tasks(train) is not the same twice. Return the same tasks in every call.",
    ),
    "players raise": (
        {"players": "return {'first': lambda seen, seed: seen.view['best']}"},
        "Pick.players: 'first' raised KeyError: 'best' (line ",
    ),
    "player replies no text": (
        {"players": "return {'first': lambda seen, seed: 1}"},
        "'first' replied 1, and replies are texts.",
    ),
    "players are a list": ({"players": "return ['first']"}, "Return a dictionary of name -> function"),
    "unknown partner": ({"more": "partner = 'second'"}, "Pick.partner is 'second', and its players are first, random."),
    "good play does not pay": (
        {"step": PLAYS_TO_THE_END.format("0.0")},
        "Pick pays player 0 for empty replies and 0 for the best play (random). Pay good play more.",
    ),
    "malformed replies pay": (
        {"step": "return self.end(reward=0.0 if reply == '' else 0.5 if reply in 'ab' else 1.0)"},
        "for malformed replies and 0.5 for the best play (random).",
    ),
}
"""Kinds that are found by playing: exit code 1."""

WARNED: dict[str, tuple[dict[str, str], str]] = {
    "open file": (
        {"begin": "self.left, self.file = 2, open(__file__)", "ask": "self.file.close()\n" + GOOD["ask"]},
        "self.file is a _io.TextIOWrapper, which cannot be copied. Keep plain values in self, or write forks = 'replay'",
    ),
    "lambda": ({"begin": "self.left, self.f = 2, lambda: 1"}, "self.f is a builtins.function, which cannot be copied."),
    "generator": ({"begin": "self.left, self.g = 2, iter([1])"}, "self.g is a builtins.list_iterator, which cannot be copied."),
    "same list twice": ({"begin": "self.left, self.a = 2, [1]\nself.b = self.a"}, "self.b and self.a are the same list"),
    "foreign class": (
        {"head": GOOD["head"] + "from fractions import Fraction\n", "begin": "self.left, self.part = 2, Fraction(1, 2)"},
        "self.part is a fractions.Fraction, which cannot be copied.",
    ),
    "seeds without effect": (
        {"ask": "return self.ask('player', 'Pick a or b.', legal=['a', 'b'])"},
        "Pick: tasks of different seeds begin alike and pay alike for equal replies, so held-out tasks are those of training",
    ),
    "forgets end": (
        {"step": "return self.tell('Again.', reward=1.0 if reply == 'a' else 0.0)"},
        "Pick.step never ended an episode: max_turns = 3 did, in all",
    ),
    "endless": (
        {
            "fields": "roles = ('player',)\n    max_turns = 10**9",
            "step": "return self.tell('Again.', reward=float(reply == 'a'))",
        },
        "Pick.step never ended an episode: max_turns = 1000000000 did",
    ),
    "1 MB prompt": (
        {"ask": "return self.ask('player', 'x' * 1_000_000, legal=['a', 'b'])"},
        "Pick asks player with a prompt of 1,000,000 characters in a context of 1,000,0",
    ),
    "prints": ({"begin": "print('hello')\nself.left = 2"}, "Pick.reset prints to stdout, e.g. 'hello', where commands write"),
    "slow": (
        {
            "step": "if not Pick.slept:\n    Pick.slept = time.sleep(1.1) is None\n"
            + PLAYS_TO_THE_END.format("float(reply == 'a')"),
            "more": "slept = False",
        },
        "Pick.step takes up to 1.1 s. Make it faster, or set threads = 8",
    ),
    "child process": (
        {"more": "def open(self):\n    self.child = subprocess.Popen(['sleep', '30'])"},
        "Pick leaves child processes behind: sleep (",
    ),
    "changes the payload": (
        {"tasks": "return self.seeded(split, count=5, left=3)", "begin": "self.left = 2\ntask.payload['left'] -= 1"},
        "Pick changes the payload of its task during an episode. Copy what changes",
    ),
    "no legal and no players": (
        {"ask": "return self.ask('player', 'Pick.')", "players": "return {}"},
        "Pick lists no legal replies and has no players",
    ),
    "all groups equal": (
        {"step": "return self.end(reward=1.0) if reply in ('a', 'b') else self.invalid('Pick.', reward=-1.0)"},
        "Pick pays player the same in all 3 random episodes of every task, so groups teach it nothing.",
    ),
    "splits share ids": (
        {"tasks": "return [Task(id=str(n), env='pick', split=split, seed=n) for n in range(5)]"},
        "Pick.tasks: 5 tasks of dev have ids that tasks of train have too, e.g. 0. Give every split its own",
    ),
    "splits share contents": (
        {"tasks": "return [Task(id=f'{split}{n}', env='pick', split=split, seed=n) for n in range(5)]"},
        "5 tasks of dev have seeds and payloads that tasks of train have too",
    ),
    "no dev tasks": (
        {"tasks": "return self.seeded(split) if split == 'train' else []"},
        "Pick.tasks(dev) returned []. Return a list of tasks, e.g. self.seeded(split). Comparisons need it.",
    ),
    "role that is never asked": ({"fields": TWO_ROLES}, "Pick never asked rival. Ask each of roles, or leave it out of them."),
}
"""Kinds that work and are odd: exit code 0."""


def checked(folder: Path, pieces: dict[str, str], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any, str]:
    """Exit code, JSON and stderr of `env check` for one environment."""
    file = folder / "pick.py"
    file.write_text(source(**pieces), encoding="utf-8")
    capsys.readouterr()
    code = main(["env", "check", str(file), "--tasks", "2", "--group", "3", "--json", "--quiet"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if captured.out else None, captured.err


@pytest.fixture(autouse=True)
def no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are measured in characters."""
    monkeypatch.setenv("ONTHEJOB_CACHE", str(tmp_path / "cache"))


def test_the_right_one_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code, found, said = checked(tmp_path, {}, capsys)
    assert (code, found["errors"], found["warnings"], said) == (0, [], [], "")
    assert {row["player"]: row["mean"] for row in found["players"]}["first"] == 1.0
    assert found["facts"]["grouping branch"] == "yes"
    assert all(case["ok"] for case in found["cases"])


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_an_environment_is_refused(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pieces, sentence = REFUSED[kind]
    code, found, said = checked(tmp_path, pieces, capsys)
    assert (code, found) == (2, None)
    assert sentence in said
    assert said.count("\n") == 1, "one line"


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_one_sentence(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pieces, sentence = WRONG[kind]
    code, found, _ = checked(tmp_path, pieces, capsys)
    assert code == 1
    assert any(sentence in error for error in found["errors"]), found["errors"]
    assert not any("\n" in error for error in found["errors"])


@pytest.mark.parametrize("kind", WARNED)
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_what_is_odd_is_warned_of(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pieces, sentence = WARNED[kind]
    code, found, _ = checked(tmp_path, pieces, capsys)
    assert any(sentence in warning for warning in found["warnings"]), (found["warnings"], found["errors"])
    assert (code, found["errors"]) == (0, [])


def test_one_prompt_for_all_tasks_is_fine_where_their_answers_differ():
    guess = resolve(str(EXAMPLE))()
    assert not alike(guess, guess.tasks(Split.TRAIN)[:4])


def test_classes_that_nobody_wrote_need_no_change(tmp_path: Path, call: Callable[..., Any]):
    file = tmp_path / "talk.jsonl"
    rows = [{"prompt": f"{number}?", "answer": f"[{number}]+"} for number in range(40)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = call("env", "check", f"dataset:{file}", "--env.reward", "regex", "--tasks", "2", "--group", "2")
    assert (found["name"], found["errors"]) == ("talk", [])
    said = " ".join([*found["warnings"], *map(str, found["facts"].values())])
    assert "talk lists no legal replies and has no players" in said
    assert "Demonstrations come from a hosted model (collect --policy)" in said
    assert not [word for word in ("Pass legal", "write players()", "Pay for partial", "Dataset") if word in said]
    forks = next(case for case in found["cases"] if case["case"] == "forks are exact")
    assert forks["found"] == found["facts"]["grouping branch"].removeprefix("no: ")
    refused = call("collect", "--env", f"dataset:{file}", "--env.reward", "regex", "--out", tmp_path / "shown", code=2)
    assert "talk has no scripted player. Name a hosted model as --policy, or write demonstrations yourself" in refused


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("env", "check", "nowhere.py"), "there is no file nowhere.py. `onthejob env new NAME` writes one."),
        (
            ("env", "check", "office"),
            "office brings an environment of its own",
        ),
        (("env", "check", "nonsense"), "there is no environment 'nonsense': known are office, claw"),
        (("env", "check", EXAMPLE, "--group", "1"), "--group must be >= 2, got 1."),
        (("env", "check", EXAMPLE, "--tasks", "0"), "--tasks must be >= 1, got 0."),
        (("env", "check", EXAMPLE, "--limit-s", "0"), "--limit-s must be finite and > 0 seconds, got 0.0."),
        (("env", "check", f"{EXAMPLE}:Other"), "guess.py has no 'Other'; it defines Guess."),
        (("env", "new", "2fast"), "must be a word of letters, digits, - and _, got '2fast'."),
        (("env", "new", "random"), "the name 'random' means something else for Python or onthejob."),
        (("env", "new", "env"), "the name 'env' means something else for Python or onthejob."),
    ],
    ids=lambda value: " ".join(str(word) for word in value[1:])[-40:] if isinstance(value, tuple) else "",
)
def test_wrong_words_are_refused(words: tuple[str, ...], message: str, call: Callable[..., Any]):
    assert message in call(*words, code=2)


def test_a_new_environment_runs_as_it_is_written(call: Callable[..., Any], tmp_path: Path):
    made = call("env", "new", "my-task")
    assert made["environment"] == "my_task.py"
    assert made["next"][0] == "onthejob env check my_task.py"
    found = call("env", "check", "my_task.py", "--tasks", "3")
    assert (found["name"], found["errors"], found["warnings"]) == ("my-task", [], [])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_task.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert "my_task.py exists. Choose another name or --folder" in call("env", "new", "my_task", code=2)
    call("env", "new", "my_task", "--folder", "below/it")
    assert (tmp_path / "below/it/test_my_task.py").is_file()


def test_the_example_is_right_and_takes_its_option(call: Callable[..., Any]):
    found = call("env", "check", EXAMPLE, "--env.highest", "2", "--tasks", "3", "--group", "4")
    assert found["errors"] == []
    assert found["groups"][0]["size"] == 4
    best = {row["player"]: row for row in found["players"]}
    assert best["halving"]["turns"] <= 2.0
    assert best["empty replies"]["mean"] == pytest.approx(-0.6)


def test_the_table_for_people(capsys: pytest.CaptureFixture[str]):
    assert main(["env", "check", str(EXAMPLE), "--tasks", "2", "--group", "2", "--quiet"]) == 0
    shown = capsys.readouterr().out
    for text in ("halving", "malformed replies", "groups that differ", "forks are exact", "grouping branch", "guess: no errors"):
        assert text in shown


def test_list_and_show(call: Callable[..., Any]):
    listed = {row["name"]: row for row in call("env", "list")}
    assert listed["claw"]["roles"] == ["agent"]
    assert listed["office"]["from"] == "built in"
    shown = call("env", "show", EXAMPLE, "--env.highest", "20")
    assert shown["options"]["highest"] == {"value": 20, "about": "an option: --env.highest 20", "limit": False}
    assert shown["prompt"][0]["content"] == "Guess my number: 1 to 20. Digits only."
    assert (shown["players"], shown["forks"], shown["tasks of dev"]) == (["halving", "random"], "yes, by copy", 200)
    assert "sales" in call("env", "show", "office")["roles"]


def test_training_refuses_a_broken_one_before_a_model_is_loaded(call: Callable[..., Any], tmp_path: Path):
    (tmp_path / "pick.py").write_text(source(**WRONG["step returns None"][0]), encoding="utf-8")
    said = call("train", "--env", "pick.py", "--model.name", str(tmp_path), code=1)
    assert "turn 1, returned NoneType: None." in said
    assert not (tmp_path / "runs").exists()


def test_the_helper_of_a_users_test_says_the_same(tmp_path: Path):
    file = tmp_path / "pick.py"
    file.write_text(source(**WRONG["not deterministic"][0]), encoding="utf-8")
    kind = resolve(str(file))
    with pytest.raises(ContractError, match=r"Pick\.reset.*is not the same twice"):
        check_env(kind())
    assert isinstance(Workplace(ref=str(file), env=kind()), Workplace)
    assert check_env(module_of(EXAMPLE).Guess()).forks > 0
    with pytest.raises(ConfigError, match=r"Pick\.roles"):
        check_env(type("Pick", (kind,), {"roles": ()})())
    assert isinstance(Running(kind()), Running)
