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
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onthejob.errors import ConfigError, ContractError
from onthejob.evaluate.branches import EnvFactory, fill_branches, missing_branches
from onthejob.evaluate.cache import BranchKey, BranchValue, EvaluationCache, ReplyKey, decoding_name
from onthejob.evaluate.states import HeldOutState, refuse_training_tasks, states_digest
from onthejob.evaluate.statistics import Estimate, ratio_interval
from onthejob.evaluate.teams import Team
from onthejob.rollout.keys import keyed_seed
from onthejob.types import Context, Forkable, Observation, Policy, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How a branch becomes one number: outcome / `outcome` + `weight` * return / `ret`. Use training's frozen scales."""

    outcome: float = 1.0
    """In the environment's unit (office: dollars), > 0."""
    ret: float = 1.0
    """In reward, > 0."""
    weight: float = 0.25
    """Share of the actor's own return; the invalid-reply penalty enters through it. 0 judges by the outcome alone."""

    def __call__(self, value: BranchValue) -> float:
        return value.outcome / self.outcome + self.weight * value.ret / self.ret


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityConfig:
    """How decisions are judged."""

    worlds: tuple[int, ...] = tuple(range(10_000, 10_008))
    """Evaluation worlds, all >= 10_000 so that training never met them; an even number >= 2 for the cross-fit."""
    turns: int = 140
    """Horizon of a branch, in turns."""
    candidates: int = 16
    """Random legal replies per state, distinct where possible, of which the best is the yardstick."""
    samples: int = 4
    """Replies sampled per state at a temperature above 0; a greedy policy replies once."""
    decodings: tuple[Sampling, ...] = (Sampling(temperature=0.0), Sampling(temperature=1.0))
    """Ways to decode, each a column of the table: greedy, and training's temperature."""
    seed: int = 0
    """Root of candidate draws, sampling and resampling."""
    workers: int = 1
    """Processes that play branches."""
    batch: int = 64
    """States per call of a policy."""

    def __post_init__(self) -> None:
        if len(self.worlds) < 2 or len(self.worlds) % 2 or len(set(self.worlds)) != len(self.worlds):
            raise ConfigError(f"worlds must be an even number >= 2 of distinct worlds, got {self.worlds}. Use 10000 to 10007.")
        if min(self.worlds) < 10_000:
            raise ConfigError(f"evaluation worlds must be >= 10000, got {min(self.worlds)}. Lower worlds belong to training.")
        for name in ("turns", "candidates", "samples", "workers", "batch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be >= 1, got {getattr(self, name)}. Raise it.")
        if len({decoding_name(decoding) for decoding in self.decodings}) != len(self.decodings):
            raise ConfigError(f"decodings must differ, got {self.decodings}. Leave out the repeated one.")


class Cell(NamedTuple):
    """Which policy on which role's states."""

    team: str
    actor: str
    decoding: str


class Yardstick(NamedTuple):
    """What one role's states offer; arrays (S,), aligned with its states."""

    random: NDArray[np.float64]
    """Mean value of a random legal reply."""
    best: NDArray[np.float64]
    """Cross-fitted value of the best candidate."""
    episodes: tuple[str, ...]


class CellValues(NamedTuple):
    """What one policy did on one role's states; arrays (S,)."""

    value: NDArray[np.float64]
    valid: NDArray[np.float64]
    """Share of usable replies per state."""
    outcome: NDArray[np.float64]
    """Unscaled change of the environment's objective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityResult:
    """Values per state, from which scores and differences are computed."""

    yardsticks: Mapping[str, Yardstick]
    cells: Mapping[Cell, CellValues]
    config: QualityConfig
    digest: str
    """Of the states, see `states_digest`."""
    branches_played: int
    replies_sampled: int
    scales: Mapping[str, Scale] = field(default_factory=dict)

    @property
    def actors(self) -> tuple[str, ...]:
        return tuple(self.yardsticks)

    @property
    def teams(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.team for cell in self.cells))

    @property
    def decodings(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.decoding for cell in self.cells))

    def score(self, cell: Cell) -> Estimate:
        """Decision quality with its interval; NaN when random candidates leave nothing to win."""
        values, yardstick = self._cell(cell), self.yardsticks[cell.actor]
        return self._ratio(values.value - yardstick.random, yardstick)

    def difference(self, first: Cell, second: Cell) -> Estimate:
        """Score of `first` minus score of `second`, paired by state."""
        if first.actor != second.actor:
            raise ConfigError(f"only cells of one role are paired by state, got {first.actor!r} and {second.actor!r}.")
        return self._ratio(self._cell(first).value - self._cell(second).value, self.yardsticks[first.actor])

    def valid_rate(self, cell: Cell) -> float:
        """Share of usable replies, in [0, 1]."""
        return float(self._cell(cell).valid.mean())

    def as_dict(self) -> dict[str, object]:
        """JSON-serialisable: each cell with its score, and each pair of teams with its difference."""
        cells = [
            {**cell._asdict(), "decision_quality": self.score(cell).as_dict(), "valid_rate": self.valid_rate(cell)}
            for cell in self.cells
        ]
        differences = [
            {
                "actor": cell.actor,
                "decoding": cell.decoding,
                "first": cell.team,
                "second": other.team,
                "difference": self.difference(cell, other).as_dict(),
            }
            for cell in self.cells
            for other in self.cells
            if cell.team != other.team and cell[1:] == other[1:]
        ]
        states = {actor: len(yardstick.episodes) for actor, yardstick in self.yardsticks.items()}
        return {"states_digest": self.digest, "states": states, "cells": cells, "differences": differences}

    def _cell(self, cell: Cell) -> CellValues:
        try:
            return self.cells[cell]
        except KeyError:
            raise ConfigError(f"no result for {cell}; known are {sorted(self.cells)}. Evaluate it first.") from None

    def _ratio(self, gains: NDArray[np.float64], yardstick: Yardstick) -> Estimate:
        return ratio_interval(gains, yardstick.best - yardstick.random, yardstick.episodes, seed=self.config.seed)


def decision_quality(
    states: Sequence[HeldOutState],
    teams: Sequence[Team],
    *,
    random: Policy,
    env_factory: EnvFactory,
    cache: EvaluationCache,
    config: QualityConfig,
    scales: Mapping[str, Scale] | None = None,
    encode: Callable[[Observation], tuple[int, ...]] | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> QualityResult:
    """Judge every team on every state of a role it has a policy for.

    Args:
        states: From `load_states`; several roles may be mixed.
        teams: Rows of the table. A team without a policy for a role has no cell there.
        random: Draws a random legal reply from an observation's view and the context's seed.
        env_factory: Makes the environment the states belong to.
        cache: Holds what was played before; only what is new costs anything.
        config: Worlds, horizon, decodings.
        scales: Role -> how a branch becomes one number; roles left out use `Scale()`.
        encode: Prompt ids of an observation, for policies that read tokens.
        on_progress: Called with (what, done, total).

    Raises:
        ConfigError: A training task, no state, or a token-reading policy without `encode`.
        ContractError: A snapshot asks for another actor than its state names.
    """
    if not states:
        raise ConfigError("decision quality needs at least one held-out state, got none. Collect states first.")
    refuse_training_tasks([state.task for state in states])
    env = env_factory()
    try:
        drawn = [_candidates(env, state, random, config) for state in states]
        replies, sampled = _policy_replies(env, states, teams, cache, config, encode, on_progress)
        jobs = []
        canonical_of: dict[tuple[int, str], str] = {}
        for index, state in enumerate(states):
            env.restore(state.snapshot)
            wanted = dict(drawn[index].distinct)
            for text in replies[index].values():
                canonical_of[index, text] = key = env.canonical(text)
                wanted.setdefault(key, text)
            jobs.append(missing_branches(cache, state, wanted, config.worlds, config.turns))
    finally:
        env.close()
    total = sum(job.branches for job in jobs)
    done = 0

    def count(new: int) -> None:
        nonlocal done
        done += new
        if on_progress is not None:
            on_progress("branches", done, total)

    played = fill_branches(cache, jobs, env_factory, workers=config.workers, on_progress=count)
    scales = {state.actor: (scales or {}).get(state.actor, Scale()) for state in states}
    yardsticks, cells = _tabulate(states, drawn, replies, canonical_of, cache, config, scales)
    return QualityResult(
        yardsticks=yardsticks,
        cells=cells,
        config=config,
        digest=states_digest(states),
        branches_played=played,
        replies_sampled=sampled,
        scales=scales,
    )


class _Drawn(NamedTuple):
    """Random legal replies of one state."""

    draws: tuple[str, ...]
    """Canonical keys of `candidates` independent draws: their mean value is V(random legal), unbiased."""
    distinct: Mapping[str, str]
    """Canonical key -> text of up to `candidates` replies with distinct effects, among them all of `draws`."""


_SampleKey = tuple[Cell, int]


def _candidates(env: Forkable, state: HeldOutState, random: Policy, config: QualityConfig) -> _Drawn:
    observation = _restore(env, state)
    draws: list[str] = []
    distinct: dict[str, str] = {}
    for attempt in range(4 * config.candidates):
        if attempt >= config.candidates and len(distinct) >= config.candidates:
            break
        context = Context(observation=observation, seed=keyed_seed(config.seed, "candidate", state.key, attempt))
        text = random.act([context], Sampling())[0].text
        draws.append(env.canonical(text))
        if len(distinct) < config.candidates:
            distinct.setdefault(draws[-1], text)
    return _Drawn(tuple(draws[: config.candidates]), distinct)


def _policy_replies(
    env: Forkable,
    states: Sequence[HeldOutState],
    teams: Sequence[Team],
    cache: EvaluationCache,
    config: QualityConfig,
    encode: Callable[[Observation], tuple[int, ...]] | None,
    on_progress: Callable[[str, int, int], None] | None,
) -> tuple[list[dict[_SampleKey, str]], int]:
    """Replies of every team per state, from the cache or sampled in batches of one policy; and how many were sampled."""
    replies: list[dict[_SampleKey, str]] = [{} for _ in states]
    todo: dict[tuple[str, int], dict[ReplyKey, int]] = defaultdict(dict)
    asks: dict[ReplyKey, list[tuple[int, _SampleKey]]] = defaultdict(list)
    policies: dict[str, tuple[Policy, str]] = {}
    for index, state in enumerate(states):
        for team in teams:
            if state.actor not in team.policies:
                continue
            policies[team.fingerprints[state.actor]] = (team.policies[state.actor], team.name)
            for number, decoding in enumerate(config.decodings):
                name = decoding_name(decoding)
                for sample in range(config.samples if decoding.temperature > 0.0 else 1):
                    key = ReplyKey(team.fingerprints[state.actor], state.key, name, _sample_id(config.seed, sample))
                    asks[key].append((index, (Cell(team.name, state.actor, name), sample)))
                    known = cache.reply(key)
                    if known is None:
                        todo[key.policy, number].setdefault(key, index)
                    else:
                        replies[index][Cell(team.name, state.actor, name), sample] = known
    total, sampled = sum(map(len, todo.values())), 0
    for (fingerprint, number), keys in todo.items():
        policy, _ = policies[fingerprint]
        ordered = list(keys.items())
        for start in range(0, len(ordered), config.batch):
            part = ordered[start : start + config.batch]
            contexts = [
                _context(env, states[index], policy, encode, keyed_seed(config.seed, "reply", key.state, key.sample))
                for key, index in part
            ]
            completions = policy.act(contexts, config.decodings[number])
            fresh = {key: completion.text for (key, _), completion in zip(part, completions, strict=True)}
            cache.add_replies(fresh)
            sampled += len(fresh)
            for key, text in fresh.items():
                for index, asked in asks[key]:
                    replies[index][asked] = text
            if on_progress is not None:
                on_progress("replies", sampled, total)
    return replies, sampled


def _sample_id(seed: int, sample: int) -> int:
    # The cache outlives one evaluation: samples drawn under another root seed are other samples.
    return seed * 1_000 + sample


def _context(
    env: Forkable,
    state: HeldOutState,
    policy: Policy,
    encode: Callable[[Observation], tuple[int, ...]] | None,
    seed: int,
) -> Context:
    observation = _restore(env, state)
    if policy.reads == "tokens":
        if encode is None:
            raise ConfigError(f"policy {policy.version!r} reads tokens, but no encoder was given. Pass encode=.")
        return Context(observation=observation, prompt_ids=encode(observation), seed=seed)
    messages = tuple(observation.messages) if policy.reads == "messages" else ()
    return Context(observation=observation, messages=messages, seed=seed)


def _restore(env: Forkable, state: HeldOutState) -> Observation:
    observation = env.restore(state.snapshot)
    if observation is None or observation.actor != state.actor or not observation.fresh:
        found = "nobody" if observation is None else repr(observation.actor)
        raise ContractError(f"held-out state {state.key} should ask {state.actor!r} afresh, asks {found}. Collect it again.")
    return observation


def _tabulate(
    states: Sequence[HeldOutState],
    drawn: Sequence[_Drawn],
    replies: Sequence[Mapping[_SampleKey, str]],
    canonical_of: Mapping[tuple[int, str], str],
    cache: EvaluationCache,
    config: QualityConfig,
    scales: Mapping[str, Scale],
) -> tuple[dict[str, Yardstick], dict[Cell, CellValues]]:
    """Cached branch values as arrays per role and cell."""
    random_values: dict[str, list[float]] = defaultdict(list)
    best_values: dict[str, list[float]] = defaultdict(list)
    episodes: dict[str, list[str]] = defaultdict(list)
    rows: dict[Cell, list[tuple[float, float, float]]] = defaultdict(list)
    for index, state in enumerate(states):
        known = cache.branches(state.key, config.turns)
        scale = scales[state.actor]

        per_world = {
            key: np.array([scale(known[BranchKey(state.key, config.turns, key, world)]) for world in config.worlds])
            for key in drawn[index].distinct
        }
        random_values[state.actor].append(float(np.mean([per_world[key].mean() for key in drawn[index].draws])))
        best_values[state.actor].append(cross_fitted_best(np.stack(list(per_world.values()))))
        episodes[state.actor].append(state.episode)
        by_cell: dict[Cell, list[BranchValue]] = defaultdict(list)
        for (cell, _), text in sorted(replies[index].items()):
            key = canonical_of[index, text]
            by_cell[cell].extend(known[BranchKey(state.key, config.turns, key, world)] for world in config.worlds)
        for cell, values in by_cell.items():
            rows[cell].append(
                (
                    float(np.mean([scale(value) for value in values])),
                    float(np.mean([value.valid for value in values])),
                    float(np.mean([value.outcome for value in values])),
                )
            )
    yardsticks = {
        actor: Yardstick(np.array(random_values[actor]), np.array(best_values[actor]), tuple(episodes[actor]))
        for actor in random_values
    }
    return yardsticks, {cell: CellValues(*np.array(values).T) for cell, values in rows.items()}


def cross_fitted_best(values: NDArray[np.float64]) -> float:
    """Value of the best of C replies over W worlds without the winner's curse.

    Args:
        values: (C, W), W even: even columns choose for odd ones and the reverse.
    """
    even, odd = values[:, ::2].mean(axis=1), values[:, 1::2].mean(axis=1)
    return float((odd[even.argmax()] + even[odd.argmax()]) / 2.0)
