"""Colleagues of other kinds, to test whether a trained role works with partners that it was not trained with.

Training continues branches with the heuristic and may seat any shipped player; those of `HELD_OUT_PARTNERS` it refuses, so that
evaluation has strangers. Source: Melting Pot's held-out background populations (Agapiou et al. 2022).
"""

from __future__ import annotations

from types import MappingProxyType

from onthejob.envs.office.actions import Action
from onthejob.envs.office.policies import Legal, Player, View, random_legal
from onthejob.envs.office.policies.expert import TunedExpert, Tuning
from onthejob.envs.office.policies.heuristic import heuristic
from onthejob.envs.office.policies.picking import inert
from onthejob.errors import ConfigError

CLUMSY = 0.35
"""Share of the clumsy partner's turns that are random."""
ABSENT_EVERY = 3
"""Days after which the part-timer takes one off."""

_FRUGAL = TunedExpert(Tuning(hires=0, campaign_leads=1, directs="content", docs_calm=65, tier="annual"))
_BUILDER = TunedExpert(Tuning(products=8, product_until=30, majors=6, debt=60, review_below=0, campaign_leads=3))
_CARER = TunedExpert(Tuning(calm=90, sound=80, majors=1, docs_first=50, docs_calm=90, moody=8, silent=1))


def frugal(view: View, legal: Legal, luck: float) -> Action | None:
    """Spends next to nothing: no contractors, hardly a campaign, annual contracts."""
    return _FRUGAL(view, legal, luck)


def builder(view: View, legal: Legal, luck: float) -> Action | None:
    """Builds and ships above all, without reviews, and lets debt grow."""
    return _BUILDER(view, legal, luck)


def carer(view: View, legal: Legal, luck: float) -> Action | None:
    """Looks after customers and quality first; new business comes second."""
    return _CARER(view, legal, luck)


def clumsy(view: View, legal: Legal, luck: float) -> Action | None:
    """The heuristic, but every third turn or so something random."""
    if luck < CLUMSY:
        return random_legal(view, legal, luck / CLUMSY)
    return heuristic(view, legal, (luck - CLUMSY) / (1.0 - CLUMSY))


def part_timer(view: View, legal: Legal, luck: float) -> Action | None:
    """The heuristic, but on every third day it only pretends to work."""
    return inert(view, legal, luck) if view["day"] % ABSENT_EVERY == 0 else heuristic(view, legal, luck)


HELD_OUT_PARTNERS: MappingProxyType[str, Player] = MappingProxyType(
    {"frugal": frugal, "builder": builder, "carer": carer, "clumsy": clumsy, "part-timer": part_timer}
)


def refuse_partner(name: str) -> None:
    """Refuse to train with `name` when it is kept for evaluation.

    Raises:
        ConfigError: a held-out partner.
    """
    if name in HELD_OUT_PARTNERS:
        raise ConfigError(
            f"training refuses the held-out partner {name!r}: {', '.join(HELD_OUT_PARTNERS)} are for evaluation. "
            "Train with heuristic, expert or random."
        )
