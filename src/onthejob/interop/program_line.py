"""The line in which an episode's calls wait for replies, in order of arrival, and the reward that its program states."""

from __future__ import annotations

import math
import secrets
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onthejob.interop import program_talk as talk
from onthejob.interop.program_talk import EarlierResponse, ReplyCall, RequestRefused

MOST_WAITING = 256
"""Calls of one episode that wait at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """What a program says that its episode is worth."""

    rewards: Mapping[str, float]
    """Role -> reward."""
    metrics: Mapping[str, float]


def read_reward(given: object, roles: Sequence[str]) -> Reward:
    """A reward from JSON: a number, or an object with `reward` (of every role) or `rewards` (by role), and `metrics`.

    Raises:
        ValueError: it is none of these; the message says what is wrong.
    """
    if not isinstance(given, Mapping):
        return Reward(rewards=dict.fromkeys(roles, _finite(given, "the reward")), metrics={})
    if unknown := sorted(str(name) for name in given if name not in ("reward", "rewards", "metrics")):
        raise ValueError(f"{unknown[0]!r} is not one of reward, rewards and metrics")
    if ("reward" in given) == ("rewards" in given):
        raise ValueError("either reward or rewards must be given")
    metrics = given.get("metrics") or {}
    by_role = given.get("rewards", {})
    if not isinstance(metrics, Mapping) or not isinstance(by_role, Mapping):
        raise ValueError("rewards and metrics must be objects")
    if unknown := [role for role in by_role if role not in roles]:
        raise ValueError(f"{unknown[0]!r:.60} is no role; the roles are {', '.join(roles)}")
    if "reward" in given:
        by_role = dict.fromkeys(roles, given["reward"])
    return Reward(
        rewards={role: _finite(amount, f"the reward of {role}") for role, amount in by_role.items()},
        metrics={str(name): _finite(value, f"metric {name}") for name, value in metrics.items()},
    )


def _finite(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{what} must be a finite number, got {value!r:.60}")
    return float(value)


@dataclass(slots=True, eq=False)
class WaitingCall:
    """A call that waits for its reply."""

    asked: ReplyCall
    number: int
    """Calls of the episode before it."""
    client: socket.socket
    reply: str | None = None
    refusal: RequestRefused | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def has_left(self) -> bool:
        """Whether the client has closed the connection, e.g. because it calls again."""
        try:
            poll = select.poll()  # select() takes no descriptor above 1023
            poll.register(self.client, select.POLLIN)
            return bool(poll.poll(0)) and self.client.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):
            return True


class CallLine:
    """The calls of one episode, in order of arrival, and the reward that its program posts."""

    def __init__(self, roles: Sequence[str], *, takes_rewards: bool) -> None:
        self.roles = tuple(roles)
        self.token = secrets.token_urlsafe(24)
        self.posted: Reward | None = None
        self.refused = ""
        """Why the last request that was refused was."""
        self._takes_rewards = takes_rewards
        self._changed = threading.Condition()
        self._waiting: deque[WaitingCall] = deque()
        self._pending: WaitingCall | None = None
        self._arrived = 0
        self._refusal: RequestRefused | None = None
        self._ended = False
        self._responses: dict[str, EarlierResponse] = {}

    def take(self, limit_s: float) -> WaitingCall | None:
        """The next call; None when the program has ended.

        Raises:
            TimeoutError: neither happened in time.
        """
        end = time.monotonic() + limit_s
        with self._changed:
            while True:
                if self._ended:
                    return None
                while self._waiting:
                    call = self._waiting.popleft()
                    if not call.has_left():
                        self._pending = call
                        return call
                    call.done.set()
                if (left := end - time.monotonic()) <= 0:
                    raise TimeoutError
                self._changed.wait(left)

    def answer(self, call: WaitingCall, reply: str) -> None:
        """Answer the call that was taken."""
        with self._changed:
            if call.asked.protocol == "responses":
                name = talk.name_of("responses", call.number)
                self._responses[name] = talk.earlier(call.asked, reply, call.number)
            call.reply, self._pending = reply, None
        call.done.set()

    def ended(self) -> None:
        """The program has ended."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def close(self, refusal: RequestRefused) -> None:
        """Refuse all calls that wait, and all that come."""
        with self._changed:
            self._refusal = self._refusal or refusal
            calls = [*self._waiting, *([self._pending] if self._pending else [])]
            self._waiting.clear()
            self._pending = None
        for call in calls:
            call.refusal = refusal
            call.done.set()

    def read(self, path: str, body: Mapping[str, Any]) -> ReplyCall:
        """The call that a request makes.

        Raises:
            RequestRefused: it makes none.
        """
        if path == "/v1/chat/completions":
            return talk.read_chat(body, self.roles)
        with self._changed:
            return talk.read_response(body, self.roles, self._responses)

    def submit(self, asked: ReplyCall, client: socket.socket) -> WaitingCall:
        """Queue a call and wait until it is answered.

        Raises:
            RequestRefused: the episode is over, or too many calls wait.
        """
        with self._changed:
            if self._refusal is not None:
                raise self._refusal
            if len(self._waiting) >= MOST_WAITING:
                raise RequestRefused(429, f"{MOST_WAITING} calls of this episode wait already.", "rate_limit_exceeded")
            call = WaitingCall(asked, self._arrived, client)
            self._arrived += 1
            self._waiting.append(call)
            self._changed.notify_all()
        call.done.wait()
        if call.refusal is not None:
            raise call.refusal
        return call

    def post(self, given: object) -> Reward:
        """Take the reward of the episode so far; a later one replaces it.

        Raises:
            RequestRefused: it is none, or this episode is paid for its last printed line.
        """
        if not self._takes_rewards:
            raise RequestRefused(409, "--env.reward scores the last printed line, so nothing can be posted. Omit one of the two.")
        try:
            reward = read_reward(given, self.roles)
        except ValueError as error:
            raise RequestRefused(400, f"{error}.") from error
        with self._changed:
            if self._refusal is not None:
                raise self._refusal
            before = self.posted or Reward(rewards=dict.fromkeys(self.roles, 0.0), metrics={})
            self.posted = Reward(rewards={**before.rewards, **reward.rewards}, metrics={**before.metrics, **reward.metrics})
        return reward
