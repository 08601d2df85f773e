"""Run by test_train: kills a training process at random moments, resumes it, and compares with a quiet run.

    python crash_loop.py FOLDER KILLS branch|episodes

Everything that a run carries from one iteration to the next is in use: both libraries and their refreshing, stand-ins and their
habits, the reference of a KL term, the best evaluation, the pool's statistics, worker processes.

The parent only imports and forks, so that a child starts in milliseconds and KILLS can be large.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from onthejob.keys import keyed_uniform
from onthejob.learn.learner import Learner, LearnerConfig
from onthejob.learn.lora import LoraSpec, attach
from onthejob.learn.loss import LossConfig
from onthejob.loop import train
from onthejob.models.chat import ChatEncoder
from onthejob.models.sampler import Sampler
from onthejob.models.scripted import ScriptedPolicy
from onthejob.record.store import Run
from onthejob.rollout.branch import BranchConfig
from onthejob.rollout.collect import CollectConfig
from onthejob.rollout.pool import TaskPool
from onthejob.testing import ToyWorkplace, heuristic_reply, teach, tiny_model, toy_examples, toy_tasks
from onthejob.train import Setup, TrainConfig
from onthejob.types import Adapter, Branch, Observation, Sampling

ROLES = ("maker", "seller")
CONFIGS = {
    "branch": TrainConfig(
        iterations=6,
        collect=CollectConfig(episodes=3, segment_turns=4, partner_share=0.3),
        branch=BranchConfig(group_size=4, turns=4, worlds=2, continuation="both"),
        sampling=Sampling(max_new_tokens=3),
        workers=2,
        library_tasks=2,
        library_share=0.5,
        library_refresh=1,
        scale_states=6,
        eval_every=2,
    ),
    "episodes": TrainConfig(
        iterations=6,
        grouping="episodes",
        collect=CollectConfig(episodes=2),
        branch=BranchConfig(group_size=4),
        sampling=Sampling(max_new_tokens=3),
        workers=2,
        prefer_spread=True,
        eval_every=2,
    ),
}


class Imitated(ToyWorkplace):
    """Branches are worth more by the rates of the stand-ins, so that no rate can be lost unnoticed."""

    def __init__(self) -> None:
        super().__init__()
        self._rates: Mapping[str, Mapping[str, float]] = {}

    def habits(self, replies: Sequence[str]) -> dict[str, tuple[float, float]]:
        return {word: (float(replies.count(word)), float(len(replies))) for word in sorted(set(replies))}

    def continue_with(self, stand_ins: Mapping[str, Mapping[str, float]]) -> None:
        self._rates = stand_ins

    def stand_ins(self, rates: Mapping[str, Mapping[str, float]]) -> dict[str, Callable[[Observation, int], str]]:
        return {actor: lambda observation, _: observation.view["legal"][0] for actor in rates}

    def branch(self, reply: str, *, world: int, turns: int) -> Branch:
        played = super().branch(reply, world=world, turns=turns)
        return replace(played, outcome=played.outcome + sum(rate for table in self._rates.values() for rate in table.values()))


def score(iteration: int, adapters: Mapping[str, Adapter]) -> dict[str, float]:
    """A number that rises and falls with the weights."""
    return {"score": float(int(adapters["maker"].digest[:8], 16))}


def prepare(folder: Path) -> None:
    """Teach the format once; every child starts from these weights."""
    tiny = tiny_model(seed=0)
    teach(tiny, toy_examples(96), steps=40, batch=16)
    torch.save(tiny.model.state_dict(), folder / "taught.pt")


def work(folder: Path, name: str, grouping: str) -> None:
    """One attempt: create the run or continue it."""
    tiny = tiny_model(seed=0)
    tiny.model.load_state_dict(torch.load(folder / "taught.pt", weights_only=True))
    model = attach(tiny.model, ROLES, LoraSpec(rank=4, alpha=8), seed=1)
    path = folder / name
    heuristic = ScriptedPolicy(heuristic_reply, version="heuristic")
    with Run.open(path) if path.exists() else Run.create(folder, config={"seed": 0}, name=name) as run:
        setup = Setup(
            config=CONFIGS[grouping],
            make_env=Imitated,
            pool=TaskPool(
                [*toy_tasks(8), *toy_tasks(8, days=3, first_seed=200_000)], seed=0, prefer_spread=grouping == "episodes"
            ),
            learner=Learner(model, ROLES, config=LearnerConfig(lr=3e-3, loss=LossConfig(beta=0.05)), seed=0),
            sampler=Sampler(model, ChatEncoder(tiny.tokenizer)),
            encoder=ChatEncoder(tiny.tokenizer),
            run=run,
            partners=dict.fromkeys(ROLES, heuristic),
            roles=ROLES,
            evaluate=score,
        )
        train(setup, resume=True)


def in_child(action: Callable[[], None]) -> int:
    """Fork; the child runs `action` and exits."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return pid


def finish(pid: int) -> None:
    status = os.waitpid(pid, 0)[1]
    if status != 0:
        raise SystemExit(f"a child failed with status {status}")


def contents(folder: Path, name: str) -> dict[str, str]:
    """Digest of the record, and sha256 of every adapter and checkpoint file."""
    files = sorted(path for part in ("adapters", "checkpoints") for path in (folder / name / part).rglob("*") if path.is_file())
    found = {str(path.relative_to(folder / name)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    with Run.open(folder / name, readonly=True) as run:
        found["record"] = run.digest()
    return found


def main() -> None:
    folder, kills, grouping = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    finish(in_child(lambda: prepare(folder)))
    started = time.monotonic()
    finish(in_child(lambda: work(folder, "quiet", grouping)))
    duration = time.monotonic() - started
    expected = contents(folder, "quiet")
    killed = finished = attempt = 0
    while killed < kills or finished == 0:
        name = f"killed{finished:02d}"
        pid = in_child(lambda name=name: work(folder, name, grouping))
        attempt += 1
        if killed < kills:
            time.sleep(duration * keyed_uniform(7, "moment", attempt))
            os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            if os.WIFSIGNALED(status):
                killed += 1
                continue
            if status != 0:
                raise SystemExit(f"a resumed child failed with status {status}")
        else:
            finish(pid)
        found = contents(folder, name)
        different = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
        if different:
            raise SystemExit(f"{name} differs after {killed} kills: {different[:5]}")
        finished += 1
    print(f"equal: {finished} runs, {killed} kills, {attempt} attempts, {duration:.1f} s uninterrupted")


if __name__ == "__main__":
    main()
