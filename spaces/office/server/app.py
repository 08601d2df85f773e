"""The application of the office's package: `python -m server.app`, or `uvicorn server.app:app`.

MAX_CONCURRENT_ENVS limits the sessions (default 512). ONTHEJOB_TRAINER_KEY, a Space's secret of at least 16 characters, lets
trainers who show it inject states.
"""

from __future__ import annotations

import argparse
import os

from onthejob.compat.openenv import make_app, server_options
from onthejob.compat.served_office import served_office
from onthejob.errors import ConfigError


def sessions() -> int:
    """How many sessions are allowed at the same time."""
    given = os.environ.get("MAX_CONCURRENT_ENVS", "512")
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(f"MAX_CONCURRENT_ENVS must be a whole number >= 1, got {given!r}.")
    return int(given)


app = make_app(served_office(), max_sessions=sessions(), trainer_key=os.environ.get("ONTHEJOB_TRAINER_KEY"))


def main() -> None:
    """Serve until stopped."""
    import uvicorn

    parser = argparse.ArgumentParser(description="Serve the office under OpenEnv.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    uvicorn.run(app, host=arguments.host, port=arguments.port, **server_options())


if __name__ == "__main__":
    main()
