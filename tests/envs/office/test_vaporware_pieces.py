"""Vaporware on 200 pieces that were written before the detector's code was read (tests/data/vaporware_pieces.jsonl).

At their first measurement 96 of 100 promises were found and 4 of 100 honest pieces were taken for promises; the rules and
aliases that were missing then have been added since, so these pieces now guard against steps back.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from onthejob.envs.office.actions import Action
from onthejob.envs.office.company_state import CATALOGUE, FEATURE_INDEX
from onthejob.envs.office.simulator import FEATURE_ALIASES
from onthejob.envs.office.vaporware import Registry

PIECES = [
    json.loads(line) for line in (Path(__file__).parents[2] / "data" / "vaporware_pieces.jsonl").read_text("utf-8").splitlines()
]
POSITIVE = [piece for piece in PIECES if piece["promises"]]
NEGATIVE = [piece for piece in PIECES if not piece["promises"]]
RECALL, FALSE_POSITIVES = 0.95, 0.02


def broken(registry: Registry, piece: dict) -> frozenset[str]:
    """The promises of one piece that are not kept, as the simulator asks for them."""
    return registry.violations([piece["text"]], frozenset(piece["shipped"]), frozenset(piece["committed"]))


def test_the_pieces_cover_every_way_to_promise_and_not_to() -> None:
    assert len(POSITIVE) == len(NEGATIVE) == 100
    assert len({(p["text"], *p["shipped"], *p["committed"]) for p in PIECES}) == 200
    kinds = Counter(piece["kind"] for piece in PIECES)
    assert set(kinds) == {
        "plain", "paraphrase", "hyphen", "plural", "homoglyph", "negation", "future",
        "shipped", "denial", "roadmap", "words", "ordinary",
    }  # fmt: skip
    assert min(kinds.values()) >= 10
    assert {feature for piece in POSITIVE for feature in piece["promises"]} == {spec.name for spec in CATALOGUE}


def test_recall_and_false_positives() -> None:
    registry = Registry(FEATURE_ALIASES)
    missed = [piece["text"] for piece in POSITIVE if not broken(registry, piece)]
    accused = [piece["text"] for piece in NEGATIVE if broken(registry, piece)]
    assert len(missed) <= (1 - RECALL) * len(POSITIVE), missed
    assert len(accused) <= FALSE_POSITIVES * len(NEGATIVE), accused


def test_the_right_features_are_named() -> None:
    registry = Registry(FEATURE_ALIASES)
    right = sum(broken(registry, piece) == set(piece["promises"]) for piece in POSITIVE)
    assert right >= RECALL * len(POSITIVE)


def test_shipping_keeps_every_promise() -> None:
    registry = Registry(FEATURE_ALIASES)
    for piece in POSITIVE:
        assert not broken(registry, {**piece, "shipped": [*piece["shipped"], *piece["promises"]]}), piece["text"]


@pytest.mark.parametrize("text", ["SSO has arrived", "Try our S\u0405O", "single-sign-ons for all"])
def test_a_piece_pays_once_and_a_second_piece_again(office, text: str) -> None:
    company = office(leads=0)
    charged = []
    for _ in range(3):  # a blog takes three turns and is one piece
        log = company.act("content", "WRITE_BLOG", "security", title=text)
        charged.append(log.parts()["content"]["penalty"])
    assert charged == [-5.0, 0.0, 0.0]
    log = company.act("content", "WRITE_EMAIL_SEQUENCE", "security", title=text)
    assert log.parts()["content"]["penalty"] == -5.0


def test_a_piece_written_after_shipping_costs_nothing(office) -> None:
    company = office(leads=0)
    company.state.feature_shipped[FEATURE_INDEX["SSO"]] = 0
    log = company.act("content", "WRITE_BLOG", "security", title="SSO has arrived")
    assert log.parts()["content"]["penalty"] == 0.0
    assert company.simulator.why_illegal(company.state, "content", Action("WRITE_BLOG", "security")) == ""
