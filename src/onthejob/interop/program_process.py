"""One run of an agent program: in a process group of its own, which ends with its episode and with this process.

The end of its output is kept, in bounded memory. On Linux the kernel kills the group when this process is gone, however it went.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from onthejob.errors import ProgramError

KEPT = 1 << 18
"""Bytes of the end of each output that are kept."""
POLL_S = 0.1
"""Seconds between two looks at a program that writes nothing; its end is otherwise seen by the end of its output."""
DRAINS = 64
"""Last looks at the pipes of a program that has ended; each takes 64 KiB of either."""
END_S = 5.0
"""Seconds after which a group that was killed is no longer waited for."""


class Process:
    """A started program."""

    def __init__(self, words: Sequence[str], *, environment: Mapping[str, str], folder: Path, on_end: Callable[[], None]) -> None:
        """Start the program.

        Args:
            words: the command.
            environment: all variables of the program.
            folder: its working directory.
            on_end: called once, in another thread, when it and all of its group have ended.

        Raises:
            ProgramError: it cannot be started.
        """
        self._on_end = on_end
        self._tails = {"stdout": b"", "stderr": b""}
        self._killing = threading.Lock()
        self._reaped = False
        self.code: int | None = None
        """Exit code once it has ended; -N: killed by signal N."""
        held, self._life = os.pipe()
        try:
            self._process = subprocess.Popen(
                words,
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=(held,),
            )
        except (OSError, ValueError) as error:
            os.close(self._life)
            os.close(held)
            raise ProgramError(f"{words[0]} cannot be started: {error}. Try the command in a shell.") from error
        _end_with_us(held, self._process.pid)
        os.close(held)
        self._watch = threading.Thread(target=self._watched, name="program", daemon=True)
        self._watch.start()

    @property
    def pid(self) -> int:
        """Id of the process and of its group."""
        return self._process.pid

    def tail(self, output: str) -> str:
        """The end of `stdout` or `stderr`."""
        return self._tails[output].decode("utf-8", "replace")

    def end(self) -> None:
        """Kill what is left of the group, and wait for it."""
        self._kill()
        if threading.current_thread() is not self._watch:
            self._watch.join(END_S)

    def _kill(self) -> None:
        # Until the first process is reaped its id cannot be another group's.
        with self._killing:
            if not self._reaped:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def _watched(self) -> None:
        """Read both outputs until the process has ended, then end its group."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        with selectors.DefaultSelector() as selector:
            for name, pipe in (("stdout", self._process.stdout), ("stderr", self._process.stderr)):
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ, name)
            while not _has_ended(self._process):
                # Both may be closed by a program that continues.
                if self._read(selector, POLL_S) == 0 and not selector.get_map():
                    _sleep_until_end(self._process)
            self._kill()
            # What is in the pipes; a process that has left the group may still be writing.
            for _ in range(DRAINS):
                if not self._read(selector, 0.0):
                    break
        with self._killing:
            self.code = self._process.wait()
            self._reaped = True
            os.close(self._life)
        self._process.stdout.close()
        self._process.stderr.close()
        self._on_end()

    def _read(self, selector: selectors.BaseSelector, wait_s: float) -> int:
        """Take what there is; returns the number of bytes."""
        if not selector.get_map():
            return 0
        count = 0
        for key, _ in selector.select(wait_s):
            try:
                data = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            if not data:
                selector.unregister(key.fileobj)
            count += len(data)
            self._tails[key.data] = (self._tails[key.data] + data)[-KEPT:]
        return count


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process has ended; where the system can, without reaping it."""
    if sys.platform == "linux":
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return process.poll() is not None


def _sleep_until_end(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "linux":
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()


def _end_with_us(held: int, group: int) -> None:
    """Have the kernel kill `group` when the other end of the pipe `held`, which is ours alone, is closed.

    Not PR_SET_PDEATHSIG: that kills when the thread ends that made the process, and only the process itself.
    """
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(held, fcntl.F_SETOWN, -group)
        fcntl.fcntl(held, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(held, fcntl.F_SETFL, fcntl.fcntl(held, fcntl.F_GETFL) | os.O_ASYNC)


def last_line(text: str) -> str:
    """The last line that is not empty, without the white space around it."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def removed(folder: Path) -> None:
    """Remove an episode's folder; what the program made unreadable stays."""
    shutil.rmtree(folder, ignore_errors=True)
