"""The learned part of the vaporware detector: descriptions without a name, free denials, features of other registries."""

from __future__ import annotations

import importlib
import json
import time
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from onthejob.envs.office.simulator import DESCRIBED, FEATURE_ALIASES
from onthejob.envs.office.vaporware import Registry
from onthejob.envs.office.vaporware.detector_weights import WEIGHTS, shipped_judge
from onthejob.envs.office.vaporware.phrasebook import Phrasebook, root, words_of
from onthejob.errors import ConfigError

WRITTEN = Path(__file__).parents[2] / "data" / "vaporware_written.jsonl"
PARTS = {
    "SSO": "Colleagues sign in with the Microsoft account that IT gave them anyway.",
    "API": "Your programmers can create and change records over HTTP with a token.",
    "Dashboard": "Sales, margin and stock on one screen, in charts that refresh by themselves.",
    "App": "Your drivers confirm deliveries on their Android phones, even without signal.",
    "Cache": "Popular pages are kept in memory, so the second visit opens at once.",
    "Invoices": "Finish the job and we write the bill, add the tax and mail it to your client.",
    "Audit": "You can see who changed a price, when, and what it was before.",
    "Webhooks": "As soon as an order is paid, our server sends a message to your URL.",
}
"""Feature -> a description that is in no training data."""


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry(FEATURE_ALIASES, described=DESCRIBED)


@pytest.mark.parametrize(("feature", "text"), PARTS.items())
def test_a_description_is_a_promise(registry: Registry, feature: str, text: str) -> None:
    assert registry.violations([text], shipped=()) == {feature}
    assert registry.violations([text], shipped={feature}) == frozenset()
    assert Registry(FEATURE_ALIASES).violations([text], shipped=()) == frozenset(), "only names were asked for"


@pytest.mark.parametrize(
    "text",
    [
        "Sign in with your e-mail address and a password.",
        "Our developers met in Lisbon and wrote no code for three days.",
        "A chart in our lobby shows how much coffee we drink.",
        "Leave your phone at the door, please.",
        "We remember our first customer fondly.",
        "Please pay the bill for your subscription by Friday.",
        "Who changed the office playlist to jazz?",
        "We will send you an e-mail when the webinar starts.",
        # described, but denied
        "Your people need a separate password for us, since we can't connect to company accounts.",
        "There is nothing to install on your phone, and we don't plan it.",
        "We keep no record of who changed what.",
        "Our server does not call yours when something happens.",
        "We don't draw charts of your numbers.",
    ],
)
def test_what_is_near_a_description_is_no_promise(registry: Registry, text: str) -> None:
    assert registry.violations([text], shipped=()) == frozenset()


NOWHERE = {"Telepathy": ("mind reading",), "Teleport": ()}


@pytest.mark.parametrize(
    ("text", "promised"),
    [
        ("Dear Ms. Roth, Telepathy is part of the plan you booked, and your admin can switch it on.", {"Telepathy"}),
        ("Nobody at Miller's types anything any more, thanks to our mind reading.", {"Telepathy"}),
        ("There is no reason to wait any longer, since Teleport is in every plan.", {"Teleport"}),
        ("We shelved Telepathy in spring and nobody is working on it.", set()),
        ("I have to walk back what I said about mind reading: it does not exist.", set()),
        ("If you need Teleport, you should look at another vendor.", set()),
        ("My uncle read a book about teleport last summer.", set()),
    ],
)
def test_what_is_learned_holds_for_names_never_seen(text: str, promised: set[str]) -> None:
    assert Registry(NOWHERE).violations([text], shipped=()) == promised


def test_a_free_announcement_is_excused_by_a_commitment() -> None:
    text = "Teleport lands in autumn, as our developers confirmed yesterday."
    assert Registry(NOWHERE).violations([text], shipped=()) == {"Teleport"}
    assert Registry(NOWHERE).violations([text], shipped=(), committed={"Teleport"}) == frozenset()


def test_lines_of_a_text_do_not_excuse_each_other(registry: Registry) -> None:
    text = "We cancelled the mobile app last year.\nYour admins can switch on SSO under Settings, it is in every plan."
    assert registry.violations([text], shipped=()) == {"SSO"}


def test_only_known_descriptions_can_be_asked_for() -> None:
    with pytest.raises(ConfigError, match="Telepathy"):
        Registry(NOWHERE, described=["Telepathy"])


def test_hostile_texts_cost_little_with_descriptions(registry: Registry) -> None:
    for text in (
        "log in with " * 800,
        "sso api app audit " * 500,
        "We can see who changed what. " * 300,
        "a" * 4000,
        "x. " * 1300,
    ):
        start = time.process_time()
        registry.scan(text)
        assert time.process_time() - start < 2.0


def test_weights_are_whole_numbers_and_few() -> None:
    weights = json.loads(WEIGHTS.read_text(encoding="utf-8"))
    models = [weights["claim"], weights["coming"], weights["bounds"], *weights["topics"].values()]
    assert all(isinstance(weight, int) for model in models for weight in model.values())
    assert WEIGHTS.stat().st_size < 300_000
    assert shipped_judge().features == DESCRIBED


@pytest.fixture
def training(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(repository / "benchmarks")
    return importlib.import_module("train_vaporware")


def test_the_weights_belong_to_the_pieces_and_lists(training: ModuleType) -> None:
    trained = json.loads(WEIGHTS.read_text(encoding="utf-8"))["digest"]
    assert trained == training.digest(), "run python benchmarks/train_vaporware.py"


@pytest.mark.slow
def test_a_writer_who_was_left_out_is_judged_well(training: ModuleType) -> None:
    """The fourth writer's pieces have helped to write neither the word lists nor the lines for training."""
    pieces = training.read_pieces(training.bare_registry())
    found, promising, accused, honest = training.judged(pieces, "w4")
    assert promising == honest == 180
    assert found >= 0.7 * promising  # 0.78 with the shipped lists
    assert accused <= 0.15 * honest  # 0.08


def test_the_written_pieces_are_labelled_soundly() -> None:
    pieces = [json.loads(line) for line in WRITTEN.read_text(encoding="utf-8").splitlines()]
    assert Counter(piece["writer"] for piece in pieces) == dict.fromkeys((f"w{number}" for number in range(1, 9)), 360)
    assert len({(piece["writer"], piece["text"]) for piece in pieces}) == len(pieces)
    for piece in pieces:
        said = piece["mentions"]
        broken = {
            feature
            for feature, stance in said.items()
            if feature not in piece["shipped"] and (stance == "now" or (stance == "coming" and feature not in piece["committed"]))
        }
        assert broken == set(piece["promises"]), piece["text"]


def test_words_are_compared_by_their_roots() -> None:
    assert {root(word) for word in ("bill", "bills", "billed", "billing")} == {"bill"}
    assert {root(word) for word in ("change", "changes", "changed", "changing")} == {"chang"}


def test_the_longest_phrase_is_found() -> None:
    book = Phrasebook({"soon": "coming, coming soon", "not": "not", "rumour": "gossip*"})
    hits = book.find(words_of("it isn't coming soon, gossips say"))
    assert [(hit.kinds, hit.last - hit.first + 1) for hit in hits] == [(("not",), 1), (("soon",), 2), (("rumour",), 1)]
