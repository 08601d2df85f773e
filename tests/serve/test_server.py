"""A supervised model server: started, published to under load, killed, restarted. `test_real_vllm.py` does the same with vLLM."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onthejob.errors import ConfigError, ServeError
from onthejob.serve.guard import stat_of
from onthejob.serve.intake import Intake
from onthejob.serve.publish import Probe, Publisher, Slots, trainer_scores
from onthejob.serve.server import PYTHON_ENV, ModelServer, ServerConfig, vllm_command
from onthejob.serve.vllm import VllmSampler
from onthejob.types import Sampling

from .conftest import Workshop

IDS = tuple(range(5, 21))
PROGRAM = "from onthejob.checkout import from_checks; from_checks('servers.model_server', what='the server').main()"
PROTOCOL = (sys.executable, "-c", PROGRAM)
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
    targets = words[words.index("--lora-target-modules") + 1 :][:7]
    assert sorted(targets) == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert "--enforce-eager" not in words
    eager = ModelServer(workshop.folder, slots=SLOTS, log_file=tmp_path / "log", config=ServerConfig(eager=True))
    assert "--enforce-eager" in eager.arguments(8001)
    assert eager.environment({})["TORCHDYNAMO_DISABLE"] == "1"


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
    assert all(restart.seconds > 0 for restart in server.restarts)
    assert [restart.freed.why for restart in server.restarts] == ["restart"] * 3
    assert all(restart.freed.held.system > 64 << 20 for restart in server.restarts), "a Python process with a model"
