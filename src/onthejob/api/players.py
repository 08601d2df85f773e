"""Who can sit in a seat: the shipped players, and models by whatever means the caller loads them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from onthejob.api.schema import PlayerInfo
from onthejob.api.world import Seat
from onthejob.envs.office.policies import players
from onthejob.errors import ConfigError, RecordError
from onthejob.evaluate.teams import Team
from onthejob.models.catalogue import is_hosted
from onthejob.players import scripted
from onthejob.record import list_runs
from onthejob.rollout.episode import Encoder
from onthejob.types import Completion, Context, Policy, Sampling

BASE = "base"
LoadTeam = Callable[[str], tuple[Team, Encoder]]
"""`base`, or a folder of adapters or a run, -> the models that play and the encoder of their prompts. Slow the first time."""

HOSTED_RETRIES = 8
"""As in play and evaluation of hosted models."""

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


class Hosted(Protocol):
    """Where hosted models come from."""

    def policy(self, spec: str) -> Policy:
        """The model that `spec` names, e.g. `openai:URL`.

        Raises:
            ConfigError: a wrong name, or no key.
        """
        ...

    def spent(self) -> str:
        """What all of them took so far, in words; empty when nothing was asked."""
        ...


class Players:
    """Finds and keeps players by name."""

    def __init__(
        self,
        *,
        runs: Path | None = None,
        load: LoadTeam | None = None,
        extra: Sequence[str] = (),
        hosted: Hosted | None = None,
    ) -> None:
        """Describe who can be had.

        Args:
            runs: folder whose runs can play with their newest adapters.
            load: how models are loaded; None offers none.
            extra: further names that `load` or `hosted` understands, e.g. a folder of adapters.
            hosted: where hosted models come from; None: none can be seated.
        """
        self._runs, self._load, self._extra, self._hosted = runs, load, tuple(extra), hosted
        self._away: dict[str, Policy] = {}
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._teams: dict[str, tuple[Team, Encoder]] = {}

    def list(self) -> list[PlayerInfo]:
        """Everybody who can be seated."""
        found = [PlayerInfo(name=name, kind="scripted", note=NOTES.get(name, "")) for name in players()]
        if self._load is not None:
            found.append(PlayerInfo(name=BASE, kind="model", note="the base model without adapters"))
            found += [PlayerInfo(name=name, kind="model", note="adapters") for name in self._extra if not is_hosted(name)]
            found += [
                PlayerInfo(name=name, kind="model", note="newest adapters of the run") for name in self._runs_with_adapters()
            ]
        if self._hosted is not None:
            away = dict.fromkeys([*filter(is_hosted, self._extra), *self._away])
            found += [PlayerInfo(name=name, kind="hosted", note=self._hosted.spent()) for name in away]
        return found

    def seat(self, name: str, role: str) -> Seat:
        """`name` for the seat of `role`; loads a model when it is the first time.

        Raises:
            ConfigError: nobody is called so, or models cannot be loaded here.
            ModelError: its weights are missing or damaged.
        """
        if name in players():
            return Seat(name=name, policy=scripted(name))
        if is_hosted(name):
            return Seat(name=name, policy=self._hosted_policy(name), retries=HOSTED_RETRIES)
        known = {player.name for player in self.list()}
        if self._load is None or name not in known:
            raise ConfigError(f"nobody is called {name!r}; choose one of {', '.join(sorted(known))}.")
        with self._loading:
            if name not in self._teams:
                source = str(self._runs / name) if self._runs is not None and name in self._runs_with_adapters() else name
                self._teams[name] = self._load(source)
        team, encoder = self._teams[name]
        return Seat(name=name, policy=_OneAtATime(team.policies[role], self._lock), encoder=encoder)

    def _hosted_policy(self, name: str) -> Policy:
        if self._hosted is None:
            raise ConfigError(f"{name!r} is a hosted model, and this server seats none.")
        with self._loading:
            if name not in self._away:
                self._away[name] = self._hosted.policy(name)
        return self._away[name]

    def _runs_with_adapters(self) -> list[str]:
        if self._runs is None or not self._runs.is_dir():
            return []
        try:
            return [run.name for run in list_runs(self._runs) if run.error is None and run.adapters]
        except RecordError:
            return []
