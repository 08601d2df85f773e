"""`textarena:ID`: a text game of TextArena, one role for each player.

A role sees the messages that the game has sent to its player since its last turn, in a conversation of its own, without the
echo of its own replies. Ids whose observations TextArena composes anew in every turn (`-train`: the rules and the present board)
begin a new context in every turn. Rewards are paid at the end, as the game gives them.

Games draw from the global generators of `random` and NumPy. Each game has states of its own for them, which are in place only
while it is called, so games do not disturb each other and equal tasks and replies give equal games.
"""

from __future__ import annotations

import dataclasses
import difflib
import io
import logging
import math
import random
import re
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import cache
from importlib.metadata import version
from typing import Any, ClassVar

import numpy as np

from onthejob.envs.env import Env
from onthejob.envs.exchange import FIRST_SEEDS, Next
from onthejob.errors import ConfigError, MissingDependency
from onthejob.interop.json_options import json_object
from onthejob.interop.textarena_games import LISTED, PRINTING, SEATS, why_refused
from onthejob.types import Split, Task

try:
    import textarena
    from textarena.envs.registration import ENV_REGISTRY
    from textarena.wrappers import LLMObservationWrapper
except ImportError as error:
    raise MissingDependency("textarena is not installed. Run: pip install 'onthejob[textarena]'") from error

log = logging.getLogger(__name__)
LUCK = threading.Lock()
"""Held while a game's states of the global generators are in place."""
MOVES = re.compile(r"(?:available|valid|legal) (?:moves|actions)(?: are)?:? *(.*)", re.IGNORECASE)
MOVE = re.compile(r"\[[^\[\]]+\]")
FAILED = -1.0
"""Reward of a player with whom a game cannot continue: what most games pay for unusable replies."""


class TextArena(Env):
    """A text game of TextArena."""

    max_turns: int = 200  # type: ignore[misc]
    """Replies, of all players together, after which an episode ends; the game's own limit comes first."""
    max_new_tokens: int = 64  # type: ignore[misc]
    """Limit of a reply in tokens."""
    seats: int = 0
    """Number of players; 0 for the fewest that the game allows."""
    count: int = 200
    """Tasks of each split."""
    kwargs: str = ""
    """Arguments with which the game is made, a JSON object, e.g. '{"max_rounds": 1}'."""
    system: str = ""
    """System message before the rules of the game."""

    forks = "replay"
    game_id: ClassVar[str] = ""
    """TextArena's id; `environment` makes a subclass of each."""

    def __post_init__(self) -> None:
        """The number of players decides who plays."""
        if self.seats in SEATS[_folder(self.game_id)]:
            self.roles = _roles(self.seats)  # type: ignore[misc]

    def tasks(self, split: Split) -> list[Task]:
        """Tasks that differ by the game's seed."""
        allowed = SEATS[_folder(self.game_id)]
        if self.seats and self.seats not in allowed:
            known = ", ".join(map(str, allowed))
            raise ConfigError(f"--env.seats of textarena:{self.game_id} must be one of {known}, got {self.seats}.")
        arguments = self._arguments()
        if self.seats or arguments:
            try:
                Table(self.game_id, len(self.roles), FIRST_SEEDS[split], arguments)
            except Exception as error:
                given = f" and --env.kwargs {self.kwargs}" if arguments else ""
                other = "other arguments" if arguments else "fewer"
                raise ConfigError(
                    f"textarena:{self.game_id} cannot begin with {len(self.roles)} players{given}: {error}. "
                    f"Take {other}, or another variant."
                ) from error
        return self.seeded(split, count=self.count)

    def reset(self, task: Task) -> Next:
        """Begin the game of the task's seed."""
        self.table = Table(self.game_id, len(self.roles), task.seed, self._arguments())
        self.moves: dict[str, list[str]] = {}
        return self._asked()

    def step(self, reply: str) -> Next:
        """Pass a reply to the game; where that fails, the player and those whom the game has eliminated have lost."""
        if self.world:
            self.table.draw_anew(self.rng("luck").getrandbits(32))
        try:
            rewards = self.table.step(reply)
        except Exception as error:
            log.info("%s raised %s: %s, for the reply %r", self.game_id, type(error).__name__, error, reply[:80])
            lost = {self.role, *(self.roles[player] for player in self.table.eliminated())}
            return self.end(rewards=dict.fromkeys(sorted(lost), FAILED), metrics={"failed": 1.0}, valid=False)
        if rewards is None:
            return self._asked(valid=self.table.valid)
        paid = {role: rewards.get(player, 0.0) for player, role in enumerate(self.roles)}
        return self.end(rewards=paid, metrics={"failed": 0.0}, valid=self.table.valid)

    def fingerprint(self) -> str:
        """The version of TextArena."""
        return f"textarena {version('textarena')}"

    def _arguments(self) -> dict[str, Any]:
        return json_object(self.kwargs, "--env.kwargs", '{"max_rounds": 1}')

    def _asked(self, *, valid: bool = True) -> Next:
        role, text = self.roles[self.table.player], self.table.text
        if _folder(self.game_id) in LISTED:
            listed = [MOVE.findall(line) for line in MOVES.findall(text)]
            # A game that refuses a move does not always list them again.
            self.moves[role] = next((moves for moves in reversed(listed) if moves), self.moves.get(role, []))
        fresh = True if self.table.composed else None
        made = self.ask(role, text, system=self.system, legal=self.moves.get(role, ()), fresh=fresh)
        return dataclasses.replace(made, valid=valid)


class Table:
    """One game under way, with the generators that it draws from."""

    def __init__(self, game_id: str, players: int, seed: int, arguments: Mapping[str, Any]) -> None:
        """Make the game with these arguments and begin it; ends with the first request in `player` and `text`."""
        self._luck: tuple[Any, Any] = random.Random(seed).getstate(), np.random.RandomState(seed).get_state()
        self._silent = _folder(game_id) in PRINTING
        self.valid = True
        """Whether the game took the last reply as a move."""
        self.player, self.text = 0, ""
        with self._drawing():
            self._game = textarena.make(game_id, **arguments)
            self._game.reset(num_players=players, seed=seed)
            self._rules = self._innermost()
            self.composed = _composed(self._game)
            """Whether an observation replaces the earlier ones instead of continuing them."""
            self._watch_refusals()
            self._look()

    def step(self, reply: str) -> dict[int, float] | None:
        """Pass a reply of `player`: the rewards by player at the end, else None, with the next request in `player` and `text`.

        Raises:
            Exception: what the game raises.
            RuntimeError: the game ended with a reward that is no number, or would continue without end.
        """
        with self._drawing():
            self.valid = True
            done, _ = self._game.step(action=reply)
            if not done:
                self._look()
                if self.player in self.eliminated():
                    raise RuntimeError(f"the game asks player {self.player}, whom it has eliminated")
                return None
            rewards, _ = self._game.close()
        if not rewards or not all(isinstance(paid, (int, float)) and math.isfinite(paid) for paid in rewards.values()):
            raise RuntimeError(f"the game ended with the rewards {rewards!r:.80}, which are no numbers")
        return {player: float(paid) for player, paid in rewards.items()}

    def draw_anew(self, seed: int) -> None:
        """From now on the game draws other luck."""
        self._luck = random.Random(seed).getstate(), np.random.RandomState(seed).get_state()

    def eliminated(self) -> set[int]:
        """Players whom the game has eliminated."""
        state = self._rules.state
        return set(state.elimination_order) if isinstance(state, textarena.FFAMultiPlayerState) else set()

    def _look(self) -> None:
        """Whose turn it is, and what that player has been sent."""
        if self.composed:
            self.player, text = self._game.get_observation()
            self.text = str(text).strip()
            return
        self.player, sent = self._rules.get_observation()
        names: Mapping[int, str] = self._rules.state.role_mapping
        lines = []
        for sender, message, kind in sent:
            own = sender == self.player and kind is textarena.ObservationType.PLAYER_ACTION
            # Some games pass the arguments of an echo in the wrong order, so its message is a number.
            if isinstance(message, str) and not own:
                lines.append(f"[{names.get(sender, f'Player {sender}')}] {message.strip()}")
        self.text = "\n".join(lines) or "It is your turn."

    def _watch_refusals(self) -> None:
        """Record in `valid` when the game refuses a move, which it states in prose only, and raise when no player is left."""
        state = self._rules.state
        refuse, advance = state.set_invalid_move, state.step

        def noted(*arguments: Any, **named: Any) -> Any:
            self.valid = False
            return refuse(*arguments, **named)

        def advanced(*arguments: Any, **named: Any) -> Any:
            # It would look for the next player without end.
            if not state.done and len(self.eliminated()) >= state.num_players:
                raise RuntimeError("the game has eliminated all of its players and has not ended")
            return advance(*arguments, **named)

        state.set_invalid_move, state.step = noted, advanced

    def _innermost(self) -> Any:
        """The game without its wrappers."""
        game = self._game
        while isinstance(game, textarena.Wrapper):
            game = game.env
        return game

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Within it the global generators are the game's."""
        with LUCK, redirect_stdout(io.StringIO()) if self._silent else nullcontext(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before = random.getstate(), np.random.get_state()
            random.setstate(self._luck[0])
            np.random.set_state(self._luck[1])
            try:
                yield
            finally:
                self._luck = random.getstate(), np.random.get_state()
                random.setstate(before[0])
                np.random.set_state(before[1])


def environment(what: str) -> type[TextArena]:
    """The environment of an id."""
    if what not in ENV_REGISTRY:
        near = difflib.get_close_matches(what, ENV_REGISTRY, n=5, cutoff=0.5)
        known = f"Near it are {', '.join(near)}." if near else "Ids are those of textarena.make, e.g. TicTacToe-v0-train."
        raise ConfigError(f"TextArena has no game {what!r}. {known}")
    if reason := why_refused(what, _folder(what)):
        raise ConfigError(f"textarena:{what} cannot be played: {reason}. Choose another game, e.g. textarena:TicTacToe-v0.")
    return _kind(what)


def anchored(what: str) -> str:
    """An id is the same from every folder."""
    return what


@cache
def _kind(what: str) -> type[TextArena]:
    seats = SEATS[_folder(what)]
    number = f"{seats[0]} to {seats[-1]} players" if len(seats) > 1 else f"{seats[0]} player{'s' * (seats[0] > 1)}"
    members = {
        "game_id": what,
        "roles": _roles(seats[0]),
        "__module__": __name__,
        "__doc__": f"{what} of TextArena, {number}.",
    }
    words = [part for part in re.split(r"[^A-Za-z0-9]+", what) if part]
    name = "".join(part[0].upper() + part[1:] for part in words)
    return type(name if name[0].isalpha() else f"Game{name}", (TextArena,), members)


def _folder(game_id: str) -> str:
    """Folder of the game's class: textarena.envs.FOLDER.env:Class."""
    spec: Any = ENV_REGISTRY[game_id]
    return str(spec.entry_point).partition(":")[0].split(".")[2]


def _roles(players: int) -> tuple[str, ...]:
    return tuple(f"player_{number}" for number in range(players))


def _composed(game: Any) -> bool:
    """Whether a wrapper composes observations anew, in which case they do not continue each other."""
    while isinstance(game, textarena.Wrapper):
        if isinstance(game, textarena.ObservationWrapper) and type(game) is not LLMObservationWrapper:
            return True
        game = game.env
    return False
