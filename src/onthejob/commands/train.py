"""`onthejob train`: GRPO in a workplace, from the bare model or from a warm start; resumes, and repeats recorded updates."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from onthejob.commands.checking import quick_check
from onthejob.commands.env_options import OFFICE, EnvOptions, as_table, read_options, starting
from onthejob.commands.judging import JudgingOptions
from onthejob.commands.named_env import NamedEnv
from onthejob.commands.options import to_toml
from onthejob.commands.outputs import check_folder, check_plain_name
from onthejob.commands.player_specs import HostedLimits, ModelOptions, absolute_source, adapters_for
from onthejob.commands.prompt_lengths import opened
from onthejob.commands.removed import check_record, flag_of
from onthejob.commands.rewarding import check_reward
from onthejob.commands.runs import RUNS, existing_run
from onthejob.commands.scaling import scaled
from onthejob.commands.terminal import Output, Terminal, jsonable, table
from onthejob.commands.train_bundles import update_from_bundles
from onthejob.commands.train_checks import check_options
from onthejob.commands.train_collected import collected_states, fitted_to_collected, with_collected
from onthejob.commands.train_servers import sampler_here, servers_ready, updated_by
from onthejob.commands.training import (
    assemble,
    corrected,
    look,
    newest_verdict,
    planned,
    replay,
    room_of,
    run_loop,
    seated,
    shape_asked,
    task_pool,
    tracked,
)
from onthejob.envs.env import Env
from onthejob.errors import ConfigError
from onthejob.learn.learner import LearnerConfig
from onthejob.learn.lora import LoraSpec
from onthejob.learn.sharing import check_equal
from onthejob.office import Office
from onthejob.plugins import anchored as anchored_ref
from onthejob.plugins import function_of, source_digest
from onthejob.scale.scale_config import ScaleConfig
from onthejob.serve.server import ServerOptions
from onthejob.train import TrainConfig
from onthejob.types import Adapter

if TYPE_CHECKING:
    from onthejob.record import Run

log = logging.getLogger(__name__)
PLACE = (
    "config", "print_config", "resume", "extend", "from_groups", "from_bundles", "reference", "smoke", "name", "trainer",
    "trainer_wait_s", "scale", "track", "output",
)  # fmt: skip
"""Options that say where, and not what: they are no part of a run's configuration."""


OFFICE_LOOP = NamedEnv(ref=OFFICE, env=Office()).loop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Train the roles' adapters by GRPO on what their actions lead to.

    The exit code is 3 when the tasks have converged. Defaults and the options --env.NAME depend on the environment:
    `onthejob train --env claw --help-all` shows those of the claw. Every command also takes --json (the result as one
    document), --quiet and --debug.
    """

    env: str = "office"
    """Environment: `office`, `claw` or your own, as path/to/file.py:Class. It may also be `package.module:Class`, or the name
    that an installed package gives it."""
    own: EnvOptions = None
    """Options of the environment; None for its defaults."""
    roles: tuple[str, ...] = Office.roles
    """Roles to train. The environment's partner plays the others, e.g. the office's --env.partner."""
    init: str = ""
    """Start from the adapters of a run, `RUN:best` or a folder such as that of `sft`. Without it training starts from the bare
    model. They keep their --lora shape, and are the reference of the KL term as they are at the start."""
    collected: str = ""
    """Start every segment in a state of this run of collected turns, which `play office --mode training` or `view --collect`
    wrote: K replies are sampled there and branched. Without --roles the roles that it has turns of are trained."""
    freeze: tuple[str, ...] = ()
    """Seats that are played by adapters and not trained, each `ROLE=ADAPTERS` (a run, `RUN:best` or a folder), e.g.
    `seller=runs/first:best`. Without --roles all others are trained."""
    eval_tasks: int = 32
    """With --eval-every: held-out tasks (split dev) on which checkpoints are judged."""
    eval_temperature: float = 0.0
    """With --eval-every: sampling temperature of evaluations; 0 decodes greedily."""
    smoke: bool = False
    """Sample a few small groups, print their reward spread and stop reasons, and exit. Four tasks are played, with four replies
    or episodes each; nothing is updated or recorded."""
    train: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: OFFICE_LOOP)
    """The loop."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    """The update."""
    lora: LoraSpec = field(default_factory=LoraSpec)
    """Shape of the adapters; with --init theirs, in which options left at their defaults follow."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The base model."""
    sampler: Literal["in-process", "vllm", "worker"] = "in-process"
    """Sampler of the trained roles' replies: this process (the default on a CPU), a vLLM server of this run, or the server
    of --trainer (`onthejob serve trainer --serve-model`). What vLLM samples is corrected, as its numbers are not bit for bit
    the trainer's: see --learner.loss.correction."""
    server: ServerOptions = field(default_factory=ServerOptions)
    """vLLM, with --sampler vllm."""
    trainer: str = ""
    """URL of a training worker (`onthejob serve trainer`) that makes the updates; its token is $ONTHEJOB_TRAINER_TOKEN."""
    trainer_wait_s: float = 600.0
    """With --trainer: seconds that the run waits for a worker that is gone, e.g. until another one has loaded the model."""
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    """Processes or cluster that score branches, step whole episodes, sample and update."""
    reward: str = ""
    """A function of yours as path/to/file.py:name or package.module:name, in TRL's form (prompts, completions, **columns) -> list
    of numbers: the returns that are trained on. Empty takes the environment's, and so does every evaluation."""
    judge: str = ""
    """A hosted model that scores every reply, e.g. anthropic:claude-haiku-4-5; its verdicts are kept in the run."""
    judging: JudgingOptions = field(default_factory=JudgingOptions)
    """Weights of the judge."""
    hosted: HostedLimits = field(default_factory=HostedLimits)
    """Bounds of hosted models: the judge, and a partner when it is one."""
    config: Path | None = None
    """Defaults from a TOML file, which --print-config writes. Options on the command line override it."""
    print_config: bool = False
    """Print all options as TOML for --config, and do nothing else."""
    resume: Path | None = None
    """Continue this run with the options it was started with. Name the run, or its folder. Besides, only --extend, --track,
    --scale.*, --trainer and --trainer-wait-s may be given."""
    extend: int = 0
    """With --resume: continue to this many iterations in all; 0 keeps the number the run was started with."""
    from_groups: str = ""
    """Perform one recorded update again: `RUN:ITERATION`, for each of --roles. The options of --learner and --advantage are
    this command's and not the run's. --init gives other weights to start from."""
    from_bundles: Path | None = None
    """Play nothing, and update from the trajectories of this file, which `onthejob runs export RUN --bundles` wrote: one update
    for each iteration in it, from --init, as a run of its own. Of the loop's options only --seed, --adapters and
    --advantage.* have an effect, and with --loss dr_grpo --sampling.max-new-tokens."""
    reference: str = ""
    """Adapters of the KL term's reference, with --from-groups (default: the run's version 0) or --from-bundles (default: the
    adapters as they are at the start)."""
    track: tuple[str, ...] = ()
    """Send what is recorded to trackers while the run continues: trackio, wandb, tensorboard, mlflow, jsonl, FILE.csv, FILE.xlsx,
    sheets:ID, or a class of yours as file.py:Class. They read the record in processes of their own, and cannot stop or slow the
    run; `onthejob runs sync` sends the rest."""
    name: str | None = None
    """Name of the new run, by default date and time."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Train, resume, look, replay an update, or print the configuration."""
        return self.fitted()._run(terminal)

    def _run(self, terminal: Terminal) -> int:
        if self.print_config:
            terminal.result(self._settings(), self._toml())
            return 0
        check_options(self)
        if self.from_bundles is not None:
            return update_from_bundles(self, self.from_bundles, terminal)
        if self.from_groups:
            return replay(self, terminal)
        return look(self, terminal) if self.smoke else self._train(terminal)

    @classmethod
    def starting(cls, env: str) -> Train:
        """The defaults in workplace `env`."""
        start = cls(env=env)
        place = start.place()
        return dataclasses.replace(start, roles=place.roles, train=place.loop())

    def place(self) -> NamedEnv:
        """The workplace of these options."""
        return NamedEnv(ref=self.env, env=self.environment).fitted(model=self.model.name)

    @property
    def environment(self) -> Env:
        return starting(self.env, "Train") if self.own is None else self.own

    def fitted(self) -> Train:
        """These options with what follows from others.

        That is the limits that options of the environment set, where the loop's own were left at their defaults, dr_grpo's
        constant, and the roles that are left to be trained.
        """
        usual, now, loop = NamedEnv(ref=self.env, env=type(self.environment)()).loop(), self.place().loop(), self.train
        fitted = {name: getattr(now, name) for name in ("max_turns", "workers") if getattr(loop, name) == getattr(usual, name)}
        if loop.sampling.max_new_tokens == usual.sampling.max_new_tokens:
            fitted["sampling"] = dataclasses.replace(loop.sampling, max_new_tokens=now.sampling.max_new_tokens)
        if self.collected and loop.grouping == "branch":
            fitted["collect"] = fitted_to_collected(loop, usual)
        loop, learner, loss = dataclasses.replace(loop, **fitted), self.learner, self.learner.loss
        if loss.loss == "dr_grpo" and loss.max_completion_tokens is None:
            loss = dataclasses.replace(loss, max_completion_tokens=loop.sampling.max_new_tokens)
            learner = dataclasses.replace(learner, loss=loss)
        frozen, roles = {seat.partition("=")[0] for seat in self.freeze}, self.roles
        if frozen and roles == self.place().roles:
            roles = tuple(role for role in roles if role not in frozen)
        return dataclasses.replace(self, own=self.environment, roles=roles, train=loop, learner=learner)

    def _check_new(self) -> None:
        """Refuse a name or a folder in which no new run can be made."""
        check_folder(RUNS, "the folder of runs")
        if self.name is None:
            return
        check_plain_name(self.name, "a run's name")
        if (RUNS / self.name).exists():
            raise ConfigError(f"a run named {self.name!r} exists in {RUNS}. Choose another --name, or continue it with --resume.")

    def _settings(self) -> dict[str, Any]:
        """What reproduces the run, as JSON."""
        found = {key: value for key, value in jsonable(self).items() if key not in (*PLACE, "own")}
        if plugins := self.plugins():
            found |= {"sources": {ref: source_digest(ref, flag) for flag, ref in plugins.items()}}
        return found | {"env": as_table(self.env, self.environment, fingerprint=self.place().fingerprint)}

    def plugins(self) -> dict[str, str]:
        """Flag -> reference of each function of the user's that the run calls."""
        loss, advantage = self.learner.loss, self.train.advantage
        found = {"--learner.loss.loss": loss.loss if loss.own else "", "--advantage.estimator": advantage.estimator}
        found["--reward"] = self.reward
        return {flag: ref for flag, ref in found.items() if ":" in ref}

    def _toml(self) -> str:
        """These options as a file for --config."""
        written = to_toml(_found_everywhere(self), without={*PLACE, "own", "env"} - {"scale"})
        own = dataclasses.replace(self.environment, **self.environment.anchored())  # type: ignore[type-var]
        return f"{written}\n{to_toml(own, table='env', first={'ref': anchored_ref(self.env)})}"

    def _train(self, terminal: Terminal) -> int:
        from onthejob.record import Run

        again = None if self.resume is None else existing_run(self.resume)
        begun = False
        if again is None:
            self._check_new()
        else:
            # Another writer, or a disk that takes nothing, is met before a model is loaded.
            with Run.open(again) as held:
                begun = held.last_iteration() is not None
        started = anchored(self) if again is None else self._recorded(again)
        # A run that has begun holds its states in its checkpoints.
        started, collected = (started, None) if begun else with_collected(started)
        options = started._extended(self.extend)
        init = adapters_for(options.init, options.roles) if options.init and again is None else None
        if init is not None:
            check_equal(options.train.adapters, options.roles, init, options.init)
        servers_ready(options, terminal)
        # Tasks that cannot be read and a misspelt judge should not cost a download, or the minute in which a model is loaded.
        # A curriculum spans what the run was started with, however far it is extended.
        pool = task_pool(started)
        shape_asked(options, init)
        with (
            seated(options) as others,
            opened(options, terminal, new=again is None) as (options, make_env),
            scaled(options, terminal) as runtime,
        ):
            if (place := options.place()).plain and (odd := quick_check(place)):
                terminal.warn(odd)
            states = collected_states(collected, make_env, terminal)
            options = options._ready(terminal, init)
            stack, learner = assemble(options, terminal, init, room_of(options, make_env, pool, others.partners))
            with updated_by(options, stack, learner, runtime, terminal) as learner:
                new = again is None
                sampler = sampler_here(options, stack, runtime, terminal)
                with Run.create(RUNS, config=options._settings(), name=self.name) if new else Run.open(again) as run:
                    terminal.progress(f"run {run.path}")
                    runtime.logs.into(run.path / "logs")
                    with tracked(self.track, run.path, terminal):
                        result = run_loop(
                            options, terminal, make_env, pool, stack, learner, run, others,
                            sampler=sampler, runtime=runtime, collected=states, resume=not new,
                        )  # fmt: skip
                    path = run.path
        rows = [(role, adapter.name, str(adapter.path)) for role, adapter in result.adapters.items()]
        said, judged = newest_verdict(path, result.iterations)
        data = {
            "run": path,
            "stop": result.stop,
            "iterations": result.iterations,
            "adapters": result.adapters,
            "best_iteration": result.best_iteration,
            "best_score": result.best_score,
        } | said
        best = f"; best on held-out tasks after {result.best_iteration}: {path}:best" if result.best_iteration is not None else ""
        terminal.result(
            data,
            f"{path}: {result.ended(path.name)}{best}",
            *judged,
            table(("role", "adapter", "path"), rows),
        )
        return result.exit_code

    def _ready(self, terminal: Terminal, init: Mapping[str, Adapter] | None) -> Train:
        """These options, with the adapters' shape, the correction and the precision that will be used; reads no weights."""
        options = planned(self, terminal, init)
        if init is not None and (missing := [role for role in options.roles if role not in init]):
            terminal.warn(f"{options.init} has no adapter of {', '.join(missing)}: there training starts from the bare model")
        scheduled = options.place().env.task_schedule(options.train.iterations) is not None
        if scheduled and options.train.grouping == "branch" and options.train.collect.fresh_share < 1:
            share = options.train.collect.fresh_share
            terminal.warn(
                f"a curriculum changes only the {share:.0%} of segments that begin with a task's first turn: library states "
                "stay as hard as they were met. Raise --collect.fresh-share to change more."
            )
        return dataclasses.replace(corrected(options, terminal), model=options.model.settled())

    def _recorded(self, resume: Path) -> Train:
        """The options that the run was started with, and the worker that is named now."""
        from onthejob.record import Run

        with Run.open(resume, readonly=True) as recorded:
            again = recorded_options(recorded, resume=True)
        for flag, ref in again.plugins().items():
            function_of(ref, flag)
        check_reward(again)
        if again.sampler == "worker" and not self.trainer:
            raise ConfigError(f"{resume} samples on its training worker's machine. Name one with --trainer.")
        return dataclasses.replace(again, trainer=self.trainer, trainer_wait_s=self.trainer_wait_s, scale=self.scale)

    def _extended(self, extend: int) -> Train:
        """These options, up to iteration `extend`; 0 keeps their own number."""
        own = self.train.iterations
        if extend and extend < own:
            raise ConfigError(f"--extend must be >= {own}, the run's own number, got {extend}.")
        return dataclasses.replace(self, train=dataclasses.replace(self.train, iterations=extend or own))


def anchored(options: Train) -> Train:
    """`options` whose model, frozen adapters and functions are found from every folder; a record names the environment so."""
    model = options.model
    if Path(model.name).expanduser().is_dir():
        model = dataclasses.replace(model, name=str(Path(model.name).expanduser().absolute()))
    seats = [seat.partition("=") for seat in options.freeze]
    freeze = tuple(f"{role}={absolute_source(source)}" for role, _, source in seats)
    collected = str(existing_run(Path(options.collected)).absolute()) if options.collected else ""
    return dataclasses.replace(_found_everywhere(options), model=model, freeze=freeze, collected=collected)


def _found_everywhere(options: Train) -> Train:
    """`options` whose functions of the user's are named as every folder finds them."""
    loop, learner = options.train, options.learner
    if loop.advantage.own:
        own = dataclasses.replace(loop.advantage, estimator=anchored_ref(loop.advantage.estimator))
        loop = dataclasses.replace(loop, advantage=own)
    if learner.loss.own:
        learner = dataclasses.replace(learner, loss=dataclasses.replace(learner.loss, loss=anchored_ref(learner.loss.loss)))
    reward = anchored_ref(options.reward) if options.reward else ""
    return dataclasses.replace(options, train=loop, learner=learner, reward=reward)


def recorded_options(run: Run, *, without: Collection[str] = (), resume: bool = False) -> Train:
    """The options that a run was started with.

    Args:
        run: the record.
        without: keys of its configuration that are no options of `train`.
        resume: the run is to be continued.
    """
    config = {key: value for key, value in run.config.items() if key not in (*without, "sources")}
    config, gone = check_record(_without_none(config))
    if gone:
        stated = ", ".join(f"{flag_of(name)} {value}" for name, value in gone.items())
        if resume:
            raise ConfigError(
                f"{run.path} was made with {stated}, which this version does not have. Continue it with the version that made "
                f"it, or start a new run from its adapters: --init {run.path}."
            )
        # Commands that only read the record do not need it.
        log.warning("%s was made with %s, which this version does not have: it cannot be continued", run.path, stated)
    read = read_options(Train, config, f"the configuration of {run.path}")
    recorded = run.config.get("sources") or {}
    for flag, ref in read.plugins().items():
        try:
            now = source_digest(ref, flag)
        except ConfigError as error:
            # Reading the record does not need it; `--resume` refuses.
            log.warning("%s: %s", run.path, error)
            continue
        if recorded.get(ref) != now:
            log.warning("%s: the source of %s has changed since (%s, now %s)", run.path, ref, recorded.get(ref), now)
    return read


def _without_none(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` without options that are None: they are at their defaults."""
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value for key, value in config.items() if value is not None
    }
