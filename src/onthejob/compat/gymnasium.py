"""The office for Gymnasium: one environment per trained role; the five colleagues are played by scripted players or policies.

    import gymnasium
    import onthejob.compat.gymnasium  # registers onthejob/office-ceo-v0, ..., onthejob/office-hr-v0

    env = gymnasium.make("onthejob/office-sales-v0", scenarios=("churn",), teammates="expert")

`onthejob.compat.office_spaces` says what is observed and how one acts. A step is the role's turn and all turns until it is asked
again; the reward is all that the role was paid in that time. The episode's end is a termination (its length is part of the task
and shown to the role); pass `max_episode_steps` to `gymnasium.make` to truncate earlier.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onthejob.compat.colleagues import Teammates, seated
from onthejob.compat.office_spaces import RENDER_MODES, Chosen, Observed, OfficeOptions, OfficeTable, check_render_mode, retried
from onthejob.envs.office.env import SEATS
from onthejob.errors import ContractError, MissingDependency
from onthejob.types import Split

try:
    import gymnasium
except ImportError as error:
    raise MissingDependency("gymnasium is not installed. Install onthejob[gymnasium].") from error


class OfficeRoleEnv(gymnasium.Env[Observed, Chosen]):
    """One role's job in the office."""

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 1}  # noqa: RUF012 - Gymnasium's own type

    def __init__(self, role: str, *, teammates: Teammates = "heuristic", render_mode: str | None = None, **options: Any) -> None:
        """Sit down.

        Args:
            role: `ceo`, `dev`, `marketing`, `sales`, `content` or `hr`.
            teammates: a scripted player's name for all colleagues, or role -> name or `onthejob.types.Policy` that reads the
                view or messages; colleagues that are not named are played by the heuristic.
            render_mode: `human` (prints), `ansi` (returns a string) or None.
            **options: of `OfficeOptions`.

        Raises:
            ConfigError: an unknown role, player, option or value.
        """
        check_render_mode(render_mode)
        chosen = OfficeOptions.of(options, "teammates", "render_mode")
        self._teammates = seated(role, teammates, split=Split(chosen.split))
        self.role, self.render_mode = role, render_mode
        self.table = OfficeTable(chosen)
        self._seat = self.table.seats[role]
        self.observation_space = self._seat.observation_space
        self.action_space = self._seat.action_space
        self._paid: dict[str, float] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observed, dict[str, Any]]:
        """Start an episode; colleagues play until the role is asked for the first time, and what they earn it is in the info.

        Args:
            seed: starts the sequence of episodes anew; without one the sequence continues.
            options: `task` plays this `onthejob.types.Task`; other keys are ignored.

        Raises:
            ConfigError: `options["task"]` is no task of the office.
        """
        super().reset(seed=seed)
        self.table.begin(self.np_random, options)
        before, parts = self._until_asked()
        return self.table.observe(self.role), {"parts": parts, "before": before, **self.table.info(self.role)}

    def step(self, action: Chosen) -> tuple[Observed, float, bool, bool, dict[str, Any]]:
        """Execute the role's action, then play the colleagues until the role is asked again.

        Returns:
            Observation, reward, terminated, truncated (always False here) and info: `parts` (named parts of the reward, its
            sum up to rounding), `valid` (whether the action could be executed) and, where it is to be corrected, `retry`.

        Raises:
            ConfigError: the action has the wrong type or lies beyond its space.
            ContractError: the episode is over, or nothing was reset.
        """
        request = self.table.asked()
        if request is None:
            raise ContractError("the episode is over or was not begun. Call reset first.")
        step = self.table.step(self._seat.reply(action, request))
        parts = {name: value for name, value in step.parts.get(self.role, {}).items() if value}
        later, more = self._until_asked()
        for name, value in more.items():
            parts[name] = parts.get(name, 0.0) + value
        info = {"parts": parts, "valid": step.valid, **retried(step), **self.table.info(self.role)}
        over = self.table.asked() is None
        if self.render_mode == "human":
            self.render()
        return self.table.observe(self.role), step.rewards.get(self.role, 0.0) + later, over, False, info

    def _until_asked(self) -> tuple[float, dict[str, float]]:
        """Play the colleagues' turns; returns what the role was paid meanwhile, and its parts that are not 0."""
        reward, sums = 0.0, dict[str, float]()
        while (request := self.table.asked()) is not None and request.actor != self.role:
            task = self.table.task
            assert task is not None
            step = self.table.step(self._teammates[request.actor](request, task.seed, self.table.turn))
            reward += step.rewards.get(self.role, 0.0)
            for name, value in step.parts.get(self.role, {}).items():
                if value:
                    sums[name] = sums.get(name, 0.0) + value
        return reward, sums

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """(n,) True where an action is possible now; the name under which sb3-contrib's MaskablePPO asks for it.

        Raises:
            ContractError: actions are texts, or nothing was reset.
        """
        return self.table.mask(self.role).astype(bool)

    def snapshot(self) -> bytes:
        """The episode as it is now, for `restore` of this or another environment with the same options.

        Raises:
            ContractError: nothing was reset.
        """
        return self.table.snapshot()

    def restore(self, snapshot: bytes) -> Observed:
        """Continue from `snapshot`; returns the observation that belongs to it.

        The generator of further episodes is not a part of it.

        Raises:
            ContractError: the bytes are no snapshot of such an environment, or of one in which another role is asked.
        """
        self.table.restore(snapshot, asked=self.role)
        return self.table.observe(self.role)

    def render(self) -> str | None:  # type: ignore[override]
        """The company in a few lines: returned in the mode `ansi`, printed in the mode `human`."""
        return self.table.render(self.render_mode)


def environment_id(role: str) -> str:
    """The name under which a role's environment is registered."""
    return f"onthejob/office-{role}-v0"


def _register() -> None:
    for role in SEATS:
        if environment_id(role) not in gymnasium.registry:
            gymnasium.register(environment_id(role), entry_point="onthejob.compat.gymnasium:OfficeRoleEnv", kwargs={"role": role})


# Importing a module that registers is how Gymnasium finds environments that are not its own.
_register()
