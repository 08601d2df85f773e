"""Iteration 0: the adapters as they are and what they score, the first snapshot library, the measured value scales."""

from __future__ import annotations

from onthejob.rollout.branch import BranchScorer, Scales, forkable
from onthejob.rollout.keys import keyed_sample, keyed_seed
from onthejob.rollout.library import SnapshotLibrary, visit
from onthejob.rollout.scales import measure_scales
from onthejob.train.resume import checkpoint_files
from onthejob.train.state import Parts, State, evaluated, publish


def begin(parts: Parts, scorer: BranchScorer | None) -> State:
    """Iteration 0: publish what the learner holds, fill the library, measure the scales, evaluate the start."""
    from onthejob.learn.lora import Snapshot

    config = parts.config
    adapters = {role: publish(parts, role, 0, parent=None) for role in parts.roles}
    library = SnapshotLibrary(per_day=config.library_per_day)
    partner_library = SnapshotLibrary(per_day=None)
    scales = {role: Scales() for role in parts.roles}
    if scorer is not None and config.library_tasks > 0:
        visited = visit(
            parts.make_env,
            parts.pool.sample(config.library_tasks, iteration=0),
            parts.partners,
            seed=keyed_seed(config.seed, "library"),
            share=config.library_share,
            max_turns=config.max_turns,
            encoder=parts.encoder,
            sampling=config.sampling,
        )
        library.add(visited)
        partner_library.add(visited)
        if config.scale_states > 0:
            ours = [entry for entry in visited if entry.actor in parts.roles]
            states = keyed_sample(ours, min(config.scale_states, len(ours)), config.seed, "scale states")
            scales = measure_scales(
                scorer,
                forkable(parts.make_env),
                states,
                config=config.branch,
                actors=parts.roles,
                seed=keyed_seed(config.seed, "scales"),
                legal=parts.legal,
            )
    references = {role: Snapshot.take(parts.learner.model, role) for role in parts.roles}
    state = State(adapters=adapters, library=library, partner_library=partner_library, scales=scales, references=references)
    evaluation = evaluated(parts, state, 0) if config.eval_every else {}
    parts.run.write_checkpoint(0, checkpoint_files(parts, state))
    with parts.run.iteration(0) as record:
        for role in parts.roles:
            record.adapter(adapters[role])
            record.metrics(f"scales/{role}", {"outcome": scales[role].outcome, "return": scales[role].ret})
        record.metrics("loop", {"library": float(len(library))})
        if evaluation:
            record.metrics("eval", evaluation)
    return state
