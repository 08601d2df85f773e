"""Measurement that only a checkout has: the package `checks`, a folder next to `src/`.

There are the office's gates, exploiters, scenario-tuned experts and behaviours, attacks on sandboxes beyond those of `sandbox
doctor`, the conversion of InterCode's tasks, and servers for tests. The wheel holds none of it; the repository and the source
archive do. Nothing else in this package imports `checks`: commands, players and attacks are found through `from_checks`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from onthejob.errors import ConfigError

NAME = "checks"
SOURCE = Path(__file__).parent.parent
"""The folder that holds this package: `src/` of a checkout, also where that is installed as editable."""
PLAYERS = frozenset({
    "tuned-baseline", "tuned-competitor", "tuned-series_a", "tuned-churn", "tuned-viral", "message-spammer",
    "mention-collaborator", "inert-farmer", "okr-looper", "blocker-inventor", "bug-inventor", "bug-pump", "oscillator",
    "monthly-rusher", "annual-always", "churn-recloser", "traffic-farmer", "post-flooder", "docs-flooder",
    "qualify-never-close", "follow-up-farmer", "feature-fragmenter", "budget-dumper", "late-stopper", "cash-hoarder",
    "vaporware-seller", "customer-injector", "entity-namer", "constant-json", "parameter-abuser", "last-mover",
    "seed-memoriser", "crisis-farmer", "seed-spammer",
})  # fmt: skip
"""Names of the office's players in `checks.office.players`, for messages when it is missing."""


def checks_folder() -> Path | None:
    """`checks/` of the checkout that this package is imported from; None where the package is installed without one."""
    folder = SOURCE.parent / NAME
    return folder if SOURCE.name == "src" and (folder / "__init__.py").is_file() else None


def from_checks(module: str, *, what: str) -> ModuleType:
    """A module of `checks`.

    Args:
        module: its dotted name below `checks`, e.g. `office.players`.
        what: noun phrase for the message when it is missing, e.g. `players`.

    Raises:
        ConfigError: this installation has no `checks/`, or another module of that name was imported already.
    """
    folder = checks_folder()
    if folder is None:
        raise ConfigError(
            f"{what} is measurement, which the installed package does not include. It is in checks/ of the project's repository "
            "and source archive: get one of these, run `pip install --editable .` in it, and repeat the command."
        )
    if NAME not in sys.modules:
        # First, because the working folder may be another checkout. Worker processes inherit the path.
        sys.path.insert(0, str(folder.parent))
    found = importlib.import_module(NAME)
    if found.__file__ is None or Path(found.__file__).resolve().parent != folder.resolve():
        where = found.__file__ or ", ".join(found.__path__)
        raise ConfigError(f"{what} needs the package {folder}, but {where} was imported under its name. Rename the latter.")
    return importlib.import_module(f"{NAME}.{module}")


def missing_player(name: str) -> str:
    """A sentence about a player of `checks/` where that folder is missing; empty for every other name, and in a checkout."""
    if name not in PLAYERS or checks_folder() is not None:
        return ""
    return (
        f"{name} is one of the players with which the office is measured. They are in checks/ of the project's repository and "
        "source archive, not in the installed package: get one of these and run `pip install --editable .` in it."
    )
