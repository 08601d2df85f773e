"""States that play has reached: they fill the snapshot library, in which later segments begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from onthejob.errors import ConfigError
from onthejob.keys import keyed_sample, keyed_seed
from onthejob.models.scripted import ScriptedPolicy
from onthejob.rollout.collect import Collection
from onthejob.rollout.library import Entry, openings, visit
from onthejob.train.state import LoopState, Setup
from onthejob.types import Imitable, Task

if TYPE_CHECKING:
    from onthejob.learn.advantage import Estimate


def remember(setup: Setup, state: LoopState, iteration: int, played: Collection, estimates: Mapping[str, Estimate]) -> None:
    """Keep what later iterations need of this one: which tasks still teach, how the policies choose, states to begin in."""
    setup.pool.observe([(group, estimates[group.key].alive) for group in played.groups])
    state.stand_ins.add(played.habits)
    state.library.add(sample_reached_states(setup, state, iteration))
    state.library.add(played.visited)


def sample_reached_states(setup: Setup, state: LoopState, iteration: int) -> list[Entry]:
    """States of whole episodes as the present policies would play them: their stand-ins do, in seconds instead of minutes."""
    config = setup.config
    if not config.library_refresh:
        return []
    env = setup.make_env()
    try:
        if not isinstance(env, Imitable):
            raise ConfigError(f"library_refresh needs an environment with stand-ins, got {type(env).__name__}. Set it to 0.")
        replies = env.stand_ins(state.stand_ins.rates())
    finally:
        env.close()
    return visit(
        setup.make_env,
        setup.pool.sample(config.library_refresh, iteration=iteration),
        {**setup.partners, **{actor: ScriptedPolicy(reply, version="stand-in") for actor, reply in replies.items()}},
        seed=keyed_seed(config.seed, "reached", iteration),
        share=config.library_share,
        max_turns=config.max_turns,
    )


def visit_with_partners(setup: Setup, tasks: Sequence[Task], *, share: float) -> list[Entry]:
    """States that the partners reach in `tasks`."""
    return visit(
        setup.make_env,
        tasks,
        setup.partners,
        seed=keyed_seed(setup.config.seed, "library"),
        share=share,
        max_turns=setup.config.max_turns,
        encoder=setup.encoder,
        sampling=setup.config.sampling,
    )


def sample_scale_states(setup: Setup, tasks: Sequence[Task], visited: Sequence[Entry]) -> list[Entry]:
    """States of `visited` in which the trained roles are asked, at most `scale_states`.

    Of short episodes the share that is kept may hold no state of a role, and a role that only opens an episode is never met
    after a reply. Then all states of `tasks` in which such a role is asked are used.

    Raises:
        ConfigError: no request of a role begins a context in them.
    """
    config = setup.config
    ours = [entry for entry in visited if entry.actor in setup.roles]
    states = keyed_sample(ours, min(config.scale_states, len(ours)), config.seed, "scale states")
    missing = set(setup.roles) - {entry.actor for entry in ours}
    if not missing:
        return states
    everything = [*openings(setup.make_env, tasks), *visit_with_partners(setup, tasks, share=1.0)]
    met = {role: [entry for entry in everything if entry.actor == role] for role in sorted(missing)}
    if never := [role for role, entries in met.items() if not entries]:
        asked = sorted({entry.actor for entry in everything})
        raise ConfigError(
            f"no request of {', '.join(never)} begins a context in {len(tasks)} tasks played by the partners; asked there: "
            f"{', '.join(asked) or 'none'}. Train roles that are asked, raise --library-tasks, or set --scale-states 0."
        )
    return states + [entry for entries in met.values() for entry in entries[: config.scale_states]]
