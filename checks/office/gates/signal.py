"""G11: do sampled actions differ in what they lead to? A group whose replies are all worth the same teaches nothing.

States come from the play of a noisy expert, actions are drawn like a random player draws them, values are branches in training
worlds shared by the group, as in training.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from checks.office.gates.finding import Finding, Statistics, found
from checks.office.gates.gate import Counts, Job, Played
from checks.office.gates.matches import FIRST_SEED
from checks.office.gates.teams import SEATS, TeamTable
from onthejob.envs.office.actions import render
from onthejob.envs.office.company_state import TURNS_PER_DAY
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.luck import Sub, draw, mix
from onthejob.envs.office.policies import Noisy, Player, random_legal
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
    """The player of all seats in branches. Importable by name when samples are taken in other processes."""

    def run(self) -> Spread:
        """Play to the state and value its sampled actions."""
        return take_sample(self)


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


@dataclass(frozen=True, slots=True)
class Signal:
    """Most groups of sampled actions differ by more than a twentieth of what is usual for their role."""

    name: str = "G11 signal"
    least: float = 0.8
    """Share of the states that must be alive."""
    spread: float = 0.05
    """Standard deviation between sampled actions, as a share of the role's scale, from which a group is alive."""

    def jobs(self, counts: Counts, table: TeamTable) -> Iterable[Job]:
        places = [(scenario, role) for _ in range(counts.states) for scenario in counts.scenarios for role in SEATS]
        for number, (scenario, role) in enumerate(places):
            turn = int(draw(number, Sub.POLICY, 4, 0) * TURNS_PER_DAY * max(1, counts.days - 2))
            yield Sample(scenario=scenario, role=role, seed=FIRST_SEED + 5_000 + number, turn=turn, days=counts.days)

    def judge(self, measured: Played, statistics: Statistics) -> list[Finding]:
        return self.spreads(measured.of(Spread))

    def spreads(self, spreads: Sequence[Spread]) -> list[Finding]:
        """Per role how many states are alive, and over all."""
        by_role: dict[str, list[float]] = defaultdict(list)
        for spread in spreads:
            if len(spread.values) >= 2:
                by_role[spread.role].append(stdev(spread.values))
        alive: list[bool] = []
        findings = []
        for role, deviations in by_role.items():
            scale = math.sqrt(fmean(x * x for x in deviations))
            living = [scale > 0.0 and x > self.spread * scale for x in deviations]
            alive += living
            what = f"{role}: {sum(living)} of {len(living)} states; usual difference ${scale:,.0f}"
            findings.append(found(self.name, what, 100.0 * fmean(living), "% alive"))
        share = fmean(alive) if alive else math.nan
        needed, what = f">= {100 * self.least:.0f} %", f"all roles: {sum(alive)} of {len(alive)} states"
        return [found(self.name, what, 100.0 * share, "% alive", needed, share >= self.least), *findings]
