"""The whole loop with its parts elsewhere: updates by a worker, replies from a server, opinions of a judge."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from checks.servers.model_server import ModelState, make_handler
from onthejob.learn.learner import Learner, LearnerConfig
from onthejob.learn.lora import LoraSpec, attach
from onthejob.learn.loss import LossConfig
from onthejob.loop import train
from onthejob.models.base_model import weights_digest
from onthejob.models.chat import ChatEncoder
from onthejob.models.providers import OpenAIClient
from onthejob.models.sampler import Sampler
from onthejob.models.scripted import ScriptedPolicy
from onthejob.models.transport import Limits, Transport
from onthejob.office import JUDGED
from onthejob.record.store import Run
from onthejob.rollout.branch import BranchConfig
from onthejob.rollout.collect import CollectConfig
from onthejob.rollout.judge import Judge, JudgeConfig
from onthejob.rollout.pool import TaskPool
from onthejob.serve.intake import BaseShape, Intake
from onthejob.serve.publish import Probe, Publisher, trainer_scores
from onthejob.serve.remote import RemoteLearner
from onthejob.serve.trainer import TrainingService
from onthejob.serve.trainer_http import make_app
from onthejob.serve.vllm import VllmClient, VllmSampler
from onthejob.testing import ToyWorkplace, heuristic_reply, teach, tiny_model, toy_examples, toy_tasks
from onthejob.train import Setup, TrainConfig, TrainResult
from onthejob.types import Sampling

pytestmark = pytest.mark.slow

ROLES = ("maker", "seller")
TOKEN = "0123456789abcdef0123456789abcdef"
IDS = tuple(range(5, 21))
HEURISTIC = ScriptedPolicy(heuristic_reply, version="heuristic")
SMALL = TrainConfig(
    iterations=2,
    collect=CollectConfig(episodes=2, segment_turns=4),
    branch=BranchConfig(group_size=4, turns=4, worlds=2),
    sampling=Sampling(max_new_tokens=3),
    library_tasks=2,
    library_share=0.5,
    library_per_day=2,
    scale_states=6,
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model after a warm start, on disk."""
    tiny = tiny_model(seed=0)
    teach(tiny, toy_examples(256, expert_share=0.4), steps=100, batch=24)
    folder = tmp_path_factory.mktemp("base")
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    return folder


class Rig:
    """A run on a copy of the base; servers that it starts end with `helpers`."""

    def __init__(self, base: Path, folder: Path, name: str, helpers: ExitStack) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.base, self.folder, self.helpers = base, folder, helpers
        self.digest = weights_digest(base)
        self.chat = ChatEncoder(AutoTokenizer.from_pretrained(base))
        self.learner = self.new_learner()
        self.run = helpers.enter_context(Run.create(folder, config={"seed": 0}, name=name))
        self._load = AutoModelForCausalLM

    def new_learner(self) -> Learner:
        from transformers import AutoModelForCausalLM

        model = attach(AutoModelForCausalLM.from_pretrained(self.base), ROLES, LoraSpec(rank=4, alpha=8), seed=1)
        config = LearnerConfig(lr=3e-3, loss=LossConfig(correction="token_truncate"))
        return Learner(model, ROLES, config=config, seed=0)

    def train(self, **changes: Any) -> TrainResult:
        arguments: dict[str, Any] = {
            "make_env": ToyWorkplace,
            "pool": TaskPool(toy_tasks(8), seed=0),
            "learner": self.learner,
            "sampler": Sampler(self.learner.model, self.chat),
            "encoder": self.chat,
            "run": self.run,
            "partners": {"maker": HEURISTIC, "seller": HEURISTIC},
            "roles": ROLES,
            "base_digest": self.digest,
        }
        return train(Setup(config=SMALL, **(arguments | changes)))

    def listen(self, handler: type[BaseHTTPRequestHandler]) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.helpers.callback(server.server_close)
        self.helpers.callback(server.shutdown)
        return f"http://127.0.0.1:{server.server_address[1]}"


@pytest.fixture
def make_rig(base: Path, tmp_path: Path) -> Iterator[Callable[[str], Rig]]:
    with ExitStack() as helpers:
        yield lambda name: Rig(base, tmp_path, name, helpers)


def test_a_run_whose_updates_a_worker_makes_is_the_same_run(make_rig: Callable[[str], Rig], tmp_path: Path):
    here, there = make_rig("here"), make_rig("there")
    local = here.train()
    service = TrainingService(there.new_learner().model, folder=tmp_path / "worker", base_digest=there.digest)
    server = uvicorn.Server(uvicorn.Config(make_app(service, token=TOKEN), host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        far = RemoteLearner(there.learner, url, base_digest=there.digest, token=TOKEN)
        remote = there.train(learner=far)
        far.close()
    finally:
        server.should_exit = True
        thread.join(20)
    assert {role: a.digest for role, a in remote.adapters.items()} == {role: a.digest for role, a in local.adapters.items()}
    assert service.updates > 0
    assert any(adapter.version > 0 for adapter in remote.adapters.values())


def test_a_run_samples_through_a_server_and_its_mismatch_is_recorded(make_rig: Callable[[str], Rig], tmp_path: Path):
    rig = make_rig("served")
    state = ModelState(rig.base, [])
    client = VllmClient(rig.listen(make_handler(state, can_load=True)))
    rig.helpers.callback(client.close)
    shape = BaseShape.of_folder(rig.base, digest=rig.digest)
    probe = Probe(ids=IDS, mean_tolerance=1e-3, max_tolerance=1e-2)
    publisher = Publisher(client, Intake(tmp_path / "store", shape), probe=probe)
    model = rig.learner.model
    sampler = VllmSampler(client, rig.chat, publisher, expected=lambda a: trainer_scores(model, a.role, IDS))
    result = rig.train(sampler=sampler)
    assert {publisher.live[role].name for role in ROLES} == {adapter.name for adapter in result.adapters.values()}
    metrics = {(metric.iteration, metric.scope, metric.name): metric.value for metric in rig.run.read_metrics()}
    updated = [key for key in metrics if key[2] == "sampling/sampling_logp_difference/mean"]
    assert updated
    # The server computes in float32 as the trainer does, so what is corrected is next to nothing: but it was measured.
    assert all(0 <= metrics[key] < 1e-3 for key in updated)
    assert all(
        metrics[(iteration, scope, "sampling/importance_sampling_ratio/mean")] == pytest.approx(1.0, abs=1e-3)
        for iteration, scope, _ in updated
    )


def test_a_judges_opinion_is_recorded_and_without_weight_changes_nothing(make_rig: Callable[[str], Rig]):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"][1]["content"]
            reply = text.split("Decision:\n")[1]
            score = 1 if "lorem" in reply else 5 if "RUN_DEMO" in reply or "MAKE" in reply else 2
            choice = {"index": 0, "message": {"role": "assistant", "content": f'{{"score": {score}}}'}, "finish_reason": "stop"}
            content = json.dumps({"model": "m", "choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    plain = make_rig("plain").train()
    digests = {}
    for weight in (0.0, 0.2):
        rig = make_rig(f"judged{weight}")
        transport = Transport(Limits(deadline_s=30))
        rig.helpers.callback(transport.close)
        client = OpenAIClient(transport, base_url=f"{rig.listen(Handler)}/v1", model="m", name="openai:m")
        judge = Judge(client, transport, rubric=JUDGED, config=JudgeConfig(weight=weight), cache=rig.run.path / "judge.sqlite")
        rig.helpers.callback(judge.close)
        result = rig.train(judge=judge)
        digests[weight] = {role: adapter.digest for role, adapter in result.adapters.items()}
        judged = [metric.value for metric in rig.run.read_metrics() if metric.scope == "judge" and metric.name == "judged"]
        assert len(judged) == SMALL.iterations
        assert all(count > 0 for count in judged)
    assert digests[0.0] == {role: adapter.digest for role, adapter in plain.adapters.items()}
    assert digests[0.2] != digests[0.0]
