"""G9: equal seeds give equal bytes, in any process; a fork and a snapshot are the original; parts sum to the reward.

`digest_command` prints the digest of one transcript with all prompts, so that two processes with different hash seeds can be
compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from checks.office.gates.finding import Finding, Statistics, found, nothing
from checks.office.gates.gate import Counts, Job, Played
from checks.office.gates.matches import FIRST_SEED
from checks.office.gates.signal import TEACHER
from checks.office.gates.teams import TeamTable
from onthejob.envs.office.actions import render
from onthejob.envs.office.company_state import TURNS_PER_DAY
from onthejob.envs.office.env import OfficeConfig, OfficeEnvironment
from onthejob.envs.office.luck import Sub, draw, mix
from onthejob.envs.office.policies import Player
from onthejob.errors import ContractError
from onthejob.types import Split, Step, Task

HASH_SEEDS = ("1", "4242")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One property and whether it held."""

    what: str
    held: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Checks:
    """What several plays of one episode showed."""

    made: Sequence[Check]


@dataclass(frozen=True, slots=True, kw_only=True)
class Twins:
    """One episode that is played several times, here and in two other processes."""

    scenario: str
    seed: int
    turns: int
    profile: str = "compact"

    def run(self) -> Checks:
        """All checks."""
        checks = check_exactness(self.scenario, self.seed, turns=self.turns, make_env=maker(self.profile))
        return Checks([*checks, check_processes(digest_command(self.scenario, self.seed, self.turns, self.profile))])


@dataclass(frozen=True, slots=True)
class Determinism:
    """Equal seeds give equal bytes; a fork and a snapshot are the original; parts sum to the reward."""

    name: str = "G9 determinism"

    def jobs(self, counts: Counts, table: TeamTable) -> Iterable[Job]:
        turns = counts.days * TURNS_PER_DAY
        for scenario in counts.scenarios:
            yield Twins(scenario=scenario, seed=FIRST_SEED, turns=turns)
        # The full prompt adds what a simulator does not hold: memories, the board, copies of messages.
        yield Twins(scenario=counts.scenarios[0], seed=FIRST_SEED + 1, turns=turns, profile="full")

    def judge(self, measured: Played, statistics: Statistics) -> list[Finding]:
        checks = [check for checks in measured.of(Checks) for check in checks.made]
        findings = []
        for what in dict.fromkeys(check.what for check in checks):
            made = [check for check in checks if check.what == what]
            # Of several episodes, the one that tells most: the first that broke it.
            told = next((check for check in made if not check.held), made[0])
            of = f"{what}, {len(made)} episodes" + (f" ({told.detail})" if told.detail else "")
            findings.append(found(self.name, of, fmean(check.held for check in made), "held", "1", told.held))
        return findings or [nothing(self.name, "nothing was checked", "held", "1")]


def maker(profile: str) -> Callable[[], OfficeEnvironment]:
    """Makes environments that render this profile."""
    return lambda: OfficeEnvironment(OfficeConfig(profile=profile))


def check_exactness(
    scenario: str,
    seed: int,
    *,
    turns: int = 420,
    player: Player = TEACHER,
    make_env: Callable[[], OfficeEnvironment] = OfficeEnvironment,
) -> list[Check]:
    """Play one episode several times and compare transcripts byte by byte.

    Args:
        scenario: name or TOML path.
        seed: of the episode.
        turns: length; the snapshot is taken and the fork made in the middle.
        player: who sits in all seats.
        make_env: maker of the environment under test.
    """
    env = make_env()
    env.reset(_task(scenario, seed))
    first, gap = transcript(env, player, seed, turns // 2)
    snapshot = env.snapshot()
    fork, scratch, restored = env.fork(), env.fork(), make_env()
    restored.restore(snapshot)
    transcript(scratch, player, seed + 1, 14)
    if env.observe() is not None:
        for world in (1, 2):
            env.branch(env.legal_replies()[-1], world=world, turns=28)
    untouched = env.snapshot() == snapshot
    rest, gap_rest = transcript(env, player, seed, turns - turns // 2)
    again = make_env()
    again.reset(_task(scenario, seed))
    second, _ = transcript(again, player, seed, turns)
    of_fork, _ = transcript(fork, player, seed, turns - turns // 2)
    of_snapshot, _ = transcript(restored, player, seed, turns - turns // 2)
    worst = max(gap, gap_rest)
    return [
        Check(what="equal seed, equal transcript", held=first + rest == second),
        Check(what="branches and forks leave the parent untouched", held=untouched),
        Check(what="fork and continue = continue", held=of_fork == rest),
        Check(what="snapshot, restore and continue = continue", held=of_snapshot == rest),
        Check(what="reward parts sum to the reward", held=worst <= 1e-9, detail=f"largest gap {worst:.1e}"),
    ]


def transcript(env: OfficeEnvironment, player: Player, seed: int, turns: int) -> tuple[list[bytes], float]:
    """(one line per decision with prompt, reply and everything that was answered, largest gap between a reward and its parts).

    Plays at most `turns` turns of the company from the pending request on.
    """
    lines: list[bytes] = []
    gap, stop = 0.0, int(env.state()["turn"]) + turns
    observation = env.observe()
    while observation is not None and (turn := int(env.state()["turn"])) < stop:
        actor = observation.actor
        luck = draw(mix(seed, Sub.POLICY), Sub.POLICY, 1, turn)
        action = player(observation.view, env.legal_actions, luck)
        reply = render(action) if action is not None else ""
        prompt = [list(message) for message in observation.messages]
        step = env.step(reply)
        gap = max(gap, _parts_gap(step))
        answer = [step.rewards, step.parts, step.valid, step.stop, step.facts]
        lines.append(json.dumps([turn, actor, prompt, reply, answer], sort_keys=True).encode())
        observation = step.observation
    lines.append(json.dumps(env.state(), sort_keys=True).encode())
    return lines[:-1] if observation is not None else lines, gap


def _parts_gap(step: Step) -> float:
    gaps = [abs(sum(parts.values()) - step.rewards[role]) for role, parts in step.parts.items()]
    return max(gaps, default=0.0)


def _task(scenario: str, seed: int) -> Task:
    return Task(id=f"exact-{scenario}-{seed}", env="office", split=Split.DEV, seed=seed, payload={"scenario": scenario})


def digest(scenario: str, seed: int, turns: int, profile: str = "compact") -> str:
    """sha256 of one transcript."""
    env = maker(profile)()
    env.reset(_task(scenario, seed))
    return hashlib.sha256(b"\n".join(transcript(env, TEACHER, seed, turns)[0])).hexdigest()


def digest_command(scenario: str, seed: int, turns: int, profile: str = "compact") -> list[str]:
    """A command that prints `digest(...)` from a fresh process."""
    program = "from onthejob.checkout import from_checks; from_checks('office.gates.exact', what='a digest').main()"
    return [sys.executable, "-c", program, scenario, str(seed), str(turns), profile]


def check_processes(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> Check:
    """Run `command` once per hash seed; what it prints must not depend on Python's randomised string hashes.

    Raises:
        ContractError: the command failed or printed nothing.
    """
    printed = []
    for hash_seed in HASH_SEEDS:
        held = {**(os.environ if environment is None else environment), "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(list(command), capture_output=True, text=True, timeout=600, check=False, env=held)
        if done.returncode or not done.stdout.strip():
            what = f"{' '.join(command)} ended with {done.returncode} and printed no digest"
            raise ContractError(f"{what}: {done.stderr.strip()[-400:]}")
        printed.append(done.stdout.strip())
    held = len(set(printed)) == 1
    detail = printed[0][:12] if held else " != ".join(text[:12] for text in printed)
    return Check(what="equal bytes in processes with different hash seeds", held=held, detail=detail)


def main() -> None:
    """Print the digest that the arguments of the process ask for."""
    print(digest(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]))
