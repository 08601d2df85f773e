"""What an episode needs of a Harbor task: the request, the tree of its image, and the tests that grade what is left of it."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from onthejob.envs.claw.copying import copied, roomy
from onthejob.envs.claw.grader import Grade
from onthejob.envs.claw.official import require_unchanged
from onthejob.envs.claw.sandbox import open_host
from onthejob.envs.claw.sandbox.sandbox_interface import Content, ItemKind, Limits, SandboxHost
from onthejob.envs.claw.work import Work
from onthejob.envs.claw.workspace import Unreadable
from onthejob.envs.harbor.built import built_image
from onthejob.envs.harbor.container_engine import Engine
from onthejob.envs.harbor.final_tree import RESERVED, links
from onthejob.envs.harbor.folder import HarborTask, read
from onthejob.envs.harbor.hosts import RootHosts
from onthejob.envs.harbor.image import Image, image_of, prefix
from onthejob.envs.harbor.packages import HERE, System, system_at
from onthejob.envs.harbor.refusal import RefusalReason
from onthejob.envs.harbor.support import needs_engine
from onthejob.envs.harbor.verify import LAYOUT, STAND_INS, usual_variables, verify
from onthejob.errors import ConfigError, NotCheckable
from onthejob.types import Task

FORMAT = "harbor"
MARK = "tests_run_agent_code"
"""Key of a payload whose tests may run the agent's code; the value says why."""
BUILD_S = 120.0
"""Seconds that one RUN line may take."""
MOUNTED = re.compile(r"etc/(ld\.so\.|alternatives(/|$))")
"""Files of /etc that are this machine's in every sandbox."""
KEPT = 256
"""Images that are kept in memory."""
LISTED = 40
"""Files of the task's folder that the request lists."""


def payload_of(task: HarborTask, mark: str) -> dict[str, Any]:
    """What a task of the loop holds: where it lies, a digest of what is there, and what it is like."""
    found = {"format": FORMAT, "folder": str(task.folder.resolve()), "digest": task.digest, "family": task.family}
    return found | {"difficulty": task.difficulty} | ({MARK: mark} if mark else {})


def load(payload: Mapping[str, Any]) -> HarborTask:
    """The task that the payload names.

    Raises:
        ConfigError: as `read`, or the folder no longer holds what it held.
    """
    found = read(Path(str(payload.get("folder", ""))))
    require_unchanged(payload, found.digest)
    return found


def harbor_work(task: Task, *, images: Images) -> Work:
    """The work in the payload of `task`.

    Raises:
        ConfigError: the payload is no Harbor task, or its folder is not what it was.
        NotCheckable: its image cannot be made here.
    """
    if task.payload.get("format") != FORMAT:
        raise ConfigError(f"the payload of task {task.id!r} names no Harbor task.")
    found = load(task.payload)
    image = images.of(found)
    if image.refusals:
        said = "; ".join(f"{one.reason} ({one.detail})" for one in image.refusals)
        raise NotCheckable(f"task {task.id} cannot run here: {said}. Leave the task out.")
    grade = partial(_grade, found, image, images=images, marked=MARK in task.payload)
    return Work(
        id=task.id,
        intent=found.instruction,
        files=dict(image.files),
        grade=grade,
        family=found.family,
        difficulty=found.difficulty,
        layout=LAYOUT,
        listed=listed(image),
        start=start_of(image),
        place=image.workdir,
        part="verdict",
        total_s=found.agent_s,
        host=images.host_of(image),
    )


def _grade(task: HarborTask, image: Image, root: Path, *, images: Images, marked: bool) -> Grade:
    return verify(task, image, root, host=images.host_of(image), limits=images.limits, marked=marked)


def start_of(image: Image) -> str:
    """What stands before each command of an agent: the task's folder and the image's variables."""
    return prefix(image.workdir, image.env | usual_variables(image))


def listed(image: Image) -> dict[str, int]:
    """Files in the task's folder, by path below it -> size in bytes; at most `LISTED`, without hidden ones."""
    top = image.workdir.strip("/") + "/" if image.workdir != "/" else ""
    sizes: dict[str, int] = {}
    for path, item in sorted(image.files.items()):
        inner = path.removeprefix(top)
        ours = path.startswith(top) and path not in image.base and (top or path.split("/")[0] not in ("etc", "var"))
        if (
            ours
            and item.kind is ItemKind.FILE
            and len(sizes) < LISTED
            and not any(part.startswith(".") for part in inner.split("/"))
        ):
            sizes[inner] = len(item.data)
    return sizes


@contextmanager
def open_images(
    limits: Limits, *, data: Iterable[Path] = (), rootfs: Path | None = None, engine: Engine | None = None
) -> Iterator[Images]:
    """The images of tasks, with hosts of sandboxes that are closed at the end.

    Args:
        limits: of a sandbox.
        data: Folders that sandboxes may not see.
        rootfs: stands for the base of all images; None for this machine's system.
        engine: makes the images of tasks that cannot run without; None for no engine.

    Raises:
        ConfigError: as `open_host`.
        SandboxError: commands cannot be isolated here.
    """
    folders = list(data)
    with open_host(data=folders, rootfs=rootfs) as host, RootHosts(folders) as hosts:
        yield Images(host, limits, system_at(rootfs), engine=engine, hosts=hosts)


class Images:
    """The images of tasks, complete: the RUN lines of each have run once. May be used from several threads."""

    def __init__(
        self,
        host: SandboxHost,
        limits: Limits,
        system: System = HERE,
        *,
        engine: Engine | None = None,
        hosts: RootHosts | None = None,
    ) -> None:
        """Make none yet.

        `host` is of sandboxes with the root file system of `system`, which stands for the base of all of them but those that
        `engine` makes: they are the images of tasks that cannot run without, and `hosts` has their sandboxes.
        """
        self.host, self.limits, self.system, self.engine, self._hosts = host, limits, system, engine, hosts
        self._made: OrderedDict[str, Image] = OrderedDict()
        """By digest of their tasks, the last used ones at the end."""
        self._lock = threading.Lock()

    def of(self, task: HarborTask) -> Image:
        """The image of a task; one whose commands failed has a refusal.

        Raises:
            SandboxError: no sandbox could be started.
        """
        with self._lock:
            if task.digest in self._made:
                self._made.move_to_end(task.digest)
                return self._made[task.digest]
        made = image_of(task.environment, task.others, self.system)
        engine, hosts = self.engine, self._hosts
        needed = engine is not None and needs_engine(task, made, system=self.system)
        if not needed and (made.refusals or not made.commands):
            return made
        if not needed:
            # Two threads may make the same one; both make the same.
            made = self._complete(made)
        if engine is not None and hosts is not None and (needed or made.refusals):
            made = built_image(task, engine, hosts)
        with self._lock:
            self._made[task.digest] = made
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
        return made

    def host_of(self, image: Image) -> SandboxHost:
        """What makes the sandboxes of an image."""
        return self.host if image.root is None or self._hosts is None else self._hosts.of(image.root)

    def _complete(self, image: Image) -> Image:
        """Run the commands of an image in a sandbox and take over what is there then."""
        files: dict[str, Content] = dict(image.files)
        with self.host.open(files, roomy(self.limits), layout=LAYOUT) as sandbox:
            for command in image.commands:
                result = sandbox.run(f"{STAND_INS}export HOME=/root USER=root; {command}", timeout_s=BUILD_S)
                if result.exit_code != 0:
                    said = (result.stderr or result.stdout).decode("utf-8", "replace").strip().splitlines()
                    image.refuse(RefusalReason.BUILD, f"exit code {result.exit_code}{': ' + said[-1][:120] if said else ''}")
                    return image
            try:
                left = copied(sandbox.collect(), links)
            except Unreadable as error:
                image.refuse(RefusalReason.BUILD, f"the tree {error}")
                return image
        # What the sandbox itself mounted is made anew in each.
        kept = {path: item for path, item in left.items() if path.split("/")[0] not in RESERVED and not MOUNTED.match(path)}
        return replace(image, files=kept, commands=[])
