"""`onthejob demo`: the closed loop in minutes on a laptop: warm start, GRPO, comparison on held-out seeds, report.

Everything is what the other commands do, at small counts. The figures are real and, at these counts, noisy: the intervals say so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from onthejob.commands.collect import Collect
from onthejob.commands.cores import usable_cores
from onthejob.commands.evaluation import steps
from onthejob.commands.office import check_days, make_office, scenario_of
from onthejob.commands.reports import check_writable
from onthejob.commands.runs import RUNS
from onthejob.commands.seats import ModelOptions, load_model
from onthejob.commands.sft import Sft
from onthejob.commands.terminal import Output, Terminal, jsonable
from onthejob.commands.training import line
from onthejob.envs.office.env import SEATS, OfficeEnvironment
from onthejob.envs.office.tasks import office_tasks
from onthejob.errors import ConfigError, TrainingError
from onthejob.evaluate.teams import Team, scripted_team
from onthejob.learn.advantage import AdvantageConfig
from onthejob.learn.learner import LearnerConfig
from onthejob.learn.lora import LoraSpec
from onthejob.learn.loss import LossConfig
from onthejob.learn.sft import SftConfig
from onthejob.players import scripted, team
from onthejob.rollout.branch import BranchConfig
from onthejob.rollout.collect import CollectConfig
from onthejob.train import TrainConfig
from onthejob.types import Adapter, Sampling, Split

if TYPE_CHECKING:
    from onthejob.evaluate.compare import Comparison
    from onthejob.evaluate.scores import QualityResult
    from onthejob.learn.learner import Learner
    from onthejob.record import Run
    from onthejob.stack import Stack

TEACHER, RANDOM_SHARE = "expert", 0.3
WARM_START = SftConfig(lr=2e-3, batch_tokens=1024, warmup=8)
"""As in LOG.md's warm start of six roles, with fewer decisions."""
LEARNER = LearnerConfig(
    lr=2e-4,
    warmup=2,
    loss=LossConfig(loss="dr_grpo", max_completion_tokens=32),
    advantage=AdvantageConfig(eps=0.5, shrink=True, invalid_gap=0.3, invalid_ceiling=-0.6),
)
"""GRPO in its usual form, for few updates."""
TRAINING = 0.25
"""Share of the time that the warm start may take, and GRPO as much again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """Train two roles of the office by SFT and GRPO, and show on held-out seeds what each of the two changed."""

    roles: tuple[str, ...] = ("sales", "ceo")
    """Roles that are trained; heuristics sit in the other seats. The default ones' decisions stand out most from the noise."""
    decisions: int = 240
    """Demonstrated decisions per role in the warm start. With too few, replies are not usable yet and GRPO finds nothing."""
    iterations: int = 8
    """GRPO updates per role."""
    worlds: int = 16
    """Worlds in which every sampled reply of a group is played on."""
    scale_states: int = 60
    """States on which the spread of returns is measured once, before the first update."""
    states: int = 16
    """Held-out states per role on which single decisions are judged."""
    minutes: float = 10.0
    """About how long the demo may take: on slow processors the warm start ends after a quarter of it and GRPO after as much
    again, with fewer steps than the counts above allow; the comparison gets the rest. 0 sets no limit."""
    seeds: int = 1
    """Held-out episodes per scenario."""
    days: int = 5
    """Length of those episodes in days."""
    workers: int = 2
    """Processes that play branches; 0 plays them in this one."""
    seed: int = 0
    """Of training."""
    runs: Path = RUNS
    """Folder of all runs."""
    report: Path = Path("report.html")
    """Where the report goes."""
    lora: LoraSpec = field(default_factory=LoraSpec)
    """Shape of the adapters."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The base model."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Run the five steps; each says on stderr when it begins and what it took."""
        from onthejob.record import Run
        from onthejob.stack import attach_learner

        unknown = [role for role in self.roles if role not in SEATS]
        if unknown or not self.roles:
            raise ConfigError(f"roles must be some of {', '.join(SEATS)}, got {', '.join(unknown) or 'none'}.")
        if self.decisions < 1 or self.states < 2:
            raise ConfigError(f"decisions must be >= 1 and states >= 2, got {self.decisions} and {self.states}.")
        check_days(self.days)
        if not 0 <= self.minutes < math.inf:
            raise ConfigError(f"minutes must be finite and >= 0, got {self.minutes}. 0 sets no limit.")
        if self.seeds < 1 or self.workers < 0:
            raise ConfigError(f"seeds must be >= 1 and workers >= 0, got {self.seeds} and {self.workers}.")
        # Ten minutes of training must not end in a wrong option or an unwritable folder.
        config = self._loop()
        check_writable(self.report, "--report")
        self.runs.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()

        def step(number: int, what: str) -> None:
            terminal.progress(f"[{number}/5] {what}  ({time.monotonic() - started:.0f} s so far)")

        step(1, f"model {self.model.name}")
        stack = load_model(self.model, terminal.progress)
        # As `onthejob train` writes them, for whoever looks into the run.
        settings = {"model": self.model.settled(), "lora": self.lora, "learner": LEARNER, "train": config}
        with Run.create(self.runs, config={"demo": jsonable(self), **jsonable(settings)}) as run:
            path = run.path
            step(2, f"warm start of {', '.join(self.roles)} from the stochastic {TEACHER}")
            init = self._warm_start(path / "warm_start", terminal)
            step(3, f"GRPO, at most {self.iterations} updates per role, on what each reply does to the company")
            stack, learner = attach_learner(stack, self.roles, lora=self.lora, config=LEARNER, seed=self.seed, init=init)
            self._grpo(stack, learner, run, config, terminal)
            first, last = ({role: run.adapters(role)[index] for role in self.roles} for index in (0, -1))
            idle = [role for role in self.roles if first[role].version == last[role].version]
            if len(idle) == len(self.roles):
                raise TrainingError(
                    "GRPO made no update: no group of replies differed in value, usually because the warm start is too short for "
                    f"usable replies (got {self.decisions} decisions). Raise --decisions; the record is {run.path}."
                )
            for role in idle:
                terminal.warn(f"GRPO made no update of {role}: its grpo row equals its sft row")
            step(4, "comparison on held-out seeds")
            # Version 0 of the run is what the warm start made.
            rows = [self._team(stack, name, adapters) for name, adapters in (("base", {}), ("sft", first), ("grpo", last))]
            quality, comparison = self._judge(stack, run, rows, terminal)
            step(5, f"report {self.report}")
            self._report(stack, run, quality, comparison)
        return self._finish(terminal, path, quality, comparison, time.monotonic() - started)

    def _loop(self) -> TrainConfig:
        return TrainConfig(
            seed=self.seed,
            iterations=self.iterations,
            minutes=TRAINING * self.minutes,
            collect=CollectConfig(episodes=4, segment_turns=7, partner_share=0.0),
            branch=BranchConfig(group_size=8, worlds=self.worlds, continuation="stand_ins"),
            workers=self.workers,
            library_tasks=5,
            library_share=0.3,
            scale_states=self.scale_states,
        )

    def _warm_start(self, folder: Path, terminal: Terminal) -> dict[str, Adapter]:
        """Demonstrations and one adapter per role, both kept in `folder`."""
        from onthejob.stack import find_adapters

        demonstrations = folder / "demonstrations"
        Collect(
            policy=TEACHER,
            random_share=RANDOM_SHARE,
            # The expert's reply in every state, also where a random one was executed.
            alternatives=1,
            out=demonstrations,
            # Every role decides about 60 times in an episode of each of the five scenarios.
            seeds=-(-self.decisions // 250),
        ).write(terminal)
        Sft(
            data=demonstrations,
            out=folder / "sft",
            roles=self.roles,
            limit=self.decisions,
            marks=("expert",),
            processes=max(1, min(len(self.roles), usable_cores())),
            sft=replace(WARM_START, minutes=TRAINING * self.minutes),
            lora=self.lora,
            model=self.model,
        ).imitate(terminal)
        return find_adapters(folder / "sft")

    def _grpo(self, stack: Stack, learner: Learner, run: Run, config: TrainConfig, terminal: Terminal) -> None:
        from onthejob.rollout.pool import TaskPool
        from onthejob.train import train

        train(
            config,
            make_env=make_office(),
            pool=TaskPool(office_tasks(Split.TRAIN, seeds=40), seed=self.seed, family=scenario_of),
            learner=learner,
            sampler=stack.sampler(),
            encoder=stack.chat,
            run=run,
            partners=team("heuristic"),
            trained_roles=self.roles,
            base_digest=stack.digest,
            on_progress=lambda report: terminal.progress("  " + line(report)),
        )

    def _team(self, stack: Stack, name: str, adapters: dict[str, Adapter]) -> Team:
        """The trained seats by the model, the others by the heuristic."""
        model = stack.team(name, adapters, self.roles)
        partners = scripted_team("heuristic", scripted("heuristic"), SEATS)
        return Team(
            name=name,
            policies={**partners.policies, **model.policies},
            fingerprints={**partners.fingerprints, **model.fingerprints},
            learned=frozenset(self.roles),
        )

    def _judge(self, stack: Stack, run: Run, rows: list[Team], terminal: Terminal) -> tuple[QualityResult, Comparison]:
        from onthejob.evaluate.cache import EvaluationCache, source_fingerprint
        from onthejob.evaluate.collect import collect_states
        from onthejob.evaluate.compare import compare
        from onthejob.evaluate.quality import decision_quality
        from onthejob.evaluate.recorded import recorded_scales
        from onthejob.evaluate.scores import QualityConfig

        make_env: Callable[[], OfficeEnvironment] = make_office()
        yardsticks = [scripted_team(name, scripted(name), SEATS) for name in ("heuristic", "expert", "random")]
        # Dev seeds beyond those of the episodes, so that the two instruments do not share luck.
        tasks = office_tasks(Split.DEV, seeds=2, days=10, first=self.seeds)
        states = collect_states(
            tasks,
            yardsticks[:1],
            actors=self.roles,
            per_role=self.states,
            env_factory=make_env,
            sampling=Sampling(),
            seed=self.seed,
            max_turns=140,
        )
        with EvaluationCache(None, env=source_fingerprint(OfficeEnvironment)) as cache:
            quality = decision_quality(
                states,
                rows,
                random=scripted("random"),
                env_factory=make_env,
                cache=cache,
                config=QualityConfig(
                    worlds=tuple(range(10_000, 10_004)),
                    turns=70,
                    candidates=8,
                    decodings=(Sampling(temperature=0.0),),
                    workers=self.workers,
                ),
                scales=recorded_scales(run),
                encoder=stack.chat,
                on_progress=lambda what, done, total: steps(terminal, f"  {what}")(done, total),
            )
            comparison = compare(
                [*yardsticks, *rows],
                office_tasks(Split.DEV, seeds=self.seeds, days=self.days),
                env_factory=make_env,
                cache=cache,
                sampling=Sampling(temperature=0.0),
                seed=self.seed,
                max_turns=14 * self.days,
                encoder=stack.chat,
                on_progress=lambda name, done, total: steps(terminal, f"  episodes of {name}")(done, total),
            )
        return quality, comparison

    def _report(self, stack: Stack, run: Run, quality: QualityResult, comparison: Comparison) -> None:
        from onthejob.evaluate.report import write_report
        from onthejob.evaluate.report_data import Report
        from onthejob.evaluate.report_parts import with_run, with_shifts

        report = Report(
            title="onthejob demo",
            lead=f"{', '.join(self.roles)} trained by SFT and {run.last_iteration()} GRPO updates; heuristics elsewhere.",
            quality=quality,
            comparison=comparison,
            featured="grpo",
            notes=("A demonstration at small counts: judge a difference by its interval, not by its mean.",),
        )
        report = with_run(with_shifts(report, before="sft", after="grpo"), run, decode=stack.chat.decode)
        write_report(self.report, report)

    def _finish(self, terminal: Terminal, run: Path, quality: QualityResult, comparison: Comparison, seconds: float) -> int:
        from onthejob.evaluate.matched import document, keep
        from onthejob.evaluate.tables import comparison_table, quality_differences_table, quality_table

        keep(self.runs, run.name, jsonable(document(comparison)))
        data: dict[str, Any] = {
            "run": run,
            "report": self.report.resolve(),
            "seconds": seconds,
            "quality": quality.as_dict(),
            "comparison": comparison.as_dict(),
        }
        terminal.result(
            data,
            quality_table(quality),
            quality_differences_table(quality, featured="grpo"),
            comparison_table(comparison, metrics=("company_value", "team_reward", "mrr", "valid_rate")),
            "",
            f"Took {seconds / 60:.1f} minutes. The record: onthejob runs show {run}; in pictures: onthejob view {run}",
            f"Open the report in a browser: {self.report.resolve().as_uri()}",
        )
        return 1 if comparison.failed else 0
