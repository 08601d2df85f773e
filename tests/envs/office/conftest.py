"""A company to experiment with, and episodes of scripted players."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from onthejob.envs.office.actions import IDLE, Action
from onthejob.envs.office.company_state import PAINS, Account, Stage, State
from onthejob.envs.office.env import SEATS
from onthejob.envs.office.luck import Sub, draw, mix
from onthejob.envs.office.new_company import arrive
from onthejob.envs.office.policies import Player, players
from onthejob.envs.office.reward_parts import TurnLog
from onthejob.envs.office.roles import Role
from onthejob.envs.office.scenarios import load
from onthejob.envs.office.simulator import Simulator, actor_of
from onthejob.envs.office.views import view
from onthejob.types import Split, Task


class Office:
    """A simulator with its state. `act` lets all idle until the role's turn has come."""

    def __init__(self, scenario: str, seed: int, days: int, quiet: bool, changes: Mapping[str, Any]) -> None:
        rules = dataclasses.replace(load(scenario), **({"event_rate": 0.0, "schedule": ()} if quiet else {}), **changes)
        self.simulator = Simulator(rules)
        self.state: State = self.simulator.found(seed, days)

    def wait(self, role: str) -> None:
        """All idle until it is `role`'s turn."""
        while actor_of(self.state.turn) != role:
            self.simulator.step(self.state, IDLE)

    def act(
        self, role: str, name: str, target: str = "", *, message: str = "", to: str | None = None, **parameters: Any
    ) -> TurnLog:
        """`role` does one thing at its next turn; returns that turn's log."""
        self.wait(role)
        action = Action(name, target, parameters, message_to=to, message=message)
        reason = self.simulator.why_illegal(self.state, role, action)
        assert reason == "", reason
        return self.simulator.step(self.state, action)

    def legal(self, role: str, name: str, target: str = "") -> bool:
        return self.simulator.why_illegal(self.state, role, Action(name, target)) == ""

    def sleep(self, days: int = 1) -> list[TurnLog]:
        """Idle until `days` more mornings have come; the logs of all turns."""
        until = (self.state.day + days) * 14
        logs = []
        while self.state.turn < until:
            logs.append(self.simulator.step(self.state, IDLE))
        return logs

    def account(self, stage: Stage = Stage.LEAD, *, pain: str = "sync", size: int = 0, **changes: Any) -> Account:
        """A further account that stands at `stage`; its traits are `changes`."""
        s = self.state
        account = arrive(s, mix(s.seed, 77), 14 - len(s.accounts) % 14)
        account.id = 9_000 + s.names_used
        account.pain, account.size, account.price = PAINS.index(pain), size, (70_000, 180_000, 450_000)[size]
        account.stage, account.known, account.deadline = int(stage), stage > Stage.LEAD, 99
        if stage is Stage.WON:
            account.won_day, account.paid_until, account.rewarded, account.vest_left = s.day, s.day + 30, True, 2 / 3
        for name, value in changes.items():
            setattr(account, name, value)
        return account


@pytest.fixture(scope="session")
def office() -> Callable[..., Office]:
    """`office(scenario, seed=1, days=30, quiet=True, **changes)`: a company; quiet means without events."""

    def make(scenario: str = "baseline", *, seed: int = 1, days: int = 30, quiet: bool = True, **changes: Any) -> Office:
        return Office(scenario, seed, days, quiet, changes)

    return make


@pytest.fixture(scope="session")
def playing() -> Callable[..., Iterator[tuple[Simulator, State, str, Action | None, TurnLog]]]:
    """`playing(player, scenario, seed, world=0, days=30)`: (simulator, state, role, action, log) after every turn."""

    def episode(
        player: str | Player, scenario: str = "baseline", seed: int = 1, *, world: int = 0, days: int = 30
    ) -> Iterator[tuple[Simulator, State, str, Action | None, TurnLog]]:
        act = players()[player] if isinstance(player, str) else player
        simulator = Simulator(load(scenario))
        s = simulator.found(seed, days)
        s.world = world
        key = mix(seed, 1_000 + world)
        while not s.done:
            role = actor_of(s.turn)
            if role == Role.CUSTOMER:
                action: Action | None = simulator.customer_action(s)
            else:
                luck = draw(key, Sub.POLICY, 0, s.turn)
                action = act(view(s, role), lambda role=role: simulator.legal(s, role), luck)
                if action is not None and action is not IDLE:
                    reason = simulator.why_illegal(s, role, action)
                    assert reason == "", (s.turn, role, reason)
            yield simulator, s, role, action, simulator.step(s, action)

    return episode


@pytest.fixture(scope="session")
def task() -> Callable[..., Task]:
    """`task(scenario, seed, **payload)` of the dev split."""

    def make(scenario: str = "baseline", seed: int = 1_001, **payload: Any) -> Task:
        return Task(
            id=f"t-{scenario}-{seed}", env="office", split=Split.DEV, seed=seed, payload={"scenario": scenario, **payload}
        )

    return make


@pytest.fixture(scope="session")
def seats() -> tuple[str, ...]:
    return SEATS
