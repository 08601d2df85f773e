"""Options whose value is a JSON object, such as the arguments with which another package makes an environment."""

from __future__ import annotations

import json
from typing import Any

from onthejob.errors import ConfigError


def json_object(text: str, flag: str, example: str) -> dict[str, Any]:
    """The object that an option holds; an empty text holds none.

    Args:
        text: the option's value.
        flag: the option as it is written, e.g. `--env.kwargs`.
        example: an object that it could hold, for the message.
    """
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{flag} must be a JSON object, e.g. '{example}', got {text!r:.60}.")
    return found
