"""Decision quality: how much of what a single decision can win, a policy wins.

On each held-out state a policy's reply is valued by branches: stepped in a fork, continued by the environment's scripted
policies, averaged over fresh evaluation worlds that are the same for every policy. Per role

    score = sum over states of (V(policy) - V(random legal)) / sum over states of (V(best of n) - V(random legal))

0 is a random legal reply, 1 the best of `n` random candidates, less than 0 worse than random; above 1 is possible. An
unusable reply has its real branch value: a no-op with the environment's penalty. docs/evaluation.md derives each choice.

The best of n is cross-fitted: chosen on one half of the worlds and valued on the other, then the reverse, and averaged.
Choosing and valuing on the same worlds would credit it with the luck by which it was chosen (the winner's curse), inflate
the denominator and make every policy look worse than it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from onthejob.errors import ConfigError
from onthejob.evaluate.branches import EnvFactory, Missing, fill_branches, missing_branches
from onthejob.evaluate.cache import BranchKey, BranchValue, EvaluationCache
from onthejob.evaluate.candidates import Drawn, SampleKey, draw_candidates, policy_replies
from onthejob.evaluate.scores import Cell, CellValues, QualityConfig, QualityResult, Yardstick
from onthejob.evaluate.states import HeldOutState, refuse_training_tasks, states_digest
from onthejob.evaluate.teams import Team
from onthejob.rollout.branch import BranchScorer, Scales
from onthejob.rollout.episode import Encoder
from onthejob.rollout.value import branch_value
from onthejob.types import Policy


def decision_quality(
    states: Sequence[HeldOutState],
    teams: Sequence[Team],
    *,
    random: Policy,
    env_factory: EnvFactory,
    cache: EvaluationCache,
    config: QualityConfig,
    scales: Mapping[str, Scales] | None = None,
    encoder: Encoder | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> QualityResult:
    """Judge every team on every state of a role it has a policy for.

    Args:
        states: From `load_states`; several roles may be mixed.
        teams: Rows of the table. A team without a policy for a role has no cell there.
        random: Draws random legal replies; the environment's own random player, so that it scores 0.
        env_factory: Makes the environment the states belong to.
        cache: Holds what was played before; only what is new costs anything.
        config: Worlds, horizon, decodings.
        scales: Role -> training's frozen scales. None measures them on these states, see `measure_scales`.
        encoder: For policies that read tokens.
        on_progress: Called with (what, done, total).

    Raises:
        ConfigError: A training task, no state, or a token-reading policy without `encoder`.
        ContractError: A snapshot asks for another actor than its state names.
    """
    if not states:
        raise ConfigError("decision quality needs at least one held-out state, got none. Collect states first.")
    refuse_training_tasks([state.task for state in states])
    env = env_factory()
    try:
        drawn = [draw_candidates(env, state, random, config) for state in states]
        replies, sampled = policy_replies(env, states, teams, cache, config, encoder, on_progress)
        missing: list[Missing] = []
        canonical_of: dict[tuple[int, str], str] = {}
        for index, state in enumerate(states):
            env.restore(state.snapshot)
            wanted = dict(drawn[index].distinct)
            for text in replies[index].values():
                canonical_of[index, text] = key = env.canonical(text)
                wanted.setdefault(key, text)
            missing.append(missing_branches(cache, state, wanted, worlds=config.worlds, turns=config.turns))
    finally:
        env.close()
    total = sum(item.branches for item in missing)
    done = 0

    def count(new: int) -> None:
        nonlocal done
        done += new
        if on_progress is not None:
            on_progress("branches", done, total)

    with BranchScorer(env_factory, workers=config.workers if total else 0) as scorer:
        played = fill_branches(cache, missing, scorer, on_progress=count)
    if scales is None:
        scales = measure_scales(states, drawn, cache, config)
    if unscaled := sorted({state.actor for state in states} - set(scales)):
        raise ConfigError(f"no scales for {unscaled}, only for {sorted(scales)}. Give all roles' scales or none.")
    yardsticks, cells = _tabulate(states, teams, drawn, replies, canonical_of, cache, config, scales)
    return QualityResult(
        yardsticks=yardsticks,
        cells=cells,
        config=config,
        digest=states_digest(states),
        branches_played=played,
        replies_sampled=sampled,
        scales=scales,
    )


def measure_scales(
    states: Sequence[HeldOutState], drawn: Sequence[Drawn], cache: EvaluationCache, config: QualityConfig
) -> dict[str, Scales]:
    """Role -> standard deviation between the legal candidates of a state, per turn, pooled over its states.

    For evaluation without a training run. A role whose candidates never differ gets a scale of 1.
    """
    squares: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for state, offered in zip(states, drawn, strict=True):
        known = cache.branches(state.key, config.turns)
        rows = [[known[BranchKey(state.key, config.turns, key, world)] for world in config.worlds] for key in offered.distinct]
        if len(rows) < 2:
            continue
        turns = max(value.played for row in rows for value in row)
        outcomes = np.array([np.mean([value.outcome for value in row]) for row in rows]) / turns
        returns = np.array([np.mean([value.ret for value in row]) for row in rows]) / turns
        squares[state.actor].append((float(outcomes.var(ddof=1)), float(returns.var(ddof=1))))
    scales = {state.actor: Scales() for state in states}
    for actor, variances in squares.items():
        outcome, ret = np.sqrt(np.mean(variances, axis=0))
        scales[actor] = Scales(outcome=float(outcome) or 1.0, ret=float(ret) or 1.0)
    return scales


def _tabulate(
    states: Sequence[HeldOutState],
    teams: Sequence[Team],
    drawn: Sequence[Drawn],
    replies: Sequence[Mapping[SampleKey, str]],
    canonical_of: Mapping[tuple[int, str], str],
    cache: EvaluationCache,
    config: QualityConfig,
    scales: Mapping[str, Scales],
) -> tuple[dict[str, Yardstick], dict[Cell, CellValues]]:
    """Cached branch values as arrays per role and cell."""
    offers: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    rows: dict[Cell, list[tuple[float, float, float, float]]] = defaultdict(list)
    for index, state in enumerate(states):
        known = cache.branches(state.key, config.turns)
        branches = {
            key: [known[BranchKey(state.key, config.turns, key, world)] for world in config.worlds]
            for key in {**drawn[index].distinct, **{canonical_of[index, text]: text for text in replies[index].values()}}
        }
        # The candidates alone fix the divisor: a policy added later must not change what is known about the others.
        turns = max(value.played for key in drawn[index].distinct for value in branches[key])
        values = {key: _scaled(of_key, turns, scales[state.actor], config) for key, of_key in branches.items()}
        random = float(np.mean([values[key].mean() for key in drawn[index].draws]))
        best = cross_fitted_best(np.stack([values[key] for key in drawn[index].distinct]))
        offers[state.actor].append((random, best, state.episode))
        keys: dict[Cell, list[str]] = defaultdict(list)
        for (cell, _), text in sorted(replies[index].items(), key=lambda item: item[0][1]):
            keys[cell].append(canonical_of[index, text])
        for cell, of_cell in keys.items():
            value = float(np.mean([values[key].mean() for key in of_cell]))
            valid = float(np.mean([branches[key][0].valid for key in of_cell]))
            outcome = float(np.mean([[branch.outcome for branch in branches[key]] for key in of_cell]))
            reward = float(np.mean([[branch.ret for branch in branches[key]] for key in of_cell]))
            rows[cell].append((value, valid, outcome, reward))
    yardsticks = {}
    for actor, offered in offers.items():
        randoms, bests, episodes = zip(*offered, strict=True)
        yardsticks[actor] = Yardstick(np.array(randoms), np.array(bests), episodes)
    order = {team.name: number for number, team in enumerate(teams)}
    by_team = sorted(rows.items(), key=lambda row: order[row[0].team])
    return yardsticks, {cell: CellValues(*np.array(values).T) for cell, values in by_team}


def _scaled(branches: Sequence[BranchValue], turns: int, scales: Scales, config: QualityConfig) -> NDArray[np.float64]:
    """Value per world (W,)."""
    return np.array([branch_value(one.outcome, one.ret, turns=turns, weights=config, scales=scales) for one in branches])


def cross_fitted_best(values: NDArray[np.float64]) -> float:
    """Value of the best of C replies over W worlds without the winner's curse.

    Args:
        values: (C, W), W even: even columns choose for odd ones and the reverse.
    """
    even, odd = values[:, ::2].mean(axis=1), values[:, 1::2].mean(axis=1)
    return float((odd[even.argmax()] + even[odd.argmax()]) / 2.0)
