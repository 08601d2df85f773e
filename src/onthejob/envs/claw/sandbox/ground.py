"""What all sandboxes of one host stand on: users, a mount namespace, shared folders, control groups, a system-call filter.

It is laid once, before the first sandbox; whatever is missing here is a `Refused` that says what would help.
"""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path

from onthejob.envs.claw.sandbox import namespaces, seccomp
from onthejob.envs.claw.sandbox.arguments import ACCOUNTS, INTERPRETER
from onthejob.envs.claw.sandbox.cgroups import Cgroups
from onthejob.envs.claw.sandbox.inside import Source, find_python, furnish, open_folders
from onthejob.envs.claw.sandbox.kernel import Kernel
from onthejob.envs.claw.sandbox.namespaces import UID_BLOCKS, UID_FIRST, UIDS_PER_HOST
from onthejob.envs.claw.sandbox.programs import BASH, Interpreter, find_interpreters, is_of_system
from onthejob.envs.claw.sandbox.rootfs import MACHINE, inside
from onthejob.envs.claw.sandbox.syscall_numbers import PROCESSORS, this_processor

BASE = Path("/tmp")  # bubblewrap needs this folder, so it exists; in the private mount namespace it is ours

LOCKS = Path("/run/onthejob")
"""Root's hosts agree here on the users of their sandboxes. Any process could take socket names first: they need no folder."""


class Refused(Exception):
    """Sandboxes cannot be made here; the message says why and what would help."""


class Ground:
    """Laid in this process, whose mount namespace changes with it; its maker closes `cgroups` in the end.

    Args:
        kernel: Its system calls.
        bwrap: What `find_bwrap` found in the process that asked for sandboxes.
        packages: What sandboxes are given.
        hidden: From `hidden_folders`.
        root: Root file system that sandboxes have instead of this machine's.

    Raises:
        Refused: Something is missing here.
        OSError: The kernel refuses.
    """

    def __init__(
        self, kernel: Kernel, bwrap: Path, packages: Sequence[Source], hidden: Sequence[str] = (), root: Path = MACHINE
    ) -> None:
        self.kernel = kernel
        self.root = os.geteuid() == 0
        """Each sandbox has a user of its own then."""
        self.problems: list[str] = []
        """Interpreters that were there and could not be process 1, with the reason."""
        self._found_bwrap, self._hidden, self._root = bwrap, hidden, root
        self.system = root if root == MACHINE else BASE / "root"
        """Where that file system is in our mount namespace."""
        self.bwrap = bwrap if is_of_system(bwrap) else BASE / "bubblewrap" / bwrap.relative_to(bwrap.parents[2])
        """The program to start; one that is not the system's is copied to where every sandbox's user may execute it."""
        interpreters = list(find_interpreters(root))
        if not interpreters or inside(root, str(BASH)) is None:
            raise Refused(
                f"sandboxes need {BASH}, and Perl or Python 3 below /usr. On Debian and Ubuntu: apt-get install bash perl"
            )
        try:
            self._processor = this_processor()
        except LookupError as error:
            raise Refused(f"sandboxes know the system calls of {' and '.join(PROCESSORS)}, and this is {error}.") from error
        kernel.default_library_signals(self._processor.number("rt_sigaction") or 0)
        self.filter = seccomp.program(self._processor)
        self.cgroups = Cgroups()
        try:
            self._uid_block, self._uid_lock = self._claim_uids()
            self._enter_namespace()
            self.interpreter = self._prepare(interpreters, packages)
            """That of process 1."""
            # Last: what was copied may lie there.
            self._hide(hidden)
        except BaseException:
            self.cgroups.close()
            raise

    @property
    def calls(self) -> Mapping[str, int]:
        """Number of each system call that process 1 makes by number."""
        return {name: number for name in self.interpreter.calls if (number := self._processor.number(name)) is not None}

    @property
    def layers(self) -> list[tuple[str, bool, str]]:
        """Name, whether it is active, how."""
        user = f"uid {self._uid_block} and up" if self.root else f"uid {os.getuid()} (this user)"
        found = [
            ("unprivileged user", True, user),
            ("namespaces", True, f"user, pid, mount, network, ipc, uts, cgroup; by {self._found_bwrap}"),
            (
                "process 1",
                True,
                "; ".join([f"{self.interpreter.script} in an unreadable copy of {self.interpreter.path}", *self.problems]),
            ),
            (
                "hidden packages",
                True,
                f"empty folders at {', '.join(self._hidden)}" if self._hidden else "none lie in the system",
            ),
            (
                "read-only system",
                True,
                "/usr, /etc, /proc, /dev and / are read-only"
                + ("" if self._root == MACHINE else f"; {self._root} is the system"),
            ),
            ("quotas", True, "bytes and inodes of /work, of /tmp with /dev/shm"),
            ("no capabilities", True, "none kept, no_new_privs"),
            ("rlimits", True, "processes, address space, file size, descriptors"),
            ("seccomp", True, f"{len(self.filter) // 8} instructions for {self._processor.name}; unknown calls are refused"),
        ]
        groups = {name for group in self.cgroups.groups for name in group.controllers}
        found += [(f"{name} cgroup", name in groups, self.cgroups.detail(name)) for name in ("pids", "memory")]
        return [*found, ("wall clock", True, "a sandbox that does not answer is killed and restarted on its workspace")]

    def free_uid(self, used: Set[int]) -> int | None:
        """A user for one more sandbox: as root one that is not `used`, None when all are; else this user."""
        if not self.root:
            return self._uid_block
        return next((uid for uid in range(self._uid_block, self._uid_block + UIDS_PER_HOST) if uid not in used), None)

    def _claim_uids(self) -> tuple[int, int | None]:
        """As root: a block of uids that no other host uses, and a locked file; the lock lasts as long as the process."""
        if not self.root:
            return os.getuid(), None
        mapped = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
        last = UID_FIRST + UIDS_PER_HOST * UID_BLOCKS
        if not any(first <= UID_FIRST and last <= first + count for first, _, count in mapped):
            raise Refused(f"this root has no unprivileged users {UID_FIRST} to {last}. Run as an ordinary user.")
        folder = lock_folder()
        for block in range(UID_FIRST, last, UIDS_PER_HOST):
            lock = os.open(folder / f"uids-{block}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
            else:
                return block, lock
        raise Refused(f"{UID_BLOCKS} sandbox hosts run on this machine already.")

    def _enter_namespace(self) -> None:
        """A mount namespace of our own; for an ordinary user inside a user namespace that allows mounting."""
        try:
            namespaces.enter(self.kernel)
        except OSError as error:
            remedy = namespaces.ROOT_REMEDY if self.root else namespaces.obstacle()
            raise Refused(f"no namespaces: {error}. {remedy}") from error

    def _hide(self, folders: Iterable[str]) -> None:
        """Put an empty folder in the place of each; the mounts of all sandboxes are made from ours."""
        nothing = BASE / "nothing"
        nothing.mkdir(mode=0o555)
        for folder in folders:
            self.kernel.bind(nothing, self.system / Path(folder).relative_to(self._root))

    def _prepare(self, interpreters: Iterable[Interpreter], packages: Sequence[Source]) -> Interpreter:
        """Lay the folders that all sandboxes share, on a tmpfs in place of /tmp; returns the first interpreter that works."""
        # Read first: any of these may lie below /tmp.
        here = Path(__file__).parent
        sources = {one: ((here / one.script).read_bytes(), one.path.read_bytes()) for one in interpreters}
        bubblewrap = {} if is_of_system(self._found_bwrap) else files_of_wheel(self._found_bwrap)
        folders = open_folders(packages)
        python, root = find_python(self._root), os.open(self._root, os.O_PATH | os.O_DIRECTORY)
        size = sum(len(program) for _, program in sources.values()) + sum(map(len, bubblewrap.values()))
        self.kernel.mount_tmpfs(BASE, size=size + (64 << 20), files=65_536)
        if self._root != MACHINE:
            self.system.mkdir()
            self.kernel.bind(Path(f"/proc/self/fd/{root}"), self.system, recursive=True)
        os.close(root)
        etc, run, pid1 = BASE / "etc", BASE / "run", BASE / "run" / "pid1"
        for folder in (etc, run, pid1):
            folder.mkdir()
        furnish(run, packages, folders, python=python)
        for name, text in ACCOUNTS.items():
            (etc / name).write_text(text)
        (etc / "alternatives").mkdir()
        (etc / "ld.so.cache").touch()
        (BASE / "preload").touch()
        for path, content in bubblewrap.items():
            target = BASE / "bubblewrap" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            target.chmod(0o755)
        for interpreter, (script, program) in sources.items():
            # One of another root runs only there: the first sandbox shows whether it does.
            problem = install(pid1, interpreter, script, program, check=self._root == MACHINE)
            if not problem:
                return interpreter
            self.problems.append(f"{interpreter.script} does not run in {interpreter.path}: {problem}")
        raise Refused("; ".join(self.problems))


def lock_folder(base: Path = LOCKS) -> Path:
    """The folder of root's locks, made when it is missing: only root may put files there, so that no other user holds one.

    Raises:
        Refused: It is another user's, or cannot be made.
    """
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        status = base.lstat()
    except OSError as error:
        raise Refused(f"{base} cannot be made: {error.strerror}. Root's sandboxes keep locks there.") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise Refused(f"{base} is no folder that root alone may write to. Remove it.")
    return base


def install(folder: Path, interpreter: Interpreter, script: bytes, program: bytes, *, check: bool = True) -> str:
    """Copy an interpreter for process 1 and its script; returns why it does not work, or nothing. `check` runs the copy once."""
    (folder / interpreter.script).write_bytes(script)
    copy = folder / INTERPRETER
    copy.write_bytes(program)
    copy.chmod(0o755)
    words = [copy, *interpreter.options, *(["-c"] if interpreter.script.endswith(".pl") else []), folder / interpreter.script]
    if check and (problem := _problem_of(words)):
        return problem
    # Execute but not read: the kernel then makes the process undumpable, so no process inside can trace it or open its files.
    copy.chmod(0o111)
    return ""


def _problem_of(words: Sequence[str | Path]) -> str:
    """What a command says when it fails; nothing when it does not."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, env={}, check=False)
    except OSError as error:
        return str(error)
    if done.returncode == 0:
        return ""
    return done.stderr.decode("utf-8", "replace").strip()[-500:] or f"exit code {done.returncode}"


def files_of_wheel(bwrap: Path) -> dict[Path, bytes]:
    """Path -> content of the program and of the libraries next to its package, where it looks for them."""
    site = bwrap.parents[2]
    libraries = (site / f"{bwrap.parents[1].name}.libs").glob("*.so*")
    return {path.relative_to(site): path.read_bytes() for path in (bwrap, *libraries)}
