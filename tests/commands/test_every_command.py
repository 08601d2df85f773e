"""Every command on an environment that only a file of a temporary folder knows: none of them needs a change for it."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from onthejob.cli import COMMANDS
from onthejob.record import Run
from onthejob.testing import tiny_model

COIN = '''
"""Two call a coin, one after the other; a coin of theirs says which side is likely."""

from onthejob import Env, Next, Split, Task


class Coin(Env):
    roles = ("first", "second")
    max_turns, max_new_tokens = 2, 3
    bonus: float = 1.0
    """Paid for the right side."""

    def tasks(self, split: Split) -> list[Task]:
        return self.seeded(split, count=12)

    def reset(self, task: Task) -> Next:
        self.likely = ("heads", "tails")[task.draw("likely") % 2]
        return self.call("first")

    def call(self, role: str) -> Next:
        return self.ask(role, f"mostly {self.likely}", legal=["heads", "tails"])

    def step(self, reply: str) -> Next:
        if reply.strip() not in ("heads", "tails"):
            return self.end(rewards={self.role: -1.0}, valid=False)
        right = self.likely if self.rng("coin").random() < 0.9 else {"heads": "tails", "tails": "heads"}[self.likely]
        paid = {self.role: self.bonus * (reply.strip() == right)}
        if self.role == "second":
            return self.end(rewards=paid)
        return Next(request=self.call("second").request, rewards=paid)

    def players(self):
        return {"likely": lambda seen, seed: seen.view["text"].split()[-1]}
'''
WITHOUT = {
    "demo": "the office's, with a fixed recipe",
    "serve model": "serves adapters, in no environment",
    "serve trainer": "makes updates, in no environment",
    "policy swap": "speaks to a server that plays",
    "env new": "writes a new one",
    "env list": "lists what is installed",
    "runs rescore": "the claw's grades",
    "office gates": "the office's",
    "office behaviours": "the office's",
    "scenarios list": "the office's",
    "scenarios show": "the office's",
    "scenarios lint": "the office's",
    "tasks list": "the claw's",
    "tasks show": "the claw's",
    "tasks convert": "those of another benchmark",
    "tasks synth": "the claw's",
    "tasks validate": "the claw's",
    "model fetch": "no environment",
    "model show": "no environment",
    "model merge": "no environment",
    "adapters import": "no environment",
    "adapters pull": "no environment",
    "scale doctor": "no environment",
    "sandbox doctor": "no environment",
    "doctor": "no environment",
}
"""Commands that play in no environment of the user's own, and why; all others are run below."""


SERVERS = ("serve env", "view")
"""Commands that serve until they are stopped."""


@pytest.fixture(scope="module")
def tiny_words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model that knows the words of the file."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny = tiny_model(words=["mostly", "heads", "tails"])
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def coin(tmp_path: Path) -> Path:
    """The file, in the empty folder in which `call` runs commands."""
    path = tmp_path / "coin.py"
    path.write_text(COIN, encoding="utf-8")
    return path


def test_every_command_plays_an_environment_that_only_a_file_knows(call, coin: Path, tiny_words: Path):
    ran: set[str] = set()

    def run(name: str, *words: str | Path, **expected: int):
        ran.add(name)
        return call(*name.split(), *words, **expected)

    env, model = ("--env", "coin.py"), ("--model.name", tiny_words, "--model.dtype", "float32")
    assert run("env check", "coin.py")["errors"] == []
    assert run("env show", "coin.py:Coin")["roles"] == ["first", "second"]
    assert run("play", "coin.py", "--policy", "likely")["metrics"]
    run("collect", *env, "--count", "12", "--policy", "likely", "--out", "demos")
    run("sft", "demos", "--epochs", "30", "--lora.rank", "2", "--lr", "0.01", "--out", "start", *model)
    small = ("--collect.episodes", "3", "--branch.group-size", "4", "--branch.worlds", "2", "--branch.turns", "2")
    branch = ("--grouping", "branch", "--library-tasks", "10", "--scale-states", "4", *small)
    assert run("scale plan", *env, *branch, *model, "--scale.learners", "2")["nodes"][0]["seats"]["learner"] == 2
    trained = run("train", *env, "--init", "start", *branch, *model, "--iterations", "2", "--name", "mine", "--track", "jsonl")
    assert set(trained["adapters"]) == {"first", "second"}
    judging = ("--per-role", "4", "--worlds", "2", "--turns", "2", "--candidates", "2")
    judged = run("eval", "start", "mine", "likely", *env, *judging, *model)
    assert set(judged["states"]) == {"first", "second"}
    assert {cell["actor"] for cell in judged["cells"] if cell["team"] == "likely"} == {"first", "second"}
    assert "was collected with --env.bonus 1.0, got --env.bonus 2.0" in " ".join(
        run("eval", "likely", *env, "--env.bonus", "2", code=2).split()
    )
    compared = run("compare", "start", "mine", "likely", "random", *env, "--limit", "6", "--name", "told", *model)
    assert {row["team"] for row in compared["means"]} == {"start", "mine", "likely", "random"}
    run("train", "--resume", "mine", "--extend", "3")
    assert run("runs ls")
    assert run("runs show", "mine")
    run("runs check", "mine")
    run("runs export", "mine", "--out", "exported")
    assert list(Path("exported").iterdir())
    run("runs sync", "mine", "--track", "rows.csv")
    assert list(Path().glob("rows*.csv"))
    assert run("runs replay", "mine")["matches"] is True
    run("runs push", "mine", "me/mine-record", "--dry-run")
    run("adapters push", "mine", "me/mine", "--dry-run")
    assert "coin.py" in Path("shared/mine/README.md").read_text(encoding="utf-8")
    with Run.open(Path("runs/mine"), readonly=True) as recorded:
        assert recorded.config["env"]["ref"] == str(coin)
        assert recorded.last_iteration() == 3
    assert ran | set(WITHOUT) | set(SERVERS) == set(COMMANDS), "a new command is run here, or WITHOUT says why not"


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "path"), [(["serve", "env", "coin.py"], "/health"), (["view", "--env", "coin.py", "--no-open"], "/")]
)
def test_it_is_served_and_viewed(coin: Path, words: list[str], path: str):
    command = [sys.executable, "-m", "onthejob", *words, "--port", "0"]
    with subprocess.Popen(command, cwd=coin.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            said = next(line for line in process.stdout if "http://" in line)
            address = "http://" + said.split("http://")[1].split()[0].rstrip("/;,.")
            deadline, status = time.monotonic() + 120, 0
            while status != 200:
                assert time.monotonic() < deadline, said
                with suppress(httpx.TransportError):
                    status = httpx.get(f"{address.partition('?')[0]}{path}", timeout=60, trust_env=False).status_code
                time.sleep(0.1)
        finally:
            process.terminate()
            process.communicate(timeout=60)
