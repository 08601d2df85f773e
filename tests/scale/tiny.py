"""Tiny collections of every kind as one digest each; what a driver, and so a worker of a test, can import by name.

    python tiny.py JSON      {"backend": ..., "workers": ..., "of": [...], "address": ..., "kill": ...} -> a line of JSON

Run as a program it is a driver on its own: it prints the digests, and what became of its workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from onthejob.claw import Claw
from onthejob.commands.workplace import Workplace
from onthejob.envs.claw.env import ClawConfig
from onthejob.envs.claw.policies import Gold
from onthejob.envs.claw.prompt import DONE
from onthejob.envs.claw.protocol import ProtocolConfig
from onthejob.envs.described import players_of
from onthejob.keys import keyed_uniform
from onthejob.models.chat import ChatEncoder
from onthejob.office import Office
from onthejob.plugins import resolve
from onthejob.rollout.branch import BranchConfig, BranchScorer, Scales
from onthejob.rollout.collect import CollectConfig, Collection, Collector
from onthejob.rollout.collect_episodes import collect_episodes
from onthejob.rollout.library import SnapshotLibrary
from onthejob.scale import Runtime
from onthejob.testing import ScriptedTokens, tiny_tokenizer
from onthejob.types import Observation, Sampling, Split

EXAMPLE = Path(__file__).parent.parent.parent / "examples"


def office(runtime: Runtime | None, workers: int, *, rounds: int = 4) -> str:
    """Branches of two roles of the office, among its partners."""
    place = Workplace(ref="office", env=Office(days=2))
    tasks = place.tasks(Split.TRAIN)[:2]
    random = players_of(place.env, tasks)["random"]
    tokenizer, roles = tiny_tokenizer(), ("sales", "hr")
    policies = {role: ScriptedTokens(tokenizer, random, version=f"{role}@0001") for role in roles}
    branch = BranchConfig(group_size=4, turns=12, worlds=2)
    with place.opened() as make_env, BranchScorer(make_env, workers=workers, runtime=runtime) as scorer:
        collector = Collector(
            make_env, scorer, config=CollectConfig(episodes=2, segment_turns=rounds), branch=branch,
            scales=dict.fromkeys(roles, Scales()), trained=roles, partners=place.partners(), encoder=ChatEncoder(tokenizer),
        )  # fmt: skip
        return digest(collector.collect(tasks, policies, Sampling(), library=SnapshotLibrary(), seed=5, prefix="it0001"))


def claw(runtime: Runtime | None, workers: int) -> str:
    """Episodes of the claw in real sandboxes; some work, some give up."""
    place = Workplace(ref="claw", env=Claw(count=64, rules=ClawConfig(protocol=ProtocolConfig(max_turns=4))))
    tasks = place.tasks(Split.TRAIN)[:3]
    gold = Gold([dict_task for dict_task in tasks])

    def reply(observation: Observation, seed: int) -> str:
        return gold(observation, seed) if keyed_uniform(seed, "works") < 0.8 else DONE

    return _episodes(place, tasks, reply, runtime, workers)


def own(runtime: Runtime | None, workers: int) -> str:
    """Episodes of an environment that is named by its file."""
    ref = f"{EXAMPLE / 'guess.py'}:Guess"
    place = Workplace(ref=ref, env=resolve(ref)())
    return _episodes(place, place.tasks(Split.TRAIN)[:4], lambda observation, seed: str(1 + seed % 9), runtime, workers)


OF: dict[str, Callable[[Runtime | None, int], str]] = {"office": office, "claw": claw, "own": own}


def _episodes(place: Workplace, tasks, reply, runtime: Runtime | None, workers: int) -> str:
    tokenizer, (actor,) = tiny_tokenizer(), place.roles
    with place.opened() as make_env:
        threads = max(1, workers)
        if runtime is not None:
            make_env, threads = runtime.environments(make_env), max(threads, runtime.threads)
        return digest(
            collect_episodes(
                make_env, tasks, {actor: ScriptedTokens(tokenizer, reply, version="agent@0001")}, Sampling(), group_size=3,
                trained=[actor], encoder=ChatEncoder(tokenizer), max_turns=8, seed=3, prefix="it0001", workers=threads,
            )  # fmt: skip
        )


def digest(collection: Collection) -> str:
    """Of everything but clocks; refuses a collection in which nothing happened."""
    assert collection.groups, collection.failure
    assert not collection.failure
    assert len({row.ret for group in collection.groups for row in group.trajectories}) > 1, "replies that earn the same say nothing"
    played = replace(collection, episodes=tuple(replace(episode, seconds=0.0) for episode in collection.episodes))
    return hashlib.sha256(repr(played).encode("utf-8", "surrogatepass")).hexdigest()[:16]
