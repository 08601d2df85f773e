"""What decision quality is computed from, and the numbers that come out of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from onthejob.errors import ConfigError
from onthejob.evaluate.cache import decoding_name
from onthejob.evaluate.statistics import IntervalEstimate, mean_interval, ratio_interval
from onthejob.rollout.branch import Scales
from onthejob.setting_ranges import check_ranges
from onthejob.types import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityConfig:
    """How decisions are judged."""

    worlds: tuple[int, ...] = tuple(range(10_000, 10_008))
    """Evaluation worlds, all >= 10_000 so that training never met them; an even number >= 2 for the cross-fit."""
    turns: Annotated[int, Ge(1)] = 140
    """Horizon of a branch, in turns."""
    candidates: Annotated[int, Ge(1)] = 16
    """Random legal replies per state, distinct where possible, of which the best is the yardstick."""
    samples: Annotated[int, Ge(1)] = 4
    """Replies sampled per state at a temperature above 0; a greedy policy replies once."""
    decodings: tuple[Sampling, ...] = (Sampling(temperature=0.0), Sampling(temperature=1.0))
    """Ways to decode, each a column of the table: greedy, and training's temperature."""
    outcome_weight: float = 1.0
    """Weight of the change of the environment's objective; as in training."""
    return_weight: float = 0.25
    """Weight of the role's own return, through which the penalty of an unusable reply enters; as in training."""
    seed: int = 0
    """Root of candidate draws, sampling and resampling."""
    workers: int = 0
    """Processes that play branches; 0 plays them in this one."""
    batch: Annotated[int, Ge(1)] = 64
    """States per call of a policy."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if len(self.worlds) < 2 or len(self.worlds) % 2 or len(set(self.worlds)) != len(self.worlds):
            raise ConfigError(
                f"worlds must be distinct, and their number even and at least 2, got {len(self.worlds)}: {self.worlds}. Take 8."
            )
        if min(self.worlds) < 10_000:
            raise ConfigError(f"evaluation worlds must be >= 10000, got {min(self.worlds)}. Lower worlds belong to training.")
        if len({decoding_name(decoding) for decoding in self.decodings}) != len(self.decodings):
            raise ConfigError(f"decodings must differ, got {self.decodings}. Remove the repeated one.")


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


class Method(NamedTuple):
    """How replies were valued, for the reader of a result."""

    turns: int
    """Horizon of a branch."""
    worlds: int
    """Worlds over which a value is averaged."""
    candidates: int
    """Random replies of which the best is the yardstick."""


class Quality(Protocol):
    """The part of a result that tables and reports show: computed (`QualityResult`) or read from a file."""

    @property
    def digest(self) -> str: ...
    @property
    def method(self) -> Method: ...
    @property
    def states(self) -> Mapping[str, int]: ...
    @property
    def actors(self) -> tuple[str, ...]: ...
    @property
    def teams(self) -> tuple[str, ...]: ...
    @property
    def decodings(self) -> tuple[str, ...]: ...
    @property
    def cells(self) -> Collection[Cell]: ...
    def score(self, cell: Cell) -> IntervalEstimate: ...
    def difference(self, first: Cell, second: Cell) -> IntervalEstimate: ...
    def valid_rate(self, cell: Cell) -> float: ...
    def as_dict(self) -> dict[str, Any]: ...


class CellValues(NamedTuple):
    """What one policy did on one role's states; arrays (S,)."""

    value: NDArray[np.float64]
    valid: NDArray[np.float64]
    """Share of usable replies per state."""
    outcome: NDArray[np.float64]
    """Unscaled change of the environment's objective."""
    reward: NDArray[np.float64]
    """Unscaled return of the role over the branch."""


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
    scales: Mapping[str, Scales]
    """As used, given or measured."""

    @property
    def method(self) -> Method:
        return Method(turns=self.config.turns, worlds=len(self.config.worlds), candidates=self.config.candidates)

    @property
    def states(self) -> dict[str, int]:
        """Role -> number of states."""
        return {actor: len(yardstick.episodes) for actor, yardstick in self.yardsticks.items()}

    @property
    def actors(self) -> tuple[str, ...]:
        return tuple(self.yardsticks)

    @property
    def teams(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.team for cell in self.cells))

    @property
    def decodings(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.decoding for cell in self.cells))

    def score(self, cell: Cell) -> IntervalEstimate:
        """Decision quality with its interval; NaN when random candidates leave nothing to win."""
        values, yardstick = self._cell(cell), self.yardsticks[cell.actor]
        return self._ratio(values.value - yardstick.random, yardstick)

    def difference(self, first: Cell, second: Cell) -> IntervalEstimate:
        """Score of `first` minus score of `second`, paired by state."""
        if first.actor != second.actor:
            raise ConfigError(f"only cells of one role are paired by state, got {first.actor!r} and {second.actor!r}.")
        return self._ratio(self._cell(first).value - self._cell(second).value, self.yardsticks[first.actor])

    def valid_rate(self, cell: Cell) -> float:
        """Share of usable replies, in [0, 1]."""
        return float(self._cell(cell).valid.mean())

    def reward(self, cell: Cell) -> IntervalEstimate:
        """Mean return of the role over the branch of a decision, in the environment's own units."""
        return mean_interval(self._cell(cell).reward, self.yardsticks[cell.actor].episodes, seed=self.config.seed)

    def reward_difference(self, first: Cell, second: Cell) -> IntervalEstimate:
        """`reward` of `first` minus that of `second`, paired by state."""
        if first.actor != second.actor:
            raise ConfigError(f"only cells of one role are paired by state, got {first.actor!r} and {second.actor!r}.")
        gains = self._cell(first).reward - self._cell(second).reward
        return mean_interval(gains, self.yardsticks[first.actor].episodes, seed=self.config.seed)

    def as_dict(self) -> dict[str, Any]:
        """JSON-serialisable, as `read_quality` reads it: each cell with its score, each pair of teams with its difference."""
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
        return {
            "states_digest": self.digest,
            "states": self.states,
            "method": self.method._asdict(),
            "cells": cells,
            "differences": differences,
        }

    def _cell(self, cell: Cell) -> CellValues:
        try:
            return self.cells[cell]
        except KeyError:
            raise ConfigError(f"no result for {cell}; known are {sorted(self.cells)}. Evaluate it first.") from None

    def _ratio(self, gains: NDArray[np.float64], yardstick: Yardstick) -> IntervalEstimate:
        return ratio_interval(gains, yardstick.best - yardstick.random, yardstick.episodes, seed=self.config.seed)
