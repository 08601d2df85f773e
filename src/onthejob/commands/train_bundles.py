"""`onthejob train --from-bundles`: updates from what other runs or programs sampled."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onthejob.commands.bundle_groups import bundled_groups, check_tokens
from onthejob.commands.player_specs import adapters_for, named_adapters
from onthejob.commands.runs import RUNS
from onthejob.commands.terminal import Terminal, table
from onthejob.commands.training import assemble, planned
from onthejob.errors import ConfigError
from onthejob.learn.sharing import check_equal
from onthejob.types import Adapter

if TYPE_CHECKING:
    from onthejob.commands.train import Train
    from onthejob.learn.learner import Learner
    from onthejob.learn.lora import Snapshot
    from onthejob.models.chat import ChatEncoder
    from onthejob.record.bundle_file import Bundled
    from onthejob.train import RoleReport


def check_bundles(options: Train) -> None:
    """Refuse options that have no effect where nothing is played."""
    loop = options.train
    given = {
        "--from-groups": options.from_groups, "--smoke": options.smoke, "--resume": options.resume, "--freeze": options.freeze,
        "--trainer": options.trainer, "--sampler": options.sampler != "in-process", "--reward": options.reward,
        "--judge": options.judge, "--track": options.track, "--eval-every": loop.eval_every, "--dry-run": loop.dry_run,
        "--advantage.shrink": loop.advantage.shrink,
    }  # fmt: skip
    if useless := [flag for flag, value in given.items() if value]:
        raise ConfigError(
            f"{', '.join(useless)} has no effect with --from-bundles: nothing is played, this process makes the updates, and the "
            "file holds the returns. Leave it out."
        )


def update_from_bundles(options: Train, file: Path, terminal: Terminal) -> int:
    """Make the updates of a file of bundles in a new run, and show what they measured."""
    from onthejob.commands.train import anchored
    from onthejob.models.window import refuse_longer
    from onthejob.record import Run
    from onthejob.train.bundles import train_on_bundles

    options._check_new()
    bundled, roles = _groups(options, file)
    options = dataclasses.replace(anchored(options), roles=roles)
    init = adapters_for(options.init, roles) if options.init else None
    if init is not None:
        check_equal(options.train.adapters, roles, init, options.init)
    options = _corrected(planned(options, terminal, init), bundled, terminal)

    def check(chat: ChatEncoder) -> None:
        turns = [turn for one in bundled for row in one.group.trajectories for turn in row.turns]
        check_tokens(chat, turns)
        refuse_longer(chat.window, [turn.prompt_ids + turn.completion.token_ids for turn in turns], new_tokens=0)

    options = dataclasses.replace(options, model=options.model.settled())
    stack, learner = assemble(options, terminal, init, check)
    if other := [one for one in bundled if one.base not in (None, stack.digest)]:
        raise ConfigError(
            f"line {other[0].line} of {file} was sampled with the base {str(other[0].base)[:12]}, and {options.model.name} is "
            f"{stack.digest[:12]}. Name that base with --model.name."
        )
    with Run.create(RUNS, config=options._settings(), name=options.name) as run:
        terminal.progress(f"run {run.path}")
        result = train_on_bundles(
            options.train,
            bundled,
            file=file,
            learner=learner,
            run=run,
            roles=roles,
            references=_references(options, learner, stack.digest),
            base_digest=stack.digest,
            on_progress=lambda number, count, reports: terminal.progress(_line(number, count, reports)),
        )
        path, measured = run.path, {metric.name: metric.value for metric in run.read_metrics(iteration=result.iterations)}
    rows = [(role, adapter.name, str(adapter.path)) for role, adapter in result.adapters.items()]
    terminal.result(
        {"run": path, "updates": result.iterations, "adapters": result.adapters, "metrics": measured},
        f"{path}: {result.iterations} updates from {len(bundled)} groups",
        table(("role", "adapter", "path"), rows),
    )
    return 0


def _groups(options: Train, file: Path) -> tuple[list[Bundled], tuple[str, ...]]:
    """The groups that are trained on, and their roles.

    Raises:
        ConfigError: there are none of a named role, or a group of one trajectory, which has no baseline.
        RecordError: the file cannot be read.
    """
    every = options.place().roles
    bundled = bundled_groups(file, () if options.roles == every else options.roles)
    actors = list(dict.fromkeys(one.group.actor for one in bundled))
    if strange := [actor for actor in actors if actor not in every]:
        raise ConfigError(
            f"{file} has trajectories of {', '.join(strange)}, and {options.env} has the roles {', '.join(every)}. Name the "
            "environment that was played with --env."
        )
    if alone := [one for one in bundled if len(one.group) < 2]:
        raise ConfigError(f"line {alone[0].line} of {file} is a group of one trajectory, which has no baseline. Leave it out.")
    return bundled, tuple(role for role in options.roles if role in actors)


def _corrected(options: Train, bundled: Sequence[Bundled], terminal: Terminal) -> Train:
    """Where something else than this program's sampler made the bundles, its numbers are corrected as those of vLLM are."""
    asked = options.learner.loss
    loss = asked.settled(exact=all(one.sampler == "in-process" for one in bundled))
    if loss.corrects and not asked.corrects:
        terminal.progress(f"sampled elsewhere: --learner.loss.correction {loss.correction} (TIS)")
    return dataclasses.replace(options, learner=dataclasses.replace(options.learner, loss=loss))


def _references(options: Train, learner: Learner, base_digest: str) -> dict[str, Snapshot]:
    """Role -> the policy of the KL term: --reference, or the adapter as it is at the start."""
    from onthejob.learn.adapter_files import load_adapter
    from onthejob.learn.lora import Snapshot, load_state

    starts = {role: Snapshot.take(learner.model, role) for role in options.roles}
    if not options.reference:
        return starts
    given: dict[str, Adapter] = named_adapters(options.reference)
    if missing := [role for role in options.roles if role not in given]:
        raise ConfigError(f"--reference {options.reference} has no adapter of {', '.join(missing)}. Name another one.")
    found = {}
    for role in options.roles:
        load_adapter(learner.model, role, given[role], base_digest=base_digest)
        found[role] = Snapshot.take(learner.model, role)
        load_state(learner.model, role, starts[role].tensors)
    return found


def _line(number: int, count: int, reports: Sequence[RoleReport]) -> str:
    roles = "  ".join(
        f"{report.role} reward {report.summary.mean_return:+.3f} ({report.summary.alive_share:.0%} alive, "
        f"{'published' if report.published else 'kept'} {report.adapter})"
        for report in reports
    )
    return f"update {number}/{count}  {roles}"
