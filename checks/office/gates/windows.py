"""How much a look-ahead of one step improves on the expert in a few decisions, valued in worlds that it has never seen.

A benchmark that rules solve teaches nothing. For one role and a few consecutive decisions of it, every legal action is compared
by branches in training worlds (the expert continues in all seats) and the best is taken. What this gains is the sum, over the
decisions it changes, of (company value at the end after its action - after the expert's), both played to the end of the episode
by the expert in the same evaluation worlds: by the performance difference lemma that is the difference of the two policies, with
far less noise than two whole episodes. Chosen and played luck are apart, so what chance lent an action is no gain.

Source: Kakade and Langford, Approximately Optimal Approximate Reinforcement Learning (2002), lemma 6.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev

from checks.office.gates.oracle import EVALUATION_WORLD
from checks.office.gates.teams import SEATS
from onthejob.envs.office.actions import render
from onthejob.envs.office.company_state import TURNS_PER_DAY
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.luck import Sub, draw, mix
from onthejob.envs.office.policies import Player
from onthejob.envs.office.policies.expert import expert
from onthejob.errors import ConfigError
from onthejob.types import Split, Task

SHORTLIST = 3
CLEARLY = 2.0
"""Standard errors by which an action must beat the player's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAhead:
    """One window in one episode."""

    scenario: str
    role: str
    seed: int
    start: int = 84
    """Turn from which the role looks ahead."""
    decisions: int = 3
    """Decisions of the role in the window."""
    turns: int = 140
    """Horizon of the branches."""
    candidates: int = 12
    """Legal actions that are looked at, chosen by lot when there are more."""
    screening: int = 3
    """Worlds in which the candidates are compared with the player's own action; the best are finalists."""
    worlds: int = 9
    """Further worlds in which the shortlist meets the player's own action."""
    finals: int = 48
    """Evaluation worlds in which a changed decision is valued."""
    days: int = 30
    """Length of the episode."""
    player: Player = expert
    """Whose play is to be improved. Importable by name when windows are played in other processes."""

    def run(self) -> Gain:
        """Play it with and without the look-ahead."""
        return look_ahead(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What the look-ahead gained in one window."""

    scenario: str
    role: str
    seed: int
    gain: float
    """Company value at the end with the look-ahead less that without, dollars."""
    changed: int
    """Decisions on which the look-ahead disagreed with the player."""


def look_ahead(job: LookAhead) -> Gain:
    """Play one window with and without the look-ahead.

    Raises:
        ConfigError: unknown role, or fewer than two worlds, so that a difference would have no error.
    """
    if job.role not in SEATS or job.worlds < 2 or job.finals < 1:
        raise ConfigError(
            f"a look-ahead needs a role of {', '.join(SEATS)}, worlds >= 2 and finals >= 1, "
            f"got {job.role}, {job.worlds} and {job.finals}."
        )
    env = OfficeEnvironment(continuation=dict.fromkeys(SEATS, job.player))
    payload = {"scenario": job.scenario, "world": EVALUATION_WORLD, "days": job.days}
    env.reset(Task(id="headroom", env="office", split=Split.DEV, seed=job.seed, payload=payload))
    _play(env, job, until=job.start)
    changed, gain = 0, 0.0
    for _ in range(job.decisions):
        _play(env, job, role=job.role)
        if env.observe() is None:
            break
        own = _reply(env, job)
        chosen = _best(env, own, job)
        if chosen != own:
            changed += 1
            gain += fmean(_final(env, chosen, job, world) - _final(env, own, job, world) for world in range(job.finals))
        env.step(chosen)
    return Gain(scenario=job.scenario, role=job.role, seed=job.seed, gain=gain, changed=changed)


def _reply(env: OfficeEnvironment, job: LookAhead) -> str:
    """What the player would do."""
    observation = env.observe()
    assert observation is not None
    action = job.player(observation.view, list, 0.5)
    return render(action) if action is not None else ""


def _play(env: OfficeEnvironment, job: LookAhead, *, until: int | None = None, role: str = "") -> None:
    """The player acts in all seats until turn `until`, or until `role` is asked, or the end."""
    while (observation := env.observe()) is not None:
        if observation.actor == role or (until is not None and int(env.state()["turn"]) >= until):
            return
        env.step(_reply(env, job))


def _best(env: OfficeEnvironment, own: str, job: LookAhead) -> str:
    """The legal reply that beats the player's own clearly in worlds after those of the screening; else the own one."""

    def values(reply: str, first: int, count: int) -> list[float]:
        return [env.branch(reply, world=first + w, turns=job.turns).outcome for w in range(count)]

    key = mix(job.seed, int(env.state()["turn"]))
    by_lot = sorted(enumerate(env.legal_replies()), key=lambda pair: draw(key, Sub.POLICY, pair[0], 0))
    candidates = dict.fromkeys([own, *(reply for _, reply in by_lot[: job.candidates])])
    screened = {reply: fmean(values(reply, 1, job.screening)) for reply in candidates}
    shortlist = sorted((reply for reply in screened if screened[reply] > screened[own]), key=lambda reply: -screened[reply])
    if not shortlist:
        return own
    base = values(own, 1 + job.screening, job.worlds)
    best, best_gain = own, 0.0
    for reply in shortlist[:SHORTLIST]:
        gains = [x - y for x, y in zip(values(reply, 1 + job.screening, job.worlds), base, strict=True)]
        gain, error = fmean(gains), stdev(gains) / math.sqrt(len(gains))
        if gain > max(CLEARLY * error, best_gain):
            best, best_gain = reply, gain
    return best


def _final(env: OfficeEnvironment, reply: str, job: LookAhead, world: int) -> float:
    """Company value in dollars at the end, after `reply` and the player's further play in evaluation world `world`."""
    branch = env.branch(reply, world=EVALUATION_WORLD + 1 + world, turns=job.days * TURNS_PER_DAY)
    return float(branch.facts["company_value"])
