"""The viewer's server in a process of its own, as `onthejob view` runs it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TOKEN = "t" * 24

SERVE = """
import sys
from pathlib import Path
import uvicorn
from onthejob.api.app import create_app
from onthejob.api.schema_office import Reset
from onthejob.commands.recorded_work import opened_work
runs, port, token = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
first = Reset.model_validate({"seed": 1003, "days": 6, "pace_s": 0, "playing": True, "seats": {"sales": "expert"}})
app = create_app(token=token, runs=runs, default=first, open_work=opened_work)
uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", ws="websockets-sansio")
"""


@contextmanager
def served(runs: Path) -> Iterator[str]:
    """Address of a server that plays six days and shows the runs of this folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", SERVE, str(runs), str(port), TOKEN])
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"{url}/api/config", timeout=5):
                    break
            except OSError:
                assert process.poll() is None, "the server ended"
                time.sleep(0.1)
        yield url
        assert process.poll() is None, "the server ended"
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=20)
