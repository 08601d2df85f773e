"""What `onthejob train` does with its options: the loop, a look without an update, and a recorded update again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from onthejob.commands.judging import judge_of
from onthejob.commands.player_specs import (
    HostedOptions,
    HostedSeats,
    adapters_folder,
    adapters_for,
    load_model,
    lora_of,
    named_adapters,
)
from onthejob.commands.prompt_lengths import Fit, opened
from onthejob.commands.rewarding import reward_of
from onthejob.commands.scaling import scaled
from onthejob.commands.terminal import Terminal, table
from onthejob.commands.train_collected import collected_states, with_collected
from onthejob.commands.train_servers import make_sampler, sampler_here, servers_ready, updated_by
from onthejob.errors import ConfigError
from onthejob.rollout.library import Entry
from onthejob.rollout.pool import TaskPool
from onthejob.train import Evaluate, TrainResult
from onthejob.train.reports import line
from onthejob.types import Adapter, Environment, Learner, Policy, Sampler, Sampling, Split, StopReason

if TYPE_CHECKING:
    from rich.console import RenderableType

    from onthejob.commands.train import Train
    from onthejob.learn.learner import LocalLearner
    from onthejob.learn.lora import LoraSpec
    from onthejob.models.chat import ChatEncoder
    from onthejob.record import Run
    from onthejob.rollout.judge import Judge
    from onthejob.scale.runtime import Runtime
    from onthejob.stack import Stack

SMOKE_TASKS, SMOKE_SIZE = 4, 4


def assemble(
    options: Train,
    terminal: Terminal,
    init: Mapping[str, Adapter] | None,
    check: Callable[[ChatEncoder], None] | None = None,
) -> tuple[Stack, LocalLearner]:
    """The model and the learner of its adapters, which start as `init` where it has them; `check` as for `load_model`."""
    from onthejob.stack import attach_learner

    if options.model.device == "meta" and options.sampler == "worker":
        from onthejob.serve.remote import reach, token_from
        from onthejob.stack import describe_stack

        digest = str(reach(options.trainer, token=token_from()).get("base"))
        stack = describe_stack(
            options.model.name, digest=digest, arguments=options.model.template_arguments, progress=terminal.progress
        )
        if check is not None:
            check(stack.chat)
    else:
        stack = load_model(options.model, terminal.progress, check, sampled=options.sampler == "in-process")
    return attach_learner(
        stack,
        options.roles,
        lora=options.lora,
        config=options.learner,
        seed=options.train.seed,
        init=init,
    )


def planned(options: Train, terminal: Terminal, init: Mapping[str, Adapter] | None) -> Train:
    """`options` with the shape of the adapters that will be trained, which is reported; no weights are read."""
    from onthejob.stack import plan_lora

    lora = plan_lora(options.model.name, shape_asked(options, init), progress=terminal.progress)
    return dataclasses.replace(options, lora=lora)


def shape_asked(options: Train, init: Mapping[str, Adapter] | None) -> LoraSpec:
    """The shape of the adapters as far as it does not depend on the model."""
    from onthejob.learn.learner import LearnerConfig

    lora = lora_of(options.init, options.roles, options.lora) if init else options.lora
    if options.learner.logit_scale_lr != LearnerConfig().logit_scale_lr and not lora.logit_scale:
        raise ConfigError(
            f"--learner.logit-scale-lr {options.learner.logit_scale_lr:g} has no effect on adapters without a logit scale. "
            "Add --lora.logit-scale, or leave it out."
        )
    return lora


class Others(NamedTuple):
    """Who takes part in a run and is not trained."""

    partners: Mapping[str, Policy]
    judge: Callable[[Path], Judge] | None
    """Makes the judge, given the file in which its verdicts are kept."""


def frozen_seats(freeze: Sequence[str], roles: Sequence[str], trained: Sequence[str]) -> dict[str, Adapter]:
    """Role -> adapter that plays it without being trained.

    Args:
        freeze: each `ROLE=ADAPTERS`.
        roles: of the environment.
        trained: those of them that are trained.
    """
    found: dict[str, Adapter] = {}
    for seat in freeze:
        role, equals, source = seat.partition("=")
        if not equals or role not in roles or role in found or not source:
            raise ConfigError(f"--freeze must be ROLE=ADAPTERS, once for a role, with ROLE of {', '.join(roles)}; got {seat!r}.")
        if role in trained:
            raise ConfigError(f"--freeze {seat}: {role} is among --roles, which are trained. Leave it out of one of them.")
        found[role] = adapters_for(source, (role,))[role]
    return found


def room_of(
    options: Train, make_env: Callable[[], Environment], pool: TaskPool, partners: Mapping[str, Policy]
) -> Callable[[ChatEncoder], None]:
    """What refuses a model before it is loaded because the roles' first prompts exceed its context, or that of its server."""
    from onthejob.rollout.room import check_room

    def check(chat: ChatEncoder) -> None:
        if options.sampler == "vllm":
            chat.limit(options.server.max_model_len)
        task, sampling = pool.tasks[0], options.train.sampling
        check_room(chat, make_env, task, actors=options.roles, partners=partners, sampling=sampling)

    return check


@contextmanager
def seated(options: Train) -> Iterator[Others]:
    """The others, found before a model is loaded or a run exists: a wrong name or a missing key should leave nothing behind.

    Raises:
        ConfigError: a hosted model's name, key or region is wrong or missing.
        MissingDependency: its provider's extra is not installed.
        ProviderError: its server does not say what it serves.
    """
    place = options.place()
    fit = Fit(env=place.env, reply=options.train.sampling.max_new_tokens)
    bounds = HostedOptions(**dataclasses.asdict(options.hosted))
    with closing(HostedSeats(bounds, schema=place.schema, fit=fit)) as hosted:
        if place.env.hosted_partner:
            partners: Mapping[str, Policy] = dict.fromkeys(place.roles, hosted.policy(place.env.hosted_partner))
        else:
            partners = place.partners()
        yield Others(partners, judge_of(options.judge, options.judging, hosted, place) if options.judge else None)


@contextmanager
def tracked(names: Sequence[str], run: Path, terminal: Terminal) -> Iterator[None]:
    """Let trackers follow a run; what they have not received at its end is said, with the command that sends it."""
    if not names:
        yield
        return
    from onthejob.track import start_trackers

    with start_trackers(names, run) as trackers:
        yield
    for sentence in trackers.left:
        terminal.warn(sentence)


def task_pool(options: Train) -> TaskPool:
    """The training tasks."""
    place = options.place()
    return TaskPool(
        place.tasks(Split.TRAIN),
        seed=options.train.seed,
        patience=options.train.patience,
        family=place.env.family,
        grow=place.env.more_tasks(),
        curriculum=place.env.task_schedule(options.train.iterations),
        prefer_spread=options.train.prefer_spread,
    )


def run_loop(
    options: Train,
    terminal: Terminal,
    make_env: Callable[[], Environment],
    pool: TaskPool,
    stack: Stack,
    learner: Learner,
    run: Run,
    others: Others,
    *,
    sampler: Sampler | None,
    runtime: Runtime | None = None,
    collected: Sequence[Entry] = (),
    resume: bool = False,
) -> TrainResult:
    """Train in a workplace that is open; `sampler` is that of this process, None where another program samples."""
    from onthejob.loop import train
    from onthejob.train import Setup

    with ExitStack() as helpers:
        judge = others.judge(run.path / "judge.sqlite") if others.judge is not None else None
        if judge is not None:
            helpers.callback(judge.close)
        samples = sampler or make_sampler(options, stack, learner, run, terminal, helpers)
        partners = {**others.partners, **_frozen(options, samples)}
        setup = Setup(
            config=options.train,
            make_env=make_env,
            pool=pool,
            learner=learner,
            sampler=samples,
            encoder=stack.chat,
            run=run,
            partners=partners,
            roles=tuple(options.roles),
            base_digest=stack.digest,
            evaluate=_validator(options, make_env, samples, partners, runtime, run.path) if options.train.eval_every else None,
            judge=judge,
            reward=reward_of(options),
            collected=tuple(collected),
            on_progress=lambda report: terminal.progress(line(report, options.train.grouping)),
            runtime=runtime,
        )
        return train(setup, resume=resume)


def _frozen(options: Train, sampler: Sampler) -> dict[str, Policy]:
    """Role -> the adapter that plays it without being trained, published to `sampler`."""
    from onthejob.models.adapter_policy import AdapterPolicy

    adapters = frozen_seats(options.freeze, options.place().roles, options.roles)
    for adapter in adapters.values():
        sampler.publish(adapter)
    return {role: AdapterPolicy(sampler, sampler.chat, adapter=adapter.name) for role, adapter in adapters.items()}


def look(options: Train, terminal: Terminal) -> int:
    """One round of groups of the policy as it is at the start, thrown away after it was described."""
    from onthejob.learn.advantage import Signal, signal
    from onthejob.record import Run
    from onthejob.rollout.summary import spreads, stop_mix

    loop = dataclasses.replace(
        options.train,
        iterations=1,
        dry_run=True,
        eval_every=0,
        collect=dataclasses.replace(options.train.collect, episodes=SMOKE_TASKS),
        branch=dataclasses.replace(options.train.branch, group_size=SMOKE_SIZE),
    )
    options, collected = with_collected(dataclasses.replace(options, train=loop))
    init = adapters_for(options.init, options.roles) if options.init else None
    servers_ready(options, terminal)
    pool = task_pool(options)
    shape_asked(options, init)
    with (
        seated(options) as others,
        opened(options, terminal) as (options, make_env),
        scaled(options, terminal) as runtime,
        TemporaryDirectory(prefix="onthejob-smoke-") as folder,
    ):
        states = collected_states(collected, make_env, terminal)
        options = planned(options, terminal, init)
        stack, learner = assemble(options, terminal, init, room_of(options, make_env, pool, others.partners))
        with (
            updated_by(options, stack, learner, runtime, terminal) as learner,
            Run.create(folder, config={}, name="smoke") as run,
        ):
            sampler = sampler_here(options, stack, runtime, terminal)
            run_loop(
                options, terminal, make_env, pool, stack, learner, run, others,
                sampler=sampler, runtime=runtime, collected=states,
            )  # fmt: skip
            groups = list(run.read_groups(1))
    found, mix = spreads(groups), stop_mix(groups)
    alive = sum(signal(group) is not Signal.DEAD for group in groups)
    rows = [
        (group.key.split("/", 1)[1], " ".join(f"{ret:+.3f}" for ret in group.returns), group.std, _counts(group.stops))
        for group in found
    ]
    data = {"groups": found, "alive": alive, "stops": mix}
    shares = ", ".join(f"{stop} {share:.0%}" for stop, share in mix.items())
    terminal.result(
        data,
        table(("group", "returns", "spread", "stops"), rows),
        f"{alive} of {len(found)} groups can teach something; stops: {shares or 'none'}",
    )
    return 0


def replay(options: Train, terminal: Terminal) -> int:
    """Perform recorded updates again and show what they measured."""
    from onthejob.record import Run
    from onthejob.stack import shape_of
    from onthejob.train import replay_update

    path, _, number = options.from_groups.rpartition(":")
    if not path or not number.isdigit():
        raise ConfigError(f"--from-groups must be RUN:ITERATION, e.g. runs/mine:3, got {options.from_groups!r}.")
    init = named_adapters(options.init) if options.init else {}
    reference = named_adapters(options.reference) if options.reference else {}
    missing = [
        role for role in options.roles if (options.init and role not in init) or (options.reference and role not in reference)
    ]
    if missing:
        raise ConfigError(f"--init or --reference has no adapter of {', '.join(missing)}. Name the roles it has with --roles.")
    with Run.open(adapters_folder(path), readonly=True) as run:
        recorded = {role: found[0] for role in options.roles if (found := run.adapters(role))}
        # What is given must fit the run, whose checkpoints and version 0 are loaded too.
        loaded = {
            f"{role} of {source}": adapter
            for source, found in ((path, recorded), (options.init, init), (options.reference, reference))
            for role, adapter in found.items()
            if role in options.roles
        }
        options = dataclasses.replace(options, lora=shape_of(loaded, options.lora, where=path))
        options = dataclasses.replace(planned(options, terminal, None), sampler=run.config.get("sampler", options.sampler))
        _, learner = assemble(corrected(options, terminal), terminal, None)
        updates = {
            role: replay_update(
                run,
                int(number),
                role,
                learner=learner,
                advantage=options.train.advantage,
                init=init.get(role),
                reference=reference.get(role),
            )
            for role in options.roles
        }
    rows = [(role, name, value) for role, values in updates.items() for name, value in values.items()]
    terminal.result(updates, table(("role", "metric", "value"), rows))
    return 0


def corrected(options: Train, terminal: Terminal) -> Train:
    """With vLLM, the difference between its numbers and the trainer's is corrected unless something else was asked for."""
    asked = options.learner.loss
    loss = asked.settled(exact=options.sampler == "in-process")
    if loss.corrects and not asked.corrects:
        terminal.progress(f"vLLM samples: --learner.loss.correction {loss.correction} (TIS)")
    return dataclasses.replace(options, learner=dataclasses.replace(options.learner, loss=loss))


def _validator(
    options: Train,
    make_env: Callable[[], Environment],
    sampler: Sampler,
    partners: Mapping[str, Policy],
    runtime: Runtime | None,
    folder: Path,
) -> Evaluate:
    from onthejob.evaluate.evaluations import keep_evaluation
    from onthejob.evaluate.validation import validator
    from onthejob.keys import keyed_sample, keyed_seed

    place = options.place()
    tasks, workers = place.tasks(Split.DEV), place.workers
    if runtime is not None and options.train.grouping == "episodes":
        make_env, workers = runtime.environments(make_env), max(workers, runtime.threads)
    return validator(
        make_env,
        keyed_sample(tasks, min(options.eval_tasks, len(tasks)), options.train.seed, "validation"),
        sampler=sampler,
        partners=partners,
        sampling=Sampling(temperature=options.eval_temperature, max_new_tokens=options.train.sampling.max_new_tokens),
        seed=keyed_seed(options.train.seed, "validation replies"),
        max_turns=place.env.max_turns,
        workers=workers,
        keep=lambda iteration, tasks: keep_evaluation(folder, iteration, options.train.best_metric, tasks),
    )


def newest_verdict(folder: Path, last: int) -> tuple[dict[str, Any], list[RenderableType]]:
    """The run's newest evaluation against that of its start, as JSON and for people; both empty without evaluations."""
    from onthejob.evaluate.evaluations import newest_findings
    from onthejob.evaluate.terminal_tables import findings_block

    found = newest_findings(folder, last)
    return ({}, []) if found is None else ({"verdict": found.as_dict()}, [findings_block(found)])


def _counts(stops: Mapping[StopReason, int]) -> str:
    return ", ".join(f"{count} {stop}" for stop, count in stops.items())
