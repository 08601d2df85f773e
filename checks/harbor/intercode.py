"""InterCode-Bash as tasks in the Harbor format: 200 requests over four file systems, each with a gold command.

A checkout of the public repository holds them; none of its files are ours.

    data/nl2bash/nl2bash_fs_1.json              [{"query": "...", "gold": "..."}, ...], up to fs_4
    docker/bash_scripts/setup_nl2b_fs_1.sh      makes the file system

InterCode compares what an agent leaves and prints with what the gold command does. Here the gold command runs in a sandbox, and
what it left and printed becomes `tests/expected.json`: the tree with contents, modes, links, empty folders and times that were
set, and the printed lines in any order. An agent writes what it would print to a file.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onthejob.envs.claw.copying import copied
from onthejob.envs.claw.sandbox.sandbox_interface import Item, Kind
from onthejob.envs.claw.workspace import Unreadable
from onthejob.envs.harbor.base import skeleton
from onthejob.envs.harbor.final_tree import RESERVED, links
from onthejob.envs.harbor.folder import HarborTask
from onthejob.envs.harbor.harbor_work import Images, start_of
from onthejob.envs.harbor.image import Image
from onthejob.envs.harbor.packages import HERE
from onthejob.envs.harbor.run_lines import BUILTINS
from onthejob.envs.harbor.shell import UnreadScript, programs
from onthejob.envs.harbor.verify import LAYOUT
from onthejob.errors import ConfigError

ANSWER = "answer.txt"
"""File of `/` to which an agent writes what it would print."""
ARCHIVES = (".gz", ".tgz", ".zip", ".tar", ".bz2", ".xz", ".Z")
"""Endings of files of which only existence and mode are compared."""
COMMAND_S = 30.0
OLD_S = 3_600.0
"""A time of modification that lies so far back was set."""
SCRATCH = re.compile(rf"(tmp|var|proc|dev|run|sys|logs|tests)(/|$)|root(/\.|$)|{re.escape(ANSWER)}$|setup\.sh$")
"""Paths that are not compared."""
DOCKERFILE = "FROM ubuntu:24.04\nCOPY setup.sh /setup.sh\nRUN bash /setup.sh >/dev/null 2>&1; rm -f /setup.sh\nWORKDIR /\n"
TOML = (
    '[metadata]\ncategory = "fs_{system}"\ndifficulty = "-"\n\n[verifier]\ntimeout_sec = 60.0\n\n[agent]\ntimeout_sec = 120.0\n'
)
TEST = "#!/bin/bash\npython3 /tests/check.py > /logs/verifier/reward.json\n"
CHECK = '''"""Compares the tree and the answer with what the gold command left."""

import hashlib
import json
import os
import stat
from pathlib import Path

EXPECTED = json.loads((Path(__file__).parent / "expected.json").read_text())


ARCHIVES = (".gz", ".tgz", ".zip", ".tar", ".bz2", ".xz", ".Z")


def entry(path, timed):
    """Kind, mode, content and, where it counts, time of a path; None where there is nothing."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if stat.S_ISLNK(status.st_mode):
        return ["link", 0, os.readlink(path), None]
    mtime = int(status.st_mtime) if timed else None
    if stat.S_ISDIR(status.st_mode):
        return ["folder", stat.S_IMODE(status.st_mode) | 0o700, "", mtime]
    if not stat.S_ISREG(status.st_mode):
        return ["special", 0, "", None]
    digest = "" if path.endswith(ARCHIVES) else hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return ["file", stat.S_IMODE(status.st_mode) | 0o400, digest, mtime]


def same_tree():
    """Whether the compared folders hold what they should and nothing else."""
    wanted = EXPECTED["tree"]
    for path, row in wanted.items():
        if entry("/" + path, row is not None and row[3] is not None) != row:
            return False
    for root in EXPECTED["roots"]:
        for folder, folders, files in os.walk("/" + root):
            for name in folders + files:
                if os.path.join(folder, name)[1:] not in wanted:
                    return False
    return True


def same_answer():
    """Whether the lines of the answer are those that the gold command printed, in any order."""
    if EXPECTED["answer"] is None:
        return True
    try:
        text = Path(EXPECTED["file"]).read_text(errors="replace")
    except OSError:
        return False
    return sorted(line.rstrip() for line in text.rstrip().split("\\n")) == EXPECTED["answer"]


files, answer = same_tree(), same_answer()
print(json.dumps({"reward": float(files and answer), "files": float(files), "answer": float(answer)}))
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class InterCodeTask:
    """One request."""

    name: str
    query: str
    gold: str
    system: int
    """Number of its file system, from 1."""
    setup: str
    """The script that makes it."""


def read_intercode(folder: Path) -> list[InterCodeTask]:
    """The tasks of a checkout.

    Raises:
        ConfigError: it has none, or one of its files is not in the form.
    """
    found: list[InterCodeTask] = []
    for file in sorted((folder / "data" / "nl2bash").glob("nl2bash_fs_*.json")):
        number = file.stem.rpartition("_")[2]
        script = folder / "docker" / "bash_scripts" / f"setup_nl2b_fs_{number}.sh"
        try:
            rows = json.loads(file.read_text(encoding="utf-8"))
            setup = script.read_text(encoding="utf-8") if script.is_file() else ""
            for index, row in enumerate(rows):
                gold = row["gold"] if isinstance(row["gold"], str) else "; ".join(row["gold"])
                name = f"fs{number}-{index:02d}"
                found.append(InterCodeTask(name=name, query=str(row["query"]), gold=gold, system=int(number), setup=setup))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{file} is not in InterCode's form: {type(error).__name__}: {error}.") from error
    if not found:
        raise ConfigError(f"{folder} holds no data/nl2bash/nl2bash_fs_1.json. Give a checkout of InterCode.")
    return found


def converted(task: InterCodeTask, images: Images) -> tuple[dict[str, bytes], str]:
    """The files of the task's folder in the Harbor format, by path, and why there are none.

    Args:
        task: from `read_intercode`.
        images: runs the setup and the gold command.

    Raises:
        SandboxError: a sandbox failed.
    """
    if missing := sorted(missing_programs(task.gold)):
        return {}, f"needs {missing[0]}"
    image = images.of(as_harbor(task))
    if image.refusals:
        return {}, f"its file system cannot be made: {image.refusals[0].detail}"
    try:
        first, second = gold_effect(task, image, images), gold_effect(task, image, images)
    except Unreadable as error:
        return {}, f"the gold command's tree {error}"
    if first != second:
        return {}, "the gold command does something else each time"
    tree, answer = first
    before = compared(image.files)
    if tree == before and not answer:
        return {}, "the gold command changes nothing and prints nothing"
    expected = {
        "tree": {**dict.fromkeys(before, None), **timed(tree, before)},
        "roots": sorted({path.split("/")[0] for path in before} - {path.split("/")[0] for path in skeleton()}),
        "answer": answer or None,
        "file": f"/{ANSWER}",
    }
    ask = f"{task.query}\n" + (f"\nWrite what the answer prints, and nothing else, to /{ANSWER}.\n" if answer else "")
    texts = {
        "task.toml": TOML.format(system=task.system),
        "instruction.md": ask,
        "environment/Dockerfile": DOCKERFILE,
        "environment/setup.sh": task.setup,
        "tests/test.sh": TEST,
        "tests/check.py": CHECK,
        "tests/expected.json": json.dumps(expected, indent=1, sort_keys=True) + "\n",
        "solution/solve.sh": f"#!/bin/bash\n{gold_script(task)}\n",
    }
    return {path: text.encode("utf-8", "surrogateescape") for path, text in texts.items()}, ""


def as_harbor(task: InterCodeTask) -> HarborTask:
    """The task's file system as that of a Harbor task; those of one file system are the same."""
    environment = {"Dockerfile": DOCKERFILE.encode(), "setup.sh": task.setup.encode()}
    digest = hashlib.sha256(task.setup.encode()).hexdigest()
    return HarborTask(
        name=task.name,
        folder=Path(),
        instruction=task.query,
        config={},
        environment=environment,
        tests={},
        solution={},
        digest=digest,
    )


def missing_programs(gold: str) -> set[str]:
    """Programs of a gold command that sandboxes of this machine do not have."""
    try:
        named = {name for name in programs(gold) if re.fullmatch(r"[A-Za-z][\w.+-]*", name)}
    except UnreadScript:
        return set()
    return {name for name in named - BUILTINS if HERE.lacks_program(name)}


def gold_script(task: InterCodeTask) -> str:
    """Bash text that runs the gold command from `/` and writes what it prints."""
    return f"cd /\n{{\n{task.gold}\n}} > /{ANSWER} 2>/dev/null < /dev/null"


def gold_effect(task: InterCodeTask, image: Image, images: Images) -> tuple[dict[str, list[object]], list[str]]:
    """What the gold command leaves, by path, and the lines that it prints, sorted.

    Raises:
        Unreadable: the tree is too large, or the command does not end.
    """
    with images.host.open(dict(image.files), images.limits, layout=LAYOUT) as sandbox:
        if sandbox.run(f"{start_of(image)}\n{gold_script(task)}", timeout_s=COMMAND_S).timed_out:
            raise Unreadable(f"is not complete after {COMMAND_S:g} s")
        left = copied(sandbox.collect(), links)
    printed = left.get(ANSWER, Item()).data.decode("utf-8", "replace").rstrip()
    lines = sorted(line.rstrip() for line in printed.split("\n")) if printed else []
    return compared(left), lines


def compared(items: Mapping[str, Item]) -> dict[str, list[object]]:
    """Path -> kind, mode, content and time, of what is compared; a time only where it was set."""
    found: dict[str, list[object]] = {}
    for path, item in items.items():
        if SCRATCH.match(path) or path.split("/")[0] in RESERVED or path.startswith(("etc/ld.so", "etc/alternatives")):
            continue
        old = item.mtime_ns is not None and item.mtime_ns < (time.time() - OLD_S) * 1e9
        mtime = item.mtime_ns // 10**9 if old and item.mtime_ns is not None else None
        if item.kind is Kind.LINK:
            found[path] = ["link", 0, item.data.decode("utf-8", "surrogateescape"), None]
        elif item.kind is Kind.FOLDER:
            found[path] = ["folder", item.mode | 0o700, "", mtime]
        else:
            # An archive holds the times at which its files were made.
            digest = "" if path.endswith(ARCHIVES) else hashlib.sha256(item.data).hexdigest()
            found[path] = ["file", item.mode | 0o400, digest, mtime]
    return found


def timed(tree: Mapping[str, list[object]], before: Mapping[str, list[object]]) -> dict[str, list[object]]:
    """The tree, with times only where the gold command has set one."""
    return {path: row if before.get(path, row)[3] != row[3] else [*row[:3], None] for path, row in tree.items()}
