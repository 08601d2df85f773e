"""One client's session: a seat among scripted colleagues, or the whole table, over any `onthejob.types.Environment`.

The learner's seat is for frameworks that know one agent: `step` plays the client's reply and then all others', until the
client's role is asked again; what the role was paid meanwhile, by any role's action, is the reward. The table (`role="*"`) is for
trainers of teams: every turn is the client's, and the rewards of all are shown. Nothing here knows how the client is connected.

A client's mistake is a `SeatError` with a code, and leaves the episode as it was; a model's unusable reply is data.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from onthejob.compat.served import Served
from onthejob.envs.exchange import Reply
from onthejob.errors import ConfigError, ContractError
from onthejob.keys import keyed_seed
from onthejob.types import Environment, Forkable, Observation, Split, Step, StopReason, Task

log = logging.getLogger(__name__)

TABLE = "*"
"""The role of a client that plays every seat."""
MAX_SEED = 2**63 - 1


class Code(StrEnum):
    """Why a request was refused. The message on the wire begins with it."""

    RESET_REQUIRED = "RESET_REQUIRED"
    """A step without an episode, for instance because the socket of the previous one was lost."""
    EPISODE_OVER = "EPISODE_OVER"
    SESSION_CLOSED = "SESSION_CLOSED"
    """The server ended the session, for instance because it was idle too long."""
    WRONG_ROLE = "WRONG_ROLE"
    BAD_RESET = "BAD_RESET"
    TRAINER_ONLY = "TRAINER_ONLY"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    """Our failure: the episode has ended with `end_reason` error. The server's log says more."""


class SeatError(ContractError):
    """A request that cannot be served; `code` says why, and only INTERNAL_ERROR ends the episode."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a client may say at reset. Values come from strangers: `Seat.reset` checks all of them."""

    seed: Any = None
    """Whole number >= 0; None draws a training seed, which the task's id then shows."""
    episode_id: Any = None
    role: Any = None
    """A seat, `*` for all of them, or None for the workplace's first."""
    teammates: Any = None
    """A scripted player's name for all other seats, or a mapping role -> name; the default player where none is named."""
    split: Any = None
    index: Any = None
    """With `split`, chooses a published task; excludes `seed`."""
    max_steps: Any = None
    """Cut the episode after so many of the client's steps (`truncated`), >= 1."""
    legal: Any = False
    """Also list the legal replies in every observation."""
    injected_state: Any = None
    """Base64 of a snapshot (`state.snapshot` of another session): continue there. Trainers only."""
    trainer_key: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """The workplace's own, e.g. the office's `scenario` and `days`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a client is shown after reset or step."""

    observation: Observation | None
    """The request to `role`; None when the episode is over."""
    role: str | None
    reward: float | None
    """What the client's role was paid since it was last asked (at the table: the sum over the seats); None at reset."""
    rewards: Mapping[str, float]
    """Actor -> the same. The client's own role only; at the table, all roles."""
    parts: Mapping[str, Mapping[str, float]]
    """Actor -> named parts, which sum to `rewards[actor]`."""
    valid: bool
    """False when the last reply was not usable, so that it did nothing."""
    error: str | None
    """Then: why, in one sentence."""
    legal: list[str]
    stop: StopReason | None
    metrics: Mapping[str, float]
    """The environment's figures, once the episode is over."""


class Seat:
    """One session. Not safe for use by two threads at once; sessions share nothing that changes."""

    def __init__(self, workplace: Served, *, trainer_key: str | None = None) -> None:
        """No episode yet: `reset` starts one.

        Args:
            workplace: what is served.
            trainer_key: a client that shows it may inject states and read snapshots; None refuses both to all.
        """
        self.workplace = workplace
        self._trainer_key = trainer_key
        self._env: Environment | None = None
        self._pending: Observation | None = None
        self._players: Mapping[str, Reply] = {}
        self._names: Mapping[str, str] = {}
        self._paid: dict[str, float] = {}
        """Actor -> reward that was paid and not yet shown."""
        self._parts: dict[str, dict[str, float]] = {}
        self._stop: StopReason | None = None
        self._closed = False
        self._legal = False
        self._trainer = False
        self._max_steps: int | None = None
        self.role = ""
        self.task: Task | None = None
        self.injected = False
        """The episode continues from a client's snapshot."""
        self.episode_id: str | None = None
        self.steps = 0
        """Steps of the client in this episode."""
        self.turns = 0
        """Replies that the environment was given in this episode, colleagues' included."""
        self.episode_return = 0.0
        """Sum of the rewards shown so far."""
        self.returns: dict[str, float] = {}
        """Actor -> sum of the rewards shown so far."""

    def reset(self, start: Start) -> Seen:
        """Start an episode; everything is checked first, so that a refused reset leaves the running episode alone.

        Raises:
            SeatError: SESSION_CLOSED, BAD_RESET, TRAINER_ONLY or INTERNAL_ERROR.
        """
        if self._closed:
            raise _closed()
        trainer = self._is_trainer(start.trainer_key)
        role = self._role(start.role)
        names = self._teammates(start.teammates, role)
        max_steps = _whole("max_steps", start.max_steps, low=1)
        if start.episode_id is not None and not (isinstance(start.episode_id, str) and len(start.episode_id) <= 255):
            raise SeatError(Code.BAD_RESET, f"episode_id must be text of at most 255 characters, got {_short(start.episode_id)}.")
        if not isinstance(start.legal, bool):
            raise SeatError(Code.BAD_RESET, f"legal must be true or false, got {_short(start.legal)}.")
        env = self.workplace.make()
        try:
            if start.injected_state is not None:
                task, pending = self._inject(env, start, trainer)
            else:
                task = self._task(start)
                pending = self._open(env, task)
        except BaseException:
            env.close()
            raise
        if self._env is not None:
            self._env.close()
        self._env, self._pending, self.task, self.role = env, pending, task, role
        self._names, self._players = names, {seat: self.workplace.players[name] for seat, name in names.items()}
        self.injected = start.injected_state is not None
        self._paid, self._parts, self._stop = {}, {}, None if pending is not None else StopReason.HORIZON
        self._legal, self._trainer, self._max_steps = start.legal, trainer, max_steps
        self.episode_id = start.episode_id if start.episode_id is not None else task.id
        self.steps, self.turns, self.episode_return, self.returns = 0, 0, 0.0, {}
        with self._guarded():
            self._play_others()
            return self._seen(reward=False)

    def step(self, reply: str, role: str | None = None) -> Seen:
        """Play `reply` as the role that is asked.

        Args:
            reply: as the model wrote it.
            role: whose reply it is; required at the table, where it must be the role that was asked.

        Raises:
            SeatError: SESSION_CLOSED, RESET_REQUIRED, EPISODE_OVER, WRONG_ROLE or INTERNAL_ERROR.
        """
        if self._closed:
            raise _closed()
        if self._env is None:
            raise SeatError(
                Code.RESET_REQUIRED,
                "this session has no episode. Send reset first; if the connection was lost, its episode is gone.",
            )
        if self._stop is not None or self._pending is None:
            raise SeatError(Code.EPISODE_OVER, f"the episode has ended ({self._stop}). Send reset to start another one.")
        asked = self._pending.actor
        if role != asked and not (role is None and self.role != TABLE):
            raise SeatError(Code.WRONG_ROLE, f"{asked} is asked, got a reply of {role or 'no role'}. Send role {asked!r}.")
        with self._guarded():
            step = self._advance(self._env, reply)
            self.steps += 1
            self._play_others()
            if self._stop is None and self._max_steps is not None and self.steps >= self._max_steps:
                self._stop = StopReason.MAX_TURNS
            return self._seen(step)

    def close(self) -> None:
        """End the session for good; later requests are refused with SESSION_CLOSED."""
        self._closed = True
        if self._env is not None:
            self._env.close()
        self._env, self._pending = None, None

    @property
    def stop(self) -> StopReason | None:
        """Why the episode ended, None while it runs."""
        return self._stop

    @property
    def teammates(self) -> Mapping[str, str]:
        """Seat -> name of the scripted player in it."""
        return self._names

    def snapshot(self) -> str | None:
        """Base64 of the episode as it is, for `injected_state`; None unless the client has shown the trainer's key."""
        if not self._trainer or self._env is None or not isinstance(self._env, Forkable):
            return None
        return base64.b64encode(self._env.snapshot()).decode("ascii")

    def _play_others(self) -> None:
        """Let the scripted colleagues reply until the client is asked or the episode is over."""
        if self.role == TABLE or self._env is None or self.task is None:
            return
        while self._pending is not None and self._pending.actor != self.role:
            player = self._players[self._pending.actor]
            self._advance(self._env, player(self._pending, keyed_seed(self.task.seed, "teammate", self.turns)))

    def _advance(self, env: Environment, reply: str) -> Step:
        step = env.step(reply)
        self.turns += 1
        for actor, reward in step.rewards.items():
            if self.role in (TABLE, actor):
                self._paid[actor] = self._paid.get(actor, 0.0) + reward
                parts = self._parts.setdefault(actor, {})
                for name, value in step.parts.get(actor, {}).items():
                    parts[name] = parts.get(name, 0.0) + value
        self._pending = step.observation
        if step.observation is None:
            self._stop = step.stop or StopReason.HORIZON
        return step

    def _seen(self, step: Step | None = None, *, reward: bool = True) -> Seen:
        """What is shown now. Rewards due before the client's first turn are kept for its first step."""
        over = self._stop is not None
        mine = self.workplace.seats if self.role == TABLE else (self.role,)
        rewards: dict[str, float] = {}
        parts: dict[str, dict[str, float]] = {}
        if reward or over:
            rewards = dict.fromkeys(mine, 0.0) | self._paid
            parts, self._paid, self._parts = self._parts, {}, {}
        paid = sum(rewards.get(seat, 0.0) for seat in mine)
        self.episode_return += paid
        for actor, value in rewards.items():
            self.returns[actor] = self.returns.get(actor, 0.0) + value
        usable = step is None or step.valid
        pending = None if over else self._pending
        return Seen(
            observation=pending,
            role=None if pending is None else pending.actor,
            reward=paid if reward or over else None,
            rewards=rewards,
            parts=parts,
            valid=usable,
            error=None if usable or step is None else str(step.facts.get("why", "the reply was not usable")),
            legal=list(pending.view.get("legal", ())) if pending is not None and self._legal else [],
            stop=self._stop,
            metrics=dict(self._env.state().get("metrics", {})) if over and self._env is not None else {},
        )

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Turn what an environment or player raises into INTERNAL_ERROR: no text of ours reaches a client by accident."""
        try:
            yield
        except Exception as error:
            self._stop = StopReason.ERROR
            raise self._failed(error, "the environment failed and the episode is over") from None

    def _failed(self, error: Exception, what: str) -> SeatError:
        log.error("a session of %s failed", self.workplace.name, exc_info=error)
        return SeatError(Code.INTERNAL_ERROR, f"{what}. The server's log says more.")

    def _open(self, env: Environment, task: Task) -> Observation:
        try:
            return env.reset(task)
        except ConfigError as error:
            raise SeatError(Code.BAD_RESET, str(error)) from error
        except Exception as error:
            raise self._failed(error, f"task {task.id} could not be started") from None

    def _role(self, role: Any) -> str:
        if role is None:
            return self.workplace.seats[0]
        if role != TABLE and role not in self.workplace.seats:
            raise SeatError(
                Code.BAD_RESET, f"role must be {TABLE!r} or one of {', '.join(self.workplace.seats)}, got {_short(role)}."
            )
        return role

    def _teammates(self, given: Any, role: str) -> dict[str, str]:
        others = [] if role == TABLE else [seat for seat in self.workplace.seats if seat != role]
        if given is not None and not others:
            raise SeatError(Code.BAD_RESET, "teammates has no effect when the client plays every seat. Leave it out.")
        if others and not self.workplace.players:
            raise SeatError(
                Code.BAD_RESET, f"{self.workplace.name} has no player for {', '.join(others)}. Take every seat: role {TABLE!r}."
            )
        default = self.workplace.default_player
        chosen = given if isinstance(given, dict) else dict.fromkeys(others, default if given is None else given)
        for seat, name in chosen.items():
            if seat not in others:
                raise SeatError(Code.BAD_RESET, f"teammates are {', '.join(others)}, got {_short(seat)}.")
            if not isinstance(name, str) or name not in self.workplace.players:
                known = ", ".join(self.workplace.players)
                raise SeatError(Code.BAD_RESET, f"{seat} can be played by {known}, got {_short(name)}.")
        return {seat: chosen.get(seat, default) for seat in others}

    def _task(self, start: Start) -> Task:
        workplace = self.workplace
        try:
            if start.split is None and start.index is None:
                seed = _whole("seed", start.seed, low=0)
                if seed is None:
                    seed = secrets.choice(workplace.seeds)
                return workplace.task_of(seed, start.options)
            if start.seed is not None:
                raise SeatError(Code.BAD_RESET, "a task has its own seed. Give either seed, or split and index.")
            split = workplace.split(Split.TRAIN if start.split is None else start.split)
            index = _whole("index", 0 if start.index is None else start.index, low=0)
            if index is None or index >= workplace.counts[split]:
                raise SeatError(Code.BAD_RESET, f"index must be in 0..{workplace.counts[split] - 1} for {split}, got {index}.")
            return workplace.task_at(split, index, start.options)
        except ConfigError as error:
            raise SeatError(Code.BAD_RESET, str(error)) from error

    def _is_trainer(self, key: Any) -> bool:
        if key is None:
            return False
        known = self._trainer_key
        if known is None or not isinstance(key, str) or not hmac.compare_digest(key.encode("utf-8", "replace"), known.encode()):
            raise SeatError(Code.TRAINER_ONLY, "this is not the trainer's key of this server.")
        return True

    def _inject(self, env: Environment, start: Start, trainer: bool) -> tuple[Task, Observation | None]:
        """Continue from the client's snapshot; the task then only says where the colleagues' luck comes from."""
        if not trainer:
            raise SeatError(
                Code.TRAINER_ONLY, "injected_state needs the trainer's key, because a snapshot holds what no role may see."
            )
        if not isinstance(env, Forkable):
            raise SeatError(Code.BAD_RESET, f"{self.workplace.name} has no snapshots.")
        if start.split is not None or start.index is not None or start.options:
            raise SeatError(Code.BAD_RESET, "the snapshot says which task it is: omit split, index and options.")
        try:
            pending = env.restore(base64.b64decode(start.injected_state, validate=True))
        except (binascii.Error, TypeError, ValueError) as error:
            raise SeatError(Code.BAD_RESET, "injected_state is not base64 of a snapshot.") from error
        except (ContractError, ConfigError) as error:
            raise SeatError(Code.BAD_RESET, str(error)) from error
        except Exception as error:
            raise self._failed(error, "the snapshot could not be restored") from None
        seed = _whole("seed", start.seed, low=0) or 0
        name = str(env.state().get("task", "injected"))
        return Task(id=name, env=self.workplace.name, split=Split.TRAIN, seed=seed), pending


def _closed() -> SeatError:
    return SeatError(Code.SESSION_CLOSED, "the server has closed this session. Connect again and reset.")


def _whole(name: str, value: Any, *, low: int) -> int | None:
    """None, or a whole number from `low` to 2^63 - 1."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= MAX_SEED:
        raise SeatError(Code.BAD_RESET, f"{name} must be a whole number >= {low} and below 2^63, got {_short(value)}.")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
