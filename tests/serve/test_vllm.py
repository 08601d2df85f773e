"""Sampling through vLLM's protocol: against a server that speaks it with a real tiny model, and against one that lies."""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.servers.model_server import ModelState, make_handler
from onthejob.errors import ConfigError, ContractError, ModelError, ServeError
from onthejob.learn import lora
from onthejob.models.adapter_policy import AdapterPolicy
from onthejob.serve.intake import Intake
from onthejob.serve.publish import Probe, Publisher, trainer_scores
from onthejob.serve.vllm import VllmClient, VllmOptions, VllmSampler
from onthejob.testing.tiny import tiny_model
from onthejob.types import Context, Sampling, TextObservation

from .conftest import Workshop

IDS = tuple(range(5, 21))


class Served:
    """A model server in a thread, with a client, a publisher and a sampler of it."""

    def __init__(self, workshop: Workshop, store: Path, *, can_load: bool = True) -> None:
        self.workshop = workshop
        self.state = ModelState(workshop.folder, [])
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(self.state, can_load=can_load))
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.client = VllmClient(f"http://127.0.0.1:{self.server.server_address[1]}")
        probe = Probe(ids=IDS, mean_tolerance=1e-3, max_tolerance=1e-2)
        self.publisher = Publisher(self.client, Intake(store, workshop.base), probe=probe)
        self.sampler = VllmSampler(
            self.client, workshop.chat, self.publisher, expected=lambda a: trainer_scores(workshop.model, a.role, IDS)
        )

    def close(self) -> None:
        self.client.close()
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def serving(workshop: Workshop, store: Path, **options: Any) -> Iterator[Served]:
    served = Served(workshop, store, **options)
    try:
        yield served
    finally:
        served.close()


@pytest.fixture
def served(workshop: Workshop, tmp_path: Path) -> Iterator[Served]:
    with serving(workshop, tmp_path / "store") as made:
        yield made


def test_the_server_scores_as_the_trainer(served: Served):
    served.workshop.write("sales", 1)
    assert served.client.score(IDS, None) == pytest.approx(served.workshop.sampler().score(IDS, adapter=None), abs=1e-5)


def test_published_adapters_are_sampled_with_what_the_trainer_computes(served: Served):
    adapter = served.workshop.write("sales", 1)
    served.sampler.publish(adapter)
    assert served.sampler.published == ("sales@0001",)
    replies = served.sampler.generate(
        [IDS] * 3 + [IDS[:4]], adapter="sales@0001", sampling=Sampling(max_new_tokens=6), seeds=[0] * 4
    )
    local = served.workshop.sampler()
    local.publish(adapter)
    for prompt, reply in zip([IDS] * 3 + [IDS[:4]], replies, strict=True):
        assert len(reply.token_ids) == len(reply.logprobs)
        scores = local.score(prompt + reply.token_ids, adapter="sales@0001")[len(prompt) - 1 :]
        assert list(reply.logprobs) == pytest.approx(scores, abs=1e-4)
        assert reply.text == served.workshop.chat.decode(reply.token_ids)
    assert len({reply.token_ids for reply in replies[:3]}) > 1  # Replies to one prompt are draws of their own.


def test_an_adapter_s_logit_scale_is_sampled_though_the_server_knows_nothing_of_it(workshop: Workshop, tmp_path: Path):
    spec = lora.LoraSpec(rank=4, alpha=8, logit_scale=True)
    surer = dataclasses.replace(workshop, model=lora.attach(tiny_model().model, ["sales", "dev"], spec, seed=0))
    with torch.no_grad():
        lora.parameters(surer.model, "sales")["log_logit_scale"].fill_(0.7)
    sampling, prompts = Sampling(temperature=1.5, max_new_tokens=6), [IDS] * 4
    with serving(surer, tmp_path / "store") as served:
        served.sampler.publish(surer.write("sales", 1))
        replies = served.sampler.generate(prompts, adapter="sales@0001", sampling=sampling, seeds=[0] * 4)
    for reply in replies:
        ids = torch.tensor([IDS + reply.token_ids])
        lora.activate(surer.model, "sales")
        with torch.no_grad():
            logits = surer.model(input_ids=ids).logits[0, len(IDS) - 1 : -1]
        scores = (logits * math.exp(0.7) / 1.5).log_softmax(-1).gather(1, ids[0, len(IDS) :, None])[:, 0]
        assert list(reply.logprobs) == pytest.approx(scores.tolist(), abs=1e-4)


def test_it_takes_the_samplers_place_in_a_policy(served: Served):
    served.sampler.publish(served.workshop.write("dev", 3))
    policy = AdapterPolicy(served.sampler, served.workshop.chat, adapter="dev@0003")
    context = Context(observation=TextObservation(actor="dev", messages=()), prompt_ids=IDS)
    (completion,) = policy.act([context], Sampling(max_new_tokens=4))
    assert completion.token_ids
    assert policy.version == "dev@0003"


def test_a_new_version_replaces_the_old_one_on_the_server(served: Served):
    for version in (1, 2, 3):
        served.sampler.publish(served.workshop.write("sales", version))
    assert served.client.names() == ("sales@0003",)
    with pytest.raises(ServeError, match="does not exist"):
        served.sampler.generate([IDS], adapter="sales@0001", sampling=Sampling(), seeds=[0])


@pytest.mark.slow
def test_publishing_while_replies_are_sampled_fails_none(served: Served):
    """Every reply is of the version that was asked for, and none meets an unloaded one."""
    served.sampler.publish(served.workshop.write("sales", 1))
    over, failures, counts = threading.Event(), [], [0]

    def rollouts() -> None:
        while not over.is_set():
            try:
                with served.publisher.lease("sales") as adapter:
                    served.sampler.generate([IDS[:5]], adapter=adapter.name, sampling=Sampling(max_new_tokens=2), seeds=[0])
                counts[0] += 1
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=rollouts) for _ in range(3)]
    for thread in threads:
        thread.start()
    for version in range(2, 10):
        served.sampler.publish(served.workshop.write("sales", version))
    over.set()
    for thread in threads:
        thread.join(30)
    assert not failures
    assert counts[0] >= 3
    assert served.client.names() == ("sales@0009",)


def test_without_the_variable_the_route_is_missing_and_that_is_said(workshop: Workshop, tmp_path: Path):
    with serving(workshop, tmp_path / "store", can_load=False) as served:
        assert not served.client.can_load()
        with pytest.raises(ServeError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"):
            served.sampler.publish(workshop.write("sales", 1))


def test_loading_is_seen(served: Served):
    assert served.client.can_load()
    assert served.client.healthy()


def lie(change: Callable[[dict[str, Any]], None]) -> Callable[[tuple[int, Any]], tuple[int, Any]]:
    def changed(answer: tuple[int, Any]) -> tuple[int, Any]:
        copy = json.loads(json.dumps(answer[1]))
        change(copy)
        return answer[0], copy

    return changed


LIES: dict[str, tuple[Callable[[tuple[int, Any]], tuple[int, Any]], type[Exception], str]] = {
    "another model": (lie(lambda a: a.update(model="other")), ServeError, "'other' answered"),
    "too few replies": (lie(lambda a: a["choices"].pop()), ServeError, "came back"),
    "no ids": (lie(lambda a: a["choices"][0].pop("token_ids")), ServeError, "lacks its token ids"),
    "no logprobs": (lie(lambda a: a["choices"][0].update(logprobs=None)), ServeError, "lacks its token ids"),
    "fewer logprobs": (lie(lambda a: a["choices"][0]["logprobs"]["token_logprobs"].pop()), ServeError, "lacks its token ids"),
    "a NaN": (
        lie(lambda a: a["choices"][0]["logprobs"]["token_logprobs"].__setitem__(0, float("nan"))),
        ModelError,
        "poisoned",
    ),
    "another prompt": (lie(lambda a: a["choices"][0].update(prompt_token_ids=[1])), ServeError, "changed the prompt"),
    "a wrong end": (lie(lambda a: a["choices"][0].update(finish_reason="abort")), ServeError, "ended with 'abort'"),
    "vLLM's own word for NaN": (
        lambda _: (400, {"error": {"message": "Out of range float values are not JSON compliant: nan"}}),
        ModelError,
        "not JSON compliant",
    ),
}


@pytest.mark.parametrize("kind", LIES)
def test_a_reply_that_is_not_what_was_asked_for_is_no_data(kind: str, served: Served):
    change, error, said = LIES[kind]
    honest = served.state.complete
    served.state.complete = lambda body: change(honest(body))
    with pytest.raises(error, match=said):
        served.sampler.generate([IDS, IDS], adapter=None, sampling=Sampling(max_new_tokens=3), seeds=[0, 1])


def test_a_crash_loses_no_reply_and_samples_none_twice(served: Served, monkeypatch: pytest.MonkeyPatch):
    """Half of the prompts are answered when the server dies; after its recovery only the other half is asked for."""
    honest, asked = served.state.complete, []

    def dying(body: dict[str, Any]) -> tuple[int, Any]:
        asked.append(tuple(body["prompt"]))
        if body["prompt"][0] == 9 and not recovered:
            raise ConnectionAbortedError
        return honest(body)

    recovered: list[bool] = []
    served.state.complete = dying
    served.client.healthy = lambda: bool(recovered)
    monkeypatch.setattr(served.server, "handle_error", lambda *_: None)
    sampler = VllmSampler(served.client, served.workshop.chat, served.publisher, recover=lambda: recovered.append(True))
    prompts = [(7, 8), (9, 10), (7, 8), (11, 12)]
    replies = sampler.generate(prompts, adapter=None, sampling=Sampling(max_new_tokens=2), seeds=[0] * 4)
    assert len(replies) == 4
    assert recovered == [True]
    assert sorted(asked) == [(7, 8), (9, 10), (9, 10), (11, 12)]


def test_without_recovery_a_dead_server_is_named(workshop: Workshop, tmp_path: Path):
    with serving(workshop, tmp_path / "store") as served:
        served.server.shutdown()
        served.server.server_close()
        with pytest.raises(ServeError, match="connection"):
            served.sampler.generate([IDS], adapter=None, sampling=Sampling(), seeds=[0])


def test_arguments_that_cannot_work_are_refused(served: Served):
    with pytest.raises(ContractError, match="one seed"):
        served.sampler.generate([IDS], adapter=None, sampling=Sampling(), seeds=[])
    with pytest.raises(ConfigError, match="temperature"):
        served.sampler.generate([IDS], adapter=None, sampling=Sampling(temperature=-1.0), seeds=[0])
    with pytest.raises(ConfigError, match="schema"):
        VllmSampler(served.client, served.workshop.chat, served.publisher, options=VllmOptions(structured=True))


def test_structured_decoding_is_asked_for_only_when_switched_on(served: Served):
    seen: list[dict[str, Any]] = []
    honest = served.state.complete
    served.state.complete = lambda body: (seen.append(body), honest(body))[1]
    schema = {"type": "object"}
    held = VllmSampler(served.client, served.workshop.chat, served.publisher, options=VllmOptions(structured=True), schema=schema)
    for sampler in (served.sampler, held):
        sampler.generate([IDS], adapter=None, sampling=Sampling(max_new_tokens=1), seeds=[0])
    assert "response_format" not in seen[0]
    assert seen[1]["response_format"]["json_schema"]["schema"] == schema
    # Nothing may cut the distribution, and no seed may be sent (it ends vLLM's CPU engine).
    assert {name: seen[0][name] for name in ("top_p", "top_k", "min_p")} == {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
    assert "seed" not in seen[0]
