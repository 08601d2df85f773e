"""`onthejob train`: GRPO on the office, from the bare model or from a warm start; resumes, and repeats recorded updates."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from onthejob.commands.office import check_days, make_office, scenario_of, scenarios_named
from onthejob.commands.options import overlay, to_toml
from onthejob.commands.runs import RUNS
from onthejob.commands.seats import HostedOptions, HostedSeats, ModelOptions, adapters_folder, load_model
from onthejob.commands.terminal import Output, Terminal, jsonable, table
from onthejob.envs.office.env import SEATS
from onthejob.envs.office.tasks import office_tasks
from onthejob.errors import ConfigError
from onthejob.learn.learner import LearnerConfig
from onthejob.learn.lora import LoraSpec
from onthejob.models.catalogue import is_hosted
from onthejob.players import team
from onthejob.rollout.judge import JudgeConfig
from onthejob.serve.server import ServerConfig
from onthejob.train import IterationReport, TrainConfig
from onthejob.types import Adapter, Split

if TYPE_CHECKING:
    from onthejob.learn.learner import Learner
    from onthejob.models.sampler import Sampler
    from onthejob.rollout.judge import Judge
    from onthejob.serve.remote import RemoteLearner
    from onthejob.serve.vllm import VllmSampler
    from onthejob.stack import Stack

PLACE = ("config", "print_config", "resume", "extend", "from_groups", "reference", "runs", "name", "trainer", "output")
"""Options that say where, and not what: they are no part of a run's configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Train the roles' adapters by GRPO on what their actions do to the company. Ends with 3 when the tasks have converged."""

    roles: tuple[str, ...] = SEATS
    """Which roles are trained; the others are played by --partner."""
    scenarios: tuple[str, ...] = ("all",)
    """Scenario names or TOML files; `all` for the shipped ones."""
    seeds: int = 200
    """Training episodes per scenario from which tasks are drawn."""
    days: int = 30
    """Length of an episode in days."""
    partner: str = "heuristic"
    """Who plays roles that are not trained, and all others in segments among partners: a scripted player or a hosted model."""
    init: str = ""
    """Start from these adapters (a run, a folder, e.g. of `sft`) instead of from the bare model."""
    train: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=TrainConfig)
    """The loop."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    """The update."""
    lora: LoraSpec = field(default_factory=LoraSpec)
    """Shape of the adapters."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The base model."""
    sampler: Literal["in-process", "vllm"] = "in-process"
    """Who samples the trained roles' replies: this process, the default on a CPU, or a vLLM server of this run. With vLLM,
    --learner.loss.correction defaults to token_truncate: its numbers are not bit for bit the trainer's."""
    server: ServerConfig = field(default_factory=ServerConfig)
    """vLLM, with --sampler vllm."""
    trainer: str = ""
    """URL of a training worker (`onthejob serve trainer`) that makes the updates; its token is $ONTHEJOB_TRAINER_TOKEN."""
    judge: str = ""
    """A hosted model that scores every reply, e.g. anthropic:claude-haiku-4-5; its verdicts are kept in the run."""
    judging: JudgeConfig = field(default_factory=JudgeConfig)
    """How much the judge counts."""
    hosted: HostedOptions = field(default_factory=HostedOptions)
    """Bounds of hosted models: the judge, and --partner when it is one."""
    config: Path | None = None
    """Take defaults from this TOML file; options on the command line override it."""
    print_config: bool = False
    """Print all options as TOML for --config, and do nothing else."""
    resume: Path | None = None
    """Continue this run, with the options it was started with; only --extend may change one."""
    extend: int = 0
    """With --resume: go on to this many iterations in all; 0 keeps the number the run was started with."""
    from_groups: str = ""
    """Perform one recorded update again: `RUN:ITERATION`, for each of --roles. --init gives other weights to start from."""
    reference: str = ""
    """With --from-groups: adapters of the KL term's reference; default: the run's version 0."""
    runs: Path = RUNS
    """Folder of all runs."""
    name: str | None = None
    """Name of the new run; default: date and time."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Train, resume, replay an update, or print the configuration."""
        if self.print_config:
            settings = self._settings()
            terminal.result(settings, to_toml(self, without=PLACE))
            return 0
        self._check()
        if self.from_groups:
            return self._replay(terminal)
        return self._train(terminal)

    def _check(self) -> None:
        unknown = [role for role in self.roles if role not in SEATS]
        if unknown or not self.roles:
            raise ConfigError(f"roles must be some of {', '.join(SEATS)}, got {', '.join(unknown) or 'none'}.")
        if self.reference and not self.from_groups:
            raise ConfigError("--reference has no effect without --from-groups. Leave it out, or name a recorded update.")
        if self.resume is not None:
            only = Train(resume=self.resume, extend=self.extend, trainer=self.trainer, output=self.output)
            changed = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != getattr(only, f.name)]
            if changed:
                raise ConfigError(
                    f"--resume goes on with the run's own options; leave out {', '.join(changed)}, or start a new run."
                )
        elif self.extend:
            raise ConfigError("--extend has no effect without --resume. Set --iterations for a new run.")
        if self.train.eval_every:
            raise ConfigError(
                "eval_every needs the library: the command line evaluates with `onthejob eval`. Set --eval-every 0."
            )
        check_days(self.days)
        scenarios_named(self.scenarios)
        if not is_hosted(self.partner):
            team(self.partner)
        if self.judging.weight and not self.judge:
            raise ConfigError(
                f"--judging.weight {self.judging.weight} has no effect without --judge. Name a model, or leave it out."
            )

    def _settings(self) -> dict[str, Any]:
        """What reproduces the run, as JSON."""
        return {key: value for key, value in jsonable(self).items() if key not in PLACE}

    def _assemble(self, terminal: Terminal, init: Mapping[str, Adapter] | None) -> tuple[Stack, Learner]:
        from onthejob.stack import attach_learner

        return attach_learner(
            load_model(self.model, terminal.progress),
            self.roles,
            lora=self.lora,
            config=self.learner,
            seed=self.train.seed,
            init=init,
        )

    def _train(self, terminal: Terminal) -> int:
        from onthejob.record import Run
        from onthejob.rollout.pool import TaskPool
        from onthejob.stack import find_adapters
        from onthejob.train import train

        if self.resume is not None:
            with Run.open(self.resume, readonly=True) as recorded:
                again = overlay(Train(), _without_none(recorded.config), where=f"the configuration of {self.resume}")
            if self.extend and self.extend < again.train.iterations:
                raise ConfigError(f"--extend must be >= {again.train.iterations}, the run's own number, got {self.extend}.")
            loop = dataclasses.replace(again.train, iterations=self.extend or again.train.iterations)
            options = dataclasses.replace(again, train=loop, trainer=self.trainer)
        else:
            options = self
        init = find_adapters(adapters_folder(options.init)) if options.init and self.resume is None else None
        tasks = office_tasks(Split.TRAIN, seeds=options.seeds, scenarios=scenarios_named(options.scenarios), days=options.days)
        options = options._corrected(terminal)
        stack, learner = options._assemble(terminal, init)
        opened = Run.open(self.resume) if self.resume else Run.create(self.runs, config=options._settings(), name=self.name)
        with opened as run, ExitStack() as helpers:
            terminal.progress(f"run {run.path}")
            hosted = HostedSeats(options.hosted)
            helpers.callback(hosted.close)
            if options.trainer:
                learner = remote_learner(learner, options.trainer, stack.digest)
                helpers.callback(learner.close)
            judge = judge_of(options.judge, options.judging, hosted, run.path / "judge.sqlite") if options.judge else None
            if judge is not None:
                helpers.callback(judge.close)
            partner = hosted.policy(options.partner) if is_hosted(options.partner) else None
            result = train(
                options.train,
                make_env=make_office(),
                pool=TaskPool(tasks, seed=options.train.seed, family=scenario_of),
                learner=learner,
                sampler=options._sampler(stack, learner, run.path, terminal, helpers),
                encoder=stack.chat,
                run=run,
                partners=team(options.partner) if partner is None else dict.fromkeys(SEATS, partner),
                trained_roles=options.roles,
                base_digest=stack.digest,
                judge=judge,
                on_progress=lambda report: terminal.progress(line(report)),
                resume=self.resume is not None,
            )
            path = run.path
        rows = [(role, adapter.name, str(adapter.path)) for role, adapter in result.adapters.items()]
        data = {"run": path, "stop": result.stop, "iterations": result.iterations, "adapters": result.adapters}
        terminal.result(
            data, f"{path}: {result.stop} after {result.iterations} iterations", table(("role", "adapter", "path"), rows)
        )
        return result.exit_code

    def _corrected(self, terminal: Terminal) -> Train:
        """With vLLM, the difference between its numbers and the trainer's is corrected unless something else was asked for."""
        loss = self.learner.loss
        if self.sampler == "in-process" or loss.correction != "none" or loss.old == "sampler":
            return self
        terminal.progress("vLLM samples: --learner.loss.correction token_truncate (TIS)")
        corrected = dataclasses.replace(loss, correction="token_truncate")
        return dataclasses.replace(self, learner=dataclasses.replace(self.learner, loss=corrected))

    def _sampler(
        self, stack: Stack, learner: Learner, folder: Path, terminal: Terminal, helpers: ExitStack
    ) -> Sampler | VllmSampler:
        """Who samples; a server that is started ends with `helpers`."""
        if self.sampler == "in-process":
            return stack.sampler()
        from onthejob.commands.servers import PROBE_TEXT, start_server
        from onthejob.models.fetch import fetch
        from onthejob.serve.local import trainer_scores
        from onthejob.serve.vllm import VllmSampler

        base = fetch(self.model.name, progress=terminal.progress)
        server, publisher = start_server(
            base, self.server, roles=len(self.roles), rank=self.lora.rank, files=folder / "server", terminal=terminal
        )
        helpers.callback(server.stop)
        ids = tuple(stack.chat.tokenizer.encode(PROBE_TEXT, add_special_tokens=False))
        return VllmSampler(
            server.client,
            stack.chat,
            publisher,
            expected=lambda adapter: trainer_scores(learner.model, adapter.role, ids),
            recover=server.recover,
        )

    def _replay(self, terminal: Terminal) -> int:
        from onthejob.record import Run
        from onthejob.stack import find_adapters
        from onthejob.train import replay_update

        path, _, number = self.from_groups.rpartition(":")
        if not path or not number.isdigit():
            raise ConfigError(f"--from-groups must be RUN:ITERATION, e.g. runs/mine:3, got {self.from_groups!r}.")
        init = find_adapters(adapters_folder(self.init)) if self.init else {}
        reference = find_adapters(adapters_folder(self.reference)) if self.reference else {}
        missing = [role for role in self.roles if (self.init and role not in init) or (self.reference and role not in reference)]
        if missing:
            raise ConfigError(
                f"--init or --reference has no adapter of {', '.join(missing)}. Name the roles it has with --roles."
            )
        with Run.open(adapters_folder(path), readonly=True) as run:
            _, learner = self._assemble(terminal, None)
            updates = {
                role: replay_update(run, int(number), role, learner=learner, init=init.get(role), reference=reference.get(role))
                for role in self.roles
            }
        rows = [(role, name, value) for role, values in updates.items() for name, value in values.items()]
        terminal.result(updates, table(("role", "metric", "value"), rows))
        return 0


def line(report: IterationReport) -> str:
    """One iteration as people read it."""
    roles = "  ".join(
        f"{role.role} {role.summary.mean_return:+.3f} ({role.summary.alive_share:.0%} alive, {role.summary.valid_rate:.0%} valid)"
        for role in report.roles
    )
    pace = f"{report.seconds:.0f} s, {report.tokens_per_second:.0f} tokens/s, {report.eta_s / 60:.0f} min left"
    return f"{report.iteration}/{report.iterations}  {roles}  [{pace}]"


def remote_learner(learner: Learner, url: str, base_digest: str) -> RemoteLearner:
    """The learner whose updates a worker makes.

    Raises:
        ConfigError: no token, or a worker that does not fit.
        ServeError: the worker does not answer.
    """
    from onthejob.serve.remote import RemoteLearner, token_from

    return RemoteLearner(learner, url, base_digest=base_digest, token=token_from())


def judge_of(spec: str, config: JudgeConfig, hosted: HostedSeats, cache: Path) -> Judge:
    """The judge that `spec` names."""
    from onthejob.models.hosted import Price
    from onthejob.rollout.judge import Judge

    client, entry, transport, accounts = hosted.client(spec)
    return Judge(
        client,
        transport,
        config=dataclasses.replace(config, max_tokens=max(config.max_tokens, entry.max_tokens)),
        accounts=accounts,
        price=Price(prompt=entry.input_usd, completion=entry.output_usd),
        cache=cache,
        schema=entry.schema_,
        temperature=entry.temperature,
    )


def _without_none(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` without options that are None: they are at their defaults."""
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value for key, value in config.items() if value is not None
    }
