"""The companies of one server, by name."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping

from onthejob.api.players import Players
from onthejob.api.schema import Reset, RoleName, SeatName
from onthejob.api.world import Seat, World
from onthejob.envs.office.env import CUSTOMER, SEATS
from onthejob.errors import ConfigError
from onthejob.office import Office
from onthejob.rollout.replay import Replay

DEFAULT_PLAYER = "heuristic"
SCRIPT = "script"
"""Plays the customer unless a model does."""


class Worlds:
    """The companies of this server."""

    def __init__(self, players: Players, default: Reset, replay: Replay | None = None) -> None:
        """default: the company to found first. replay: a recorded game to show instead, up to where it ended."""
        self._players = players
        self._lock = threading.Lock()
        self._worlds: dict[str, World] = {}
        players.seated = self._names
        if replay is None:
            self.reset(default)
        else:
            if CUSTOMER in default.seats:
                raise ConfigError("in a recorded game the script plays the customer. Leave --seat customer=... out.")
            seats = {role: players.seat(DEFAULT_PLAYER, role) for role in SEATS} | self.seats(default.seats)
            task = dataclasses.replace(replay.task, payload={"scenario": "baseline", "days": 30} | dict(replay.task.payload))
            world = World("live", task, seats, pace_s=default.pace_s)
            world.recall(replay.replies)
            self._worlds["live"] = world

    def get(self, name: str) -> World:
        """The world of this name.

        Raises:
            ConfigError: it was never founded.
        """
        world = self._worlds.get(name)
        if world is None:
            raise ConfigError(f"there is no world {name!r} yet: found it with POST /api/reset.")
        return world

    def all(self) -> list[World]:
        """Every world, in the order of founding."""
        return list(self._worlds.values())

    def reset(self, asked: Reset) -> World:
        """Found a world anew; seats that are not named are kept."""
        task = Office().served_tasks().task_of(asked.seed, {"scenario": asked.scenario, "days": asked.days})
        before = self._worlds.get(asked.world)
        seats: dict[str, Seat] = dict(before.seats) if before is not None else {}
        seats |= self.seats(asked.seats)
        if asked.seats.get("customer") == SCRIPT:
            seats.pop(CUSTOMER, None)
        seats |= {role: self._players.seat(DEFAULT_PLAYER, role) for role in SEATS if role not in seats}
        with self._lock:
            before = self._worlds.get(asked.world)
            world = World(asked.world, task, seats, human=asked.human, pace_s=asked.pace_s)
            world.epoch = before.epoch + 1 if before is not None else 0
            if before is not None:
                before.close()
            self._worlds[asked.world] = world
        world.configure(playing=asked.playing)
        return world

    def seats(self, asked: Mapping[RoleName, str] | Mapping[SeatName, str]) -> dict[str, Seat]:
        """The named players for these seats; none for the script of the customer."""
        named = {role: name for role, name in asked.items() if (role, name) != (CUSTOMER, SCRIPT)}
        return {role: self._players.seat(name, role, beside=tuple(named.values())) for role, name in named.items()}

    def _names(self) -> set[str]:
        """Who sits in any world."""
        return {seat.name for world in self.all() for seat in list(world.seats.values())}

    def close(self) -> None:
        """Stop all of them."""
        for world in self.all():
            world.close()
