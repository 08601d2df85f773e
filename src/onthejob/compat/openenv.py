"""Serves an environment under OpenEnv 0.10: typed action, observation and state, and the ASGI application.

Needs `pip install 'onthejob[openenv]'`. Rules that the framework leaves to an environment are in `seat_session` (no step without
a reset, none after the end, none after the session was closed) and `websocket_guard` (a malformed frame never costs an episode).
OpenEnv's HTTP `/reset` and `/step` make a new environment for each request, so an episode lives on a WebSocket (`/ws`) only.
"""

from __future__ import annotations

import json
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, model_validator

from onthejob import __version__
from onthejob.compat.seat_session import Seat, SeatError, Seen, Start
from onthejob.compat.served import Served
from onthejob.compat.websocket_guard import BodyGuard, FrameGuard
from onthejob.errors import ConfigError, MissingDependency
from onthejob.texts import printable
from onthejob.types import Split

try:
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, ConcurrencyConfig, EnvironmentMetadata, Observation, State
except ImportError as missing:
    raise MissingDependency(
        f"serving under OpenEnv needs a package that is not installed ({missing}). Run: pip install 'onthejob[openenv]'"
    ) from missing

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

LISTED = 100
"""Tasks of a split that `list_tasks` shows; `num_tasks` tells the true count."""
SPLIT_TYPES = {Split.TRAIN: "train", Split.DEV: "validation", Split.TEST: "test"}


class ChatMessage(BaseModel):
    """One message of a prompt."""

    role: str = Field(description="system, user or assistant")
    content: str = Field(description="Text of the message")


class SeatAction(Action):
    """What one role replies. At a learner's seat an object without `reply` is the reply itself: a model's JSON as it is."""

    reply: str = Field(
        description="The role's reply, exactly as the model wrote it; what cannot be used is a lost turn, not an error"
    )
    role: str | None = Field(
        default=None, description="Whose reply it is: required at the table (role '*'), where it must be the role that is asked"
    )

    @model_validator(mode="before")
    @classmethod
    def _take_bare_object(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "reply" in data:
            return data
        said = {key: value for key, value in data.items() if key != "metadata"}
        # Nothing but a role is an envelope whose reply was forgotten.
        if not set(said) - {"role"}:
            return data
        reply = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
        return {"reply": reply, "metadata": data.get("metadata", {})}


class SeatObservation(Observation):
    """What the role that is asked may see, and what it was paid.

    `reward` is what the client's role was paid since it was last asked, by any role's action; summed over an episode it is
    `episode_return`. At the table it is the sum over all seats.
    """

    current_role: str | None = Field(default=None, description="Who is asked now; null when the episode is over")
    messages: list[ChatMessage] = Field(default_factory=list, description="The prompt for that role")
    fresh: bool = Field(default=True, description="True: the messages are a whole prompt; false: append them to the previous one")
    kind: str = Field(default="act", description="act (a decision), retry (feedback on an unusable reply) or reflect (a memory)")
    view: dict[str, Any] = Field(default_factory=dict, description="The data that the prompt was written from")
    legal_actions: list[str] = Field(
        default_factory=list, description="Replies that are possible now; only after reset(legal=true)"
    )
    valid: bool = Field(default=True, description="False when the last reply was not usable and did nothing")
    error: str | None = Field(default=None, description="Then: what was wrong with it")
    rewards: dict[str, float] = Field(default_factory=dict, description="Role -> reward; only the client's own, at the table all")
    reward_parts: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="Role -> named parts of its reward, which sum to it"
    )
    episode_return: float = Field(default=0.0, description="Sum of the rewards of this episode so far")
    returns: dict[str, float] = Field(default_factory=dict, description="Role -> sum of its rewards so far")
    truncated: bool = Field(default=False, description="The episode was cut by a limit or a failure, not by its own rules")
    end_reason: str | None = Field(
        default=None, description="Why it ended: horizon, bankrupt, done, max_turns, parse_error, error"
    )
    metrics: dict[str, float] = Field(default_factory=dict, description="The environment's figures, at the end of an episode")
    task_id: str = Field(default="", description="Which task this is")


class SeatState(State):
    """Where a session stands. Holds nothing that the client's role may not see, unless the trainer's key was shown."""

    environment: str = Field(default="", description="Name of the workplace")
    role: str | None = Field(default=None, description="The client's role, '*' at the table; null before the first reset")
    teammates: dict[str, str] = Field(default_factory=dict, description="Other seat -> scripted player in it")
    task_id: str | None = Field(default=None, description="Which task this is")
    split: str | None = Field(default=None, description="train, dev or test; null when a state was injected")
    seed: int | None = Field(default=None, description="Seed of the episode")
    turns: int = Field(default=0, ge=0, description="Replies of all roles so far")
    done: bool = Field(default=False, description="The episode is over")
    truncated: bool = Field(default=False, description="It was cut")
    end_reason: str | None = Field(default=None, description="Why it ended")
    episode_return: float = Field(default=0.0, description="Sum of the rewards so far")
    snapshot: str | None = Field(default=None, description="Base64 for reset(injected_state=...); only with the trainer's key")


class SeatEnvironment(Environment[SeatAction, SeatObservation, SeatState]):
    """One session of a workplace, in a thread of its own: for environments whose steps wait for something."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, workplace: Served, *, trainer_key: str | None = None) -> None:
        """Cheap and without side effects: servers also call it to describe the environment."""
        super().__init__()
        self._workplace = workplace
        self._seat = Seat(workplace, trainer_key=trainer_key)

    def reset(self, /, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> SeatObservation:
        """Start an episode.

        Args:
            seed: whole number >= 0; the same seed, options and replies give the same episode. None draws a training seed.
            episode_id: shown in `state`; by default the task's id.
            kwargs: `role`, `teammates`, `split` with `index`, `max_steps`, `legal`, `injected_state` with `trainer_key` (see
                `onthejob.compat.seat_session.Start`), and the workplace's own options. Unknown names are refused.

        Raises:
            SeatError: a refused reset leaves the running episode as it was.
        """
        names = ("role", "teammates", "split", "index", "max_steps", "legal", "injected_state", "trainer_key")
        given = {name: kwargs.pop(name) for name in names if name in kwargs}
        return self._shown(self._seat.reset(Start(seed=seed, episode_id=episode_id, options=kwargs, **given)))

    def step(self, action: SeatAction, timeout_s: float | None = None, **kwargs: Any) -> SeatObservation:
        """Play one reply.

        Raises:
            SeatError: RESET_REQUIRED, EPISODE_OVER, SESSION_CLOSED, WRONG_ROLE or INTERNAL_ERROR.
        """
        return self._shown(self._seat.step(action.reply, action.role))

    @property
    def state(self) -> SeatState:
        """Where the session stands."""
        seat, stop = self._seat, self._seat.stop
        task = seat.task
        return SeatState(
            episode_id=seat.episode_id,
            step_count=seat.steps,
            environment=self._workplace.name,
            role=seat.role or None,
            teammates=dict(seat.teammates),
            task_id=None if task is None else task.id,
            split=None if task is None or seat.injected else str(task.split),
            seed=None if task is None else task.seed,
            turns=seat.turns,
            done=stop is not None,
            truncated=stop is not None and stop.truncated,
            end_reason=None if stop is None else str(stop),
            episode_return=seat.episode_return,
            snapshot=seat.snapshot(),
        )

    def close(self) -> None:
        """End the session: every later request is refused with SESSION_CLOSED."""
        self._seat.close()

    def get_metadata(self) -> EnvironmentMetadata:
        """Name, description and version."""
        return EnvironmentMetadata(name=self._workplace.name, description=self._workplace.description, version=__version__)

    def list_splits(self) -> list[dict[str, str]]:
        """The task splits."""
        return [{"name": str(split), "type": SPLIT_TYPES[split]} for split in self._workplace.counts]

    def num_tasks(self, split: str) -> int:
        """Number of published tasks of a split."""
        return self._workplace.count(split)

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """The first tasks of a split, at most 100."""
        return self.get_task_range(split, 0, LISTED)

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """One task: id, index, split, seed and what a client may know of it.

        Raises:
            IndexError: the split has no such task.
        """
        if not 0 <= index < self._workplace.count(split):
            raise IndexError(f"index must be in 0..{self._workplace.count(split) - 1} for {split}, got {index}.")
        task = self._workplace.task_at(self._workplace.split(split), index, {})
        return {"id": task.id, "index": index, "split": split, "seed": task.seed, "payload": dict(self._workplace.public(task))}

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        """Tasks `start` to `stop - 1` (as in a slice), at most 100 of them."""
        chosen = range(self._workplace.count(split))[start:stop]
        return [self.get_task(split, index) for index in chosen[:LISTED]]

    def _shown(self, seen: Seen) -> SeatObservation:
        request, seat = seen.observation, self._seat
        return SeatObservation(
            done=seen.stop is not None,
            reward=seen.reward,
            current_role=seen.role,
            messages=[ChatMessage(role=m.role, content=m.content) for m in request.messages] if request is not None else [],
            fresh=request is None or request.fresh,
            kind="act" if request is None else str(request.kind),
            view=dict(request.view) if request is not None else {},
            legal_actions=seen.legal,
            valid=seen.valid,
            error=seen.error,
            rewards=dict(seen.rewards),
            reward_parts={actor: dict(parts) for actor, parts in seen.parts.items()},
            episode_return=seat.episode_return,
            returns=dict(seat.returns),
            truncated=seen.stop is not None and seen.stop.truncated,
            end_reason=None if seen.stop is None else str(seen.stop),
            metrics=dict(seen.metrics),
            task_id="" if seat.task is None else seat.task.id,
        )


class InlineSeatEnvironment(SeatEnvironment):
    """The same on the server's event loop: a step of a millisecond is cheaper there than a change of threads."""

    async def reset_async(self, /, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> SeatObservation:
        return self.reset(seed, episode_id, **kwargs)

    async def step_async(self, action: SeatAction, timeout_s: float | None = None, **kwargs: Any) -> SeatObservation:
        return self.step(action)


def make_app(
    workplace: Served, *, max_sessions: int = 512, session_timeout_s: float = 3600.0, trainer_key: str | None = None
) -> FastAPI:
    """The application that serves `workplace`; run it with uvicorn, one process.

    Args:
        workplace: what is served.
        max_sessions: connections at the same time, >= 1; one more is refused with CAPACITY_REACHED until another one leaves.
        session_timeout_s: seconds without a request after which a session is closed; longer than a learner's slowest update.
        trainer_key: enables injected states and snapshots for clients that show it; at least 16 characters.

    Raises:
        ConfigError: a value out of range, or `openenv-core` is installed next to `openenv`, which breaks both.
    """
    check_installation()
    if max_sessions < 1 or not session_timeout_s > 0:
        got = f"{max_sessions} and {session_timeout_s}"
        raise ConfigError(f"max_sessions must be >= 1 and session_timeout_s > 0, got {got}.")
    if trainer_key is not None and len(trainer_key) < 16:
        raise ConfigError(f"the trainer's key must have at least 16 characters, got {len(trainer_key)}. Generate a random one.")
    kind = InlineSeatEnvironment if workplace.inline else SeatEnvironment
    app = create_fastapi_app(
        partial(kind, workplace, trainer_key=trainer_key),
        SeatAction,
        SeatObservation,
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=max_sessions, session_timeout=session_timeout_s),
        env_name=workplace.name,
        state_cls=SeatState,
    )
    app.title = f"onthejob {workplace.name}"
    app.add_middleware(FrameGuard)  # type: ignore[arg-type]
    app.add_middleware(BodyGuard)  # type: ignore[arg-type]
    app.add_exception_handler(SeatError, _refused)
    app.add_exception_handler(ConfigError, _refused)
    return app


def server_options() -> dict[str, Any]:
    """Settings of uvicorn for `make_app`: one process, patient with learners, room for thousands of connections at once.

    A client that trains in the thread of its socket answers no ping meanwhile, and losing the socket loses the episode; so a
    connection is given up only after ten silent minutes. Frames above the guard's limit are answered by the guard; only absurd
    ones (16 MiB) end the connection. At the end, commands that still run are not waited for.
    """
    return {
        "access_log": False,
        "backlog": 8192,
        "ws_max_size": 16 * 2**20,
        "ws_ping_interval": 60.0,
        "ws_ping_timeout": 600.0,
        "timeout_graceful_shutdown": 2,
    }


async def _refused(request: Request, error: Exception) -> Response:
    """Over HTTP a refusal is a 409 with a sentence, not a bare 500."""
    from fastapi.responses import JSONResponse

    return JSONResponse({"detail": printable(str(error))}, status_code=409 if isinstance(error, SeatError) else 422)


def check_installation() -> None:
    """Refuse an installation in which two distributions own the same files.

    Raises:
        ConfigError: `openenv-core`, the package's former name, is installed too.
    """
    try:
        found = metadata.version("openenv-core")
    except metadata.PackageNotFoundError:
        return
    raise ConfigError(
        f"openenv-core {found} is installed next to openenv and overwrites its files. "
        "Run: pip uninstall -y openenv-core openenv && pip install 'onthejob[openenv]'"
    )
