"""Trajectory bundles for `train --from-bundles` and `sft --from-bundles`: their groups, and whether they fit the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onthejob.errors import ConfigError

if TYPE_CHECKING:
    from onthejob.models.chat import ChatEncoder
    from onthejob.record.bundle_file import Bundled
    from onthejob.types import Turn


def bundled_groups(file: Path, roles: Sequence[str]) -> list[Bundled]:
    """The groups of a file of bundles; with `roles` only theirs.

    Raises:
        ConfigError: the file has none of a named role.
        RecordError: the file cannot be read.
    """
    from onthejob.record.bundle_file import read_bundles

    found = read_bundles(file)
    actors = list(dict.fromkeys(one.group.actor for one in found))
    if unknown := [role for role in roles if role not in actors]:
        raise ConfigError(f"{file} has no trajectories of {', '.join(unknown)}; it has those of {', '.join(actors)}.")
    return [one for one in found if not roles or one.group.actor in roles]


def check_tokens(chat: ChatEncoder, turns: Iterable[Turn]) -> None:
    """Refuse token ids of another tokenizer: they are trained on as they are, and would be other words to this model."""
    for turn in turns:
        text = chat.decode(turn.completion.token_ids)
        if text != turn.completion.text:
            raise ConfigError(
                f"a recorded reply was sampled with another tokenizer: its text is {turn.completion.text[:40]!r}, and this "
                f"model decodes its ids to {text[:40]!r}. Name the model that sampled it with --model.name."
            )
