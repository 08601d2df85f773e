"""The workplaces, by name: one line each."""

from __future__ import annotations

from types import MappingProxyType

from onthejob.commands.claw import Claw
from onthejob.commands.office import Office
from onthejob.commands.workplace import Workplace

WORKPLACES: MappingProxyType[str, type[Workplace]] = MappingProxyType({kind.name: kind for kind in (Office, Claw)})
"""Name -> its options, which are the workplace."""
