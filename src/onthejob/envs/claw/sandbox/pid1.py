"""The first process inside a sandbox: runs one fresh `bash -c` per request, and leaves nothing alive after it.

This file runs alone, as process 1 of a pid namespace, with the system's Python in isolated mode; it imports only what starts
fast (`signal`, `json`, `struct` would cost milliseconds). Nothing inside can signal process 1, and because its interpreter's
file may be executed but not read, the kernel lets nobody inside look into its memory or descriptors.

Protocol on a stream socket, all numbers big-endian:
    hello:    4-byte length, then the facts that the other side checks (credentials, namespaces)
    request:  4-byte length, 8-byte timeout in milliseconds, the command's bytes
    reply:    4-byte length, 1 byte timed out, 2 bytes exit code, 8 bytes stdout size, 8 bytes stderr size,
              4-byte length of what is kept of stdout, that, what is kept of stderr
"""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports] - the C module, without the enums that signal builds
import os
import resource
import select
import sys
import time

CHUNK = 65_536
INLINE_BYTES = 100_000
"""Longest command handed over as an argument; the kernel's limit is 128 KiB. Longer ones go through a file in memory."""
TIMED_OUT, NOT_RUN, SIGKILL, SIGINT = 124, 126, 9, 2
# What is run starts with every signal at its default: Python ignores some, and whoever started this process may have others.
RESET = tuple(number for number in range(1, 32) if number not in (9, 19))
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/work",
    "PWD": "/work",
    "USER": "agent",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "TZ": "UTC",
}
SPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


class Stream:
    """One output pipe: the beginning and the end are kept, everything is counted."""

    def __init__(self, keep: int) -> None:
        self.read_fd, self.write_fd = os.pipe()
        self.size = 0
        self._head, self._tail = bytearray(), bytearray()
        self._head_keep, self._tail_keep = keep // 2, keep - keep // 2

    def take(self) -> bool:
        """Read once; False at the end."""
        chunk = os.read(self.read_fd, CHUNK)
        self.size += len(chunk)
        room = self._head_keep - len(self._head)
        if room > 0:
            self._head += chunk[:room]
        rest = chunk[max(0, room) :]
        if rest:
            self._tail += rest
            del self._tail[: -self._tail_keep]
        return bool(chunk)

    def drain(self) -> None:
        """Read what is left when all writers are dead."""
        os.set_blocking(self.read_fd, False)
        try:
            while self.take():
                pass
        except BlockingIOError:
            pass

    def kept(self) -> bytes:
        """The first half of the limit from the beginning, the rest from the end."""
        return bytes(self._head + self._tail)


def receive(control: int, count: int) -> bytes:
    """Exactly `count` bytes; when the other side is gone, so is the sandbox."""
    data = b""
    while len(data) < count:
        chunk = os.read(control, min(CHUNK, count - len(data)))
        if not chunk:
            os._exit(0)
        data += chunk
    return data


def send(control: int, data: bytes) -> None:
    """One frame."""
    view = memoryview(len(data).to_bytes(4, "big") + data)
    while view:
        view = view[os.write(control, view) :]


def facts() -> bytes:
    """Credentials and namespaces of this process, one `name value` per line."""
    with open("/proc/self/status", encoding="utf-8") as file:  # noqa: PTH123 - pathlib takes milliseconds to import
        lines = [line.replace(":\t", " ").strip() for line in file]
    wanted = ("Uid", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Groups")
    found = [line for line in lines if line.split(" ")[0] in wanted]
    found += [f"ns:{space} {os.readlink('/proc/self/ns/' + space)}" for space in SPACES]  # noqa: PTH115
    found += [f"pid {os.getpid()}"]
    return "\n".join(found).encode()


def spawn(command: bytes, out: Stream, err: Stream, null: int) -> int:
    """Start bash; returns its pid."""
    arguments: tuple[str | bytes, ...] = ("bash", "-c", command)
    script = -1
    actions: list[tuple[int, ...]] = [
        (os.POSIX_SPAWN_DUP2, null, 0),
        (os.POSIX_SPAWN_DUP2, out.write_fd, 1),
        (os.POSIX_SPAWN_DUP2, err.write_fd, 2),
    ]
    if len(command) > INLINE_BYTES:
        script = os.memfd_create("command")
        view = memoryview(command)
        while view:
            view = view[os.write(script, view) :]
        os.lseek(script, 0, os.SEEK_SET)
        actions.append((os.POSIX_SPAWN_DUP2, script, 9))
        arguments = ("bash", "/proc/self/fd/9")
    try:
        return os.posix_spawn(
            "/bin/bash", arguments, ENVIRONMENT, file_actions=actions, setsid=True, setsigmask=(), setsigdef=RESET
        )
    finally:
        if script >= 0:
            os.close(script)


def watch(pid: int, out: Stream, err: Stream, control: int, deadline: float) -> bool:
    """Collect output until the shell ends or the time is up; True when it is up."""
    pidfd = os.pidfd_open(pid)
    poll = select.poll()
    streams = {out.read_fd: out, err.read_fd: err}
    for descriptor in (*streams, pidfd, control):
        poll.register(descriptor, select.POLLIN)
    try:
        while True:
            # Checked in every round: a flood of output must not hold the clock.
            left = deadline - time.monotonic()
            if left <= 0:
                return True
            for descriptor, _ in poll.poll(left * 1000 + 1):
                if descriptor == pidfd:
                    return False
                if descriptor == control:
                    # Nothing is sent during a command: the other side is gone.
                    os._exit(0)
                if not streams[descriptor].take():
                    poll.unregister(descriptor)
    finally:
        os.close(pidfd)


def bury(shell: int) -> int:
    """Kill and reap everything else in this pid namespace; returns the shell's exit code."""
    try:  # noqa: SIM105 - contextlib takes a millisecond to import
        os.kill(-1, SIGKILL)
    except ProcessLookupError:
        pass
    code = NOT_RUN
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return code
        if pid == shell:
            code = os.waitstatus_to_exitcode(status)


def run(command: bytes, timeout_s: float, keep: int, control: int, null: int) -> bytes:
    """Run one command; returns the reply."""
    out, err = Stream(keep), Stream(keep)
    timed_out, problem = False, b""
    try:
        deadline = time.monotonic() + timeout_s
        try:
            shell = spawn(command, out, err, null)
        except OSError as error:
            shell, problem = -1, f"bash could not be started: {error.strerror}\n".encode()
        os.close(out.write_fd)
        os.close(err.write_fd)
        if shell > 0:
            timed_out = watch(shell, out, err, control, deadline)
        code = bury(shell)
        out.drain()
        err.drain()
    finally:
        os.close(out.read_fd)
        os.close(err.read_fd)
    code = TIMED_OUT if timed_out else 128 - code if code < 0 else code
    kept = out.kept()
    head = bytes([timed_out]) + code.to_bytes(2, "big") + out.size.to_bytes(8, "big")
    return head + (err.size + len(problem)).to_bytes(8, "big") + len(kept).to_bytes(4, "big") + kept + err.kept() + problem


def main(arguments: list[str]) -> None:
    """Serve until the other side is gone. Arguments: socket, bytes kept per stream, then resource=limit pairs."""
    _signal.signal(SIGINT, _signal.SIG_IGN)
    os.umask(0o022)
    control, keep = int(arguments[0]), int(arguments[1])
    os.set_inheritable(control, False)
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for pair in arguments[2:]:
        name, value = pair.split("=")
        resource.setrlimit(getattr(resource, name), (int(value), int(value)))
    send(control, facts())
    while True:
        request = receive(control, int.from_bytes(receive(control, 4), "big"))
        timeout_s = int.from_bytes(request[:8], "big") / 1000
        send(control, run(request[8:], timeout_s, keep, control, null))


if __name__ == "__main__":
    main(sys.argv[1:])
