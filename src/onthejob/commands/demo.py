"""`onthejob demo`: one role of the office learns its job by practice, in minutes on a laptop, and the command says what changed.

The role starts from an adapter that imitated a few decisions of a player who errs in half of its turns. GRPO practises on what
its replies earn until its next turn. Held-out decisions are judged before, during and after; the paired interval of their
difference is the result. Nothing is selected by it: the last adapter is the one that counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from onthejob.commands.collect_office import CollectOffice
from onthejob.commands.demo_judge import LEAST, Judge, curve_line, progress_line
from onthejob.commands.demo_result import Result, finish, write
from onthejob.commands.outputs import check_writable
from onthejob.commands.player_specs import ModelOptions, load_model
from onthejob.commands.runs import RUNS
from onthejob.commands.terminal import Output, Terminal, jsonable
from onthejob.commands.warm_start import Sft
from onthejob.envs.office.tasks import office_tasks
from onthejob.errors import ConfigError, TrainingError
from onthejob.learn.advantage import AdvantageConfig
from onthejob.learn.learner import LearnerConfig
from onthejob.learn.lora import LoraSpec
from onthejob.learn.loss import LossConfig
from onthejob.learn.sft import SftConfig
from onthejob.office import make_office, scenario_of
from onthejob.office_players import team
from onthejob.rollout.branch import BranchConfig
from onthejob.rollout.collect import CollectConfig
from onthejob.train import TrainConfig
from onthejob.types import Adapter, Split

if TYPE_CHECKING:
    from onthejob.learn.learner import Learner
    from onthejob.record import Run
    from onthejob.stack import Stack

ROLE = "sales"
"""Its decisions pay or cost within half a day, so that minutes suffice to learn from them and to measure what was learned."""
HORIZON = 7
"""Turns after which a decision is judged: half a day, until about the role's next turn."""
ERRORS = 0.5
"""Share of random actions of the player whom the start imitates."""
WARM_START = SftConfig(lr=2e-3, batch_tokens=1024, warmup=6)
WARM_DECISIONS, WARM_SHARE = 90, 0.4
"""Imitated decisions, and the share of the time that they may take where no start is kept (recipes/demo_start.sh makes that)."""
LEARNER = LearnerConfig(
    lr=7e-4,
    warmup=1,
    betas=(0.5, 0.999),
    loss=LossConfig(loss="expected"),
)
ADVANTAGE = AdvantageConfig(scale="none", bound=3.0, shrink=True, invalid_gap=0.5, invalid_ceiling=-1.0)
"""Both as in recipes/office.toml, with a higher rate for few updates."""
COMPARING = 0.25
"""Share of the time that is kept for the last comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """Let the sales agent of the office practise for some minutes, and show on held-out decisions what that changed."""

    minutes: float = 6.0
    """Time limit of the whole command, in minutes. Three quarters of it go to loading and practice, the rest to the last
    comparison, which judges fewer decisions on a slow machine. At least one update is made. 0 sets no limit."""
    iterations: int = 24
    """GRPO updates at most."""
    states: int = 100
    """Held-out decisions of the last comparison at most."""
    start: Path = Path("adapters/demo")
    """Folder of the adapter from which the role starts. Where it is missing, or belongs to another base model, a start is
    trained first, which takes minutes more."""
    seed: int = 0
    """Root of everything random in practice; the held-out decisions are always the same."""
    runs: Path = RUNS
    """Folder of all runs."""
    report: Path = Path("report.html")
    """Path of the report."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The base model."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Run the four steps; each is announced on stderr."""
        from onthejob.api.one_file import is_built
        from onthejob.record import Run
        from onthejob.stack import attach_learner, shape_of

        if not 0 <= self.minutes < math.inf:
            raise ConfigError(f"minutes must be finite and >= 0, got {self.minutes}. 0 sets no limit.")
        if self.states < LEAST:
            raise ConfigError(f"states must be >= {LEAST}, got {self.states}. Set --states 100.")
        # Minutes of training must not end in a wrong option or an unwritable folder.
        config = self._loop()
        check_writable(self.report, "--report")
        kept = self._kept_start()
        self.runs.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        until = begun + 60 * self.minutes if self.minutes else math.inf

        def step(number: int, what: str) -> None:
            terminal.progress(f"[{number}/4] {what}  ({time.monotonic() - begun:.0f} s so far)")

        step(1, f"model {self.model.name}")
        stack = load_model(self.model, terminal.progress)
        settings = {"model": self.model.settled(), "learner": LEARNER, "train": config}
        with Run.create(self.runs, config={"demo": jsonable(self), **jsonable(settings)}) as run:
            init = kept or self._train_start(run.path / "start", terminal)
            shape = shape_of(init, LoraSpec(), where=str(self.start))
            stack, learner = attach_learner(stack, (ROLE,), lora=shape, config=LEARNER, seed=self.seed, init=init)
            with Judge(stack, stack.sampler(), ROLE, horizon=HORIZON, states=self.states) as judge:
                step(2, f"practice of {ROLE} by GRPO, judged on {LEAST} held-out decisions at T = 1")
                left = (1 - COMPARING) * (until - begun) - (time.monotonic() - begun)
                # A limit of 0 would be none.
                practised = replace(config, minutes=max(left / 60, 1e-3) if self.minutes else 0.0)
                self._practise(practised, stack, learner, judge, run, terminal)
                versions = run.adapters(ROLE)
                if len(versions) < 2:
                    raise TrainingError(
                        f"GRPO made no update: no group of replies differed in value. The record is {run.path}; another --seed "
                        "meets other groups, and `onthejob runs show` tells which share of them was alive."
                    )
                step(3, f"comparison on up to {self.states} held-out decisions")
                quality = judge.compare(versions[0], versions[-1], until=until, say=terminal.progress)
            step(4, f"report {self.report}" if is_built() else "result")
            result = Result(
                role=ROLE,
                run=run.path,
                report=self.report.resolve() if is_built() else None,
                updates=run.last_iteration() or 0,
                points=judge.points,
                quality=quality,
            )
            if result.report is not None:
                write(result, result.report)
        return finish(terminal, result, seconds=time.monotonic() - begun)

    def _loop(self) -> TrainConfig:
        return TrainConfig(
            seed=self.seed,
            iterations=self.iterations,
            collect=CollectConfig(episodes=12, segment_turns=HORIZON, fresh_share=0.1, partner_share=0.0),
            branch=BranchConfig(group_size=8, turns=HORIZON, worlds=4, outcome_weight=0.0, return_weight=1.0),
            advantage=ADVANTAGE,
            library_tasks=10,
            library_refresh=0,
            scale_states=40,
            eval_every=2,
            best_metric="reward",
        )

    def _kept_start(self) -> dict[str, Adapter]:
        """The start that is kept for the embedded model, or the one that was named; empty where one has to be trained."""
        from onthejob.stack import find_adapters

        usual = Demo()
        if self.start != usual.start or (self.start.is_dir() and self.model.name == usual.model.name):
            return find_adapters(self.start)
        return {}

    def _train_start(self, folder: Path, terminal: Terminal) -> dict[str, Adapter]:
        """A start that is trained now into `folder`."""
        from onthejob.stack import find_adapters

        terminal.progress(f"no start is kept here for {self.model.name}: {ROLE} imitates {WARM_DECISIONS} decisions first")
        demonstrations = folder / "demonstrations"
        CollectOffice(random_share=ERRORS, alternatives=4, out=demonstrations).write(terminal)
        Sft(
            data=demonstrations,
            out=folder / "sft",
            roles=(ROLE,),
            limit=WARM_DECISIONS,
            marks=("expert", "random"),
            sft=replace(WARM_START, minutes=WARM_SHARE * self.minutes),
            model=self.model,
        ).imitate(terminal)
        return find_adapters(folder / "sft")

    def _practise(self, config: TrainConfig, stack: Stack, learner: Learner, judge: Judge, run: Run, terminal: Terminal) -> None:
        from onthejob.loop import train
        from onthejob.rollout.pool import TaskPool
        from onthejob.train import Setup

        def evaluate(iteration: int, adapters: Mapping[str, Adapter]) -> Mapping[str, float]:
            terminal.progress(curve_line(judge.look(iteration, adapters[ROLE])))
            return judge.points[-1].metrics()

        train(
            Setup(
                config=config,
                make_env=make_office(),
                pool=TaskPool(office_tasks(Split.TRAIN, seeds=40), seed=self.seed, family=scenario_of),
                learner=learner,
                sampler=judge.sampler,
                encoder=stack.chat,
                run=run,
                partners=team("heuristic"),
                roles=(ROLE,),
                base_digest=stack.digest,
                evaluate=evaluate,
                on_progress=lambda report: terminal.progress(progress_line(report)),
            )
        )
