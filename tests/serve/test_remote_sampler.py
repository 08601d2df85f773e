"""Sampling through the training worker: the replies are the adapter's, and a worker may be replaced between two of them."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
import uvicorn

from checks.servers.model_server import ModelState, make_handler
from onthejob.commands.servers import PROBE_TEXT, BesideTrainer
from onthejob.errors import ConfigError, ContractError, ServeError
from onthejob.learn import lora
from onthejob.serve.intake import Intake
from onthejob.serve.publish import Probe, Publisher
from onthejob.serve.remote_sampler import RemoteSampler
from onthejob.serve.supervisor import free_port
from onthejob.serve.trainer import TrainingService
from onthejob.serve.trainer_http import make_app
from onthejob.serve.vllm import VllmClient
from onthejob.testing.tiny import tiny_model
from onthejob.types import Sampling

from .conftest import Workshop

TOKEN = "0123456789abcdef0123456789abcdef"
IDS = tuple(range(5, 21))
REPLIES = Sampling(max_new_tokens=6)
SPEC = lora.LoraSpec(rank=4, alpha=8)


@contextmanager
def worker(
    workshop: Workshop, folder: Path, *, port: int, serving: bool = True, spec: lora.LoraSpec = SPEC
) -> Iterator[TrainingService]:
    """A worker of its own with a model server of its own, on the same base."""
    with ExitStack() as after:
        beside = None
        if serving:
            state = ModelState(workshop.folder, [])
            server = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(state, can_load=True))
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
            after.callback(server.server_close)
            after.callback(server.shutdown)
            client = VllmClient(f"http://127.0.0.1:{server.server_address[1]}")
            after.callback(client.close)
            ids = tuple(workshop.chat.tokenizer.encode(PROBE_TEXT, add_special_tokens=False))
            probe = Probe(ids=ids, mean_tolerance=1e-3, max_tolerance=1e-2)
            beside = BesideTrainer(client, Publisher(client, Intake(folder / "store", workshop.base), probe=probe), workshop.chat)
        model = lora.attach(tiny_model().model, ["sales", "dev"], spec, seed=9)
        service = TrainingService(model, folder=folder, base_digest=workshop.base.digest, serving=beside)
        app = uvicorn.Server(uvicorn.Config(make_app(service, token=TOKEN), host="127.0.0.1", port=port, log_level="error"))
        thread = threading.Thread(target=app.run, daemon=True)
        thread.start()
        while not app.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield service
        finally:
            app.should_exit = True
            thread.join(20)


@contextmanager
def sampling_from(workshop: Workshop, port: int, **options) -> Iterator[RemoteSampler]:
    settings = {"base_digest": workshop.base.digest, "token": TOKEN, "wait_s": 0.05, **options}
    sampler = RemoteSampler(f"http://127.0.0.1:{port}", workshop.chat, **settings)
    try:
        yield sampler
    finally:
        sampler.close()


def check_replies(sampler: RemoteSampler, workshop: Workshop, name: str | None) -> None:
    """Every reply's log-probabilities are those that this process computes for the adapter."""
    replies = sampler.generate([IDS] * 3 + [IDS[:4]], adapter=name, sampling=REPLIES, seeds=[0] * 4)
    local = workshop.sampler()
    if name is not None:
        local.publish(next(adapter for adapter in sampler._live.values() if adapter.name == name))
    for prompt, reply in zip([IDS] * 3 + [IDS[:4]], replies, strict=True):
        scores = local.score(prompt + reply.token_ids, adapter=name)[len(prompt) - 1 :]
        assert list(reply.logprobs) == pytest.approx(scores, abs=1e-4)
        assert reply.text == workshop.chat.decode(reply.token_ids)
    assert len({reply.token_ids for reply in replies[:3]}) > 1


def test_replies_are_the_published_adapters(workshop: Workshop, tmp_path: Path):
    port = free_port()
    with worker(workshop, tmp_path / "worker", port=port), sampling_from(workshop, port) as sampler:
        check_replies(sampler, workshop, None)
        for version in (1, 2):
            sampler.publish(workshop.write("sales", version))
            check_replies(sampler, workshop, f"sales@{version:04d}")
        sampler.publish(workshop.write("dev", 1))
        assert set(sampler.published) == {"sales@0002", "dev@0001"}
        check_replies(sampler, workshop, "dev@0001")
        with pytest.raises(ConfigError, match="sales@0001 is not live"):
            sampler.generate([IDS], adapter="sales@0001", sampling=REPLIES, seeds=[0])
        assert sampler.generate([], adapter=None, sampling=REPLIES, seeds=[]) == []
        with pytest.raises(ContractError, match="non-empty"):
            sampler.generate([()], adapter=None, sampling=REPLIES, seeds=[0])


def test_an_adapter_s_logit_scale_goes_to_the_worker_with_it(workshop: Workshop, tmp_path: Path):
    spec, port = dataclasses.replace(SPEC, logit_scale=True), free_port()
    surer = dataclasses.replace(workshop, model=lora.attach(tiny_model().model, ["sales", "dev"], spec, seed=0))
    with torch.no_grad():
        lora.parameters(surer.model, "sales")["log_logit_scale"].fill_(0.7)
    with worker(surer, tmp_path / "worker", port=port, spec=spec), sampling_from(surer, port) as sampler:
        sampler.publish(surer.write("sales", 1))
        replies = sampler.generate([IDS] * 3, adapter="sales@0001", sampling=REPLIES, seeds=[0] * 3)
    for reply in replies:
        ids = torch.tensor([IDS + reply.token_ids])
        with torch.no_grad():
            logits = surer.model(input_ids=ids).logits[0, len(IDS) - 1 : -1]
        scores = (logits * math.exp(0.7)).log_softmax(-1).gather(1, ids[0, len(IDS) :, None])[:, 0]
        assert list(reply.logprobs) == pytest.approx(scores.tolist(), abs=1e-4)


def test_a_new_worker_is_given_what_the_old_one_served(workshop: Workshop, tmp_path: Path):
    port = free_port()
    with sampling_from(workshop, port) as sampler:
        with worker(workshop, tmp_path / "old", port=port):
            sampler.publish(workshop.write("sales", 3))
            check_replies(sampler, workshop, "sales@0003")
        with worker(workshop, tmp_path / "new", port=port):
            check_replies(sampler, workshop, "sales@0003")


def test_a_worker_that_comes_late_is_waited_for_and_one_that_is_gone_is_named(workshop: Workshop, tmp_path: Path):
    port, over = free_port(), threading.Event()

    def late() -> None:
        time.sleep(0.3)
        with worker(workshop, tmp_path / "late", port=port):
            over.wait(60)

    thread = threading.Thread(target=late)
    with sampling_from(workshop, port, gone_s=0) as sampler, pytest.raises(ServeError, match="ConnectError"):
        sampler.generate([IDS], adapter=None, sampling=REPLIES, seeds=[0])
    thread.start()
    try:
        with sampling_from(workshop, port, gone_s=60) as sampler:
            assert len(sampler.generate([IDS], adapter=None, sampling=REPLIES, seeds=[0])) == 1
    finally:
        over.set()
        thread.join(60)


def test_what_the_worker_cannot_serve_is_said(workshop: Workshop, tmp_path: Path):
    port = free_port()
    with worker(workshop, tmp_path / "worker", port=port, serving=False), sampling_from(workshop, port) as sampler:
        adapter = workshop.write("sales", 1)
        with pytest.raises(ConfigError, match="--serve-model"):
            sampler.publish(adapter)
    with worker(workshop, tmp_path / "second", port=port), sampling_from(workshop, port, base_digest="c" * 64) as sampler:
        prompts, seeds = [IDS], [0]
        with pytest.raises(ConfigError, match="base"):
            sampler.generate(prompts, adapter=None, sampling=REPLIES, seeds=seeds)
    with pytest.raises(ConfigError, match="https"):
        RemoteSampler("http://gpu.example:8100", workshop.chat, base_digest="c" * 64, token=TOKEN)
