"""`onthejob scale plan`: who would sit where in a run, without starting it; `onthejob scale doctor`: what a node offers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import resource
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

from onthejob.commands.cores import usable_cores
from onthejob.commands.doctor import DoctorLine
from onthejob.commands.scaling import base_of, check_learners, facts_of
from onthejob.commands.terminal import Output, Terminal, bytes_text, table
from onthejob.commands.train import Train
from onthejob.scale.plan import ScaleNode, Survey, seated_on, too_little_memory, wrong_with
from onthejob.scale.scale_config import check_scale
from onthejob.scale.worker_bench import expected_of, found_here, versions

RAY_VERSIONS = "2.60"
"""Of Ray, with which the backend is tested."""
OPEN_FILES = 4096
"""Least limit of open files for a head node with some dozens of actors."""
SHARED_BYTES = 256 << 20
"""Least free shared memory, for Ray's object store."""


class ScalePlan(Train):
    """Resolve the topology of `train` with the same options, ask every node what it has, print who sits where, and exit.

    Nothing is started, trained or recorded. Ends with 1 when a node cannot be used: other versions, another base, other files, no
    sandbox, too little memory, or no answer. The options are those of `train`, also from its --config file.
    """

    def run(self, terminal: Terminal) -> int:
        """Print the plan."""
        options = self.fitted()
        check_scale(options.scale)
        check_learners(options)
        facts, base = facts_of(options), base_of(options)
        found, seats, wrong = _here(options) if not options.scale.address else _there(options)
        wrong |= too_little_memory(found, seats, base.memory_bytes())
        by_node = {node.id: Counter(kind for kind, ids in seats.items() for id in ids if id == node.id) for node in found}
        rows = [
            (node.name, node.cpus, bytes_text(node.memory_bytes), _seats(by_node[node.id]), wrong.get(node.name, "ok"))
            for node in found
        ]
        data = {
            "nodes": [{"name": node.name, "cpus": node.cpus, "seats": by_node[node.id], "found": node.found} for node in found],
            "expected": expected_of(facts) | (found_here(base.facts) if options.scale.learners + options.scale.samplers else {}),
            "wrong": wrong,
        }
        notes = [_of_driver(options)]
        most = max(options.scale.learners, options.scale.samplers)
        if not options.scale.address and base.threads * most > (cores := usable_cores()):
            notes.append(
                f"{most} learners or samplers with {base.threads} threads each share {cores} cores: set "
                f"OMP_NUM_THREADS={max(1, cores // most)}."
            )
        terminal.result(data, table(("node", "CPUs", "memory", "actors", "verdict"), rows), *notes)
        return 1 if wrong else 0


def _here(options: Train) -> tuple[Sequence[ScaleNode], Mapping[str, Sequence[str]], dict[str, str]]:
    """This machine, for processes or for a cluster of its own."""
    scale, cores = options.scale, usable_cores()
    local = scale.backend == "local"
    # As a cluster that is started here, where samplers and learners work while workers wait.
    counts = scale.counts(cores + scale.learners + scale.samplers)
    if local:
        counts["worker"] = options.train.workers if options.train.grouping == "branch" else 0
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Its CPUs only count actors, of which there may be more than cores.
    facts = facts_of(options)
    node = ScaleNode(id="", name="this machine", cpus=sum(counts.values()), memory_bytes=memory, found=found_here(facts))
    seats, wrong = seated_on([node], counts), wrong_with(node, expected_of(facts))
    return [replace(node, cpus=cores)], seats, {node.name: wrong} if wrong else {}


def _there(options: Train) -> tuple[Sequence[ScaleNode], Mapping[str, Sequence[str]], dict[str, str]]:
    """A given cluster."""
    from onthejob.scale.on_ray import surveyed

    found: Survey = surveyed(options.scale, facts=facts_of(options), base=base_of(options).facts)
    return found.nodes, found.seats, dict(found.wrong)


def _of_driver(options: Train) -> str:
    """What the driver does itself, as a sentence."""
    here = ["plays segments"]
    here += [] if options.scale.samplers or options.sampler != "in-process" else ["samples"]
    here += [] if options.scale.learners or options.trainer else ["updates"]
    return f"The driver on this machine {', '.join(here)} and records."


def _seats(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in sorted(counts.items())) or "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDoctor:
    """Check what this machine offers as a node of a Ray cluster. Ends with 1 when something necessary is missing.

    Equal nodes print equal versions and an equal base.
    """

    model: str = "smollm2-135m"
    """Base model whose digest is shown, as for `onthejob model fetch`. It is fetched when it is missing."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Print one line per finding."""
        findings = [*_software(), *_files(self.model), *_limits()]
        rows = [(one.name, one.value, "ok" if one.ok else one.remedy) for one in findings]
        terminal.result([one._asdict() for one in findings], table(("what", "found", "verdict"), rows))
        return 0 if all(one.ok for one in findings) else 1


def _software() -> Iterator[DoctorLine]:
    installed = importlib.util.find_spec("ray") is not None
    found = importlib.metadata.version("ray") if installed else "missing"
    yield DoctorLine("ray", found, found.startswith(RAY_VERSIONS), f"pip install 'ray=={RAY_VERSIONS}.0'")
    for name, value in versions().items():
        yield DoctorLine(name, value, True)
    token = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path(token) if token and not os.environ.get("RAY_AUTH_TOKEN") else Path.home() / ".ray" / "auth_token"
    has = bool(os.environ.get("RAY_AUTH_TOKEN")) or file.is_file()
    where = "RAY_AUTH_TOKEN" if os.environ.get("RAY_AUTH_TOKEN") else str(file) if has else "missing"
    yield DoctorLine(
        "token", where, has, "Copy the head node's ~/.ray/auth_token here, or make one: ray get-auth-token --generate"
    )


def _files(model: str) -> Iterator[DoctorLine]:
    from onthejob.envs.claw.sandbox.requirements import sandbox_here
    from onthejob.scale.base_spec import base_here

    base = base_here(model)["base"]
    yield DoctorLine("base", base, not base.startswith("missing"), f"onthejob model fetch {model}")
    yield DoctorLine("sandbox (for the claw)", sandbox_here()["sandbox"], True)


def _limits() -> Iterator[DoctorLine]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield DoctorLine("open files", soft, soft >= OPEN_FILES, f"ulimit -n {OPEN_FILES}")
    free = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0
    yield DoctorLine(
        "shared memory free", bytes_text(free), free >= SHARED_BYTES, "Start the container with --shm-size 1g, or free /dev/shm."
    )
    folder = tempfile.gettempdir()
    from onthejob.scale.ray_head import room_for_sockets

    yield DoctorLine("folder for temporary files", folder, room_for_sockets(folder), "Set TMPDIR to a shorter folder.")
