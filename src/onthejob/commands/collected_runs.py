"""Runs of collected turns, as the commands write and read them: `play`, `view`, `train` and `sft`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onthejob.commands.env_options import OFFICE, as_table
from onthejob.commands.named_env import Workplace
from onthejob.commands.options import overlay
from onthejob.commands.outputs import check_folder, check_plain_name
from onthejob.commands.player_specs import BASE
from onthejob.commands.runs import RUNS, existing_run
from onthejob.envs.office.scenarios import HELD_OUT, SHIPPED
from onthejob.envs.office.tasks import FIRST_SEED
from onthejob.errors import ConfigError, RecordError
from onthejob.models.catalogue import is_hosted
from onthejob.office import Office
from onthejob.rollout.seats import Mode
from onthejob.train.settings import flat
from onthejob.types import Sampling, Split

if TYPE_CHECKING:
    from onthejob.record import Run
    from onthejob.train.collected import Collected


def modes_of(given: Sequence[str], seats: Mapping[str, str], scripted: Collection[str]) -> dict[str, Mode]:
    """Seat -> its mode.

    Args:
        given: of --mode, each a mode for all seats with a model of this machine, or `ROLE=MODE`.
        seats: seat -> who takes it.
        scripted: names of the scripted players.
    """
    usual = {
        role: Mode.SCRIPTED if who in scripted else Mode.LLM if is_hosted(who) else Mode.INFERENCE for role, who in seats.items()
    }
    found = dict(usual)
    for one in given:
        role, equals, name = one.rpartition("=")
        if name not in set(Mode) or (equals and role not in seats):
            raise ConfigError(
                f"--mode takes a mode ({', '.join(Mode)}) or ROLE=MODE with a role of {', '.join(seats)}, got {one!r}."
            )
        mode = Mode(name)
        taken = [role] if equals else [role for role, fits in usual.items() if fits is Mode.INFERENCE]
        if not taken:
            raise ConfigError(f"--mode {one} has no effect: no seat has a model of this machine. Seat {BASE}, a run or adapters.")
        for role in taken:
            if mode is not usual[role] and (mode, usual[role]) != (Mode.TRAINING, Mode.INFERENCE):
                raise ConfigError(
                    f"--mode {one}: {seats[role]} sits as {role}, whose mode is {usual[role]}. A model of this machine can be in "
                    "inference or training, a hosted one is in llm, and a scripted player in scripted."
                )
            found[role] = mode
    return found


def office_place(office: Office) -> Workplace:
    """The office with the options on which its turns depend, without those that choose companies.

    Args:
        office: with its tokenizer fitted.
    """
    files = tuple(name for name in office.scenarios if name not in (*SHIPPED, *HELD_OUT))
    rules = {
        name: getattr(office, name) for name in ("profile", "prompt_budget", "tokenizer", "crisis_bonus", "reader", "reflect")
    }
    return Workplace(ref=OFFICE, env=Office(**rules, scenarios=files or ("all",), retries=0))


def collected_folder(named: str, root: Path = RUNS) -> Path:
    """The folder of the run to which turns are written: a path, or a name in `root`."""
    path = Path(named)
    folder = root / named if path.name == named else path
    check_plain_name(folder.name, "a run's name", "--collect")
    check_folder(folder.parent, "--collect")
    if folder.exists():
        _readable(folder).close()
    return folder


def open_collected(folder: Path, place: Workplace, *, model: str, template_arguments: Sequence[str], sampling: Sampling) -> Run:
    """The run in `folder`, made if it does not exist, for more turns of the same kind.

    Args:
        folder: of the run.
        place: the environment that is played, with the profile in which prompts are rendered.
        model: the base model.
        template_arguments: of its chat template.
        sampling: of the seats in training mode.

    Raises:
        ConfigError: its turns are of another environment, model or sampling; or it is a run of another kind.
        RecordError: it cannot be written, or another process writes it.
    """
    from onthejob.record import Run

    here = Path(model).expanduser()
    config = {
        "mode": str(Mode.TRAINING),
        "env": as_table(place.ref, place.env, fingerprint=place.fingerprint),
        "model": {"name": str(here.absolute()) if here.is_dir() else model, "template_arguments": list(template_arguments)},
        "train": {"sampling": dataclasses.asdict(sampling)},
    }
    if not folder.exists():
        return Run.create(folder.parent, config=config, name=folder.name)
    with _readable(folder) as held:
        recorded = held.config
    old, new = (dict(flat(one)) for one in (recorded, config))
    if differs := [f"{name} {old.get(name)} (now {new.get(name)})" for name in {**old, **new} if old.get(name) != new.get(name)]:
        raise ConfigError(
            f"{folder} holds turns of {', '.join(differs)}. A run has turns of one kind: name another one with --collect."
        )
    return Run.open(folder)


def free_seed(folder: Path) -> int:
    """The first training seed behind those of which `folder` holds turns, so that no company is met twice."""
    if not folder.exists():
        return FIRST_SEED[Split.TRAIN]
    with _readable(folder) as run:
        begun = [
            episode.facts["origin"]["task"]["seed"] for episode in run.read_episodes(turns=False) if "origin" in episode.facts
        ]
    return max(begun, default=FIRST_SEED[Split.TRAIN] - 1) + 1


def load_collected(named: str, roles: Sequence[str] = ()) -> Collected:
    """The turns of the run `named`; with `roles` only theirs.

    Raises:
        ConfigError: no such run, one of another kind, or without turns of one of `roles`.
        RecordError: it is damaged.
    """
    from onthejob.train.collected import read_collected

    with _readable(existing_run(Path(named))) as run:
        found = read_collected(run)
    actors = list(dict.fromkeys(turn.actor for turn in found.turns))
    if missing := [role for role in roles if role not in actors]:
        raise ConfigError(f"{named} has no turn of {', '.join(missing)}; it has those of {', '.join(actors)}.")
    if roles:
        found = dataclasses.replace(found, turns=tuple(turn for turn in found.turns if turn.actor in roles))
    return found


def check_same_place(collected: Collected, place: Workplace) -> None:
    """Refuse to train in another environment than that in which the turns were collected."""
    recorded = dict(collected.config["env"])
    now = as_table(place.ref, place.env)
    if recorded.get("ref") != now["ref"]:
        raise ConfigError(f"{collected.path} was collected in {recorded.get('ref')}, and --env is {now['ref']}.")
    where = f"the configuration of {collected.path}"

    def fingerprint(options: Mapping[str, Any]) -> str:
        env = overlay(
            place.env, {name: value for name, value in options.items() if name not in ("ref", "fingerprint")}, where=where
        )
        return dataclasses.replace(place, env=env).fitted().fingerprint

    if fingerprint(recorded) != recorded.get("fingerprint"):
        raise ConfigError(
            f"{collected.path} was collected in another version of {place.ref} (fingerprint {recorded.get('fingerprint')}, now "
            f"{fingerprint(recorded)}). Collect turns again."
        )
    # No snapshot depends on how much of a prompt its model read: what is trained reads as its own context allows.
    recorded, now = ({**options, "prompt_budget": None, "tokenizer": ""} for options in (recorded, now))
    differs = [
        f"--env.{name.replace('_', '-')} {value} (now {now.get(name)})"
        for name, value in recorded.items()
        # Options that only choose tasks do not count.
        if value != now.get(name) and fingerprint({**now, name: value}) != fingerprint(now)
    ]
    if differs:
        raise ConfigError(
            f"{collected.path} was collected in {place.ref} with {', '.join(differs)}. Train with the same options."
        )


def _readable(folder: Path) -> Run:
    """The run in `folder`, open for reading, when it is one of collected turns."""
    from onthejob.record import Run
    from onthejob.train.collected import require_collected

    try:
        run = Run.open(folder, readonly=True)
    except RecordError as error:
        if (folder / "run.sqlite").is_file():
            raise
        raise ConfigError(f"{folder} holds no run: name one that `onthejob view --collect` wrote, or a new one.") from error
    try:
        require_collected(run)
    except ConfigError:
        run.close()
        raise
    return run
