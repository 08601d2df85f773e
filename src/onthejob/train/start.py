"""Iteration 0: the adapters as they are, what they score and how they choose, the first snapshot library, the value scales."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence

from onthejob.errors import ConfigError
from onthejob.keys import keyed_sample, keyed_seed
from onthejob.learn.sharing import adapter_sets
from onthejob.models.scripted import ScriptedPolicy
from onthejob.rollout.branch import BranchScorer, Scales, forkable
from onthejob.rollout.habits import observe_habits
from onthejob.rollout.library import Entry, SnapshotLibrary, openings, visit
from onthejob.rollout.scales import measure_scales
from onthejob.rollout.stand_ins import StandIns
from onthejob.train.resume import checkpoint_files
from onthejob.train.state import Parts, State, evaluated, playing, publish, share_state
from onthejob.types import Imitable, Task

STARTING = 1 / 3
"""Share of a time limit that measuring scales and habits may take together."""


def begin(parts: Parts, scorer: BranchScorer | None, *, until: float = math.inf) -> State:
    """Iteration 0: publish what the learner holds, fill the library, measure the scales, evaluate the start.

    Args:
        parts: of the run.
        scorer: branches; None where whole episodes are grouped.
        until: `time.monotonic()` at which the run's time is over. Scales and habits are then measured on fewer states.
    """
    from onthejob.learn.lora import Snapshot

    config, begun = parts.config, time.monotonic()
    for members in adapter_sets(config.adapters, parts.roles).values():
        share_state(parts.learner, members)
    adapters = {role: publish(parts, role, 0, parent=None) for role in parts.roles}
    library = SnapshotLibrary(per_day=None if parts.collected else config.library_per_day)
    partner_library = SnapshotLibrary(per_day=None)
    scales, stand_ins = {role: Scales() for role in parts.roles}, StandIns()
    if scorer is not None and (parts.collected or config.library_tasks > 0):
        if parts.collected:
            tasks, visited = [], list(parts.collected)
            parts.pool.meet([entry.task for entry in visited])
        else:
            tasks = parts.pool.sample(config.library_tasks, iteration=0)
            visited = _visited(parts, tasks, share=config.library_share)
            partner_library.add(visited)
        library.add(visited)
        if config.scale_states > 0:
            states = _scale_states(parts, tasks, visited)
            scales = measure_scales(
                scorer,
                forkable(parts.make_env),
                states,
                config=config.branch,
                actors=parts.roles,
                seed=keyed_seed(config.seed, "scales"),
                legal=parts.legal,
                until=begun + STARTING / 2 * (until - begun),
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
                        until=begun + STARTING * (until - begun),
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
        if parts.collected:
            record.event("collected", {"turns": dict(Counter(entry.actor for entry in parts.collected))})
        if evaluation:
            record.metrics("eval", evaluation)
    return state


def _visited(parts: Parts, tasks: Sequence[Task], *, share: float) -> list[Entry]:
    """States that the partners reach in `tasks`."""
    return visit(
        parts.make_env,
        tasks,
        parts.partners,
        seed=keyed_seed(parts.config.seed, "library"),
        share=share,
        max_turns=parts.config.max_turns,
        encoder=parts.encoder,
        sampling=parts.config.sampling,
    )


def _scale_states(parts: Parts, tasks: Sequence[Task], visited: Sequence[Entry]) -> list[Entry]:
    """States of `visited` in which the trained roles are asked, at most `scale_states`.

    Of short episodes the share that is kept may hold no state of a role, and a role that only opens an episode is never met
    after a reply. Then all states of `tasks` in which such a role is asked are used.
    """
    config = parts.config
    ours = [entry for entry in visited if entry.actor in parts.roles]
    states = keyed_sample(ours, min(config.scale_states, len(ours)), config.seed, "scale states")
    missing = set(parts.roles) - {entry.actor for entry in ours}
    if not missing:
        return states
    everything = [*openings(parts.make_env, tasks), *_visited(parts, tasks, share=1.0)]
    met = {role: [entry for entry in everything if entry.actor == role] for role in sorted(missing)}
    if never := [role for role, entries in met.items() if not entries]:
        asked = sorted({entry.actor for entry in everything})
        raise ConfigError(
            f"no request of {', '.join(never)} begins a context in {len(tasks)} tasks played by the partners; asked there: "
            f"{', '.join(asked) or 'none'}. Train roles that are asked, raise --library-tasks, or set --scale-states 0."
        )
    return states + [entry for entries in met.values() for entry in entries[: config.scale_states]]


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
