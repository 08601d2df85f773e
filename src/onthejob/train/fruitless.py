"""Iterations in which nothing can be learned although the tasks may have much to teach: no group, or no valid reply.

Unlike a pool that has converged they are no result: the run ends as a failure that says why. All is read from the record, so a
resumed run ends where an uninterrupted one does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from onthejob.errors import TrainingError
from onthejob.types import Adapter, Kind

if TYPE_CHECKING:
    from onthejob.record.store import Run
    from onthejob.rollout.collect import Collection

log = logging.getLogger(__name__)

PATIENCE = 3
"""Fruitless iterations in a row after which a run ends."""


def warn_of_losses(collection: Collection, roles: Sequence[str], iteration: int) -> None:
    """Say in the log why an iteration has no group, and which rewards no role received."""
    if not collection.groups:
        log.warning("iteration %d has no group: %s", iteration, _why_no_group(collection, roles))
    received = {name for episode in collection.episodes for turn in episode.transcript for name in turn.rewards}
    strangers = sorted({name for episode in collection.episodes for name in episode.unseated})
    silent = [role for role in roles if role not in received]
    if strangers and silent:
        log.warning(
            "iteration %d: no step rewarded %s, while rewards went to %s, which no request asks. An actor has the same name in "
            "Step.rewards and in observation.actor.",
            iteration,
            ", ".join(silent),
            ", ".join(strangers),
        )


def check_fruitful(run: Run, roles: Sequence[str]) -> None:
    """Refuse to continue when the last iterations were fruitless; a single one is pointed out in the log.

    Args:
        run: the record, up to the last committed iteration.
        roles: the trained roles.

    Raises:
        TrainingError: says why, and what to do.
    """
    last = [n for n in run.iterations() if n > 0][-PATIENCE:]
    empty = {n for n in last if _value(run, n, "loop", "groups") == 0.0}
    mute = {n for n in last if n not in empty and not any(_taught(run, n, role) for role in roles)}
    if last and last[-1] in mute:
        log.warning("no reply of %s was valid in iteration %d: nothing is learned from it", ", ".join(roles), last[-1])
    if last and last[-1] not in empty | mute:
        _warn_of_flat_groups(run, roles, last[-1])
    if len(empty | mute) < PATIENCE:
        return
    if not mute:
        raise TrainingError(
            f"iterations {last[0]} to {last[-1]} of {run.path} have no group, so nothing can be learned. Groups come from "
            f"decisions of the trained roles ({', '.join(roles)}): check their names, and raise --collect.segment-turns where "
            "their turns come late."
        )
    raise TrainingError(
        f"no reply of {', '.join(roles)} was valid in iterations {last[0]} to {last[-1]} of {run.path}, so nothing can be "
        "learned: the policy does not know the format of a reply. Warm it up with demonstrations (`onthejob collect`, "
        "`onthejob sft`, then `onthejob train --init`), or raise --sampling.max-new-tokens where replies are cut."
    )


def check_updated(run: Run, adapters: Mapping[str, Adapter]) -> None:
    """Refuse to call a run done in which every update was skipped.

    Args:
        run: the record.
        adapters: role -> its newest one.

    Raises:
        TrainingError: says why they were skipped.
    """
    skipped = run.read_events(kind="update_skipped")
    if skipped and not any(adapter.version for adapter in adapters.values()):
        raise TrainingError(
            f"none of the updates of run {run.path} was made: {len(skipped)} skipped, the last one of "
            f"{skipped[-1].payload['role']} for a {skipped[-1].payload['reason']}; numbers must be finite. "
            "Load the model in float32, or look at the groups with `onthejob runs show`."
        )


def _warn_of_flat_groups(run: Run, roles: Sequence[str], iteration: int) -> None:
    """Warn once when all groups of a role have been flat for `PATIENCE` iterations, even if other roles still learn."""
    for role in roles:
        first = iteration - PATIENCE + 1
        if first < 1 or not all(_flat(run, n, role) for n in range(first, iteration + 1)):
            continue
        if first == 1 or not _flat(run, first - 1, role):
            log.warning(
                "%s: in iterations %d to %d the replies of each group earned the same, so it learns nothing. If all its replies "
                "are the same, train again with --learner.max-kl 0.1 and --learner.loss.entropy 0.01; if they differ, they make "
                "no difference to the reward.",
                role,
                first,
                iteration,
            )


def _flat(run: Run, iteration: int, role: str) -> bool:
    scope = f"train/{role}"
    return _value(run, iteration, scope, "groups") > 0 and _value(run, iteration, scope, "frac_reward_zero_std") == 1.0


def _taught(run: Run, iteration: int, role: str) -> bool:
    """Whether a reply was valid, or a group alive: whole episodes can differ although none of their replies is valid."""
    scope = f"train/{role}"
    alive = _value(run, iteration, scope, "frac_reward_zero_std") < 1.0
    return alive or _value(run, iteration, scope, "valid_rate") > 0.0


def _value(run: Run, iteration: int, scope: str, name: str) -> float:
    (metric,) = run.read_metrics(scope, iteration=iteration, name=name)
    return metric.value


def _why_no_group(collection: Collection, roles: Sequence[str]) -> str:
    turns = [turn for episode in collection.episodes for turn in episode.transcript]
    asked = sorted({turn.actor for turn in turns})
    ours = [turn for turn in turns if turn.actor in roles]
    if collection.unheld:
        return f"{collection.unheld} segments end where a conversation from before their first state continues"
    if not ours:
        return (
            f"none of the trained roles ({', '.join(roles)}) was asked in {len(turns)} turns; asked: {', '.join(asked) or 'none'}"
        )
    if not any(turn.kind is Kind.ACT for turn in ours):
        return f"all {len(ours)} requests of the trained roles are retries or reflections"
    return f"the {len(ours)} turns of the trained roles gave no two trajectories of one task, or partners played them"
