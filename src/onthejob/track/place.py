"""Names of trackers: how `--track` says where a run's record is sent.

    trackio, wandb, mlflow         with `:PROJECT` (mlflow: experiment), default onthejob
    tensorboard                    event files in the run's folder, or `tensorboard:FOLDER`
    jsonl                          a file in the run's folder, or `jsonl:FILE`
    FILE.csv, FILE.xlsx, sheets:ID one row per turn and one per episode
    package.module:Class, path/to/file.py:Class   a `Tracker` of your own

A module behind a name has a function `check(what)`, which refuses what cannot work before anything is loaded, and a function
`tracker(what)`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from onthejob.errors import ConfigError, MissingDependency
from onthejob.plugins import found
from onthejob.track.tracker import Tracker


class TrackerKind(NamedTuple):
    """One kind of tracker."""

    module: str
    package: str = ""
    """As it is imported; empty when nothing has to be installed."""
    install: str = ""
    """As pip names it."""
    path: bool = False
    """What stands after the colon is a path."""


KINDS = {
    "trackio": TrackerKind("onthejob.track.to_trackio", "trackio", "trackio"),
    "wandb": TrackerKind("onthejob.track.to_wandb", "wandb", "wandb"),
    "tensorboard": TrackerKind("onthejob.track.to_tensorboard", "tensorboard", "tensorboard", path=True),
    "mlflow": TrackerKind("onthejob.track.to_mlflow", "mlflow", "mlflow-skinny"),
    "jsonl": TrackerKind("onthejob.track.to_jsonl", path=True),
    "sheets": TrackerKind("onthejob.track.to_sheets", "gspread", "gspread"),
}
"""Name before the colon -> kind."""
FILES = {
    ".csv": TrackerKind("onthejob.track.to_csv"),
    ".xlsx": TrackerKind("onthejob.track.to_xlsx", "openpyxl", "openpyxl"),
    ".jsonl": TrackerKind("onthejob.track.to_jsonl"),
}
"""Ending of a file -> kind."""
FORMS = (
    "trackio, wandb, tensorboard, mlflow, jsonl, FILE.csv, FILE.xlsx, sheets:ID, or a class of your own as path/to/file.py:Class "
    "or package.module:Class"
)


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that cannot work, before anything is loaded.

    Raises:
        ConfigError: a name means nothing, is given twice, or what it names cannot be written or used.
        MissingDependency: its package is not installed.
    """
    places = [anchored(name) for name in names]
    for place in places:
        if places.count(place) > 1:
            raise ConfigError(f"--track names {place} twice. Name each tracker once.")
        _module_or_class(place, check=True)


def anchored(name: str) -> str:
    """`name` as it is found from every folder: the path of a file or folder is absolute."""
    kind, what = _kind(name)
    if name.endswith(tuple(FILES)) and kind is not None and not name.startswith("jsonl:"):
        return str(Path(name).expanduser().absolute())
    scheme, colon, _ = name.partition(":")
    if kind is not None:
        return f"{scheme}:{Path(what).expanduser().absolute()}" if colon and kind.path else name
    path, colon, attribute = name.rpartition(":")
    return f"{Path(path).expanduser().absolute()}{colon}{attribute}" if path.endswith(".py") else name


def maker(name: str) -> Callable[[], Tracker]:
    """A function that makes the tracker `name`, anew after each failure.

    Raises:
        ConfigError, MissingDependency: as `check_trackers`.
    """
    return _module_or_class(name, check=True)


def _kind(name: str) -> tuple[TrackerKind | None, str]:
    """The kind behind a name, None for a class of the user's; and what the name says besides."""
    scheme, colon, what = name.partition(":")
    if scheme in KINDS:
        if colon and not what:
            raise ConfigError(f"--track {name} says nothing after the colon. Write {scheme}, or what it is to be.")
        return KINDS[scheme], what
    ending = Path(name).suffix.lower()
    if ending in FILES and name != ending:
        return FILES[ending], name
    if not colon:
        raise ConfigError(f"there is no tracker {name!r}: known are {FORMS}.")
    return None, name


def _module_or_class(name: str, *, check: bool) -> Callable[[], Tracker]:
    kind, what = _kind(name)
    if kind is None:
        return _of_the_user(name)
    if kind.package and importlib.util.find_spec(kind.package) is None:
        raise MissingDependency(f"--track {name} needs {kind.package}, which is not installed. Run: pip install {kind.install}")
    module = importlib.import_module(kind.module)
    if check:
        module.check(what)
    return lambda: module.tracker(what)


def _of_the_user(name: str) -> Callable[[], Tracker]:
    made = found(name, "--track")
    if not isinstance(made, type):
        raise ConfigError(
            f"--track {name} is a {type(made).__name__}, and a tracker is a class. Derive it from onthejob.track.Tracker."
        )
    lacking = sorted(
        method
        for method in ("start", "metrics", "transcripts", "episodes", "turns", "adapter", "flush", "finish", "tables")
        if method not in dir(made)
    )
    if lacking:
        raise ConfigError(
            f"--track {name} lacks {', '.join(lacking)}. Derive it from onthejob.track.Tracker, which has them all."
        )
    needed = [
        parameter.name
        for parameter in inspect.signature(made).parameters.values()
        if parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise ConfigError(
            f"--track {name} cannot be made without {', '.join(needed)}. Give its constructor's arguments defaults."
        )
    return made
