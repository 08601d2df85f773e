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
WAS_LATE, HAS_ENDED = 1, 2
"""Bits of a reply's first byte."""
FROZEN_ROUNDS = 64
"""How often what stopped processes wrote is read: a pipe holds less, and one that is not stopped yet could write forever."""
CODE_DIGITS = 5
"""Of an exit code, at most: the shell writes three."""
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
        self._keep = keep
        self.begin()

    def begin(self) -> None:
        """From now on it is the output of another command."""
        self.size = 0
        self._head, self._tail = bytearray(), bytearray()
        self._room, self._most = self._keep // 2, self._keep - self._keep // 2

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

    def rest(self, rounds: int) -> bytes:
        """Read what is there without waiting, at most so often; returns all that was kept."""
        while rounds and self.take():
            rounds -= 1
        return bytes(self._head + self._tail)


class Shell:
    """A bash with its output: of one command, or one that persists and reads its commands from a pipe.

    Of the latter a second pipe tells when a command has ended, by a random word and with its exit code. What commands print is
    not read there, and while one runs both pipes are closed to all that it starts; only the shell itself holds them.
    """

    def __init__(self, keep: int, *, persistent: bool) -> None:
        self.out, self.err = Stream(keep), Stream(keep)
        self.pid = 0
        """0 until it runs and after it has ended."""
        self.pending, self.word, self.last = b"", b"", b""
        """Text that it has not taken yet, the word of the present command, and the line by which it tells its end."""
        self._heard = b""
        self.given, self.ask, self.told, self.tell = (*os.pipe(), *os.pipe()) if persistent else (-1, -1, -1, -1)
        """Both ends of the pipe of commands and of that of their ends; -1 for none."""
        for descriptor in (self.ask, self.told) if persistent else ():
            os.set_blocking(descriptor, False)

    def started(self, pid: int) -> None:
        """It runs: its ends of the pipes are its own."""
        self.pid = pid
        for descriptor in (self.out.write, self.err.write, self.given, self.tell):
            close(descriptor)

    def close(self) -> None:
        """Nothing is heard of it any more."""
        for descriptor in (self.out.read, self.err.read, self.ask, self.told):
            close(descriptor)

    def begin(self, command: bytes, end: int) -> None:
        """Have it run a command. `end` is the number of the descriptor by which it tells the end."""
        self.out.begin()
        self.err.begin()
        self.word, self._heard = os.urandom(16).hex().encode(), b""
        text = b"\\eval '%s' < /dev/null %d>&-\n" % (command.replace(b"'", b"'\\''"), end)
        # What `set -x` says of this line is not the command's; what `set -v` says of it is removed by `complaints`.
        self.last = b"{ \\builtin printf '\\n%%s %%s\\n' %s \"$?\" >&%d; } 2> /dev/null\n" % (self.word, end)
        self.pending = text + self.last

    def complaints(self, rounds: int) -> bytes:
        """What is kept of stderr, as `Stream.rest`, without the line that is not the command's."""
        kept = self.err.rest(rounds)
        if self.last and self.last in kept:
            self.err.size -= len(self.last)
            kept = kept.replace(self.last, b"", 1)
        return kept

    def write(self) -> None:
        """Hand over as much as it takes."""
        try:
            self.pending = self.pending[os.write(self.ask, self.pending[:CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:
            # It has ended, or no longer reads.
            self.pending = b""

    def hear(self) -> int | None:
        """The exit code of the command if the shell has told its end; -1 before, None when it can tell nothing any more."""
        try:
            chunk = os.read(self.told, CHUNK)
        except BlockingIOError:
            return -1
        if not chunk:
            return None
        *lines, self._heard = (self._heard + chunk).split(b"\n")
        # Whatever else is written there is not from the shell.
        self._heard = self._heard[-100:]
        for line in lines:
            word, _, code = line.partition(b" ")
            if word == self.word and code.isdigit() and len(code) <= CODE_DIGITS:
                return min(int(code), 255)
        return -1


class Supervisor:
    """Runs each command in a bash of its own and leaves nothing alive after it, or all of them in one that persists."""

    def __init__(self, control: int, script: int, keep: int) -> None:
        self._control, self._script, self._keep = control, script, keep
        self._shell = None
        """The persistent shell, while there is one; between two commands it and all that it started are stopped."""
        self._end = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1
        """Descriptor by which it tells an end: the last one, so that none of a command's own is in the way."""
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
            self._answer(self._run(request[9:], int.from_bytes(request[1:9], "big") / 1000, persistent=request[0] == 1))

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

    def _run(self, command: bytes, timeout_s: float, *, persistent: bool) -> bytes:
        """Run one command; returns the reply."""
        deadline = time.monotonic() + timeout_s
        code, problem = NOT_RUN, b""
        if self._shell is not None and not persistent:
            self._end_shell(self._shell)
        shell = self._shell
        if shell is None:
            shell = Shell(self._keep, persistent=persistent)
            problem = self._start(shell, command)
        else:
            everything(signal.SIGCONT)
        if shell.pid:
            if persistent:
                shell.begin(command, self._end)
            code = self._watch(shell, deadline)
        timed_out, rounds = code < 0, -1
        self._shell = shell if persistent and shell.pid and not timed_out else None
        if self._shell is not None:
            everything(signal.SIGSTOP)
            rounds = FROZEN_ROUNDS
        elif shell.pid or not problem:
            bury()
            # Nothing of the command stays in it.
            os.lseek(self._script, 0, os.SEEK_SET)
            os.ftruncate(self._script, 0)
        out, err = shell.out, shell.err
        said, complained = out.rest(rounds), shell.complaints(rounds)
        if self._shell is None:
            shell.close()
        flags = WAS_LATE * timed_out | HAS_ENDED * (persistent and self._shell is None)
        head = struct.pack(">BHQQI", flags, TIMED_OUT if timed_out else code, out.size, err.size + len(problem), len(said))
        return head + said + complained + problem

    def _start(self, shell: Shell, command: bytes) -> bytes:
        """Start a bash; returns why it could not be started, or nothing."""
        try:
            pid = os.fork()
        except OSError as error:
            shell.started(0)
            return f"bash could not be started: {error.strerror}\n".encode()
        if pid == 0:
            become(command, shell, self._script, self._end)
        shell.started(pid)
        return b""

    def _end_shell(self, shell: Shell) -> None:
        """End the persistent shell and all that it started."""
        bury()
        shell.close()
        self._shell = None

    def _watch(self, shell: Shell, deadline: float) -> int:
        """Collect output until the shell ends or tells that its command has; returns the exit code, or -1 when the time is up.

        Whatever else ends meanwhile was left to this process by its parent: it is reaped at once, because until then it counts as
        one of the processes that the sandbox may have.
        """
        listening = {stream.read: stream for stream in (shell.out, shell.err)}
        told = [] if shell.told < 0 else [shell.told]
        while True:
            # Checked in every round: a flood of output must not hold the clock.
            left = deadline - time.monotonic()
            if left <= 0:
                return -1
            asked = [shell.ask] if shell.pending else []
            ready, takes, _ = select.select([*listening, *told, self._ends, self._control], asked, [], min(left, 3600))
            if takes:
                shell.write()
            if self._ends in ready:
                # First read, then looked: an end after the last look is reported again.
                os.read(self._ends, CHUNK)
                # Nor may a flood of ends hold the clock.
                while time.monotonic() < deadline:
                    try:
                        pid, status = os.waitpid(-1, os.WNOHANG)
                    except ChildProcessError:
                        break
                    if pid == shell.pid:
                        shell.pid = 0
                        return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                    if pid == 0:
                        break
            # Nothing is sent during a command: the other side is gone.
            if self._control in ready:
                os._exit(0)
            for descriptor in ready:
                if descriptor in listening and listening[descriptor].take() == 0:
                    del listening[descriptor]
            if shell.told in ready:
                code = shell.hear()
                if code is None:
                    told.clear()
                elif code >= 0:
                    return code


def default_signals() -> None:
    """What is run starts with every signal at its default; Python ignores some, and catches one that could end this process.

    The C library keeps two for itself and refuses to change them: those are the starting process's business.
    """
    for number in range(1, SIGNALS + 1):
        try:
            signal.signal(number, signal.SIG_DFL)
        except OSError:
            continue


def become(command: bytes, shell: Shell, script: int, end: int) -> None:
    """In the child: become bash. What goes wrong is said where the command would have spoken."""
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.dup2(shell.out.write, 1)
        os.dup2(shell.err.write, 2)
        words = [b"bash", b"-c", command]
        if shell.given >= 0:
            os.dup2(shell.given, 0)
            os.dup2(shell.tell, end)
            words = [b"bash", b"-s"]
        elif len(command) > INLINE_BYTES:
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


def everything(number: int) -> None:
    """Signal everything else in this pid namespace."""
    try:  # noqa: SIM105 - contextlib starts slowly
        os.kill(-1, number)
    except ProcessLookupError:
        pass


def close(descriptor: int) -> None:
    """Close a descriptor, unless it is none."""
    if descriptor >= 0:
        os.close(descriptor)


def bury() -> None:
    """Kill and reap everything else in this pid namespace."""
    everything(signal.SIGKILL)
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
