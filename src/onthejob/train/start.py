"""Iteration 0: the adapters as they are, what they score and how they choose, the first snapshot library, the value scales."""

from __future__ import annotations

from onthejob.errors import ConfigError
from onthejob.models.scripted import ScriptedPolicy
from onthejob.rollout.branch import BranchScorer, Scales, forkable
from onthejob.rollout.habits import observe_habits
from onthejob.rollout.keys import keyed_sample, keyed_seed
from onthejob.rollout.library import Entry, SnapshotLibrary, visit
from onthejob.rollout.scales import measure_scales
from onthejob.rollout.stand_ins import StandIns
from onthejob.train.resume import checkpoint_files
from onthejob.train.state import Parts, State, evaluated, playing, publish
from onthejob.types import Imitable


def begin(parts: Parts, scorer: BranchScorer | None) -> State:
    """Iteration 0: publish what the learner holds, fill the library, measure the scales, evaluate the start."""
    from onthejob.learn.lora import Snapshot

    config = parts.config
    adapters = {role: publish(parts, role, 0, parent=None) for role in parts.roles}
    library = SnapshotLibrary(per_day=config.library_per_day)
    partner_library = SnapshotLibrary(per_day=None)
    scales, stand_ins = {role: Scales() for role in parts.roles}, StandIns()
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
            if config.branch.imitates:
                stand_ins.add(
                    observe_habits(
                        parts.make_env,
                        states,
                        playing(parts, adapters),
                        config.sampling,
                        encoder=parts.encoder,
                        replies=config.branch.group_size,
                        seed=keyed_seed(config.seed, "habits"),
                    )
                )
    references = {role: Snapshot.take(parts.learner.model, role) for role in parts.roles}
    state = State(
        adapters=adapters,
        library=library,
        partner_library=partner_library,
        scales=scales,
        references=references,
        stand_ins=stand_ins,
    )
    if stand_ins.rates():
        library.add(reached(parts, state, 0))
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


def reached(parts: Parts, state: State, iteration: int) -> list[Entry]:
    """States of whole episodes as the present policies would play them: their stand-ins do, in seconds instead of minutes."""
    config = parts.config
    if not config.library_refresh:
        return []
    env = parts.make_env()
    try:
        if not isinstance(env, Imitable):
            raise ConfigError(f"library_refresh needs an environment with stand-ins, got {type(env).__name__}. Set it to 0.")
        replies = env.stand_ins(state.stand_ins.rates())
    finally:
        env.close()
    return visit(
        parts.make_env,
        parts.pool.sample(config.library_refresh, iteration=iteration),
        {**parts.partners, **{actor: ScriptedPolicy(reply, version="stand-in") for actor, reply in replies.items()}},
        seed=keyed_seed(config.seed, "reached", iteration),
        share=config.library_share,
        max_turns=config.max_turns,
    )
