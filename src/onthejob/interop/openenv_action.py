"""The action of an OpenEnv server as its schema describes it: how a reply becomes one.

An action with one field takes the reply as that field's value; one with more is written as a JSON object. The server checks
values itself; what is checked here makes feedback better.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onthejob.errors import ConfigError

NOT_WRITTEN = ("metadata",)
"""Fields that every action has and no reply writes."""
MOST_LISTED = 64
"""Whole numbers of a range that are listed as legal replies."""
TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,), "object": (dict,),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Form:
    """How replies are written."""

    fields: Mapping[str, Mapping[str, Any]]
    """Name -> schema."""
    required: tuple[str, ...]
    only: str = ""
    """The field that is the whole reply; empty where replies are JSON objects."""

    def described(self) -> str:
        """A sentence for the prompt; empty where a reply is any text."""
        if self.only:
            kind, about = _type(self.fields[self.only]), str(self.fields[self.only].get("description", "")).strip()
            allowed = self.listed(None)
            if allowed:
                return f"Reply with one of: {', '.join(allowed)}."
            said = f" ({about.rstrip('.')})" if about else ""
            return f"Reply with {self.only}{said}." if kind == "string" else f"Reply with {self.only}{said}, of type {kind}."
        parts = [
            f'"{name}": {_type(schema)}{"" if name in self.required else " (optional)"}' for name, schema in self.fields.items()
        ]
        return f"Reply with a JSON object: {{{', '.join(parts)}}}."

    def listed(self, given: Sequence[Any] | None) -> list[str]:
        """Texts of the legal replies: those that an observation lists, else those that the schema does; empty where unknown."""
        if given is not None:
            return list(dict.fromkeys(one if isinstance(one, str) else json.dumps(one) for one in given))
        if not self.only:
            return []
        schema = self.fields[self.only]
        if isinstance(values := schema.get("enum"), list):
            return [one if isinstance(one, str) else json.dumps(one) for one in values]
        low, high = schema.get("minimum"), schema.get("maximum")
        if _type(schema) == "integer" and isinstance(low, int) and isinstance(high, int) and high - low < MOST_LISTED:
            return [str(number) for number in range(low, high + 1)]
        return []

    def action(self, reply: str, allowed: Sequence[str]) -> dict[str, Any]:
        """The action of a reply.

        Raises:
            ValueError: there is none; the message is the feedback.
        """
        if self.only:
            return {self.only: self._value(reply, allowed)}
        try:
            said = json.loads(reply)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise ValueError(f"The reply is no JSON object. {self.described()}")
        if unknown := [name for name in said if name not in self.fields]:
            raise ValueError(f"The field {unknown[0]!r:.40} is unknown. {self.described()}")
        if missing := [name for name in self.required if name not in said]:
            raise ValueError(f"The field {missing[0]!r} is missing. {self.described()}")
        return said

    def _value(self, reply: str, allowed: Sequence[str]) -> Any:
        schema = self.fields[self.only]
        kind, text = _type(schema), reply.strip()
        if kind == "string":
            if schema.get("enum"):
                for value in self.listed(None):
                    if value.casefold() == text.casefold():
                        return value
                raise ValueError(f"{text!r:.40} is not possible. {self.described()}")
            # As it was written: the server may care for white space.
            return reply
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            said = None
        if type(said) not in TYPES.get(kind, (int, float, bool, str, list, dict)):
            possible = f"Reply with one of: {', '.join(allowed)}." if allowed else self.described()
            raise ValueError(f"{text!r:.40} is not of type {kind}. {possible}")
        # Some servers raise for an impossible whole number, which would fail the episode.
        if kind == "integer" and allowed and str(said) not in allowed:
            raise ValueError(f"{said} is not possible now. Reply with one of: {', '.join(allowed)}.")
        return said


def form_of(schema: Any, url: str, *, given: bool) -> Form:
    """The form of the actions of a server.

    Args:
        schema: JSON schema of an action; None where the server does not publish it.
        url: of the server, for messages.
        given: a function of the user's makes the actions.
    """
    if not isinstance(schema, Mapping) or not isinstance(schema.get("properties"), Mapping):
        if given:
            return Form({}, ())
        raise ConfigError(f"{url} does not say which fields an action has. Give --env.action file.py:function.")
    defined = schema.get("$defs", {})
    fields = {name: _resolved(one, defined) for name, one in schema["properties"].items() if name not in NOT_WRITTEN}
    required = tuple(name for name in schema.get("required", ()) if name in fields)
    if not fields and not given:
        raise ConfigError(f"the actions of {url} have no fields to write. Give --env.action file.py:function.")
    texts = [name for name in fields if _type(fields[name]) == "string"]
    for names in (required, tuple(fields), () if required else tuple(texts)):
        if len(names) == 1:
            return Form(fields, required, names[0])
    return Form(fields, required)


def _resolved(schema: Any, defined: Mapping[str, Any]) -> Mapping[str, Any]:
    """A field's schema, with what it refers to, and without null where it may be omitted."""
    if not isinstance(schema, Mapping):
        return {}
    if isinstance(ref := schema.get("$ref"), str):
        return {**defined.get(ref.rpartition("/")[2], {}), **{name: value for name, value in schema.items() if name != "$ref"}}
    if isinstance(kinds := schema.get("anyOf"), list):
        real = [one for one in kinds if isinstance(one, Mapping) and one.get("type") != "null"]
        if len(real) == 1:
            return {**_resolved(real[0], defined), **{name: value for name, value in schema.items() if name != "anyOf"}}
    return schema


def _type(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, str):
        return kind
    return "string" if isinstance(schema.get("enum"), list) and all(isinstance(one, str) for one in schema["enum"]) else "any"
