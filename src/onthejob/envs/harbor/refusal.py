"""Why a task cannot run here."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

PYTHONS = "Python's "
"""Begins the detail of a refusal for a package of Python."""


def words_of(text: str) -> frozenset[str]:
    """The words of a text, for tables of names."""
    return frozenset(text.split())


class RefusalReason(StrEnum):
    """Kinds of reasons, in the order in which a table shows them."""

    FORMAT = "not in the format"
    STEPS = "several steps"
    IMAGE = "an image of its own"
    SERVICES = "services"
    NETWORK = "network"
    COMPILERS = "compilers"
    PACKAGES = "other packages"
    RUN = "other RUN lines"
    PLACE = "files in a folder of the system"
    USER = "another user"
    SYSTEM = "the request is about the system"
    HARDWARE = "hardware"
    KEY = "a key or a model that judges"
    VERIFIER = "an image of its own for the tests"
    BUILD = "its image could not be made"


class Refusal(NamedTuple):
    """One reason, and what exactly."""

    reason: RefusalReason
    detail: str
