"""What `runs check` does: reads all of a run, and names every part that does not have the content that was written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from onthejob.errors import DamagedRecord, RecordError
from onthejob.files import sha256
from onthejob.record import checkpoints
from onthejob.record.checksums import Damage
from onthejob.record.database import explained
from onthejob.record.iteration import WEIGHTS_FILE
from onthejob.record.store import Run
from onthejob.types import Adapter

_LIVE_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """The result of checking one run."""

    path: Path
    iterations: int = 0
    """Committed iterations that were read."""
    unverified: tuple[int, ...] = ()
    """Iterations of an earlier version, without checksums: they can be read, and a changed number in them is not noticed."""
    damage: tuple[Damage, ...] = ()
    """Empty when all that was checked has the content that was written."""


def check_run(path: Path | str) -> RunVerdict:
    """Read all of the run at `path`: the file's structure, every part of every iteration, messages, adapters, checkpoints.

    Writes nothing; a run that is being written may be checked.

    Raises:
        RecordError: it does not exist or may not be read. A damaged file that cannot even be opened is a verdict.
    """
    path = Path(path)
    try:
        run = Run.open(path, readonly=True, skip_damaged=True)
    except DamagedRecord as error:
        return RunVerdict(path=path, damage=(Damage(iteration=None, part="the file", problem=str(error)),))
    with run:
        structure = run.faults_of_structure()
        iterations, unverified = run.iterations(), run.unverified()
        adapters = run.adapters()
        _read_all(run)
        return RunVerdict(
            path=path,
            iterations=len(iterations),
            unverified=tuple(unverified),
            damage=(*structure, *run.damage, *_damaged_adapters(adapters), *_damaged_checkpoints(path)),
        )


def _read_all(run: Run) -> None:
    """Whatever is damaged is in `run.damage` afterwards."""
    run.counts()
    run.read_metrics()
    run.read_events()
    for items in (run.read_group_heads(), run.read_groups(), run.read_episodes()):
        for _ in items:
            pass
    for key in run.blob_keys():
        with contextlib.suppress(DamagedRecord):
            run.get_blob(key)
    after = 0
    while found := run.read_live(after, _LIVE_AT_ONCE):
        after = found[-1].seq


def _damaged_adapters(adapters: Iterable[Adapter]) -> Iterator[Damage]:
    for adapter in adapters:
        weights = adapter.path / WEIGHTS_FILE
        try:
            with explained("read", weights):
                found = sha256(weights)
        except RecordError as error:
            yield Damage(iteration=None, part=f"adapter {adapter.name}", problem=str(error))
            continue
        if found != adapter.digest:
            problem = f"{weights} has sha256 {found[:12]}, recorded was {adapter.digest[:12]}."
            yield Damage(iteration=None, part=f"adapter {adapter.name}", problem=problem)


def _damaged_checkpoints(path: Path) -> Iterator[Damage]:
    for n in checkpoints.numbers(path):
        try:
            checkpoints.check(path, n)
        except RecordError as error:
            if checkpoints.folder_of(path, n).is_dir():  # else its run has removed it meanwhile
                yield Damage(iteration=n, part="checkpoint", problem=str(error))
