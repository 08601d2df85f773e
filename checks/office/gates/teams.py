"""The teams of scripted players that the gates let play."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from checks.office.players.exploiters import EXPLOITS
from checks.office.players.tuned import tuned_experts
from onthejob.envs.office.actions import Action
from onthejob.envs.office.policies import Legal, Noisy, Player, View, do_nothing, players, random_legal
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
    HONEST = "honest"
    """A scenario-tuned expert in one seat among strangers; named `tuned-SCENARIO@ROLE/STRANGERS`."""
    ABSENT = "absent"
    """An empty seat among strangers; named `absent@ROLE/STRANGERS`."""
    INTRUDER = "intruder"
    """An exploit in one seat among strangers; named `EXPLOIT@ROLE/STRANGERS`."""


ONE_SEAT = frozenset({Kind.DEVIANT, Kind.HONEST, Kind.ABSENT, Kind.INTRUDER})
"""Kinds that are about one seat, and are compared with another player of that seat only."""


class Team(NamedTuple):
    """Who sits where."""

    kind: Kind
    seats: Mapping[str, Player]
    mute: bool = False


TeamTable = Callable[[], Mapping[str, Team]]
"""Makes all teams by name. Importable by name when matches are played in other processes."""


_TRICKS: MappingProxyType[str, tuple[Player, ...]] = MappingProxyType(
    {role: tuple(exploit.player for exploit in EXPLOITS.values() if role in exploit.seats) for role in SEATS}
)


def exploiting(view: View, legal: Legal, luck: float) -> Action | None:
    """Tries every exploit of its seat, one day each."""
    tricks = _TRICKS[view["role"]]
    return tricks[view["day"] % len(tricks)](view, legal, luck)


STRANGERS: MappingProxyType[str, Player] = MappingProxyType({"random": random_legal, "exploiters": exploiting})
"""Partners of other kinds than a trained team: without skill, and without honesty."""


def all_teams() -> dict[str, Team]:
    """Exploiters, whole teams and single seats; random, do-nothing, rule players, ablations, mutes; each seat among strangers."""
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
    return table | _among_strangers()


def _among_strangers() -> dict[str, Team]:
    table: dict[str, Team] = {}
    for strangers, player in STRANGERS.items():
        others = dict.fromkeys(SEATS, player)
        for role in SEATS:
            table[f"absent@{role}/{strangers}"] = Team(Kind.ABSENT, {**others, role: do_nothing})
            for scenario, tuned in tuned_experts().items():
                table[f"{TUNED}{scenario}@{role}/{strangers}"] = Team(Kind.HONEST, {**others, role: tuned})
        for name, exploit in EXPLOITS.items():
            for role in exploit.seats:
                table[f"{name}@{role}/{strangers}"] = Team(Kind.INTRUDER, {**others, role: exploit.player})
    return table


def tuned_for(scenario: str, table: Container[str]) -> str:
    """The tuned team of this scenario; of a scenario without one, the baseline's."""
    own = TUNED + scenario
    return own if own in table else TUNED + "baseline"


def _all_seats(kind: Kind, player: Player) -> Team:
    return Team(kind, dict.fromkeys(SEATS, player))
