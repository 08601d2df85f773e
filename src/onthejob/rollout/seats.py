"""Who sits where, changeable while an episode runs: a mapping of actors to policies that `play` reads at every turn.

Three modes of a seat, per role and at any time: `llm` (a hosted model acts), `training` (a local model acts, and what it samples
is recorded to be trained on, see `train.collected`) and `inference` (a local model acts, with or without an adapter). A fourth,
`scripted`, is for the workplace's own players.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from onthejob.errors import ConfigError
from onthejob.files import published_file
from onthejob.rollout.play import require_trainable
from onthejob.types import Policy

log = logging.getLogger(__name__)


class Mode(StrEnum):
    """How a seat is taken."""

    LLM = "llm"
    TRAINING = "training"
    INFERENCE = "inference"
    SCRIPTED = "scripted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One seat as it is now."""

    policy: Policy
    mode: Mode


def mode_of(policy: Policy, *, trained: bool = False) -> Mode:
    """The mode that fits a policy: by what it reads."""
    if trained:
        return Mode.TRAINING
    return {"messages": Mode.LLM, "tokens": Mode.INFERENCE}.get(policy.reads, Mode.SCRIPTED)


def fitting(actor: str, policy: Policy, mode: Mode) -> Mode:
    """`mode`, when a seat with this policy can be taken so.

    Args:
        actor: of the seat, for the message.
        policy: of the seat.
        mode: that was asked for.

    Raises:
        ConfigError: the policy returns no tokens to train on, or the mode is that of another kind of policy.
    """
    if mode is Mode.TRAINING:
        require_trainable(actor, policy)
    elif mode is not mode_of(policy):
        raise ConfigError(f"{policy.version} reads {policy.reads}, which is {mode_of(policy)} and not {mode}.")
    return mode


class Seats(Mapping[str, Policy]):
    """Actor -> who answers now. Give it to `play` as its policies; a swap counts from the actor's next turn.

    Within a conversation that continues (a retry) an actor keeps the policy that began it, when the other could not read it.
    """

    def __init__(self, policies: Mapping[str, Policy], *, trained: tuple[str, ...] = ()) -> None:
        """policies: who sits there first. trained: whose replies are to be trained on.

        Raises:
            ConfigError: a trained seat's policy returns no tokens.
        """
        self._lock = threading.Lock()
        self._seats: dict[str, Seat] = {}
        for actor, policy in policies.items():
            self._seats[actor] = self._checked(actor, policy, mode_of(policy, trained=actor in trained))

    def __getitem__(self, actor: str) -> Policy:
        with self._lock:
            return self._seats[actor].policy

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._seats))

    def __len__(self) -> int:
        return len(self._seats)

    @property
    def trained(self) -> tuple[str, ...]:
        """Actors in training now."""
        with self._lock:
            return tuple(actor for actor, seat in self._seats.items() if seat.mode is Mode.TRAINING)

    def mode(self, actor: str) -> Mode:
        """How the seat is taken now."""
        with self._lock:
            return self._seats[actor].mode

    def swap(self, actor: str, policy: Policy, mode: Mode | None = None) -> Policy:
        """Give the seat to `policy` from its next turn on; returns who had it. None finds the mode by what the policy reads.

        Raises:
            ConfigError: there is no such seat, or the mode does not fit the policy.
        """
        if actor not in self._seats:
            raise ConfigError(f"unknown role {actor!r}; the seats are {', '.join(self._seats)}.")
        seat = self._checked(actor, policy, mode or mode_of(policy))
        with self._lock:
            before, self._seats[actor] = self._seats[actor], seat
        log.info("%s: %s (%s) instead of %s (%s)", actor, policy.version, seat.mode, before.policy.version, before.mode)
        return before.policy

    @staticmethod
    def _checked(actor: str, policy: Policy, mode: Mode) -> Seat:
        return Seat(policy=policy, mode=fitting(actor, policy, mode))


class Orders:
    """A file of swaps that another process writes while an episode runs: a JSON object, role -> player."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int] | None = self._stamp()
        # Orders of an earlier episode stay in the file: without them the next order would bring them back.
        self._last = read_orders(path)

    def new(self) -> dict[str, str]:
        """Roles whose order changed since the last call; empty while no order was written.

        Raises:
            ConfigError: the file is not a JSON object of texts.
        """
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return {}
        self._seen = stamp
        orders = read_orders(self.path)
        changed = {role: who for role, who in orders.items() if self._last.get(role) != who}
        self._last = orders
        return changed

    def _stamp(self) -> tuple[int, int] | None:
        try:
            about = self.path.stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_ino


def read_orders(path: Path) -> dict[str, str]:
    """The orders in a file; none when it does not exist.

    Raises:
        ConfigError: it is not a JSON object of texts.
    """
    try:
        orders = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON ({error}). Delete it and give the order again.") from error
    if not isinstance(orders, dict) or not all(isinstance(who, str) for who in orders.values()):
        raise ConfigError(f'{path} must map roles to names, e.g. {{"sales": "expert"}}. Delete it and give the order again.')
    return orders


def give_order(path: Path, role: str, who: str) -> dict[str, str]:
    """Add one order to the file, whole or not at all; returns all of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent):
        orders = {**read_orders(path), role: who}
        with published_file(path) as temporary:
            temporary.write_text(json.dumps(orders, indent=2) + "\n", encoding="utf-8")
    return orders


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Only one process at a time, so that no order is lost between reading and writing."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
