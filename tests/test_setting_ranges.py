"""Declared ranges: what is refused, and what the refusal says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Gt, Interval, IsFinite, MinLen

from onthejob.errors import ConfigError
from onthejob.setting_ranges import Reason, Usual, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    size: Annotated[int, Ge(2), Reason("to have a baseline")] = 8
    worlds: Annotated[int, Interval(ge=1, le=9_999)] = 4
    share: Annotated[float, Interval(gt=0, le=1)] = 0.25
    rate: Annotated[float, Ge(0), Usual("1e-4 is usual for LoRA.")] = 1e-4
    bonus: IsFinite[float] = 0.0
    bound: Annotated[float, Gt(0)] | None = None
    limit: Annotated[int | None, Ge(1)] = None
    betas: tuple[Annotated[float, Interval(ge=0, lt=1)], ...] = (0.9, 0.999)
    names: Annotated[tuple[str, ...], MinLen(1)] = ("all",)
    scale: Literal["std", "none"] = "std"
    kind: Literal["grpo"] | str = "grpo"
    free: int = -5

    def __post_init__(self) -> None:
        check_ranges(self, "--branch.")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("size", 1, "size must be >= 2 to have a baseline, got 1. Set --branch.size 8."),
        ("worlds", 0, "worlds must be in 1..9999, got 0. Set --branch.worlds 4."),
        ("worlds", 10_000, "worlds must be in 1..9999, got 10000. Set --branch.worlds 4."),
        ("share", 0.0, "share must be in (0, 1], got 0.0. Set --branch.share 0.25."),
        ("share", 1.5, "share must be in (0, 1], got 1.5. Set --branch.share 0.25."),
        ("share", math.nan, "share must be in (0, 1], got nan. Set --branch.share 0.25."),
        ("rate", -1.0, "rate must be finite and >= 0, got -1.0. 1e-4 is usual for LoRA."),
        ("rate", math.inf, "rate must be finite and >= 0, got inf. 1e-4 is usual for LoRA."),
        ("bonus", -math.inf, "bonus must be finite, got -inf. Set --branch.bonus 0.0."),
        ("bound", 0.0, "bound must be finite and > 0, got 0.0. Leave it out."),
        ("limit", 0, "limit must be >= 1, got 0. Leave it out."),
        ("betas", (0.9, 1.0), "betas must be in [0, 1), got (0.9, 1.0). Set --branch.betas 0.9 0.999."),
        ("names", (), "names must be of length >= 1, got (). Set --branch.names all."),
        ("worlds", 1.5, "worlds must be in 1..9999, got 1.5. Set --branch.worlds 4."),
        ("worlds", None, "worlds must be in 1..9999, got None. Set --branch.worlds 4."),
        ("size", -(10**400), f"size must be >= 2 to have a baseline, got {-(10**400)}. Set --branch.size 8."),
        ("names", "", "names must be of length >= 1, got ''. Set --branch.names all."),
        ("names", range(0), "names must be of length >= 1, got range(0, 0). Set --branch.names all."),
        ("scale", None, "scale must be one of std, none, got None. Set --branch.scale std."),
        ("scale", "mad", "scale must be one of std, none, got 'mad'. Set --branch.scale std."),
    ],
)
def test_what_a_refusal_says(name: str, value: Any, said: str):
    with pytest.raises(ConfigError) as refused:
        Settings(**{name: value})
    assert str(refused.value) == said


@pytest.mark.parametrize(
    "given",
    [
        {"size": 2, "worlds": 9_999, "share": 1.0, "rate": 0.0, "bound": 1e-9, "limit": 1, "betas": (0.0,), "names": ("a",)},
        {"bound": None, "limit": None, "size": 10**400},
        {"kind": "path/to/file.py:function", "scale": "none", "free": -1_000, "bonus": -1e9},
    ],
)
def test_what_is_allowed(given: dict[str, Any]):
    Settings(**given)


def test_without_an_option_the_default_is_named():
    @dataclass
    class Plain:
        turns: Annotated[int, Ge(1)] = 140
        steps: Annotated[int, Ge(1)] | None = None

    with pytest.raises(ConfigError, match=r"^turns must be >= 1, got 0\. The default is 140\.$"):
        check_ranges(Plain(turns=0))


def test_a_setting_without_a_default_has_no_advice():
    @dataclass
    class Needed:
        ids: Annotated[tuple[int, ...], MinLen(2)]

    with pytest.raises(ConfigError, match=r"^ids must be of length >= 2, got \(1,\)\.$"):
        check_ranges(Needed(ids=(1,)))
