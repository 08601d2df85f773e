"""The JSON schema of a role's reply, for models that can be held to one."""

from __future__ import annotations

from typing import Any

from onthejob.envs.office.actions import MAX_MESSAGE, MAX_TARGET
from onthejob.envs.office.company_state import TIERS
from onthejob.envs.office.roles import ROLES, Role
from onthejob.types import Kind, Observation


def action_schema(role: str) -> dict[str, Any]:
    """What `actions.parse` accepts of `role`: all keys required, nothing else allowed, every string bounded.

    `target` and `message` may be empty and `tier` is ignored by all actions but SEND_PROPOSAL, so the one shape fits them all.
    """
    parameters = {"tier": {"type": ["string", "null"], "enum": [*TIERS, None]}}
    properties: dict[str, Any] = {
        "action_type": {"type": "string", "enum": list(ROLES[Role(role)].actions)},
        "target": {"type": "string", "maxLength": MAX_TARGET},
        "message": {"type": "string", "maxLength": MAX_MESSAGE},
        "parameters": {
            "type": "object",
            "properties": parameters,
            "required": list(parameters),
            "additionalProperties": False,
        },
    }
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def reply_schema(observation: Observation) -> dict[str, Any] | None:
    """The schema of the reply to `observation`; None where free text is asked for."""
    return None if observation.kind is Kind.REFLECT else action_schema(observation.actor)
