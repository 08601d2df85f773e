"""Fault 61: an episode whose workspace is full, and hosts that find no room to write on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import onthejob
from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.claw.env import ClawEnvironment
from onthejob.envs.claw.sandbox.host import BwrapHost
from onthejob.envs.claw.sandbox.inside import sources
from onthejob.types import Split, Task

from .conftest import Copy

SOURCE = Path(onthejob.__file__).parent.parent
RECORD = {
    "task_id": "full-1",
    "family": "full",
    "persona": {"name": "technical-writer", "role": "Technical writer", "context": "Keeps the manual."},
    "intent": "Write done.txt, and leave kept.txt alone.",
    "workspace_seed": {"files": [{"path": "kept.txt", "kind": "text", "content": "kept"}]},
    "skills_required": ["file.write"],
    "verifiable_assertions": [
        {"kind": "file_contents_match_regex", "path": "done.txt", "regex": "^done$"},
        {"kind": "file_exists", "path": "late.txt"},
        {"kind": "file_unchanged", "path": "kept.txt", "guard": True},
    ],
    "difficulty": "easy",
    "estimated_steps": 2,
    "gold": ["printf done > done.txt; touch late.txt"],
}
FILL = "cat /dev/zero > big; cat /dev/zero > big2; i=0; while echo x > f$i; do i=$((i + 1)); done"


def test_an_episode_in_a_full_workspace_is_graded(host: BwrapHost):
    env = ClawEnvironment(host=host)
    env.reset(Task(id="full-1", env="claw", split=Split.TRAIN, seed=1, payload=RECORD))
    env.step(block("printf done > done.txt"))
    full = env.step(block(FILL))
    assert "No space left on device" in full.facts["observation"]
    # Making the file takes no block, filling it does.
    failed = env.step(block("echo more > more.txt && touch late.txt"))
    assert "exit code: 1" in failed.facts["observation"]
    assert "exit code: 0\nstdout:\nkeptdone" in env.step(block("cat kept.txt done.txt")).facts["observation"]
    env.step(DONE)
    passed = {verdict["path"]: verdict["passed"] for verdict in env.state()["verdicts"]}
    assert passed == {"done.txt": True, "late.txt": False, "kept.txt": True}
    env.close()


# Mounted over /tmp in a namespace of its own: a small disk, and filled to the last byte.
FULL_DISK = """
import errno, json, os, sys, tempfile
from pathlib import Path
import onthejob
from onthejob.envs.claw.sandbox import Limits, open_host
from onthejob.errors import SandboxError
assert Path(onthejob.__file__).is_relative_to(sys.argv[1]), onthejob.__file__
os.chdir("/tmp")
def fill():
    try:
        with open("full", "ab", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
    except OSError as error:
        assert error.errno == errno.ENOSPC
# Python looks for a folder with room once, at the first use.
found = {"folder": tempfile.gettempdir()}
fill()
with open_host(ahead=2) as host:
    for number in range(3):
        with host.open({"f": b"x" * 100_000}) as sandbox:
            sandbox.run("cat f f > g")
            found[f"bwrap {number}"] = (sandbox.collect() / "g").stat().st_size
try:
    open_host(unsafe=True).close()
    found["host"] = "opened"
except SandboxError as error:
    found["host"] = str(error)
found["left of the host"] = sorted(os.listdir("/tmp"))
os.truncate("full", 0)
with open_host(unsafe=True) as host:
    given = set(os.listdir("/tmp")) - {"full"}
    fill()
    for text in ("x", "x" * 100_000):
        try:
            host.open({"f": text.encode()})
            found["unsafe"] = "opened"
        except SandboxError as error:
            found["unsafe"] = str(error)
    found["left"] = sorted(set(os.listdir("/tmp")) - given)
    os.truncate("full", os.path.getsize("full") - 65_536)
    with host.open({"f": b"x"}) as sandbox:
        fill()
        found["write"] = sandbox.run("echo more > g").exit_code
        found["read"] = sandbox.run("cat f").stdout.decode()
        try:
            sandbox.run(": '" + "x" * 150_000 + "'")
        except SandboxError as error:
            found["long"] = str(error)
        found["collected"] = (sandbox.collect() / "f").read_text()
found["left at the end"] = sorted(os.listdir("/tmp"))
print(json.dumps(found))
"""


# Package and interpreter may lie below /tmp, so that both are mounted elsewhere first.
PLACE = Path("/", "mnt")
PACKAGE, INTERPRETER = PLACE / "source", PLACE / "python"
MOUNT = (
    "bash",
    "-c",
    f"""
    set -e
    mount -t tmpfs places {PLACE}
    mkdir {PACKAGE} {INTERPRETER}
    mount --rbind "$0" {PACKAGE}
    mount --rbind "$1" {INTERPRETER}
    mount -t tmpfs -o size=64m full /tmp
    shift
    if [ "$EUID" -ne 0 ]; then set -- setpriv --ambient-caps -all --inh-caps -all "$@"; fi
    exec "$@"
    """,
    str(SOURCE),
    sys.prefix,
)


def test_a_full_disk_outside_stops_no_sandbox_and_is_said_without_one():
    # An ordinary user mounts in a user namespace, under its own name, and gives the right to mount up again.
    enter = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"])]
    if (trial := subprocess.run([*enter, *MOUNT, "true"], capture_output=True, text=True, timeout=60, check=False)).returncode:
        pytest.skip(f"nothing can be mounted here: {trial.stderr.strip()}")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE), "PYTHONDONTWRITEBYTECODE": "1"}
    python = INTERPRETER / Path(sys.executable).relative_to(sys.prefix)
    words = [*enter, *MOUNT, str(python), "-s", "-c", FULL_DISK, str(PACKAGE)]
    done = subprocess.run(words, env=environment, cwd="/", capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # The broker writes to its own tmpfs, and to nothing of this machine.
    assert [found[f"bwrap {number}"] for number in range(3)] == [200_000] * 3
    for key in ("host", "unsafe", "long"):
        assert found[key].startswith("no workspace in /tmp: No space left on device. Make room there, or set TMPDIR")
    assert (found["write"], found["read"], found["collected"]) == (1, "x", "x")
    assert found["left of the host"] == found["left"] == found["left at the end"] == ["full"]


# The broker's own tmpfs, made so small that it is full after a few sandboxes.
FULL_BROKER = """
import json
from onthejob.envs.claw.sandbox import SandboxError
from onthejob.envs.claw.sandbox.host import BwrapHost
rounds = []
with BwrapHost() as host:
    for _ in range(3):
        opened = []
        try:
            while len(opened) < 30:
                opened.append(host.open({"f": b"x"}))
        except SandboxError as error:
            # Folders are numbered on.
            said = str(error).rpartition(":")[0]
        rounds.append([len(opened), said, [sandbox.run("cat f").stdout.decode() for sandbox in opened]])
        for sandbox in opened:
            sandbox.close()
print(json.dumps(rounds))
"""


def shared_files() -> int:
    """Files and folders of the packages that a broker copies for its sandboxes."""
    tops = [Path(source.folder, source.name) for source in sources()]
    return len(tops) + sum(1 for top in tops for _ in top.rglob("*"))


@pytest.mark.parametrize("inodes", range(27, 30))
def test_a_full_folder_of_the_broker_is_an_error_and_leaves_nothing(copy: Copy, inodes: int):
    copy.change("ground.py", "files=65_536", f"files={shared_files() + inodes}")
    done = copy.run(FULL_BROKER)
    assert done.returncode == 0, done.stderr
    rounds = json.loads(done.stdout)
    opened, said, outputs = rounds[0]
    assert opened >= 1
    assert outputs == ["x"] * opened
    assert said.startswith("no sandbox: ")
    assert "No space left on device" in said
    # As many again, so nothing of the one that failed is left.
    assert rounds == [rounds[0]] * 3


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("ground.py", "size + (64 << 20)", "65_536", "[Errno 28] No space left on device"),
        (
            "lifetime.py",
            "mount_tmpfs(target, size=size, files=files)",
            "mount_tmpfs(target, size=size, files=-1)",
            "[Errno 22] mount tmpfs on ",
        ),
        ("ground.py", "files=65_536", "files=20", "[Errno 28] No space left on device"),
    ],
)
def test_a_broker_that_has_no_room_for_a_single_sandbox_is_an_error(copy: Copy, file: str, old: str, new: str, said: str):
    copy.change(file, old, new)
    done = copy.run("from onthejob.envs.claw.sandbox.host import BwrapHost\nBwrapHost()")
    assert f"SandboxError: no sandbox: {said}" in done.stderr.strip().splitlines()[-1]
