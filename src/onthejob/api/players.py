"""Who can sit in a seat: the shipped players, and models by whatever means the caller loads them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from onthejob.api.schema import PlayerInfo
from onthejob.api.world import Seat
from onthejob.envs.office.policies import players
from onthejob.errors import ConfigError, RecordError
from onthejob.evaluate.teams import Team
from onthejob.players import scripted
from onthejob.record import list_runs
from onthejob.rollout.episode import Encoder
from onthejob.types import Completion, Context, Policy, Sampling

BASE = "base"
LoadTeam = Callable[[str], tuple[Team, Encoder]]
"""`base`, or a folder of adapters or a run, -> the models that play and the encoder of their prompts. Slow the first time."""

NOTES = {
    "heuristic": "sensible rules of thumb; the default colleague",
    "expert": "the tuned teacher",
    "random": "any legal action",
    "do-nothing": "does nothing",
}


class _OneAtATime:
    """A model that several worlds may ask: its sampler works for one caller at a time."""

    def __init__(self, policy: Policy, lock: threading.Lock) -> None:
        self._policy, self._lock = policy, lock

    @property
    def version(self) -> str:
        return self._policy.version

    @property
    def reads(self) -> str:
        return self._policy.reads

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        with self._lock:
            return self._policy.act(contexts, sampling)


class Players:
    """Finds and keeps players by name."""

    def __init__(self, *, runs: Path | None = None, load: LoadTeam | None = None, extra: Sequence[str] = ()) -> None:
        """runs: folder whose runs can play with their newest adapters. load: how models are loaded; None offers none.

        extra: further names that `load` understands, e.g. a folder of adapters.
        """
        self._runs, self._load, self._extra = runs, load, tuple(extra)
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._teams: dict[str, tuple[Team, Encoder]] = {}

    def list(self) -> list[PlayerInfo]:
        """Everybody who can be seated."""
        shipped = [PlayerInfo(name=name, kind="scripted", note=NOTES.get(name, "")) for name in players()]
        if self._load is None:
            return shipped
        models = [PlayerInfo(name=BASE, kind="model", note="the base model without adapters")]
        models += [PlayerInfo(name=name, kind="model", note="adapters") for name in self._extra]
        return (
            shipped
            + models
            + [PlayerInfo(name=name, kind="model", note="newest adapters of the run") for name in self._runs_with_adapters()]
        )

    def seat(self, name: str, role: str) -> Seat:
        """`name` for the seat of `role`; loads a model when it is the first time.

        Raises:
            ConfigError: nobody is called so, or models cannot be loaded here.
            ModelError: its weights are missing or damaged.
        """
        if name in players():
            return Seat(name=name, policy=scripted(name))
        known = {player.name for player in self.list()}
        if self._load is None or name not in known:
            raise ConfigError(f"nobody is called {name!r}; choose one of {', '.join(sorted(known))}.")
        with self._loading:
            if name not in self._teams:
                source = str(self._runs / name) if self._runs is not None and name in self._runs_with_adapters() else name
                self._teams[name] = self._load(source)
        team, encoder = self._teams[name]
        return Seat(name=name, policy=_OneAtATime(team.policies[role], self._lock), encoder=encoder)

    def _runs_with_adapters(self) -> list[str]:
        if self._runs is None or not self._runs.is_dir():
            return []
        try:
            return [run.name for run in list_runs(self._runs) if run.error is None and run.adapters]
        except RecordError:
            return []
