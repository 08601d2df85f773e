"""Environments of `verifiers`, from a process in the interpreter in which they are installed; it begins at the first request.

Requests and answers are lines of JSON, several of which may be open. The process leads a group of its own, which ends with this
process: a regular exit closes it, and after a crash its input ends. What it prints is kept for messages.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

from onthejob.errors import ConfigError, MissingDependency, ProgramError

END_S = 4.0
"""Time that the process has to take down what it started."""
KEPT, SHOWN = 1 << 20, 600
"""Bytes of its output that are kept, and characters of their end that a message shows."""
NEEDS = "verifiers>=0.4,<0.5"
HOW = (
    f"Its dependencies exclude ours, so give it an interpreter of its own: python3 -m venv .venv-verifiers && "
    f".venv-verifiers/bin/pip install '{NEEDS}' THE-PACKAGE, then --env.python .venv-verifiers/bin/python"
)


class VerifiersProcess:
    """The process; safe to use from several threads."""

    def __init__(self, python: str) -> None:
        """python: path of the interpreter."""
        self._python = python
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._open: dict[int, Future[dict[str, Any]]] = {}
        self._count = 0
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # held as long as the process

    def asked(self, call: str, timeout_s: float, **given: Any) -> Any:
        """The answer to a request.

        Raises:
            ConfigError: the environment cannot be played.
            ProgramError: it failed, gave no answer in time, or the process ended.
        """
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
            process = self._begun()
            self._count += 1
            number = self._count
            self._open[number] = answer
            self._send(process, {"id": number, "call": call, "with": given})
        try:
            row = answer.result(timeout_s)
        except TimeoutError:
            # What computes without end holds up everything else in the process.
            self._end(process)
            raise ProgramError(
                f"the process of verifiers gave no answer to {call} within {timeout_s:g} s and was ended. "
                "If the package may take longer, raise --env.timeout-s."
            ) from None
        if "refused" in row:
            raise ConfigError(row["refused"])
        if "failed" in row:
            raise ProgramError(row["failed"])
        return row["value"]

    def send(self, call: str, **given: Any) -> None:
        """A request whose answer is not waited for; none is sent to a process that does not run."""
        with self._lock:
            process = self._process
            if process is not None and process.poll() is None:
                self._count += 1
                self._send(process, {"id": self._count, "call": call, "with": given})

    def close(self) -> None:
        """End the process; it begins anew at the next request."""
        process = self._process
        if process is not None:
            self._end(process, END_S)

    def finish(self) -> None:
        """End the process for good."""
        self.close()
        self._printed.close()

    @property
    def pid(self) -> int | None:
        """Id of the process while it runs."""
        process = self._process
        return None if process is None else process.pid

    def _send(self, process: subprocess.Popen[str], row: dict[str, Any]) -> None:
        assert process.stdin is not None
        # Of a process that has ended the reader says so.
        with contextlib.suppress(BrokenPipeError, ValueError):
            process.stdin.write(json.dumps(row) + "\n")
            process.stdin.flush()

    def _begun(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._printed.seek(0)
        self._printed.truncate()
        own = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "PYTHONUNBUFFERED": "1"}
        file = Path(__file__).with_name("verifiers_child.py")
        # -P: the folder of the file holds modules of the names of packages.
        made = self._process = subprocess.Popen(
            [self._python, "-P", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env={**os.environ, **own},
            encoding="utf-8",
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(made,), name="verifiers", daemon=True).start()
        return made

    def _read(self, process: subprocess.Popen[str]) -> None:
        """Hand answers to those who wait, until the process ends."""
        assert process.stdout is not None
        why = ""
        with process.stdout, contextlib.suppress(ValueError, OSError):
            for line in process.stdout:
                try:
                    row = json.loads(line)
                    answer = self._open.pop(row["id"], None)
                except (ValueError, KeyError, TypeError):
                    why = f"the process of verifiers wrote {line!r:.80}, which is no answer, and was ended"
                    break
                if answer is not None:
                    answer.set_result(row)
                if os.fstat(self._printed.fileno()).st_size > KEPT:
                    os.ftruncate(self._printed.fileno(), 0)
        self._end(process, 0.0, why)

    def _end(self, process: subprocess.Popen[str], patience_s: float = 0.0, why: str = "") -> None:
        """Kill the process and its group, and say so to those who wait."""
        with self._lock:
            if self._process is process:
                self._process = None
            with contextlib.suppress(OSError, ValueError):
                if process.stdin is not None:
                    process.stdin.close()
            if patience_s:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(patience_s)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            waiting = [self._open.pop(number) for number in list(self._open)] if self._process is None else []
        for answer in waiting:
            if not answer.done():
                answer.set_result(
                    {"failed": why or f"the process of verifiers ended (exit code {process.returncode}): {self._tail()}"}
                )

    def _tail(self) -> str:
        """The end of what it printed."""
        if self._printed.closed:
            return "it was ended with this process"
        size = os.fstat(self._printed.fileno()).st_size
        start = max(0, size - 4 * SHOWN)
        text = os.pread(self._printed.fileno(), size - start, start).decode("utf-8", "replace")
        return " ".join(text.split())[-SHOWN:] or "it printed nothing"


def process(python: str) -> VerifiersProcess:
    """The process of an interpreter, one in each process of ours.

    Args:
        python: path of the interpreter.

    Raises:
        ConfigError: there is none.
        MissingDependency: verifiers is not installed in it.
    """
    return _of_process(os.getpid(), python)


@cache
def _of_process(_pid: int, python: str) -> VerifiersProcess:
    if not os.access(python, os.X_OK) or Path(python).is_dir():
        raise ConfigError(f"--env.python must be the path of a Python interpreter, got {python!r}. {HOW}.")
    version = _version(python)
    if not version:
        raise MissingDependency(f"verifiers is not installed in {python}. {HOW}.")
    if not version.startswith("0.4."):
        raise ConfigError(
            f"{python} has verifiers {version}, and 0.4 is what can be played. Run: {python} -m pip install '{NEEDS}'"
        )
    made = VerifiersProcess(python)
    atexit.register(made.finish)
    return made


def _version(python: str) -> str:
    """The version of verifiers in an interpreter; empty where there is none."""
    code = (
        "import sys, importlib.metadata as m\n"
        "assert sys.version_info >= (3, 11), 'it is Python %d.%d' % sys.version_info[:2]\n"
        "print('verifiers', next((one.version for one in m.distributions(name='verifiers')), ''))"
    )
    try:
        found = subprocess.run([python, "-P", "-c", code], capture_output=True, encoding="utf-8", timeout=120, check=False)
        told = found.stdout.partition("verifiers ")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"--env.python {python} cannot be started: {error}. {HOW}.") from error
    if found.returncode or not told[1]:
        last = (found.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise ConfigError(f"--env.python {python} is no Python from 3.11 on: {last}. {HOW}.")
    return told[2].strip()
