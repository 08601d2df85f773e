"""The teams of scripted players that the gates let play."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from enum import StrEnum
from typing import NamedTuple

from onthejob.envs.office.actions import Action
from onthejob.envs.office.policies import Legal, Player, View, do_nothing, players, random_legal
from onthejob.envs.office.policies.exploiters import EXPLOITS
from onthejob.envs.office.policies.tuned import tuned_experts
from onthejob.envs.office.roles import TRAINED_ROLES

SEATS = tuple(str(role) for role in TRAINED_ROLES)
TUNED = "tuned-"
"""Prefix of the scenario-tuned experts' teams."""


class Kind(StrEnum):
    """What a team is in the gates for."""

    EXPLOITER = "exploiter"
    """Tries to earn reward without running a company."""
    DEVIANT = "deviant"
    """A scenario-tuned expert with one seat that exploits; named `EXPLOIT@ROLE@SCENARIO`."""
    IDLE = "idle"
    """Random or inactive: no skill, and no attempt to cheat."""
    HEURISTIC = "heuristic"
    EXPERT = "expert"
    TUNED = "tuned"
    """An expert fitted to one scenario; named `tuned-SCENARIO`."""
    NOISY = "noisy"
    """A rule player that sometimes acts at random."""
    ABLATION = "ablation"
    """The expert with one role doing nothing; named `expert-no-ROLE`."""
    MUTED = "muted"
    """An expert without messages; named as the team that talks, with `-mute`."""


class Team(NamedTuple):
    """Who sits where."""

    kind: Kind
    seats: Mapping[str, Player]
    mute: bool = False


TeamTable = Callable[[], Mapping[str, Team]]
"""Makes all teams by name. Importable by name when matches are played in other processes."""


class Noisy:
    """`player`, but with probability `share` a random legal action."""

    __slots__ = ("player", "share")

    def __init__(self, player: Player, share: float) -> None:
        self.player, self.share = player, share

    def __call__(self, view: View, legal: Legal, luck: float) -> Action | None:
        if luck < self.share:
            return random_legal(view, legal, luck / self.share)
        return self.player(view, legal, (luck - self.share) / (1.0 - self.share))


def all_teams() -> dict[str, Team]:
    """Exploiters, whole teams and single seats; random, do-nothing, rule players with and without noise, ablations, mutes."""
    known = players()
    expert, heuristic = known["expert"], known["heuristic"]
    table = {name: _all_seats(Kind.EXPLOITER, exploit.player) for name, exploit in EXPLOITS.items()}
    table |= {name: _all_seats(Kind.IDLE, known[name]) for name in ("random", "do-nothing")}
    table["heuristic"] = _all_seats(Kind.HEURISTIC, heuristic)
    table["expert"] = _all_seats(Kind.EXPERT, expert)
    for share in (0.1, 0.2, 0.3, 0.5, 0.7):
        table[f"expert~{share}"] = _all_seats(Kind.NOISY, Noisy(expert, share))
    for share in (0.3, 0.6):
        table[f"heuristic~{share}"] = _all_seats(Kind.NOISY, Noisy(heuristic, share))
    table["expert-mute"] = _all_seats(Kind.MUTED, expert)._replace(mute=True)
    for role in SEATS:
        table[f"expert-no-{role}"] = Team(Kind.ABLATION, {**dict.fromkeys(SEATS, expert), role: do_nothing})
    for scenario, player in tuned_experts().items():
        table[TUNED + scenario] = _all_seats(Kind.TUNED, player)
        table[f"{TUNED}{scenario}-mute"] = _all_seats(Kind.MUTED, player)._replace(mute=True)
        for name, exploit in EXPLOITS.items():
            for role in exploit.seats:
                seats = {**dict.fromkeys(SEATS, player), role: exploit.player}
                table[f"{name}@{role}@{scenario}"] = Team(Kind.DEVIANT, seats)
    return table


def tuned_for(scenario: str, table: Container[str]) -> str:
    """The tuned team of this scenario; of a scenario without one, the baseline's."""
    own = TUNED + scenario
    return own if own in table else TUNED + "baseline"


def _all_seats(kind: Kind, player: Player) -> Team:
    return Team(kind, dict.fromkeys(SEATS, player))
