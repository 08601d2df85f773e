"""`onthejob serve model` (vLLM with every role's adapter) and `onthejob serve trainer` (updates for runs on other machines)."""

from __future__ import annotations

import signal
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from onthejob.commands.listening import bind, is_loopback, serve, shown_host
from onthejob.commands.player_specs import ModelOptions, adapters_folder, load_model
from onthejob.commands.terminal import Output, Terminal, table
from onthejob.envs.declared import ROLE
from onthejob.envs.office.env import SEATS
from onthejob.errors import ConfigError
from onthejob.learn.lora import LoraSpec
from onthejob.plugins import BUILT_IN, resolve
from onthejob.serve.server import ServerConfig, check_start
from onthejob.types import Adapter, Completion, Sampling

if TYPE_CHECKING:
    from peft import PeftModel

    from onthejob.models.chat import ChatEncoder
    from onthejob.serve.freed import Freed
    from onthejob.serve.messages import SampleRequest
    from onthejob.serve.publish import Publisher
    from onthejob.serve.server import ModelServer
    from onthejob.serve.vllm import VllmClient

SERVER_FILES = Path("runs/server")
WORKER_FILES = Path("runs/worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The language model that vLLM loads; in what dtype and on which device is said by --server."""

    name: str = ModelOptions().name
    """As for `onthejob model fetch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Serve the base model and adapters with vLLM on this machine's loopback, until interrupted; every adapter is checked first.

    vLLM loads adapters for anyone who reaches its port: never forward it. See docs/serving.md for its installation.
    """

    adapters: tyro.conf.Positional[str] = ""
    """A run or a folder of adapters; the newest of every role is served as `role@version`. Nothing serves the base alone."""
    model: Served = field(default_factory=Served)
    """The base model."""
    server: ServerConfig = field(default_factory=lambda: ServerConfig(port=8001))
    """vLLM."""
    rank: int = 8
    """Largest rank of an adapter that will be loaded."""
    files: Path = SERVER_FILES
    """Folder of the server's log and of the checked copies."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Start, publish, wait for Ctrl-C, and leave nothing behind."""
        from onthejob.models.fetch import fetch
        from onthejob.stack import find_adapters

        adapters = find_adapters(adapters_folder(self.adapters)) if self.adapters else {}
        check_start(self.server)
        folder = fetch(self.model.name, progress=terminal.progress)
        server, publisher = start_server(
            folder, self.server, roles=max(len(adapters), 1), rank=self.rank, files=self.files, terminal=terminal
        )
        try:
            rows = published(publisher, adapters)
            url = f"{server.client.url}/v1"
            terminal.result({"url": url, "adapters": rows}, f"{url}: base", table(("adapter", "seconds"), rows))
            terminal.progress(f"log: {server.log_file}. Ctrl-C ends it.")
            terminal.out.file.flush()  # A reader of a pipe waits for this.
            wait_for_end(server)
        finally:
            server.stop()
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """Make updates for runs on other machines (`onthejob train --trainer URL`), until interrupted.

    The token is $ONTHEJOB_TRAINER_TOKEN, at least 16 characters, the same on both sides. On another address than loopback TLS is
    needed: a certificate here, or a proxy or tunnel that ends it on this machine.
    """

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8100
    """Port to listen on; 0 takes a free one."""
    roles: tuple[str, ...] = SEATS
    """Roles whose updates are made, `agent` for the claw; the same --lora as the run's."""
    lora: LoraSpec = field(default_factory=LoraSpec)
    """Shape of the adapters."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The base model; must be the run's."""
    tls_cert: Path | None = None
    """Certificate chain (PEM)."""
    tls_key: Path | None = None
    """Its key (PEM)."""
    serve_model: bool = False
    """Also start vLLM on the same machine: runs with `--sampler worker` publish into it and sample from it."""
    server: ServerConfig = field(default_factory=lambda: ServerConfig(port=8001))
    """vLLM, with --serve-model."""
    files: Path = WORKER_FILES
    """Folder of states, jobs, adapters and logs."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Serve; ends with Ctrl-C."""
        from onthejob.serve.remote import token_from

        token = token_from()
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key go together.")
        if not is_loopback(self.host) and self.tls_cert is None:
            raise ConfigError(f"{self.host} can be reached from other machines: give --tls-cert and --tls-key, or use 127.0.0.1.")
        check_roles(self.roles)
        check_certificate(self.tls_cert, self.tls_key)
        if self.serve_model:
            check_start(self.server)
        with bind(self.host, self.port) as held:
            self._serve(terminal, held, token)
        return 0

    def _serve(self, terminal: Terminal, held: socket.socket, token: str) -> None:
        """Load the model, start vLLM when it is wanted, and serve until Ctrl-C."""
        from onthejob.learn.lora import attach
        from onthejob.models.fetch import fetch
        from onthejob.serve.trainer import TrainingService
        from onthejob.serve.trainer_http import make_app
        from onthejob.stack import plan_lora

        lora = plan_lora(self.model.name, self.lora, progress=terminal.progress)
        folder = fetch(self.model.name, progress=terminal.progress)
        stack = load_model(self.model, terminal.progress, sampled=False)
        model = attach(stack.model, self.roles, lora, seed=0)
        server, beside = None, None
        try:
            if self.serve_model:
                server, publisher = start_server(
                    folder,
                    self.server,
                    roles=len(self.roles),
                    rank=self.lora.rank,
                    files=self.files / "server",
                    terminal=terminal,
                )
                stack.chat.limit(self.server.max_model_len)
                beside = BesideTrainer(server.client, publisher, stack.chat, recover=server.recover)
            service = TrainingService(model, folder=self.files, base_digest=stack.digest, serving=beside)
            level = "debug" if self.output.debug else "warning" if self.output.quiet else "info"
            scheme = "http" if self.tls_cert is None else "https"
            address = f"{scheme}://{shown_host(self.host)}:{held.getsockname()[1]}"
            terminal.progress(f"training worker at {address}, roles {', '.join(self.roles)}; Ctrl-C ends it")
            serve(
                make_app(service, token=token),
                held,
                self.host,
                large_requests=True,  # Nothing is read of a request without the token.
                ending=service.close,
                timeout_graceful_shutdown=1,
                access_log=self.output.debug,  # Who has no token could fill a disk with it.
                log_level=level,
                ssl_certfile=None if self.tls_cert is None else str(self.tls_cert),
                ssl_keyfile=None if self.tls_key is None else str(self.tls_key),
            )
        finally:
            if server is not None:
                server.stop()


def check_certificate(certificate: Path | None, key: Path | None) -> None:
    """Refuse files that TLS cannot use before a model is loaded."""
    if certificate is None or key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:
        raise ConfigError(
            f"--tls-cert {certificate} and --tls-key {key} are no PEM certificate and its key: {error.strerror or error}."
        ) from error


def start_server(
    folder: Path,
    config: ServerConfig,
    *,
    roles: int,
    rank: int,
    files: Path,
    terminal: Terminal,
    on_freed: Callable[[Freed], None] | None = None,
) -> tuple[ModelServer, Publisher]:
    """A running vLLM for `roles` adapters, and its publisher; `on_freed` as for `ModelServer`.

    Raises:
        ConfigError: vLLM is not installed.
        ServeError: it does not start.
    """
    from transformers import AutoTokenizer

    from onthejob.models.base_model import weights_digest
    from onthejob.serve.intake import BaseShape, Intake, IntakeLimits
    from onthejob.serve.publish import Probe, Publisher, Slots
    from onthejob.serve.server import ModelServer

    slots = Slots.for_roles(roles, rank=rank)
    server = ModelServer(folder, slots=slots, config=config, log_file=files / "server.log", on_freed=on_freed)
    terminal.progress(f"starting vLLM, which can take minutes; its log is {server.log_file}")
    try:
        seconds = server.start()
    except BaseException:
        server.stop()
        raise
    terminal.progress(f"vLLM serves {folder.name} at {server.client.url} after {seconds:.0f} s")
    base = BaseShape.of_folder(folder, digest=weights_digest(folder))
    intake = Intake(files / "adapters", base, IntakeLimits(max_rank=slots.max_rank))
    ids = tuple(AutoTokenizer.from_pretrained(folder, local_files_only=True).encode(PROBE_TEXT, add_special_tokens=False))
    return server, Publisher(
        server, intake, probe=Probe(ids=ids, mean_tolerance=config.probe_mean, max_tolerance=config.probe_max)
    )


class BesideTrainer:
    """vLLM on the training worker's machine. Implements `serve.trainer.ModelServing`."""

    def __init__(
        self, client: VllmClient, publisher: Publisher, chat: ChatEncoder, *, recover: Callable[[], None] | None = None
    ) -> None:
        """Client and publisher of the same server; publisher's probe is of `PROBE_TEXT`. recover: starts it again."""
        from onthejob.serve.vllm import VllmSampler

        self._publisher = publisher
        self._ids = tuple(chat.tokenizer.encode(PROBE_TEXT, add_special_tokens=False))
        self._sampler = VllmSampler(client, chat, publisher, recover=recover)

    def publish(self, adapter: Adapter, model: PeftModel) -> dict[str, Any]:
        from onthejob.serve.publish import trainer_scores

        # Runs begin again with version 0: names repeat, and the digest in every request says whose is meant.
        done = self._publisher.publish(adapter.path, expected=trainer_scores(model, adapter.role, self._ids), replace=True)
        return {"served": done.adapter.name, "replaced": done.replaced, "seconds": done.first_served_s, "probe": done.probe_mean}

    def generate(self, request: SampleRequest) -> list[Completion]:
        from onthejob.serve.messages import NotLive

        if request.adapter is not None and (request.adapter, request.digest) not in {
            (adapter.name, adapter.digest) for adapter in self._publisher.live.values()
        }:
            raise NotLive(request.adapter)
        prompts = [tuple(prompt) for prompt in request.prompts]
        sampling = Sampling(temperature=request.temperature, max_new_tokens=request.max_new_tokens)
        return self._sampler.generate(prompts, adapter=request.adapter, sampling=sampling, seeds=[0] * len(prompts))


PROBE_TEXT = (
    "Acme asks for a demo of the new release on Monday; the deal is worth 12,000 dollars a year and needs single sign-on."
)
"""What every new version is asked to score."""


def published(publisher: Publisher, adapters: Mapping[str, Adapter]) -> list[tuple[str, float]]:
    """Publish every adapter; name and seconds of each."""
    return [(done.adapter.name, done.first_served_s) for done in (publisher.publish(a.path) for a in adapters.values())]


def wait_for_end(server: ModelServer) -> None:
    """Wait for Ctrl-C or SIGTERM; a server that dies is started again, with its adapters."""
    over = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: over.set())
    try:
        while not over.wait(2.0):
            server.recover()
    finally:
        signal.signal(signal.SIGTERM, before)


def check_roles(roles: Sequence[str]) -> None:
    """Refuse roles that no one workplace has; names that no built-in one uses are those of an environment of the user's own."""
    places = {name: resolve(name).roles for name in BUILT_IN}
    strange = not {role for names in places.values() for role in names} & set(roles)
    if roles and strange and all(ROLE.fullmatch(role) for role in roles):
        return
    if not roles or not any(set(roles) <= set(names) for names in places.values()):
        known = "; ".join(f"{', '.join(names)} ({name})" for name, names in places.items())
        raise ConfigError(
            f"roles must be some of one workplace's, got {', '.join(roles) or 'none'}. They are: {known}; or those of an "
            "environment of your own, which match [a-z][a-z0-9_]*."
        )
