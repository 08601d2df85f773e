"""The task families, per persona: three easy, three medium and two hard recipes, errands of each difficulty, two new errands."""

from __future__ import annotations

from types import MappingProxyType

from onthejob.envs.claw.families import (
    academic_author,
    backend_developer,
    data_science_researcher,
    devops_engineer,
    embedded_firmware_dev,
    errands,
    indie_game_dev,
    ml_engineer,
    technical_writer,
)
from onthejob.envs.claw.families.scene import Family

_MODULES = (
    academic_author,
    backend_developer,
    data_science_researcher,
    devops_engineer,
    embedded_firmware_dev,
    indie_game_dev,
    ml_engineer,
    technical_writer,
    errands,
)

FAMILIES: MappingProxyType[str, Family] = MappingProxyType(
    {family.name: family for module in _MODULES for family in module.FAMILIES}
)
"""Family name -> family: recipes by persona and difficulty, then errands by difficulty and persona, new errands last.

How many families a persona has, and in which order, is part of a task's number: with another one, equal seeds give other corpora.
"""
