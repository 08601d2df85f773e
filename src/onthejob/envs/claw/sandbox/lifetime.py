"""The life of single sandboxes: mounted, limited, started, reaped and removed.

When one starts, and for whom, is the broker's business.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onthejob.envs.claw.sandbox.arguments import Places, command_line, pid1_command, system_folders
from onthejob.envs.claw.sandbox.cgroups import join
from onthejob.envs.claw.sandbox.ground import BASE, Ground

REAP_S = 20.0
SIGNALS = 1_024
"""Queued signals and timers of one sandbox."""
ROOT_FOLDERS = 16
"""Mount points that a workspace which is `/` holds besides its own files."""


@dataclass
class Made:
    """One sandbox."""

    limits: dict[str, Any]
    base: Path
    uid: int
    """User of its processes outside."""
    beside: bool = False
    """It has a second folder, read-only inside."""
    layout: dict[str, Any] = field(default_factory=dict)
    """Of `Layout` of `sandbox_interface`."""
    cgroups: list[Path] = field(default_factory=list)
    monitor: int = 0
    """Pid of bubblewrap outside; 0 when none runs."""
    mounts: list[Path] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    """What the host gets, until it has it."""


class Sandboxes:
    """Those of one host that were made and not yet closed."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self.made: dict[int, Made] = {}
        """By number; numbers are not used again."""
        self._next = 0
        self._core = core_limit()
        self._system = system_folders(ground.system)
        # Signals that this process or its parent ignores. Process 1 could not restore all of them: Perl puts SIGFPE back
        # to what it found.
        self._not_default = [
            number
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
            if signal.getsignal(number) is not signal.SIG_DFL
        ]

    def make(self, limits: dict[str, Any], layout: dict[str, Any], *, beside: bool = False) -> int | None:
        """Mount, limit and start one sandbox; None when there is no user left for it."""
        uid = self._ground.free_uid({made.uid for made in self.made.values()})
        if uid is None:
            return None
        self._next += 1
        number = self._next
        made = Made(limits=limits, base=BASE / f"s{number}", uid=uid, beside=beside, layout=layout)
        self.made[number] = made
        try:
            made.descriptors.append(self._mount(made))
            # Two more than inside: bubblewrap's own process, and a moment of overlap while it starts.
            made.cgroups = self._ground.cgroups.make(
                str(number), processes=limits["processes"] + 2, memory=limits["memory_bytes"]
            )
            self.launch(made, made.descriptors)
        except OSError:
            self.close(number)
            raise
        return number

    def launch(self, made: Made, descriptors: list[int]) -> None:
        """Start bubblewrap; appends the host's ends of the socket and the two pipes."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        info_read, info_write = os.pipe()
        errors_read, errors_write = os.pipe()
        control = theirs.detach()
        # Files and not pipes: of those an ordinary user may have so many pages, and what runs inside could use them up.
        script, rules = os.memfd_create("command"), os.memfd_create("filter")
        inner = (control, info_write, errors_write, rules, script)
        try:
            words = self._words(made, control, script, info_write, rules)
            descriptors += [ours.detach(), info_read, errors_read]
            os.write(rules, self._ground.filter)
            os.lseek(rules, 0, os.SEEK_SET)
            made.monitor = os.fork()
            if made.monitor == 0:
                try:
                    self._become(made, words, errors_write, (control, info_write, rules, script))
                except BaseException as error:
                    os.write(errors_write, f"{type(error).__name__}: {error}".encode())
                finally:
                    os._exit(127)
        finally:
            for descriptor in inner:
                os.close(descriptor)

    def reap(self, made: Made) -> bool:
        """Kill bubblewrap and wait for its end; False when it is still there."""
        if made.monitor == 0:
            return True
        # Its end means the end of all inside; normally that has happened already.
        with contextlib.suppress(ProcessLookupError):
            os.kill(made.monitor, signal.SIGKILL)
        deadline = time.monotonic() + REAP_S
        while time.monotonic() < deadline:
            self.reap_ended()
            if made.monitor == 0:
                return True
            time.sleep(0.001)
        return False

    def reap_ended(self) -> bool:
        """Reap every child that has ended, and note whose bubblewrap was among them; True while there are others."""
        try:
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                for made in self.made.values():
                    if made.monitor == pid:
                        made.monitor = 0
        except ChildProcessError:
            return False
        return True

    def close(self, number: int) -> list[str]:
        """Kill, unmount and remove one sandbox; returns what would not go."""
        made = self.made[number]
        close_all(made.descriptors)
        left = [] if self.reap(made) else [f"process {made.monitor}"]
        del self.made[number]
        left += [str(path) for path in self._ground.cgroups.remove(made.cgroups)]
        for target in made.mounts:
            try:
                self._ground.kernel.unmount(target)
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

    def _mount(self, made: Made) -> int:
        """Two tmpfs with byte and inode quotas; returns a descriptor of the one that holds the workspace."""
        made.base.mkdir()
        more = ROOT_FOLDERS if made.layout["root"] else 0
        quotas = {
            # The folders themselves are inodes too.
            "w": (made.limits["workspace_bytes"], made.limits["workspace_files"] + 2 + made.beside + more),
            "t": (made.limits["tmp_bytes"], made.limits["tmp_files"] + 3),
        }
        for name, (size, files) in quotas.items():
            target = made.base / name
            target.mkdir()
            self._ground.kernel.mount_tmpfs(target, size=size, files=files)
            made.mounts.append(target)
        inner_folders = ["w/work", "t/tmp", "t/shm"]
        inner_folders += ["w/beside"] if made.beside else []
        inner_folders += ["w/work/etc"] if made.layout["root"] else []
        for inner in inner_folders:
            folder = made.base / inner
            folder.mkdir(mode=0o755)
            if self._ground.root:
                os.chown(folder, made.uid, made.uid)
        return os.open(made.base / "w", os.O_RDONLY | os.O_DIRECTORY)

    def _become(self, made: Made, words: list[str], errors: int, passed_on: tuple[int, ...]) -> None:
        """In the child: enter the groups, drop to the sandbox's user, and become bubblewrap."""
        # As little as possible happens here: every page that the child of a fork touches is copied.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in self._not_default:
            signal.signal(number, signal.SIG_DFL)
        join(made.cgroups)
        resource.setrlimit(resource.RLIMIT_CORE, (self._core, self._core))
        if self._ground.root:
            os.setgroups([])
            os.setresgid(made.uid, made.uid, made.uid)
            os.setresuid(made.uid, made.uid, made.uid)
        os.chdir("/")
        null = os.open("/dev/null", os.O_RDWR)
        for source, target in ((null, 0), (null, 1), (errors, 2)):
            os.dup2(source, target)
        for descriptor in passed_on:
            os.set_inheritable(descriptor, True)
        os.execve(self._ground.bwrap, words, {})

    def _words(self, made: Made, control: int, script: int, info: int, filter_fd: int) -> list[str]:
        """The command line of one sandbox, with the descriptors that it is given."""
        base, limits = made.base, made.limits
        places = Places(
            etc=BASE / "etc",
            run=BASE / "run",
            system=self._ground.system,
            preload=BASE / "preload",
            work=base / "w/work",
            tmp=base / "t/tmp",
            shm=base / "t/shm",
            beside=base / "w/beside" if made.beside else None,
            beside_at=made.layout["beside"],
        )
        resources = {
            resource.RLIMIT_NPROC: limits["processes"],
            resource.RLIMIT_AS: limits["address_bytes"],
            resource.RLIMIT_FSIZE: limits["file_bytes"],
            resource.RLIMIT_NOFILE: limits["open_files"],
            resource.RLIMIT_SIGPENDING: SIGNALS,
            resource.RLIMIT_MSGQUEUE: 0,
            # Nothing runs before process 1, whatever this user may have.
            resource.RLIMIT_RTPRIO: 0,
            resource.RLIMIT_NICE: 0,
        }
        return [
            *command_line(
                self._ground.bwrap,
                places,
                system=self._system,
                filter_fd=filter_fd,
                info_fd=info,
                root=made.layout["root"],
            ),
            *pid1_command(
                self._ground.interpreter,
                control,
                script,
                keep=limits["output_bytes"],
                calls=self._ground.calls,
                limits=resources,
            ),
        ]


def core_limit() -> int:
    """Of RLIMIT_CORE: 1, at which no core is written or handed to a program of the machine; 0 where this user may not have 1."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    return 1 if os.geteuid() == 0 or hard == resource.RLIM_INFINITY else min(1, hard)


def close_all(descriptors: list[int]) -> None:
    """Close and forget them."""
    while descriptors:
        os.close(descriptors.pop())
