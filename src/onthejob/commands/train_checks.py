"""Options of `onthejob train` that cannot work, or that have no effect with each other."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from onthejob.commands.env_options import OFFICE
from onthejob.commands.judging import check_judge
from onthejob.commands.named_env import changed
from onthejob.commands.rewarding import check_reward
from onthejob.commands.train_bundles import check_bundles
from onthejob.commands.train_collected import check_collected
from onthejob.commands.training import (
    frozen_seats,
)
from onthejob.errors import ConfigError
from onthejob.learn.sharing import PER_ROLE, adapter_sets
from onthejob.plugins import function_of
from onthejob.train.config import check_advantages, check_opponents

if TYPE_CHECKING:
    from onthejob.commands.train import Train


def check_options(options: Train) -> None:
    """Refuse options of `train` that cannot work, or that have no effect with each other, before anything is loaded."""
    place = options.place()
    unknown = [role for role in options.roles if role not in place.roles]
    if unknown or not options.roles:
        raise ConfigError(
            f"roles must be some of {', '.join(place.roles)}, got {', '.join(unknown) or 'none'}.{place.why_not(unknown)}"
        )
    if options.freeze:
        frozen_seats(options.freeze, place.roles, options.roles)
        if options.from_groups:
            raise ConfigError("--freeze has no effect on a recorded update. Leave it out.")
    if options.train.past and options.sampler != "in-process":
        raise ConfigError(
            f"--opponents {options.train.opponents} plays several versions of a role at once, and --sampler {options.sampler} "
            "has one of each. Leave one of them out."
        )
    check_opponents(options.train, options.roles)
    if options.train.adapters != PER_ROLE and len(options.roles) < 2:
        raise ConfigError(f"--adapters {options.train.adapters} has no effect with one trained role. Leave it out.")
    if len(adapter_sets(options.train.adapters, options.roles)) < len(options.roles) and options.from_groups:
        raise ConfigError("--adapters has no effect with --from-groups: the record says who shared one. Leave it out.")
    for flag, ref in options.plugins().items():
        function_of(ref, flag)
        if options.trainer and flag == "--learner.loss.loss":
            raise ConfigError(f"{flag} {ref} is code of this machine, and --trainer makes the updates on another. Leave one out.")
    if options.reference and not options.from_groups and options.from_bundles is None:
        raise ConfigError(
            "--reference has no effect without --from-groups or --from-bundles. Leave it out, or name what is updated from."
        )
    if options.resume is not None:
        now = ("resume", "extend", "trainer", "trainer_wait_s", "track", "output", "own")
        usual = type(options).starting(options.env).fitted()
        given = differing(options, dataclasses.replace(usual, **{name: getattr(options, name) for name in now}))
        given += differing(options.environment, usual.environment, "env.")
        given += ["--env"] if options.env != OFFICE else []
        if given:
            longer = " For more iterations give --extend." if "--iterations" in given else ""
            raise ConfigError(
                f"--resume continues with the run's own options. Omit {', '.join(given)}, or start a new run.{longer}"
            )
    elif options.extend:
        raise ConfigError("--extend has no effect without --resume. Set --iterations for a new run.")
    if options.sampler == "worker" and not options.trainer and options.resume is None:
        raise ConfigError("--sampler worker samples on the training worker's machine. Name it with --trainer.")
    if not options.trainer and options.trainer_wait_s != type(options)().trainer_wait_s:
        raise ConfigError("--trainer-wait-s has no effect without --trainer. Leave it out, or name the worker.")
    if not 0.0 <= options.trainer_wait_s < float("inf"):
        raise ConfigError(f"trainer_wait_s must be finite and >= 0 seconds, got {options.trainer_wait_s}.")
    if options.trainer and options.from_groups:
        raise ConfigError("--from-groups repeats the update in this process. Leave --trainer out.")
    if options.smoke and options.from_groups:
        raise ConfigError("--smoke collects, --from-groups repeats what was collected. Leave one of them out.")
    if options.from_bundles is not None:
        check_bundles(options)
    check_collected(options)
    if options.eval_tasks < 1 or not 0.0 <= options.eval_temperature < float("inf"):
        got = f"{options.eval_tasks} and {options.eval_temperature}"
        raise ConfigError(f"eval_tasks must be >= 1 and eval_temperature finite and >= 0, got {got}.")
    judging = [f for f in dataclasses.fields(options) if f.name.startswith("eval_") and changed(options, f)]
    if judging and not options.train.eval_every:
        flags = ", ".join("--" + f.name.replace("_", "-") for f in judging)
        raise ConfigError(f"{flags} has no effect without --eval-every. Set --eval-every 5, or leave it out.")
    if options.train.grouping == "branch" and not place.forkable:
        raise ConfigError(f"--grouping branch needs a workplace that can be forked, and the {options.env} cannot. Leave it out.")
    if options.trainer:
        from onthejob.serve.remote import token_from

        token_from()
    if options.track:
        from onthejob.track import check_trackers

        if options.smoke or options.from_groups:
            raise ConfigError("--track follows a run, and nothing is recorded here. Leave it out.")
        check_trackers(options.track)
    check_advantages(options.train)
    place.check(training=True)
    check_reward(options)
    if not place.env.hosted_partner:
        place.partners()
    check_judge(options)


def differing(first: Any, second: Any, prefix: str = "") -> list[str]:
    """The flags in which two sets of options differ."""
    flags = []
    for option in dataclasses.fields(first):
        one, other = getattr(first, option.name), getattr(second, option.name)
        if one == other:
            continue
        if dataclasses.is_dataclass(one) and type(one) is type(other):
            # The options of the loop have no prefix on the command line.
            flags += differing(one, other, "" if option.name == "train" else f"{prefix}{option.name}.")
        else:
            flags.append(f"--{prefix}{option.name.replace('_', '-')}")
    return flags
