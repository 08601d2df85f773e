"""Who can sit in a seat: the shipped players, and models by whatever means the caller loads them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from onthejob.api.asking import Asking, asking_of
from onthejob.api.schema_office import NeedInfo, PlayerInfo
from onthejob.api.seated import Seat
from onthejob.checkout import missing_player
from onthejob.envs.office.env import CUSTOMER, SEATS
from onthejob.envs.office.policies import players
from onthejob.errors import ConfigError, RecordError
from onthejob.evaluate.teams import Team
from onthejob.models.catalogue import Catalogue, find, is_hosted, load_catalogue, needs_of
from onthejob.models.fetch import is_here
from onthejob.office import check_customer
from onthejob.office_players import scripted
from onthejob.record import Run, RunSummary, list_runs
from onthejob.rollout.episode import Encoder
from onthejob.rollout.wrapped import WrappedPolicy
from onthejob.types import Completion, Context, Policy, Sampling

BASE = "base"
OTHER_BASE = f"{BASE}:"
"""Before the name of a model of this machine other than the usual base, e.g. `base:Qwen/Qwen3-0.6B`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The models behind one name."""

    team: Team
    encoder: Encoder
    """Of their prompts."""
    asking: Mapping[str, Asking] = field(default_factory=dict)
    """Role -> how its model is asked; a role without an entry is asked as usual."""


LoadTeam = Callable[[str, Collection[str]], Loaded]
"""`base`, `base:MODEL`, or a folder of adapters or a run, -> the models that play. Slow the first time. Further: sources of seats
whose models must stay in memory."""

HOSTED_RETRIES = 8
"""As in play and evaluation of hosted models."""

NOTES = {
    "heuristic": "sensible rules of thumb; the default colleague",
    "expert": "the tuned teacher",
    "random": "any legal action",
    "do-nothing": "does nothing",
}


class _OneAtATime(WrappedPolicy):
    """A model that several worlds may ask: its sampler works for one caller at a time."""

    def __init__(self, policy: Policy, lock: threading.Lock) -> None:
        super().__init__(policy)
        self._lock = lock

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        with self._lock:
            return super().act(contexts, sampling)


class Hosted(Protocol):
    """Where hosted models come from."""

    def policy(self, spec: str) -> Policy:
        """The model that `spec` names, e.g. `openai:URL`."""
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
        self.seated: Callable[[], Collection[str]] = tuple
        """Names of those who sit somewhere."""

    def list(self) -> list[PlayerInfo]:
        """All players that can be seated, and the catalogue's models with what they need."""
        catalogue = load_catalogue()
        found = [_info(name, "scripted", NOTES.get(name, "")) for name in players()]
        if self._load is not None:
            found.append(_info(BASE, "model", "the base model without adapters; prompts fit its context"))
            found += [
                _local(name.removeprefix(OTHER_BASE)) if name.startswith(OTHER_BASE) else _info(name, "model", "adapters")
                for name in self._extra
                if not is_hosted(name)
            ]
            found += [
                _info(name, "model", f"newest adapters of the run: {asking.describe()}")
                for name, asking in self._office_runs().items()
            ]
            found += [_local(name) for name in catalogue.local]
        if self._hosted is not None:
            spent = self._hosted.spent()
            listed = [f"{entry.provider}:{name}" for name, entry in catalogue.models.items()]
            away = dict.fromkeys([*filter(is_hosted, self._extra), *self._away, *listed])
            found += [_hosted(name, catalogue, spent) for name in away]
        return list({info.name: info for info in reversed(found)}.values())[::-1]

    def seat(self, name: str, role: str, *, beside: Collection[str] = ()) -> Seat:
        """`name` for the seat of `role`; loads a model when it is the first time.

        Args:
            name: as it was asked for.
            role: of the seat.
            beside: names that are about to take a seat too; their models and those of everyone seated stay in memory.

        Raises:
            ConfigError: there is no such player, or models cannot be loaded here, or there is no room for one, or it
                cannot play the customer, for whose seat it is named.
            ModelError: its weights are missing or damaged.
        """
        if role == CUSTOMER:
            check_customer(name)
        if name in players():
            return Seat(name=name, policy=scripted(name))
        if is_hosted(name):
            return Seat(name=name, policy=self._hosted_policy(name), retries=HOSTED_RETRIES)
        runs = self._office_runs()
        if self._load is None or not (name in (BASE, *self._extra, *runs) or name.startswith(OTHER_BASE)):
            known = ", ".join(sorted(player.name for player in self.list()))
            raise ConfigError(missing_player(name) or f"unknown player {name!r}; choose one of {known}, or {OTHER_BASE}MODEL.")
        with self._loading:
            stay = {self._source(one, runs) for one in (*self.seated(), *beside)}
            loaded = self._load(self._source(name, runs), stay)
        policy = _OneAtATime(loaded.team.policies[role], self._lock)
        return Seat(
            name=name,
            policy=policy,
            encoder=loaded.encoder,
            asking=loaded.asking.get(role, Asking()),
            fingerprint=loaded.team.fingerprints[role],
        )

    def _source(self, name: str, runs: Collection[str]) -> str:
        """What `load` calls `name`."""
        return str(self._runs / name) if self._runs is not None and name in runs else name

    def _hosted_policy(self, name: str) -> Policy:
        if self._hosted is None:
            raise ConfigError(f"{name!r} is a hosted model, and this server seats none.")
        with self._loading:
            if name not in self._away:
                self._away[name] = self._hosted.policy(name)
        return self._away[name]

    def _office_runs(self) -> dict[str, Asking]:
        """Runs with adapters of the office's roles, and how they asked them."""
        if self._runs is None or not self._runs.is_dir():
            return {}
        found: dict[str, Asking] = {}
        for summary in _listed(self._runs):
            if summary.error is not None or not summary.adapters:
                continue
            # A run that has gone or breaks meanwhile is none to choose.
            with suppress(RecordError), Run.open(summary.path, readonly=True, skip_damaged=True) as run:
                if any(adapter.role in SEATS for adapter in run.adapters()):
                    found[summary.name] = asking_of(run.config, Asking())
        return found


def _info(name: str, kind: Literal["scripted", "model"], note: str) -> PlayerInfo:
    return PlayerInfo(name=name, kind=kind, note=note, needs=[], ready=True, spent="")


def _local(name: str) -> PlayerInfo:
    """A base of the catalogue."""
    there = is_here(name)
    note = ("on this machine" if there else "fetched when it is first seated") + "; prompts fit its context"
    needs = [NeedInfo(what="weights", there=there)]
    return PlayerInfo(name=f"{OTHER_BASE}{name}", kind="model", note=note, needs=needs, ready=True, spent="")


def _hosted(name: str, catalogue: Catalogue, spent: str) -> PlayerInfo:
    """A hosted model by what the catalogue says of it."""
    entry, endpoint = find(name, catalogue)
    needs = [NeedInfo(what=need.what, there=need.there) for need in needs_of(entry, endpoint)]
    known = entry.input_usd is not None and entry.output_usd is not None
    price = f"${entry.input_usd:g} and ${entry.output_usd:g} for a million tokens read and written" if known else ""
    context = f"prompts fit its context of {entry.window:,} tokens, by estimate" if entry.window is not None else ""
    ready = all(need.there is not False for need in needs)
    note = "; ".join(filter(None, (price, context)))
    return PlayerInfo(name=name, kind="hosted", note=note, needs=needs, ready=ready, spent=spent)


def _listed(root: Path) -> list[RunSummary]:
    try:
        return list_runs(root)
    except RecordError:
        return []
