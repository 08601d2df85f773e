"""The detector with a reader in the place of its linear weights: what the reader is asked, and what its word counts for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onthejob.envs.office.simulator import DESCRIBED, FEATURE_ALIASES
from onthejob.envs.office.vaporware import Registry
from onthejob.errors import ConfigError


class Scripted:
    """Gives the scripted answers, and remembers what it was asked."""

    features = DESCRIBED
    bound = 0.5

    def __init__(self, **claims: tuple[float, float]) -> None:
        self.claims = claims
        self.asked: list[str] = []

    def read(self, text: str) -> dict[str, tuple[float, float]]:
        self.asked.append(text)
        return {name: self.claims.get(name, (0.0, 0.0)) for name in self.features}


LINE = "The kettle has been mended and everybody is glad about it."


def registry(reader: Scripted) -> Registry:
    return Registry(FEATURE_ALIASES, described=DESCRIBED, reader=reader)


def test_its_word_is_the_verdict():
    """Also on a text in which the weights find nothing, and against what they find."""
    assert registry(Scripted(SSO=(0.6, 0.0))).violations([LINE], ()) == {"SSO"}
    assert registry(Scripted(SSO=(0.3, 0.3))).violations([LINE], ()) == {"SSO"}
    assert not registry(Scripted(SSO=(0.25, 0.25))).violations([LINE], ())
    promise = "Our single sign-on is live for every customer from this morning on."
    assert Registry(FEATURE_ALIASES, described=DESCRIBED).violations([promise], ()) == {"SSO"}
    silent = registry(Scripted())
    assert not silent.violations([promise], ())
    assert silent.mentions(promise) == {"SSO"}


def test_shipped_and_committed_features():
    now, later = registry(Scripted(SSO=(0.9, 0.05))), registry(Scripted(SSO=(0.05, 0.9)))
    assert not now.violations([LINE], {"SSO"})
    assert now.violations([LINE], (), {"SSO"}) == {"SSO"}
    assert not later.violations([LINE], (), {"SSO"})
    assert later.violations([LINE], ()) == {"SSO"}


def test_bare_names_are_left_to_the_rules():
    reader = Scripted(Cache=(1.0, 0.0))
    assert registry(reader).violations(["SSO"], ()) == {"SSO"}
    assert reader.asked == []


def test_it_is_asked_once_a_line_in_usual_spelling():
    reader = Scripted()
    detector = registry(reader)
    text = "Now with web-h00ks for all of your shops.\nА dаshbоаrd that you will like, says Zoë."
    detector.scan(text)
    detector.scan(text)
    assert reader.asked == ["Now with Webhooks for all of your shops.", "A dashboard that you will like, says Zoe."]


@pytest.mark.parametrize("text", ["Our REST API and the mobile app.", "Caching, as it should be.", LINE])
def test_usual_spellings_stay(text: str):
    assert registry(Scripted()).usual(text) == text


def test_names_that_it_does_not_know_are_judged_by_the_weights():
    detector = Registry({**FEATURE_ALIASES, "Turbo": ("turbo mode",)}, described=DESCRIBED, reader=Scripted())
    assert detector.violations(["Our turbo mode is live for every customer from this morning on."], ()) == {"Turbo"}


def test_a_reader_must_know_what_is_described():
    class Short(Scripted):
        features = DESCRIBED[:3]

    with pytest.raises(ConfigError, match="the reader knows SSO, API, Dashboard"):
        registry(Short())


@pytest.mark.slow
@pytest.mark.usefixtures("smollm2_path")
def test_the_kept_reader_holds_on_sealed_pieces(
    repository: Path, kept_adapters: Path, monkeypatch, capsys, counts: Callable[[int, int], int]
):
    """At least 0.95 of the promises found, at most 0.02 of the honest pieces accused, by writers that it did not learn from."""
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    script = importlib.import_module("vaporware")
    for sealed in ("vaporware_sealed_2", "vaporware_sealed")[: counts(1, 2)]:
        words = [str(repository / "tests/data" / f"{sealed}.jsonl"), "--reader", str(kept_adapters / "claims")]
        monkeypatch.setattr(sys, "argv", ["vaporware.py", *words])
        assert script.main() == 0, capsys.readouterr().out
