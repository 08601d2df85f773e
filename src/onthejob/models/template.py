"""Arguments of a chat template, such as `enable_thinking`: read from the command line and checked against the template."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from jinja2 import Environment, TemplateError, meta

from onthejob.errors import ConfigError

_GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
"""A tag that only transformers knows."""
_WORDS = {"true": True, "false": False, "none": None, "null": None}


def read_arguments(given: Sequence[str]) -> dict[str, Any]:
    """Arguments written as `NAME=VALUE`; a value is JSON (`false`, `0.5`) or else text.

    Raises:
        ConfigError: one is written otherwise, or a name occurs twice.
    """
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"a template argument is written NAME=VALUE, e.g. enable_thinking=false, got {text!r}.")
        if name in found:
            raise ConfigError(f"template argument {name!r} is given twice. Give it once.")
        found[name] = _value(value)
    return found


def written_arguments(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The inverse of `read_arguments`, in order of the names."""
    return tuple(f"{name}={json.dumps(value)}" for name, value in sorted(arguments.items()))


def check_arguments(tokenizer: Any, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that the tokenizer's chat template does not read, or that are not the user's to set.

    Raises:
        ConfigError: names them, and those that the template reads.
    """
    if not arguments:
        return
    template = tokenizer.get_chat_template()
    reserved = {"messages", "strftime_now", *inspect.signature(tokenizer.apply_chat_template).parameters}
    unread = [name for name in arguments if name in reserved or not re.search(rf"\b{name}\b", template)]
    if unread:
        known: set[str] = set()
        with suppress(TemplateError):
            syntax = Environment(autoescape=True, extensions=["jinja2.ext.loopcontrols"]).parse(_GENERATION.sub("", template))
            known = meta.find_undeclared_variables(syntax) - reserved - {"raise_exception", *tokenizer.special_tokens_map}
        raise ConfigError(
            f"the model's chat template has no argument {', '.join(unread)}; it reads {', '.join(sorted(known)) or 'none'}. "
            "Correct --model.template-arguments, or leave it out."
        )


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return json.loads(text)
    except ValueError:
        return text
