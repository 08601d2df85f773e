"""`onthejob policy swap`: who sits in a seat, changed while `onthejob play --orders FILE` runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from onthejob.commands.player_specs import BASE, adapters_folder
from onthejob.commands.terminal import Output, Terminal, table
from onthejob.envs.office.env import CUSTOMER, SEATS
from onthejob.envs.office.policies import players
from onthejob.errors import ConfigError
from onthejob.office import check_customer


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Hand a role to another policy while an episode is running, from its next turn on."""

    role: tyro.conf.Positional[str]
    """Role; `customer` where a model plays it already, and only for another model."""
    who: tyro.conf.Positional[str]
    """Its new player: a scripted player, `base`, a run, a folder of adapters, or a hosted model."""
    orders: Path = Path("orders.json")
    """The file that the running command was given as --orders."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Write the order; the running command reads it before its next turn."""
        from onthejob.models.catalogue import find, is_hosted, load_catalogue
        from onthejob.rollout.seats import give_order

        if self.role not in (*SEATS, CUSTOMER):
            raise ConfigError(f"role must be one of {', '.join((*SEATS, CUSTOMER))}, got {self.role!r}.")
        if self.role == CUSTOMER:
            check_customer(self.who)
        if is_hosted(self.who):
            find(self.who, load_catalogue())
        elif self.who != BASE and self.who not in players():
            adapters_folder(self.who)
        orders = give_order(self.orders, self.role, self.who)
        terminal.result({"orders": orders}, table(("role", "who"), list(orders.items())))
        return 0
