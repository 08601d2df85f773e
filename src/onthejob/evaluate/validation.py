"""How good adapters are while they are being trained: whole episodes of held-out tasks, always the same ones.

The numbers choose a checkpoint and nothing else; a comparison on the test split measures what training achieved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from onthejob.errors import ConfigError, TrainingError
from onthejob.evaluate.comparison import episode_metrics
from onthejob.rollout.episode import Episode
from onthejob.rollout.play import play
from onthejob.types import Adapter, Environment, Policy, Sampler, Sampling, Split, Task


def validator(
    make_env: Callable[[], Environment],
    tasks: Sequence[Task],
    *,
    sampler: Sampler,
    partners: Mapping[str, Policy],
    sampling: Sampling,
    seed: int,
    max_turns: int,
    batch: int = 16,
    workers: int = 1,
    keep: Callable[[int, Mapping[str, Mapping[str, float]]], None] | None = None,
) -> Callable[[int, Mapping[str, Adapter]], dict[str, float]]:
    """What `train(evaluate=...)` takes: (iteration, adapters) -> mean of every metric over `tasks`.

    Args:
        make_env: creates an environment.
        tasks: of split dev.
        sampler: to which training publishes its adapters.
        partners: actor -> who plays it when no adapter does.
        sampling: of the replies; their seeds are the same in every evaluation.
        seed: root of those seeds.
        max_turns: limit of an episode.
        batch: episodes in lock step.
        workers: threads that step environments.
        keep: receives the iteration and every task's metrics, for a comparison of two evaluations task by task.

    Raises:
        ConfigError: no tasks, or one of another split than dev.
    """
    wrong = [task for task in tasks if task.split is not Split.DEV]
    if wrong or not tasks:
        got = f"{wrong[0].id} of split {wrong[0].split}" if wrong else "none"
        raise ConfigError(f"checkpoints are chosen on tasks of split dev, got {got}. Keep test for the comparison at the end.")

    def evaluate(iteration: int, adapters: Mapping[str, Adapter]) -> dict[str, float]:
        from onthejob.models.adapter_policy import AdapterPolicy

        chat = sampler.chat
        learned = {role: AdapterPolicy(sampler, chat, adapter=adapter.name) for role, adapter in adapters.items()}
        episodes: list[Episode] = []
        for start in range(0, len(tasks), batch):
            part = tasks[start : start + batch]
            envs = [make_env() for _ in part]
            try:
                episodes += play(
                    envs,
                    part,
                    {**partners, **learned},
                    sampling,
                    seed=seed,
                    encoder=chat,
                    max_turns=max_turns,
                    workers=workers,
                    what=f"evaluation of iteration {iteration}",
                )
            finally:
                for env in envs:
                    env.close()
        whole = [episode for episode in episodes if episode.error is None]
        if not whole:
            raise TrainingError(f"all {len(episodes)} episodes of the evaluation failed, e.g. {episodes[0].error}.")
        rows = [episode_metrics(episode, frozenset(adapters)) for episode in whole]
        if keep is not None:
            keep(iteration, {episode.task.id: row for episode, row in zip(whole, rows, strict=True)})
        common = [name for name in rows[0] if all(name in row for row in rows)]
        return {name: fmean(row[name] for row in rows) for name in common} | {
            "episodes": float(len(whole)),
            "episodes_failed": float(len(episodes) - len(whole)),
        }

    return evaluate
