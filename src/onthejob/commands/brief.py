"""`onthejob train --help`: the options that most runs set, on one screen; `--help-all` lists every option."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Mapping
from typing import Annotated, Any

import tyro

from onthejob.commands.env import helps_of
from onthejob.commands.terminal import Output

WIDTH = 80
COLUMN = 20
"""Columns of an option and its value, at the left."""


def brief_help(command: Any, default: Any, *, path: str, shown: Mapping[str, str]) -> str:
    """The help of a command that has too many options to show at once.

    Args:
        command: class of its options.
        default: an instance with the defaults of the environment.
        path: words of the command.
        shown: options, as attributes of `default` or of its loop, and a word for the value of each; empty for a switch.
    """
    lines = [f"usage: onthejob {path} [OPTIONS]", "", *_filled(command.__doc__.split("\n\n")[0]), ""]
    for name, word in shown.items():
        holder = default if hasattr(default, name) else default.train
        value = getattr(holder, name)
        usual = " ".join(value) if isinstance(value, tuple) else str(value)
        text = _first_sentence(helps_of(type(holder))[name]) + ("" if value in (None, "", False) else f" [{usual}]")
        first, *rest = _filled(text, COLUMN)
        lines += [f"{f'  --{name} {word}'.replace('_', '-'):{COLUMN}}{first[COLUMN:]}", *rest]
    more = (
        f"Values in brackets are defaults; with --env ENV those of that environment. `onthejob {path} --help-all` lists every "
        "option. Every command also takes --json, --quiet and --debug."
    )
    return "\n".join([*lines, "", *_filled(more)])


def without_output(command: Any) -> Any:
    """`command` whose help omits the options of every command."""
    hidden = Annotated[Output, tyro.conf.arg(name=""), tyro.conf.Suppress]
    output = ("output", hidden, dataclasses.field(default_factory=Output))
    made = dataclasses.make_dataclass(command.__name__, [output], bases=(command,), frozen=True, kw_only=True)
    made.__doc__ = command.__doc__
    return made


def _first_sentence(text: str) -> str:
    return re.split(r"[.;](?= |$)", text, maxsplit=1)[0]


def _filled(text: str, indent: int = 0) -> list[str]:
    """Lines of at most 80 columns, which hold all of the text."""
    margin = " " * indent
    words = " ".join(text.split())
    return textwrap.wrap(words, WIDTH, initial_indent=margin, subsequent_indent=margin, break_long_words=False)
