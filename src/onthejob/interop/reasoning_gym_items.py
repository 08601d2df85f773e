"""Items of Reasoning Gym and the scores of answers, from a process of its own that begins at the first request.

It ends with this one: a regular exit closes it, and after a crash its input ends.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import select
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from onthejob.errors import MissingDependency

WAIT_S = 900.0
"""Time for an answer of the process, which limits its own processor time long before."""


class AnswerScore(NamedTuple):
    """What a reply earns."""

    reward: float
    unusable: str
    """Why it cannot be scored; empty when it can."""


class GymQuestion(NamedTuple):
    """A question."""

    question: str
    answer: str | None
    """A right one; None where the dataset knows none."""


class Ended(RuntimeError):
    """The process ended before it answered."""


class Items:
    """The process; safe to use from several threads."""

    def __init__(self) -> None:
        """Raises MissingDependency where the package is not installed."""
        if importlib.util.find_spec("reasoning_gym") is None:
            raise MissingDependency("reasoning-gym is not installed. Run: pip install 'onthejob[reasoning-gym]'")
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def names(self) -> list[str]:
        """Names of all datasets."""
        return self._asked("names")

    def prompts(self) -> dict[str, str]:
        """The package's own system prompts."""
        return self._asked("prompts")

    def checked(self, name: str, config: str) -> str:
        """A sentence on what is wrong with the configuration (JSON) of a dataset; empty when nothing is."""
        return self._asked("checked", name, config)

    def item(self, name: str, config: str, seed: int) -> GymQuestion:
        """The question of a seed.

        Raises:
            RuntimeError: the dataset cannot make it.
        """
        return GymQuestion(**self._asked("item", name, config, seed))

    def score(self, name: str, config: str, seed: int, reply: str) -> AnswerScore:
        """What a reply to the question of a seed earns; one that cannot be scored earns 0.

        Raises:
            RuntimeError: the dataset cannot make the question.
        """
        self.item(name, config, seed)
        try:
            found = self._asked("score", name, config, seed, reply)
        except Ended:
            return AnswerScore(0.0, "scoring it needs too much time or memory")
        return AnswerScore(found["score"], found["unusable"])

    def close(self) -> None:
        """End the process; it begins anew at the next request."""
        with self._lock:
            self._end()

    def _asked(self, call: str, *arguments: Any) -> Any:
        with self._lock:
            process = self._begun()
            assert process.stdin is not None
            assert process.stdout is not None
            line = ""
            try:
                process.stdin.write(json.dumps([call, arguments]) + "\n")
                process.stdin.flush()
                if select.select([process.stdout], [], [], WAIT_S)[0]:
                    line = process.stdout.readline()
            except BrokenPipeError:
                pass
            if not line:
                self._end()
                raise Ended(f"the process of reasoning-gym ended during {call} of {', '.join(map(str, arguments[:3]))}")
        row = json.loads(line)
        if "error" in row:
            raise RuntimeError(f"reasoning-gym failed in {call} of {', '.join(map(str, arguments[:3]))}: {row['error']}")
        return row["value"]

    def _begun(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            own = {"PYTHONHASHSEED": "0", "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            file = Path(__file__).with_name("reasoning_gym_child.py")
            # -P: the folder of the file holds modules of the names of packages.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **own},
                encoding="utf-8",
                start_new_session=True,
            )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def items() -> Items:
    """The one of this process."""
    return _of_process(os.getpid())


@cache
def _of_process(_pid: int) -> Items:
    made = Items()
    atexit.register(made.close)
    return made
