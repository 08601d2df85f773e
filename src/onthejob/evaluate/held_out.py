"""Collects held-out states by playing held-out tasks with two kinds of teams.

Half of the states come from each source (usually the SFT team and the heuristic), so that neither a policy's own habits nor
those of its teacher decide alone on which states it is judged. States are spread evenly over episodes, because intervals
resample episodes, and chosen by keyed lot, so that neither the order nor the batching of episodes matters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from onthejob.errors import ConfigError
from onthejob.evaluate.branches import EnvFactory
from onthejob.evaluate.states import HeldOutState, refuse_training_tasks
from onthejob.evaluate.teams import Team
from onthejob.keys import keyed_uniform
from onthejob.rollout.episode import Encoder, LiveEpisode
from onthejob.rollout.library import openings
from onthejob.rollout.play import play
from onthejob.types import Completion, Forkable, Kind, Sampling, Step, StopReason, Task


class _Lot(NamedTuple):
    """A candidate state; the smallest lots of an episode are kept."""

    lot: float
    state: HeldOutState


def collect_states(
    tasks: Sequence[Task],
    sources: Sequence[Team],
    *,
    actors: Sequence[str],
    per_role: int,
    env_factory: EnvFactory,
    sampling: Sampling,
    seed: int,
    max_turns: int,
    encoder: Encoder | None = None,
    batch: int = 64,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[HeldOutState]:
    """`per_role` states for each actor, an equal share from each source, ordered by actor, source and lot.

    They are states in which a context begins after a reply; of an actor that is never asked so, those with which tasks begin.

    Args:
        tasks: Held-out tasks; every source plays all of them.
        sources: Who plays; their names become `HeldOutState.source`.
        actors: Whose decisions are wanted.
        per_role: States per actor over all sources.
        env_factory: Makes environments, `batch` at a time.
        sampling: How the sources decode.
        seed: Root of the replies and of the lots.
        max_turns: Cut of an episode.
        encoder: For sources that read tokens.
        batch: Episodes in lock-step.
        on_progress: Called with (episodes done, episodes in all).

    Raises:
        ConfigError: A training task, or an episode set too small for `per_role` states.
    """
    refuse_training_tasks(tasks)
    if not tasks or not sources or not actors or per_role < len(sources):
        raise ConfigError(
            f"collecting needs tasks, sources, actors and per_role >= {len(sources)}, got {len(tasks)} tasks, "
            f"{len(sources)} sources, {len(actors)} actors and per_role {per_role}. Give each."
        )
    shares = [per_role // len(sources) + (index < per_role % len(sources)) for index in range(len(sources))]
    states: list[HeldOutState] = []
    for position, (source, share) in enumerate(zip(sources, shares, strict=True)):
        quota = -(-share // len(tasks))
        lots: dict[tuple[str, str], list[_Lot]] = defaultdict(list)  # (actor, task id) -> lots, ascending
        for start in range(0, len(tasks), batch):
            part = tasks[start : start + batch]
            envs = [env_factory() for _ in part]
            try:
                on_turn = _keep_lots(lots, source.name, frozenset(actors), quota, seed)
                episodes = play(
                    envs,
                    part,
                    source.policies,
                    sampling,
                    seed=seed,
                    encoder=encoder,
                    max_turns=max_turns,
                    on_turn=on_turn,
                    what=f"states of {source.name}",
                )
            finally:
                for env in envs:
                    env.close()
            for episode in episodes:
                if episode.stop is StopReason.ERROR:
                    for actor in actors:
                        lots.pop((actor, episode.task.id), None)
            if on_progress is not None:
                on_progress(position * len(tasks) + start + len(part), len(sources) * len(tasks))
        for actor in actors:
            if not any(kept for (who, _), kept in lots.items() if who == actor):
                lots.update(_openings(env_factory, tasks, actor, source.name, seed))
            states += _draw(lots, actor, share, source.name)
    return sorted(states, key=lambda state: (list(actors).index(state.actor), [s.name for s in sources].index(state.source)))


def _keep_lots(
    lots: dict[tuple[str, str], list[_Lot]], source: str, actors: frozenset[str], quota: int, seed: int
) -> Callable[[LiveEpisode, Completion, Step], None]:
    """A turn hook that snapshots the pending request when its lot is among the `quota` smallest of its episode and actor."""

    def on_turn(episode: LiveEpisode, completion: Completion, step: Step) -> None:
        request = step.observation
        if request is None or request.actor not in actors or not request.fresh or request.kind is not Kind.ACT:
            return
        kept = lots[request.actor, episode.task.id]
        lot = keyed_uniform(seed, "lot", source, episode.task.id, request.actor, episode.turn)
        if len(kept) >= quota and lot >= kept[-1].lot:
            return
        env = episode.env
        if not isinstance(env, Forkable):
            raise ConfigError(f"held-out states need a Forkable environment, got {type(env).__name__}. Compare episodes instead.")
        state = HeldOutState(task=episode.task, snapshot=env.snapshot(), actor=request.actor, source=source, turn=episode.turn)
        kept.append(_Lot(lot, state))
        kept.sort(key=lambda item: item.lot)
        del kept[quota:]

    return on_turn


def _openings(
    env_factory: EnvFactory, tasks: Sequence[Task], actor: str, source: str, seed: int
) -> dict[tuple[str, str], list[_Lot]]:
    """States in which tasks begin with a request to `actor`: the only ones in environments of one long conversation."""
    return {
        (actor, entry.task.id): [
            _Lot(
                keyed_uniform(seed, "lot", source, entry.task.id, actor, 0),
                HeldOutState(task=entry.task, snapshot=entry.snapshot, actor=actor, source=source, turn=0),
            )
        ]
        for entry in openings(env_factory, tasks)
        if entry.actor == actor
    }


def _draw(lots: dict[tuple[str, str], list[_Lot]], actor: str, share: int, source: str) -> list[HeldOutState]:
    """`share` states of `actor`, taking the first of every episode before the second of any."""
    ranked = [(rank, item.lot, item.state) for (who, _), kept in lots.items() if who == actor for rank, item in enumerate(kept)]
    ranked.sort(key=lambda entry: entry[:2])
    if len(ranked) < share:
        raise ConfigError(
            f"source {source!r} gave {len(ranked)} states of {actor!r}, {share} are wanted. Add tasks or lower per_role."
        )
    return [state for _, _, state in ranked[:share]]
