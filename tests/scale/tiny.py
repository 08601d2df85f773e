"""Tiny collections of every kind, and a whole run, as one digest each."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from onthejob.claw import Claw
from onthejob.commands.named_env import NamedEnv
from onthejob.envs.claw.agent_messages import DONE
from onthejob.envs.claw.env import ClawConfig
from onthejob.envs.claw.policies import Gold
from onthejob.envs.claw.protocol import ProtocolConfig
from onthejob.envs.described import players_of
from onthejob.keys import keyed_uniform
from onthejob.models.chat import ChatEncoder
from onthejob.office import Office
from onthejob.plugins import resolve
from onthejob.record import Run
from onthejob.rollout.branch import BranchConfig, BranchScorer, Scales
from onthejob.rollout.collect import CollectConfig, Collection, Collector
from onthejob.rollout.collect_episodes import collect_episodes
from onthejob.rollout.library import SnapshotLibrary
from onthejob.scale import Runtime
from onthejob.testing import ScriptedTokens, tiny_tokenizer
from onthejob.types import Observation, Sampling, Split

EXAMPLE = Path(__file__).parent.parent.parent / "examples"


def office(runtime: Runtime | None, workers: int, *, long: bool = False) -> str:
    """Branches of two roles of the office, among its partners."""
    place = NamedEnv(ref="office", env=Office(days=12 if long else 2))
    tasks = place.tasks(Split.TRAIN)[:2]
    random = players_of(place.env, tasks)["random"]
    tokenizer, roles = tiny_tokenizer(), ("sales", "hr")
    policies = {role: ScriptedTokens(tokenizer, random, version=f"{role}@0001") for role in roles}
    branch = BranchConfig(group_size=4, turns=140 if long else 12, worlds=4 if long else 2)
    with place.opened() as make_env, BranchScorer(make_env, workers=workers, runtime=runtime) as scorer:
        collector = Collector(
            make_env, scorer, config=CollectConfig(episodes=2, segment_turns=60 if long else 4), branch=branch,
            scales=dict.fromkeys(roles, Scales()), trained=roles, partners=place.partners(), encoder=ChatEncoder(tokenizer),
        )  # fmt: skip
        return digest(collector.collect(tasks, policies, Sampling(), library=SnapshotLibrary(), seed=5, prefix="it0001"))


def claw(runtime: Runtime | None, workers: int, *, long: bool = False) -> str:
    """Episodes of the claw in real sandboxes; some work, some give up."""
    place = NamedEnv(ref="claw", env=Claw(count=64, rules=ClawConfig(protocol=ProtocolConfig(max_turns=4))))
    tasks = place.tasks(Split.TRAIN)[: 8 if long else 3]
    gold = Gold(tasks)

    def reply(observation: Observation, seed: int) -> str:
        return gold(observation, seed) if keyed_uniform(seed, "works") < 0.8 else DONE

    return _episodes(place, tasks, reply, runtime, workers)


def own(runtime: Runtime | None, workers: int, *, long: bool = False) -> str:
    """Episodes of an environment that is named by its file."""
    ref = f"{EXAMPLE / 'guess.py'}:Guess"
    place = NamedEnv(ref=ref, env=resolve(ref)())
    return _episodes(
        place, place.tasks(Split.TRAIN)[: 40 if long else 4], lambda observation, seed: str(1 + seed % 9), runtime, workers
    )


def loop(
    runtime: Runtime | None, workers: int, *, long: bool = False, learners: int = 0, samplers: int = 0, folder: str = ""
) -> str:
    """A whole run of a tiny real model: collected, scored, trained, published and recorded.

    With learners and samplers of `runtime`, if there are any. A run that is in `folder` already is continued.
    """
    import torch

    from onthejob.learn.learner import LearnerConfig, LocalLearner
    from onthejob.learn.lora import LoraSpec, attach
    from onthejob.learn.loss import LossConfig
    from onthejob.loop import train
    from onthejob.models.engines import is_batch_invariant
    from onthejob.models.sampler import LocalSampler
    from onthejob.models.scripted import ScriptedPolicy
    from onthejob.rollout.pool import TaskPool
    from onthejob.scale.base_spec import BaseSpec
    from onthejob.scale.crew_learner import CrewLearner
    from onthejob.scale.crew_sampler import CrewSampler
    from onthejob.scale.sampler_job import SamplerSpec
    from onthejob.testing import ToyWorkplace, heuristic_reply, teach, tiny_model, toy_examples, toy_tasks
    from onthejob.train import Setup, TrainConfig

    tiny, roles = tiny_model(seed=0), ("maker", "seller")
    teach(tiny, toy_examples(256, expert_share=0.4), steps=60, batch=24)
    lora = LoraSpec(rank=4, alpha=8)
    config = TrainConfig(
        iterations=2, collect=CollectConfig(episodes=2, segment_turns=4), branch=BranchConfig(group_size=4, turns=4, worlds=2),
        sampling=Sampling(max_new_tokens=3), library_tasks=2, library_share=0.5, library_per_day=2, scale_states=6,
        workers=workers,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as made, opened_run(Path(folder or made)) as run:
        base = Path(folder or made) / "base"
        tiny.model.save_pretrained(base)
        tiny.tokenizer.save_pretrained(base)
        model = attach(tiny.model, roles, lora, seed=1)
        sampler: Any = LocalSampler(model, ChatEncoder(tiny.tokenizer))
        # Two epochs with a KL term: everything that an update may need travels.
        learner: Any = LocalLearner(
            model, roles, config=LearnerConfig(lr=3e-3, epochs=2, max_tokens=512, loss=LossConfig(beta=0.01)), seed=0
        )
        spec = BaseSpec(model=str(base), dtype="float32", threads=torch.get_num_threads())
        if samplers:
            assert runtime is not None
            assert is_batch_invariant(model)
            of_sampler = SamplerSpec(base=spec, base_digest="", arguments=())
            sampler = CrewSampler(runtime, samplers, sampler.chat, of_sampler)
        if learners:
            assert runtime is not None
            learner = CrewLearner(learner, runtime.crew("learner", learners, facts=spec.facts), base=spec, lora=lora)
        setup = Setup(
            config=config, make_env=ToyWorkplace, pool=TaskPool(toy_tasks(8), seed=0), sampler=sampler, encoder=sampler.chat,
            learner=learner, run=run, roles=roles, runtime=runtime,
            partners=dict.fromkeys(roles, ScriptedPolicy(heuristic_reply, version="heuristic")),
        )  # fmt: skip
        result = train(setup, resume=run.last_iteration() is not None)
        assert all(adapter.version == 2 for adapter in result.adapters.values()), "both roles were trained twice"
        return run.digest()[:16]


def opened_run(folder: Path) -> Run:
    """The run `tiny` of a folder, new or as it was left."""
    if (folder / "tiny").is_dir():
        return Run.open(folder / "tiny")
    return Run.create(folder, config={"seed": 0}, name="tiny")


OF: dict[str, Callable[..., str]] = {"office": office, "claw": claw, "own": own, "loop": loop}


def _episodes(place: NamedEnv, tasks: Any, reply: Any, runtime: Runtime | None, workers: int) -> str:
    tokenizer, (actor,) = tiny_tokenizer(), place.roles
    with place.opened() as make_env:
        threads = max(1, workers)
        if runtime is not None:
            make_env, threads = runtime.environments(make_env), max(threads, runtime.threads)
        found = collect_episodes(
            make_env, tasks, {actor: ScriptedTokens(tokenizer, reply, version="agent@0001")}, Sampling(), group_size=3,
            trained=[actor], encoder=ChatEncoder(tokenizer), max_turns=8, seed=3, prefix="it0001", workers=threads,
        )  # fmt: skip
        return digest(found)


def digest(collection: Collection) -> str:
    """Of everything but clocks; refuses a collection in which nothing happened."""
    assert collection.groups, collection.failure
    assert not collection.failure
    assert len({row.ret for group in collection.groups for row in group.trajectories}) > 1, (
        "replies that earn the same say nothing"
    )
    played = replace(collection, episodes=tuple(replace(episode, seconds=0.0) for episode in collection.episodes))
    return hashlib.sha256(repr(played).encode("utf-8", "surrogatepass")).hexdigest()[:16]
