"""The office for PettingZoo: `env` (AEC, agents act in turn) and `parallel_env` (all six act at once).

    from onthejob.compat import pettingzoo as office_v0

    env = office_v0.env(scenarios=("churn",))
    env.reset(seed=0)
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, info = env.last()
        mask = observation["action_mask"]
        env.step(None if terminated or truncated else env.action_space(agent).sample(mask))

Agents are `ceo_0`, `dev_0`, ..., the office's six trained roles; the customer is a part of the world.
`onthejob.compat.office_spaces` says what is observed and how one acts. `info["parts"]` holds the named parts of the reward that
`last` or `step` returns (its sum up to rounding), `info["valid"]` whether the agent's last reply could be executed. With
`retries` an agent whose reply was not usable is selected again, its text ends with feedback, and `info["retry"]` is the number of
the correction.

Who is asked rotates from day to day, so the parallel environment is not a wrapper of the other: its step is one round, in which
the replies are executed in that day's order. A reply that was possible when the round began and is not any more when its turn
comes (a colleague closed the deal) does nothing and costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onthejob.compat.office_spaces import (
    IDLE_REPLY,
    RENDER_MODES,
    Chosen,
    Observed,
    OfficeOptions,
    OfficeTable,
    check_render_mode,
    retried,
)
from onthejob.envs.office.env import SEATS
from onthejob.errors import ConfigError, ContractError, MissingDependency

try:
    from pettingzoo import AECEnv, ParallelEnv
except ImportError as error:
    raise MissingDependency("pettingzoo is not installed. Install onthejob[pettingzoo].") from error

AGENTS = tuple(f"{role}_0" for role in SEATS)


def env(*, max_cycles: int | None = None, render_mode: str | None = None, **options: Any) -> OfficeAEC:
    """The office with agents that act in turn.

    Args:
        max_cycles: truncate after so many turns of every agent, >= 1; None plays the episode to its end.
        render_mode: `human` (prints), `ansi` (returns a string) or None.
        **options: of `OfficeOptions`.

    Raises:
        ConfigError: an option that cannot work.
    """
    return OfficeAEC(OfficeOptions.of(options, "max_cycles", "render_mode"), max_cycles=max_cycles, render_mode=render_mode)


def parallel_env(*, max_cycles: int | None = None, render_mode: str | None = None, **options: Any) -> OfficeParallel:
    """The office with agents that act at once; the arguments are those of `env`, without `retries`."""
    return OfficeParallel(OfficeOptions.of(options, "max_cycles", "render_mode"), max_cycles=max_cycles, render_mode=render_mode)


class _Seats:
    """What both kinds have in common: the table, its spaces, how it is shown."""

    def _sit_down(self, options: OfficeOptions, max_cycles: int | None, render_mode: str | None) -> None:
        check_render_mode(render_mode)
        _check_cycles(max_cycles)
        self.render_mode, self.max_cycles = render_mode, max_cycles
        self.table = OfficeTable(options)
        self.possible_agents: list[str] = list(AGENTS)
        self.agents: list[str] = []
        self._generator = np.random.default_rng()

    def observation_space(self, agent: str) -> Any:
        """The same object every time."""
        return self.table.seats[_role(agent)].observation_space

    def action_space(self, agent: str) -> Any:
        """The same object every time."""
        return self.table.seats[_role(agent)].action_space

    def render(self) -> str | None:  # type: ignore[override]
        """The company in a few lines: returned in the mode `ansi`, printed in the mode `human`."""
        return self.table.render(self.render_mode)

    def close(self) -> None:
        """Nothing is held outside this object."""


class OfficeAEC(_Seats, AECEnv[str, Observed, Chosen]):
    """One office, one agent at a time."""

    metadata: dict[str, Any] = {  # noqa: RUF012 - PettingZoo's own type
        "name": "office_v0",
        "render_modes": list(RENDER_MODES),
        "is_parallelizable": False,
    }

    def __init__(self, options: OfficeOptions, *, max_cycles: int | None, render_mode: str | None) -> None:
        super().__init__()
        self._sit_down(options, max_cycles, render_mode)
        self._turns = 0

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Start an episode.

        Args:
            seed: starts the sequence of episodes anew; without one the sequence continues.
            options: `task` plays this `onthejob.types.Task`; other keys are ignored.

        Raises:
            ConfigError: `options["task"]` is no task of the office.
        """
        if seed is not None:
            self._generator = np.random.default_rng(seed)
        self.table.begin(self._generator, options)
        self._turns = 0
        self.agents = list(AGENTS)
        self.rewards: dict[str, float] = dict.fromkeys(AGENTS, 0.0)
        self._cumulative_rewards = dict.fromkeys(AGENTS, 0.0)
        self.terminations = dict.fromkeys(AGENTS, False)
        self.truncations = dict.fromkeys(AGENTS, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {"parts": {}} for agent in AGENTS}
        self._skip_agent_selection = None
        self._select()

    def observe(self, agent: str) -> Observed:
        """What `agent` sees now, also when another agent is to act."""
        return self.table.observe(_role(agent))

    def step(self, action: Chosen | None) -> None:
        """Execute the selected agent's action.

        Raises:
            ConfigError: the action has the wrong type or lies beyond its space.
            ContractError: nothing was reset.
        """
        if not self.agents:
            raise ContractError("there is no agent to act. Call reset first.")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)  # type: ignore[arg-type]
            return
        request = self.table.asked()
        assert request is not None
        if action is None:
            raise ConfigError(f"{agent} is asked for an action, got None. None is for agents whose episode is over.")
        step = self.table.step(self.table.seats[request.actor].reply(action, request))
        self._turns += "retry" not in step.facts
        self._cumulative_rewards[agent] = 0.0
        self.rewards = {other: step.rewards.get(_role(other), 0.0) for other in self.agents}
        self.infos[agent] = {"parts": {}, "valid": step.valid, **retried(step)}
        self.infos = {other: _informed(self.infos[other], step.parts.get(_role(other), {})) for other in self.agents}
        if step.observation is None:
            self.terminations = dict.fromkeys(self.agents, True)
        elif self.max_cycles is not None and self._turns >= self.max_cycles * len(AGENTS):
            self.truncations = dict.fromkeys(self.agents, True)
        self._select()
        self._accumulate_rewards()
        if self.render_mode == "human":
            self.render()

    def _select(self) -> None:
        request = self.table.asked()
        if request is not None:
            self.agent_selection = f"{request.actor}_0"
            self.infos[self.agent_selection] |= self.table.info(request.actor)


class OfficeParallel(_Seats, ParallelEnv[str, Observed, Chosen]):
    """One office, one round at a time."""

    metadata: dict[str, Any] = {"name": "office_v0", "render_modes": list(RENDER_MODES)}  # noqa: RUF012 - PettingZoo's own type

    def __init__(self, options: OfficeOptions, *, max_cycles: int | None, render_mode: str | None) -> None:
        if options.retries:
            raise ConfigError(
                f"retries={options.retries} cannot be where all agents act at once: a corrected reply would come after those of "
                "the others. Use env(), whose agents act in turn, or leave retries out."
            )
        self._sit_down(options, max_cycles, render_mode)
        self._rounds = 0

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Observed], dict[str, dict[str, Any]]]:
        """Start an episode; the arguments are those of `OfficeAEC.reset`.

        Returns:
            Observation and info per agent.
        """
        if seed is not None:
            self._generator = np.random.default_rng(seed)
        self.table.begin(self._generator, options)
        self._rounds = 0
        self.agents = list(AGENTS)
        observations = {agent: self.table.observe(_role(agent)) for agent in AGENTS}
        return observations, {agent: self.table.info(_role(agent)) for agent in AGENTS}

    def step(
        self, actions: Mapping[str, Chosen]
    ) -> tuple[dict[str, Observed], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Execute one action of every agent, in the order of the day.

        Returns:
            Observation, reward, terminated, truncated and info per agent.

        Raises:
            ConfigError: an agent's action is missing, has the wrong type or lies beyond its space.
            ContractError: the episode is over, or nothing was reset.
        """
        if not self.agents:
            raise ContractError("there is no agent to act. Call reset first.")
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise ConfigError(f"all agents act in a round, but {', '.join(missing)} did not. Pass one action for each.")
        # All agents decide on what was seen when the round began.
        replies = {role: self.table.seats[role].reply(actions[f"{role}_0"], self.table.request(role)) for role in SEATS}
        possible = {role: self.table.possible(role, reply) for role, reply in replies.items()}
        rewards = dict.fromkeys(AGENTS, 0.0)
        infos: dict[str, dict[str, Any]] = {agent: {"parts": {}} for agent in AGENTS}
        for _ in SEATS:
            request = self.table.asked()
            if request is None:
                break
            role, reply = request.actor, replies[request.actor]
            overtaken = possible[role] and not self.table.possible(role, reply)
            step = self.table.step(IDLE_REPLY if overtaken else reply)
            infos[f"{role}_0"] |= {"valid": step.valid, "overtaken": overtaken}
            for name, parts in step.parts.items():
                if name in SEATS:
                    rewards[f"{name}_0"] += step.rewards[name]
                    infos[f"{name}_0"] = _informed(infos[f"{name}_0"], parts)
        self._rounds += 1
        over = self.table.asked() is None
        cut = not over and self.max_cycles is not None and self._rounds >= self.max_cycles
        for agent in AGENTS:
            infos[agent] |= self.table.info(_role(agent))
        observations = {agent: self.table.observe(_role(agent)) for agent in AGENTS}
        if over or cut:
            self.agents = []
        if self.render_mode == "human":
            self.render()
        return observations, rewards, dict.fromkeys(AGENTS, over), dict.fromkeys(AGENTS, cut), infos


def _check_cycles(cycles: int | None) -> None:
    if cycles is not None and (isinstance(cycles, bool) or not isinstance(cycles, int) or cycles < 1):
        raise ConfigError(f"max_cycles must be None or a whole number >= 1, got {cycles!r}.")


def _role(agent: str) -> str:
    if agent not in AGENTS:
        raise ConfigError(f"there is no agent {agent!r}; there are {', '.join(AGENTS)}.")
    return agent.removesuffix("_0")


def _informed(info: Mapping[str, Any], parts: Mapping[str, float]) -> dict[str, Any]:
    """`info` with one more turn's reward parts, those that are not 0."""
    sums = dict(info["parts"])
    for name, value in parts.items():
        if value:
            sums[name] = sums.get(name, 0.0) + value
    return {**info, "parts": sums}
