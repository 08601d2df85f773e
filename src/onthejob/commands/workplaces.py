"""The built-in workplaces, by name, as what the commands take."""

from __future__ import annotations

from types import MappingProxyType
from typing import cast

from onthejob.commands.claw import Claw
from onthejob.commands.office import Office
from onthejob.commands.workplace import Workplace

WORKPLACES: MappingProxyType[str, type[Office] | type[Claw]] = MappingProxyType({kind.name: kind for kind in (Office, Claw)})
"""Name -> its options, which are the workplace."""


def built_in(place: Office | Claw) -> Workplace:
    """`place` by its protocol: its class variables serve as the protocol's properties, which type checkers do not accept."""
    return cast(Workplace, place)
