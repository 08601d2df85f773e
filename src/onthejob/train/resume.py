"""A checkpoint of the loop, written and read back.

The adapters lie next to it in the run; a checkpoint holds everything else that changes: each role's optimizer, the task pool,
the snapshot libraries, the value scales and the best iteration so far.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from onthejob.errors import RecordError
from onthejob.rollout.branch import Scales
from onthejob.rollout.library import SnapshotLibrary
from onthejob.rollout.stand_ins import StandIns
from onthejob.train.settings import check_settings, settings_of
from onthejob.train.state import LoopState, Setup, let_play

if TYPE_CHECKING:
    from onthejob.learn.lora import Snapshot
    from onthejob.types import Adapter

log = logging.getLogger(__name__)

_LOOP, _LIBRARY, _PARTNER_LIBRARY = "loop.json", "library.bin", "partner-library.bin"


def checkpoint_files(setup: Setup, state: LoopState) -> dict[str, Any]:
    """Everything that `resumed` needs in addition to the adapters."""
    loop = {
        "roles": list(setup.roles),
        "settings": settings_of(setup),
        "pool": setup.pool.state(),
        "scales": {role: asdict(scales) for role, scales in state.scales.items()},
        "stand_ins": state.stand_ins.state(),
        "best": state.best,
    }
    learners = {_learner_file(role): setup.learner.export_state(role) for role in setup.roles}
    libraries = {_LIBRARY: state.library.to_bytes(), _PARTNER_LIBRARY: state.partner_library.to_bytes()}
    return {_LOOP: json.dumps(loop, sort_keys=True).encode(), **libraries, **learners}


def resumed(setup: Setup) -> LoopState:
    """The state after the last committed iteration; learner, sampler and pool are brought to it too.

    When the newest checkpoint is damaged, the record is rewound to the newest that is intact.

    Raises:
        ConfigError: the run was made with other settings.
        RecordError: no intact checkpoint, or the run was made with other roles.
    """
    from onthejob.learn.adapter_files import load_adapter
    from onthejob.learn.lora import Snapshot

    run, learner = setup.run, setup.learner
    n = run.latest_checkpoint()
    if n is None:
        raise RecordError(f"run {run.path} has no intact checkpoint, so it cannot be continued. Start a new run.")
    files = run.read_checkpoint(n)
    loop = json.loads(_bytes(files, _LOOP))
    if loop["roles"] != list(setup.roles):
        asked = list(setup.roles)
        raise RecordError(f"run {run.path} trains {loop['roles']}, asked for {asked}. Resume with the same roles.")
    check_settings(loop.get("settings"), setup)
    if n != run.last_iteration():
        log.warning("the newest intact checkpoint of %s is of iteration %d; what came after is redone", run.path, n)
        run.rewind(n)
    setup.pool.load_state(loop["pool"])
    adapters: dict[str, Adapter] = {}
    references: dict[str, Snapshot] = {}
    for role in setup.roles:
        recorded = run.adapters(role)
        load_adapter(learner.model, role, recorded[0])
        references[role] = Snapshot.take(learner.model, role)
        learner.import_state(role, learner_state(files, role))
        adapters[role] = recorded[-1]
        let_play(setup, role, recorded)
    best = None if loop["best"] is None else (int(loop["best"][0]), float(loop["best"][1]))
    scales = {role: Scales(**values) for role, values in loop["scales"].items()}
    return LoopState(
        iteration=n,
        adapters=adapters,
        library=SnapshotLibrary.from_bytes(_bytes(files, _LIBRARY)),
        # Without any in it, segments among partners start from `library`, as they did in runs that had no other.
        partner_library=(
            SnapshotLibrary.from_bytes(_bytes(files, _PARTNER_LIBRARY))
            if _PARTNER_LIBRARY in files
            else SnapshotLibrary(per_day=None)
        ),
        scales=scales,
        references=references,
        stand_ins=StandIns.from_state(loop.get("stand_ins", {})),
        best=best,
    )


def learner_state(files: Mapping[str, Any], role: str) -> Any:
    """The tensors from which the learner of `role` continues.

    Raises:
        RecordError: the checkpoint lacks them.
    """
    name = _learner_file(role)
    if name not in files or isinstance(files[name], bytes):
        raise RecordError(f"a checkpoint lacks the tensors {name!r}; it has {sorted(files)}. Use an earlier one.")
    return files[name]


def _learner_file(role: str) -> str:
    return f"learner-{role}.safetensors"


def _bytes(files: Mapping[str, Any], name: str) -> bytes:
    if not isinstance(files.get(name), bytes):
        raise RecordError(f"a checkpoint lacks {name!r}; it has {sorted(files)}. Use an earlier one.")
    return files[name]
