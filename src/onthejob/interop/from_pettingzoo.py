"""`pettingzoo:MODULE`: an environment of PettingZoo, one role for each of its agents.

A module has a function `env` (agents act in turn) or `parallel_env` (all act at once, which PettingZoo itself turns into turns);
`family/name_v1` is an entry of PettingZoo's own registry. Each role sees its own observations only, in a conversation of its own,
and is paid its own rewards after every step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from onthejob.envs.exchange import Next
from onthejob.errors import ConfigError, MissingDependency
from onthejob.interop.game import Game, anchored_module, class_name, module_named, quiet
from onthejob.interop.json_options import json_object
from onthejob.interop.spaces import Actions, Unusable, actions_of, mask_of
from onthejob.types import StopReason, Task

try:
    import pettingzoo
    from pettingzoo.utils.conversions import parallel_to_aec
except ImportError as error:
    raise MissingDependency("pettingzoo is not installed. Run: pip install 'onthejob[pettingzoo]'") from error


class PettingZoo(Game):
    """An environment of PettingZoo."""

    def __post_init__(self) -> None:
        """Arguments may change who plays."""
        if self.kwargs:
            try:
                self.roles = tuple(_roles(_agents(self.what, self.kwargs)))  # type: ignore[misc]
            except ConfigError:
                return  # `tasks` says so, where a command reports it.

    def made(self) -> Any:
        """A new environment whose agents act in turn."""
        return _made(self.what, self.kwargs)

    def examined(self, game: Any) -> Mapping[str, Actions]:
        names, where = self.listed_names(), f"pettingzoo:{self.what}"
        found = {} if self.actions else {
            agent: actions_of(game.action_space(agent), names, f"{agent} of {where}") for agent in game.possible_agents
        }  # fmt: skip
        self.begun(game, 0)
        self.checked_text(game.observe(game.agent_selection), game.infos[game.agent_selection], game)
        return found

    def reset(self, task: Task) -> Next:
        """Begin the episode of the task's seed."""
        self.game = self.take()
        self.begun(self.game, task.seed)
        self.role_of = _roles(self.game.possible_agents)
        self.met: set[str] = set()
        self.cut = False
        self._pass_dead()
        if not self.game.agents:
            raise RuntimeError(f"pettingzoo:{self.what} has no living agent after reset(seed={task.seed}).")
        return self._asked({})

    def step(self, reply: str) -> Next:
        """Step the action of the agent whose turn it is."""
        game = self.game
        agent = game.agent_selection
        try:
            action = self.action_of(agent, reply, self.mask, game, game.action_space(agent))
        except Unusable as error:
            return self.refused(error)
        self.stepped(game, action)
        # Before dead agents are stepped, which clears them.
        rewards = {self.role_of[one]: float(paid) for one, paid in game.rewards.items()}
        self._pass_dead()
        if not game.agents:
            self.give_back()
            return self.end(rewards=rewards, stop=StopReason.MAX_TURNS if self.cut else StopReason.DONE)
        return self._asked(rewards)

    def _pass_dead(self) -> None:
        """Step agents whose part is over, as PettingZoo demands."""
        game = self.game
        while game.agents:
            agent = game.agent_selection
            if not (game.terminations[agent] or game.truncations[agent]):
                return
            self.cut = bool(game.truncations[agent] and not game.terminations[agent])
            self.stepped(game, None)

    def _asked(self, rewards: Mapping[str, float]) -> Next:
        game, agent = self.game, self.game.agent_selection
        observation, info = game.observe(agent), game.infos[agent]
        _, self.mask = mask_of(observation, info)
        text, legal = self.text_of(observation, info, game), self.legal_of(agent, self.mask, self.rng)
        text = self.with_legal(text, agent, legal)
        if agent not in self.met:
            self.met.add(agent)
            actions = self.known().actions
            rules = [self.instructions, f"You are {agent}.", actions[agent].described() if actions else "", text]
            text = "\n".join(part for part in rules if part)
        return self.ask(self.role_of[agent], text, legal=legal, rewards=rewards)


def environment(what: str) -> type[PettingZoo]:
    """The environment of a module."""
    return _kind(what)


def anchored(what: str) -> str:
    """A module's name as it is, a file's path absolute."""
    return anchored_module(what)


@cache
def _kind(what: str) -> type[PettingZoo]:
    agents = _agents(what, "", "{}")
    roles = _roles(agents)
    renamed = ", ".join(f"{role} is {agent}" for agent, role in roles.items() if role != agent)
    members = {
        "what": what,
        "roles": tuple(roles.values()),
        "__module__": __name__,
        "__doc__": f"{what} of PettingZoo{f': {renamed}' if renamed else ''}.",
    }
    return type(
        class_name(what.removesuffix(".py").replace("\\", "/").rsplit("/", 1)[-1].rsplit(".", 1)[-1]), (PettingZoo,), members
    )


def _roles(agents: Any) -> dict[str, str]:
    """Agent -> role, whose name an adapter can carry: in lower case, with _ for other characters."""
    found: dict[str, str] = {}
    for agent in agents:
        name = re.sub(r"[^a-z0-9]+", "_", str(agent).lower()).strip("_")
        name = name if name[:1].isalpha() else f"agent_{name}".rstrip("_")
        made, number = name, 2
        while made in found.values():
            made, number = f"{name}_{number}", number + 1
        found[agent] = made
    return found


@cache
def _agents(what: str, kwargs: str, _default: str = "") -> tuple[str, ...]:
    with quiet():
        game = _made(what, kwargs)
        try:
            if not getattr(game, "possible_agents", None):
                raise ConfigError(f"pettingzoo:{what} does not list possible_agents, and roles must be known before an episode.")
            return tuple(game.possible_agents)
        finally:
            game.close()


def _made(what: str, kwargs: str) -> Any:
    """A new environment whose agents act in turn."""
    arguments = json_object(kwargs, "--env.kwargs", '{"render_mode": "ansi"}')
    flag = f"--env pettingzoo:{what}"
    try:
        if "/" in what and not what.endswith(".py"):
            return _of_registry(what, flag, arguments)
        module = module_named(what, flag)
        if hasattr(module, "env"):
            return module.env(**arguments)
        if hasattr(module, "parallel_env"):
            return parallel_to_aec(module.parallel_env(**arguments))
    except (ConfigError, MissingDependency):
        raise
    except Exception as error:
        given = f" with --env.kwargs {kwargs}" if kwargs else ""
        raise ConfigError(f"{flag} cannot be made{given}: {type(error).__name__}: {error}.") from error
    raise ConfigError(f"{flag}: {what} has neither env nor parallel_env. Name a module such as pettingzoo.classic.tictactoe_v3.")


def _of_registry(what: str, flag: str, arguments: Mapping[str, Any]) -> Any:
    if not hasattr(pettingzoo, "aec_registry"):
        raise ConfigError(f"{flag} is an entry of the registry of PettingZoo 1.27, and {pettingzoo.__version__} is installed.")
    # Both spellings, name_v3 and name-v3, are the registry's.
    wanted = re.sub(r"_(v\d+)$", r"-\1", what)
    if wanted in pettingzoo.aec_registry:
        return pettingzoo.make("aec", wanted, **arguments)
    if wanted in pettingzoo.parallel_registry:
        return parallel_to_aec(pettingzoo.make("parallel", wanted, **arguments))
    near = [name for name in pettingzoo.aec_registry if name.startswith(what.partition("/")[0])]
    raise ConfigError(f"{flag} is not registered; known are {', '.join(near or pettingzoo.aec_registry)}.")
