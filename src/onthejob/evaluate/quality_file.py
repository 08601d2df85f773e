"""Decision quality as `onthejob eval --json` printed it: a report shows it without judging anything again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onthejob.errors import ConfigError, RecordError
from onthejob.evaluate.scores import Cell, Method
from onthejob.evaluate.statistics import IntervalEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityFile:
    """Scores and differences with their intervals; the values per state are not in the file. A `scores.Quality`."""

    digest: str
    method: Method
    states: Mapping[str, int]
    cells: Mapping[Cell, IntervalEstimate]
    valid: Mapping[Cell, float]
    differences: Mapping[tuple[Cell, Cell], IntervalEstimate]

    def as_dict(self) -> dict[str, Any]:
        """As `QualityResult.as_dict`, from which it was read."""
        return {
            "states_digest": self.digest,
            "states": dict(self.states),
            "method": self.method._asdict(),
            "cells": [
                {**cell._asdict(), "decision_quality": found.as_dict(), "valid_rate": self.valid[cell]}
                for cell, found in self.cells.items()
            ],
            "differences": [
                {
                    "actor": first.actor,
                    "decoding": first.decoding,
                    "first": first.team,
                    "second": second.team,
                    "difference": found.as_dict(),
                }
                for (first, second), found in self.differences.items()
            ],
        }

    @property
    def actors(self) -> tuple[str, ...]:
        return tuple(self.states)

    @property
    def teams(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.team for cell in self.cells))

    @property
    def decodings(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.decoding for cell in self.cells))

    def score(self, cell: Cell) -> IntervalEstimate:
        """Decision quality with its interval."""
        return self.cells[cell]

    def valid_rate(self, cell: Cell) -> float:
        """Share of usable replies, in [0, 1]."""
        return self.valid[cell]

    def difference(self, first: Cell, second: Cell) -> IntervalEstimate:
        """Score of `first` minus score of `second`, paired by state."""
        if (first, second) not in self.differences:
            raise ConfigError(f"the file has no difference of {first} and {second}. Judge both in one `onthejob eval`.")
        return self.differences[first, second]


def read_quality(path: Path) -> QualityFile:
    """The decision quality in a file.

    Raises:
        RecordError: the file cannot be read or holds something else.
    """
    try:
        found = quality_of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RecordError(
            f"{path} holds no decision quality: {error!r}. Give what this version's `onthejob eval --json` printed."
        ) from error
    if not found.cells or {cell.actor for cell in found.cells} != set(found.states):
        raise RecordError(f"{path} holds no decision quality of every role it names. Give what `onthejob eval --json` printed.")
    return found


def quality_of(held: Mapping[str, Any]) -> QualityFile:
    """The decision quality in what `QualityResult.as_dict` made.

    Raises:
        LookupError, TypeError, ValueError: it is something else.
    """
    cells = {Cell(row["team"], row["actor"], row["decoding"]): row for row in held["cells"]}
    return QualityFile(
        digest=str(held["states_digest"]),
        method=Method(**{name: int(held["method"][name]) for name in Method._fields}),
        states={actor: int(count) for actor, count in held["states"].items()},
        cells={cell: IntervalEstimate.from_dict(row["decision_quality"]) for cell, row in cells.items()},
        valid={cell: float(row["valid_rate"]) for cell, row in cells.items()},
        differences={
            (Cell(row["first"], *rest), Cell(row["second"], *rest)): IntervalEstimate.from_dict(row["difference"])
            for row in held["differences"]
            for rest in [(row["actor"], row["decoding"])]
        },
    )
