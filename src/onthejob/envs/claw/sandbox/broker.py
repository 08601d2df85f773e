"""A small process that makes the sandboxes of one host, and takes everything with it when it ends.

It is a process of its own because forking a training process is slow and unsafe with threads, and because it lives in a
private mount namespace: every tmpfs it mounts vanishes with it, however it ends. It ends when the host's socket closes or the
host's process dies. It runs without site-packages and imports nothing but the standard library and its neighbours.

One message per packet, JSON with descriptors attached:
    open    {"limits": {...}, "ahead": 2}
                                -> {"id", "cgroups"} + workspace folder, pid 1's socket, bubblewrap's info pipe, stderr pipe.
                                Afterwards `ahead` others with these limits are started for the next requests; with 0 those
                                that wait are thrown away first, and this one is new
    restart {"id": 3}           -> the same without the folder; the previous processes must be dead
    close   {"id": 3}           -> {"left": [...]}: what could not be removed
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onthejob.envs.claw.sandbox.arguments import ACCOUNTS, BASH, CALLS, Places, command_line, pid1_command
from onthejob.envs.claw.sandbox.cgroups import Cgroups, join
from onthejob.envs.claw.sandbox.kernel import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    Kernel,
    system_call_filter,
    system_call_numbers,
)
from onthejob.envs.claw.sandbox.requirements import PERLS, find_bwrap, find_perl

MESSAGE_BYTES = 1 << 16
BASE = Path("/tmp")  # bubblewrap needs this folder, so it exists; in the private mount namespace it is ours
UID_FIRST, UIDS_PER_HOST, UID_BLOCKS = 1_900_000_000, 1_000, 1_000
"""Unprivileged users of sandboxes when the host is root; a range that no distribution assigns."""
REAP_S = 20.0
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Refused(Exception):
    """Sandboxes cannot be made here; the message says why and what would help."""


@dataclass
class Made:
    """One sandbox."""

    limits: dict[str, Any]
    base: Path
    uid: int
    """User of its processes outside."""
    cgroups: list[Path] = field(default_factory=list)
    monitor: int = 0
    """Pid of bubblewrap outside; 0 when none runs."""
    mounts: list[Path] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    """What the host gets, until it has it."""


class Broker:
    """Everything that sandboxes of one host share."""

    def __init__(self, parent: int) -> None:
        self._root = os.geteuid() == 0
        self._made: dict[int, Made] = {}
        self._spare: list[int] = []
        """Numbers of started sandboxes that nobody has asked for yet, all with the same limits."""
        self._next = 0
        self._kernel = Kernel()
        # What bubblewrap's end orphans would go to this machine's process 1, and that of a container may reap nothing.
        self._kernel.adopt_orphans()
        # Opened before anything else, and compared afterwards: the pid may be another process's by now.
        self._parent = os.pidfd_open(parent)
        if os.getppid() != parent:
            raise Refused("the process that asked for sandboxes is gone.")
        self._bwrap = find_bwrap()
        if self._bwrap is None:
            raise Refused("bubblewrap is not installed. On Debian and Ubuntu: apt-get install bubblewrap")
        perl = find_perl()
        if perl is None or not BASH.exists():
            raise Refused(
                f"sandboxes need /bin/bash and one of {', '.join(PERLS)}. On Debian and Ubuntu: apt-get install bash perl"
            )
        try:
            self._filter = system_call_filter()
            self._calls = system_call_numbers(CALLS)
        except OSError as error:
            raise Refused(f"no system-call filter: {error}. On Debian and Ubuntu: apt-get install libseccomp2") from error
        self.cgroups = Cgroups()
        try:
            self._uid_block, self._uid_lock = self._claim_uids()
            self._enter_namespace()
            self._prepare(perl)
        except BaseException:
            self.cgroups.close()
            raise

    @property
    def layers(self) -> list[tuple[str, bool, str]]:
        """Name, whether it is active, how."""
        user = f"uid {self._uid_block} and up" if self._root else f"uid {os.getuid()} (this user)"
        found = [
            ("unprivileged user", True, user),
            ("namespaces", True, "user, pid, mount, network, ipc, uts, cgroup"),
            ("read-only system", True, "/usr, /etc, /proc, /dev and / are read-only"),
            ("quotas", True, "bytes and inodes of /work, of /tmp with /dev/shm"),
            ("no capabilities", True, "none kept, no_new_privs"),
            ("rlimits", True, "processes, address space, file size, descriptors"),
            ("seccomp", True, f"libseccomp, {len(self._filter) // 8} instructions"),
        ]
        groups = {name for group in self.cgroups.groups for name in group.controllers}
        found += [(f"{name} cgroup", name in groups, self.cgroups.detail(name)) for name in ("pids", "memory")]
        return [*found, ("wall clock", True, "a sandbox that does not answer is killed and restarted on its workspace")]

    def serve(self, requests: socket.socket) -> None:
        """Answer until the host is gone."""
        poll = select.poll()
        poll.register(requests, select.POLLIN)
        poll.register(self._parent, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._parent:
                    return
                try:
                    packet = requests.recv(MESSAGE_BYTES)
                except ConnectionResetError:
                    return
                if not packet:
                    return
                descriptors: list[int] = []
                request = json.loads(packet)
                try:
                    answer = self._answer(request, descriptors)
                except OSError as error:
                    answer = {"error": str(error)}
                try:
                    send(requests, answer, descriptors if "error" not in answer else [])
                except BrokenPipeError:
                    return
                finally:
                    close_all(descriptors)
                if request["do"] == "open":
                    # After the answer: nobody waits for it.
                    self._start_ahead(request["limits"], request["ahead"])

    def close(self) -> None:
        """Kill and remove all sandboxes."""
        for number in list(self._made):
            self._close(number)
        self.cgroups.close()
        deadline = time.monotonic() + REAP_S
        while self._reap_ended() and time.monotonic() < deadline:
            time.sleep(0.001)

    def _answer(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Do what was asked; descriptors to send along are appended."""
        match request["do"]:
            case "open":
                return self._open(request["limits"], request["ahead"], descriptors)
            case "restart":
                made = self._made[request["id"]]
                self._reap(made)
                self._launch(made, descriptors)
                return {"id": request["id"]}
            case "close":
                return {"left": self._close(request["id"])}
            case other:
                return {"error": f"unknown request {other!r}"}

    def _claim_uids(self) -> tuple[int, socket.socket | None]:
        """As root: a block of uids that no other host uses; the lock lasts as long as the process."""
        if not self._root:
            return os.getuid(), None
        mapped = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
        last = UID_FIRST + UIDS_PER_HOST * UID_BLOCKS
        if not any(first <= UID_FIRST and last <= first + count for first, _, count in mapped):
            raise Refused(f"this root has no unprivileged users {UID_FIRST} to {last}. Run as an ordinary user.")
        for block in range(UID_FIRST, last, UIDS_PER_HOST):
            lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                lock.bind(f"\0onthejob-sandbox-uids-{block}")
            except OSError:
                lock.close()
            else:
                return block, lock
        raise Refused(f"{UID_BLOCKS} sandbox hosts run on this machine already.")

    def _enter_namespace(self) -> None:
        """A mount namespace of our own; for an ordinary user inside a user namespace that allows mounting."""
        uid, gid = os.getuid(), os.getgid()
        try:
            self._kernel.unshare(CLONE_NEWNS if self._root else CLONE_NEWNS | CLONE_NEWUSER)
            if not self._root:
                Path("/proc/self/setgroups").write_text("deny")
                Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
                Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
            self._kernel.keep_mounts_private()
        except OSError as error:
            remedy = "Allow user namespaces (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces, AppArmor)."
            if self._root:
                remedy = "Root needs CAP_SYS_ADMIN here; a container may need --privileged, or run as an ordinary user."
            raise Refused(f"no namespaces: {error}. {remedy}") from error

    def _prepare(self, perl: Path) -> None:
        """The folders that all sandboxes share, on a tmpfs in place of /tmp."""
        # Read first: any of these may lie below /tmp.
        source = Path(__file__).with_name("pid1.pl").read_bytes()
        interpreter = perl.read_bytes()
        self._kernel.mount_tmpfs(BASE, size=len(interpreter) + (64 << 20), files=65_536)
        etc, pid1 = BASE / "etc", BASE / "pid1"
        etc.mkdir()
        pid1.mkdir()
        for name, text in ACCOUNTS.items():
            (etc / name).write_text(text)
        (etc / "alternatives").mkdir()
        (etc / "ld.so.cache").touch()
        (pid1 / "pid1.pl").write_bytes(source)
        (pid1 / "perl").write_bytes(interpreter)
        words = [str(perl), "-f", "-c", str(pid1 / "pid1.pl")]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, env={}, check=False)
        if done.returncode != 0:
            raise Refused(f"{perl} does not work: {done.stderr.decode('utf-8', 'replace').strip()[-500:]}")
        # Execute but not read: the kernel then makes the process undumpable, so nobody inside can trace it or open its files.
        (pid1 / "perl").chmod(0o111)

    def _open(self, limits: dict[str, Any], ahead: int, descriptors: list[int]) -> dict[str, Any]:
        """Hand over a sandbox: one that was started ahead, or else a new one."""
        number = self._take(limits if ahead else None)
        if number is None:
            number = self._make(limits)
        if number is None:
            return {"error": f"{UIDS_PER_HOST} sandboxes are open already"}
        made = self._made[number]
        descriptors += made.descriptors
        made.descriptors = []
        return {"id": number, "cgroups": [str(path) for path in made.cgroups]}

    def _take(self, limits: dict[str, Any] | None) -> int | None:
        """One of those started ahead, if its limits are these and it lives; the others are of no use and go."""
        while self._spare:
            number = self._spare.pop(0)
            made = self._made[number]
            self._reap_ended()
            if made.monitor and made.limits == limits:
                return number
            self._close(number)
        return None

    def _start_ahead(self, limits: dict[str, Any], count: int) -> None:
        """Have `count` ready for the next requests: most of a start is waiting for the kernel."""
        while len(self._spare) < count:
            try:
                number = self._make(limits)
            except OSError:
                # Whoever asks next tries again, and is told.
                return
            if number is None:
                return
            self._spare.append(number)

    def _make(self, limits: dict[str, Any]) -> int | None:
        """Mount, limit and start one sandbox; None when there is no user left for it."""
        used = {made.uid for made in self._made.values()}
        uid = self._uid_block
        if self._root:
            free = (uid for uid in range(self._uid_block, self._uid_block + UIDS_PER_HOST) if uid not in used)
            uid = next(free, -1)
            if uid < 0:
                return None
        self._next += 1
        number = self._next
        made = Made(limits=limits, base=BASE / f"s{number}", uid=uid)
        self._made[number] = made
        try:
            made.descriptors.append(self._mount(made))
            # Two more than inside: bubblewrap's own process, and a moment of overlap while it starts.
            made.cgroups = self.cgroups.make(str(number), processes=limits["processes"] + 2, memory=limits["memory_bytes"])
            self._launch(made, made.descriptors)
        except OSError:
            self._close(number)
            raise
        return number

    def _mount(self, made: Made) -> int:
        """Two tmpfs with byte and inode quotas; returns a descriptor of the one that holds the workspace."""
        made.base.mkdir()
        quotas = {
            # The folders themselves are inodes too.
            "w": (made.limits["workspace_bytes"], made.limits["workspace_files"] + 2),
            "t": (made.limits["tmp_bytes"], made.limits["tmp_files"] + 3),
        }
        for name, (size, files) in quotas.items():
            target = made.base / name
            target.mkdir()
            self._kernel.mount_tmpfs(target, size=size, files=files)
            made.mounts.append(target)
        for inner in ("w/work", "t/tmp", "t/shm"):
            folder = made.base / inner
            folder.mkdir(mode=0o755)
            if self._root:
                os.chown(folder, made.uid, made.uid)
        return os.open(made.base / "w", os.O_RDONLY | os.O_DIRECTORY)

    def _launch(self, made: Made, descriptors: list[int]) -> None:
        """Start bubblewrap; appends the host's ends of the socket and the two pipes."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        info_read, info_write = os.pipe()
        errors_read, errors_write = os.pipe()
        filter_read, filter_write = os.pipe()
        inner = (theirs.detach(), info_write, errors_write, filter_read)
        try:
            descriptors += [ours.detach(), info_read, errors_read]
            # Far below a pipe's capacity, so this does not block.
            os.write(filter_write, self._filter)
            os.close(filter_write)
            made.monitor = os.fork()
            if made.monitor == 0:
                try:
                    self._become(made, *inner)
                except BaseException as error:
                    os.write(errors_write, f"{type(error).__name__}: {error}".encode())
                finally:
                    os._exit(127)
        finally:
            for descriptor in inner:
                os.close(descriptor)

    def _become(self, made: Made, control: int, info: int, errors: int, filter_fd: int) -> None:
        """In the child: enter the groups, drop to the slot's user, and become bubblewrap."""
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        # What we ignore ourselves, and what whoever started us ignored. Process 1 could not mend all of it: Perl puts
        # SIGFPE back to what it found.
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        join(made.cgroups)
        if self._root:
            os.setgroups([])
            os.setresgid(made.uid, made.uid, made.uid)
            os.setresuid(made.uid, made.uid, made.uid)
        os.chdir("/")
        null = os.open("/dev/null", os.O_RDWR)
        for source, target in ((null, 0), (null, 1), (errors, 2)):
            os.dup2(source, target)
        for descriptor in (control, info, filter_fd):
            os.set_inheritable(descriptor, True)
        base = made.base
        places = Places(etc=BASE / "etc", pid1=BASE / "pid1", work=base / "w/work", tmp=base / "t/tmp", shm=base / "t/shm")
        assert self._bwrap is not None
        words = command_line(self._bwrap, places, filter_fd=filter_fd, info_fd=info)
        limits = made.limits
        resources = {
            resource.RLIMIT_NPROC: limits["processes"],
            resource.RLIMIT_AS: limits["address_bytes"],
            resource.RLIMIT_FSIZE: limits["file_bytes"],
            resource.RLIMIT_NOFILE: limits["open_files"],
            resource.RLIMIT_CORE: 0,
        }
        words += pid1_command(control, keep=limits["output_bytes"], calls=self._calls, limits=resources)
        os.execve(self._bwrap, words, {})

    def _reap(self, made: Made) -> bool:
        """Wait for bubblewrap's end, helping after a while; False when it is still there."""
        if made.monitor == 0:
            return True
        # Its end means the end of all inside; normally that has happened already.
        with contextlib.suppress(ProcessLookupError):
            os.kill(made.monitor, signal.SIGKILL)
        deadline = time.monotonic() + REAP_S
        while time.monotonic() < deadline:
            self._reap_ended()
            if made.monitor == 0:
                return True
            time.sleep(0.001)
        return False

    def _reap_ended(self) -> bool:
        """Reap every child that has ended, and note whose bubblewrap was among them; True while there are others."""
        try:
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                for made in self._made.values():
                    if made.monitor == pid:
                        made.monitor = 0
        except ChildProcessError:
            return False
        return True

    def _close(self, number: int) -> list[str]:
        """Kill, unmount and remove one sandbox; returns what would not go."""
        made = self._made[number]
        close_all(made.descriptors)
        left = [] if self._reap(made) else [f"process {made.monitor}"]
        del self._made[number]
        left += [str(path) for path in self.cgroups.remove(made.cgroups)]
        for target in made.mounts:
            try:
                self._kernel.unmount(target)
            except OSError as error:
                left.append(f"{target}: {error}")
        # One that could not be made may lack some of them.
        for folder in (made.base / "w", made.base / "t", made.base):
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                left.append(str(error))
        return left


def close_all(descriptors: list[int]) -> None:
    """Close and forget them."""
    while descriptors:
        os.close(descriptors.pop())


def send(requests: socket.socket, message: dict[str, Any], descriptors: list[int]) -> None:
    """One packet with descriptors."""
    extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    requests.sendmsg([json.dumps(message).encode()], extra)


def main() -> None:
    """Arguments: the socket's descriptor, the host's pid."""
    for number in IGNORED:
        # The host decides when it ends; a terminal's Ctrl-C must not come first.
        signal.signal(number, signal.SIG_IGN)
    requests = socket.socket(fileno=int(sys.argv[1]))
    requests.set_inheritable(False)
    try:
        broker = Broker(int(sys.argv[2]))
    except (Refused, OSError) as error:
        send(requests, {"error": str(error)}, [])
        return
    try:
        send(requests, {"layers": broker.layers}, [])
        broker.serve(requests)
    finally:
        broker.close()
