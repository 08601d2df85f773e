"""Does a browser that never reads slow the company down? Time of an episode of 420 turns with and without such clients.

A server process plays as fast as the players think. Clients open `/ws/live`, complete the handshake over a socket with the
smallest receive buffer, and never read a byte. Rounds with and without them alternate, so that a busy machine is fair to both.

    python benchmarks/viewer_feed.py [--clients 16 60] [--rounds 5] [--json]

Ends with 1 when the median with clients is more than 1.5 times that without.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from typing import Any

TOKEN = "benchmark-token-0123456789"
TURNS = 420
LIMIT = 1.5
"""Times the median without clients."""
SERVE = """
import sys
import uvicorn
from onthejob.api.app import create_app
app = create_app(token=sys.argv[2])
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", ws="websockets-sansio", ws_max_size=65_536)
"""


def main() -> int:
    """Measure, print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[16, 60], help="in addition to 0, which is always measured")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.rounds < 1 or min(options.clients) < 1 or max(options.clients) > 64:
        parser.error(f"rounds must be >= 1 and clients in 1..64, got {options.rounds} and {options.clients}.")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-c", SERVE, str(port), TOKEN])
    try:
        wait(server, port)
        found: dict[int, list[float]] = {count: [] for count in (0, *options.clients)}
        for _ in range(options.rounds):
            for count in found:
                found[count].append(episode(port, count))
    finally:
        server.terminate()
        server.wait(timeout=60)
    return report(found, as_json=options.json)


def episode(port: int, clients: int) -> float:
    """Seconds of one episode while `clients` never read."""
    silent = [connect(port) for _ in range(clients)]
    try:
        body = {"days": TURNS // 14, "seed": 1_000, "pace_s": 0, "playing": True}
        started = time.perf_counter()
        ask(port, "reset", body)
        while not ask(port, "config")["worlds"][0]["done"]:
            time.sleep(0.01)
        return time.perf_counter() - started
    finally:
        for one in silent:
            one.close()


def connect(port: int) -> socket.socket:
    """A WebSocket whose answers are never read, beyond the handshake's status line."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1_024)
    made.connect(("127.0.0.1", port))
    key = base64.b64encode(os.urandom(16)).decode()
    head = (
        f"GET /ws/live HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    made.sendall(head.encode())
    status = made.recv(12)
    if b" 101" not in status:
        raise RuntimeError(f"the server refused a client: {status!r}")
    return made


def ask(port: int, path: str, body: Any = None) -> Any:
    """One request to the API."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/{path}")
    if body is not None:
        request.data = json.dumps(body).encode()
        request.headers.update({"X-onthejob-token": TOKEN, "Content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def wait(server: subprocess.Popen[bytes], port: int) -> None:
    """Until the server answers."""
    for _ in range(1_200):
        try:
            ask(port, "config")
            return
        except OSError:
            if server.poll() is not None:
                raise SystemExit("the server ended") from None
            time.sleep(0.1)
    raise SystemExit("the server does not answer")


def report(found: dict[int, list[float]], *, as_json: bool) -> int:
    """Print; 1 when clients that never read cost too much."""
    base = statistics.median(found[0])
    rows = [
        {
            "clients": count,
            "median_s": statistics.median(seconds),
            "lowest_s": min(seconds),
            "highest_s": max(seconds),
            "ratio": statistics.median(seconds) / base,
        }
        for count, seconds in found.items()
    ]
    if as_json:
        print(json.dumps(rows))
    else:
        print("clients that never read | s for 420 turns, median (lowest to highest) | ratio")
        for row in rows:
            spread = f"{row['median_s']:.2f} ({row['lowest_s']:.2f} to {row['highest_s']:.2f})"
            print(f"{row['clients']:>23} | {spread} | {row['ratio']:.2f}")
    return 1 if max(row["ratio"] for row in rows) > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
