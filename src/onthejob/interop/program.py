"""`program:COMMAND`: an agent program, unchanged, as an environment.

The program starts once per episode. It asks for replies as it would ask OpenAI's API, at the address in OPENAI_BASE_URL with the
key in OPENAI_API_KEY: its calls are the observations, and the model that it names is the role. Its last printed line, or what it
posts to /reward, is the reward. A call that extends the conversation of its role continues that context token for token; any
other begins a new one. A program that crashes, hangs or gives no reward ends its episode with an error, which is recorded and not
trained on.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn

from onthejob.envs.declared import check_roles
from onthejob.envs.env import Env
from onthejob.envs.exchange import Next
from onthejob.errors import ConfigError, ContractError, ProgramError
from onthejob.interop.dataset import MATCHERS, READERS, check_reward, rows_of, scored, source_of, split_of
from onthejob.interop.program_http import Server
from onthejob.interop.program_line import Call, Line, read_reward
from onthejob.interop.program_process import Process, last_line, removed
from onthejob.interop.program_refusal import Refusal
from onthejob.interop.program_tools import repeated
from onthejob.texts import encodable, printable, without
from onthejob.types import Message, Split, StopReason, Task, ToolSpec

SHOWN, SHOWN_LINES = 800, 6
"""Characters and lines of the end of stderr in a message."""
MOST_VARIABLE = 100_000
"""Bytes of a task that are passed in a variable; the system's own limit is 128 KiB."""
MOST_HASHED = 64 << 20
"""Bytes of a file of the command up to which its content is part of the fingerprint, else its size."""
OVER = "the episode is over."
PARTS = ("program.py", "program_http.py", "program_line.py", "program_process.py", "program_talk.py", "program_tools.py")
"""Files whose code decides what an episode is."""


class Program(Env):
    """An agent program: its calls of OpenAI's API are the observations, and it says what an episode is worth."""

    forks = "no"
    command: ClassVar[tuple[str, ...]] = ()
    """Its words; `environment` makes a subclass of each command."""

    roles: tuple[str, ...] = ("agent",)  # type: ignore[misc]
    """Names of models that the program asks for; with a single role any name means it."""
    data: str = ""
    """File of tasks, one per row: JSON lines, CSV or Parquet. Without one, tasks are numbers."""
    count: int = 200
    """Tasks of each split, without a file."""
    reward: str = ""
    """Score of the last printed line: exact, contains, number, choice, regex, json, or a function of yours as file.py:name or
    package.module:name. Empty: the line is the reward, unless the program posts one."""
    answer: str = ""
    """Column of the answer, for the matchers; empty takes the first of answer, solution, target, label, and others."""
    unfinished_reward: float = 0.0
    """Reward of an episode that is cut after max_turns calls before the program posted one."""
    cwd: str = ""
    """Working directory of the program; empty gives every episode an empty one, which is removed afterwards."""
    limit_s: float = 300.0
    """Seconds that the program may take for an episode, without those in which replies are sampled."""
    start_s: float = 120.0
    """Seconds until its first call."""
    max_turns: int = 20  # type: ignore[misc]
    """Calls that are answered in an episode."""
    max_new_tokens: int = 256  # type: ignore[misc]
    """Limit of a reply in tokens."""
    threads: int = 8  # type: ignore[misc]
    """Programs that are waited for at the same time."""

    def __post_init__(self) -> None:
        """Refuse roles that no adapter can have."""
        check_roles(self.roles, "program")

    def open(self) -> None:
        """Begin to listen for calls."""
        self.server = Server()

    def close(self) -> None:
        """End what still runs."""
        self.server.close()

    def tasks(self, split: Split) -> list[Task]:
        """The rows of the file in this split, or numbered tasks."""
        self._check()
        if not self.data:
            numbered = enumerate(self.seeded(split, self.count))
            return [replace(task, env="program", payload={"number": number}) for number, task in numbered]
        table, name = rows_of(self.data), Path(self.data).stem
        if self.reward:
            check_reward(self.reward, table, self.answer, self.data)
        return [
            Task(id=f"{name}-{number:06d}", env="program", split=split, seed=number, payload=dict(row))
            for number, row in enumerate(table)
            if split_of(row, row.get("prompt", row), f"{self.data}, row {number + 1}") is split
        ]

    def reset(self, task: Task) -> Next:
        """Start the program and wait for its first call."""
        if "server" not in vars(self):
            raise ContractError("a program needs the server that answers it. Call open() before the first episode.")
        self._row, self._left_s, self._call = dict(task.payload), self.limit_s, None
        self._heard: dict[str, _Heard] = {}
        self._settled = dict.fromkeys(self.roles, 0.0)
        self._line = Line(self.roles, takes_rewards=not self.reward)
        self._live = _Live(self.server, self._line, self.command, self.cwd, task)
        # Also when the episode is abandoned: then this object is dropped.
        self._end = weakref.finalize(self, self._live.end)
        return self._next(min(self.start_s, self.limit_s))

    def step(self, reply: str) -> Next:
        """Answer the call, and wait for the next one or for the program's end."""
        call = self._call
        assert call is not None
        said = encodable(reply)
        given = call.asked.cut(said)
        if given == said:
            asked = call.asked
            self._heard[asked.role] = _Heard((*asked.messages, repeated(said, asked.tools)), asked.tools)
        else:
            # The program knows less than the context holds, so its next call begins a new one.
            self._heard.pop(call.asked.role, None)
        self._line.answer(call, given)
        return replace(self._next(self._left_s), facts={"call": call.number, "cut": given != said})

    def fingerprint(self) -> str:
        """Of the command, the files that it names, the tasks, and the reward's source."""
        digest = hashlib.sha256()
        for word in self.command:
            digest.update(_content(Path(word)) if _is_file(word) else word.encode("utf-8", "surrogateescape") + b"\0")
        if self.data:
            digest.update(Path(self.data).read_bytes())
        if self.reward and self.reward not in MATCHERS:
            digest.update(source_of(self.reward).encode())
        for name in PARTS:
            digest.update(Path(__file__).with_name(name).read_bytes())
        return digest.hexdigest()[:12]

    def anchored(self) -> Mapping[str, Any]:
        """Paths are found from every folder."""
        from onthejob import plugins

        found = {name: _absolute(value) for name, value in (("data", self.data), ("cwd", self.cwd)) if value}
        if self.reward and self.reward not in MATCHERS:
            found["reward"] = plugins.anchored(self.reward)
        return found

    def _check(self) -> None:
        """Refuse options that cannot work."""
        for flag, value in (("limit-s", self.limit_s), ("start-s", self.start_s)):
            if not value > 0:
                raise ConfigError(f"--env.{flag} must be above 0 seconds, got {value}. Leave it out for the usual limit.")
        if self.cwd and not Path(self.cwd).expanduser().is_dir():
            raise ConfigError(f"--env.cwd {self.cwd} is no folder. Create it, or leave it out for an empty one per episode.")
        if self.data and not Path(self.data).is_file():
            raise ConfigError(f"--env.data {self.data}: there is no such file. Name one that ends with {', '.join(READERS)}.")
        if self.data and Path(self.data).suffix not in READERS:
            raise ConfigError(f"--env.data {self.data} must end with one of {', '.join(READERS)}.")
        if self.reward in MATCHERS and not self.data:
            raise ConfigError(
                f"--env.reward {self.reward} compares with an answer of the task. Name a file of tasks: --env.data."
            )
        if self.answer and self.reward not in MATCHERS:
            raise ConfigError("--env.answer has no effect without --env.reward MATCHER. Leave it out.")
        if self.reward and not self.data:
            check_reward(self.reward, (), "", "")

    def _next(self, limit_s: float) -> Next:
        """What the program does next, within `limit_s` seconds."""
        begun = time.monotonic()
        try:
            call = self._line.take(limit_s)
        except TimeoutError:
            first = self._call is None and limit_s < self.limit_s
            option = f"--env.start-s {self.start_s:g}" if first else f"--env.limit-s {self.limit_s:g}"
            self._fail(f"neither called nor ended within {option}. Raise it, or make the program faster")
        self._left_s = max(0.0, self._left_s - (time.monotonic() - begun))
        if call is None:
            return self._over()
        if self._now.turn >= self.max_turns:
            self._line.close(Refusal(429, f"the episode ends after {self.max_turns} calls.", "max_turns"))
            posted = self._line.posted
            self._end()
            paid = self._owed() if posted else dict.fromkeys(self.roles, self.unfinished_reward)
            return self.end(rewards=paid, metrics=posted.metrics if posted else {}, stop=StopReason.MAX_TURNS)
        self._call = call
        return self._request(call)

    def _request(self, call: Call) -> Next:
        """The call as a request, which continues the context of its role where it extends the conversation."""
        role, messages = call.asked.role, call.asked.messages
        heard, tools = self._heard.get(role, _Heard((), ()))
        continues = bool(heard) and len(messages) > len(heard) and messages[: len(heard)] == heard and call.asked.tools == tools
        new = messages[len(heard) :] if continues else messages
        return self.ask(
            role,
            new[-1].content,
            before=new[:-1],
            fresh=not continues,
            speaker="tool" if new[-1].role == "tool" else "user",
            tools=call.asked.tools,
            view={"model": call.asked.model, "messages": [list(message) for message in new]},
            # Nothing is paid by a reset: no turn could be credited with it.
            rewards=self._owed() if self._now.turn else {},
        )

    def _owed(self) -> dict[str, float]:
        """What was posted and is not paid yet."""
        posted = self._line.posted.rewards if self._line.posted else {}
        owed = {role: amount - self._settled[role] for role, amount in posted.items() if amount != self._settled[role]}
        self._settled |= posted
        return owed

    def _over(self) -> Next:
        """The program has ended: its reward."""
        process, posted = self._live.process, self._line.posted
        if process.code:
            how = f"ended with exit code {process.code}" if process.code > 0 else f"was killed by signal {-process.code}"
            self._fail(f"{how}. Make it survive every reply, or score crashes: sh -c 'COMMAND || echo -1'")
        if self._call is None:
            self._fail("ended before its first call. Have it call the API at OPENAI_BASE_URL with the key OPENAI_API_KEY")
        line = printable(last_line(process.tail("stdout")))
        if posted is not None:
            paid, metrics = self._owed(), posted.metrics
        elif self.reward:
            amount = scored(self.reward, line, self._row, self.answer, self.data)
            paid, metrics = dict.fromkeys(self.roles, amount), {"correct": float(amount >= 1.0)}
        else:
            try:
                stated = read_reward(json.loads(line), self.roles)
            except (ValueError, RecursionError) as error:
                remedy = 'Print a number or {"reward": NUMBER} last, post it to ONTHEJOB_REWARD_URL, or set --env.reward'
                self._fail(f"gave no reward: its last printed line is {line!r:.120} ({error}). {remedy}")
            paid, metrics = stated.rewards, stated.metrics
        self._end()
        return self.end(rewards=paid, metrics=metrics)

    def _fail(self, problem: str) -> NoReturn:
        """End the episode with an error.

        Raises:
            ProgramError: always.
        """
        refused = self._line.refused
        self._end()
        written = printable(without(self._live.process.tail("stderr"), (self._line.token,))).strip()
        lines = "\n".join(written.splitlines()[-SHOWN_LINES:])[-SHOWN:]
        raise ProgramError(
            f"{shlex.join(self.command)} (task {self._now.task.id}, after {self._now.turn} replies) {problem}. "
            + (f"A request of it was refused: {refused} " if refused else "")
            + (f"Its stderr ends with: {lines}" if lines else "It wrote nothing to stderr.")
        )


class _Heard(NamedTuple):
    """The context of a role, as its program repeats it."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]


class _Live:
    """What an episode holds outside this process and in the server."""

    def __init__(self, server: Server, line: Line, command: Sequence[str], cwd: str, task: Task) -> None:
        self._server, self._line = server, line
        self._folder = Path(tempfile.mkdtemp(prefix="onthejob-program-"))
        work = Path(cwd).expanduser().absolute() if cwd else self._folder / "work"
        work.mkdir(exist_ok=True)
        row = json.dumps(dict(task.payload))
        (self._folder / "task.json").write_text(row, encoding="utf-8")
        self._process: Process | None = None
        server.add(line, self.end)
        try:
            environment = variables(os.environ, server.origin, line.token, task, row, self._folder / "task.json")
            self._process = Process(command, environment=environment, folder=work, on_end=line.ended)
        except ProgramError:
            self._leave()
            raise

    @property
    def process(self) -> Process:
        """The program."""
        assert self._process is not None
        return self._process

    def end(self) -> None:
        """Refuse what waits, kill what runs, and remove the folder; does no harm twice."""
        self._line.close(Refusal(503, OVER))
        if self._process is not None:
            self._process.end()
        self._leave()

    def _leave(self) -> None:
        self._server.drop(self._line)
        removed(self._folder)


def variables(own: Mapping[str, str], origin: str, token: str, task: Task, row: str, file: Path) -> dict[str, str]:
    """The environment variables of a program: ours, with OpenAI's replaced.

    Args:
        own: of this process.
        origin: address of the server.
        token: of the episode.
        task: what the episode is of.
        row: its payload as JSON.
        file: where the same is written.
    """
    found = {name: value for name, value in own.items() if not name.startswith("OPENAI_")}
    found |= {
        "OPENAI_BASE_URL": f"{origin}/v1",
        "OPENAI_API_BASE": f"{origin}/v1",
        "OPENAI_API_KEY": token,
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "ONTHEJOB_REWARD_URL": f"{origin}/reward",
        "ONTHEJOB_TASK_ID": task.id,
        "ONTHEJOB_TASK_FILE": str(file),
        "ONTHEJOB_SEED": str(task.seed),
    }
    if len(row) <= MOST_VARIABLE:
        found["ONTHEJOB_TASK"] = row
    for name in ("NO_PROXY", "no_proxy"):  # the address is ours, whatever else goes through a proxy
        found[name] = ",".join(filter(None, (own.get(name, ""), "127.0.0.1")))
    return found


def environment(command: str) -> type[Program]:
    """The environment of one command."""
    words = _words(command)
    if shutil.which(words[0]) is None:
        if Path(words[0]).is_file():
            raise ConfigError(
                f"{words[0]} is not executable. Run `chmod +x {words[0]}`, or name what runs it: program:python FILE."
            )
        raise ConfigError(f"there is no program {words[0]!r}. Install it, or write its path.")
    return _kind(words)


def anchored(command: str) -> str:
    """The command with absolute paths of the files that it names."""
    return shlex.join(_words(command))


def _words(command: str) -> tuple[str, ...]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"program:{command} is no command: {error}. Close the quotation.") from error
    if not words:
        raise ConfigError("program: names no command. Write e.g. --env 'program:python agent.py'.")
    return tuple(_absolute(word) if _is_file(word) else word for word in words)


@cache
def _kind(words: tuple[str, ...]) -> type[Program]:
    about = f"The agent program {shlex.join(words)}."
    return type("Program", (Program,), {"command": words, "__module__": __name__, "__doc__": about})


def _is_file(word: str) -> bool:
    try:
        return Path(word).expanduser().is_file()
    except (OSError, RuntimeError):  # too long for a name, as scripts of `sh -c` are, or the home of an unknown user
        return False


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _content(file: Path) -> bytes:
    size = file.stat().st_size
    return hashlib.sha256(file.read_bytes()).digest() if size <= MOST_HASHED else f"{file.name} {size}".encode()
