"""Playing the office through its protocol, turn by turn, in three configurations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from onthejob.envs.office.env import OfficeConfig, OfficeEnvironment
from onthejob.office_players import team
from onthejob.types import Context, Kind, Observation, Sampling, Step, Task

COMPACT, FULL = OfficeConfig(), OfficeConfig(profile="full")
ASKING = OfficeConfig(profile="full", retries=3, reflect=True)


def answer(observation: Observation, turn: int, name: str = "random") -> str:
    if observation.kind is Kind.REFLECT:
        return f"Turn {turn} taught something [0, 1]\nPlan: go on"
    return team(name)[observation.actor].act([Context(observation=observation, seed=turn)], Sampling())[0].text


def turns(env: OfficeEnvironment, task: Task, name: str = "random") -> Iterator[tuple[Observation, str, Step]]:
    """Play the whole task: (observation, reply, step)."""
    observation: Observation | None = env.reset(task)
    while observation is not None:
        reply = answer(observation, int(env.state()["turn"]), name)
        step = env.step(reply)
        yield observation, reply, step
        observation = step.observation


def row(step: Step) -> Any:
    seen = step.observation
    asked = None if seen is None else (seen.actor, seen.kind, seen.fresh, [tuple(m) for m in seen.messages], dict(seen.view))
    return json.dumps([step.rewards, step.parts, asked, step.stop, step.valid, step.facts])


def advance(env: OfficeEnvironment, task: Task, until: Callable[[Observation], bool]) -> Observation:
    """Play until a request fulfils `until`."""
    observation: Observation | None = env.reset(task)
    while observation is not None and not until(observation):
        observation = env.step(answer(observation, int(env.state()["turn"]))).observation
    assert observation is not None
    return observation
