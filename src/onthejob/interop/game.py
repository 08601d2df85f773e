"""Game: what environments of Gymnasium and PettingZoo have in common as environments of a language model.

Both packages step objects that cannot be copied, whose making may take long. Objects are kept and used again for later episodes;
an episode that is forked is played again from its seed.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from onthejob.envs.env import Env
from onthejob.envs.exchange import Forks, Next
from onthejob.errors import ConfigError
from onthejob.interop.json_options import json_object
from onthejob.interop.spaces import Actions, Choice, Random, Unusable, mask_of, shown
from onthejob.plugins import function_of, module_of, source_of
from onthejob.types import Split, StopReason, Task

COLOURS = dict(zip(range(30, 38), ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white"), strict=True))
STYLED = re.compile(r"\x1b\[([\d;]*)m(.*?)\x1b\[0?m", re.DOTALL)
ESCAPE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
OWN_SOURCES = ("game.py", "spaces.py")
"""Files of this folder that decide what is shown and done, as does that of the environment's class."""


class Pool:
    """Objects of one kind that are not in use; for episodes side by side, in any thread."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._lock = make, threading.RLock()
        self._free: list[Any] = []
        self._closed = False

    def take(self) -> Any:
        """One that no other episode uses."""
        with self._lock:
            if self._free:
                return self._free.pop()
        return self._make()

    def give(self, game: Any) -> None:
        """Keep one for the next episode."""
        with self._lock:
            if not self._closed:
                self._free.append(game)
                return
        game.close()

    def close(self) -> None:
        """Close those that are kept now and those that are given back later."""
        with self._lock:
            self._closed, kept, self._free = True, self._free, []
        for game in kept:
            game.close()


@dataclass(frozen=True, slots=True)
class Known:
    """What is found out about an environment before it is played."""

    actions: Mapping[str, Actions]
    """Agent -> written form of its actions; empty where a function makes them."""
    source: str
    """Text of the file that defines it."""


class Game(Env):
    """An environment of another package, whose observations are shown as text and whose actions are replies."""

    what: ClassVar[str] = ""
    """Its name in the package; a subclass is made of each."""

    max_turns: int = 100  # type: ignore[misc]
    """Replies after which an episode is over."""
    max_new_tokens: int = 16  # type: ignore[misc]
    """Limit of a reply in tokens."""
    threads: int = 1  # type: ignore[misc]
    """Threads that step episodes side by side; more than 1 where a step waits for something."""
    forks: Forks = "replay"  # type: ignore[misc]
    """`replay` forks an episode by playing its replies again, which needs an environment that always does the same; else `no`."""
    count: int = 200
    """Tasks of each split; each has a seed of its own."""
    kwargs: str = ""
    """Arguments with which the environment is made, a JSON object, e.g. '{"map_name": "4x4"}'."""
    instructions: str = ""
    """Text before the first observation, e.g. the rules."""
    names: str = ""
    """Names of the actions of a Discrete space in order, separated by commas; empty numbers them."""
    render: str = ""
    """A function (observation, info, env) -> text that describes observations, as path/to/file.py:name or package.module:name."""
    actions: str = ""
    """A function (reply, env) -> action, in the same form; it raises ValueError with feedback for a reply that is none."""
    invalid_reward: float = -1.0
    """Reward of a reply that is no action; it should be less than that of the worst action."""
    invalid_limit: int = 5
    """Replies in a row that are no action, after which an episode ends."""

    pool: ClassVar[Pool | None] = None
    """Objects for all episodes, set by `open`."""

    def tasks(self, split: Split) -> list[Task]:
        """Tasks that differ by the seed of their reset."""
        if self.invalid_limit < 1:
            raise ConfigError(f"--env.invalid-limit must be >= 1, got {self.invalid_limit}. Take 5, or more than the turns.")
        self.known()
        return self.seeded(split, count=self.count)

    def open(self) -> None:
        """Keep the objects of all episodes together."""
        self.known()
        self.pool = Pool(self.made)  # type: ignore[misc]

    def close(self) -> None:
        """Close them."""
        if self.pool is not None:
            self.pool.close()

    def fingerprint(self) -> str:
        """Of the environment's name and source, and of the functions' sources."""
        own = "".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in OWN_SOURCES)
        given = "".join(source_of(function_of(named, "")) for named in (self.render, self.actions) if named)
        return hashlib.sha256(f"{self.what}\0{self.known().source}\0{own}\0{given}".encode()).hexdigest()[:12]

    def anchored(self) -> Mapping[str, Any]:
        """Functions' files are found from every folder."""
        from onthejob import plugins

        given = {"render": self.render, "actions": self.actions}
        return {name: plugins.anchored(named) for name, named in given.items() if named}

    def made(self) -> Any:
        """A new object of the other package."""
        raise NotImplementedError

    def examined(self, game: Any) -> Mapping[str, Actions]:
        """Agent -> written form of its actions, of an object whose episode is begun; refuses what cannot be shown or replied."""
        raise NotImplementedError

    def begun(self, game: Any, seed: int) -> Any:
        """Begin an episode of the object."""
        return game.reset(seed=seed)

    def known(self) -> Known:
        """What is found out by making one object and beginning an episode; done once."""
        found = vars(self).get("_known")
        if found is None:
            for named, flag in ((self.render, "--env.render"), (self.actions, "--env.actions")):
                if named:
                    function_of(named, flag)
            if self.actions and self.names:
                raise ConfigError("--env.names has no effect with --env.actions, which makes actions of replies. Omit one.")
            with quiet():
                game = self.made()
                try:
                    found = Known(self.examined(game), source_of(type(game.unwrapped)))
                finally:
                    game.close()
            vars(self)["_known"] = found
        return found

    def take(self) -> Any:
        """An object for this episode; it is given back when the episode is over or forgotten."""
        self.refusals, self.refused_at = 0, 0
        pool = self.pool if self.pool is not None else Pool(self.made)
        game = pool.take()
        self._back = weakref.finalize(self, pool.give, game)
        self._back.atexit = False
        return game

    def give_back(self) -> None:
        """Use the object for another episode."""
        self._back()

    def stepped(self, game: Any, action: Any) -> Any:
        """Step the object; one whose step raises is not used again."""
        try:
            return game.step(action)
        except Exception:
            self._back.detach()
            game.close()
            raise

    def legal_of(self, agent: str, mask: Any, rng: Random) -> list[str]:
        """Legal replies of an agent; empty where they cannot be listed."""
        actions = self.known().actions
        return actions[agent].legal(mask, rng) if actions else []

    def action_of(self, agent: str, reply: str, mask: Any, game: Any, space: Any) -> Any:
        """The action of a reply.

        Raises:
            Unusable: there is none.
        """
        actions = self.known().actions
        if actions:
            return actions[agent].action(reply, mask)
        try:
            made = function_of(self.actions, "--env.actions")(reply, game)
        except ValueError as error:
            raise Unusable(str(error) or f"{reply.strip()!r:.40} is no action.") from error
        if not space.contains(made):
            raise Unusable(f"{reply.strip()!r:.40} is not possible.")
        return made

    def text_of(self, observation: Any, info: Mapping[str, Any], game: Any) -> str:
        """An observation as text.

        Raises:
            Unusable: it has no written form.
            RuntimeError: the function of --env.render returned no text.
        """
        if not self.render:
            return shown(mask_of(observation, info)[0])
        text = function_of(self.render, "--env.render")(observation, info, game)
        if not isinstance(text, str):
            raise RuntimeError(f"--env.render {self.render} must return a text, got {text!r:.60}. Return a str.")
        return text

    def checked_text(self, observation: Any, info: Mapping[str, Any], game: Any) -> None:
        """Refuse observations that cannot be shown."""
        try:
            self.text_of(observation, info, game)
        except Unusable as error:
            raise ConfigError(f"{self.what}: {error}. Give --env.render file.py:function, which describes it.") from error
        except Exception as error:
            if not self.render:
                raise
            where = f"--env.render {self.render}"
            raise ConfigError(f"{where} failed on the first observation of {self.what}: {error}. Correct it.") from error

    def with_legal(self, text: str, agent: str, legal: list[str]) -> str:
        """`text` with the legal replies, where they are fewer than the actions."""
        actions = self.known().actions.get(agent)
        if not isinstance(actions, Choice) or len(legal) == len(actions.names):
            return text
        return f"{text}\nPossible now: {', '.join(legal)}."

    def refused(self, error: Unusable) -> Next:
        """The reply was no action, so nothing is stepped; `invalid_limit` of them in a row end the episode."""
        turn = self._now.turn
        self.refusals = self.refusals + 1 if self.refused_at == turn - 1 else 1
        self.refused_at = turn
        if self.refusals < self.invalid_limit:
            return self.invalid(str(error), reward=self.invalid_reward)
        self.give_back()
        return self.end(rewards={self.role: self.invalid_reward}, valid=False, stop=StopReason.PARSE_ERROR)

    def listed_names(self) -> list[str]:
        """Names of the actions, as they were given."""
        return [name.strip() for name in self.names.split(",")] if self.names else []

    def arguments(self) -> dict[str, Any]:
        """Arguments with which the environment is made."""
        return json_object(self.kwargs, "--env.kwargs", '{"map_name": "4x4"}')


def module_named(path: str, flag: str) -> ModuleType:
    """A module or Python file of this name, imported."""
    if path.endswith(".py"):
        return module_of(Path(path))
    try:
        with quiet():
            return importlib.import_module(path)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{flag}: there is no module {error.name!r}. Install its package, or name a file.") from error
    except Exception as error:
        raise ConfigError(f"{flag}: importing {path} fails: {type(error).__name__}: {error}.") from error


def anchored_module(what: str) -> str:
    """`what` with the absolute path of its file, where it names one."""
    path, colon, name = what.partition(".py")
    return f"{Path(path + colon).expanduser().absolute()}{name}" if colon and name[:1] in ("", ":") else what


@contextmanager
def quiet() -> Iterator[None]:
    """Packages greet and warn when they are imported and made; results stand on stdout."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def class_name(what: str) -> str:
    """A class's name of an environment's: FrozenLake-v1 gives FrozenLakeV1."""
    parts = [part for part in re.split(r"[^A-Za-z0-9]+", what) if part]
    name = "".join(part[0].upper() + part[1:] for part in parts)
    return name if name[:1].isalpha() else f"Game{name}"


def uncoloured(picture: str) -> str:
    """A terminal's picture as text: what is coloured stands in brackets with its colour, as [red S]."""

    def named(found: re.Match[str]) -> str:
        codes = [int(code) for code in found[1].split(";") if code]
        colour = next((COLOURS[code - 10 * (code >= 40)] for code in codes if code - 10 * (code >= 40) in COLOURS), "")
        return f"[{colour} {found[2]}]" if colour else found[2]

    return ESCAPE.sub("", STYLED.sub(named, picture)).strip("\n")
