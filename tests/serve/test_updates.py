"""An update that runs can be cancelled, ends with its worker, and its client receives that either way."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from fastapi.responses import Response

from onthejob.errors import ConfigError, ServeError, TrainingError
from onthejob.learn.learner import LearnerConfig
from onthejob.serve.bounds import MOST_PASSES
from onthejob.serve.jobs import Jobs
from onthejob.serve.messages import TrainRequest
from onthejob.serve.trainer import TrainingService
from onthejob.serve.trainer_http import make_app

from ..learn.conftest import update
from .test_trainer import BASE, TOKEN, dead, group, listening, remote, request_for, serving, tiny_learner

LONG = {"lr": 1e-6, "epochs": MOST_PASSES}


@pytest.fixture
def service(tmp_path: Path) -> TrainingService:
    return TrainingService(tiny_learner().model, folder=tmp_path / "worker", base_digest=BASE)


def long_request(service: TrainingService, number: int = 0) -> TrainRequest:
    """An update of minutes; each number is another one."""
    return request_for(tiny_learner(), service).model_copy(update={"config": LONG | {"lr": 1e-6 * (1 + number)}})


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def rows(service: TrainingService) -> list[tuple[str, str]]:
    with sqlite3.connect(service.folder / "jobs.sqlite") as db:
        return db.execute("SELECT key, state FROM jobs ORDER BY key").fetchall()


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(work()))
    thread.start()
    return thread, made


@pytest.mark.parametrize("waiting", [0, 2])
def test_a_running_update_is_cancelled_and_the_next_is_made(service: TrainingService, waiting: int):
    """Also with others in the queue, which are cancelled there."""
    with serving(service) as url, httpx.Client(base_url=url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=120) as http:
        requests = [long_request(service, number) for number in range(1 + waiting)]
        asked = [in_thread(partial(http.post, "/train", content=request.model_dump_json())) for request in requests]
        until(lambda: len(http.get("/jobs").json()["jobs"]) == 1 + waiting and http.get("/health").json()["busy"])
        listed = http.get("/jobs").json()["jobs"]
        assert {job["key"] for job in listed} == {request.key() for request in requests}
        assert {job["role"] for job in listed} == {"sales"}
        for job in reversed(listed):
            assert http.delete(f"/jobs/{job['key']}").json() == {"ended": True}
        for thread, answers in asked:
            thread.join(120)
            last = json.loads(answers[0].text.splitlines()[-1])
            assert last["event"] == "failed"
            assert "cancelled" in last["error"]
        assert http.get("/jobs").json() == {"jobs": []}
        assert service.updates == 0
        again = http.post("/train", content=requests[0].model_dump_json())
        assert "cancelled" in json.loads(again.text)["error"], "asked again it is not begun again"
        done = http.post("/train", content=request_for(tiny_learner(), service).model_dump_json())
        assert json.loads(done.text.splitlines()[-1])["event"] == "done"


def test_what_a_cancelled_update_left_behind_changes_no_other(service: TrainingService, tmp_path: Path):
    request = long_request(service)
    thread, _ = in_thread(lambda: list(service.train(request)))
    until(lambda: service.busy)
    assert service.cancel(service.under_way()[0]["key"])
    thread.join(120)
    fresh = TrainingService(tiny_learner().model, folder=tmp_path / "fresh", base_digest=BASE)
    ends = [list(one.train(request_for(tiny_learner(), one)))[-1] for one in (service, fresh)]
    assert ends[0]["state"] == ends[1]["state"]


def test_a_run_is_told_that_its_update_was_cancelled(service: TrainingService):
    with serving(service) as url:
        far = remote(url, tiny_learner(LearnerConfig(**LONG)))

        def refused() -> str:
            with pytest.raises(TrainingError) as raised:
                update(far, "sales", [group()])
            return str(raised.value)

        thread, told = in_thread(refused)
        until(lambda: service.busy)
        service.cancel(service.under_way()[0]["key"])
        thread.join(120)
        far.close()
    assert "cancelled" in told[0]
    assert "--resume" in told[0]


@pytest.mark.parametrize("key", ["0" * 64, "x", "..", "%2e%2e%2fjobs", "a" * 2_000])
def test_an_update_that_is_not_under_way_is_not_cancelled(service: TrainingService, key: str):
    with serving(service) as url, httpx.Client(base_url=url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=60) as http:
        assert http.delete(f"/jobs/{key}").status_code in (400, 404, 405)
        list(service.train(request_for(tiny_learner(), service)))
        answer = http.delete(f"/jobs/{request_for(tiny_learner(), service).key()}")
        assert answer.status_code == 400
        assert "under way" in answer.json()["error"]
        assert service.updates == 1


def test_a_cancelled_update_is_made_by_a_worker_that_is_started_afterwards(tmp_path: Path):
    from onthejob.serve.jobs import boot_of, identity

    first = Jobs(tmp_path / "jobs.sqlite", owner=dead(boot_of(identity()), 1))
    first.claim("k")
    first.fail("k", "it was cancelled there", cancelled=True)
    job = Jobs(tmp_path / "jobs.sqlite").claim("k")
    assert (job.state, job.attempt) == ("claimed", 1)


@pytest.mark.parametrize("count", [1, 3])
def test_the_end_of_a_worker_gives_its_updates_back(service: TrainingService, count: int):
    # Made one by one: PEFT silences warnings while it attaches adapters, for all threads.
    requests = [long_request(service, number) for number in range(count)]
    asked = [in_thread(lambda request=request: list(service.train(request))) for request in requests]
    until(lambda: len(service.under_way()) == count and service.busy)
    service.close()
    for thread, events in asked:
        thread.join(120)
        assert events[0][-1]["event"] == "stopped"
    until(lambda: not service.under_way())
    assert rows(service) == [], "none counts as an attempt"
    with pytest.raises(ServeError, match="about to end"):
        next(service.train(long_request(service)))
    assert rows(service) == []
    with pytest.raises(ConfigError, match="under way"):
        service.cancel("0" * 64)


ODD = {
    "no JSON": b"<html>gateway</html>\n",
    "a list": b"[1]\n",
    "a number too long": b"9" * 6_000 + b"\n",
    "deep": b"[" * 100_000 + b"\n",
    "no state": b'{"event": "done"}\n',
    "no metrics": b'{"event": "done", "state": "x"}\n',
    "foreign metrics": b'{"event": "done", "state": "x", "metrics": {"a": 1}}\n',
}


@pytest.mark.parametrize("kind", ODD)
def test_an_answer_that_is_none_is_named(service: TrainingService, kind: str):
    app = make_app(service, token=TOKEN)
    app.router.routes = [route for route in app.router.routes if getattr(route, "path", "") != "/train"]
    app.post("/train")(lambda: Response(ODD[kind]))
    with listening(app) as url:
        far = remote(url, tiny_learner())
        before = far.export_state("sales")
        with pytest.raises(ServeError, match="the training worker"):
            update(far, "sales", [group()])
        assert all(torch.equal(before[name], tensor) for name, tensor in far.export_state("sales").items())
        far.close()
