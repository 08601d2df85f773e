"""The worker trains as the learner here would, once for every key, and a client survives it being busy or gone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import httpx
import pytest
import torch
import uvicorn
from fastapi import FastAPI

from onthejob.errors import ConfigError, ServeError, TrainingError
from onthejob.learn.advantage import AdvantageConfig, advantages
from onthejob.learn.learner import Learner, LearnerConfig
from onthejob.learn.lora import Snapshot, state, weight_delta
from onthejob.learn.loss import LossConfig
from onthejob.serve.jobs import MAX_ATTEMPTS, Jobs, identity
from onthejob.serve.messages import GROUPS, HotloadRequest, TrainRequest
from onthejob.serve.remote import CA_ENV, Patience, RemoteLearner, reach, token_from
from onthejob.serve.trainer import TrainingService
from onthejob.serve.trainer_http import make_app
from onthejob.types import Completion, Group, StopReason, Trajectory, Turn

from ..learn.conftest import update

TOKEN = "0123456789abcdef0123456789abcdef"
BASE = "b" * 64


def tiny_learner(config: LearnerConfig | None = None) -> Learner:
    from onthejob.learn import lora
    from onthejob.testing.tiny import tiny_model

    model = lora.attach(tiny_model().model, ["sales", "dev"], lora.LoraSpec(rank=4, alpha=8), seed=0)
    return Learner(model, ["sales", "dev"], config=config or LearnerConfig(lr=1e-2))


def group(actor: str = "sales") -> Group:
    def trajectory(reply: tuple[int, ...], reward: float) -> Trajectory:
        completion = Completion(text="x", token_ids=reply, logprobs=tuple(-1.25 for _ in reply))
        turn = Turn(prompt_ids=(5, 6, 7, 8), completion=completion, policy_version=f"{actor}@0000")
        return Trajectory(task_id="t", actor=actor, turns=(turn,), rewards=(reward,), stop=StopReason.BRANCH, metrics={"a": 0.1})

    members = (trajectory((9, 10, 2), 1.0), trajectory((11, 2), 0.0), trajectory((12, 13, 14), 0.3))
    return Group(key=f"g/{actor}", actor=actor, trajectories=members, facts={"worlds": [1, 2]})


def serving(service: TrainingService, **tls: str) -> AbstractContextManager[str]:
    """The URL of a worker, while it is served."""
    return listening(make_app(service, token=TOKEN), **tls)


@contextmanager
def listening(app: FastAPI, **tls: str) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", **tls))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


@pytest.fixture
def service(tmp_path: Path) -> TrainingService:
    return TrainingService(tiny_learner().model, folder=tmp_path / "worker", base_digest=BASE)


def remote(url: str, learner: Learner, **options) -> RemoteLearner:
    return RemoteLearner(learner, url, base_digest=BASE, token=TOKEN, wait_s=0.05, **options)


def test_groups_travel_without_losing_a_bit():
    groups = [group()]
    assert GROUPS.validate_json(json.dumps(GROUPS.dump_python(groups, mode="json"))) == groups


def test_the_workers_updates_are_the_learners(service: TrainingService):
    config = LearnerConfig(lr=1e-2, loss=LossConfig(beta=0.1))
    here, there = tiny_learner(config), tiny_learner(config)
    reference = Snapshot.take(here.model, "sales")
    with serving(service) as url:
        far = remote(url, there)
        for _ in range(2):
            ours = update(here, "sales", [group()], reference=reference)
            theirs = update(far, "sales", [group()], reference=reference)
            assert ours.steps == 1
            assert {**ours.as_dict(), "wall_s": 0} == {**theirs.as_dict(), "wall_s": 0}
            assert weight_delta(state(here.model, "sales"), state(there.model, "sales")) == (0, 0)
        before = state(there.model, "sales")
        update(far, "dev", [group("dev")], reference=Snapshot.take(there.model, "dev"))
        assert weight_delta(before, state(there.model, "sales")) == (0, 0)
        far.close()
    exported = [learner.export_state("sales") for learner in (here, there)]
    assert all(torch.equal(exported[0][name], exported[1][name]) for name in exported[0])


def test_a_worker_with_another_alpha_is_refused(service: TrainingService):
    """States hold no alpha, so it would compute the updates of another policy."""
    from onthejob.learn import lora
    from onthejob.testing.tiny import tiny_model

    model = lora.attach(tiny_model().model, ["sales", "dev"], lora.LoraSpec(rank=4, alpha=32), seed=0)
    with serving(service) as url, pytest.raises(ConfigError, match="has alpha 8 for sales, here it is 32"):
        remote(url, Learner(model, ["sales", "dev"], config=LearnerConfig()))


def request_for(learner: Learner, service: TrainingService) -> TrainRequest:
    from safetensors.torch import save

    digest = service.store(save({name: tensor.contiguous() for name, tensor in learner.export_state("sales").items()}))
    groups = [group()]
    return TrainRequest(
        role="sales",
        base=BASE,
        state=digest,
        config={"lr": 1e-2},
        groups=GROUPS.dump_python(groups, mode="json"),
        advantages=[advantages(one, AdvantageConfig()).tolist() for one in groups],
    )


def test_the_same_request_eight_times_at_once_trains_once(service: TrainingService):
    request = request_for(tiny_learner(), service)
    with serving(service) as url, httpx.Client(base_url=url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=60) as http:
        ends: list[dict] = []

        def ask() -> None:
            while True:
                text = http.post("/train", content=request.model_dump_json()).raise_for_status().text
                last = json.loads(text.splitlines()[-1])
                if last["event"] != "busy":
                    ends.append(last)
                    return
                time.sleep(0.02)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert service.updates == 1
    assert {end["event"] for end in ends} == {"done"}
    assert len({end["state"] for end in ends}) == 1
    assert len(ends) == 8


def test_a_client_that_leaves_at_once_does_not_keep_its_job_from_others(service: TrainingService):
    request = request_for(tiny_learner(), service)
    events = service.train(request)
    assert next(events)["event"] == "claimed"
    events.close()
    deadline = time.monotonic() + 60
    while (last := list(service.train(request))[-1])["event"] == "busy":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert (last["event"], service.updates) == ("done", 1)


def test_a_worker_that_is_busy_with_our_update_is_waited_for(service: TrainingService, monkeypatch):
    """After a lost connection the update continues there: however often it says so, that is not a failed attempt."""
    answers = iter([httpx.ReadError("cut"), *[{"event": "busy"}] * 20])
    honest = RemoteLearner._once

    def once(self, body, known):
        answer = next(answers, None)
        if isinstance(answer, Exception):
            raise answer
        return honest(self, body, known) if answer is None else answer

    monkeypatch.setattr(RemoteLearner, "_once", once)
    with serving(service) as url:
        far = remote(url, tiny_learner(), gone_s=0.5)
        assert update(far, "sales", [group()]).steps == 1
        far.close()


def test_old_states_leave_the_workers_disk_and_a_lost_result_is_made_again(service: TrainingService):
    request = request_for(tiny_learner(), service)
    made = list(service.train(request))[-1]["state"]
    for number in range(40):
        service.store(b"%d" % number)
    kept = list((service.folder / "states").iterdir())
    assert len(kept) == 8 * len(service.model.peft_config)
    assert service.state_path(made) is None
    again = request_for(tiny_learner(), service)
    assert again.key() == request.key()
    assert list(service.train(again))[-1]["state"] == made
    assert service.state_path(made) is not None


CLAIM = """
import sys, time
from pathlib import Path
from onthejob.serve.jobs import Jobs
print(Jobs(Path(sys.argv[1])).claim("k").state, flush=True)
time.sleep(600)
"""


def test_a_job_whose_worker_was_killed_is_done_once_more_and_not_for_ever(tmp_path: Path):
    path = tmp_path / "jobs.sqlite"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for attempt in range(1, MAX_ATTEMPTS + 1):
        worker = subprocess.Popen([sys.executable, "-c", CLAIM, str(path)], stdout=subprocess.PIPE, env=environ, text=True)
        try:
            assert worker.stdout.readline().strip() == "claimed"
            here = Jobs(path).claim("k")
            assert (here.state, here.attempt) == ("running", attempt)
        finally:
            worker.kill()
            worker.wait()
            worker.stdout.close()
    final = Jobs(path).claim("k")
    assert final.state == "failed"
    assert f"{MAX_ATTEMPTS} workers died on it." in final.result["error"]
    assert "--resume" in final.result["error"]
    assert Jobs(path).claim("k") == final, "the worker that found it so is this process, and lives"


def dead(boot: str, number: int) -> str:
    """Identity of a process that is gone: its start lies before the machine's."""
    return f"{boot}:1:-{number}"


@pytest.mark.parametrize("deaths", [1, 2, 3, 7])
def test_a_worker_that_is_lost_with_its_machine_is_not_counted(tmp_path: Path, deaths: int):
    for number in range(deaths):
        job = Jobs(tmp_path / "jobs.sqlite", owner=dead(f"boot-{number}", number)).claim("k")
        assert (job.state, job.attempt) == ("claimed", 1)
    assert Jobs(tmp_path / "jobs.sqlite").claim("k").state == "claimed"


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_a_job_that_killed_its_workers_is_tried_by_one_that_was_started_afterwards(tmp_path: Path, rounds: int):
    path, boot = tmp_path / "jobs.sqlite", identity().partition(":")[0]
    for number in range(rounds):
        for attempt in range(1, MAX_ATTEMPTS + 1):
            job = Jobs(path, owner=dead(boot, 10 * number + attempt)).claim("k")
            assert (job.state, job.attempt) == ("claimed", attempt)
        assert Jobs(path, owner=dead(boot, 10 * number)).claim("k").state == "failed"
    jobs = Jobs(path)
    assert jobs.claim("k").attempt == 1
    jobs.finish("k", {"state": "s"})
    assert Jobs(path).claim("k").result == {"state": "s"}


def test_a_job_that_failed_for_itself_fails_again_in_every_worker(tmp_path: Path):
    first = Jobs(tmp_path / "jobs.sqlite", owner=dead("boot", 1))
    first.claim("k")
    first.fail("k", "no group")
    assert Jobs(tmp_path / "jobs.sqlite").claim("k").result == {"error": "no group"}


def test_jobs_are_remembered_over_processes(tmp_path: Path):
    first = Jobs(tmp_path / "jobs.sqlite")
    assert first.claim("k").state == "claimed"
    first.finish("k", {"state": "s"})
    first.close()
    again = Jobs(tmp_path / "jobs.sqlite").claim("k")
    assert (again.state, again.result) == ("done", {"state": "s"})


def test_an_identity_is_of_one_process():
    assert identity() == identity(os.getpid())
    assert identity() != identity(os.getppid())


def test_what_cannot_be_trained_fails_by_name(service: TrainingService):
    with serving(service) as url:
        far = remote(url, tiny_learner(LearnerConfig(lr=1e-2, loss=LossConfig(beta=0.1))))
        with pytest.raises(TrainingError, match="reference"):
            update(far, "sales", [group()])
        far.close()


def test_what_failed_for_want_of_memory_may_be_asked_for_again(service: TrainingService, monkeypatch):
    honest = service._update
    failures = [MemoryError("no memory")]

    def update(request, interrupt):
        if failures:
            raise failures.pop()
        return honest(request, interrupt)

    monkeypatch.setattr(service, "_update", update)
    request = request_for(tiny_learner(), service)
    assert list(service.train(request))[-1]["event"] == "failed"
    assert list(service.train(request))[-1]["event"] == "done"
    assert list(service.train(request))[-1]["event"] == "done"
    assert service.updates == 1


@pytest.mark.parametrize("gone_s", [0.0, 0.2])
def test_a_worker_that_is_gone_is_waited_for_and_then_named(service: TrainingService, gone_s: float):
    with serving(service) as url:
        far = remote(url, tiny_learner(), gone_s=gone_s)
    begun = time.monotonic()
    with pytest.raises(ServeError, match=f"within {gone_s:g} s.*--trainer-wait-s"):
        update(far, "sales", [group()])
    assert time.monotonic() - begun >= gone_s
    far.close()


@pytest.mark.parametrize("signs", [0, 1, 3, 5, 8])
def test_a_sign_of_life_begins_the_waiting_time_anew(signs: int):
    patience, begun = Patience(gone_s=0.1, wait_s=0.1), time.monotonic()
    for _ in range(signs):
        assert patience.pause()
        patience.seen()
    assert patience.pause()
    assert not patience.pause()
    assert time.monotonic() - begun >= 0.1 * (signs + 1)


@pytest.mark.parametrize("stops", [1, 2, 5])
@pytest.mark.parametrize("died", [False, True])
def test_a_worker_that_is_asked_to_stop_is_not_counted_when_it_is_killed_then(tmp_path: Path, stops: int, died: bool):
    path, boot = tmp_path / "jobs.sqlite", identity().partition(":")[0]
    if died:
        assert Jobs(path, owner=dead(boot, 99)).claim("k").attempt == 1
    for number in range(stops):
        jobs = Jobs(path, owner=dead(boot, number))
        assert jobs.claim("k").attempt == 1 + died
        jobs.stopping()
    assert Jobs(path, owner=dead(boot, 98)).claim("k").attempt == 1 + died
    last = Jobs(path)
    assert last.claim("k").state == ("failed" if died else "claimed")


@pytest.mark.parametrize("died", [False, True])
def test_what_a_stopped_worker_gives_up_is_taken_by_the_next_who_asks(tmp_path: Path, died: bool):
    path, boot = tmp_path / "jobs.sqlite", identity().partition(":")[0]
    if died:
        Jobs(path, owner=dead(boot, 99)).claim("k")
    jobs = Jobs(path)
    jobs.claim("k")
    jobs.stopping()
    jobs.hand_over("k")
    again = jobs.claim("k")
    assert (again.state, again.attempt) == ("claimed", 1 + died)


def test_an_update_that_ends_while_its_worker_stops_is_kept(tmp_path: Path):
    jobs = Jobs(tmp_path / "jobs.sqlite")
    jobs.claim("k")
    jobs.stopping()
    jobs.finish("k", {"state": "s"})
    assert Jobs(tmp_path / "jobs.sqlite").claim("k").result == {"state": "s"}


STOPPED = """
import sys, time
from pathlib import Path
from fastapi import FastAPI
from onthejob.commands.listening import bind, serve
from onthejob.serve.jobs import Jobs

jobs, app = Jobs(Path(sys.argv[1])), FastAPI()

@app.get("/work")
def work() -> None:
    print(jobs.claim("k").attempt, flush=True)
    time.sleep(600)

with bind("127.0.0.1", 0) as held:
    print(held.getsockname()[1], flush=True)
    serve(app, held, "127.0.0.1", ending=jobs.stopping, log_level="error")
"""


@pytest.mark.slow
@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_stopped_at_work_and_killed_while_it_waits_counts_no_death(tmp_path: Path, asked: signal.Signals):
    """As `docker stop` does it: a signal, and SIGKILL when the update has not ended some seconds later."""
    path = tmp_path / "jobs.sqlite"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(MAX_ATTEMPTS + 1):
        worker = subprocess.Popen([sys.executable, "-c", STOPPED, str(path)], stdout=subprocess.PIPE, env=environ, text=True)
        try:
            port = int(worker.stdout.readline())
            with socket.socket() as client:
                connect_to(client, port)
                client.sendall(b"GET /work HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                assert worker.stdout.readline() == "1\n"
                worker.send_signal(asked)
                deadline = time.monotonic() + 60
                while attempts(path) != 0:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                assert worker.poll() is None, "it waits for its update"
        finally:
            worker.kill()
            worker.communicate()
    assert Jobs(path).claim("k").state == "claimed"


def connect_to(client: socket.socket, port: int) -> None:
    """The server binds its port before it listens."""
    deadline = time.monotonic() + 60
    while client.connect_ex(("127.0.0.1", port)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def attempts(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT attempt FROM jobs").fetchone()[0]


def test_only_the_token_opens_the_door(service: TrainingService):
    request = request_for(tiny_learner(), service)
    with serving(service) as url, httpx.Client(base_url=url) as http:
        routes = [
            ("POST", "/train", request.model_dump_json()),
            ("POST", "/hotload", HotloadRequest(role="sales", version=1, state=request.state).model_dump_json()),
            ("POST", "/sample", "{}"),
            ("GET", "/jobs", None),
            ("DELETE", f"/jobs/{request.key()}", None),
            ("PUT", f"/states/{request.state}", "x"),
            ("GET", f"/states/{request.state}", None),
        ]
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN[:-1]}):
            for method, path, body in routes:
                assert http.request(method, path, content=body, headers=headers).status_code == 401, (method, path)
        assert http.get("/health").json()["status"] == "ok"
        assert http.get("/openapi.json").status_code == 401
    assert service.updates == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/states/..%2F..%2Fjobs.sqlite", None, 404),
        ("GET", "/states/" + "0" * 64, None, 404),
        ("PUT", "/states/" + "0" * 64, b"other content", 400),
        ("POST", "/train", b"[]", 422),
        ("POST", "/train", b'{"role": "../x"}', 422),
        ("POST", "/hotload", b'{"role": "sales", "version": 1, "state": "/etc/passwd"}', 422),
        ("POST", "/sample", b'{"adapter": "../sales@0001"}', 422),
        ("POST", "/sample", b'{"base": "%s", "prompts": [[]], "temperature": 1, "max_new_tokens": 1}' % BASE.encode(), 422),
        ("POST", "/sample", b'{"base": "%s", "prompts": [[5]], "temperature": 1, "max_new_tokens": 1}' % BASE.encode(), 400),
    ],
)
def test_requests_of_every_ugly_kind_are_refused(service: TrainingService, method: str, path: str, body, status: int):
    with serving(service) as url, httpx.Client(base_url=url, headers={"authorization": f"Bearer {TOKEN}"}) as http:
        assert http.request(method, path, content=body).status_code == status


def test_another_base_is_refused_on_both_sides(service: TrainingService):
    with serving(service) as url:
        with pytest.raises(ConfigError, match="has the base"):
            RemoteLearner(tiny_learner(), url, base_digest="c" * 64, token=TOKEN)
        request = request_for(tiny_learner(), service).model_copy(update={"base": "c" * 64})
        answer = httpx.post(f"{url}/train", content=request.model_dump_json(), headers={"authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 400
        assert "base" in answer.json()["error"]


def test_a_state_goes_live_as_an_adapter(tmp_path: Path):
    live: list[str] = []

    class Serving:
        def publish(self, adapter, model):
            assert adapter.path.is_dir()
            live.append(adapter.name)
            return {"served": True}

        def generate(self, request):
            raise AssertionError("nobody asked")

    service = TrainingService(tiny_learner().model, folder=tmp_path / "worker", base_digest=BASE, serving=Serving())
    request = request_for(tiny_learner(), service)
    body = HotloadRequest(role="sales", version=7, parent="sales@0006", state=request.state).model_dump_json()
    with serving(service) as url:
        answer = httpx.post(f"{url}/hotload", content=body, headers={"authorization": f"Bearer {TOKEN}"}, timeout=60)
        assert answer.json()["adapter"] == "sales@0007"
    assert live == ["sales@0007"]
    assert not list((tmp_path / "worker" / "adapters").iterdir()), "the server has a copy of its own"


def test_the_token_is_only_sent_where_it_is_safe():
    with pytest.raises(ConfigError, match="https"):
        RemoteLearner(tiny_learner(), "http://trainer.example:8100", base_digest=BASE, token=TOKEN)
    with pytest.raises(ConfigError, match="ONTHEJOB_TRAINER_TOKEN"):
        token_from({"ONTHEJOB_TRAINER_TOKEN": "short"})
    assert token_from({"ONTHEJOB_TRAINER_TOKEN": TOKEN}) == TOKEN


def test_a_worker_that_lacks_something_is_refused_when_it_is_reached(service: TrainingService):
    """With a wrong token a run used to find out after its first iteration."""
    with serving(service) as url:
        assert reach(url, token=TOKEN, roles=["sales"])["base"] == BASE
        with pytest.raises(ConfigError, match="another token"):
            reach(url, token="x" * 16)
        with pytest.raises(ConfigError, match="no adapter for boss"):
            reach(url, token=TOKEN, roles=["sales", "boss"])
        with pytest.raises(ConfigError, match="Start it with --serve-model"):
            reach(url, token=TOKEN, samples=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_a_workers_own_certificate_is_trusted_when_it_is_named(service: TrainingService, tmp_path: Path, monkeypatch):
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=worker", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run([*command, *names], check=True, capture_output=True, timeout=60)
    with serving(service, ssl_keyfile=key, ssl_certfile=certificate) as url:
        with pytest.raises(ServeError, match="does not answer"):
            reach(url, token=TOKEN)
        monkeypatch.setenv(CA_ENV, certificate)
        assert reach(url, token=TOKEN)["base"] == BASE
        far = remote(url, tiny_learner())
        assert update(far, "sales", [group()]).steps == 1
        far.close()
        monkeypatch.setenv(CA_ENV, str(tmp_path / "nothing.pem"))
        with pytest.raises(ConfigError, match=CA_ENV):
            reach(url, token=TOKEN)
