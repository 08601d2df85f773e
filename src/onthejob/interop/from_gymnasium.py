"""`gymnasium:ID`: an environment of Gymnasium, played by one role through text.

An ID is one of Gymnasium's or of an installed package that registers its own; `module:ID` and `file.py:ID` import what registers
it. A split's tasks are seeds of `reset`. A terminated episode is done, a truncated one ran out of turns, and each step's reward
is the role's. Branches in another world draw the environment's later randomness anew, where it uses Gymnasium's `np_random`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import numpy as np

from onthejob.envs.exchange import Forks, Next
from onthejob.errors import ConfigError, MissingDependency
from onthejob.interop.game import Game, anchored_module, class_name, module_named, quiet, uncoloured
from onthejob.interop.spaces import Actions, Unusable, actions_of, mask_of
from onthejob.keys import keyed_seed
from onthejob.types import StopReason, Task

try:
    import gymnasium
    from gymnasium.envs.registration import load_env_creator
except ImportError as error:
    raise MissingDependency("gymnasium is not installed. Run: pip install 'onthejob[gymnasium]'") from error

AGENT = "agent"
MOST_TURNS = 200
"""Turns of an episode, unless --env.max-turns says otherwise; less where the environment cuts its episodes earlier."""
SUCCESS = ("is_success", "success")
"""Where environments report success in `info`."""


class Gymnasium(Game):
    """An environment of Gymnasium."""

    roles = (AGENT,)

    show: Literal["auto", "observation", "ansi"] = "auto"
    """What is shown without --env.render: the observation, or the environment's own picture in text, which may show more than
    the observation; auto shows a text observation, else a picture where there is one, else the observation."""

    def made(self) -> gymnasium.Env[Any, Any]:
        """A new environment."""
        arguments = self.arguments()
        if self._draws():
            arguments = {"render_mode": "ansi", **arguments}
        try:
            return gymnasium.make(self.what, disable_env_checker=True, **arguments)
        except gymnasium.error.DependencyNotInstalled as error:
            raise MissingDependency(f"gymnasium:{self.what}: {error}") from error
        except Exception as error:
            given = f" with --env.kwargs {self.kwargs}" if self.kwargs else ""
            raise ConfigError(f"gymnasium:{self.what} cannot be made{given}: {type(error).__name__}: {error}.") from error

    def examined(self, game: gymnasium.Env[Any, Any]) -> Mapping[str, Actions]:
        if self.show == "ansi" and "ansi" not in _modes(game):
            offered = ", ".join(map(str, _modes(game))) or "none"
            raise ConfigError(f"gymnasium:{self.what} has no ansi picture: its render modes are {offered}. Omit --env.show.")
        if self.show != "auto" and self.render:
            raise ConfigError("--env.show has no effect with --env.render, which describes observations. Omit one.")
        found = {} if self.actions else {AGENT: actions_of(game.action_space, self.listed_names(), f"gymnasium:{self.what}")}
        observation, info = self.begun(game, 0)
        self.checked_text(observation, info, game)
        return found

    def reset(self, task: Task) -> Next:
        """Begin the episode of the task's seed."""
        self.game = self.take()
        self.luck = 0
        observation, info = self.begun(self.game, task.seed)
        text, legal = self._seen(observation, info)
        actions = self.known().actions
        rules = [self.instructions, actions[AGENT].described() if actions else "", text]
        return self.ask(AGENT, "\n".join(part for part in rules if part), legal=legal)

    def step(self, reply: str) -> Next:
        """Step the action of a reply."""
        try:
            action = self.action_of(AGENT, reply, self.mask, self.game, self.game.action_space)
        except Unusable as error:
            return self.refused(error)
        if self.world != self.luck:
            self.luck = self.world
            seed = keyed_seed(self._now.task.seed, "gymnasium", self._now.turn, self.world)
            self.game.unwrapped.np_random = np.random.default_rng(seed)
        observation, reward, terminated, truncated, info = self.stepped(self.game, action)
        if terminated or truncated:
            self.give_back()
            reported = next((float(info[name]) for name in SUCCESS if name in info), None)
            metrics = {} if reported is None else {"success": reported}
            return self.end(float(reward), metrics=metrics, stop=StopReason.DONE if terminated else StopReason.MAX_TURNS)
        text, legal = self._seen(observation, info)
        return self.tell(text, legal=legal, reward=float(reward))

    def text_of(self, observation: Any, info: Mapping[str, Any], game: gymnasium.Env[Any, Any]) -> str:
        if self.render or game.render_mode != "ansi" or not self._pictured(observation):
            return super().text_of(observation, info, game)
        picture: Any = game.render()
        return uncoloured(picture if isinstance(picture, str) else str(picture))

    def _seen(self, observation: Any, info: Mapping[str, Any]) -> tuple[str, list[str]]:
        """(text, legal replies); remembers the mask for the reply."""
        _, self.mask = mask_of(observation, info)
        text, legal = self.text_of(observation, info, self.game), self.legal_of(AGENT, self.mask, self.rng)
        return self.with_legal(text, AGENT, legal), legal

    def _draws(self) -> bool:
        """Whether the environment is made with a picture in text."""
        return not self.render and self.show != "observation" and "ansi" in _modes_of(self.what)

    def _pictured(self, observation: Any) -> bool:
        return self.show == "ansi" or not isinstance(observation, str)


def environment(what: str) -> type[Gymnasium]:
    """The environment of an ID."""
    return _kind(_registered(what))


def anchored(what: str) -> str:
    """An ID as it is; the path of a file that registers it absolute."""
    return anchored_module(what)


@cache
def _registered(what: str) -> str:
    module, colon, name = what.rpartition(":")
    if colon:
        module_named(module, f"--env gymnasium:{what}")
    try:
        with quiet():
            gymnasium.spec(name)
    except gymnasium.error.Error as error:
        said = str(error).rstrip(".")
        raise ConfigError(
            f"--env gymnasium:{what}: {said}. Correct the ID, or name what registers it: gymnasium:package.module:ID."
        ) from error
    return name


@cache
def _kind(name: str) -> type[Gymnasium]:
    spec = gymnasium.spec(name)
    turns = min(spec.max_episode_steps or Gymnasium.max_turns, MOST_TURNS)
    members = {
        "what": name,
        "max_turns": turns,
        # Gymnasium's own word for environments that a seed does not determine.
        "forks": "no" if spec.nondeterministic else "replay",
        "__annotations__": {"max_turns": int, "forks": Forks},
        "__module__": __name__,
        "__doc__": f"{name} of Gymnasium.",
    }
    return type(class_name(name), (Gymnasium,), members)


@cache
def _modes_of(name: str) -> tuple[Any, ...]:
    """Render modes of an environment, from its class."""
    entry = gymnasium.spec(name).entry_point
    try:
        with quiet():
            found = load_env_creator(entry) if isinstance(entry, str) else entry
    except (ImportError, AttributeError, ValueError):
        return ()  # `made` says so.
    metadata = getattr(found, "metadata", None)
    return tuple(metadata.get("render_modes") or ()) if isinstance(metadata, dict) else ()


def _modes(game: gymnasium.Env[Any, Any]) -> tuple[Any, ...]:
    return tuple(game.metadata.get("render_modes") or ())
