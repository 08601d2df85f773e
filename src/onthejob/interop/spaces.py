"""Spaces of Gymnasium as text: observations that a language model reads, and replies that become actions.

Gymnasium and PettingZoo describe observations and actions by the same spaces. Discrete, MultiDiscrete, MultiBinary, Text and
small Box spaces have a written form; for any other, and for observations that are pictures, the user gives a function.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from onthejob.errors import ConfigError, MissingDependency

try:
    from gymnasium import spaces
except ImportError as error:
    raise MissingDependency("gymnasium is not installed. Run: pip install 'onthejob[gymnasium]'") from error

Random = Callable[[str], random.Random]
"""Name -> randomness of this turn, as `Env.rng`."""
DECIMALS = 3
MOST_NUMBERS = 1_000
"""Numbers of an observation that are written out; more are a picture, which needs a function that describes it."""
MOST_REPLIES = 64
"""Legal replies that are listed; of more, a sample."""
MOST_BOX = 16
"""Numbers of a Box that a reply writes."""


class Unusable(Exception):
    """A reply that is no action; the message is the feedback."""


class Actions(Protocol):
    """The written form of an action space."""

    def described(self) -> str:
        """A sentence for the prompt."""
        ...

    def legal(self, mask: Any, rng: Random) -> list[str]:
        """Texts of legal replies, all or a sample; empty where they cannot be listed."""
        ...

    def action(self, reply: str, mask: Any) -> Any:
        """What the environment is stepped with.

        Raises:
            Unusable: the reply is no action, or none that is possible now.
        """
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """A Discrete space: one of several names."""

    names: tuple[str, ...]
    first: int = 0

    def described(self) -> str:
        return f"Reply with one of: {', '.join(self.names)}."

    def legal(self, mask: Any, rng: Random) -> list[str]:
        if mask is None:
            return list(self.names)
        allowed = np.asarray(mask).astype(bool).ravel()
        if len(allowed) != len(self.names) or not allowed.any():
            raise RuntimeError(f"the action mask {allowed.astype(int).tolist()} allows none of {len(self.names)} actions.")
        return [name for name, possible in zip(self.names, allowed, strict=True) if possible]

    def action(self, reply: str, mask: Any) -> int:
        said, legal = reply.strip().casefold(), self.legal(mask, random.Random)
        for number, name in enumerate(self.names):
            if said == name.casefold() and name in legal:
                return self.first + number
        raise Unusable(f"{reply.strip()!r:.40} is not possible. Reply with one of: {', '.join(legal)}.")


@dataclass(frozen=True, slots=True)
class Numbers:
    """A MultiDiscrete or MultiBinary space: several whole numbers."""

    counts: tuple[int, ...]
    firsts: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: Any

    def described(self) -> str:
        ranges = ", ".join(f"{first}..{first + count - 1}" for first, count in zip(self.firsts, self.counts, strict=True))
        return f"Reply with {len(self.counts)} whole numbers, separated by spaces: {ranges}."

    def legal(self, mask: Any, rng: Random) -> list[str]:
        options = [[first + number for number in kept] for first, kept in zip(self.firsts, self._kept(mask), strict=True)]
        if math.prod(map(len, options)) <= MOST_REPLIES:
            return [" ".join(map(str, numbers)) for numbers in itertools.product(*options)]
        drawing = rng("legal")
        drawn = (" ".join(str(drawing.choice(one)) for one in options) for _ in range(MOST_REPLIES))
        return list(dict.fromkeys(drawn))

    def action(self, reply: str, mask: Any) -> np.ndarray:
        said = _numbers(reply)
        kept = [{first + number for number in one} for first, one in zip(self.firsts, self._kept(mask), strict=True)]
        if said is None or len(said) != len(kept) or any(number not in one for number, one in zip(said, kept, strict=True)):
            raise Unusable(f"{reply.strip()!r:.40} is not possible. {self.described()}")
        return np.array([int(number) for number in said], dtype=self.dtype).reshape(self.shape)

    def _kept(self, mask: Any) -> list[Sequence[int]]:
        if mask is None:
            return [range(count) for count in self.counts]
        return [np.flatnonzero(np.asarray(one)).tolist() for one in mask]


@dataclass(frozen=True, slots=True)
class Written:
    """A Text space: the reply itself."""

    space: spaces.Text

    def described(self) -> str:
        return f"Reply with a text of at most {self.space.max_length} characters."

    def legal(self, mask: Any, rng: Random) -> list[str]:
        return []

    def action(self, reply: str, mask: Any) -> str:
        said = reply.strip()
        if self.space.contains(said):
            return said
        if foreign := sorted(set(said) - set(self.space.character_set)):
            raise Unusable(f"A reply must not contain {foreign[0]!r}. {self.described()}")
        least = self.space.min_length
        raise Unusable(f"A reply has {least} to {self.space.max_length} characters, got {len(said)}.")


@dataclass(frozen=True, slots=True)
class Amounts:
    """A small Box: numbers within bounds, as JSON."""

    space: spaces.Box

    def described(self) -> str:
        ranges = ", ".join(
            f"{low:.4g} to {high:.4g}" for low, high in zip(self.space.low.ravel(), self.space.high.ravel(), strict=True)
        )
        if self._count == 1:
            return f"Reply with a number: {ranges}."
        return f"Reply with a JSON list of {self._count} numbers: {ranges}."

    def legal(self, mask: Any, rng: Random) -> list[str]:
        if not self.space.is_bounded():
            return []
        drawing, low, high = rng("legal"), self.space.low.ravel().tolist(), self.space.high.ravel().tolist()
        whole = np.issubdtype(self.space.dtype, np.integer)
        found = []
        for _ in range(8):
            if whole:
                said: list[Any] = [drawing.randint(int(a), int(b)) for a, b in zip(low, high, strict=True)]
            else:
                said = [min(b, max(a, round(drawing.uniform(a, b), DECIMALS))) for a, b in zip(low, high, strict=True)]
            found.append(json.dumps(said[0] if self._count == 1 else said))
        return list(dict.fromkeys(found))

    def action(self, reply: str, mask: Any) -> np.ndarray:
        said = _numbers(reply)
        if said is not None and len(said) == self._count:
            made = np.array(said)
            whole = np.issubdtype(self.space.dtype, np.integer)
            made = made.reshape(self.space.shape)
            if (
                np.all(made >= self.space.low - 1e-6)
                and np.all(made <= self.space.high + 1e-6)
                and (not whole or np.all(made == np.round(made)))
            ):
                return np.asarray(np.clip(made, self.space.low, self.space.high), dtype=self.space.dtype)
        raise Unusable(f"{reply.strip()!r:.40} is not possible. {self.described()}")

    @property
    def _count(self) -> int:
        return math.prod(self.space.shape)


def actions_of(space: Any, names: Sequence[str], where: str) -> Actions:
    """The written form of an action space.

    Args:
        space: of Gymnasium.
        names: of the actions of a Discrete space; empty numbers them.
        where: the environment, for messages.
    """
    if names and not isinstance(space, spaces.Discrete):
        raise ConfigError(f"--env.names names the actions of a Discrete space, and {where} has {space}. Omit it.")
    match space:
        case spaces.Discrete():
            first, count = int(space.start), int(space.n)
            found = tuple(names) or tuple(str(first + number) for number in range(count))
            if len(found) != count or len({name.casefold() for name in found}) != count or not all(found):
                raise ConfigError(f"--env.names must give {count} different names for {where}, got {', '.join(found)}.")
            return Choice(found, first)
        case spaces.MultiDiscrete():
            counts, firsts = space.nvec.ravel().tolist(), space.start.ravel().tolist()
            return Numbers(tuple(counts), tuple(firsts), space.shape, space.dtype)
        case spaces.MultiBinary():
            count = math.prod(space.shape)
            return Numbers((2,) * count, (0,) * count, space.shape, space.dtype)
        case spaces.Text():
            return Written(space)
        case spaces.Box() if math.prod(space.shape) <= MOST_BOX:
            return Amounts(space)
    raise ConfigError(
        f"{where} has the action space {str(space)[:80]}, which has no written form: known are Discrete, MultiDiscrete, "
        f"MultiBinary, Text, and Box of at most {MOST_BOX} numbers. Give --env.actions file.py:function, which makes an action "
        "of a reply."
    )


def mask_of(observation: Any, info: Mapping[str, Any]) -> tuple[Any, Any]:
    """(observation without its action mask, mask or None); a mask stands in the observation or in `info`."""
    if isinstance(observation, dict) and "action_mask" in observation:
        shown = {name: value for name, value in observation.items() if name != "action_mask"}
        only = next(iter(shown.values())) if list(shown) == ["observation"] else shown
        return only, observation["action_mask"]
    return observation, info.get("action_mask")


def shown(observation: Any) -> str:
    """An observation as text: a text as it is, anything else as JSON.

    Raises:
        Unusable: it has no written form; says why.
    """
    if isinstance(observation, str):
        return observation
    count = _count(observation)
    if count > MOST_NUMBERS:
        raise Unusable(f"an observation has {count:,} numbers, and at most {MOST_NUMBERS:,} are written out")
    return json.dumps(_plain(observation), ensure_ascii=False)


def _count(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.size
    if isinstance(value, Mapping):
        return sum(map(_count, value.values()))
    return sum(map(_count, value)) if isinstance(value, (list, tuple)) else 1


def _plain(value: Any) -> Any:
    """A value in JSON's types, with few decimals."""
    if isinstance(value, np.ndarray):
        whole = value.astype(int) if value.dtype == bool else value
        return _plain(whole.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return round(value, DECIMALS)
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, spaces.GraphInstance):
        return _plain(value._asdict())
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise Unusable(f"an observation holds a {type(value).__name__}, which has no written form")


def _numbers(reply: str) -> list[float] | None:
    """The numbers of a reply: a JSON list or number, or numbers separated by commas or spaces."""
    text = reply.strip()
    try:
        parts = [text] if text.startswith("[") else text.replace(",", " ").split()
        read = [json.loads(part) for part in parts]
    except (ValueError, RecursionError):
        return None
    found = read[0] if text.startswith("[") else read
    if not all(type(one) in (int, float) for one in found):
        return None
    # Beyond a float there is no bound that holds.
    return found if all(abs(one) < 2.0**63 for one in found) else None
