"""A supervised model server: started, published to under load, killed, restarted. With vLLM where there is one."""

from __future__ import annotations

import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onthejob.errors import ConfigError, ServeError
from onthejob.models.chat import ChatEncoder
from onthejob.serve.guard import stat_of
from onthejob.serve.intake import Intake
from onthejob.serve.local import trainer_scores
from onthejob.serve.publish import Probe, Publisher, Slots
from onthejob.serve.server import PYTHON_ENV, ModelServer, ServerConfig, vllm_command
from onthejob.serve.vllm import VllmSampler
from onthejob.types import Sampling

from .conftest import Workshop

IDS = tuple(range(5, 21))
PROTOCOL = (sys.executable, "-m", "onthejob.testing.model_server")
SLOTS = Slots(max_loras=3, max_cpu_loras=5, max_rank=8)


@pytest.fixture
def server(workshop: Workshop, tmp_path: Path) -> Iterator[OurServer]:
    made = OurServer(workshop.folder, slots=SLOTS, log_file=tmp_path / "server.log", command=PROTOCOL)
    yield made
    made.stop()


class OurServer(ModelServer):
    """With the path of this package, which an installed one does not need."""

    forbid = False

    def environment(self, environ=None) -> dict[str, str]:
        given = super().environment(environ) | {"PYTHONPATH": os.pathsep.join(sys.path)}
        return given | ({"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0"} if self.forbid else {})


def publisher_of(server: ModelServer, workshop: Workshop, store: Path) -> Publisher:
    probe = Probe(ids=IDS, mean_tolerance=1e-3, max_tolerance=1e-2)
    return Publisher(server, Intake(store, workshop.base), probe=probe)


def publish(publisher: Publisher, workshop: Workshop, role: str, version: int):
    adapter = workshop.write(role, version)
    return publisher.publish(adapter.path, expected=trainer_scores(workshop.model, role, IDS))


def wait_for(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_the_server_gets_no_keys_and_listens_on_loopback_only(workshop: Workshop, tmp_path: Path):
    server = ModelServer(workshop.folder, slots=SLOTS, log_file=tmp_path / "log")
    given = server.environment({"PATH": "p", "OPENAI_API_KEY": "k", "AWS_SECRET_ACCESS_KEY": "k", "CUDA_VISIBLE_DEVICES": "0"})
    assert "k" not in given.values()
    assert given["CUDA_VISIBLE_DEVICES"] == "0"
    assert given["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    words = server.arguments(8001)
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert words[words.index("--logprobs-mode") + 1] == "processed_logprobs"
    assert words[words.index("--max-cpu-loras") + 1] == "5"


def test_without_vllm_it_is_said_how_to_get_it(tmp_path: Path):
    assert vllm_command({PYTHON_ENV: sys.executable})[0] == sys.executable
    with pytest.raises(ConfigError, match="no program"):
        vllm_command({PYTHON_ENV: str(tmp_path / "python")})
    with pytest.raises(ConfigError, match="port"):
        ServerConfig(port=70_000)


def test_asking_before_the_start_is_an_error(server: ModelServer):
    with pytest.raises(ServeError, match="start"):
        server.names()


@pytest.mark.server
def test_publishes_under_load_fail_no_request(server: ModelServer, workshop: Workshop, tmp_path: Path, counts):
    server.start()
    publisher = publisher_of(server, workshop, tmp_path / "store")
    sampler = VllmSampler(server.client, workshop.chat, publisher)
    for role in ("sales", "dev"):
        publish(publisher, workshop, role, 1)
    over, failures, answered = threading.Event(), [], []

    def rollouts(role: str) -> None:
        while not over.is_set():
            try:
                with publisher.lease(role) as adapter:
                    sampler.generate([IDS], adapter=adapter.name, sampling=Sampling(max_new_tokens=4), seeds=[0])
                    answered.append(adapter.name)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=rollouts, args=(role,)) for role in ("sales", "dev")]
    for thread in threads:
        thread.start()
    for version in range(2, counts(10, 100) + 2):
        for role in ("sales", "dev"):
            publish(publisher, workshop, role, version)
    over.set()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert {name.partition("@")[0] for name in answered} == {"sales", "dev"}
    assert len(server.names()) == 2


@pytest.mark.server
def test_a_killed_server_is_started_again_and_nothing_of_it_is_left(server: ModelServer, workshop: Workshop, tmp_path: Path):
    server.start()
    publisher = publisher_of(server, workshop, tmp_path / "store")
    publish(publisher, workshop, "sales", 1)
    sampler = VllmSampler(server.client, workshop.chat, publisher, recover=server.recover)
    members = server.child.members()
    api = next(pid for pid in members if pid != server.child.pid)
    os.kill(api, signal.SIGKILL)
    replies = sampler.generate([IDS] * 2, adapter="sales@0001", sampling=Sampling(max_new_tokens=3), seeds=[0, 1])
    assert len(replies) == 2
    assert server.names() == ("sales@0001",)
    assert len(server.restarts) == 1
    assert not [pid for pid in members if (about := stat_of(pid)) is not None and about[0] != "Z"]
    left = server.child.members()
    server.stop()
    assert not [pid for pid in left if (about := stat_of(pid)) is not None and about[0] != "Z"]


@pytest.mark.server
def test_without_runtime_loading_every_adapter_is_a_restart(server: OurServer, workshop: Workshop, tmp_path: Path):
    server.forbid = True
    server.start()
    assert not server.can_load
    publisher = publisher_of(server, workshop, tmp_path / "store")
    publish(publisher, workshop, "sales", 1)
    publish(publisher, workshop, "dev", 1)
    publish(publisher, workshop, "sales", 2)
    assert publisher.live["sales"].name == "sales@0002"
    assert {"sales@0002", "dev@0001"} <= set(server.names())
    assert len(server.restarts) == 3
    assert all(restart.seconds > 0 and restart.between.system > 0 for restart in server.restarts)


def vllm_or_skip() -> None:
    try:
        vllm_command()
    except ConfigError as error:
        pytest.skip(f"no vLLM: {error}")


@pytest.mark.server
@pytest.mark.timeout(1800)
def test_real_vllm_serves_what_was_trained(smollm2_path: Path, tmp_path: Path, counts):
    """SmolLM2 on vLLM's CPU build: probe equality, publishing under load, a kill that is survived, nothing left."""
    vllm_or_skip()
    from onthejob.learn import lora
    from onthejob.models.base import load_base
    from onthejob.serve.intake import BaseShape

    base = load_base(smollm2_path)
    roles = ["ceo", "dev", "marketing", "sales", "content", "hr"]
    model = lora.attach(base.model, roles, lora.LoraSpec(rank=8, alpha=16), seed=0)
    shop = Workshop(
        folder=smollm2_path,
        model=model,
        chat=ChatEncoder(base.tokenizer),
        base=BaseShape.of_folder(smollm2_path, digest=base.digest),
        out=tmp_path / "adapters",
    )
    ids = tuple(base.tokenizer.encode("The sales agent calls Acme and offers a demo of the new release on Monday."))
    server = ModelServer(
        smollm2_path,
        slots=Slots.for_roles(6, rank=8),
        config=ServerConfig(max_model_len=1024),
        log_file=tmp_path / "vllm.log",
    )
    try:
        print(f"start: {server.start():.1f} s")
        assert server.can_load
        publisher = Publisher(server, Intake(tmp_path / "store", shop.base), probe=Probe(ids=ids))
        sampler = VllmSampler(server.client, shop.chat, publisher, recover=server.recover)
        firsts, differences = [], []
        over, failures = threading.Event(), []

        def rollouts() -> None:
            while not over.is_set():
                try:
                    with publisher.lease("sales") as adapter:
                        sampler.generate([ids] * 8, adapter=adapter.name, sampling=Sampling(max_new_tokens=16), seeds=[0] * 8)
                except Exception as error:
                    failures.append(error)

        threads: list[threading.Thread] = []
        for version in range(1, counts(20, 200) + 1):
            for role in roles:
                adapter = shop.write(role, version, scale=0.02)
                done = publisher.publish(adapter.path, expected=trainer_scores(model, role, ids))
                firsts.append(done.first_served_s)
                differences.append(done.probe_mean)
            if not threads:
                threads = [threading.Thread(target=rollouts) for _ in range(2)]
                for thread in threads:
                    thread.start()
        over.set()
        for thread in threads:
            thread.join(120)
        print(f"publish: median {statistics.median(firsts):.2f} s, probe at most {max(differences):.4f} nats")
        assert not failures
        members = server.child.members()
        os.kill(next(pid for pid in members if pid != server.child.pid), signal.SIGKILL)
        replies = sampler.generate(
            [ids] * 4, adapter=publisher.live["sales"].name, sampling=Sampling(max_new_tokens=8), seeds=[0] * 4
        )
        assert len(replies) == 4
    finally:
        members = server.child.members() if server.child else []
        server.stop()
    wait_for(lambda: not [pid for pid in members if (about := stat_of(pid)) is not None and about[0] != "Z"])
