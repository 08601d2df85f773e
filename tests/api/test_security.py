"""Who may ask and who may change something."""

from __future__ import annotations

import pytest
from fastapi import FastAPI, WebSocket
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from onthejob.api.security import MAX_BODY, OwnPages

FOREIGN_HOSTS = ["evil.example", "testserver.evil.example", "127.0.0.1", "testserver@evil.example", "", "[::1", "[::1]:80:90"]
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
