"""Places that a command will write to, tried before anything is loaded or played."""

from __future__ import annotations

import os
from pathlib import Path

from onthejob.errors import ConfigError, RecordError


def check_writable(path: Path, option: str) -> None:
    """Refuse a file that cannot be written, before hours are spent on its contents.

    Args:
        path: of the file, which is left as it is; its folder is made.
        option: that names it, for the message.
    """
    if path.is_dir():
        raise ConfigError(f"{option} cannot be written to {path}: it is a folder. Give the name of a file.")
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
        part.unlink()
    except OSError as error:
        raise ConfigError(f"{option} cannot be written to {path}: {error}. Name another place.") from error


def check_folder(path: Path, option: str) -> None:
    """Refuse a folder into which nothing can be written; one that does not exist is not made yet.

    Args:
        path: of the folder.
        option: that names it, for the message.
    """
    above = (path.absolute(), *path.absolute().parents)
    try:
        place = next(folder for folder in above if folder.exists() or folder.is_symlink())
        if not place.is_dir():
            raise ConfigError(f"{option} cannot be a folder at {path}: {place} is no folder. Name another place.")
        trial = place / f".onthejob-{os.getpid()}.part"
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        raise ConfigError(f"{option} cannot be written to {path}: {error}. Name another place.") from error


def check_plain_name(name: str, what: str, option: str = "--name") -> None:
    """Refuse a name that could leave its folder, as a mistake of the command line.

    Args:
        name: as it was given with `option`.
        what: that it names, for the message.
        option: that names it.
    """
    from onthejob.record.store import check_name

    try:
        check_name(name, what)
    except RecordError as error:
        raise ConfigError(f"{option}: {error}") from error
