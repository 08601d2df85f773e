"""One update of an adapter, taken back where it may not be published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from onthejob.types import Group, Learner

if TYPE_CHECKING:
    from onthejob.learn.advantage import Estimate


class Attempt(NamedTuple):
    """What an update gave."""

    metrics: Any
    """The learner's `UpdateMetrics`."""
    problem: str | None
    """`update_skipped` or `kl_spike` where the adapter is as it was before; None where it was updated."""


def attempt_update(
    learner: Learner, members: Sequence[str], groups: Sequence[Group], estimates: Sequence[Estimate], *, reference: Any
) -> Attempt:
    """Update the adapter of the first of `members`, and take it back for all of them where it may not be published.

    Args:
        learner: holds the adapters.
        members: roles that share the adapter.
        groups: all as groups of the first.
        estimates: what each of them teaches.
        reference: a `Snapshot`, the policy of the KL term.
    """
    lead = members[0]
    before = learner.export_state(lead)
    metrics = learner.update(lead, groups, estimates, reference=reference)
    problem = "update_skipped" if metrics.skipped else "kl_spike" if metrics.kl_spike else None
    if problem is not None:
        # Keep the divergence: it was measured before this update, so forgetting it would refuse every later one too.
        kls = learner.export_state(lead)["kls"]
        for role in members:
            learner.import_state(role, {**before, "kls": kls})
    return Attempt(metrics, problem)
