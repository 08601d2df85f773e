"""`--scale.*`: the runtime in which `train` scores branches and steps whole episodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from onthejob.errors import ConfigError
from onthejob.scale.scale_config import check_scale, open_runtime

if TYPE_CHECKING:
    from onthejob.commands.terminal import Terminal
    from onthejob.commands.train import Train
    from onthejob.scale.runtime import Runtime


def check_scaling(options: Train) -> None:
    """Refuse a runtime that is not installed, or that nothing would use.

    Raises:
        ConfigError: says which option to omit.
        MissingDependency: ray is not installed.
    """
    if options.scale.backend == "local":
        return
    if options.from_groups or options.from_bundles is not None:
        raise ConfigError("--scale.backend has no effect where nothing is played (--from-groups, --from-bundles). Leave it out.")
    if options.train.grouping == "branch" and options.train.workers:
        raise ConfigError(
            f"--workers {options.train.workers} counts processes of --scale.backend local. With {options.scale.backend} set "
            "--scale.workers."
        )
    check_scale(options.scale)


@contextmanager
def scaled(options: Train, terminal: Terminal) -> Iterator[Runtime | None]:
    """The runtime of `options`, for as long as the context lasts; None where the loop makes its own from --workers.

    Raises:
        ConfigError, ScaleError: as `open_runtime`.
    """
    if options.scale.backend == "local":
        yield None
        return
    where = options.scale.address or "a cluster of this machine"
    terminal.progress(f"workers of {options.scale.backend} at {where}")
    with open_runtime(options.scale, workers=0) as runtime:
        terminal.progress(f"{runtime.workers} workers")
        yield runtime
