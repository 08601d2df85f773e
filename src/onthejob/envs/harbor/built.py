"""A task's image as an engine makes it, and whether sandboxes can have it: what its text could not tell is seen here."""

from __future__ import annotations

import math

from onthejob.envs.claw.sandbox.requirements import check_rootfs
from onthejob.envs.claw.sandbox.sandbox_interface import ItemKind, WorkspaceItem
from onthejob.envs.harbor.base import OF_SANDBOXES, tree_of_root
from onthejob.envs.harbor.container_engine import BuildError, Engine
from onthejob.envs.harbor.folder import HarborTask
from onthejob.envs.harbor.hosts import RootHosts
from onthejob.envs.harbor.image import Image, is_of_system
from onthejob.envs.harbor.marks import why_marked
from onthejob.envs.harbor.packages import System
from onthejob.envs.harbor.refusal import RefusalReason
from onthejob.envs.harbor.support import UNSAFE, refusals_of_tests
from onthejob.errors import ConfigError, SandboxError

BUILD_S = 600.0
"""Seconds that a build may take where a task states none."""


def built_image(task: HarborTask, engine: Engine, hosts: RootHosts) -> Image:
    """The image of a task; one that could not be made, or in which the task cannot run, has a refusal.

    Raises:
        OSError: the cache cannot be written to.
    """
    refused = Image()
    try:
        made = engine.built(task.folder / "environment", task.environment, timeout_s=build_s(task))
        root = check_rootfs(made.root, named="the image")
        files = tree_of_root(root, named="the image", left_out=OF_SANDBOXES)
        # Programs for another processor, or without their libraries, show when a first sandbox starts.
        with hosts.leased(root):
            pass
    except (BuildError, ConfigError, SandboxError) as error:
        refused.refuse(RefusalReason.BUILD, str(error))
        return refused
    inner = made.workdir.strip("/")
    if inner:
        files.setdefault(inner, WorkspaceItem(kind=ItemKind.FOLDER, mode=0o755))
    own = frozenset(path for path in files if not inner or not path.startswith(f"{inner}/"))
    system = System(root)
    image = Image(files=files, workdir=made.workdir, env=dict(made.env), base=own, root=root, notes=[f"made by {engine.name}"])
    if is_of_system(made.workdir):
        image.refuse(RefusalReason.PLACE, f"WORKDIR {made.workdir}")
    if made.user:
        image.refuse(RefusalReason.USER, f"USER {made.user}")
    image.refusals += refusals_of_tests(task, system)
    if not system.is_safe() and not why_marked(task.tests):
        image.refuse(RefusalReason.IMAGE, UNSAFE)
    return image


def build_s(task: HarborTask) -> float:
    """Seconds that the build of a task's image may take."""
    found = task.section("environment").get("build_timeout_sec", BUILD_S)
    usable = isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found) and found > 0
    return float(found) if usable else BUILD_S
