"""A role's actions as numbers: every action has one fixed place, so that a network can have one output per action.

A place is (action type, target slot, option). Where the possible targets never change (pains, features, segments) the slot is the
target's position in that list; where they do (leads, customers, drafts) it is the row in which the role's view shows them. An
empty slot gives a reply that is not possible, which costs what any unusable reply costs; the mask says which places are empty.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from onthejob.envs.office.actions import Action, render
from onthejob.envs.office.company_state import BLOCKABLE, CATALOGUE, DEPARTMENTS, FOCI, PAINS, SEGMENTS, SEVERITIES
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.handlers import all_handlers
from onthejob.envs.office.roles import ROLES, Role
from onthejob.errors import ConfigError

View = Mapping[str, Any]
FEATURES = tuple(spec.name for spec in CATALOGUE)
LEADS, CUSTOMERS, REVISIONS = 6, 3, 3
"""Rows that the views of Sales and Content show at most."""
APPROVALS = 7
"""Deals that can wait for the CEO at once: Sales asks for one a turn, and a message is read for 42 turns."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Targets that come and go: read from the view, at most `count` of them."""

    count: int
    read: Callable[[View], Sequence[str]]


_LEADS = Shown(LEADS, lambda view: [lead["name"] for lead in view["leads"]])
_ROLES = ("dev", "marketing", "sales", "content", "hr")
_SLOTS: MappingProxyType[tuple[str, str], tuple[str, ...] | Shown] = MappingProxyType(
    {
        ("ceo", "SET_OKRS"): FOCI,
        ("ceo", "ALLOCATE_BUDGET"): DEPARTMENTS,
        ("ceo", "PIVOT"): SEGMENTS,
        ("ceo", "SEND_DIRECTIVE"): _ROLES,
        ("ceo", "APPROVE_INITIATIVE"): Shown(APPROVALS, lambda view: view["approve"]),
        ("dev", "BUILD_FEATURE"): FEATURES,
        ("dev", "FIX_BUG"): SEVERITIES,
        ("dev", "SHIP_RELEASE"): FEATURES,
        ("dev", "REVIEW_PR"): FEATURES,
        ("marketing", "LAUNCH_CAMPAIGN"): PAINS,
        ("marketing", "RUN_AD"): SEGMENTS,
        ("marketing", "RESEARCH_MARKET"): SEGMENTS,
        ("sales", "QUALIFY_LEAD"): _LEADS,
        ("sales", "RUN_DEMO"): _LEADS,
        ("sales", "SEND_PROPOSAL"): _LEADS,
        ("sales", "CLOSE_DEAL"): _LEADS,
        ("sales", "FOLLOW_UP"): _LEADS,
        ("sales", "COLLECT_FEEDBACK"): Shown(CUSTOMERS, lambda view: [customer["name"] for customer in view["customers"]]),
        ("content", "WRITE_BLOG"): PAINS,
        ("content", "WRITE_SOCIAL_POST"): PAINS,
        ("content", "WRITE_CASE_STUDY"): PAINS,
        ("content", "WRITE_EMAIL_SEQUENCE"): PAINS,
        ("content", "WRITE_DOCS"): PAINS,
        ("content", "REVISE_CONTENT"): Shown(REVISIONS, lambda view: [piece.split()[0] for piece in view["revise"]]),
        ("hr", "RESOLVE_BLOCKER"): BLOCKABLE,
        ("hr", "HIRE_CONTRACTOR"): ("dev", "content"),
    }
)
"""(role, action type) -> its target slots. Actions that are not listed have no target."""


class Place(NamedTuple):
    """What one number means."""

    action_type: str
    slot: int
    options: tuple[tuple[str, str], ...]
    """Parameters that differ from their default, e.g. (("tier", "annual"),)."""


class DiscreteActions:
    """One role's actions as numbers 0..n-1."""

    def __init__(self, role: str) -> None:
        """Number the actions of `role`.

        Raises:
            ConfigError: there is no such role.
        """
        if role not in list(Role):
            raise ConfigError(f"unknown role {role!r}; known are {', '.join(Role)}.")
        self.role = role
        handlers = all_handlers()
        places = []
        for name in ROLES[Role(role)].actions:
            slots = _SLOTS.get((role, name), ("",))
            count = slots.count if isinstance(slots, Shown) else len(slots)
            allowed = handlers[role, name].options
            variants = itertools.product(*([(key, value) for value in values] for key, values in allowed.items()))
            chosen = [tuple((key, value) for key, value in variant if value != allowed[key][0]) for variant in variants]
            places += [Place(name, slot, options) for slot in range(count) for options in chosen]
        self.places: tuple[Place, ...] = tuple(places)
        self._index = {place: index for index, place in enumerate(places)}

    def __len__(self) -> int:
        return len(self.places)

    def targets(self, action_type: str, view: View) -> Sequence[str]:
        """Target per slot of `action_type`, as things are in `view`; a slot beyond the last one is empty."""
        slots = _SLOTS.get((self.role, action_type), ("",))
        return slots.read(view)[: slots.count] if isinstance(slots, Shown) else slots

    def reply(self, index: int, view: View) -> str:
        """The reply that `index` stands for in `view`: the action's JSON.

        Raises:
            ConfigError: `index` is not in 0..n-1.
        """
        if not 0 <= index < len(self.places):
            raise ConfigError(f"{self.role} has the actions 0..{len(self.places) - 1}, got {index}.")
        place = self.places[index]
        targets = self.targets(place.action_type, view)
        target = targets[place.slot] if place.slot < len(targets) else "(nobody)"
        return render(Action(place.action_type, target, dict(place.options)))

    def index(self, action: Action, view: View) -> int | None:
        """The number of `action` in `view`, messages and reasoning apart; None when it has none."""
        targets = self.targets(action.action_type, view)
        if action.target not in targets:
            return None
        return self._index.get(Place(action.action_type, targets.index(action.target), tuple(action.parameters.items())))

    def mask(self, env: OfficeEnvironment, view: View) -> npt.NDArray[np.int8]:
        """(n,) 1 where the action is possible for this role in `env` as it is now, else 0."""
        mask = np.zeros(len(self.places), dtype=np.int8)
        for action in env.legal_actions(self.role):
            index = self.index(action, view)
            if index is not None:
                mask[index] = 1
        return mask
