"""The loop on a tiny real model: it learns, it is reproducible, and it survives being killed."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from onthejob import loop
from onthejob.errors import ConfigError, RecordError, TrainingError
from onthejob.learn.adapter_files import read_adapter
from onthejob.learn.advantage import AdvantageConfig
from onthejob.learn.learner import Learner, LearnerConfig
from onthejob.learn.lora import LoraSpec, activate, attach, parameters, state
from onthejob.learn.loss import LossConfig
from onthejob.models.chat import ChatEncoder
from onthejob.models.sampler import Sampler
from onthejob.models.scripted import ScriptedPolicy
from onthejob.record.store import Run
from onthejob.rollout.branch import BranchConfig
from onthejob.rollout.collect import CollectConfig
from onthejob.rollout.library import SnapshotLibrary
from onthejob.rollout.origin import read_origin
from onthejob.rollout.pool import TaskPool
from onthejob.rollout.stand_ins import Rates, StandIns
from onthejob.stack import find_adapters
from onthejob.testing import (
    Tiny,
    ToyShell,
    ToyWorkplace,
    heuristic_reply,
    shell_tasks,
    teach,
    tiny_model,
    toy_examples,
    toy_tasks,
)
from onthejob.train import IterationReport, Setup, TrainConfig, TrainResult, replay_update
from onthejob.types import Adapter, Observation, Sampling, Step

HEURISTIC = ScriptedPolicy(heuristic_reply, version="heuristic")
PARTNERS = {"maker": HEURISTIC, "seller": HEURISTIC}
ROLES = ("maker", "seller")
SMALL = TrainConfig(
    iterations=3,
    collect=CollectConfig(episodes=2, segment_turns=4),
    branch=BranchConfig(group_size=4, turns=4, worlds=2),
    sampling=Sampling(max_new_tokens=3),
    library_tasks=2,
    library_share=0.5,
    library_per_day=2,
    scale_states=6,
)


@pytest.fixture(scope="module")
def taught() -> Tiny:
    """A tiny model after a warm start from a stochastic teacher: 60 % of its replies are random legal ones."""
    tiny = tiny_model(seed=0)
    teach(tiny, toy_examples(256, expert_share=0.4), steps=100, batch=24)
    return tiny


@dataclass
class Rig:
    """Everything that one training run needs, on its own copy of the model."""

    learner: Learner
    sampler: Sampler
    run: Run
    model: Any

    def train(self, config: TrainConfig = SMALL, *, resume: bool = False, **changes: Any) -> TrainResult:
        arguments: dict[str, Any] = {
            "make_env": ToyWorkplace,
            "pool": TaskPool(toy_tasks(8), seed=0),
            "learner": self.learner,
            "sampler": self.sampler,
            "encoder": self.sampler.chat,
            "run": self.run,
            "partners": PARTNERS,
            "roles": ROLES,
        }
        return loop.train(Setup(config=config, **(arguments | changes)), resume=resume)


def rig(tiny: Tiny, run: Run, *, lr: float = 3e-3, roles: tuple[str, ...] = ROLES, loss: LossConfig | None = None) -> Rig:
    fresh = tiny_model(seed=0).model
    fresh.load_state_dict(tiny.model.state_dict())
    model = attach(fresh, roles, LoraSpec(rank=4, alpha=8), seed=1)
    config = LearnerConfig(lr=lr, loss=loss or LossConfig())
    return Rig(
        learner=Learner(model, roles, config=config, seed=0),
        sampler=Sampler(model, ChatEncoder(tiny.tokenizer)),
        run=run,
        model=model,
    )


@pytest.fixture
def make_rig(taught: Tiny, tmp_path: Path):
    runs: list[Run] = []

    def make(name: str = "run", **options: Any) -> Rig:
        path = tmp_path / name
        run = Run.open(path) if path.exists() else Run.create(tmp_path, config={"seed": 0}, name=name)
        runs.append(run)
        return rig(taught, run, **options)

    yield make
    for run in runs:
        run.close()


MakeRig = Callable[..., Rig]


def test_an_iteration_is_recorded_completely(make_rig: MakeRig):
    reports: list[IterationReport] = []
    made = make_rig()
    result = made.train(on_progress=reports.append)
    run = made.run
    assert result.stop == "iterations"
    assert result.exit_code == 0
    assert run.iterations() == [0, 1, 2, 3]
    assert [report.iteration for report in reports] == [1, 2, 3]
    assert reports[-1].eta_s == 0.0
    assert reports[0].tokens_per_second > 0
    groups = list(run.read_groups(1))
    assert {group.actor for group in groups} <= set(ROLES)
    assert len(groups) >= 4
    recorded = run.read_advantages(1)
    assert any(values is not None for values in recorded.values())
    names = {metric.name for metric in run.read_metrics("train/maker", iteration=1)}
    assert {"reward", "reward_std", "frac_reward_zero_std", "valid_rate", "kl", "delta_l2", "published"} <= names
    assert len(list(run.read_episodes(1))) == 2
    for role, adapter in result.adapters.items():
        assert read_adapter(adapter.path).digest == adapter.digest
        versions = [each.version for each in run.adapters(role)]
        assert versions[0] == 0
        assert len(versions) >= 2
        parents = [each.parent for each in run.adapters(role)]
        assert parents == [None, *(each.name for each in run.adapters(role)[:-1])]


def test_advantages_are_estimated_once_and_what_is_trained_on_is_recorded(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch):
    made, estimated = make_rig(), Counter[str]()
    trained: dict[str, Any] = {}

    class Watched(Learner):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            pack = self.collate

            def collate(groups: Any, advantages_G: Any) -> Any:
                trained.update((group.key, values) for group, values in zip(groups, advantages_G, strict=True))
                return pack(groups, advantages_G)

            self.collate = collate

    def counted(group: Any, config: Any) -> Any:
        estimated[group.key] += 1
        return once(group, config)

    once = loop.estimate
    monkeypatch.setattr(loop, "estimate", counted)
    made.learner = Watched(made.model, ROLES, config=LearnerConfig(lr=3e-3), seed=0)
    made.train(replace(SMALL, iterations=2, advantage=AdvantageConfig(scale="none")))
    recorded = made.run.read_advantages()
    assert set(estimated.values()) == {1}
    assert estimated.keys() == recorded.keys() >= trained.keys()
    for key, values in trained.items():
        assert (values is None) == (recorded[key] is None)
        assert values is None or values.tolist() == recorded[key].tolist()
    usable = [group for group in made.run.read_groups() if all(one.valid for one in group.trajectories)]
    returns = [np.array([one.ret for one in group.trajectories]) for group in usable if recorded[group.key] is not None]
    told = [recorded[group.key] for group in usable if recorded[group.key] is not None]
    assert told
    for values, given in zip(told, returns, strict=True):
        assert values == pytest.approx(given - given.mean()), "as the loop's configuration says"


def test_equal_runs_are_equal_and_seeds_matter(make_rig: MakeRig):
    first, second, other = make_rig("a"), make_rig("b"), make_rig("c")
    first.train()
    second.train()
    other.train(replace(SMALL, seed=5))
    assert first.run.digest() == second.run.digest() != other.run.digest()


def test_a_stopped_run_continues_bit_for_bit(make_rig: MakeRig):
    whole = make_rig("whole")
    whole.train()
    part = make_rig("part")
    part.train(replace(SMALL, iterations=1))
    part.run.close()
    again = make_rig("part")
    again.train(resume=True)
    assert again.run.digest() == whole.run.digest()
    for role in ROLES:
        mine, theirs = state(again.model, role), state(whole.model, role)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_no_iteration_begins_when_the_time_is_up_and_resuming_goes_on(make_rig: MakeRig):
    whole = make_rig("whole")
    whole.train(replace(SMALL, iterations=2))
    part = make_rig("part")
    brief = replace(SMALL, iterations=2, minutes=1e-6)
    reports: list[IterationReport] = []
    result = part.train(brief, on_progress=reports.append)
    assert (result.stop, result.exit_code, result.iterations) == ("minutes", 0, 1)
    assert reports[-1].eta_s == 0.0
    part.run.close()
    again = make_rig("part")
    result = again.train(brief, resume=True)
    assert (result.stop, result.iterations) == ("iterations", 2)
    assert again.run.digest() == whole.run.digest()


def test_an_iteration_that_would_end_too_late_does_not_begin(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch):
    """Every look at the clock is a second later, so that every iteration takes a second by it."""
    clock = itertools.count()
    monkeypatch.setattr(
        "onthejob.train.clock.time", SimpleNamespace(monotonic=lambda: float(next(clock)), perf_counter=time.perf_counter)
    )
    reports: list[IterationReport] = []
    result = make_rig("brief").train(replace(SMALL, iterations=30, minutes=0.2), on_progress=reports.append)
    assert (result.stop, result.iterations) == ("minutes", len(reports))
    assert 1 < len(reports) < 12
    # The pace is one second: the last iteration began when at least that was left, and after it less was.
    assert 0.0 <= reports[-1].eta_s <= 2.0


class Imitated(ToyWorkplace):
    """Stand-ins that choose the first legal word; they receive the share of each word among the replies."""

    def habits(self, replies: Sequence[str]) -> dict[str, tuple[float, float]]:
        return {word: (float(replies.count(word)), float(len(replies))) for word in sorted(set(replies))}

    def continue_with(self, stand_ins: Mapping[str, Mapping[str, float]]) -> None:
        """Branches are continued as ever."""

    def stand_ins(self, rates: Mapping[str, Mapping[str, float]]) -> dict[str, Callable[[Observation, int], str]]:
        assert all(0.0 < rate < 1.0 for table in rates.values() for rate in table.values())
        return {actor: lambda observation, _: observation.view["legal"][0] for actor in rates}


def test_stand_ins_fill_the_library_with_what_the_policies_would_reach(make_rig: MakeRig):
    config = replace(
        SMALL,
        branch=replace(SMALL.branch, continuation="stand_ins"),
        collect=replace(SMALL.collect, fresh_share=1.0, keep_share=0.0),
        library_tasks=0,
        scale_states=0,
        library_per_day=50,
    )

    def kept(made: Rig) -> list[float]:
        return [metric.value for metric in made.run.read_metrics("loop", name="library")]

    without, refreshed, part = make_rig("without"), make_rig("refreshed"), make_rig("part")
    without.train(config, make_env=Imitated)
    assert kept(without) == [0, 0, 0, 0]
    config = replace(config, library_refresh=2, library_share=1.0)
    refreshed.train(config, make_env=Imitated)
    # Two episodes of five days of two turns, of which the last one leaves no state to start from.
    assert kept(refreshed) == [0, 18, 36, 54]
    part.train(replace(config, iterations=2), make_env=Imitated)
    part.run.close()
    again = make_rig("part")
    again.train(config, make_env=Imitated, resume=True)
    assert again.run.digest() == refreshed.run.digest()


def test_the_policies_are_imitated_from_the_first_iteration_on(make_rig: MakeRig):
    """How they choose is asked for in the states in which the scales are measured, before anything is played."""

    def imitated(made: Rig) -> Rates:
        (first, *_) = made.run.read_episodes(1, turns=False)
        origin = read_origin(first.facts, first.name)
        assert origin is not None
        return origin.stand_ins

    config = replace(SMALL, iterations=1, branch=replace(SMALL.branch, continuation="stand_ins"), library_share=1.0)
    config = replace(config, library_refresh=1, library_per_day=50)
    asked, unasked = make_rig("asked"), make_rig("unasked")
    asked.train(config, make_env=Imitated)
    unasked.train(replace(config, scale_states=0), make_env=Imitated)
    assert sorted(imitated(asked)) == sorted(ROLES)
    # Six states, shared among two roles, of four replies each.
    counted = StandIns.from_state(json.loads(_file(asked.run, 0, "loop.json"))["stand_ins"])
    assert imitated(asked) == counted.rates()
    chosen = [sum(chosen for chosen, _ in labels.values()) for labels in counted.state().values()]
    assert sum(chosen) == 24
    assert not imitated(unasked)
    # Who is imitated has also played a task from its beginning to its end, before the first iteration starts from there.
    sizes = [SnapshotLibrary.from_bytes(_file(made.run, 0, "library.bin")) for made in (asked, unasked)]
    assert len(sizes[0]) > len(sizes[1])


def _file(run: Run, iteration: int, name: str) -> bytes:
    found = run.read_checkpoint(iteration)[name]
    assert isinstance(found, bytes)
    return found


def test_a_damaged_checkpoint_falls_back_to_the_one_before(make_rig: MakeRig):
    whole = make_rig("whole")
    whole.train()
    part = make_rig("part")
    part.train(replace(SMALL, iterations=2))
    (part.run.path / "checkpoints" / "000002" / "loop.json").write_text("{}")
    part.run.close()
    again = make_rig("part")
    again.train(resume=True)
    assert again.run.digest() == whole.run.digest()


def test_a_run_from_before_the_partners_had_a_library_of_their_own_continues(make_rig: MakeRig):
    """Its segments among partners continue to start from the only library that it has."""
    config = replace(SMALL, collect=replace(SMALL.collect, partner_share=1.0, fresh_share=0.0))
    old = make_rig("old")
    old.train(replace(config, iterations=2))
    files = old.run.read_checkpoint(2)
    assert "partner-library.bin" in files
    old.run.close()
    folder = old.run.path / "checkpoints" / "000002"
    (folder / "partner-library.bin").unlink()
    # The manifest must not name it either: a file that is named and missing is a damaged checkpoint.
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"]["partner-library.bin"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    again = make_rig("old")
    again.train(config, resume=True)
    assert again.run.iterations() == [0, 1, 2, 3]
    library = files["library.bin"]
    assert isinstance(library, bytes)
    held = {entry.snapshot for entry in SnapshotLibrary.from_bytes(library).entries()}
    origins = [read_origin(episode.facts, "an episode") for episode in again.run.read_episodes(3)]
    assert origins
    assert all(origin is not None and origin.start in held for origin in origins)


def test_training_one_role_leaves_the_base_and_the_others(make_rig: MakeRig):
    made = make_rig()
    frozen = {name: tensor.clone() for name, tensor in made.model.state_dict().items() if ".maker." not in name}
    made.train(roles=("maker",))
    after = made.model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in frozen.items())
    assert made.run.adapters("seller") == []


def test_lr_zero_changes_nothing(make_rig: MakeRig):
    made = make_rig(lr=0.0)
    before = {role: state(made.model, role) for role in ROLES}
    result = made.train()
    for role in ROLES:
        assert all(torch.equal(before[role][name], tensor) for name, tensor in state(made.model, role).items())
        deltas = made.run.read_metrics(f"train/{role}", name="delta_l2")
        assert deltas
        assert all(metric.value == 0.0 for metric in deltas)
        assert len({adapter.digest for adapter in made.run.adapters(role)}) == 1
    assert result.iterations == 3


def test_a_recorded_update_can_start_from_other_weights_and_be_measured_against_others(make_rig: MakeRig, taught: Tiny):
    made = make_rig()
    made.train()
    recorded = {adapter.version: adapter for adapter in made.run.adapters("maker")}
    first, last = recorded[0], recorded[3]

    def again(**others: Adapter) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        mine = rig(taught, made.run)
        return replay_update(made.run, 1, "maker", learner=mine.learner, advantage=SMALL.advantage, **others), state(
            mine.model, "maker"
        )

    def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(one[name], other[name]) for name in one | other)

    metrics, weights = again()
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-9)
    # Iteration 1 began from version 0 with a fresh optimizer, and was measured against it.
    repeated, repeated_weights = again(init=first, reference=first)
    assert repeated["delta_l2"] == metrics["delta_l2"]
    assert same(repeated_weights, weights)
    assert not same(again(init=last)[1], weights)
    against, against_weights = again(reference=last)
    assert against["kl"] > 1e-6
    assert same(against_weights, weights), "the KL is measured; without beta it trains nothing"


def test_a_dry_run_collects_and_scores_and_updates_nothing(make_rig: MakeRig):
    made = make_rig()
    result = made.train(replace(SMALL, dry_run=True, iterations=1))
    assert {adapter.version for adapter in result.adapters.values()} == {0}
    assert len(list(made.run.read_groups(1))) >= 4
    assert made.run.read_metrics("train/maker", name="delta_l2") == []


def test_replaying_a_recorded_update_gives_the_recorded_adapter(make_rig: MakeRig, taught: Tiny):
    made = make_rig()
    made.train()
    recorded = {adapter.version: adapter for adapter in made.run.adapters("maker")}
    assert {1, 3} <= recorded.keys()
    for iteration in (1, 3):
        other = rig(taught, made.run)
        values = replay_update(made.run, iteration, "maker", learner=other.learner, advantage=SMALL.advantage)
        (metric,) = made.run.read_metrics("train/maker", iteration=iteration, name="delta_l2")
        assert values["delta_l2"] == metric.value > 0
        from onthejob.learn.adapter_files import load_adapter

        mine = state(other.model, "maker")
        load_adapter(other.model, "maker", recorded[iteration])
        theirs = state(other.model, "maker")
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    fresh = rig(taught, made.run)
    with pytest.raises(RecordError, match="no alive group"):
        replay_update(made.run, 99, "maker", learner=fresh.learner, advantage=SMALL.advantage)


def test_the_reference_of_the_kl_term_survives_a_resume(make_rig: MakeRig):
    loss = LossConfig(beta=0.5)
    whole = make_rig("whole", loss=loss)
    whole.train()
    part = make_rig("part", loss=loss)
    part.train(replace(SMALL, iterations=2))
    part.run.close()
    again = make_rig("part", loss=loss)
    again.train(resume=True)
    assert again.run.digest() == whole.run.digest()
    kls = [metric.value for metric in whole.run.read_metrics("train/maker", name="kl")]
    assert kls[0] == pytest.approx(0.0, abs=1e-6)
    assert kls[-1] > 0.0


class Spiking(Learner):
    """Reports a problem in the second update of each role, after having really moved the weights."""

    problem: Mapping[str, Any]

    def update(self, role: str, batches: Any, *, reference: Any = None) -> Any:
        metrics = super().update(role, batches, reference=reference)
        return replace(metrics, **self.problem) if metrics.update == 2 else metrics


@pytest.mark.parametrize(
    ("kind", "problem"), [("kl_spike", {"kl_spike": True}), ("update_skipped", {"skipped": "loss is not finite"})]
)
def test_a_suspicious_update_is_recorded_and_never_published(make_rig: MakeRig, kind: str, problem: Mapping[str, Any]):
    made = make_rig()
    spiking = Spiking(made.model, ROLES, config=LearnerConfig(lr=3e-3), seed=0)
    spiking.problem = problem
    made.learner = spiking
    made.train(replace(SMALL, iterations=2))
    events = made.run.read_events(kind=kind)
    assert [event.payload["role"] for event in events] == [event.payload["kept"].split("@")[0] for event in events]
    assert len(events) >= 1
    for event in events:
        role = event.payload["role"]
        kept = made.run.latest_adapter(role)
        assert kept is not None
        assert kept.name == event.payload["kept"]
        assert kept.version < event.iteration
        assert made.sampler.published.count(kept.name) == 1
        from onthejob.learn.adapter_files import load_adapter
        from onthejob.learn.lora import Snapshot, weight_delta

        now = Snapshot.take(made.model, role)
        load_adapter(made.model, role, kept)
        assert weight_delta(now, Snapshot.take(made.model, role)) == (0.0, 0.0)
        # The refused divergence is remembered: otherwise it would be refused again and again.
        assert len(made.learner.export_state(role)["kls"]) == 2


def test_a_run_without_any_update_is_no_success(make_rig: MakeRig):
    """Real gradients that are not finite, through the whole learner."""

    class Overflowing(Learner):
        def update(self, role: str, batches: Any, *, reference: Any = None) -> Any:
            activate(self.model, role)
            hook = next(iter(parameters(self.model, role).values())).register_hook(lambda gradient: gradient * float("inf"))
            try:
                return super().update(role, batches, reference=reference)
            finally:
                hook.remove()

    made = make_rig()
    made.learner = Overflowing(made.model, ROLES, config=LearnerConfig(lr=3e-3), seed=0)
    with pytest.raises(TrainingError, match=r"none of the updates .* skipped, .* for a non-finite gradient"):
        made.train(replace(SMALL, iterations=2))
    assert made.run.iterations() == [0, 1, 2], "everything is recorded all the same"
    assert {adapter.version for adapter in made.run.adapters()} == {0}


def test_nothing_left_to_learn_is_a_result(make_rig: MakeRig):
    class Flat(ToyWorkplace):
        """Every reply is worth the same."""

        def branch(self, reply: str, *, world: int, turns: int) -> Any:
            branch = super().branch(reply, world=world, turns=turns)
            return replace(branch, outcome=0.0, returns={}, valid=True)

    made = make_rig()
    pool = TaskPool(toy_tasks(4), seed=0, patience=2)
    result = made.train(replace(SMALL, iterations=9, scale_states=0), make_env=Flat, pool=pool)
    assert result.stop == "pool_converged"
    assert result.exit_code == 3
    assert result.iterations == 2
    assert result.ended("flat") == "pool_converged after 2 iterations", "the replies differed, and what they earned did not"


def test_a_collapse_is_no_success(make_rig: MakeRig):
    made = make_rig()
    always_the_same = replace(SMALL, iterations=9, scale_states=0, sampling=replace(SMALL.sampling, temperature=1e-4))
    result = made.train(always_the_same, pool=TaskPool(toy_tasks(4), seed=0, patience=2))
    assert (result.stop, result.collapsed) == ("pool_converged", True)
    assert "by collapse: in the last one all replies of every group were the same" in result.ended("flat")


def test_a_role_whose_replies_no_longer_differ_is_named_once(make_rig: MakeRig, caplog: pytest.LogCaptureFixture):
    made = make_rig()
    always_the_same = replace(SMALL, iterations=5, scale_states=0, sampling=replace(SMALL.sampling, temperature=1e-4))
    made.train(always_the_same, pool=TaskPool(toy_tasks(4), seed=0, patience=99))
    told = [record.getMessage() for record in caplog.records if "learns nothing" in record.getMessage()]
    assert [message.split(":")[0] for message in told] == list(ROLES)
    assert all("in iterations 1 to 3" in message and "--learner.max-kl" in message for message in told)


def test_a_run_that_its_time_ended_says_how_it_goes_on():
    assert (
        TrainResult(stop="minutes", iterations=8, adapters={}).ended("sums")
        == "minutes (--resume sums continues) after 8 iterations"
    )
    assert (
        TrainResult(stop="minutes", iterations=1, adapters={}).ended("sums")
        == "minutes (--resume sums continues) after 1 iteration, too few to learn from: give more --minutes, or fewer "
        "--collect.episodes or a smaller --branch.group-size for cheaper ones"
    )


def test_when_everything_fails_the_run_says_so(make_rig: MakeRig):
    class Dead(ToyWorkplace):
        def step(self, reply: str) -> Step:
            raise RuntimeError("no power")

    made = make_rig()
    with pytest.raises(TrainingError, match="no power"):
        made.train(replace(SMALL, library_tasks=0, scale_states=0), make_env=Dead)
    assert made.run.iterations() == [0]


def test_whole_episodes_train_where_nothing_can_be_forked(make_rig: MakeRig):
    made = make_rig(roles=("agent",))
    config = TrainConfig(
        grouping="episodes",
        iterations=2,
        collect=CollectConfig(episodes=2),
        branch=BranchConfig(group_size=4),
        sampling=SMALL.sampling,
    )
    result = made.train(config, make_env=ToyShell, pool=TaskPool(shell_tasks(4), seed=0), partners={}, roles=("agent",))
    groups = list(made.run.read_groups(1))
    assert {group.facts["source"] for group in groups} == {"episodes"}
    assert any(len(row.turns) > 1 for group in groups for row in group.trajectories)
    assert result.iterations == 2


def test_the_best_iteration_is_chosen_on_dev(make_rig: MakeRig):
    made = make_rig()
    seen: list[Mapping[str, Adapter]] = []

    def evaluate(iteration: int, adapters: Mapping[str, Adapter]) -> Mapping[str, float]:
        seen.append(dict(adapters))
        return {"score": {0: 0.5, 1: 1.0, 2: 5.0, 3: 2.0}[iteration]}

    result = made.train(replace(SMALL, eval_every=1), evaluate=evaluate)
    assert (result.best_iteration, result.best_score) == (2, 5.0)
    assert len(seen) == 4
    assert [metric.value for metric in made.run.read_metrics("eval", name="score")] == [0.5, 1.0, 5.0, 2.0]
    assert [metric.value for metric in made.run.read_metrics("eval", name="best_iteration")] == [0, 1, 2, 2]
    best = find_adapters(made.run.path, at="best")
    assert {role: adapter.digest for role, adapter in best.items()} == {r: a.digest for r, a in seen[2].items()}
    assert {adapter.version for adapter in find_adapters(made.run.path, at="0").values()} == {0}
    with pytest.raises(ConfigError, match="iterations 0 to 3, got '9'"):
        find_adapters(made.run.path, at="9")


def test_an_evaluation_of_other_tasks_chooses_no_best(make_rig: MakeRig, caplog: pytest.LogCaptureFixture):
    made = make_rig()
    failed = {0: 1.0, 1: 0.0, 2: 2.0, 3: 0.0}
    evaluate = lambda iteration, adapters: {"score": float(iteration % 3), "episodes_failed": failed[iteration]}  # noqa: E731
    result = made.train(replace(SMALL, eval_every=1), evaluate=evaluate)
    assert (result.best_iteration, result.best_score) == (1, 1.0)
    assert [metric.value for metric in made.run.read_metrics("eval", name="best_iteration")] == [1, 1, 1]
    assert "iteration 2 cannot become the best: 2 of its evaluation's episodes failed" in caplog.text


def test_a_start_that_training_only_made_worse_stays_the_best(make_rig: MakeRig):
    made = make_rig()
    result = made.train(replace(SMALL, eval_every=2), evaluate=lambda iteration, adapters: {"score": -float(iteration)})
    assert (result.best_iteration, result.best_score) == (0, 0.0)
    assert {adapter.version for adapter in find_adapters(made.run.path, at="best").values()} == {0}


@pytest.mark.parametrize(
    "changes",
    [
        {"iterations": 0},
        {"minutes": -1.0},
        {"minutes": float("nan")},
        {"sampling": Sampling(temperature=0.0)},
        {"sampling": Sampling(temperature=float("nan"))},
        {"library_share": 0.0},
        {"library_tasks": 0},
        {"eval_every": -1},
        {"library_refresh": 2},
    ],
)
def test_bad_options_are_refused(changes: dict[str, Any]):
    with pytest.raises(ConfigError, match=r"must be|Set --"):
        replace(SMALL, **changes)


def test_bad_arguments_are_refused(make_rig: MakeRig):
    made = make_rig()
    with pytest.raises(ConfigError, match="roles"):
        made.train(roles=())
    with pytest.raises(ConfigError, match="evaluate"):
        made.train(replace(SMALL, eval_every=1))
    with pytest.raises(ConfigError, match=r"branch\.turns, branch\.worlds, collect\.segment_turns, .*: no effect where whole"):
        replace(SMALL, grouping="episodes")
    made.train(replace(SMALL, iterations=1))
    with pytest.raises(RecordError, match="resume"):
        made.train()
    with pytest.raises(RecordError, match="same roles"):
        made.train(resume=True, roles=("seller",))


def company_value(made: Rig, adapters: Mapping[str, Adapter], *, episodes: int = 40) -> float:
    from onthejob.models.adapter_policy import AdapterPolicy
    from onthejob.rollout.play import play
    from onthejob.types import Split

    policies = {role: AdapterPolicy(made.sampler, made.sampler.chat, adapter=adapter.name) for role, adapter in adapters.items()}
    tasks = toy_tasks(episodes, split=Split.DEV, first_seed=1)
    envs = [ToyWorkplace() for _ in tasks]
    played = play(envs, tasks, policies, Sampling(max_new_tokens=3), seed=3, encoder=made.sampler.chat, max_turns=99)
    return sum(episode.metrics["company_value"] for episode in played) / episodes


LEARNING = replace(
    SMALL,
    iterations=16,
    collect=CollectConfig(episodes=6, segment_turns=4),
    branch=BranchConfig(group_size=8, turns=4, worlds=4),
    library_tasks=6,
    scale_states=20,
)


@pytest.mark.slow
def test_the_loop_learns_and_without_a_learning_rate_it_does_not(make_rig: MakeRig):
    """Held-out company value of whole episodes, both seats learned; 40 seeds, the same for every row."""
    made = make_rig()
    result = made.train(LEARNING)
    newest = result.adapters
    after = company_value(made, newest)
    start = {role: made.run.adapters(role)[0] for role in ROLES}
    for adapter in start.values():
        made.sampler.publish(adapter, keep=True)
    before = company_value(made, start)
    assert after > before + 200, (before, after)
    still = make_rig("still", lr=0.0)
    frozen = still.train(replace(LEARNING, iterations=2))
    assert company_value(still, frozen.adapters) == before


CRASHING = Path(__file__).parent / "crash_loop.py"


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("grouping", ["branch", "episodes"])
def test_a_run_killed_at_random_moments_equals_an_uninterrupted_one(
    grouping: str, tmp_path: Path, counts: Callable[[int, int], int]
):
    """SIGKILL, resume, again and again; the record's digest and every adapter's bytes are those of one quiet run."""
    kills = counts(3, 20)
    done = subprocess.run(
        [sys.executable, str(CRASHING), str(tmp_path), str(kills), grouping],
        capture_output=True,
        text=True,
        timeout=120 + 60 * kills,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": "random"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal" in done.stdout
