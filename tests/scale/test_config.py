"""Options of the runtime: what cannot work is refused with a remedy, before anything is loaded."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import pytest

from onthejob.commands.env_options import starting
from onthejob.commands.train import Train
from onthejob.commands.train_checks import check_options
from onthejob.errors import ConfigError, MissingDependency
from onthejob.scale import ScaleConfig, open_runtime
from onthejob.scale.local import LocalRuntime
from onthejob.scale.surroundings import carried, confine, passed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "dask"}, r"backend must be one of local, ray, got 'dask'"),
        ({"backend": "ray", "workers": -1}, r"workers must be >= 0, got -1"),
        ({"workers": 2}, r"--scale.workers has no effect without --scale.backend ray.*--workers"),
        ({"address": "auto"}, r"--scale.address has no effect"),
        ({"backend": "ray", "address": "head"}, r"address must be auto or HOST:PORT, got 'head'"),
        ({"backend": "ray", "address": ":6379"}, r"address must be auto or HOST:PORT"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        ScaleConfig(**options)


def test_local_is_the_default_and_starts_nothing():
    with open_runtime(ScaleConfig(), workers=0) as runtime:
        assert isinstance(runtime, LocalRuntime)
        assert (runtime.workers, runtime.threads) == (0, 0)


MISSING = pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")


@MISSING
def test_a_missing_ray_is_named_with_its_extra():
    with pytest.raises(MissingDependency, match=r"ray.*not installed.*onthejob\[ray\]"):
        open_runtime(ScaleConfig(backend="ray"), workers=0)


def refusal(**options: Any) -> str:
    env = options.get("env", "office")
    command = Train.starting(env)
    train = options.pop("train", {})
    made = replace(command, own=starting(env, "Train"), train=replace(command.train, **train), **options)
    with pytest.raises((ConfigError, MissingDependency)) as refused:
        check_options(made.fitted())
    return str(refused.value)


@MISSING
def test_train_refuses_a_runtime_that_is_missing():
    assert "pip install 'onthejob[ray]'" in refusal(scale=ScaleConfig(backend="ray"))


def test_train_refuses_a_runtime_that_has_no_effect():
    on_ray = ScaleConfig(backend="ray")
    assert "--workers 3 counts processes of --scale.backend local" in refusal(scale=on_ray, train={"workers": 3})
    assert "nothing is played" in refusal(scale=on_ray, from_groups="runs/mine:3")


def test_train_refuses_learners_that_would_wait():
    learners = ScaleConfig(learners=3)
    assert "--scale.learners 3 is more than there are adapters to train: 2" in refusal(scale=learners, roles=("sales", "hr"))
    one_for_all = refusal(scale=learners, train={"adapters": "shared"})
    assert "--scale.learners 3 is more than there are adapters to train: 1" in one_for_all
    assert "--scale.learners has no effect with --smoke" in refusal(scale=learners, smoke=True)
    assert "--scale.learners has no effect" in refusal(scale=learners, from_groups="runs/mine:3")
    on_gpu = replace(Train().model, device="cuda")
    assert "--model.device is cuda" in refusal(scale=learners, model=on_gpu)


def test_train_refuses_samplers_that_could_not_be_exact():
    two = ScaleConfig(samplers=2)
    assert "cannot sample claw as one process does" in refusal(env="claw", scale=two)
    assert "--scale.samplers has no effect with --sampler vllm" in refusal(scale=two, sampler="vllm")
    assert "--scale.samplers has no effect where nothing is played" in refusal(scale=two, from_groups="runs/mine:3")


def test_scale_is_no_part_of_a_runs_configuration_but_of_a_file():
    command = replace(Train.starting("office"), scale=ScaleConfig(backend="ray", workers=3)).fitted()
    assert "scale" not in command._settings()
    assert '[scale]\nbackend = "ray"' in command._toml()


def test_workers_get_no_key():
    environ = {
        "PATH": "/bin",
        "OPENAI_API_KEY": "k",
        "RAY_AUTH_TOKEN": "t",
        "LC_ALL": "C",
        "ONTHEJOB_NATIVE": "off",
        "HF_TOKEN": "h",
    }
    assert passed(environ).keys() == {"PATH", "LC_ALL", "ONTHEJOB_NATIVE", "PYTHONPATH"}
    assert carried(environ) == {"ONTHEJOB_NATIVE": "off"}
    of_node = {**environ, "RAY_JOB_ID": "1", "ONTHEJOB_NATIVE": "avx2"}
    confine(of_node, carried(environ))
    assert of_node == {"PATH": "/bin", "RAY_AUTH_TOKEN": "t", "LC_ALL": "C", "ONTHEJOB_NATIVE": "off", "RAY_JOB_ID": "1"}
