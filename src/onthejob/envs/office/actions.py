"""What a role does in one turn, and how a model's reply becomes it.

The compact form that the embedded model writes:

    {"action_type":"RUN_DEMO","target":"Acme","message":"dev: Acme wants SSO","parameters":{"tier":"annual"}}

`parse` never raises because of what a model wrote: the answer is an `Action` or an `Invalid` that says why. It knows the rules
of form and of roles; whether a target exists is for the simulator. Accepted beyond the compact form, with `clean=False`: code
fences and other text around the object (the first object that names an action counts), trailing commas, raw line breaks in
strings. Always accepted: other keys (ignored), null for an absent field, action types in lower case or with spaces. A cut-off
object is not repaired.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from onthejob.envs.office.roles import ACTION_ALIASES, ROLES, Role
from onthejob.errors import ContractError

MAX_REPLY_BYTES = 8192
MAX_DEPTH = 8
MAX_NUMBER = 1e9
MAX_TARGET = 160
"""Characters; names and titles are shorter, and targets are shown in other roles' prompts."""
MAX_MESSAGE = 240
"""Characters of a message's text; what is longer is cut."""
MAX_ATTEMPTS = 8
EVERYONE = "all"

_CANDIDATES = 8
"""How many opening braces are tried as the start of the object."""


class UnusableReason(StrEnum):
    """Why a reply could not be used."""

    TOO_LONG = "too_long"
    NOT_JSON = "not_json"
    TOO_DEEP = "too_deep"
    BAD_NUMBER = "bad_number"
    CONTROL_CHARACTER = "control_character"
    WRONG_TYPE = "wrong_type"
    MISSING_ACTION = "missing_action"
    UNKNOWN_ACTION = "unknown_action"
    WRONG_ROLE = "wrong_role"
    ILLEGAL_TARGET = "illegal_target"
    """Said by the simulator: well-formed, but not possible in this state."""


@dataclass(frozen=True, slots=True)
class Action:
    """One turn's work. What `parse` returns is canonical: `parse(render(action), role) == action`."""

    action_type: str
    target: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    reasoning: str = ""
    message_to: str | None = None
    """A role's name or `all`; None when there is no message. Never the sender."""
    message: str = ""
    """At most 240 characters, empty when `message_to` is None."""
    clean: bool = field(default=True, compare=False)
    """False when the reply was not exactly one JSON object."""


@dataclass(frozen=True, slots=True)
class Invalid:
    """A reply that does nothing."""

    reason: UnusableReason
    feedback: str
    """One sentence for the author of the reply."""
    owners: tuple[Role, ...] = ()
    """Who may do the action (only for `wrong_role`)."""
    excerpt: str = ""
    """The reply's first 80 characters, as an ASCII JSON string: safe to show in a prompt or a terminal."""


IDLE = Action("IDLE")
"""Doing nothing on purpose, free and worth nothing: the no-op of scripted players and ablations. Every role may, and no prompt
says so. What else such a reply holds is dropped."""


class Extracted(NamedTuple):
    """A JSON object found in a reply."""

    fields: dict[str, Any]
    clean: bool
    """The reply is this object and nothing else, in strict JSON."""


class _BadNumber(ValueError):
    """NaN or Infinity was met while decoding."""


def _refuse_constant(name: str) -> float:
    raise _BadNumber(name)


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant)
_LENIENT = json.JSONDecoder(parse_constant=_refuse_constant, strict=False)
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

# An unterminated string runs to the end of the text, which keeps every scan with these patterns linear.
_STRING = r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'
_OBJECT_START = re.compile(r'\{\s*"')
_BRACKETS = re.compile(_STRING + r"|[{}\[\]]", re.DOTALL)
_TRAILING_COMMA = re.compile(r"(" + _STRING + r")|,(?=\s*[}\]])", re.DOTALL)
# Also what reorders or hides text on a screen; tab and line breaks are white space and handled apart.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_BREAKS = re.compile(r"[\t\n\r]+")

_LEGAL: Mapping[Role, frozenset[str]] = MappingProxyType({role: frozenset(spec.actions) for role, spec in ROLES.items()})
_OWNERS: Mapping[str, tuple[Role, ...]] = MappingProxyType(
    {name: tuple(role for role in ROLES if name in _LEGAL[role]) for spec in ROLES.values() for name in spec.actions}
)
_ADDRESSEES: Mapping[str, str] = MappingProxyType(
    {
        EVERYONE: EVERYONE,
        **{role.value: role.value for role in ROLES},
        **{spec.person.casefold(): role.value for role, spec in ROLES.items()},
    }
)


def parse(reply: str, role: Role) -> Action | Invalid:
    """Read `reply` as an action of `role`; never raises.

    A message without a known addressee, or to the sender, is dropped and leaves the action valid.
    """
    found = extract(reply)
    if isinstance(found, Invalid):
        return found
    fields, clean = found
    problem = _check_fields(fields, reply)
    if problem is not None:
        return problem

    written = fields.get("action_type")
    if not written:
        return _invalid(UnusableReason.MISSING_ACTION, 'The object needs an "action_type".', reply)
    action_type = canonical_type(written)
    if action_type == IDLE.action_type:
        return replace(IDLE, clean=clean)
    if action_type not in _LEGAL[role]:
        owners = _OWNERS.get(action_type, ())
        if owners:
            text = f"{action_type} belongs to {' and '.join(owners)}; you are {role}."
            return _invalid(UnusableReason.WRONG_ROLE, text, reply, owners)
        return _invalid(UnusableReason.UNKNOWN_ACTION, f"There is no action {_encode(action_type[:40])}.", reply)

    target = _fold(fields.get("target") or "")
    if len(target) > MAX_TARGET:
        return _invalid(
            UnusableReason.TOO_LONG, f'"target" has {len(target)} characters; at most {MAX_TARGET} are allowed.', reply
        )
    message_to, message = split_message(_fold(fields.get("message") or ""))
    if message_to == role:
        message_to, message = None, ""
    parameters = fields.get("parameters")
    return Action(
        action_type,
        target,
        _fold_all(parameters) if parameters else {},
        _fold(fields.get("reasoning") or ""),
        message_to,
        message,
        clean,
    )


def extract(reply: str) -> Extracted | Invalid:
    """Find the JSON object in `reply`: the first one that names an action, else the first one. Never raises."""
    if len(reply) > MAX_REPLY_BYTES or (not reply.isascii() and len(reply.encode("utf-8", "surrogatepass")) > MAX_REPLY_BYTES):
        return _invalid(UnusableReason.TOO_LONG, f"The reply is longer than {MAX_REPLY_BYTES} bytes.", reply)
    text = reply.strip()
    start = text.find("{")
    if start < 0:
        return _invalid(UnusableReason.NOT_JSON, "The reply holds no JSON object.", reply)
    crowded = text.count("{") + text.count("[") > MAX_DEPTH

    found: Extracted | Invalid | None = None
    for _ in range(_CANDIDATES):
        if crowded and _depth(text, start) > MAX_DEPTH:
            return found or _invalid(UnusableReason.TOO_DEEP, f"The object is nested deeper than {MAX_DEPTH} levels.", reply)
        try:
            fields, end, strict = _decode(text, start)
        except json.JSONDecodeError as error:
            found = found or _invalid(UnusableReason.NOT_JSON, _explain(error), reply)
            if _OBJECT_START.match(text, start):
                return found  # a broken object: what is inside it was not meant as the action
            end = start + 1
        except ValueError:  # NaN, Infinity, or more digits than an integer may have
            return found or _invalid(UnusableReason.BAD_NUMBER, "A number is not finite or too large.", reply)
        else:
            whole = Extracted(fields, strict and start == 0 and end == len(text))
            if "action_type" in fields:
                return whole
            found = found or whole
        start = text.find("{", end)
        if start < 0:
            break
    return found or _invalid(UnusableReason.NOT_JSON, "The reply holds no JSON object.", reply)


def canonical_type(written: str) -> str:
    """`run demo` -> `RUN_DEMO`; known aliases are replaced."""
    name = written.strip().upper().replace(" ", "_").replace("-", "_")
    return ACTION_ALIASES.get(name, name)


def split_message(text: str) -> tuple[str | None, str]:
    """`dev: text` -> ("dev", "text"); roles, persons and `all` can be addressed, others give (None, "")."""
    head, colon, body = text.partition(":")
    if not colon:
        return None, ""
    recipient = _ADDRESSEES.get(head.strip().removeprefix("@").casefold())
    body = body.strip()
    if recipient is None or not body:
        return None, ""
    return recipient, body[:MAX_MESSAGE].rstrip()


def render(action: Action) -> str:
    """The canonical compact JSON of `action`: action_type and target first, then what is not empty, reasoning before message."""
    fields: dict[str, Any] = {"action_type": action.action_type, "target": action.target}
    if action.reasoning:
        fields["reasoning"] = action.reasoning
    if action.message_to is not None:
        fields["message"] = f"{action.message_to}: {action.message}"
    if action.parameters:
        fields["parameters"] = dict(action.parameters)
    return _encode(fields)


def feedback(invalid: Invalid, attempt: int, legal: Sequence[str]) -> str:
    """What to tell the actor before it tries again: each attempt's text is the one before plus one line.

    Args:
        invalid: why the last reply was not usable.
        attempt: failed attempts so far, 1 to 8.
        legal: the role's action types.

    Raises:
        ContractError: `attempt` is outside 1..8, or `legal` is empty.
    """
    if not 1 <= attempt <= MAX_ATTEMPTS:
        raise ContractError(f"attempt must be in 1..{MAX_ATTEMPTS}, got {attempt}. Stop retrying after {MAX_ATTEMPTS} attempts.")
    if not legal:
        raise ContractError("legal must name at least one action type, got none. Pass the role's action types.")
    lines = (
        f"Your reply was not usable: {invalid.feedback}",
        f"It began with {invalid.excerpt or '(nothing)'}",
        f"action_type must be one of: {', '.join(legal)}.",
        'Reply with one JSON object: {"action_type":"...","target":"..."}',
        f'Optional keys: "message" is "role: text" of at most {MAX_MESSAGE} characters; "parameters" is an object.',
        "Use double quotes, close every quote and brace, and write nothing before or after the object, not even a code fence.",
        "Each of these is a usable reply: " + " ".join(f'{{"action_type":"{name}","target":""}}' for name in legal),
        "This is the last attempt. One more unusable reply counts as doing nothing and costs 1 point.",
    )
    return "\n".join(lines[:attempt])


def _decode(text: str, start: int) -> tuple[dict[str, Any], int, bool]:
    """(object, end, whether it was strict JSON) of the object that starts at `start`; end refers to `text`."""
    try:
        fields, end = _STRICT.raw_decode(text, start)
        return fields, end, True
    except json.JSONDecodeError as error:
        try:
            # Blanks in place of the commas keep all positions.
            repaired = _TRAILING_COMMA.sub(lambda found: found[1] or " ", text[start:])
            fields, length = _LENIENT.raw_decode(repaired)
            return fields, start + length, False
        except json.JSONDecodeError:
            raise error from None


def _depth(text: str, start: int) -> int:
    """How deep the brackets opened at `start` nest, outside strings."""
    depth = deepest = 0
    for found in _BRACKETS.finditer(text, start):
        mark = found[0]
        if mark in ("{", "["):
            depth += 1
            deepest = max(deepest, depth)
        elif mark in ("}", "]"):
            depth -= 1
            if depth <= 0:
                break
    return deepest


_TYPES: Mapping[str, tuple[type, str]] = MappingProxyType(
    {
        "action_type": (str, "a string"),
        "target": (str, "a string"),
        "message": (str, 'a string like "role: text"'),
        "reasoning": (str, "a string"),
        "parameters": (dict, "an object"),
    }
)


def _check_fields(fields: dict[str, Any], reply: str) -> Invalid | None:
    """The first thing that makes the object unusable, whatever action it names."""
    for key, value in fields.items():
        known = _TYPES.get(key)
        if known is not None and value is not None and type(value) is not known[0]:
            return _invalid(UnusableReason.WRONG_TYPE, f'"{key}" must be {known[1]}, got {_NAMES[type(value)]}.', reply)
        reason = _check_value(value)
        if reason is UnusableReason.BAD_NUMBER:
            return _invalid(reason, f"Numbers must be finite and within +-{MAX_NUMBER:.0e}.", reply)
        if reason is not None or _CONTROL.search(key):
            return _invalid(UnusableReason.CONTROL_CHARACTER, "Text must not hold control characters.", reply)
    return None


_NAMES: Mapping[type, str] = MappingProxyType(
    {str: "a string", int: "a number", float: "a number", bool: "true or false", list: "a list", dict: "an object"}
)


def _check_value(value: Any) -> UnusableReason | None:
    kind = type(value)
    if kind is str:
        return UnusableReason.CONTROL_CHARACTER if _CONTROL.search(value) else None
    if kind is int or kind is float:
        return None if -MAX_NUMBER <= value <= MAX_NUMBER else UnusableReason.BAD_NUMBER
    if kind is dict:
        return next((reason for item in (*value, *value.values()) if (reason := _check_value(item))), None)
    if kind is list:
        return next((reason for item in value if (reason := _check_value(item))), None)
    return None


def _fold(text: str) -> str:
    """Strip, and turn line breaks and tabs into one space, so that no text can forge a line of another role's prompt."""
    if "\n" in text or "\t" in text or "\r" in text:
        text = _BREAKS.sub(" ", text)
    return text.strip()


def _fold_all(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return _fold(value)
    if kind is dict:
        return {_fold(key): _fold_all(item) for key, item in value.items()}
    if kind is list:
        return [_fold_all(item) for item in value]
    return value


def _explain(error: json.JSONDecodeError) -> str:
    where = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated string")
    return "The JSON object is cut off." if where else f"Not valid JSON at character {error.pos}: {error.msg}."


def _invalid(reason: UnusableReason, text: str, reply: str, owners: tuple[Role, ...] = ()) -> Invalid:
    return Invalid(reason, text, owners, json.dumps(reply[:80]))
