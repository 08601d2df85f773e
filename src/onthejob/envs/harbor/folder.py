"""A task in the Harbor format, as it lies in its folder; none of the public ones are ours.

    task.toml                   metadata, time limits, what the environment needs
    instruction.md              the request
    environment/Dockerfile      the image, made with the files next to it
    tests/test.sh               writes its verdict to /logs/verifier/reward.txt or reward.json
    solution/solve.sh           optional: commands that solve the task

What can run here is decided in `onthejob.envs.harbor.support`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onthejob.envs.claw.official import add_tree, tree_of
from onthejob.envs.claw.sandbox.sandbox_interface import Content, as_item
from onthejob.errors import ConfigError
from onthejob.types import Split

TASK = "task.toml"
TEST, SOLUTION = "test.sh", "solve.sh"
USUAL_S = 600.0
"""Seconds of the agent and of the tests where a task states none."""
MOST_BYTES = 40 << 20
"""Files of an environment, of tests or of a solution; larger ones are not read."""
SPLIT_FOLDERS = {str(split): split for split in Split}
_LEVEL = re.compile(r"[-_](easy|medium|hard|v?\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTask:
    """One task."""

    name: str
    """That of its folder."""
    folder: Path
    instruction: str
    config: Mapping[str, Any]
    """`task.toml`."""
    environment: Mapping[str, Content]
    """The Dockerfile and the files next to it, by path; so are the next two."""
    tests: Mapping[str, Content]
    solution: Mapping[str, Content]
    digest: str
    """sha256 over all of it."""

    def section(self, name: str) -> Mapping[str, Any]:
        """A table of `task.toml`; empty where there is none."""
        found = self.config.get(name, {})
        return found if isinstance(found, Mapping) else {}

    @property
    def agent_s(self) -> float:
        """Seconds that the agent has."""
        return _seconds(self.section("agent"))

    @property
    def verifier_s(self) -> float:
        """Seconds that the tests have."""
        return _seconds(self.section("verifier"))

    @property
    def family(self) -> str:
        """Category of its metadata, `-` where it has none."""
        return str(self.section("metadata").get("category") or "-")

    @property
    def difficulty(self) -> str:
        """As its metadata says, `-` where it does not."""
        return str(self.section("metadata").get("difficulty") or "-")

    @property
    def others(self) -> str:
        """All texts but the Dockerfile's and those of task.toml."""
        held = [*self.tests.values(), *self.solution.values()]
        held += [content for path, content in self.environment.items() if path != "Dockerfile"]
        return "\n".join([self.instruction, *(as_item("", content).data.decode("utf-8", "replace") for content in held)])

    @property
    def dockerfile(self) -> str | None:
        """Its text; None where there is none."""
        return _text(self.environment.get("Dockerfile"))

    @property
    def test(self) -> str:
        """The text of `tests/test.sh`."""
        return _text(self.tests.get(TEST)) or ""

    @property
    def solution_text(self) -> str:
        """The text of `solution/solve.sh`."""
        return _text(self.solution.get(SOLUTION)) or ""

    @property
    def has_solution(self) -> bool:
        """Whether it brings commands that solve it."""
        return SOLUTION in self.solution


def task_folders(root: Path) -> list[tuple[Path, Split | None]]:
    """Folders of tasks at or below `root`, by name, each with the split that a folder train, dev or test around it states.

    Raises:
        ConfigError: there are none.
    """
    if (root / TASK).is_file():
        return [(root, None)]
    found: list[tuple[Path, Split | None]] = []
    for folder in _below(root):
        if (folder / TASK).is_file():
            found.append((folder, None))
        else:
            found += [(inner, SPLIT_FOLDERS.get(folder.name)) for inner in _below(folder) if (inner / TASK).is_file()]
    if not found:
        raise ConfigError(f"{root} holds no task in the Harbor format. Give a folder with a {TASK}, or one of such folders.")
    return found


def _below(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror}. Name a folder of tasks.") from error


def topic(name: str) -> str:
    """Name of a task without its difficulty or number: tasks of one topic are in one split."""
    while (shorter := _LEVEL.sub("", name)) != name:
        name = shorter
    return name


def read(folder: Path) -> HarborTask:
    """The task in `folder`.

    Raises:
        ConfigError: a file is missing or not in the format; the message says which.
    """
    try:
        text = (folder / TASK).read_text(encoding="utf-8")
        config = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{folder / TASK} cannot be read: {error}.") from error
    try:
        instruction = (folder / "instruction.md").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        instruction = ""
    if not instruction and not config.get("steps"):
        raise ConfigError(f"{folder} has no instruction.md with a request.")
    held: dict[str, dict[str, Content]] = {}
    digest = hashlib.sha256(json.dumps([text, instruction]).encode())
    for part in ("environment", "tests", "solution"):
        if _size(folder / part) > MOST_BYTES:
            raise ConfigError(f"{folder / part} holds more than the {MOST_BYTES >> 20} MiB that are read.")
        held[part] = tree_of(folder / part)
        add_tree(digest, part, held[part])
    return HarborTask(
        name=folder.resolve().name, folder=folder, instruction=instruction, config=config, digest=digest.hexdigest(), **held
    )


def _size(folder: Path) -> int:
    """Bytes of the files below a folder, which may be missing."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _text(content: Content | None) -> str | None:
    return None if content is None else as_item("", content).data.decode("utf-8", "replace")


def _seconds(section: Mapping[str, Any]) -> float:
    found = section.get("timeout_sec", USUAL_S)
    usable = isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found) and found > 0
    return float(found) if usable else USUAL_S
