"""What everything that the viewer reads and sends has in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from onthejob.texts import encodable_in

Player = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


class Sent(BaseModel):
    """Base of what the server sends. Halves of surrogate pairs, which models write and no response can hold, become U+FFFD."""

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _as_text(cls, data: Any) -> Any:
        return encodable_in(data)


class Asked(BaseModel):
    """Base of what a client sends: unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
