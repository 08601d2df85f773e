"""The folder that is shared: where it is written, and what may not be in it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onthejob.commands.outputs import check_folder
from onthejob.commands.terminal import Terminal
from onthejob.errors import ConfigError

SHARED = Path("shared")
"""Where --dry-run writes when --out names no other folder."""
TEXTS = (".md", ".json", ".jsonl")
"""Endings of files in which keys are looked for."""


def place_of(repo: str, out: Path | None) -> Path:
    """The folder of a dry run."""
    return out or SHARED / repo.split("/")[1]


def check_license(license: str) -> None:
    """Refuse what cannot be an id of a license; whether the Hub knows it is the Hub's to say."""
    if license and not all(part.isalnum() for part in license.replace(".", "-").split("-")):
        raise ConfigError(f"{license!r} is no id of a license. Give one of the Hub's, e.g. --license apache-2.0.")


def check_places(repo: str, *, dry_run: bool, out: Path | None) -> None:
    """Refuse --out without --dry-run, and a folder of --dry-run that exists."""
    if out is not None and not dry_run:
        raise ConfigError("--out has no effect without --dry-run: what is uploaded is kept on the Hub. Leave it out.")
    if dry_run:
        check_new(place_of(repo, out))


def check_new(out: Path) -> None:
    """Refuse a folder that exists, or cannot be made."""
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out} exists, and nothing is overwritten. Remove it, or name another folder with --out.")
    check_folder(out, "--out")


@contextmanager
def drafted(repo: str, *, dry_run: bool, out: Path | None) -> Iterator[Path]:
    """The folder to fill: that of --dry-run, which appears when it is whole, or a temporary one."""
    from onthejob.files import published, remove_abandoned

    if not dry_run:
        with tempfile.TemporaryDirectory(prefix="onthejob-") as name:
            yield Path(name)
        return
    final = place_of(repo, out)
    final.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(final.parent, final.name)
    with published(final) as draft:
        yield draft


def refuse_secrets(folder: Path, terminal: Terminal) -> None:
    """Refuse files that contain a key of this environment, and warn about lines that look like one."""
    from huggingface_hub import get_token

    from onthejob.texts import redacted, secrets_of_environment, without

    secrets = (*secrets_of_environment(os.environ), *filter(None, [get_token()]))
    for path in sorted(folder.rglob("*")):
        if path.suffix not in TEXTS:
            continue
        suspicious = 0
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if without(line, secrets) != line:
                    raise ConfigError(
                        f"line {number} of {path.relative_to(folder)} holds a key of this machine's environment, so nothing was "
                        "sent. Find out how it came into the record, and replace the key."
                    )
                suspicious += redacted(line) != line
        if suspicious:
            terminal.warn(
                f"{suspicious} lines of {path.relative_to(folder)} hold what looks like a key. Look at them before others do."
            )
