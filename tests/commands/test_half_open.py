"""300 half-open connections against each server with 300 file descriptors: others are served, log and memory stay small."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import resource
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from websockets.sync.client import connect

from onthejob.serve.connections import REQUEST_S
from onthejob.serve.supervisor import free_port
from onthejob.testing import tiny_model

from ..serve.half_open import UNFINISHED

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(1_200)]

DESCRIPTORS = 300
COUNT = 300
HOST = b"host: 127.0.0.1\r\n"
LONG = HOST + b"content-length: 100000\r\n\r\n" + b"x" * 60_000
SILENT = (
    HOST + b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
BEGINNINGS = (
    *UNFINISHED.values(),
    *(b"POST %s HTTP/1.1\r\n" % path + LONG for path in (b"/train", b"/api/step", b"/reset", b"/mcp")),
    *(b"GET %s HTTP/1.1\r\n" % path + SILENT for path in (b"/ws", b"/ws/live")),
)
"""Beginnings of requests, and WebSockets that say nothing."""
TRAINER = ("serve", "trainer", "--roles", "ceo", "--lora.rank", "2", "--model.dtype", "float32")
COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "env": (("serve", "env", "--max-sessions", "32"), "/health"),
    "claw": (("serve", "env", "claw", "--max-sessions", "4"), "/health"),
    "trainer": (TRAINER, "/health"),
    "trainer with TLS": (TRAINER, "/health"),
    "view": (("view", "--no-open", "--env.days", "1"), "/api/config"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server as a process of its own."""

    process: subprocess.Popen[bytes]
    port: int
    path: str
    """What it answers with 200."""
    tls: bool
    log: Path
    """All that it writes."""

    def asked(self) -> float:
        """Seconds that one request took over a connection of its own."""
        began = time.monotonic()
        context = ssl._create_unverified_context()
        made = (
            http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=context)
            if self.tls
            else http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        )
        with contextlib.closing(made) as connection:
            connection.request("GET", self.path)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
        return time.monotonic() - began

    @property
    def resident(self) -> int:
        """Bytes of its memory."""
        return int(re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())[0]) << 10

    @property
    def descriptors(self) -> int:
        """Descriptors that it holds."""
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/fd").iterdir())


class Siege:
    """`COUNT` connections at any time, each with a beginning and then a byte now and again; what is closed is made again."""

    def __init__(self, port: int) -> None:
        self._port, self._made = port, 0
        self._over = threading.Event()
        self._sockets = [self._begun() for _ in range(COUNT)]
        self._thread = threading.Thread(target=self._drip)
        self._thread.start()

    def end(self) -> int:
        """Leave; how many connections were made in all."""
        self._over.set()
        self._thread.join(60)
        for one in self._sockets:
            one.close()
        return self._made

    def _begun(self) -> socket.socket:
        one = socket.create_connection(("127.0.0.1", self._port), timeout=60)
        with contextlib.suppress(OSError):  # it may have made way already
            one.sendall(BEGINNINGS[self._made % len(BEGINNINGS)])
        one.settimeout(0.0)
        self._made += 1
        return one

    def _drip(self) -> None:
        while not self._over.wait(1.0):
            for number, one in enumerate(self._sockets):
                try:
                    if number % 2:  # the other half is silent
                        one.send(b"x")
                    if one.recv(65_536):
                        continue
                except BlockingIOError:
                    continue
                except OSError:
                    pass
                one.close()
                self._sockets[number] = self._begun()


def few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


def certificate(folder: Path) -> tuple[str, ...]:
    """Options with a certificate and its key."""
    key, chain = str(folder / "key.pem"), str(folder / "cert.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=worker", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", chain]
    subprocess.run([*command, *names], check=True, capture_output=True, timeout=60)
    return "--tls-cert", chain, "--tls-key", key


@contextlib.contextmanager
def running(name: str, folder: Path) -> Iterator[Served]:
    """The command as a process with few descriptors."""
    words, path = COMMANDS[name]
    port, tls = free_port(), name.endswith("TLS")
    if words == TRAINER:
        tiny = tiny_model(words=["deal"])
        tiny.model.save_pretrained(folder / "base")
        tiny.tokenizer.save_pretrained(folder / "base")
        words = (*words, "--model.name", str(folder / "base"), "--files", str(folder / "worker"))
    words += certificate(folder) if tls else ()
    environ = {
        **os.environ,
        "ONTHEJOB_TRAINER_TOKEN": "0" * 32,
        "ONTHEJOB_CACHE": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "onthejob.cli", *words, "--port", str(port)],
            cwd=folder, env=environ, stdout=log, stderr=log, preexec_fn=few_files,
        )  # fmt: skip
    served = Served(process=process, port=port, path=path, tls=tls, log=folder / "log")
    try:
        while True:
            assert process.poll() is None, served.log.read_text()
            with contextlib.suppress(OSError, http.client.HTTPException):
                served.asked()
                break
            time.sleep(0.5)
        yield served
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
@pytest.mark.parametrize("name", COMMANDS)
def test_others_are_served_while_hundreds_never_finish_a_request(name: str, tmp_path: Path):
    with running(name, tmp_path) as served:
        before = served.resident
        took, resident, held = [], [], []
        siege = Siege(served.port)
        try:
            until = time.monotonic() + REQUEST_S + 5  # past the deadline of the first
            while time.monotonic() < until or len(took) < 15:
                took.append(served.asked())
                resident.append(served.resident)
                held.append(served.descriptors)
                time.sleep(1.0)
        finally:
            made = siege.end()
        said = f"{made} connections, seconds {took}, bytes {before} to {max(resident)}, at most {max(held)} descriptors"
        assert made >= COUNT
        assert 120 < max(held) <= DESCRIPTORS, said
        # A busy machine may delay some of them; a server without descriptors answers none.
        assert statistics.median(took) < 1.0, said
        assert max(resident) - before < (100 if served.tls else 50) << 20, said  # asyncio's buffer for TLS is of 256 KiB
        assert served.asked() < 60
        said = served.log.read_text()
        assert len(said) < 100_000
        assert "Traceback" not in said, said


def test_a_claw_at_work_ends_with_its_server(tmp_path: Path):
    with running("claw", tmp_path) as served, connect(f"ws://127.0.0.1:{served.port}/ws", proxy=None) as session:
        session.send(json.dumps({"type": "reset", "data": {}}))
        assert json.loads(session.recv(120))["type"] == "observation"
        session.send(json.dumps({"type": "step", "data": {"reply": "```bash\nsleep 60\n```"}}))
        time.sleep(2)
        began = time.monotonic()
        served.process.terminate()
        served.process.wait(60)
        assert time.monotonic() - began < 6
        assert "Traceback" not in served.log.read_text()
