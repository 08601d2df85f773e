"""Client of a served workplace: OpenEnv's `EnvClient` with our types, so that reward and `done` arrive in the observation too."""

from __future__ import annotations

from typing import Any

from onthejob.errors import MissingDependency

try:
    from openenv.core.client_types import StepResult
    from openenv.core.env_client import EnvClient

    from onthejob.compat.openenv import SeatAction, SeatObservation, SeatState
except ImportError as missing:
    raise MissingDependency(
        f"the OpenEnv client needs a package that is not installed ({missing}). Run: pip install 'onthejob[openenv]'"
    ) from missing


class SeatClient(EnvClient[SeatAction, SeatObservation, SeatState]):
    """A session of one seat, or of the table. `SeatClient(base_url=...)`, asynchronous; `.sync()` gives the blocking form.

    A step that takes longer than `message_timeout_s` (60 s by default) loses the connection and with it the episode: the next
    step raises RESET_REQUIRED instead of landing in a fresh one.
    """

    def _step_payload(self, action: SeatAction) -> dict[str, Any]:
        return action.model_dump(exclude_none=True)

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[SeatObservation]:
        reward, done = payload.get("reward"), bool(payload.get("done", False))
        observation = SeatObservation(**payload["observation"], reward=reward, done=done)
        return StepResult(observation=observation, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> SeatState:
        return SeatState(**payload)
