"""Play, whichever way trajectories are grouped: environments, branch workers and seats behind one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

from onthejob.keys import keyed_seed
from onthejob.rollout.branch import BranchScorer
from onthejob.rollout.collect import Collection, Collector
from onthejob.rollout.collect_episodes import collect_episodes
from onthejob.train.state import LoopState, Setup, adapter_policies, past_opponents
from onthejob.types import Task


class Rollouts:
    """Holds what stays the same between iterations: environments, and processes that score branches."""

    def __init__(self, setup: Setup) -> None:
        """Start the processes of `config.workers` where branches are scored."""
        self._setup = setup
        self.scorer: BranchScorer | None = None
        """Of branches; None where whole episodes are grouped."""
        if setup.config.grouping == "branch":
            self.scorer = BranchScorer(setup.make_env, workers=setup.config.workers)
        self._collector: Collector | None = None

    def seat(self, state: LoopState, iteration: int) -> Callable[[Sequence[Task]], Collection]:
        """Give the present adapters their seats: returns what plays tasks into groups of trajectories that share a baseline.

        Everything random in it is keyed by the seed and the iteration.
        """
        setup, config = self._setup, self._setup.config
        policies = adapter_policies(setup, state.adapters)
        opponents = past_opponents(setup, policies)
        seed, prefix = keyed_seed(config.seed, "iteration", iteration), f"it{iteration:04d}"
        if self.scorer is not None:
            return partial(
                self._collector_for(state, self.scorer).collect,
                policies=policies,
                sampling=config.sampling,
                library=state.library,
                partner_library=state.partner_library,
                seed=seed,
                prefix=prefix,
                stand_ins=state.stand_ins.rates(),
                opponents=opponents,
            )
        return partial(
            collect_episodes,
            setup.make_env,
            policies={**setup.partners, **policies},
            sampling=config.sampling,
            group_size=config.branch.group_size,
            trained=setup.roles,
            encoder=setup.encoder,
            max_turns=config.max_turns,
            seed=seed,
            prefix=prefix,
            workers=max(1, config.workers),
            opponents=opponents,
        )

    def _collector_for(self, state: LoopState, scorer: BranchScorer) -> Collector:
        """One for the whole run; it needs scales, which are measured in iteration 0."""
        if self._collector is None:
            self._collector = Collector(
                self._setup.make_env,
                scorer,
                config=self._setup.config.collect,
                branch=self._setup.config.branch,
                scales=state.scales,
                trained=self._setup.roles,
                partners=self._setup.partners,
                encoder=self._setup.encoder,
            )
        return self._collector

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.scorer is not None:
            self.scorer.close()
