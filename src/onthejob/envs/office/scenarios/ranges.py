"""What a scenario's numbers may be: of a file, and of what a difficulty makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

FOUNDED = 12
"""Most accounts on the first morning: their ids must not meet those of arrivals."""

RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "cash": (1_000, 10_000_000),
        "traffic": (1, 100_000),
        "leads": (0, FOUNDED),
        "customers": (0, FOUNDED),
        "board_rate": (0, 100_000),
        "payroll": (0, 100_000),
        "competitor": (0, 1),
        "hazard": (0, 10),
        "event_rate": (0, 1),
        "satisfaction": (0, 1),
        "debt": (0, 1),
    }
)
