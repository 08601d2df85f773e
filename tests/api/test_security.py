"""Who may ask and who may change something."""

from __future__ import annotations

import pytest
from fastapi import FastAPI, WebSocket
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from onthejob.api.app import create_app
from onthejob.api.security import LOOPBACK, MAX_BODY, OwnPages

from .conftest import TOKEN

FOREIGN_HOSTS = ["evil.example", "testserver.evil.example", "127.0.0.1", "testserver@evil.example", "", "[::1", "[::1]:80:90"]
NAVIGATION = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
"""Of a link that a user follows."""
FOREIGN_ORIGINS = [
    "http://evil.example",
    "null",
    "https://testserver.evil.example",
    "http://testserver:81",
    "file://",
    "http://[",
]


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
@pytest.mark.parametrize("path", ["/api/config", "/", "/api/openapi.json"])
def test_foreign_hosts_are_refused(client: TestClient, host: str, path: str):
    assert client.get(path, headers={"host": host}).status_code == 403


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
def test_pages_of_another_origin_are_refused(client: TestClient, origin: str):
    assert client.post("/api/undo", json={}, headers={"origin": origin}).status_code == 403
    assert client.get("/api/config", headers={"origin": origin}).status_code == 403
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/ws/live", headers={"origin": origin}):
        pass


def test_a_foreign_host_gets_no_live_feed(client: TestClient):
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/ws/live", headers={"host": "evil.example"}):
        pass


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "https://evil.example"}])
def test_a_server_without_a_token_is_played_by_no_strange_page(headers: dict[str, str]):
    app = FastAPI()

    @app.get("/")
    def said() -> str:
        return "here"

    @app.websocket("/ws")
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("here")
        await socket.close()

    app.add_middleware(OwnPages, hosts=["testserver"])
    client = TestClient(app)
    assert client.get("/").status_code == client.get("/", headers={"origin": "http://testserver"}).status_code == 200
    assert client.get("/", headers=headers).status_code == 403
    with client.websocket_connect("/ws") as socket:
        assert socket.receive_text() == "here"
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/ws", headers=headers) as socket:
        socket.receive_text()


@pytest.mark.parametrize("path", ["reset", "step", "undo", "reconfigure", "branches", "suggest"])
@pytest.mark.parametrize("token", ["", "wrong", "a-token-for-tests-012", "tökén"])
def test_changes_need_the_token(client: TestClient, path: str, token: str):
    before = client.get("/api/config").json()["worlds"]
    refused = client.post(f"/api/{path}", json={}, headers={"x-onthejob-token": token.encode()})
    assert refused.status_code == 401
    assert client.get("/api/config").json()["worlds"] == before


@pytest.mark.parametrize("site", ["cross-site", "same-site", "CROSS-SITE", "", "unknown"])
@pytest.mark.parametrize("path", ["/api/config", "/api/state", "/api/export", "/api/runs", "/ws/live"])
@pytest.mark.parametrize("mode", [{}, NAVIGATION, {"sec-fetch-mode": "no-cors"}], ids=["bare", "navigation", "no-cors"])
def test_a_page_of_another_site_has_nothing_read(client: TestClient, site: str, path: str, mode: dict[str, str]):
    assert client.get(path, headers={"sec-fetch-site": site, **mode}).status_code == 403


def test_a_link_on_another_site_opens_the_page(client: TestClient):
    link = {"sec-fetch-site": "cross-site", **NAVIGATION}
    assert client.get("/", headers=link).status_code != 403
    assert client.get("/", headers=link | {"sec-fetch-dest": "iframe"}).status_code == 403
    for site in ("same-origin", "none"):
        assert client.get("/api/config", headers={"sec-fetch-site": site}).status_code == 200


@pytest.mark.parametrize("host", ["192.168.1.7", "10.0.0.2:8080", "[fd00::2]:8080", "127.0.0.1:8080", "localhost", "[::1]"])
@pytest.mark.parametrize("listens", ["0.0.0.0", "::"])
def test_a_server_on_all_addresses_is_asked_by_any_of_them(host: str, listens: str):
    app = create_app(token=TOKEN, hosts=(*LOOPBACK, listens, "Workstation"))
    client = TestClient(app, headers={"host": host})
    assert client.get("/api/config").status_code == 200
    assert client.get("/api/config", headers={"host": "workstation:8080"}).status_code == 200
    for name in ("evil.example", "192.168.1.7.evil.example", "1.2.3", ""):
        assert client.get("/api/config", headers={"host": name}).status_code == 403
    only = TestClient(create_app(token=TOKEN), headers={"host": "192.168.1.7"})
    assert only.get("/api/config").status_code == 403


@pytest.mark.parametrize(
    "body",
    [
        b'{"pace_s": NaN}', b'{"pace_s": Infinity}', b'{"pace_s": 1e400}', b'{"pace_s": -1e999}', b'{"human": "\\ud800"}',
        b'{"\\udfff": 1}', b'{"human": "\xed\xa0\x80"}', b"\xff\xfe", b"[" * 10_000, b"9" * 6_000, b'{"pace_s": "x"}', b"{",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_a_body_that_is_not_json_is_refused_and_no_failure(client: TestClient, body: bytes, kind: str):
    answer = client.post("/api/reconfigure", content=body, headers={"content-type": kind})
    assert answer.status_code == 422, answer.text
    assert answer.json()["detail"]


def test_a_page_of_another_site_cannot_change_anything_without_an_origin(client: TestClient):
    assert client.post("/api/undo", json={}, headers={"sec-fetch-site": "cross-site"}).status_code == 403


def test_large_and_unmeasured_bodies_are_refused(client: TestClient):
    assert client.post("/api/step", content=b"x" * (MAX_BODY + 1)).status_code == 413
    assert client.post("/api/step", content=iter([b"{}"])).status_code == 413


def test_every_answer_carries_the_policy(client: TestClient):
    for answer in (
        client.get("/api/config"),
        client.get("/"),
        client.get("/api/nothing"),
        client.get("/", headers={"host": "x"}),
    ):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_our_own_page_is_served(client: TestClient):
    own = {"origin": "http://testserver"}
    assert client.post("/api/reconfigure", json={"pace_s": 1.0}, headers=own).status_code == 200
