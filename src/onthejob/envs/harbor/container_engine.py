"""Images that podman or docker makes of a task's Dockerfile: built once, exported, and kept in the user's cache.

The engine does nothing else. Episodes and tests run in our sandboxes, with the exported root file system for their system. The
commands of a Dockerfile run as the engine isolates them, with its network.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from onthejob.envs.claw.sandbox.sandbox_interface import Content, ItemKind, as_item
from onthejob.errors import ConfigError
from onthejob.files import TEMPORARY, remove_abandoned

EngineName = Literal["none", "podman", "docker"]
STEP_S = 600.0
"""Seconds that a step may take other than a build: an export, say."""
GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL."""
SAID = 300
"""Characters of an engine's last words that a message quotes."""
NOT_UNPACKED = ("dev/*", "proc/*", "sys/*", "run/*")
"""Folders of an image that sandboxes have of their own; only root could make device nodes."""


class BuildError(Exception):
    """An image could not be made; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image that an engine made."""

    root: Path
    """Folder of its root file system; never written to."""
    workdir: str
    env: Mapping[str, str]
    user: str
    """As the Dockerfile says; empty for root."""


class Engine:
    """Makes images with one engine. May be used from several threads and processes, which make each image once.

    Args:
        name: podman or docker.
        folder: where images are kept, each as `KEY/root` and `KEY/image.json`; made when it is missing.

    Raises:
        ConfigError: the engine or `tar` is not installed.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self._folder = name, folder
        for program in (name, "tar"):
            if shutil.which(program) is None:
                raise ConfigError(f"{program} is not on the search path, and --env.engine {name} needs it. Install {program}.")

    def built(self, environment: Path, files: Mapping[str, Content], *, timeout_s: float) -> Built:
        """The image of a folder with a Dockerfile; one that was made before is taken from the cache.

        Args:
            environment: the folder.
            files: what it holds, by path: the same files make the same image.
            timeout_s: Seconds that a build may take.

        Raises:
            BuildError: it could not be made.
            OSError: the cache cannot be written to.
        """
        key = key_of(files)
        final = self._folder / key
        self._folder.mkdir(parents=True, exist_ok=True)
        with _alone(self._folder / f"{key}.lock"):
            if not final.is_dir():
                remove_abandoned(self._folder, key)
                self._make(environment, final, timeout_s)
            config = json.loads((final / "image.json").read_text(encoding="utf-8"))
        return Built(root=final / "root", **config)

    def _make(self, environment: Path, final: Path, timeout_s: float) -> None:
        temporary = final.with_name(f"{TEMPORARY}{final.name}-{os.getpid()}")
        tag = f"onthejob-harbor:{final.name[:16]}-{os.getpid()}"
        container = ""
        try:
            (temporary / "root").mkdir(parents=True)
            self._run("build", "--tag", tag, "--file", str(environment / "Dockerfile"), str(environment), timeout_s=timeout_s)
            config = _config(self._run("image", "inspect", tag))
            container = self._run("create", tag, "true").decode().strip()
            self._export(container, temporary / "root")
            (temporary / "image.json").write_text(json.dumps(config), encoding="utf-8")
            # One flush instead of one for each of its many files: after a power failure an image is complete or absent.
            os.sync()
            temporary.rename(final)
        finally:
            # What is left in the engine would take the same room again; a base that was pulled stays.
            for words in ([("rm", container)] if container else []) + [("image", "rm", tag)]:
                with contextlib.suppress(BuildError):
                    self._run(*words)
            shutil.rmtree(temporary, ignore_errors=True)

    def _export(self, container: str, root: Path) -> None:
        """Unpack a container's files; tar follows no link of an archive out of the folder."""
        words = ["tar", "--extract", "--file=-", f"--directory={root}", "--preserve-permissions", "--no-same-owner"]
        words += ["--delay-directory-restore", "--anchored", *(f"--exclude={pattern}" for pattern in NOT_UNPACKED)]
        with tempfile.TemporaryFile() as said:
            exporting = _start([self.name, "export", container], said, stdout=subprocess.PIPE)
            try:
                with tempfile.TemporaryFile() as errors:
                    unpacking = _start(words, errors, stdin=exporting.stdout)
                    assert exporting.stdout is not None
                    exporting.stdout.close()
                    _finish(unpacking, "tar", errors, STEP_S)
            finally:
                _finish(exporting, f"{self.name} export", said, GRACE_S)
        root.chmod(0o755)

    def _run(self, *words: str, timeout_s: float = STEP_S) -> bytes:
        """What a command of the engine prints.

        Raises:
            BuildError: it failed or took too long.
        """
        with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as out:
            _finish(_start([self.name, *words], said, stdout=out), f"{self.name} {words[0]}", said, timeout_s)
            out.seek(0)
            return out.read()


def key_of(files: Mapping[str, Content]) -> str:
    """A digest of the paths, kinds, modes and contents of a build's files."""
    digest = hashlib.sha256()
    for path, content in sorted(files.items()):
        item = as_item(path, content)
        mode = item.mode & 0o777 if item.kind is ItemKind.FILE else 0
        digest.update(f"\0{path}\0{item.kind}\0{mode}\0{len(item.data)}\0".encode() + item.data)
    return digest.hexdigest()[:32]


def _config(inspected: bytes) -> dict[str, Any]:
    """Folder, variables and user of an image, as both engines print them."""
    found = json.loads(inspected)[0]["Config"]
    env = dict(pair.split("=", 1) for pair in found.get("Env") or () if "=" in pair)
    user = str(found.get("User") or "").partition(":")[0]
    return {"workdir": found.get("WorkingDir") or "/", "env": env, "user": "" if user in ("root", "0") else user}


def _start(
    words: Sequence[str], said: IO[bytes], *, stdin: Any = subprocess.DEVNULL, stdout: Any = None
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, so that it can be ended with all that it starts."""
    return subprocess.Popen(words, stdin=stdin, stdout=stdout or said, stderr=said, start_new_session=True)


def _finish(process: subprocess.Popen[bytes], name: str, said: IO[bytes], timeout_s: float) -> None:
    """Wait until a program has ended; one that takes too long, or is no longer wanted, is ended.

    Raises:
        BuildError: it failed or took too long; quotes the end of what it said.
    """
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{name} needed more than {timeout_s:g} s") from error
    finally:
        _end(process)
    if code != 0:
        said.seek(0)
        words = " ".join(said.read()[-4 * SAID :].decode("utf-8", "replace").split())[-SAID:]
        raise BuildError(f"{name} ended with {code}: {words}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a program's session: an engine cleans up at SIGTERM."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + GRACE_S
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
    process.wait()


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Only one thread of one process at a time makes what the lock stands for."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
