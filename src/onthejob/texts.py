"""Text from outside (models, providers, workers, clients) on its way to a terminal, a log, a response or a prompt.

Such text may hold halves of surrogate pairs, which no encoding can write, control characters, which a terminal obeys, and a key
that a server repeats. The record keeps a model's text as it came.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any
from urllib.parse import quote

REDACTED = "[redacted]"
SHORTEST_SECRET = 8
"""Characters; what is shorter would be found in ordinary words."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""All but tab and line feed; marks that change the direction of what follows count as well."""
_BEARER = re.compile(
    r"""(?ix) \b(bearer|basic) (?: \s | %20 | [:=+"'] )+ (?!(?:auth|token|credential|scheme|format)\w*\b) [\w.~+/=%-]{8,}"""
)
_NAMED = re.compile(
    r"""(?ix) \b((?:x-)?api[-_\s]?key | (?:access|auth|secret|session)[-_]?(?:key|token) | password | client[-_]secret)
    (["']? \s* [:=] \s* ["']?) [^\s"',;&}\]]{4,}"""
)
_KEYS = re.compile(
    r"\b(?:(?:sk|pk|rk|gsk|xai|hf|ghp|gho|ghs|glpat|pypi|xox[abp])[-_][\w-]{12,}|AIza[\w-]{30,}|A[KS]IA[A-Z0-9]{16}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}(?:\.[\w-]+)?)"
)
"""As providers write their keys; of a JSON web token, all parts."""
_SECRET_NAMES = re.compile(r"(?i)(key|token|secret|password|passwd|credential)s?$")
_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key", "api-key", "x-amz-security-token"})


def encodable(text: str) -> str:
    """`text` with U+FFFD in place of every half of a surrogate pair."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def printable(text: str) -> str:
    """`text` as a terminal may be given it: `encodable`, and U+FFFD in place of control characters but tab and line feed."""
    return _CONTROLS.sub("\ufffd", encodable(text.replace("\r\n", "\n")))


def redacted(text: str, secrets: Collection[str] = ()) -> str:
    """`text` without `secrets`, and without what looks like a key or a bearer token."""
    text = without(text, secrets)
    text = _BEARER.sub(rf"\1 {REDACTED}", text)
    text = _NAMED.sub(rf"\1\2{REDACTED}", text)
    return _KEYS.sub(REDACTED, text)


def without(text: str, secrets: Collection[str]) -> str:
    """`text` without `secrets`, also where they are written in other letter case, for a URL, or in base64."""
    for form in _forms(secrets):
        text = re.sub(re.escape(form), REDACTED, text, flags=re.IGNORECASE)
    return text


def without_in(value: Any, secrets: Collection[str]) -> Any:
    """A value of JSON's types whose texts, names included, are `without` secrets."""
    if isinstance(value, str):
        return without(value, secrets)
    if isinstance(value, list):
        return [without_in(item, secrets) for item in value]
    if isinstance(value, dict):
        return {without(name, secrets): without_in(item, secrets) for name, item in value.items()}
    return value


def secrets_of_headers(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The keys in a request's headers."""
    values = [value for name, value in headers.items() if name.lower() in _SECRET_HEADERS]
    return _long({part for value in values for part in re.split(r"[\s,]+", value)} - {"Bearer", "Basic"})


def secrets_of_environment(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The values of variables whose names say that they hold a key or token."""
    return _long({value.strip() for name, value in environ.items() if _SECRET_NAMES.search(name)})


def encodable_in(value: Any) -> Any:
    """`value` with `encodable` texts, also in lists, tuples and mappings; the very same object where nothing is to be done."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, (list, tuple)):
        made = [encodable_in(item) for item in value]
        return value if all(new is old for new, old in zip(made, value, strict=True)) else type(value)(made)
    if isinstance(value, dict):
        new = {encodable_in(name): encodable_in(item) for name, item in value.items()}
        same = all(a is b and c is d for (a, c), (b, d) in zip(new.items(), value.items(), strict=False))
        return value if same and len(new) == len(value) else new
    return value


def strict_json(content: str | bytes) -> Any:
    """The value of a JSON document in UTF-8.

    Raises:
        ValueError: it is not JSON: NaN and Infinity, numbers beyond a float and halves of surrogate pairs are not, nor is what
            nests deeper than Python's stack.
    """
    text = content if isinstance(content, str) else content.decode()
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair is no character") from error
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON; write null")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:40]} is beyond a float's range")
    return number


def _long(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted((value for value in values if len(value) >= SHORTEST_SECRET), key=len, reverse=True))


def _forms(secrets: Collection[str]) -> list[str]:
    """Every secret in its spellings, the longest first."""
    found: set[str] = set()
    for secret in secrets:
        encoded = base64.b64encode(secret.encode("utf-8", "surrogatepass")).decode()
        found |= {secret, quote(secret, safe=""), encoded.rstrip("=")}
    return list(_long(found))
