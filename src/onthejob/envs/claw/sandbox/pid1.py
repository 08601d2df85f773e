"""The first process inside a sandbox on a machine without Perl: `pid1.pl`, which has the protocol, once more in Python.

It runs alone with the system's Python (3.8 or newer) and the few modules that start quickly; `signal` would double the time.
As there, its interpreter's file may be executed but not read, so that its memory and descriptors are closed to the agent.

Arguments: the socket's descriptor, that of a file in memory for long commands, bytes kept per stream, then limit:NUMBER=VALUE for
the resource limits. Without arguments it ends at once, which shows that the interpreter can run it.
"""

from __future__ import annotations

import _signal as signal  # pyright: ignore[reportMissingImports]
import os
import resource
import select
import struct
import sys
import time

CHUNK = 65_536
INLINE_BYTES = 100_000
"""Longest command handed over as an argument; the kernel's limit is 128 KiB. Longer ones go through the file in memory."""
TIMED_OUT, NOT_RUN = 124, 126
SIGNALS = 64
WANTED = {"Uid", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Groups"}
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
ENVIRONMENT = {
    "PATH": "/run/bin:/usr/local/bin:/usr/bin:/bin",
    "PYTHONPATH": "/run/python",
    "HOME": "/work",
    "PWD": "/work",
    "USER": "agent",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "TZ": "UTC",
}


class Stream:
    """One output pipe: the beginning and the end are kept, everything is counted.

    A command may open its own pipe and take away what was there a moment ago, so reading never waits.
    """

    def __init__(self, keep: int) -> None:
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        self.size = 0
        self._head, self._tail = bytearray(), bytearray()
        self._room, self._most = keep // 2, keep - keep // 2

    def take(self) -> int | None:
        """Read once; returns the number of bytes, 0 at the end, None when there is nothing to read yet."""
        try:
            chunk = os.read(self.read, CHUNK)
        except BlockingIOError:
            return None
        self.size += len(chunk)
        fits = chunk[: self._room]
        self._head += fits
        self._room -= len(fits)
        self._tail += chunk[len(fits) :]
        del self._tail[: -self._most]
        return len(chunk)

    def rest(self) -> bytes:
        """Read what is there without waiting; returns all that was kept."""
        while self.take():
            pass
        os.close(self.read)
        return bytes(self._head + self._tail)


class Supervisor:
    """Runs one fresh `bash -c` per request, and leaves nothing alive after it."""

    def __init__(self, control: int, script: int, keep: int) -> None:
        self._control, self._script, self._keep = control, script, keep
        os.set_inheritable(control, False)
        os.set_inheritable(script, False)
        # A descriptor reports ends of processes: a handler could run between looking and waiting, and be missed.
        self._ends, told = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        default_signals()
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Answer until the other side is gone."""
        self._answer(facts())
        while True:
            request = self._receive(int.from_bytes(self._receive(4), "big"))
            self._answer(self._run(request[8:], int.from_bytes(request[:8], "big") / 1000))

    def _receive(self, count: int) -> bytes:
        """Exactly so many bytes; when the other side is gone, so is the sandbox."""
        data = bytearray()
        while len(data) < count:
            chunk = os.read(self._control, count - len(data))
            if not chunk:
                os._exit(0)
            data += chunk
        return bytes(data)

    def _answer(self, data: bytes) -> None:
        """One frame."""
        view = memoryview(len(data).to_bytes(4, "big") + data)
        try:
            while view:
                view = view[os.write(self._control, view) :]
        except OSError:
            os._exit(0)

    def _run(self, command: bytes, timeout_s: float) -> bytes:
        """Run one command; returns the reply."""
        out, err = Stream(self._keep), Stream(self._keep)
        deadline = time.monotonic() + timeout_s
        code, problem = NOT_RUN, b""
        shell = -1
        try:
            shell = os.fork()
        except OSError as error:
            problem = f"bash could not be started: {error.strerror}\n".encode()
        if shell == 0:
            become(command, out.write, err.write, self._script)
        os.close(out.write)
        os.close(err.write)
        if shell > 0:
            code = self._watch(shell, deadline, [out, err])
            bury()
            # Nothing of the command stays in it.
            os.lseek(self._script, 0, os.SEEK_SET)
            os.ftruncate(self._script, 0)
        said, complained = out.rest(), err.rest()
        timed_out = code < 0
        head = struct.pack(">BHQQI", timed_out, TIMED_OUT if timed_out else code, out.size, err.size + len(problem), len(said))
        return head + said + complained + problem

    def _watch(self, shell: int, deadline: float, streams: list[Stream]) -> int:
        """Collect output until the shell ends or the time is up; returns the shell's exit code, or -1 when the time is up.

        Whatever else ends meanwhile was left to this process by its parent: it is reaped at once, because until then it counts as
        one of the processes that the sandbox may have.
        """
        listening = {stream.read: stream for stream in streams}
        while True:
            # Checked in every round: a flood of output must not hold the clock.
            left = deadline - time.monotonic()
            if left <= 0:
                return -1
            ready = select.select([*listening, self._ends, self._control], [], [], min(left, 3600))[0]
            if self._ends in ready:
                # First read, then looked: an end after the last look is reported again.
                os.read(self._ends, CHUNK)
                # Nor may a flood of ends hold the clock.
                while time.monotonic() < deadline:
                    try:
                        pid, status = os.waitpid(-1, os.WNOHANG)
                    except ChildProcessError:
                        break
                    if pid == shell:
                        return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                    if pid == 0:
                        break
            # Nothing is sent during a command: the other side is gone.
            if self._control in ready:
                os._exit(0)
            for descriptor in ready:
                if descriptor in listening and listening[descriptor].take() == 0:
                    del listening[descriptor]


def default_signals() -> None:
    """What is run starts with every signal at its default; Python ignores some, and catches one that could end this process.

    The C library keeps two for itself and refuses to change them: those are the starting process's business.
    """
    for number in range(1, SIGNALS + 1):
        try:
            signal.signal(number, signal.SIG_DFL)
        except OSError:
            continue


def become(command: bytes, out: int, err: int, script: int) -> None:
    """In the child: become bash. What goes wrong is said where the command would have spoken."""
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.dup2(out, 1)
        os.dup2(err, 2)
        words = [b"bash", b"-c", command]
        if len(command) > INLINE_BYTES:
            view = memoryview(command)
            while view:
                view = view[os.write(script, view) :]
            os.lseek(script, 0, os.SEEK_SET)
            os.set_inheritable(script, True)
            words = [b"bash", f"/proc/self/fd/{script}".encode()]
        os.execve("/bin/bash", words, ENVIRONMENT)
    except OSError as error:
        os.write(2, f"bash could not be started: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_RUN)


def bury() -> None:
    """Kill and reap everything else in this pid namespace."""
    try:  # noqa: SIM105 - contextlib starts slowly
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        return


def facts() -> bytes:
    """Credentials and namespaces of this process, one `name value` per line."""
    found = []
    with open("/proc/self/status", encoding="utf-8") as status:  # noqa: PTH123 - so does pathlib
        for line in status:
            name, _, value = line.rstrip().partition(":\t")
            if name in WANTED:
                found.append(f"{name} {value}")
    found += [f"ns:{space} " + os.readlink(f"/proc/self/ns/{space}") for space in NAMESPACES]  # noqa: PTH115
    return "\n".join([*found, f"pid {os.getpid()}"]).encode()


def main() -> None:
    """See the module."""
    control, script, keep = map(int, sys.argv[1:4])
    for word in sys.argv[4:]:
        number, _, value = word[len("limit:") :].partition("=")
        resource.setrlimit(int(number), (int(value), int(value)))
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    supervisor = Supervisor(control, script, keep)
    os.umask(0o022)
    # From here on nothing is said there: what bubblewrap and we complain about when starting ends here.
    os.dup2(null, 2)
    os.close(null)
    supervisor.serve()


if __name__ == "__main__" and len(sys.argv) > 1:
    main()
