"""Load on the OpenEnv server: steps/s and latencies at several numbers of connections, and an echo environment in the same run.

Each server is a process of its own on a loopback port; the clients are another one. Every connection sends its next step when
the answer to the last has arrived, so the load is as high as the server lets it be. The echo environment does nothing: what
it reaches is what OpenEnv's transport costs on this machine, and the office is judged against it.

    python benchmarks/openenv_load.py [--connections 32 512 4096] [--seconds 10] [--json]

Ends with 1 when a number misses its target.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass, field
from pathlib import Path

from websockets.asyncio.client import ClientConnection, connect

from onthejob.envs.office.company_state import PAINS

SUBJECTS = ("echo", "office table", "office seat")
FLOOR = {32: 1_500.0, 512: 1_500.0}
"""Connections -> steps/s that the office must reach."""
P99_MS = {32: 60.0}
REPLIES = {
    "ceo": {"action_type": "REVIEW_STRATEGY", "target": ""},
    "dev": {"action_type": "REFACTOR", "target": ""},
    "marketing": {"action_type": "OPTIMIZE_FUNNEL", "target": ""},
    "sales": {"action_type": "UPDATE_PIPELINE", "target": ""},
    "content": {"action_type": "WRITE_SOCIAL_POST", "target": PAINS[0]},
    "hr": {"action_type": "TEAM_SYNC", "target": ""},
}
"""What each role always replies: possible in every state, because a refused step would be a cheap one."""
OPENING = 64
"""Connections that are opened at the same time."""
PATIENCE_S = 120.0


@dataclass
class Measured:
    """One subject at one number of connections."""

    subject: str
    connections: int
    steps: int = 0
    seconds: float = 0.0
    errors: int = 0
    opening_s: float = 0.0
    server_mb: float = 0.0
    """Resident memory of the server while all are connected."""
    latencies_ms: list[float] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """The first few errors."""

    @property
    def rate(self) -> float:
        return self.steps / self.seconds if self.seconds else 0.0

    def percentile(self, share: float) -> float:
        """Latency in milliseconds below which `share` of the steps lie; NaN without steps."""
        if not self.latencies_ms:
            return math.nan
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    @property
    def verdict(self) -> str:
        """What was missed; else whether there was a target besides the absence of errors."""
        aimed = self.subject == "office table" and self.connections in FLOOR
        return "; ".join(self.missed()) or ("yes" if aimed else "no target")

    def missed(self) -> list[str]:
        """Targets that were not reached, in words."""
        found = []
        if self.errors:
            found.append(f"{self.errors} errors: {'; '.join(self.complaints)}")
        if self.steps == 0:
            found.append("no step was answered")
        if self.subject == "office table":
            floor, limit = FLOOR.get(self.connections), P99_MS.get(self.connections)
            if floor is not None and self.rate < floor:
                found.append(f"{self.rate:,.0f} steps/s, wanted {floor:,.0f}")
            if limit is not None and not self.percentile(0.99) < limit:
                found.append(f"p99 {self.percentile(0.99):.1f} ms, wanted < {limit:g}")
        return found


def serve(subject: str, port: int, sessions: int) -> None:
    """The server process."""
    import uvicorn

    from onthejob.compat.openenv import make_app, server_options

    if subject == "echo":
        from openenv.core.env_server.http_server import create_fastapi_app
        from openenv.core.env_server.interfaces import Environment
        from openenv.core.env_server.types import Action, Observation, State

        class Echo(Environment):
            SUPPORTS_CONCURRENT_SESSIONS = True

            def reset(self, seed=None, episode_id=None, **kwargs):
                return Observation(metadata={"said": ""})

            def step(self, action, timeout_s=None, **kwargs):
                return Observation(reward=0.0, metadata={"said": action.metadata.get("say", "")})

            @property
            def state(self):
                return State()

        app = create_fastapi_app(Echo, Action, Observation, max_concurrent_envs=sessions)
    else:
        from onthejob.compat.served import served
        from onthejob.office import Office

        app = make_app(served(Office()), max_sessions=sessions)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", **server_options())


def next_step(subject: str, number: int, answer: dict) -> dict:
    """The frame of connection `number` that follows an answer; after an episode's end it starts the same one again."""
    if answer["data"]["done"]:
        return opening(subject, number)
    if subject == "echo":
        return {"type": "step", "data": {"metadata": {"say": "hello"}}}
    role = answer["data"]["observation"]["current_role"]
    return {"type": "step", "data": {"role": role, "reply": json.dumps(REPLIES[role])}}


def opening(subject: str, number: int) -> dict:
    """The first frame of connection `number`."""
    if subject == "echo":
        return {"type": "reset", "data": {}}
    seat = "*" if subject == "office table" else list(REPLIES)[number % len(REPLIES)]
    return {"type": "reset", "data": {"seed": 1_000 + number, "role": seat}}


async def one(number: int, client: ClientConnection, first: dict, measured: Measured, begin: asyncio.Event) -> None:
    """The loop of connection `number` until the time is up."""
    answer = first
    await begin.wait()
    end = time.perf_counter() + measured.seconds
    try:
        while time.perf_counter() < end:
            frame = next_step(measured.subject, number, answer)
            start = time.perf_counter()
            await client.send(json.dumps(frame))
            answer = json.loads(await asyncio.wait_for(client.recv(), PATIENCE_S))
            if answer["type"] != "observation":
                raise RuntimeError(answer["data"]["message"])
            if not answer["data"]["observation"].get("valid", True):
                raise RuntimeError(answer["data"]["observation"]["error"])
            if frame["type"] == "step":
                measured.latencies_ms.append(1e3 * (time.perf_counter() - start))
                measured.steps += 1
    except Exception as error:
        # Whatever went wrong on this connection is a number of the result, not the end of the measurement.
        complain(measured, error)


def complain(measured: Measured, error: Exception) -> None:
    measured.errors += 1
    if len(measured.complaints) < 3:
        measured.complaints.append(f"{type(error).__name__}: {error}"[:120])


async def load(subject: str, port: int, connections: int, seconds: float, *, server: int) -> Measured:
    """Open all connections, reset them, then step all of them for `seconds`; `server` is the process id."""
    measured = Measured(subject=subject, connections=connections, seconds=seconds)
    gate, begin = asyncio.Semaphore(OPENING), asyncio.Event()
    clients: list[ClientConnection] = []

    async def enter(number: int) -> tuple[int, ClientConnection, dict] | None:
        async with gate:
            try:
                client = await connect(
                    f"ws://127.0.0.1:{port}/ws", proxy=None, open_timeout=PATIENCE_S, ping_interval=None, compression=None
                )
                clients.append(client)
                await client.send(json.dumps(opening(subject, number)))
                answer = json.loads(await asyncio.wait_for(client.recv(), PATIENCE_S))
                if answer["type"] != "observation":
                    raise RuntimeError(answer["data"]["message"])
                return number, client, answer
            except Exception as error:
                complain(measured, error)
                return None

    start = time.perf_counter()
    entered = await asyncio.gather(*(enter(number) for number in range(connections)))
    measured.opening_s = time.perf_counter() - start
    tasks = [asyncio.create_task(one(*each, measured, begin)) for each in entered if each is not None]
    start = time.perf_counter()
    begin.set()
    await asyncio.gather(*tasks)
    measured.seconds = time.perf_counter() - start
    measured.server_mb = resident_mb(server)
    await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)
    return measured


def measure(subject: str, connections: int, seconds: float) -> Measured:
    """Start a server, load it, stop it."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, "--serve", subject, "--port", str(port), "--connections", str(connections)]
    server = subprocess.Popen(command)
    try:
        wait_for(port, server)
        measured = asyncio.run(load(subject, port, connections, seconds, server=server.pid))
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    return measured


def wait_for(port: int, server: subprocess.Popen) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + 10 * PATIENCE_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with {server.returncode}")
        try:
            with opener.open(f"http://127.0.0.1:{port}/health", timeout=10):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit("the server did not start")


def resident_mb(pid: int) -> float:
    """Resident memory of a process, in MB; 0 where the system does not tell."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0


def table(results: list[Measured]) -> str:
    lines = [
        "| server | connections | steps/s | p50 ms | p99 ms | max ms | opening s | errors | server MB | met |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for m in results:
        latencies = [f"{m.percentile(share):.1f}" for share in (0.5, 0.99, 1.0)]
        cells = [m.subject, f"{m.connections:,}", f"{m.rate:,.0f}", *latencies, f"{m.opening_s:.1f}", str(m.errors)]
        lines.append(f"| {' | '.join(cells)} | {m.server_mb:,.0f} | {m.verdict} |")
    return "\n".join(lines)


def report(m: Measured) -> dict:
    """One row for --json."""
    row = {key: value for key, value in asdict(m).items() if key != "latencies_ms"}
    shares = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}
    return row | {"rate": m.rate, "missed": m.missed()} | {name: m.percentile(share) for name, share in shares.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, nargs="+", default=[32, 512, 4096])
    parser.add_argument("--seconds", type=float, default=10.0, help="of stepping, per row")
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", choices=SUBJECTS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if min(arguments.connections) < 1 or not arguments.seconds > 0:
        parser.error(f"connections must be >= 1 and seconds > 0, got {arguments.connections} and {arguments.seconds}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(arguments.connections) + 256
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            parser.error(f"{wanted} open files are needed, this system allows {hard}: use fewer connections")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if arguments.serve:
        serve(arguments.serve, arguments.port, arguments.connections[0])
        return 0
    # Ended from outside, it must still stop its server.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = [measure(s, n, arguments.seconds) for n in arguments.connections for s in arguments.subjects]
    print(json.dumps([report(m) for m in results], indent=2) if arguments.json else table(results))
    return 1 if any(m.missed() for m in results) else 0


if __name__ == "__main__":
    sys.exit(main())
