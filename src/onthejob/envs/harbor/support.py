"""Whether a task can run here, said before anything is started: what refuses it, what differs, and whether it is marked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onthejob.envs.claw.needs import needs_of
from onthejob.envs.claw.sandbox.sandbox_interface import Content, Item
from onthejob.envs.harbor.folder import SOLUTION, TEST, HarborTask, read
from onthejob.envs.harbor.image import Image, image_of
from onthejob.envs.harbor.marks import why_marked
from onthejob.envs.harbor.packages import HERE, System, module_of
from onthejob.envs.harbor.refusal import PYTHONS, Reason, Refusal
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """What is known of a task from its text."""

    refusals: tuple[Refusal, ...] = ()
    """Why it cannot run here; empty when it can, as far as its text tells."""
    notes: tuple[str, ...] = ()
    """Differences to a container that it may notice."""
    mark: str = ""
    """The reason why the agent's code may decide its verdict; empty when it may not."""


def support_of(task: HarborTask, image: Image | None = None, *, system: System = HERE) -> Support:
    """What refuses or marks a task; nothing is started.

    `image` is that of `image_of`, when it has been made already; `system` stands for its base.
    """
    image = image or image_of(task.environment, task.others, system)
    refused = [*image.refusals, *_of_config(task), *_of_tests(task, system)]
    if found := SYSTEM_REQUEST.search(task.instruction):
        refused.append(Refusal(Reason.SYSTEM, found[0].lower()))
    mark = why_marked(task.tests)
    if not mark and not system.is_safe():
        mark = "the system's Python is older than 3.11 and imports from the working folder"
    return Support(refusals=tuple(dict.fromkeys(refused)), notes=tuple(image.notes), mark=mark)


def read_supported(folder: Path, system: System = HERE) -> tuple[HarborTask | None, Support]:
    """The task in `folder` and what is known of it; no task where the folder is not in the format."""
    try:
        task = read(folder)
    except ConfigError as error:
        return None, Support(refusals=(Refusal(Reason.FORMAT, str(error)),))
    return task, support_of(task, system=system)


def _of_config(task: HarborTask) -> Iterator[Refusal]:
    environment, verifier = task.section("environment"), task.section("verifier")
    if task.config.get("steps"):
        yield Refusal(Reason.STEPS, f"{len(task.config['steps'])} steps")
    if environment.get("gpus") or environment.get("tpu") or environment.get("gpu_types"):
        yield Refusal(Reason.HARDWARE, "a GPU or TPU")
    if str(environment.get("os", "linux")).lower() != "linux":
        yield Refusal(Reason.HARDWARE, str(environment["os"]))
    if environment.get("mcp_servers"):
        yield Refusal(Reason.SERVICES, "MCP servers")
    if environment.get("healthcheck"):
        yield Refusal(Reason.SERVICES, "a health check")
    if verifier.get("environment_mode") == "separate" or "Dockerfile" in task.tests:
        yield Refusal(Reason.VERIFIER, "separate")
    for name in ("agent", "verifier"):
        user = task.section(name).get("user")
        if user not in (None, "root", 0, "0"):
            yield Refusal(Reason.USER, f"{name}.user = {user}")
    for where, section in (("verifier", verifier), ("environment", environment)):
        env = section.get("env")
        for key, value in env.items() if isinstance(env, Mapping) else ():
            if KEYS.search(str(key)) or "${" in str(value):
                yield Refusal(Reason.KEY, f"{where}.env.{key}")


def _of_tests(task: HarborTask, system: System) -> Iterator[Refusal]:
    if TEST not in task.tests:
        yield Refusal(Reason.FORMAT, f"tests/{TEST} is missing")
        return
    for path, content in sorted(task.tests.items()):
        if path.endswith(".sh"):
            yield from _of_script(_data(content).decode("utf-8", "replace"), system)
    if task.has_solution:
        yield from _of_script(_data(task.solution[SOLUTION]).decode("utf-8", "replace"), system)
    texts = {path: _data(content) for path, content in task.tests.items()}
    for path, data in sorted(texts.items()):
        if (found := SERVICE.search(data)) and not any(map(STARTING.search, texts.values())):
            yield Refusal(Reason.SERVICES, f"tests/{path}: {found[0].decode('utf-8', 'replace')}")
            break
    needs = needs_of(texts, own=" ".join([task.instruction, *task.environment]))
    for name in sorted(needs.modules):
        if system.lacks_module(module_of(name)) and system.lacks_module(name):
            yield Refusal(Reason.PACKAGES, f"{PYTHONS}{name}")
    for name in sorted(needs.programs):
        if system.lacks_program(name):
            yield Refusal(Reason.PACKAGES, name)


def _of_script(script: str, system: System) -> Iterator[Refusal]:
    if PYTHON.search(script) and system.lacks_program("python3"):
        yield Refusal(Reason.PACKAGES, "python3")
    try:
        yield from refusals_of_installing(script, system)
    except UnreadScript:
        # It may all the same run; whether it does shows then.
        return


def _data(content: Content) -> bytes:
    return content.data if isinstance(content, Item) else content


def table_of(found: Mapping[str, Support]) -> dict[Reason, dict[str, Any]]:
    """Reason -> how many tasks have it (`tasks`), have no other (`only`), and what it is most often (`most`)."""
    rows: dict[Reason, dict[str, Any]] = {}
    for reason in Reason:
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
