"""Jobs that would never end, exhaust the worker or poison its adapter are refused before they are claimed, and by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save

from onthejob.errors import ConfigError
from onthejob.serve.bounds import check_advantages, check_state
from onthejob.serve.messages import GROUPS, TrainRequest
from onthejob.serve.trainer import TrainingService

from ..learn.conftest import update
from .test_trainer import BASE, TOKEN, group, request_for, serving, tiny_learner


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TrainingService, httpx.Client, dict[str, Any]]]:
    """A worker, a client of it, and a request that it could do."""
    service = TrainingService(tiny_learner().model, folder=tmp_path_factory.mktemp("worker"), base_digest=BASE)
    request = request_for(tiny_learner(), service).model_dump(mode="json")
    with serving(service) as url, httpx.Client(base_url=url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=60) as http:
        yield service, http, request


def groups_with(**fields: Any) -> list[dict[str, Any]]:
    """One group; `prompt_ids`, `token_ids` or `rewards` of its first trajectory are others."""
    (one,) = GROUPS.dump_python([group()], mode="json")
    row = one["trajectories"][0]
    for name, value in fields.items():
        holder = {"prompt_ids": row["turns"][0], "token_ids": row["turns"][0]["completion"]}.get(name, row)
        holder[name] = value
    return [one]


@pytest.mark.parametrize(
    "config",
    [{"epochs": 1e9}, {"epochs": 10**9}, {"epochs": 1001}, {"max_tokens": 10**9}],
    ids=str,
)
def test_a_job_has_a_bounded_number_of_passes(asked: Any, config: dict[str, Any]):
    service, http, request = asked
    answer = http.post("/train", json=request | {"config": config})
    assert answer.status_code == 400, answer.text
    assert "at most" in answer.json()["error"]
    assert service.updates == 0


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"learning_rate": 1.0}, "learning_rate"),
        ({"lr": 1e-3, "epoch": 2}, "epoch"),
        ({"loss": {"betta": 0.1}}, "loss.betta"),
        ({"advantage": {"scale": "std"}}, "advantage"),
        ({"": 1}, ""),
    ],
)
def test_an_unknown_option_is_named(asked: Any, config: dict[str, Any], name: str):
    _, http, request = asked
    answer = http.post("/train", json=request | {"config": config})
    assert answer.status_code == 400, answer.text
    assert f"unknown option {name!r}" in answer.json()["error"]


@pytest.mark.parametrize("token", [10**6, 2**31, 2**62, -1, -(10**6)])
@pytest.mark.parametrize("field", ["prompt_ids", "token_ids"])
def test_a_token_beyond_the_vocabulary_is_named(asked: Any, field: str, token: int):
    _, http, request = asked
    ids = [5, token] if field == "prompt_ids" else [9, 10, token]
    answer = http.post("/train", json=request | {"groups": groups_with(**{field: ids})})
    assert answer.status_code == 400, answer.text
    assert f"got {token}" in answer.json()["error"]


@pytest.mark.parametrize("length", [70_000, 100_000, 1_000_000])
def test_a_text_longer_than_a_worker_can_hold_is_refused(asked: Any, length: int):
    _, http, request = asked
    answer = http.post("/train", json=request | {"groups": groups_with(prompt_ids=[5] * length)})
    assert answer.status_code == 400, answer.text
    assert str(length)[:2] in answer.json()["error"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e999"])
@pytest.mark.parametrize("place", ["rewards", "logprobs", "facts", "config"])
def test_numbers_that_are_not_finite_are_refused(asked: Any, place: str, number: str):
    _, http, request = asked
    text = json.dumps(request | {"groups": groups_with(), "config": {"lr": 0.25}})
    old = {"rewards": '"rewards": [1.0', "logprobs": "[-1.25", "facts": '"facts": {"worlds": [1', "config": '"lr": 0.25'}[place]
    assert old in text
    answer = http.post("/train", content=text.replace(old, old.rstrip("0123456789.-") + number, 1))
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()


def states() -> dict[str, tuple[dict[str, torch.Tensor], str]]:
    good = {"lora/a": torch.zeros(2), "updates": torch.tensor(1), "kls": torch.zeros(3, dtype=torch.float64)}
    return {
        "NaN weight": (good | {"lora/a": torch.tensor([0.0, torch.nan])}, "not finite"),
        "infinite moment": (good | {"adam/exp_avg/a": torch.tensor([torch.inf])}, "not finite"),
        "NaN KL": (good | {"kls": torch.tensor([0.1, torch.nan], dtype=torch.float64)}, "not finite"),
        "infinite KL": (good | {"kls": torch.tensor([-torch.inf])}, "not finite"),
        "NaN in half precision": (good | {"lora/a": torch.tensor([torch.nan], dtype=torch.bfloat16)}, "not finite"),
        "negative count": (good | {"updates": torch.tensor(-1)}, "updates"),
        "many counts": (good | {"updates": torch.tensor([1, 2])}, "updates"),
        "KL table": (good | {"kls": torch.zeros(2, 2)}, "KL history"),
        "float8 weights": (good | {"lora/a": torch.zeros(2).to(torch.float8_e4m3fn)}, "float8"),
        "float8 weights of the other kind": (good | {"lora/a": torch.zeros(2).to(torch.float8_e5m2)}, "float8"),
        "float8 moments": (good | {"adam/exp_avg/a": torch.zeros(2).to(torch.float8_e4m3fn)}, "float8"),
        "float8 KL history": (good | {"kls": torch.zeros(2).to(torch.float8_e4m3fn)}, "float8"),
        "float64 weights": (good | {"lora/a": torch.zeros(2, dtype=torch.float64)}, "float64"),
        "complex weights": (good | {"lora/a": torch.zeros(2, dtype=torch.complex64)}, "complex64"),
        "complex moments": (good | {"adam/exp_avg/a": torch.zeros(2, dtype=torch.complex64)}, "complex64"),
        "whole weights": (good | {"lora/a": torch.zeros(2, dtype=torch.int8)}, "int8"),
        "true weights": (good | {"lora/a": torch.zeros(2, dtype=torch.bool)}, "bool"),
        "weights beyond float16": (good | {"lora/a": torch.full((2,), 65_536.0)}, "overflows in float16"),
        "NaN logit scale": (good | {"lora/log_logit_scale": torch.tensor(torch.nan)}, "not finite"),
        "overflowing logit scale": (good | {"lora/log_logit_scale": torch.tensor(1e38)}, "beyond 10"),
        "underflowing logit scale": (good | {"lora/log_logit_scale": torch.tensor(-11.0)}, "beyond 10"),
        "foreign part": (good | {"other": torch.zeros(1)}, "no part"),
        "short moment": (good | {"adam/exp_avg": torch.zeros(1)}, "no part"),
    }


@pytest.mark.parametrize("kind", states())
def test_a_state_that_would_poison_a_role_is_not_taken(asked: Any, kind: str):
    _, http, _ = asked
    tensors, said = states()[kind]
    content = save(tensors)
    answer = http.put(f"/states/{hashlib.sha256(content).hexdigest()}", content=content)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["error"]


def test_advantages_are_one_per_trajectory():
    groups = [group(), group()]
    sent = [[0.5] * len(one) for one in groups]
    check_advantages(sent, groups)
    with pytest.raises(ConfigError, match="a list of advantages per group, got 1 for 2"):
        check_advantages(sent[:1], groups)
    values = sent[0]
    with pytest.raises(ConfigError, match=f"has {len(values)} trajectories and {len(values) + 1} advantages"):
        check_advantages([[*values, 0.0], sent[1]], groups)
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValidationError, match="finite"):
            TrainRequest(role="sales", base="0" * 64, state="0" * 64, config={}, groups=[], advantages=[[bad]])


def test_a_learners_own_state_is_taken(tmp_path: Path):
    learner = tiny_learner()
    update(learner, "sales", [group()])
    check_state(save({name: tensor.contiguous() for name, tensor in learner.export_state("sales").items()}), "own")
    with pytest.raises(Exception, match="safetensors"):
        check_state(b"not one", "other")
