"""Versions go live one after another on a real model in this process; and every way in which one must not."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from onthejob.errors import ConfigError, ContractError, ModelError, ServeError
from onthejob.models.engines import Engine
from onthejob.models.sampler import LocalSampler
from onthejob.serve.intake import Intake
from onthejob.serve.publish import Probe, Publisher, Slots, distance, trainer_scores
from onthejob.types import Adapter, Sampling

from .conftest import Workshop

IDS = tuple(range(5, 21))
PROBE = Probe(ids=IDS, mean_tolerance=1e-3, max_tolerance=1e-2)


class LocalServer:
    """The sampler of this process as a server: what is published computes real numbers. Older versions stay until unloaded."""

    def __init__(self, sampler: LocalSampler) -> None:
        self._sampler = sampler

    def names(self) -> tuple[str, ...]:
        return self._sampler.published

    def load(self, adapter: Adapter) -> None:
        self._sampler.publish(adapter, keep=True)

    def unload(self, name: str) -> None:
        self._sampler.withdraw(name)

    def score(self, ids: Sequence[int], name: str | None) -> list[float]:
        return self._sampler.score(ids, adapter=name)


class Place:
    """A publisher on a sampler."""

    def __init__(self, workshop: Workshop, store: Path, server: LocalServer | None = None, **options) -> None:
        self.workshop = workshop
        self.sampler = workshop.sampler()
        self.server = server or LocalServer(self.sampler)
        self.publisher = Publisher(self.server, Intake(store, workshop.base), probe=PROBE, **options)

    def publish(self, version: int, role: str = "sales"):
        adapter = self.workshop.write(role, version)
        return self.publisher.publish(adapter.path, expected=trainer_scores(self.workshop.model, role, IDS))


@pytest.fixture
def place(workshop: Workshop, tmp_path: Path) -> Place:
    return Place(workshop, tmp_path / "store")


def test_served_numbers_are_the_trainers_and_differ_from_the_version_before(place: Place):
    first = place.publish(1)
    base, one = place.server.score(IDS, None), place.server.score(IDS, "sales@0001")
    second = place.publish(2)
    two = place.server.score(IDS, "sales@0002")
    assert first.probe_mean is not None
    assert max(first.probe_max, second.probe_max) < 1e-4
    assert distance(base, one)[0] > 0.05
    assert distance(one, two)[0] > 0.05
    assert second.replaced == "sales@0001"
    assert place.server.names() == ("sales@0002",)
    assert place.publisher.live["sales"].name == "sales@0002"


def test_roles_are_independent(place: Place):
    place.publish(1, "sales")
    place.publish(1, "dev")
    place.publish(2, "dev")
    assert set(place.server.names()) == {"sales@0001", "dev@0002"}


def test_publishing_again_changes_nothing(place: Place):
    place.publish(1)
    again = place.publisher.publish(place.workshop.out / "sales@0001")
    assert (again.replaced, again.total_s) == (None, 0.0)
    assert place.server.names() == ("sales@0001",)


def test_old_copies_go_when_nobody_can_ask_for_them(place: Place, tmp_path: Path):
    for version in range(1, 6):
        place.publish(version)
    left = sorted(path.name.split("-")[0] for path in (tmp_path / "store" / "sales").iterdir())
    assert left == ["sales@0004", "sales@0005"]


class Wrong(LocalServer):
    """Computes other numbers than it was given weights for."""

    shift = 0.0

    def score(self, ids: Sequence[int], name: str | None) -> list[float]:
        return [value + self.shift for value in super().score(ids, name)]


class Stale(LocalServer):
    """Continues to use the weights it had."""

    first: str | None = None

    def load(self, adapter: Adapter) -> None:
        super().load(adapter)
        self.first = self.first or adapter.name

    def score(self, ids: Sequence[int], name: str | None) -> list[float]:
        return super().score(ids, name and self.first)

    def unload(self, name: str) -> None:
        if name != self.first:
            super().unload(name)


class Forgetful(LocalServer):
    """Says yes and lists nothing."""

    forget = False

    def names(self) -> tuple[str, ...]:
        return () if self.forget else super().names()


@pytest.mark.parametrize(("kind", "said"), [(Wrong, "other numbers"), (Stale, "other numbers"), (Forgetful, "does not list it")])
def test_a_version_that_fails_its_probe_never_answers(kind, said: str, workshop: Workshop, tmp_path: Path):
    server = kind(workshop.sampler())
    place = Place(workshop, tmp_path / "store", server)
    place.publish(1)
    before = server.score(IDS, "sales@0001")
    if isinstance(server, Wrong):
        server.shift = -0.5
    if isinstance(server, Forgetful):
        server.forget = True
    with pytest.raises(ServeError, match=said):
        place.publish(2)
    if isinstance(server, Wrong):
        server.shift = 0.0
    if isinstance(server, Forgetful):
        server.forget = False
        server.unload("sales@0002")
    assert place.publisher.live["sales"].name == "sales@0001"
    assert server.names() == ("sales@0001",)
    assert server.score(IDS, "sales@0001") == before


def test_a_server_that_uses_the_version_before_is_found_out_within_wide_tolerances(workshop: Workshop, tmp_path: Path):
    server = Stale(workshop.sampler())
    wide = Probe(ids=IDS, mean_tolerance=0.05, max_tolerance=1e9)
    publisher = Publisher(server, Intake(tmp_path / "store", workshop.base), probe=wide)
    for version, scale in ((1, 0.2), (2, 0.2)):
        adapter = workshop.write("sales", version, scale=scale)
        expected = trainer_scores(workshop.model, "sales", IDS)
        if version == 1:
            publisher.publish(adapter.path, expected=expected)
        else:
            with pytest.raises(ServeError):
                publisher.publish(adapter.path, expected=expected)


def test_a_poisoned_adapter_never_reaches_the_server(place: Place):
    place.publish(1)
    bad = place.workshop.write("sales", 2)
    (bad.path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError):
        place.publisher.publish(bad.path)
    assert place.server.names() == ("sales@0001",)


def test_rollback_lets_the_version_before_answer(place: Place):
    place.publish(1)
    one = place.server.score(IDS, "sales@0001")
    place.publish(2)
    assert place.publisher.rollback("sales").name == "sales@0001"
    assert place.server.names() == ("sales@0001",)
    assert place.server.score(IDS, "sales@0001") == one
    with pytest.raises(ServeError, match="no earlier version"):
        place.publisher.rollback("sales")
    assert place.publish(3).replaced == "sales@0001"


def test_a_version_in_use_stays_until_its_replies_are_done(place: Place):
    place.publish(1)
    leased, done = threading.Event(), threading.Event()
    names: list[str] = []

    def reply() -> None:
        with place.publisher.lease("sales") as adapter:
            leased.set()
            done.wait(20)
            names.extend(place.server.names())
            place.sampler.generate([IDS], adapter=adapter.name, sampling=Sampling(max_new_tokens=2), seeds=[0])

    thread = threading.Thread(target=reply)
    thread.start()
    assert leased.wait(20)
    publishing = threading.Thread(target=lambda: place.publish(2))
    publishing.start()
    while place.publisher.live["sales"].name != "sales@0002":
        assert publishing.is_alive()
        threading.Event().wait(0.01)
    done.set()
    thread.join(20)
    publishing.join(20)
    assert set(names) == {"sales@0001", "sales@0002"}
    assert place.server.names() == ("sales@0002",)


def test_a_lease_that_never_ends_does_not_block_for_ever(workshop: Workshop, tmp_path: Path):
    place = Place(workshop, tmp_path / "store", drain_s=0.0)
    place.publish(1)
    with place.publisher.lease("sales"):
        place.publish(2)
        assert set(place.server.names()) == {"sales@0001", "sales@0002"}
        for version in (3, 4):
            place.publish(version)
        # A server that lists a name whose files are gone dies at its next request: listed is never pruned.
        left = {path.name.split("-")[0] for path in (tmp_path / "store" / "sales").iterdir()}
        assert left == {"sales@0001", "sales@0003", "sales@0004"}
    place.publish(5)
    assert place.server.names() == ("sales@0005",)
    left = {path.name.split("-")[0] for path in (tmp_path / "store" / "sales").iterdir()}
    assert left == {"sales@0004", "sales@0005"}


def test_nobody_can_lease_what_was_not_published(place: Place):
    with pytest.raises(ContractError, match="Publish one first"), place.publisher.lease("sales"):
        pass


def test_an_earlier_version_that_is_published_again_answers(place: Place):
    for version in (5, 6, 5):
        place.publish(version)
        assert place.server.names() == (f"sales@000{version}",)
    live = place.publisher.live["sales"]
    assert live.name == "sales@0005"
    assert live.path.is_dir()
    assert place.publisher.rollback("sales").name == "sales@0006"


def test_a_run_that_begins_again_takes_the_name_over(workshop: Workshop, tmp_path: Path):
    place = Place(workshop, tmp_path / "store", drain_s=0.0)
    place.publish(0)
    before = place.publisher.live["sales"]
    other = dataclasses.replace(workshop, out=tmp_path / "other").write("sales", 0, scale=2.0)
    expected = trainer_scores(place.workshop.model, "sales", IDS)
    with pytest.raises(ServeError, match="live with other weights"):
        place.publisher.publish(other.path, expected=expected)
    with place.publisher.lease("sales"), pytest.raises(ServeError, match="still in use"):
        place.publisher.publish(other.path, expected=expected, replace=True)
    assert place.publisher.live["sales"] == before
    place.publisher.publish(other.path, expected=expected, replace=True)
    assert place.publisher.live["sales"].digest == other.digest != before.digest
    assert place.server.names() == ("sales@0000",)
    assert distance(place.server.score(IDS, "sales@0000"), expected)[1] < 1e-4
    assert not before.path.exists()


def test_slots_leave_room_for_a_version_that_is_being_probed():
    slots = Slots.for_roles(6, rank=12)
    assert (slots.max_loras, slots.max_cpu_loras, slots.max_rank) == (7, 7, 16)
    with pytest.raises(ConfigError):
        Slots.for_roles(0, rank=8)
    with pytest.raises(ConfigError):
        Slots.for_roles(1, rank=1024)


def test_options_that_cannot_work_are_refused(workshop: Workshop, tmp_path: Path):
    with pytest.raises(ConfigError, match="roll back"):
        Place(workshop, tmp_path, keep=1)
    with pytest.raises(ConfigError, match="ids must be of length >= 2"):
        Probe(ids=(1,))
    with pytest.raises(ConfigError, match="mean_tolerance must be <= max_tolerance"):
        Probe(ids=(1, 2), mean_tolerance=2.0, max_tolerance=1.0)


@pytest.mark.parametrize("engine", ["auto", "torch", "transformers"])
def test_a_samplers_scores_are_the_trainers(engine: Engine, workshop: Workshop):
    adapter = workshop.write("sales", 1)
    sampler = LocalSampler(workshop.model, workshop.chat, engine=engine)
    sampler.publish(adapter)
    assert sampler.score(IDS, adapter="sales@0001") == pytest.approx(trainer_scores(workshop.model, "sales", IDS), abs=1e-4)
    with pytest.raises(ContractError, match="two ids"):
        sampler.score(IDS[:1], adapter=None)
    with pytest.raises(ContractError, match="not published"):
        sampler.score(IDS, adapter="dev@0001")
