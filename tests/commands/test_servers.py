"""`serve model`, `serve trainer`, and runs that use them, as processes. In vLLM's place is the tests' server."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from onthejob.cli import main
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.tasks import office_tasks
from onthejob.learn import adapter_files, lora
from onthejob.learn.adapter_files import read_adapter
from onthejob.learn.advantage import AdvantageConfig, advantages
from onthejob.models.base_model import weights_digest
from onthejob.serve.messages import GROUPS
from onthejob.serve.server import PYTHON_ENV
from onthejob.serve.supervisor import free_port
from onthejob.testing import tiny_model
from onthejob.types import Split

from ..serve.test_trainer import group

pytestmark = pytest.mark.server

TOKEN = "0123456789abcdef0123456789abcdef"
SMALL = (
    "--library-tasks", "5", "--scale-states", "4", "--env.scenarios", "baseline", "--env.days", "2",
    "--env.seeds", "2", "--collect.episodes", "1", "--collect.segment-turns", "3", "--collect.partner-share", "0",
    "--lora.rank", "2", "--branch.group-size", "4", "--branch.turns", "6", "--branch.worlds", "1", "--iterations", "1",
    "--sampling.max-new-tokens", "4", "--roles", "ceo", "dev", "--model.dtype", "float32",
)  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model whose tokenizer knows the words of the prompts; its replies are unusable, which is enough here."""
    env, texts = OfficeEnvironment(), []
    for task in office_tasks(Split.TRAIN, seeds=1, scenarios=["baseline"], days=2):
        observation = env.reset(task)
        while observation is not None:
            texts += [message.content for message in observation.messages]
            observation = env.step(observation.view["legal"][0]).observation
    words = {word for word in re.findall(r"[A-Za-z_]+", " ".join(texts)) if len(word) > 2}
    tiny = tiny_model(words=sorted(words))
    folder = tmp_path_factory.mktemp("base")
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Of this process and its children: an empty folder, a token, and an interpreter that 'has vLLM'."""
    python = tmp_path / "python"
    path = os.pathsep.join(sys.path)
    python.write_text(
        f'#!/bin/sh\nshift 2\nexport PYTHONPATH="{path}"\nexec "{sys.executable}" -m checks.servers.model_server "$@"\n'
    )
    python.chmod(0o755)
    values = {
        "ONTHEJOB_CACHE": str(tmp_path / "cache"),
        "ONTHEJOB_TRAINER_TOKEN": TOKEN,
        PYTHON_ENV: str(python),
        "PYTHONPATH": path,
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return {**os.environ, **values}


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], environ: dict[str, str]) -> Callable[..., Any]:
    def run(*words: str | Path) -> Any:
        capsys.readouterr()
        got = main([*(str(word) for word in words), "--json", "--quiet"])
        captured = capsys.readouterr()
        assert got == 0, captured
        return json.loads(captured.out)

    return run


def start(environ: dict[str, str], folder: Path, *words: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "onthejob.cli", *(str(word) for word in words)]
    with (folder / "stderr").open("w") as log:
        return subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=log, text=True)


def answers(url: str, process: subprocess.Popen[str], folder: Path) -> None:
    while True:
        assert process.poll() is None, (folder / "stderr").read_text()
        try:
            httpx.get(url, timeout=5)
            return
        except httpx.HTTPError:
            time.sleep(0.1)


def test_a_run_that_starts_feeds_and_ends_its_own_server(call: Callable[..., Any], base: Path, tmp_path: Path):
    told = call("train", *SMALL, "--model.name", base, "--sampler", "vllm", "--name", "served")
    assert told["stop"] == "iterations"
    assert {path.name.split("-")[0] for path in (tmp_path / "runs/served/server/adapters").glob("*/*")} >= {
        "ceo@0000",
        "dev@0000",
    }
    config = call("runs", "show", tmp_path / "runs" / "served")
    assert "token_truncate" in json.dumps(config)
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(base) not in running


def test_a_model_is_served_with_its_adapters_until_it_is_ended(environ: dict[str, str], base: Path, tmp_path: Path):
    model = lora.attach(tiny_model().model, ["sales"], lora.LoraSpec(rank=2), seed=0)
    # Of the served base: the adapter's shapes are those of any tiny model with as many layers.
    digest = weights_digest(base)
    adapter_files.save_adapter(model, "sales", tmp_path / "adapters", version=3, parent=None, base_digest=digest, dtype="float32")
    port = free_port()
    served = start(environ, tmp_path, "serve", "model", "adapters", "--model.name", base, "--server.port", str(port), "--json")
    try:
        url = f"http://127.0.0.1:{port}"
        lines: list[str] = []
        while not lines or lines[-1].rstrip() != "}":
            lines.append(served.stdout.readline())
            assert lines[-1], (tmp_path / "stderr").read_text()
        told = json.loads("".join(lines))
        assert told["url"] == f"{url}/v1"
        assert told["adapters"][0][0] == "sales@0003"
        names = {item["id"] for item in httpx.get(f"{url}/v1/models", timeout=30).json()["data"]}
        assert names == {"base", "sales@0003"}
        served.send_signal(signal.SIGTERM)
        served.communicate(timeout=60)
        assert served.returncode == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health", timeout=5)
    finally:
        if served.poll() is None:
            served.kill()
            served.communicate()


def test_updates_are_made_by_a_worker(call: Callable[..., Any], environ: dict[str, str], base: Path, tmp_path: Path):
    port = free_port()
    lora_options = ("--lora.rank", "2", "--model.name", base, "--model.dtype", "float32")
    worker = start(environ, tmp_path, "serve", "trainer", "--port", str(port), "--roles", "ceo", "dev", *lora_options)
    try:
        url = f"http://127.0.0.1:{port}"
        answers(f"{url}/health", worker, tmp_path)
        far = ("--trainer", url, "--trainer-wait-s", "60", "--name", "far")
        told = call("train", *SMALL, "--model.name", base, *far)
        assert told["iterations"] == 1
        here = call("train", *SMALL, "--model.name", base, "--name", "near")
        assert {r: a["digest"] for r, a in told["adapters"].items()} == {r: a["digest"] for r, a in here["adapters"].items()}
    finally:
        worker.terminate()
        worker.communicate(timeout=60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_ends_while_it_makes_an_update_and_gives_it_back(
    number: int, environ: dict[str, str], base: Path, tmp_path: Path
):
    from safetensors.torch import save
    from transformers import AutoModelForCausalLM

    from onthejob.learn.learner import Learner, LearnerConfig

    port, files = free_port(), tmp_path / "worker"
    shape = ("--lora.rank", "2", "--model.name", base, "--model.dtype", "float32")
    worker = start(environ, tmp_path, "serve", "trainer", "--port", str(port), "--roles", "ceo", *shape, "--files", files)
    try:
        url = f"http://127.0.0.1:{port}"
        answers(f"{url}/health", worker, tmp_path)
        model = lora.attach(AutoModelForCausalLM.from_pretrained(base), ["ceo"], lora.LoraSpec(rank=2), seed=0)
        state = save(
            {name: t.contiguous() for name, t in Learner(model, ["ceo"], config=LearnerConfig()).export_state("ceo").items()}
        )
        digest = hashlib.sha256(state).hexdigest()
        asked = {
            "role": "ceo",
            "base": weights_digest(base),
            "state": digest,
            "groups": GROUPS.dump_python([group("ceo")], mode="json"),
            "advantages": [advantages(group("ceo"), AdvantageConfig()).tolist()],
        }
        with httpx.Client(base_url=url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=120) as http:
            http.put(f"/states/{digest}", content=state).raise_for_status()
            with http.stream("POST", "/train", json=asked | {"config": {"epochs": 1_000}}) as answer:
                lines = answer.iter_lines()
                assert json.loads(next(lines))["event"] == "claimed"
                while not http.get("/health").json()["busy"]:
                    time.sleep(0.05)
                began = time.monotonic()
                worker.send_signal(number)
                assert json.loads(list(lines)[-1])["event"] == "stopped"
        worker.communicate(timeout=60)
        # The update would take minutes; a machine at its limit may need some of these seconds.
        assert time.monotonic() - began < 20
        with contextlib.closing(sqlite3.connect(files / "jobs.sqlite")) as db:
            assert db.execute("SELECT * FROM jobs").fetchall() == [], "it counts as no attempt"
        assert "Traceback" not in (tmp_path / "stderr").read_text()
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.communicate()


def test_a_worker_serves_the_role_of_another_workplace(
    call: Callable[..., Any], environ: dict[str, str], base: Path, tmp_path: Path
):
    port = free_port()
    shape = ("--lora.rank", "2", "--model.name", base, "--model.dtype", "float32")
    worker = start(environ, tmp_path, "serve", "trainer", "--port", str(port), "--roles", "agent", *shape)
    short = ("--env.count", "64", "--env.protocol.max-turns", "1", "--sampling.max-new-tokens", "2", "--iterations", "1")
    few = ("--collect.episodes", "1", "--branch.group-size", "2", "--name", "far")
    try:
        url = f"http://127.0.0.1:{port}"
        answers(f"{url}/health", worker, tmp_path)
        told = call("train", "--env", "claw", *short, *few, *shape, "--trainer", url)
        assert told["iterations"] == 1
    finally:
        worker.terminate()
        worker.communicate(timeout=60)


def test_a_worker_updates_and_samples_for_a_run(call: Callable[..., Any], environ: dict[str, str], base: Path, tmp_path: Path):
    """Only the office is here: updates and replies are made by the worker, whose server is given every version."""
    port = free_port()
    lora_options = ("--lora.rank", "2", "--model.name", base, "--model.dtype", "float32")
    words = ("serve", "trainer", "--port", str(port), "--roles", "ceo", "dev", *lora_options, "--serve-model")
    worker = start(environ, tmp_path, *words, "--server.port", "0", "--files", tmp_path / "worker")
    try:
        url = f"http://127.0.0.1:{port}"
        answers(f"{url}/health", worker, tmp_path)
        told = call("train", *SMALL, "--model.name", base, "--trainer", url, "--sampler", "worker", "--name", "far")
        assert told["iterations"] == 1
        served = {path.name.split("-")[0] for path in (tmp_path / "worker/server/adapters").glob("*/*")}
        assert {f"{role}@{adapter['version']:04d}" for role, adapter in told["adapters"].items()} <= served
        assert "token_truncate" in json.dumps(call("runs", "show", tmp_path / "runs" / "far"))
        # The same without the base's weights on this machine.
        described = tmp_path / "described"
        shutil.copytree(base, described, ignore=shutil.ignore_patterns("*.safetensors"))
        words = ("train", *SMALL, "--model.name", described, "--model.device", "meta", "--trainer", url, "--sampler", "worker")
        again = call(*words, "--name", "light")
        assert again["iterations"] == 1
        adapter = read_adapter(Path(again["adapters"]["ceo"]["path"]))
        assert json.loads((adapter.path / "adapter_meta.json").read_text())["base_digest"] == weights_digest(base)
    finally:
        worker.terminate()
        worker.communicate(timeout=60)


def test_a_worker_is_needed_to_sample_beside_it(environ: dict[str, str], base: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["train", *SMALL, "--model.name", str(base), "--sampler", "worker"]) == 2
    assert "--trainer" in capsys.readouterr().err
    assert main(["train", *SMALL, "--model.name", str(base), "--model.device", "meta"]) == 2
    assert "no weights" in capsys.readouterr().err


@pytest.mark.parametrize(("token", "words"), [("", "ONTHEJOB_TRAINER_TOKEN"), ("t" * 16, "does not answer")])
def test_a_worker_that_cannot_be_reached_leaves_no_run(
    token: str, words: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("ONTHEJOB_TRAINER_TOKEN", token)
    monkeypatch.chdir(tmp_path)
    nobody = f"http://127.0.0.1:{free_port()}"
    code = main(["train", *SMALL, "--model.name", str(base), "--trainer", nobody])
    assert code in (1, 2)
    assert words in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
