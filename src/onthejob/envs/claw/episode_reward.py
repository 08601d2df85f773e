"""The reward of one episode: what was achieved, less what the turns cost.

    shaped   assertions passed / assertions - turn_penalty * turns / max_turns
    binary   1 when all assertions hold, else 0

Paid once, with the last step; every turn counts, also the one that says TASK_COMPLETE and one whose reply was not usable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from onthejob.envs.claw.grader import Grade
from onthejob.errors import ConfigError
from onthejob.setting_ranges import check_ranges

TURN_PENALTY = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    """What an episode is worth."""

    mode: Literal["shaped", "binary"] = "shaped"
    """`shaped` tells near misses and short episodes apart; `binary` only whether everything holds."""
    turn_penalty: Annotated[float | None, Ge(0)] = None
    """Cost of using all turns, in units of the task, >= 0; 0.2 by default. Only the shaped reward has one."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.mode == "binary" and self.turn_penalty is not None:
            raise ConfigError(f"the binary reward has no turn penalty, got {self.turn_penalty}. Leave it out, or use 'shaped'.")

    @property
    def penalty(self) -> float:
        """The turn penalty in force."""
        return 0.0 if self.mode == "binary" else TURN_PENALTY if self.turn_penalty is None else self.turn_penalty


def reward_parts(grade: Grade, *, turns: int, max_turns: int, config: RewardConfig, part: str = "assertions") -> dict[str, float]:
    """Named parts of the reward; their sum is the reward, in [-turn_penalty, 1].

    Args:
        grade: of the final workspace.
        turns: replies given, all kinds; more than `max_turns` cost no more.
        max_turns: the limit of the protocol, >= 1.
        config: mode and penalty.
        part: name of the part that says what was achieved.
    """
    return reward_of(grade.passed, grade.rate, turns=turns, max_turns=max_turns, config=config, part=part)


def reward_of(
    passed: bool, rate: float, *, turns: int, max_turns: int, config: RewardConfig, part: str = "assertions"
) -> dict[str, float]:
    """`reward_parts` of a grade of which only these two are known."""
    if config.mode == "binary":
        return {"passed": float(passed)}
    return {part: rate, "turns": -config.penalty * min(turns / max_turns, 1.0)}
