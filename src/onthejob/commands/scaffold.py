"""The files that `onthejob env new` writes: an environment that runs as it is, and its test."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path

import onthejob
from onthejob.commands.outputs import check_folder
from onthejob.errors import ConfigError

NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[_-][A-Za-z0-9]+)*")
ENVIRONMENT = '''"""CLASS: find a number. Change it into your own work.

onthejob env check FILE         plays it and says what is wrong
onthejob train --env FILE       trains its role; `--env.highest 20` sets its option
"""

from onthejob import Env, Next, Split, Task


class CLASS(Env):
    """Find a number in a few tries."""

    roles = ("player",)  # whose replies are trained; each role has an adapter of its own
    max_turns = 4  # replies after which an episode always ends
    max_new_tokens = 4  # length of a reply
    highest: int = 9
    """The largest number."""

    def tasks(self, split: Split) -> list[Task]:
        """What is played: tasks that differ by their seed. No seed is in two splits."""
        return self.seeded(split, count=200)

    def reset(self, task: Task) -> Next:
        """Begin an episode. What is set on `self` here is its state; luck comes from `task.draw` and `self.rng`."""
        self.secret = 1 + task.draw("secret") % self.highest
        self.low, self.high = 1, self.highest
        return self.ask("player", f"Guess my number: {self.low} to {self.high}. Digits only.", legal=self.numbers())

    def step(self, reply: str) -> Next:
        """Take a reply. Whatever a model writes, this returns `tell`, `ask`, `invalid` or `end`, and never raises."""
        if reply.strip() not in self.numbers():
            return self.invalid(f"Answer with a number from {self.low} to {self.high}.", reward=-0.2)
        guess = int(reply)
        if guess == self.secret:
            return self.end(reward=1.0, metrics={"found": 1.0})
        if guess < self.secret:
            self.low = guess + 1
        else:
            self.high = guess - 1
        return self.tell(f"It is one of {self.low} to {self.high}.", legal=self.numbers())

    def numbers(self) -> list[str]:
        """What the number can still be."""
        return [str(number) for number in range(self.low, self.high + 1)]

    def players(self):
        """Scripted players by name, to compare with and to begin from: functions (request, seed) -> reply."""
        return {"halving": lambda seen, seed: seen.view["legal"][len(seen.view["legal"]) // 2]}
'''
TEST = '''"""Tests of FILE. Run them with `python -m pytest TESTFILE`."""

from MODULE import CLASS

from onthejob import Split
from onthejob.testing import check_env, play_env


def test_it_keeps_its_promises():
    """Equal seeds give equal episodes, no reply raises, and forks are exact."""
    assert check_env(CLASS()).steps > 0


def test_good_play_earns_more_than_bad_play():
    env = CLASS()
    halving = env.players()["halving"]
    for task in env.tasks(Split.DEV)[:20]:
        good = play_env(env, task, halving)
        bad = play_env(env, task, lambda seen, seed: "no number")
        assert good.rewards["player"] > bad.rewards["player"]
        assert bad.invalid == bad.turns
'''


def write(name: str, folder: Path) -> tuple[Path, Path]:
    """Write NAME.py and test_NAME.py; returns their paths."""
    module = name.replace("-", "_").lower()
    kind = "".join(part[:1].upper() + part[1:] for part in re.split("[_-]", name))
    if not NAME.fullmatch(name) or keyword.iskeyword(module):
        raise ConfigError(f"an environment's name must be a word of letters, digits, - and _, got {name!r}. Write e.g. my_task.")
    if module in sys.stdlib_module_names or module == "onthejob" or hasattr(onthejob, kind):
        raise ConfigError(f"the name {name!r} means something else for Python or onthejob. Choose another, e.g. my_{module}.")
    check_folder(folder, "--folder")
    file, test = folder / f"{module}.py", folder / f"test_{module}.py"
    for path in (file, test):
        if path.exists():
            raise ConfigError(f"{path} exists. Choose another name or --folder, or remove it.")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in ((file, ENVIRONMENT), (test, TEST)):
        for word, value in (("TESTFILE", test.name), ("FILE", file.name), ("MODULE", module), ("CLASS", kind)):
            text = text.replace(word, value)
        path.write_text(text, encoding="utf-8")
    return file, test
