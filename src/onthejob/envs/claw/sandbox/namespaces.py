"""Namespaces: entering a mount namespace of our own, and why a machine forbids it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from onthejob.envs.claw.sandbox import isolated
from onthejob.envs.claw.sandbox.kernel import CLONE_NEWNS, CLONE_NEWUSER, Kernel

UID_FIRST, UIDS_PER_HOST, UID_BLOCKS = 1_900_000_000, 1_000, 1_000
"""Unprivileged users of sandboxes when the host is root; a range that no distribution assigns."""
ROOT_REMEDY = "Root needs CAP_SYS_ADMIN here; a container may need --privileged, or run as an ordinary user."
SETTINGS = {
    "sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "AppArmor forbids user namespaces to programs without a profile that allows them, as on Ubuntu 23.10 and later",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    "sys/kernel/unprivileged_userns_clone": (
        "0",
        "this kernel is set to forbid user namespaces to ordinary users",
        "kernel.unprivileged_userns_clone=1",
    ),
    "sys/user/max_user_namespaces": ("0", "the number of user namespaces is limited to 0", "user.max_user_namespaces=15000"),
}
"""Kernel setting below /proc -> the value that forbids user namespaces, what it means, what its administrator can set."""


def obstacle(proc: Path = Path("/proc")) -> str:
    """The reason why user namespaces are forbidden here, as far as the kernel's settings tell, and what to do."""
    if not (proc / "self/ns/user").exists():
        return "This kernel was built without user namespaces."
    for name, (value, meaning, setting) in SETTINGS.items():
        try:
            found = (proc / name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if found == value:
            allow = f"An administrator of this machine allows them with `sysctl -w {setting}`"
            return (
                f"{setting.partition('=')[0]} is {value}: {meaning}. {allow}; without one, work in a virtual machine or "
                "container that allows them."
            )
    return "No kernel setting tells why; a container's seccomp profile or a security module may be the reason."


def enter(kernel: Kernel) -> None:
    """Put this process into a mount namespace; an ordinary user's lies inside a user namespace, which allows mounting.

    Raises:
        OSError: The kernel refuses.
    """
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(CLONE_NEWNS if uid == 0 else CLONE_NEWNS | CLONE_NEWUSER)
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    kernel.keep_mounts_private()


def forbidden() -> str:
    """The reason why sandboxes may not have namespaces here, and what to do; empty when they may.

    Tried for real, in processes of their own.
    """
    if os.geteuid() == 0 and (problem := _attempt("root")):
        return f"{problem}. {ROOT_REMEDY}"
    problem = _attempt("ordinary")
    return f"{problem}. {obstacle()}" if problem else ""


def _attempt(user: str) -> str:
    """What the kernel says when this user, or as `ordinary` a user of root's sandboxes, enters namespaces; empty when it may."""
    words = [*isolated.command("namespaces"), user]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={}, check=False)
    return done.stdout.strip() or done.stderr.strip()


def main() -> None:
    """Enter namespaces and end; prints what the kernel says against it."""
    kernel = Kernel()
    try:
        if os.geteuid() == 0 and sys.argv[1] == "ordinary":
            os.setgroups([])
            os.setresgid(UID_FIRST, UID_FIRST, UID_FIRST)
            os.setresuid(UID_FIRST, UID_FIRST, UID_FIRST)
            kernel.open_own_files()
        enter(kernel)
    except OSError as error:
        print(error)
