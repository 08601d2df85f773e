"""`--scale.*`: the runtime in which `train` scores branches and steps whole episodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from onthejob.errors import ConfigError
from onthejob.learn.sharing import adapter_sets
from onthejob.plugins import anchored
from onthejob.scale.runtime import Facts
from onthejob.scale.scale_config import check_scale, open_runtime

if TYPE_CHECKING:
    from onthejob.commands.terminal import Terminal
    from onthejob.commands.train import Train
    from onthejob.learn.learner import LocalLearner
    from onthejob.scale.base_spec import BaseSpec
    from onthejob.scale.crew_learner import CrewLearner
    from onthejob.scale.crew_sampler import CrewSampler
    from onthejob.scale.runtime import Runtime
    from onthejob.stack import Stack


def check_scaling(options: Train) -> None:
    """Refuse a runtime that is not installed, or that nothing would use.

    Raises:
        ConfigError: says which option to omit.
        MissingDependency: ray is not installed.
    """
    scale, quiet = options.scale, options.from_groups or options.from_bundles is not None
    if scale.learners and (quiet or options.smoke):
        raise ConfigError(
            "--scale.learners has no effect with --smoke, --from-groups and --from-bundles, which update nothing or in this "
            "process. Leave it out."
        )
    if scale.samplers and quiet:
        raise ConfigError("--scale.samplers has no effect where nothing is played (--from-groups, --from-bundles). Leave it out.")
    if options.resume is None:
        check_learners(options)
    if scale.backend == "local":
        return
    if quiet:
        raise ConfigError("--scale.backend has no effect where nothing is played (--from-groups, --from-bundles). Leave it out.")
    if options.train.grouping == "branch" and options.train.workers:
        raise ConfigError(
            f"--workers {options.train.workers} counts processes of --scale.backend local. With {options.scale.backend} set "
            "--scale.workers."
        )
    check_scale(options.scale)


def check_learners(options: Train) -> None:
    """Refuse learners that would wait, and learners and samplers that cannot work with these options.

    Raises:
        ConfigError: says which option to change.
    """
    if options.scale.samplers and options.sampler != "in-process":
        raise ConfigError(f"--scale.samplers has no effect with --sampler {options.sampler}. Leave one of them out.")
    if options.scale.samplers and options.place().env.goes_on:
        raise ConfigError(
            f"--scale.samplers cannot sample {options.env} as one process does: there conversations continue from cached replies "
            "(goes_on), whose last bits depend on where they were sampled. Leave it out."
        )
    count, sets = options.scale.learners, len(adapter_sets(options.train.adapters, options.roles))
    if options.scale.samplers and options.model.device != "cpu":
        raise ConfigError(f"--scale.samplers compute on CPUs, and --model.device is {options.model.device}. Leave one out.")
    if not count:
        return
    if options.trainer:
        raise ConfigError("--scale.learners and --trainer both make the updates. Leave one out.")
    if options.model.device != "cpu":
        raise ConfigError(f"--scale.learners computes on CPUs, and --model.device is {options.model.device}. Leave one out.")
    if count > sets:
        raise ConfigError(
            f"--scale.learners {count} is more than there are adapters to train: {sets}. Set --scale.learners {sets}."
        )


@contextmanager
def scaled(options: Train, terminal: Terminal) -> Iterator[Runtime]:
    """The runtime of `options`, for as long as the context lasts.

    Raises:
        ConfigError, ScaleError: as `open_runtime`.
    """
    check_learners(options)
    local = options.scale.backend == "local"
    if not local:
        where = options.scale.address or "a cluster of this machine"
        terminal.progress(f"workers of {options.scale.backend} at {where}")
    branches = options.train.grouping == "branch"
    workers = options.train.workers if local and branches else 0
    with open_runtime(options.scale, workers=workers, facts=facts_of(options), base=base_of(options).facts) as runtime:
        if not local:
            terminal.progress(f"{runtime.workers} workers")
        yield runtime


def facts_of(options: Train) -> Facts:
    """What every worker must have: the environment's file, and sandboxes where its steps need them."""
    from onthejob.claw import Claw

    env = options.environment
    functions: list[tuple[str, tuple[Any, ...]]] = []
    stated: list[tuple[str, str]] = []
    if ":" in options.env:
        functions.append(("onthejob.plugins:environment_here", (anchored(options.env),)))
    if isinstance(env, Claw) and not env.unsafe:
        functions.append(("onthejob.envs.claw.sandbox.requirements:sandbox_here", ()))
        stated.append(("sandbox", "usable"))
    return Facts(functions=tuple(functions), stated=tuple(stated))


def base_of(options: Train) -> BaseSpec:
    """What learners load."""
    import torch

    from onthejob.scale.base_spec import BaseSpec

    return BaseSpec(
        model=options.model.name,
        dtype=options.model.settled_dtype(),
        quantize=options.model.quantize,
        threads=torch.get_num_threads(),
    )


def crew_sampler(options: Train, stack: Stack, runtime: Runtime, terminal: Terminal) -> CrewSampler:
    """The samplers of `options`, once all of them can work.

    Raises:
        ConfigError: the base needs other code than the compiled, or a node has another base, processor or versions.
        ScaleError: a sampler cannot be started.
    """
    from onthejob.scale.crew_sampler import CrewSampler, check_exact
    from onthejob.scale.sampler_job import SamplerSpec

    check_exact(stack.model)
    spec = SamplerSpec(
        base=base_of(options),
        base_digest=stack.digest,
        arguments=options.model.template_arguments,
    )
    terminal.progress(f"{options.scale.samplers} samplers")
    return CrewSampler(runtime, options.scale.samplers, stack.chat, spec)


def crew_learner(options: Train, stack: Stack, learner: LocalLearner, runtime: Runtime, terminal: Terminal) -> CrewLearner:
    """The learners of `options` in the place of `learner`, once all of them can work.

    Raises:
        ConfigError: a node has another base or other versions.
        ScaleError: no learner can be started.
    """
    from onthejob.scale.crew_learner import CrewLearner

    base = base_of(options)
    terminal.progress(f"{options.scale.learners} learners")
    crew = runtime.crew("learner", options.scale.learners, facts=base.facts)
    return CrewLearner(learner, crew, base=base, lora=options.lora)
