"""What all sandboxes of one host stand on: users, a mount namespace, shared folders, control groups, a system-call filter.

It is laid once, before the first sandbox; whatever is missing here is a `Refused` that says what would help.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Set
from pathlib import Path

from onthejob.envs.claw.sandbox.arguments import ACCOUNTS, BASH, CALLS
from onthejob.envs.claw.sandbox.cgroups import Cgroups
from onthejob.envs.claw.sandbox.kernel import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    Kernel,
    system_call_filter,
    system_call_numbers,
)
from onthejob.envs.claw.sandbox.requirements import PERLS, find_bwrap, find_perl

BASE = Path("/tmp")  # bubblewrap needs this folder, so it exists; in the private mount namespace it is ours
UID_FIRST, UIDS_PER_HOST, UID_BLOCKS = 1_900_000_000, 1_000, 1_000
"""Unprivileged users of sandboxes when the host is root; a range that no distribution assigns."""


class Refused(Exception):
    """Sandboxes cannot be made here; the message says why and what would help."""


class Ground:
    """Laid in this process, whose mount namespace changes with it; whoever laid it closes `cgroups` in the end.

    Raises:
        Refused: Something is missing here.
        OSError: The kernel refuses.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.root = os.geteuid() == 0
        """Each sandbox has a user of its own then."""
        bwrap = find_bwrap()
        if bwrap is None:
            raise Refused("bubblewrap is not installed. On Debian and Ubuntu: apt-get install bubblewrap")
        self.bwrap = bwrap
        perl = find_perl()
        if perl is None or not BASH.exists():
            raise Refused(
                f"sandboxes need /bin/bash and one of {', '.join(PERLS)}. On Debian and Ubuntu: apt-get install bash perl"
            )
        try:
            self.filter = system_call_filter()
            self.calls = system_call_numbers(CALLS)
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
        user = f"uid {self._uid_block} and up" if self.root else f"uid {os.getuid()} (this user)"
        found = [
            ("unprivileged user", True, user),
            ("namespaces", True, "user, pid, mount, network, ipc, uts, cgroup"),
            ("read-only system", True, "/usr, /etc, /proc, /dev and / are read-only"),
            ("quotas", True, "bytes and inodes of /work, of /tmp with /dev/shm"),
            ("no capabilities", True, "none kept, no_new_privs"),
            ("rlimits", True, "processes, address space, file size, descriptors"),
            ("seccomp", True, f"libseccomp, {len(self.filter) // 8} instructions"),
        ]
        groups = {name for group in self.cgroups.groups for name in group.controllers}
        found += [(f"{name} cgroup", name in groups, self.cgroups.detail(name)) for name in ("pids", "memory")]
        return [*found, ("wall clock", True, "a sandbox that does not answer is killed and restarted on its workspace")]

    def free_uid(self, used: Set[int]) -> int | None:
        """A user for one more sandbox: as root one that is not `used`, None when all are; else this user."""
        if not self.root:
            return self._uid_block
        return next((uid for uid in range(self._uid_block, self._uid_block + UIDS_PER_HOST) if uid not in used), None)

    def _claim_uids(self) -> tuple[int, socket.socket | None]:
        """As root: a block of uids that no other host uses; the lock lasts as long as the process."""
        if not self.root:
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
            self.kernel.unshare(CLONE_NEWNS if self.root else CLONE_NEWNS | CLONE_NEWUSER)
            if not self.root:
                Path("/proc/self/setgroups").write_text("deny")
                Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
                Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
            self.kernel.keep_mounts_private()
        except OSError as error:
            remedy = "Allow user namespaces (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces, AppArmor)."
            if self.root:
                remedy = "Root needs CAP_SYS_ADMIN here; a container may need --privileged, or run as an ordinary user."
            raise Refused(f"no namespaces: {error}. {remedy}") from error

    def _prepare(self, perl: Path) -> None:
        """The folders that all sandboxes share, on a tmpfs in place of /tmp."""
        # Read first: any of these may lie below /tmp.
        source = Path(__file__).with_name("pid1.pl").read_bytes()
        interpreter = perl.read_bytes()
        self.kernel.mount_tmpfs(BASE, size=len(interpreter) + (64 << 20), files=65_536)
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
