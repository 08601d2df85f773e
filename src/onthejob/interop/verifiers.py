"""`verifiers:ID`: a taskset that is written for Prime Intellect's verifiers, with its own environment and rewards.

ID is the name of an installed package, or ENV+TASKSET where an environment is paired with a taskset. The package is played
unchanged: its environment runs, its calls of the model are the observations, and its rewards are the episode's. It runs in a
process of its own and, as its dependencies exclude ours, usually in another interpreter; see `verifiers_child`. One agent that
answers with text can be played: no tools, containers, images or several agents.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import sys
import weakref
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from onthejob.envs.env import Env
from onthejob.envs.exchange import Forks, Next
from onthejob.errors import ConfigError, ProgramError
from onthejob.interop.content_split import SHARES, drawn, drawn_split
from onthejob.interop.json_options import json_object
from onthejob.interop.verifiers_process import VerifiersProcess, process
from onthejob.texts import encodable
from onthejob.types import Message, Split, StopReason, Task

AGENT = "agent"
NAME = re.compile(r"[A-Za-z0-9_./@-]+")
RESERVED = ("reward", "turns", "invalid")
"""Metrics that an episode has anyway."""
SPELT = {"system", "user", "assistant"}
PARTS = ("verifiers.py", "verifiers_child.py", "verifiers_loading.py")
"""Files whose code decides what an episode is."""
_numbers = itertools.count(1)


class Verifiers(Env):
    """A taskset of verifiers."""

    roles = (AGENT,)
    what: ClassVar[str] = ""
    """Its id; `environment` makes a subclass of each."""

    python: str = ""
    """Interpreter in which verifiers and the package are installed; empty for this one."""
    args: str = ""
    """Settings of the taskset, a JSON object, e.g. '{"split": "train"}'."""
    heldout_args: str = ""
    """Settings of the taskset for the tasks of dev and test; empty divides the tasks of `args` among all splits."""
    env_args: str = ""
    """Settings of the environment without its taskset, a JSON object."""
    count: int = 1000
    """Tasks that are read of the taskset, at most."""
    timeout_s: float = 300.0
    """Seconds that the package has for an answer, loading included."""
    forks: Forks = "no"  # type: ignore[misc]
    """Write replay where the package always does the same after the same replies; then branches are possible."""
    max_turns: int = 20  # type: ignore[misc]
    """Replies after which verifiers ends the agent's run and scores it."""
    max_new_tokens: int = 256  # type: ignore[misc]
    """Limit of a reply in tokens."""
    threads: int = 1  # type: ignore[misc]
    """Episodes that are stepped at the same time."""

    def tasks(self, split: Split) -> list[Task]:
        """The tasks of a split; those of equal content are in the same one."""
        self._check()
        if not self.heldout_args:
            rows = self._described(heldout=False)["tasks"]
            return self._made(split, rows, _divided(rows, SHARES, self.what), heldout=False)
        if split is Split.TRAIN:
            rows = self._described(heldout=False)["tasks"]
            return self._made(split, rows, [split] * len(rows), heldout=False)
        rows = self._described(heldout=True)["tasks"]
        return self._made(split, rows, _divided(rows, {Split.DEV: 0.5, Split.TEST: 1.0}, self.what), heldout=True)

    def reset(self, task: Task) -> Next:
        """Begin the task's episode and wait for the first call of the model."""
        self._heard: tuple[Message, ...] = ()
        self._number = next(_numbers)
        self._process = self._running()
        self._end = weakref.finalize(self, self._process.send, "drop", number=self._number)
        self._end.atexit = False
        index, key = int(task.payload["index"]), str(task.payload["key"])
        source = self._source(heldout=bool(task.payload["heldout"]))
        return self._next(self._asked("begin", source=source, number=self._number, index=index, key=key))

    def step(self, reply: str) -> Next:
        """Give the reply, and wait for the next call or the rewards."""
        said = encodable(reply)
        self._heard = (*self._heard, Message("assistant", said))
        return self._next(self._asked("answer", number=self._number, reply=said))

    def fingerprint(self) -> str:
        """Of the packages, their sources, and the tasks."""
        own = [(Path(__file__).parent / name).read_text(encoding="utf-8") for name in PARTS]
        told = [self._described(heldout=False), self._described(heldout=True) if self.heldout_args else {}]
        return hashlib.sha256("\0".join([*own, json.dumps(told, sort_keys=True)]).encode()).hexdigest()[:12]

    def anchored(self) -> Mapping[str, Any]:
        """The interpreter is found from every folder."""
        # Not resolved: an interpreter of a virtual environment is a link.
        return {"python": str(Path(self.python).expanduser().absolute())} if self.python else {}

    def _next(self, found: Mapping[str, Any]) -> Next:
        if "over" in found:
            self._end.detach()
            over = found["over"]
            metrics = {f"task/{name}" if name in RESERVED else name: value for name, value in over["metrics"].items()}
            if over["runs"] > 1:
                metrics["runs"] = float(over["runs"])
            stop = StopReason.MAX_TURNS if over["stop"] == "max_turns" else StopReason.DONE
            return self.end(over["reward"], metrics=metrics, stop=stop)
        if self._now.turn >= self.max_turns:
            self._end()
            raise ProgramError(
                f"verifiers:{self.what} runs its agent several times and needs more than {self.max_turns} replies. "
                "Raise --env.max-turns."
            )
        if found["tools"]:
            raise ProgramError(f"verifiers:{self.what} offers tools, and a reply is text. Choose a taskset without tools.")
        talk = tuple(self._message(message) for message in found["messages"])
        last = talk[-1] if talk else None
        if last is None or last.role != "user":
            raise ProgramError(f"verifiers:{self.what} asks for a reply to no message of the user, which no chat template takes.")
        known = len(self._heard)
        goes_on = known and talk[:known] == self._heard and all(message.role == "user" for message in talk[known:])
        self._heard = talk
        if goes_on:
            text = "\n\n".join(message.content for message in talk[known:])
            return self.ask(AGENT, text, fresh=False)
        system = talk[0].content if len(talk) > 1 and talk[0].role == "system" else ""
        return self.ask(AGENT, last.content, system=system, before=talk[1 if system else 0 : -1], fresh=True)

    def _message(self, given: Mapping[str, Any]) -> Message:
        role, content = given.get("role"), given.get("content")
        if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
            content = "\n".join(str(part["text"]) for part in content)
        if role not in SPELT or not isinstance(content, str):
            kind = "an image or other content" if role in SPELT else f"a message of the role {role!r}"
            raise ProgramError(f"verifiers:{self.what} shows {kind}, and only text of system, user and assistant can be shown.")
        return Message(str(role), content)

    def _made(self, split: Split, rows: list[Any], splits: list[Split], *, heldout: bool) -> list[Task]:
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", self.what)
        return [
            Task(
                id=f"{name}-{'heldout-' if heldout else ''}{index:06d}",
                env="verifiers",
                split=split,
                seed=index,
                payload={"index": index, "key": row["key"], "heldout": heldout},
            )
            for index, (row, of) in enumerate(zip(rows, splits, strict=True))
            if of is split
        ]

    def _source(self, *, heldout: bool) -> dict[str, Any]:
        env, _, taskset = self.what.rpartition("+")
        given, flag = (self.heldout_args, "--env.heldout-args") if heldout else (self.args, "--env.args")
        args = json_object(given, flag, '{"split": "train"}')
        env_args = json_object(self.env_args, "--env.env-args", '{"key": "value"}')
        return {
            "env": env,
            "taskset": taskset,
            "args": args,
            "env_args": env_args,
            "count": self.count,
            "max_turns": self.max_turns,
        }

    def _described(self, *, heldout: bool) -> dict[str, Any]:
        return _described(self._running(), self.what, json.dumps(self._source(heldout=heldout), sort_keys=True), self.timeout_s)

    def _running(self) -> VerifiersProcess:
        return process(str(Path(self.python).expanduser().absolute()) if self.python else sys.executable)

    def _asked(self, call: str, **given: Any) -> dict[str, Any]:
        try:
            return self._process.asked(call, self.timeout_s, **given)
        except ProgramError as error:
            raise ProgramError(f"verifiers:{self.what} failed: {error}") from error

    def _check(self) -> None:
        if isinstance(self.count, bool) or self.count < 3:
            raise ConfigError(f"--env.count must be >= 3, one task for each split, got {self.count}.")
        if not 0.0 < self.timeout_s < math.inf:
            raise ConfigError(f"--env.timeout-s must be finite and > 0 seconds, got {self.timeout_s}.")
        if self.forks == "copy":
            raise ConfigError("--env.forks must be no or replay for verifiers: the episode is in another process. Omit it.")
        self._source(heldout=True)


def environment(what: str) -> type[Verifiers]:
    """The environment of one taskset."""
    if not what or what.count("+") > 1 or not all(NAME.fullmatch(part) for part in what.split("+")):
        raise ConfigError(
            f"verifiers:{what} names no taskset. Write verifiers:PACKAGE, the name of an installed package, "
            "or verifiers:ENV+PACKAGE."
        )
    return _kind(what)


def anchored(what: str) -> str:
    """A name is the same from every folder."""
    return what


@cache
def _kind(what: str) -> type[Verifiers]:
    members = {"what": what, "__module__": __name__, "__doc__": f"The taskset {what} of verifiers."}
    # Messages and tables name it by what was asked for.
    return type(what, (Verifiers,), members)


@cache
def _described(running: VerifiersProcess, what: str, source: str, timeout_s: float) -> dict[str, Any]:
    """Tasks and versions, asked once per process."""
    try:
        return running.asked("describe", timeout_s, source=json.loads(source))
    except ConfigError as error:
        raise ConfigError(f"verifiers:{what} cannot be played: {error}.") from error
    except ProgramError as error:
        raise ConfigError(f"verifiers:{what} cannot be loaded: {error}.") from error


def _divided(rows: list[Any], shares: Mapping[Split, float], what: str) -> list[Split]:
    """The split of every task: drawn from its content, or from its number where there is too little content to divide."""
    if len(rows) < len(shares):
        raise ConfigError(f"verifiers:{what} has {len(rows)} tasks, and {len(shares)} splits need one each. Raise --env.count.")
    for contents in ([row["content"] for row in rows], [f"{row['content']} {number}" for number, row in enumerate(rows)]):
        made = [drawn_split(one, shares) for one in contents]
        if len(set(made)) == len(shares):
            return made
        if len(set(contents)) >= len(shares):
            # Few contents: the last ones of the order in which they are drawn are held out.
            ordered, names = sorted(set(contents), key=drawn), list(shares)
            last = dict(zip(reversed(ordered), reversed(names[1:]), strict=False))
            return [last.get(one, names[0]) for one in contents]
    raise AssertionError("as many contents as tasks are at least as many as splits")
