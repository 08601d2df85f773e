"""Shell work of recorded runs for the viewer: their environment with the options of the record, opened in a sandbox.

Looking at a run may not import what its record names: only environments of this package are opened, and no function of the
user's. `onthejob runs replay` executes the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from onthejob.claw import Claw
from onthejob.commands.env_options import CLAW, OFFICE, earlier, starting
from onthejob.commands.named_env import NamedEnv
from onthejob.commands.options import from_table, overlay
from onthejob.commands.removed import check_record
from onthejob.commands.replay import origins
from onthejob.envs.env import Env
from onthejob.errors import RecordError
from onthejob.record.listing import env_of, short_ref

if TYPE_CHECKING:
    from onthejob.api.changed_files import ShellWork
    from onthejob.record.from_rows import RecordedEpisode
    from onthejob.types import Task

HARBOR = "harbor:"


@contextmanager
def opened_work(config: Mapping[str, Any], run: str) -> Iterator[ShellWork]:
    """The shell work of a run, until the context ends.

    Args:
        config: of the run.
        run: name.

    Raises:
        ConfigError: its options cannot be read, or its tasks are not there.
        RecordError: it is no shell work of this package, was recorded without isolation, or needs a container engine.
        SandboxError: commands cannot be isolated here.
    """
    from onthejob.api.changed_files import ShellWork
    from onthejob.envs.claw.env import ClawEnvironment

    place = _place(config, run)
    origin_of = origins(place.env)

    def task_of(episode: RecordedEpisode) -> Task | str:
        origin = origin_of(episode)
        return origin if isinstance(origin, str) else origin.task

    with place.opened() as make_env, closing(make_env()) as env:
        if not isinstance(env, ClawEnvironment):
            raise RecordError(f"the environment of run {run!r} is a {type(env).__name__}, which has no sandbox.")
        yield ShellWork(env, task_of)


def _place(config: Mapping[str, Any], run: str) -> NamedEnv:
    named = env_of(config)
    if named != CLAW and not named.startswith(HARBOR):
        raise RecordError(
            f"run {run!r} is of {short_ref(named) or OFFICE!r}, and only the commands of {CLAW!r} and of {HARBOR!r} tasks are "
            "executed again here."
        )
    # The rest of the configuration may name functions of the user's, which reading it would import.
    own = {name: config[name] for name in ("env", CLAW) if name in config}
    where = f"the configuration of run {run!r}"
    flat, _ = from_table(check_record(own)[0], where, earlier, OFFICE)
    stated = flat.get("own", {})
    env: Env = overlay(starting(named, "Train"), stated, where=where)
    if isinstance(env, Claw) and env.unsafe:
        raise RecordError(f"run {run!r} was recorded without isolation, and its commands are not executed again.")
    if stated.get("engine", "none") != "none":
        raise RecordError(
            f"the images of run {run!r} come from the container engine {stated['engine']!r}, which is not started to show a run."
        )
    return NamedEnv(ref=named, env=env)
