"""What a run and its training worker say to each other: requests, answers and refusals, checked on both sides."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter

from onthejob.errors import ConfigError
from onthejob.learn.learner import LearnerConfig
from onthejob.types import Completion, Group

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Role = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
GROUPS = TypeAdapter(list[Group])
COMPLETIONS = TypeAdapter(list[Completion])
LEARNER_CONFIG = TypeAdapter(LearnerConfig)


class TrainRequest(BaseModel):
    """One update of one role."""

    model_config = ConfigDict(extra="forbid")
    role: Role
    base: Digest
    """Digest of the base's weights; a worker on another base refuses."""
    state: Digest
    """What the update starts from, as `Learner.export_state` gives it."""
    reference: Digest | None = None
    """State whose adapter is the KL term's reference."""
    config: dict[str, Any]
    """LearnerConfig."""
    groups: list[dict[str, Any]]
    """Those that teach something."""
    advantages: list[list[FiniteFloat]]
    """Of each group one number per trajectory."""

    def key(self) -> str:
        """Names everything that the answer depends on."""
        text = json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


class HotloadRequest(BaseModel):
    """A state that goes live as an adapter."""

    model_config = ConfigDict(extra="forbid")
    role: Role
    version: int = Field(ge=0, lt=10**9)
    parent: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}@[0-9]{4,9}$")] | None = None
    state: Digest


class SampleRequest(BaseModel):
    """Replies of one adapter."""

    model_config = ConfigDict(extra="forbid")
    base: Digest
    adapter: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}@[0-9]{4,9}$")] | None = None
    """None samples from the base."""
    digest: Digest | None = None
    """Of the adapter's weights, as /hotload answered it: runs share names."""
    prompts: Annotated[list[Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]], Field(max_length=4096)]
    temperature: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    max_new_tokens: Annotated[int, Field(ge=1)]


class NotLive(ConfigError):
    """An adapter that must be hot-loaded first."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not live here. POST /hotload first.")
        self.name = name


class UnknownStates(ConfigError):
    """States that must be put first."""

    def __init__(self, digests: list[str]) -> None:
        super().__init__(f"unknown states: {', '.join(digest[:12] for digest in digests)}. PUT /states/DIGEST first.")
        self.digests = digests
