"""Options of the runtime; those that cannot work are refused before anything is loaded."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from onthejob.errors import ConfigError, MissingDependency
from onthejob.scale.local import LocalRuntime
from onthejob.scale.runtime import Facts, Runtime
from onthejob.setting_ranges import Usual, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleConfig:
    """Where branches are scored, episodes stepped, replies sampled and roles updated; on a CPU the record stays the same."""

    backend: Literal["local", "ray"] = "local"
    """`local`: this process and the processes or threads of --workers. `ray`: actors of a Ray cluster (extra `ray`)."""
    address: str = ""
    """Ray cluster to use, HOST:PORT of its head, or `auto` for the one that runs on this machine. Empty starts one here, on
    loopback, which ends with the run."""
    workers: Annotated[int, Ge(0), Usual("Set --scale.workers 0 for all CPUs.")] = 0
    """Actors of `ray`, with one CPU each; 0 takes all CPUs of the cluster, or of this machine. With `local` set --workers."""
    learners: Annotated[int, Ge(0), Usual("Set --scale.learners 0 to update in this process.")] = 0
    """Learners, each with the base model in a process or an actor of its own: so many roles are updated at the same time. 0
    updates one role after the other in this process."""
    samplers: Annotated[int, Ge(0), Usual("Set --scale.samplers 0 to sample in this process.")] = 0
    """Samplers, each with the base model and all adapters in a process or an actor of its own, over which prompts are spread. 0
    samples in this process. They need the compiled code (`onthejob doctor`)."""

    def __post_init__(self) -> None:
        check_ranges(self, "--scale.")
        if self.backend == "local" and (idle := self._of_ray()):
            raise ConfigError(f"{', '.join(idle)} has no effect without --scale.backend ray. Use --workers with local.")
        host, colon, port = self.address.rpartition(":")
        if self.address not in ("", "auto") and not (host and colon and port.isdecimal()):
            raise ConfigError(f"address must be auto or HOST:PORT, got {self.address!r}. `ray status` shows it on the head node.")

    def counts(self, cpus: int) -> dict[str, int]:
        """Kind of actor -> how many, on a cluster with so many CPUs."""
        others = self.learners + self.samplers
        return {"learner": self.learners, "sampler": self.samplers, "worker": self.workers or max(1, cpus - others)}

    def _of_ray(self) -> list[str]:
        """Options that were set and that only `ray` reads."""
        given = {"--scale.address": self.address != "", "--scale.workers": self.workers != 0}
        return [flag for flag, is_set in given.items() if is_set]


def check_scale(config: ScaleConfig) -> None:
    """Refuse a backend that is not installed.

    Raises:
        MissingDependency: it is `ray`.
    """
    if config.backend == "ray" and importlib.util.find_spec("ray") is None:
        raise MissingDependency(
            "--scale.backend ray needs the package ray, which is not installed. Run `pip install 'onthejob[ray]'`, or omit it."
        )


def open_runtime(config: ScaleConfig, *, workers: int, facts: Facts | None = None, base: Facts | None = None) -> Runtime:
    """The runtime of these options; to be closed.

    Args:
        config: the options.
        workers: processes of `local`; 0 works in this one.
        facts: what every node must have.
        base: what nodes with learners must have besides.

    Raises:
        MissingDependency: as `check_scale`.
        ConfigError: a cluster with other versions than here, too few CPUs, or no token for it.
        ScaleError: the cluster does not start or answer.
    """
    check_scale(config)
    if config.backend == "local":
        return LocalRuntime(workers, facts=facts)
    from onthejob.scale.on_ray import RayRuntime

    return RayRuntime(config, facts=facts, base=base)
