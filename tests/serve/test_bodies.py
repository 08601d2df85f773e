"""No route of any server answers a body that is JSON to Python alone, or to no reader, with a failure of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from onthejob.api.app import create_app
from onthejob.serve.trainer import TrainingService
from onthejob.serve.trainer_http import make_app

from .test_trainer import BASE, TOKEN, tiny_learner

BODIES = [
    b'{"a": NaN}', b'{"a": Infinity}', b"[-Infinity]", b'{"a": 1e400}', b"[-1e999]", b'{"a": "\\ud800"}', b'{"\\udfff": 1}',
    b'"\xed\xa0\x80"', b"\xff\xfe{}", b"[" * 5_000, b"9" * 6_000, b"{", b'{"action": {"reply": NaN}}', b'{"seed": 1e400}',
]  # fmt: skip


@pytest.fixture(scope="module", params=["view", "env", "trainer"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client that may do everything; failures of the server are answers."""
    folder = tmp_path_factory.mktemp(request.param)
    app, headers = {"view": view, "env": env, "trainer": trainer}[request.param](folder)
    with TestClient(app, headers=headers, raise_server_exceptions=False) as made:
        yield made


def view(folder: Path) -> tuple[FastAPI, dict[str, str]]:
    return create_app(token=TOKEN, hosts=("testserver",), runs=folder, pages=folder), {"x-onthejob-token": TOKEN}


def env(_: Path) -> tuple[FastAPI, dict[str, str]]:
    openenv = pytest.importorskip("onthejob.compat.openenv")
    from onthejob.compat.served import served
    from onthejob.office import Office

    return openenv.make_app(served(Office()), max_sessions=2), {}


def trainer(folder: Path) -> tuple[FastAPI, dict[str, str]]:
    service = TrainingService(tiny_learner().model, folder=folder, base_digest=BASE)
    return make_app(service, token=TOKEN), {"authorization": f"Bearer {TOKEN}"}


def routes(client: TestClient) -> list[tuple[str, str]]:
    """Method and path of everything that may be asked with a body."""
    app: Any = client.app
    described = {(name.upper(), path) for path, named in app.openapi()["paths"].items() for name in named}
    own = {(name, route.path) for route in app.routes if isinstance(route, APIRoute) for name in route.methods or ()}
    return sorted((method, path) for method, path in described | own if method in {"POST", "PUT", "PATCH", "DELETE"})


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_odd_bodies_are_refused_and_no_failure(client: TestClient, body: bytes):
    asked = routes(client)
    assert len(asked) >= 2
    for method, path in asked:
        address = path.replace("{", "").replace("}", "")
        for kind in ("application/json", "text/plain"):
            answer = client.request(method, address, content=body, headers={"content-type": kind})
            refused = 400 <= answer.status_code < 500 or "error" in answer.json()  # as JSON-RPC says it
            assert refused, (method, path, answer.status_code, answer.text)
            assert answer.json()
