"""Where a run begins: iteration 0 of a new one, or the last checkpoint of one that is resumed.

Iteration 0 of the record holds the adapters as they are in the learner (fresh, or after a warm start), what they score, how they
choose, the first snapshot library and the value scales.
"""

from __future__ import annotations

import math
import time
from collections import Counter

from onthejob.errors import RecordError
from onthejob.keys import keyed_seed
from onthejob.rollout.branch import BranchScorer, Scales, forkable
from onthejob.rollout.habits import observe_habits
from onthejob.rollout.library import SnapshotLibrary
from onthejob.rollout.scales import measure_scales
from onthejob.rollout.stand_ins import StandIns
from onthejob.train.reached import sample_reached_states, sample_scale_states, visit_with_partners
from onthejob.train.resume import checkpoint_files, resumed
from onthejob.train.state import LoopState, Setup, adapter_policies, evaluate, publish, share_state

STARTING = 1 / 3
"""Share of a time limit that measuring scales and habits may take together."""


def begin(setup: Setup, scorer: BranchScorer | None, *, resume: bool, until: float = math.inf) -> LoopState:
    """The state from which the next iteration starts: of the last checkpoint with `resume`, else after iteration 0.

    Args:
        setup: of the run.
        scorer: of branches; None where whole episodes are grouped.
        resume: continue after the last committed iteration; a run without any begins.
        until: `time.monotonic()` at which the run's time is over.

    Raises:
        RecordError: the run is not empty without `resume`, or cannot be continued.
    """
    last = setup.run.last_iteration()
    if last is None:
        return iteration_zero(setup, scorer, until=until)
    if resume:
        return resumed(setup)
    raise RecordError(f"run {setup.run.path} has {last} iterations already. Pass resume=True (--resume), or create a new run.")


def iteration_zero(setup: Setup, scorer: BranchScorer | None, *, until: float = math.inf) -> LoopState:
    """Iteration 0: publish what the learner holds, fill the library, measure the scales, evaluate the start.

    Args:
        setup: of the run.
        scorer: branches; None where whole episodes are grouped.
        until: `time.monotonic()` at which the run's time is over. Scales and habits are then measured on fewer states.
    """
    from onthejob.learn.lora import Snapshot

    config, begun = setup.config, time.monotonic()
    for members in setup.adapter_sets.values():
        share_state(setup.learner, members)
    adapters = {role: publish(setup, role, 0, parent=None) for role in setup.roles}
    library = SnapshotLibrary(per_day=None if setup.collected else config.library_per_day)
    partner_library = SnapshotLibrary(per_day=None)
    scales, stand_ins = {role: Scales() for role in setup.roles}, StandIns()
    if scorer is not None and (setup.collected or config.library_tasks > 0):
        if setup.collected:
            tasks, visited = [], list(setup.collected)
            setup.pool.meet([entry.task for entry in visited])
        else:
            tasks = setup.pool.sample(config.library_tasks, iteration=0)
            visited = visit_with_partners(setup, tasks, share=config.library_share)
            partner_library.add(visited)
        library.add(visited)
        if config.scale_states > 0:
            states = sample_scale_states(setup, tasks, visited)
            scales = measure_scales(
                scorer,
                forkable(setup.make_env),
                states,
                config=config.branch,
                actors=setup.roles,
                seed=keyed_seed(config.seed, "scales"),
                legal=setup.legal,
                until=begun + STARTING / 2 * (until - begun),
            )
            if config.branch.imitates:
                stand_ins.add(
                    observe_habits(
                        setup.make_env,
                        states,
                        adapter_policies(setup, adapters),
                        config.sampling,
                        encoder=setup.encoder,
                        replies=config.branch.group_size,
                        seed=keyed_seed(config.seed, "habits"),
                        until=begun + STARTING * (until - begun),
                    )
                )
    references = {role: Snapshot.take(setup.learner.model, role) for role in setup.roles}
    state = LoopState(
        iteration=0,
        adapters=adapters,
        library=library,
        partner_library=partner_library,
        scales=scales,
        references=references,
        stand_ins=stand_ins,
    )
    if stand_ins.rates():
        library.add(sample_reached_states(setup, state, 0))
    evaluation = evaluate(setup, state, 0)
    setup.run.write_checkpoint(0, checkpoint_files(setup, state))
    with setup.run.iteration(0) as record:
        for role in setup.roles:
            record.adapter(adapters[role])
            record.metrics(f"scales/{role}", {"outcome": scales[role].outcome, "return": scales[role].ret})
        record.metrics("loop", {"library": float(len(library))})
        if setup.collected:
            record.event("collected", {"turns": dict(Counter(entry.actor for entry in setup.collected))})
        if evaluation:
            record.metrics("eval", evaluation)
    return state
