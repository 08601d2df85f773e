"""One recorded update, performed again: the same groups, on the same or on other weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from onthejob.errors import RecordError
from onthejob.learn.sharing import PER_ROLE, adapter_sets
from onthejob.train.resume import learner_state

if TYPE_CHECKING:
    from onthejob.learn.advantage import AdvantageConfig
    from onthejob.learn.learner import Learner
    from onthejob.record.store import Run
    from onthejob.types import Adapter


def replay_update(
    run: Run,
    iteration: int,
    role: str,
    *,
    learner: Learner,
    advantage: AdvantageConfig,
    init: Adapter | None = None,
    reference: Adapter | None = None,
) -> dict[str, float]:
    """Perform one recorded update again, from the groups as they were sampled.

    Args:
        run: the record.
        iteration: whose groups are used: those of `role`, and of the roles that shared its adapter.
        role: which role.
        learner: of the same base and shape; its adapter of `role` is changed.
        advantage: how returns become advantages.
        init: weights to start from, with a fresh optimizer. None continues from the checkpoint before `iteration`, optimizer
            included, which repeats the recorded update bit for bit on the CPU.
        reference: weights of the KL term's reference; None takes the run's version 0.

    Returns:
        The update's metrics; the new weights are in `learner`.

    Raises:
        RecordError: the iteration has no alive groups of the role, or its checkpoint was pruned.
    """
    from onthejob.learn.adapter_files import load_adapter
    from onthejob.learn.advantage import count_signals, estimates
    from onthejob.learn.lora import Snapshot

    loop = run.config.get("train")
    option = loop.get("adapters", PER_ROLE) if isinstance(loop, Mapping) else PER_ROLE
    sets = adapter_sets(str(option), [str(one) for one in run.config.get("roles", ())]) if option != PER_ROLE else {}
    shared = next((members for members in sets.values() if role in members), (role,))
    recorded_groups = list(run.read_groups(iteration))
    found = [group for one in shared for group in recorded_groups if group.actor == one]
    known = estimates(found, advantage)
    batches = learner.collate(found, [one.advantages for one in known])
    if not batches:
        raise RecordError(f"iteration {iteration} of {run.path} has no alive group of {role!r}. `runs show` lists what there is.")
    recorded = run.adapters(role)
    start = reference or (recorded[0] if recorded else None)
    if start is None:
        raise RecordError(f"{run.path} holds no adapter of {role!r} to use as the reference. Pass --reference.")
    load_adapter(learner.model, role, start)
    snapshot = Snapshot.take(learner.model, role)
    if init is None:
        learner.import_state(role, learner_state(run.read_checkpoint(iteration - 1), role))
    else:
        load_adapter(learner.model, role, init)
    return {**count_signals(known), **learner.update(role, batches, reference=snapshot).as_dict()}
