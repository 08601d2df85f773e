"""`onthejob serve env`: a workplace as an OpenEnv server."""

from __future__ import annotations

import resource
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from onthejob.commands.env_options import EnvOptions, check_parsed, starting
from onthejob.commands.listening import bind, is_loopback, serve, shown_host
from onthejob.commands.named_env import Workplace
from onthejob.commands.terminal import Output, Terminal
from onthejob.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import FastAPI

SPARE_FILES = 256
"""Open files that the server itself needs, in addition to one per connection."""
SPARE_CONNECTIONS = 128
"""Connections besides the sessions: clients that ask over HTTP, or have not sent their request yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    """Serve a workplace under OpenEnv, until interrupted. One episode per WebSocket connection to `/ws`; see docs/openenv.md."""

    workplace: tyro.conf.Positional[str] = "office"
    """Workplace: `office`, `claw`, or an environment of your own, as for `train`. Name it before the options."""
    own: EnvOptions = None
    """Options of the environment; None for its defaults. The claw has one sandbox per connection."""
    host: str = "127.0.0.1"
    """Address to listen on. Only this machine by default; anyone who reaches the port can play."""
    port: int = 8000
    """Port to listen on; 0 takes a free one, which stderr then names."""
    max_sessions: int = 512
    """Connections at the same time; one more gets CAPACITY_REACHED. At least a training batch's episodes."""
    session_timeout_s: float = 3600.0
    """A session without a request for so many seconds is closed; longer than the learner's slowest update."""
    trainer_key_file: Path | None = None
    """File whose one line lets trainers inject states and read snapshots. Without it no client can."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    @classmethod
    def starting(cls, env: str) -> Env:
        """The defaults in workplace `env`."""
        return cls(workplace=env)

    def run(self, terminal: Terminal) -> int:
        """Serve; ends with Ctrl-C."""
        own = starting(self.workplace, "Env") if self.own is None else self.own
        check_parsed(self.workplace, own, "serve env")
        if self.max_sessions < 1:
            raise ConfigError(f"max_sessions must be >= 1, got {self.max_sessions}.")
        place = self.fitted(Workplace(ref=self.workplace, env=own), terminal)
        self.check(place)
        key = None if self.trainer_key_file is None else read_key(self.trainer_key_file)

        from onthejob.compat.openenv import make_app
        from onthejob.compat.served import served

        # Before anything is opened: the process that makes sandboxes inherits the limit.
        allow_files(place.env.open_files * self.max_sessions + SPARE_FILES)
        with bind(self.host, self.port) as held, place.opened():
            app = make_app(
                served(place.env),
                max_sessions=self.max_sessions,
                session_timeout_s=self.session_timeout_s,
                trainer_key=key,
            )
            return self._serve(terminal, app, held)

    def fitted(self, place: Workplace, terminal: Terminal) -> Workplace:
        """The workplace with the options that follow from others."""
        return place

    def check(self, place: Workplace) -> None:
        """Refuse options that cannot work, or have no effect here."""
        place.check()

    def _serve(self, terminal: Terminal, app: FastAPI, held: socket.socket) -> int:
        from onthejob.compat.openenv import server_options

        if is_loopback(self.host):
            from onthejob.api.security import LOOPBACK, OwnPages

            # There is no token: without this any page that the user opens could play, and let a claw's commands run.
            app.add_middleware(OwnPages, hosts={*LOOPBACK, self.host.lower()})  # type: ignore[arg-type]
        else:
            terminal.warn(
                f"other machines can reach {self.host}: anyone who can connect to port {held.getsockname()[1]} can play."
            )

        level = "debug" if self.output.debug else "warning" if self.output.quiet else "info"
        terminal.progress(f"{self.workplace} at http://{shown_host(self.host)}:{held.getsockname()[1]}; Ctrl-C ends it")
        most = self.max_sessions + SPARE_CONNECTIONS
        serve(app, held, self.host, most=most, sessions=self.max_sessions, log_level=level, **server_options())
        return 0


def read_key(path: Path) -> str:
    """The trainer's key in a file."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--trainer-key-file {path} cannot be read: {error}.") from error
    if len(key) < 16 or len(key.splitlines()) != 1:
        raise ConfigError(f"--trainer-key-file {path} must hold one line of at least 16 characters, got {len(key)}.")
    return key


def allow_files(wanted: int) -> None:
    """Raise this process's limit of open files to `wanted`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ConfigError(
            f"{wanted} open files are needed, this system allows {hard}. Lower --max-sessions, or raise `ulimit -Hn`."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
