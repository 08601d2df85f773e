"""Whether a task can run here, said before anything is started: what refuses it, what differs, and whether it is marked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onthejob.envs.claw.needs import needs_of
from onthejob.envs.claw.sandbox.sandbox_interface import Content, WorkspaceItem
from onthejob.envs.harbor.folder import SOLUTION, TEST, HarborTask, read
from onthejob.envs.harbor.image import Image, image_of, is_of_system
from onthejob.envs.harbor.marks import why_marked
from onthejob.envs.harbor.packages import HERE, System, module_of
from onthejob.envs.harbor.refusal import PYTHONS, Refusal, RefusalReason
from onthejob.envs.harbor.run_lines import refusals_of_installing
from onthejob.envs.harbor.shell import UnreadScript
from onthejob.errors import ConfigError

SYSTEM_REQUEST = re.compile(
    r"\b(systemctl|systemd|dockerd?|docker-compose|kubectl|minikube|crontab|iptables|nftables|useradd|adduser|usermod|selinux|apparmor|"
    r"apt(-get)? (install|update)|pip3? install|npm install|sysctl|modprobe|sshd)\b",
    re.IGNORECASE,
)
"""Words of a request that is about services, packages or the machine itself."""
SERVICE = re.compile(
    rb"https?://(?:localhost|127\.|0\.0\.0\.0)|(?:localhost|127\.0\.0\.1|0\.0\.0\.0)(?::\d|['\"], *\d)|"
    rb"\b(?:import|from)[ \t]+(?:requests|httpx|aiohttp|paramiko|psycopg2?|pymysql|redis|pymongo|mysql|docker|websockets?|psutil|"
    rb"selenium|playwright)\b|\bpgrep\b|\bps[ \t]+(?:aux|-ef|-e)\b|\bsocket\.(?:socket|create_connection)"
)
"""Occurs in tests that talk to something that runs; in the tests' sandbox nothing does."""
STARTING = re.compile(rb"\bPopen\b|&[ \t]*$|\bcreate_subprocess", re.MULTILINE)
"""Occurs in tests that start it themselves."""
PYTHON = re.compile(r"\b(pytest|python3?)\b")
"""Occurs in scripts that need a Python; pytest, which sandboxes bring, runs under the system's."""
KEYS = re.compile(r"API_KEY|_TOKEN|SECRET", re.IGNORECASE)
MADE = frozenset(
    {
        RefusalReason.IMAGE,
        RefusalReason.NETWORK,
        RefusalReason.COMPILERS,
        RefusalReason.PACKAGES,
        RefusalReason.RUN,
        RefusalReason.PLACE,
    }
)
"""Refusals of a Dockerfile that an engine answers by making the image."""
BROUGHT = frozenset({RefusalReason.COMPILERS, RefusalReason.PACKAGES})
"""Refusals of tests that its image may answer, which shows when it is there."""
UNSAFE = "the system's Python is older than 3.11 and imports from the working folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """What is known of a task from its text."""

    refusals: tuple[Refusal, ...] = ()
    """Why it cannot run here; empty when it can, as far as its text tells."""
    notes: tuple[str, ...] = ()
    """Differences to a container that it may notice."""
    mark: str = ""
    """The reason why the agent's code may decide its verdict; empty when it may not."""


def support_of(task: HarborTask, image: Image | None = None, *, system: System = HERE, engine: str | None = None) -> Support:
    """What refuses or marks a task; nothing is started.

    `image` is that of `image_of`, when it has been made already; `system` stands for its base. `engine` makes the image of a task
    that cannot run without; that image may show further refusals.
    """
    image = image or image_of(task.environment, task.others, system)
    of_image, of_tests = image.refusals, refusals_of_tests(task, system)
    mark, notes = why_marked(task.tests), image.notes
    if engine is not None and needs_engine(task, image, system=system):
        of_image = [one for one in of_image if one.reason not in MADE]
        of_tests = [one for one in of_tests if one.reason not in BROUGHT]
        if is_of_system(image.workdir):
            of_image.append(Refusal(RefusalReason.PLACE, f"WORKDIR {image.workdir}"))
        notes = [f"made by {engine}"]
    elif not mark and not system.is_safe():
        mark = UNSAFE
    refused = [*of_image, *_of_config(task), *of_tests]
    if found := SYSTEM_REQUEST.search(task.instruction):
        refused.append(Refusal(RefusalReason.SYSTEM, found[0].lower()))
    return Support(refusals=tuple(dict.fromkeys(refused)), notes=tuple(notes), mark=mark)


def needs_engine(task: HarborTask, image: Image, *, system: System = HERE) -> bool:
    """Whether only an image that an engine makes can have what a task needs; `image` is the one of `image_of`."""
    return bool(image.refusals or refusals_of_tests(task, system)) and "Dockerfile" in task.environment


def refusals_of_tests(task: HarborTask, system: System) -> list[Refusal]:
    """What tests and solution need that `system` does not have, or that no sandbox has."""
    return list(dict.fromkeys(_of_tests(task, system)))


def read_supported(folder: Path, system: System = HERE, engine: str | None = None) -> tuple[HarborTask | None, Support]:
    """The task in `folder` and what is known of it; no task where the folder is not in the format."""
    try:
        task = read(folder)
    except ConfigError as error:
        return None, Support(refusals=(Refusal(RefusalReason.FORMAT, str(error)),))
    return task, support_of(task, system=system, engine=engine)


def _of_config(task: HarborTask) -> Iterator[Refusal]:
    environment, verifier = task.section("environment"), task.section("verifier")
    if task.config.get("steps"):
        yield Refusal(RefusalReason.STEPS, f"{len(task.config['steps'])} steps")
    if environment.get("gpus") or environment.get("tpu") or environment.get("gpu_types"):
        yield Refusal(RefusalReason.HARDWARE, "a GPU or TPU")
    if str(environment.get("os", "linux")).lower() != "linux":
        yield Refusal(RefusalReason.HARDWARE, str(environment["os"]))
    if environment.get("mcp_servers"):
        yield Refusal(RefusalReason.SERVICES, "MCP servers")
    if environment.get("healthcheck"):
        yield Refusal(RefusalReason.SERVICES, "a health check")
    if verifier.get("environment_mode") == "separate" or "Dockerfile" in task.tests:
        yield Refusal(RefusalReason.VERIFIER, "separate")
    for name in ("agent", "verifier"):
        user = task.section(name).get("user")
        if user not in (None, "root", 0, "0"):
            yield Refusal(RefusalReason.USER, f"{name}.user = {user}")
    for where, section in (("verifier", verifier), ("environment", environment)):
        env = section.get("env")
        for key, value in env.items() if isinstance(env, Mapping) else ():
            if KEYS.search(str(key)) or "${" in str(value):
                yield Refusal(RefusalReason.KEY, f"{where}.env.{key}")


def _of_tests(task: HarborTask, system: System) -> Iterator[Refusal]:
    if TEST not in task.tests:
        yield Refusal(RefusalReason.FORMAT, f"tests/{TEST} is missing")
        return
    for path, content in sorted(task.tests.items()):
        if path.endswith(".sh"):
            yield from _of_script(_data(content).decode("utf-8", "replace"), system)
    if task.has_solution:
        yield from _of_script(_data(task.solution[SOLUTION]).decode("utf-8", "replace"), system)
    texts = {path: _data(content) for path, content in task.tests.items()}
    for path, data in sorted(texts.items()):
        if (found := SERVICE.search(data)) and not any(map(STARTING.search, texts.values())):
            yield Refusal(RefusalReason.SERVICES, f"tests/{path}: {found[0].decode('utf-8', 'replace')}")
            break
    needs = needs_of(texts, own=" ".join([task.instruction, *task.environment]))
    for name in sorted(needs.modules):
        if system.lacks_module(module_of(name)) and system.lacks_module(name):
            yield Refusal(RefusalReason.PACKAGES, f"{PYTHONS}{name}")
    for name in sorted(needs.programs):
        if system.lacks_program(name):
            yield Refusal(RefusalReason.PACKAGES, name)


def _of_script(script: str, system: System) -> Iterator[Refusal]:
    if PYTHON.search(script) and system.lacks_program("python3"):
        yield Refusal(RefusalReason.PACKAGES, "python3")
    try:
        yield from refusals_of_installing(script, system)
    except UnreadScript:
        # It may all the same run; whether it does shows then.
        return


def _data(content: Content) -> bytes:
    return content.data if isinstance(content, WorkspaceItem) else content


def table_of(found: Mapping[str, Support]) -> dict[RefusalReason, dict[str, Any]]:
    """RefusalReason -> how many tasks have it (`tasks`), have no other (`only`), and what it is most often (`most`)."""
    rows: dict[RefusalReason, dict[str, Any]] = {}
    for reason in RefusalReason:
        having = [support for support in found.values() if any(one.reason is reason for one in support.refusals)]
        if not having:
            continue
        details: dict[str, int] = {}
        for support in having:
            for detail in {one.detail for one in support.refusals if one.reason is reason}:
                details[detail] = details.get(detail, 0) + 1
        most = sorted(details.items(), key=lambda pair: (-pair[1], pair[0]))[:5]
        only = sum({one.reason for one in support.refusals} == {reason} for support in having)
        rows[reason] = {"tasks": len(having), "only": only, "most": most}
    return rows
