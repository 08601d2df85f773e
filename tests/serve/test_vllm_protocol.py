"""What we send and what our protocol server answers, checked by vLLM's own classes; skipped where vLLM cannot be imported."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from checks.servers.model_server import ModelState
from onthejob.models.chat import ChatEncoder
from onthejob.serve.publish import Slots
from onthejob.serve.server import ModelServer
from onthejob.serve.vllm import VllmOptions, VllmSampler
from onthejob.testing.tiny import tiny_tokenizer
from onthejob.types import Adapter, Sampling

from .conftest import Workshop

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore")]  # What vLLM warns about at import is not ours.

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
IDS = (5, 6, 7, 8)


@pytest.fixture(scope="module")
def protocol() -> Any:
    """vLLM's request and response classes."""
    pytest.importorskip("vllm", reason="vLLM is not installed in this environment")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("vllm.entrypoints.openai.completion.protocol")


def body(sampling: Sampling, *, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    options = VllmOptions(structured=schema is not None)
    sampler = VllmSampler(None, ChatEncoder(tiny_tokenizer()), None, options=options, schema=schema)
    return {"model": "base", "prompt": list(IDS), "n": 3, **sampler._fields(sampling)}


def test_vllm_knows_every_field_that_we_send(protocol: Any):
    for schema in (None, SCHEMA):
        sent = body(Sampling(temperature=0.7, max_new_tokens=9), schema=schema)
        assert not set(sent) - set(protocol.CompletionRequest.model_fields)
        parameters = protocol.CompletionRequest.model_validate(sent).to_sampling_params(9, {})
        assert (parameters.n, parameters.temperature, parameters.max_tokens, parameters.logprobs) == (3, 0.7, 9, 0)
        assert (parameters.top_p, parameters.top_k, parameters.min_p, parameters.seed) == (1.0, 0, 0.0, None)
        assert (parameters.repetition_penalty, parameters.skip_special_tokens) == (1.0, False)
        assert set(parameters.stop_token_ids) == set(ChatEncoder(tiny_tokenizer()).end_ids)
        held = parameters.structured_outputs
        assert (held is None) if schema is None else (held.json == SCHEMA)


def test_vllm_knows_every_argument_that_we_start_it_with(protocol: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")
    launch = pytest.importorskip("vllm.entrypoints.launchers.cli_args")
    utilities = pytest.importorskip("vllm.utils.argparse_utils")
    server = ModelServer(tmp_path / "m", slots=Slots.for_roles(6, rank=12), log_file=tmp_path / "log")
    server._modules["sales@0001"] = Adapter(role="sales", version=1, path=tmp_path / "a")
    words = server.arguments(8001)
    got = launch.make_arg_parser(utilities.FlexibleArgumentParser()).parse_args(words)
    assert (got.host, got.port, got.max_loras, got.max_cpu_loras, got.max_lora_rank) == ("127.0.0.1", 8001, 7, 7, 16)
    assert (got.logprobs_mode, got.generation_config, got.enable_lora) == ("processed_logprobs", "vllm", True)
    assert [(module.name, module.path) for module in got.lora_modules] == [("sales@0001", str(tmp_path / "a"))]


def test_the_protocol_server_of_the_tests_answers_as_vllm_does(protocol: Any, workshop: Workshop):
    """Otherwise the tests against it would show nothing."""
    state = ModelState(workshop.folder, [])
    status, answer = state.complete(body(Sampling(max_new_tokens=4)))
    assert status == 200
    known = protocol.CompletionResponse.model_validate(answer)
    assert not set(answer) - set(protocol.CompletionResponse.model_fields)
    assert not set(answer["choices"][0]) - set(protocol.CompletionResponseChoice.model_fields)
    assert [len(choice.token_ids) for choice in known.choices] == [len(c.logprobs.token_logprobs) for c in known.choices]
    lora = pytest.importorskip("vllm.entrypoints.serve.lora.protocol")
    lora.LoadLoRAAdapterRequest.model_validate({"lora_name": "sales@0001", "lora_path": "x"})
