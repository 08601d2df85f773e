"""A real vLLM (CPU build) with the embedded SmolLM2: what the tests' own server stands for elsewhere, met by the real one.

One server for all tests of this file but those that kill its owner, as a start takes a minute. Skipped without vLLM: `make vllm`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from onthejob.cli import main
from onthejob.learn import lora
from onthejob.models.base_model import load_base
from onthejob.models.chat import ChatEncoder
from onthejob.models.providers import AnthropicClient, ChatClient, OpenAIClient, Question
from onthejob.models.transport import Limits, Outcome, Transport
from onthejob.record import Run
from onthejob.serve.guard import descendants, stat_of
from onthejob.serve.intake import BaseShape, Intake
from onthejob.serve.publish import Probe, Published, Publisher, Slots, distance, trainer_scores
from onthejob.serve.server import MODULE, PYTHON_ENV, ModelServer, ServerConfig
from onthejob.serve.supervisor import check_port, free_port
from onthejob.serve.vllm import VllmOptions, VllmSampler
from onthejob.types import Message, Sampling, StopReason

from .conftest import Workshop

pytestmark = [pytest.mark.server, pytest.mark.timeout(3600)]

ROLES = ("ceo", "dev", "marketing", "sales", "content", "hr")
TEXT = "The sales agent calls Acme and offers a demo of the new release on Monday."
START_S = 3600.0
"""Machines that run tests are busy with others."""
GONE_S = 5.0
"""Within so many seconds nothing of a killed tree is left."""


@dataclass
class Vllm:
    """The server, a trainer's model next to it, and the way from one to the other."""

    server: ModelServer
    shop: Workshop
    publisher: Publisher
    sampler: VllmSampler
    ids: tuple[int, ...]
    versions: dict[str, int] = field(default_factory=dict)

    def publish(self, role: str) -> Published:
        """The next version of `role`, moved by random weights."""
        version = self.versions[role] = self.versions.get(role, 0) + 1
        adapter = self.shop.write(role, version, scale=0.02)
        done = self.publisher.publish(adapter.path, expected=trainer_scores(self.shop.model, role, self.ids))
        shutil.rmtree(adapter.path)  # 20 MB each; the publisher has its own copy.
        return done

    def members(self) -> list[int]:
        """The living processes of the server's tree."""
        child = self.server.child
        assert child is not None
        return child.members()

    def resident(self) -> int:
        """Bytes of memory that the tree holds and shares with no process outside of it."""
        return sum(private_bytes(pid) for pid in self.members())


@pytest.fixture(scope="module")
def vllm(vllm_python: str, smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    folder = tmp_path_factory.mktemp("vllm")
    base = load_base(smollm2_path)
    shop = Workshop(
        folder=smollm2_path,
        model=lora.attach(base.model, ROLES, lora.LoraSpec(rank=8, alpha=16), seed=0),
        chat=ChatEncoder(base.tokenizer),
        base=BaseShape.of_folder(smollm2_path, digest=base.digest),
        out=folder / "adapters",
    )
    server = ModelServer(
        smollm2_path,
        slots=Slots.for_roles(len(ROLES), rank=8),
        config=ServerConfig(max_model_len=1024, startup_s=START_S, eager=True),
        log_file=folder / "vllm.log",
        command=(vllm_python, "-m", MODULE),
        options=VllmOptions(request_s=START_S, control_s=START_S),
    )
    ids = tuple(base.tokenizer.encode(TEXT))
    with ExitStack() as after:
        after.callback(server.stop)
        print(f"start: {server.start():.1f} s")
        publisher = Publisher(server, Intake(folder / "store", shop.base), probe=Probe(ids=ids))
        yield Vllm(server, shop, publisher, VllmSampler(server.client, shop.chat, publisher, recover=server.recover), ids)


def test_it_loads_adapters_and_computes_what_the_trainer_does(vllm: Vllm):
    assert vllm.server.can_load
    before = vllm.server.score(vllm.ids, None)
    done = vllm.publish("sales")
    served = vllm.server.score(vllm.ids, done.adapter.name)
    assert done.probe_mean is not None
    assert done.probe_mean < 0.1
    # The adapter is at work: its numbers are nearer to the trainer's than to the base's.
    assert distance(served, before)[0] > 2 * done.probe_mean
    assert done.adapter.name in vllm.server.names()
    # Publishing loads nothing that the base's own numbers would notice.
    assert distance(vllm.server.score(vllm.ids, None), before)[0] < 1e-2


def test_a_reply_has_its_tokens_and_their_numbers(vllm: Vllm):
    name = vllm.publish("sales").adapter.name
    prompts = [vllm.ids] * 6 + [vllm.ids[:5]] * 2
    replies = vllm.sampler.generate(prompts, adapter=name, sampling=Sampling(max_new_tokens=24), seeds=[0] * len(prompts))
    assert len({reply.token_ids for reply in replies[:6]}) > 1
    gaps = []
    for prompt, reply in zip(prompts, replies, strict=True):
        assert reply.text == vllm.shop.chat.decode(reply.token_ids)
        assert (reply.finish_reason == "stop") is (reply.token_ids[-1] in vllm.shop.chat.end_ids)
        scores = trainer_scores(vllm.shop.model, "sales", prompt + reply.token_ids)[len(prompt) - 1 :]
        gaps += [abs(ours - theirs) for ours, theirs in zip(scores, reply.logprobs, strict=True)]
    # bfloat16 on both sides, summed in another order.
    assert statistics.mean(gaps) < 0.1


def test_the_temperature_is_in_the_numbers(vllm: Vllm):
    """Log-probabilities are those of the distribution that was sampled from, not those of temperature 1."""
    sampling = Sampling(temperature=0.5, max_new_tokens=12)
    replies = vllm.sampler.generate([vllm.ids] * 4, adapter=None, sampling=sampling, seeds=[0] * 4)
    model = vllm.shop.model
    for reply in replies:
        row = torch.tensor([vllm.ids + reply.token_ids])
        with torch.no_grad(), model.disable_adapter():
            logits = model(input_ids=row).logits[0, len(vllm.ids) - 1 : -1].double()
        chosen = torch.tensor(reply.token_ids)[:, None]
        at = {t: torch.log_softmax(logits / t, dim=-1).gather(1, chosen).squeeze(1) for t in (0.5, 1.0)}
        given = torch.tensor(reply.logprobs, dtype=torch.float64)
        gaps = {t: float((given - scores).abs().mean()) for t, scores in at.items()}
        assert gaps[0.5] < 0.1
        assert gaps[0.5] < gaps[1.0]


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_both_clients_speak_to_vllms_own_routes(wire: str, vllm: Vllm):
    name = vllm.publish("hr").adapter.name
    transport = Transport(Limits(deadline_s=START_S))
    kinds: dict[str, Callable[[], ChatClient]] = {
        "openai": lambda: OpenAIClient(transport, base_url=f"{vllm.server.client.url}/v1", model=name, name="openai:here"),
        "anthropic": lambda: AnthropicClient(
            transport, base_url=vllm.server.client.url, model=name, name="anthropic:here", key=None
        ),
    }
    schema = {
        "type": "object",
        "properties": {"action": {"type": "string", "enum": ["HIRE", "WAIT"]}, "why": {"type": "string", "maxLength": 12}},
        "required": ["action", "why"],
        "additionalProperties": False,
    }
    messages = [Message("system", "You run HR."), Message("user", "Hire or wait? Answer in JSON.")]
    try:
        client = kinds[wire]()
        free = transport.run(client.ask(Question(messages=messages, max_tokens=8, temperature=1.0)))
        assert free.outcome in (Outcome.LENGTH, Outcome.OK)
        assert free.text
        assert 0 < free.usage.completion <= 8
        assert free.usage.prompt > 10
        assert free.model == name
        held = transport.run(client.ask(Question(messages=messages, max_tokens=64, temperature=1.0, schema=schema)))
        assert held.outcome is Outcome.OK
        reply = json.loads(held.text)
        assert reply["action"] in ("HIRE", "WAIT")
        assert set(reply) == {"action", "why"}
    finally:
        transport.close()


def test_publishes_under_load_fail_no_request_and_keep_memory_flat(vllm: Vllm, counts):
    """Six roles x 20 (in full 200) versions while two threads sample; what is printed is the issue's latency."""
    for role in ROLES:
        vllm.publish(role)
    idle = [vllm.publish(role).first_served_s for role in ROLES]
    over, failures, answered = threading.Event(), [], []

    def rollouts(role: str) -> None:
        while not over.is_set():
            try:
                with vllm.publisher.lease(role) as adapter:
                    sampling = Sampling(max_new_tokens=16)
                    replies = vllm.sampler.generate([vllm.ids] * 8, adapter=adapter.name, sampling=sampling, seeds=[0] * 8)
                    answered.append((adapter.name, len(replies)))
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=rollouts, args=(role,)) for role in ("sales", "dev")]
    for thread in threads:
        thread.start()
    done: list[Published] = []
    resident: list[int] = []
    try:
        for _ in range(counts(20, 200)):
            done += [vllm.publish(role) for role in ROLES]
            resident.append(vllm.resident())
    finally:
        over.set()
        for thread in threads:
            thread.join(START_S)
    loaded = statistics.median(one.first_served_s for one in done)
    worst = max(one.probe_mean for one in done if one.probe_mean is not None)
    grown = [value >> 20 for value in (resident[0], resident[len(resident) // 2], resident[-1])]
    print(
        f"{len(done)} publishes under load: median {loaded:.2f} s; idle {statistics.median(idle):.2f} s; probe {worst:.4f} nats"
    )
    print(f"{len(answered)} batches of replies; server's memory {grown} MiB at the start, half-way and at the end")
    assert not failures
    assert {count for _, count in answered} == {8}
    assert {name.partition("@")[0] for name, _ in answered} == {"sales", "dev"}
    assert set(vllm.server.names()) == {adapter.name for adapter in vllm.publisher.live.values()}
    # An adapter is 20 MB: had even one in ten stayed, it would be more.
    assert resident[-1] - resident[len(resident) // 4] < 64 << 20


def test_a_killed_server_comes_back_and_nothing_is_left(vllm: Vllm):
    """SIGKILL of the API server, under load: its orphaned engine goes, every reply comes, each of them once."""
    name = vllm.publish("sales").adapter.name
    members = vllm.members()
    api = api_server(members)
    restarts = len(vllm.server.restarts)
    sampling = Sampling(max_new_tokens=200)
    prompts = [(*vllm.ids, token) for token in range(100, 112)] * 2
    got: list = []
    thread = threading.Thread(
        target=lambda: got.extend(vllm.sampler.generate(prompts, adapter=name, sampling=sampling, seeds=[0] * len(prompts)))
    )
    thread.start()
    time.sleep(1.0)
    os.kill(api, signal.SIGKILL)
    seconds = until_gone(members)
    print(f"gone after {seconds:.2f} s")
    thread.join(START_S)
    assert len(got) == len(prompts)
    assert len(vllm.server.restarts) == restarts + 1
    print(f"restart: {vllm.server.restarts[-1].seconds:.1f} s")
    assert name in vllm.server.names()
    assert vllm.publish("sales").probe_mean < 0.1


def test_a_killed_owner_leaves_no_server(vllm_python: str, smollm2_path: Path, tmp_path: Path):
    """SIGKILL of our own process while its server runs."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "onthejob.cli", "serve", "model", "--model.name", str(smollm2_path), "--server.port", str(port)),
        *("--server.max-model-len", "256", "--server.startup-s", str(START_S), "--server.eager"),
        *("--files", str(tmp_path / "server"), "--json"),
    ]
    environ = {**os.environ, PYTHON_ENV: vllm_python, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (tmp_path / "stderr").open("w") as log:
        owner = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert owner.stdout is not None
        told = owner.stdout.readline()
        assert told, (tmp_path / "stderr").read_text() + (tmp_path / "server/server.log").read_text()[-3000:]
        tree = descendants(owner.pid)
        assert len(tree) >= 3, "guard, API server and engine"
        owner.kill()
        owner.wait()
        seconds = until_gone(tree)
        print(f"gone after {seconds:.2f} s")
        check_port(port)
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()


def test_the_office_trains_through_it_and_survives_its_crash(
    vllm_python: str, smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """`onthejob train --sampler vllm` from the bare model to adapters; the server is killed once while it samples."""
    monkeypatch.setenv(PYTHON_ENV, vllm_python)
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    killed: list[int] = []
    over = threading.Event()

    def kill_once() -> None:
        log = runs / "killed/server/server.log"
        while not over.wait(0.2):
            # The first adapters are in place, so the next thing that is asked for are replies.
            if log.is_file() and log.read_text(errors="replace").count("Loaded new LoRA adapter") >= 2:
                time.sleep(1.0)
                killed.append(api_server(descendants(os.getpid())))
                os.kill(killed[0], signal.SIGKILL)
                return

    def train(name: str) -> None:
        capsys.readouterr()
        status = main([*words, "--name", name])
        assert status == 0
        assert json.loads(capsys.readouterr().out)["iterations"] == 2

    words = (
        "train", "--sampler", "vllm", "--server.max-model-len", "1024", "--model.name", str(smollm2_path),
        "--env.scenarios", "baseline", "--env.days", "2", "--env.seeds", "2", "--roles", "ceo", "dev", "--iterations", "2",
        "--library-tasks", "5", "--scale-states", "4", "--sampling.max-new-tokens", "48",
        "--collect.episodes", "2", "--collect.segment-turns", "3", "--collect.partner-share", "0",
        "--branch.group-size", "4", "--branch.turns", "6", "--branch.worlds", "1", "--server.eager",
        "--json",
    )  # fmt: skip
    train("undisturbed")
    thread = threading.Thread(target=kill_once)
    thread.start()
    try:
        train("killed")
    finally:
        over.set()
        thread.join(10)
    assert killed
    rows = {}
    for name in ("undisturbed", "killed"):
        with Run.open(runs / name, readonly=True) as run:
            groups = [group for iteration in (1, 2) for group in run.read_groups(iteration)]
            metrics = {(m.iteration, m.scope, m.name): m.value for m in run.read_metrics()}
        assert len({(group.key, group.actor) for group in groups}) == len(groups)
        assert all(len(group.trajectories) == 4 for group in groups)
        # Every trajectory holds what a reply was sampled with, and none came from a failed episode.
        for group in groups:
            for trajectory in group.trajectories:
                assert trajectory.stop is not StopReason.ERROR
                assert all(turn.completion.token_ids and turn.completion.logprobs for turn in trajectory.turns)
        rows[name] = len(groups)
        gaps = [value for key, value in metrics.items() if key[2] == "sampling/sampling_logp_difference/mean"]
        assert all(0 <= gap < 0.1 for gap in gaps)
    assert rows["killed"] == rows["undisturbed"]


def private_bytes(pid: int) -> int:
    """Memory of a process that is its own; 0 when it has ended."""
    try:
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(row.split()[1]) << 10 for row in rows if row.startswith("Private_"))


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def api_server(pids: list[int]) -> int:
    """The one of `pids` that serves HTTP; the guard has its command line too, behind its own."""
    return next(pid for pid in pids if MODULE.encode() in cmdline(pid) and b"guard.py" not in cmdline(pid))


def until_gone(pids: list[int]) -> float:
    """Seconds until none of `pids` lives; fails after `GONE_S`."""
    started = time.monotonic()
    while left := [pid for pid in pids if (about := stat_of(pid)) is not None and about[0] != "Z"]:
        assert time.monotonic() - started < GONE_S, {pid: cmdline(pid) for pid in left}
        time.sleep(0.02)
    return time.monotonic() - started
