"""The companies of one server, by name."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence

from onthejob.api.collecting import Collecting
from onthejob.api.players import Players
from onthejob.api.schema_office import Reset, RoleName, SeatName
from onthejob.api.seated import Seat
from onthejob.api.world import World
from onthejob.envs.office.env import CUSTOMER, SEATS
from onthejob.errors import ConfigError
from onthejob.office import PLAYED_CUSTOMER, Office
from onthejob.rollout.game_file import Replay
from onthejob.rollout.seats import Mode, fitting
from onthejob.train.collected import TurnRecorder, refuse_evaluation
from onthejob.types import Task

DEFAULT_PLAYER = "heuristic"
SCRIPT = "script"
"""Plays the customer unless a model does."""


class Worlds:
    """The companies of this server."""

    def __init__(
        self, players: Players, default: Reset, replay: Replay | None = None, collecting: Collecting | None = None
    ) -> None:
        """Found the first company.

        Args:
            players: who can sit in its seats.
            default: the company.
            replay: a recorded game to show instead, up to where it ended.
            collecting: receives the turns of seats in training mode; None: no seat can be in it.
        """
        self._players, self._collecting = players, collecting
        self._lock = threading.Lock()
        self._worlds: dict[str, World] = {}
        players.seated = self._names
        if replay is None:
            self.reset(default)
        else:
            if CUSTOMER in default.seats:
                raise ConfigError("in a recorded game the script plays the customer. Leave --seat customer=... out.")
            task = dataclasses.replace(replay.task, payload={"scenario": "baseline", "days": 30} | dict(replay.task.payload))
            seats: dict[str, Seat] = {role: players.seat(DEFAULT_PLAYER, role) for role in SEATS}
            seats |= self.seats(default.seats, default.modes, task, seats)
            world = World("live", task, seats, pace_s=default.pace_s)
            world.recall(replay.replies)
            self._worlds["live"] = world

    def get(self, name: str) -> World:
        """The world of this name."""
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
        seats |= {role: self._players.seat(DEFAULT_PLAYER, role) for role in SEATS if role not in {**seats, **asked.seats}}
        seats |= self.seats(asked.seats, asked.modes, task, seats)
        if asked.seats.get("customer") == SCRIPT:
            seats.pop(CUSTOMER, None)
        if any(seat.mode is Mode.TRAINING for seat in seats.values()):
            refuse_evaluation([task])
            if CUSTOMER in seats:
                raise ConfigError(PLAYED_CUSTOMER)
        with self._lock:
            before = self._worlds.get(asked.world)
            world = World(asked.world, task, seats, human=asked.human, pace_s=asked.pace_s)
            world.epoch = before.epoch + 1 if before is not None else 0
            if before is not None:
                before.close()
            self._worlds[asked.world] = world
        world.configure(playing=asked.playing)
        return world

    def changed(self, world: World, asked: Mapping[SeatName, str], modes: Mapping[SeatName, Mode]) -> dict[str, Seat]:
        """The seats of `world` that are given away, or taken in another mode; errors as of `seats`."""
        return self.seats(asked, modes, world.task, world.seats)

    def seats(
        self,
        asked: Mapping[RoleName, str] | Mapping[SeatName, str],
        modes: Mapping[SeatName, Mode],
        task: Task,
        held: Mapping[str, Seat],
    ) -> dict[str, Seat]:
        """The named players for these seats, in these modes; none for the script of the customer.

        Args:
            asked: seat -> player.
            modes: seat -> mode; a seat that is given away and is not named has the one that follows from its player.
            task: of the company.
            held: seats as they are now.
        """
        named = {role: name for role, name in asked.items() if (role, name) != (CUSTOMER, SCRIPT)}
        made = {str(role): self._players.seat(name, role, beside=tuple(named.values())) for role, name in named.items()}
        seats = {**held, **made}
        training = [role for role, mode in modes.items() if fitting(role, seats[role].policy, mode) is Mode.TRAINING]
        recorders = self._recorders(training, task, seats) if training else {}
        return made | {role: dataclasses.replace(seats[role], recorder=recorders.get(role)) for role in modes}

    def _recorders(self, training: Sequence[str], task: Task, seats: Mapping[str, Seat]) -> dict[str, TurnRecorder]:
        """Role -> the writer of its turns; the first one makes the run, so everything that can be refused is refused before."""
        refuse_evaluation([task])
        if CUSTOMER in seats:
            raise ConfigError(PLAYED_CUSTOMER)
        if self._collecting is None:
            raise ConfigError(
                f"{training[0]} cannot be in training mode: this viewer keeps no turns. Start it with --collect RUN."
            )
        return {role: self._collecting.recorder(seats[role].asking) for role in training}

    def _names(self) -> set[str]:
        """Who sits in any world."""
        return {seat.name for world in self.all() for seat in list(world.seats.values())}

    def close(self) -> None:
        """Stop all of them."""
        for world in self.all():
            world.close()
