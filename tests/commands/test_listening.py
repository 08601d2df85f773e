"""One socket per server command: refused early and by name, released at the end."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from onthejob.cli import main
from onthejob.commands.listening import bind, is_loopback, listen, serve
from onthejob.errors import ConfigError, ServeError
from onthejob.serve.server import PYTHON_ENV


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which this process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("serve", "env"), "--port"),
        (("serve", "env", "claw"), "--port"),
        (("serve", "trainer", "--model.name", "/nowhere"), "--port"),
        (("serve", "trainer", "--model.name", "/nowhere", "--port", "0", "--serve-model"), "--server.port"),
        (("serve", "model", "--model.name", "/nowhere"), "--server.port"),
        (("view", "--no-open"), "--port"),
    ],
)
def test_a_busy_port_is_a_usage_error_before_anything_is_loaded(
    words: tuple[str, ...], flag: str, taken: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("ONTHEJOB_TRAINER_TOKEN", "0123456789abcdef")
    monkeypatch.setenv(PYTHON_ENV, sys.executable)
    assert main([*words, flag, str(taken), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert str(taken) in said
    assert flag in said
    assert "nowhere" not in said, "the model must not have been looked for"


def test_a_system_exit_of_a_library_is_a_failure_and_no_converged_pool(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from onthejob.commands import doctor

    def leave(self: object, terminal: object) -> int:
        raise SystemExit(3)

    monkeypatch.setattr(doctor.Doctor, "run", leave)
    assert main(["doctor"]) == 1
    assert "exit code 3" in capsys.readouterr().err


def test_an_address_is_held_before_it_listens():
    with bind("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        listen(held, "127.0.0.1")
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        with pytest.raises(ConfigError, match="Choose another --port"):
            bind("127.0.0.1", port)
    bind("127.0.0.1", port).close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_a_foreign_host_is_no_matter_of_the_port(host: str):
    with pytest.raises(ConfigError, match="Choose another --host"):
        bind(host, 0)


def test_an_application_that_does_not_start_is_a_failure():
    async def broken(app: FastAPI):
        raise RuntimeError("no database")
        yield

    from contextlib import asynccontextmanager

    app = FastAPI(lifespan=asynccontextmanager(broken))
    with pytest.raises(ServeError, match="did not start"):
        serve(app, bind("127.0.0.1", 0), "127.0.0.1", log_level="critical")


@pytest.mark.parametrize(
    ("host", "is_local"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a.b", False)]
)
def test_loopback(host: str, is_local: bool):
    assert is_loopback(host) is is_local


@pytest.mark.parametrize("more", [(), ("--smoke",), ("--sampler", "worker", "--model.device", "meta")])
def test_an_unreachable_worker_is_named_before_anything_is_loaded(
    more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    monkeypatch.setenv("ONTHEJOB_TRAINER_TOKEN", "0123456789abcdef")
    monkeypatch.chdir(tmp_path)
    with bind("127.0.0.1", 0) as held:
        url = f"https://127.0.0.1:{held.getsockname()[1]}"
        assert main(["train", "--trainer", url, "--model.name", "/nowhere", *more]) == 1
    said = capsys.readouterr().err
    assert f"connecting to the training worker at {url}" in said
    assert "does not answer (ConnectError: [Errno 111] Connection refused)" in said
    assert "onthejob serve trainer" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["https://gpu:port", "https://", "gpu.example:8100"])
def test_an_address_that_is_no_url_is_a_usage_error(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("ONTHEJOB_TRAINER_TOKEN", "0123456789abcdef")
    assert main(["train", "--trainer", url, "--model.name", "/nowhere"]) == 2
    assert url in capsys.readouterr().err


def test_a_certificate_is_read_before_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("ONTHEJOB_TRAINER_TOKEN", "0123456789abcdef")
    file = tmp_path / "cert.pem"
    file.write_text("not a certificate", encoding="ascii")
    words = ("serve", "trainer", "--port", "0", "--model.name", "/nowhere")
    for certificate in (file, tmp_path / "none.pem"):
        assert main([*words, "--tls-cert", os.fspath(certificate), "--tls-key", os.fspath(file)]) == 2
        assert "PEM" in capsys.readouterr().err
