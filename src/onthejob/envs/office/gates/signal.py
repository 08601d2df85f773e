"""Signal: do sampled actions differ in what they lead to? A group whose replies are all worth the same teaches nothing.

States come from the play of a noisy expert, actions are drawn like a random player draws them, values are branches in training
worlds shared by the group, as in training.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from onthejob.envs.office.actions import render
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.gates.matches import SEATS, Noisy
from onthejob.envs.office.luck import Sub, draw, mix
from onthejob.envs.office.policies import Player, random_legal
from onthejob.envs.office.policies.expert import expert
from onthejob.envs.office.policies.heuristic import heuristic
from onthejob.types import Split, Task

TEACHER = Noisy(expert, 0.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One state to look at: where `role` is first asked from turn `turn` on."""

    scenario: str
    role: str
    seed: int
    turn: int
    actions: int = 8
    """Sampled legal actions (repeats are possible, as in a group)."""
    turns: int = 140
    """Horizon of the branches."""
    worlds: int = 4
    days: int = 30
    """Length of the episode."""
    continuation: Player = heuristic
    """Who goes on in all seats. Importable by name when samples are taken in other processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Values of the sampled actions in one state."""

    scenario: str
    role: str
    seed: int
    values: tuple[float, ...]
    """Change of company value over the branch in dollars, mean over worlds, one per sampled action."""


def take_sample(job: Sample) -> Spread:
    """Play to the state and value its sampled actions; empty when the episode ends before."""
    env = OfficeEnvironment(continuation=dict.fromkeys(SEATS, job.continuation))
    task = Task(id="signal", env="office", split=Split.DEV, seed=job.seed, payload={"scenario": job.scenario, "days": job.days})
    observation = env.reset(task)
    key = mix(job.seed, Sub.POLICY, job.turn)
    while observation is not None and ((turn := int(env.state()["turn"])) < job.turn or observation.actor != job.role):
        action = TEACHER(observation.view, env.legal_actions, draw(key, Sub.POLICY, 1, turn))
        observation = env.step(render(action) if action is not None else "").observation
    values: list[float] = []
    known: dict[str, float] = {}
    for index in range(job.actions if observation is not None else 0):
        action = random_legal({}, env.legal_actions, draw(key, Sub.POLICY, 2, index))
        reply = render(action) if action is not None else ""
        if reply not in known:
            known[reply] = fmean(env.branch(reply, world=1 + w, turns=job.turns).outcome for w in range(job.worlds))
        values.append(known[reply])
    return Spread(scenario=job.scenario, role=job.role, seed=job.seed, values=tuple(values))
