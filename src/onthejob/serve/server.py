"""A vLLM server of our own: started as an untrusted child on loopback, asked what it can do, restarted when it must be.

vLLM's adapter routes are open to anyone who reaches the port, with and without --api-key: it listens on
loopback only and is never to be put behind a plain port forward. It gets a small environment, so that no provider's key is in it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from onthejob.errors import ConfigError, ServeError
from onthejob.serve.freed import Freed, Meter, account
from onthejob.serve.intake import BaseShape
from onthejob.serve.publish import Slots
from onthejob.serve.supervisor import Child, MemoryUse, check_port, free_port, wait_until
from onthejob.serve.vllm import WITHOUT_LOADING, VllmClient, VllmOptions
from onthejob.setting_ranges import Reason, check_ranges
from onthejob.types import Adapter

log = logging.getLogger(__name__)

PYTHON_ENV = "ONTHEJOB_VLLM_PYTHON"
"""The interpreter that has vLLM, when it is not this one: vLLM pins torch and so usually has an environment of its own."""
MODULE = "vllm.entrypoints.openai.api_server"
_PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "TRITON_CACHE_DIR", "XDG_CACHE_HOME", "OMP_NUM_THREADS")
_PASSED_PREFIXES = ("CUDA_", "NVIDIA_", "VLLM_", "NCCL_", "TORCH")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The vLLM of one run."""

    device: Literal["cpu", "cuda"] = "cpu"
    """What vLLM was built for."""
    max_model_len: Annotated[int, Ge(16), Reason("tokens")] = 4096
    """Longest prompt with its reply, in tokens."""
    gpu_memory: Annotated[float, Interval(ge=0.05, le=0.95)] = 0.45
    """Share of the GPU that vLLM may take; the rest is for the trainer on the same card."""
    eager: bool = False
    """Compile nothing: a start takes a fraction of the time, tokens take longer, and no C++ compiler is needed."""

    def __post_init__(self) -> None:
        check_ranges(self, "--server.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(ServerOptions):
    """How vLLM is started."""

    port: Annotated[int, Interval(ge=0, le=65_535)] = 0
    """On loopback; 0 takes a free one."""
    dtype: Literal["bfloat16", "float32", "auto"] = "bfloat16"
    """Of the base's weights."""
    cpu_cache_gib: Annotated[int, Ge(1)] = 1
    """Size of the key-value cache on a CPU."""
    startup_s: Annotated[float, Gt(0)] = 900.0
    """Seconds until it must be healthy; a first start compiles kernels."""
    probe_mean: float = 0.1
    """Nats per token by which a new version may differ from the trainer's numbers on average. bfloat16 on both sides makes up to
    0.06; a trainer whose base is held in 4 bits (`--model.quantize nf4`) needs more, as vLLM's is not."""
    probe_max: float = 1.0
    """Nats by which one token may differ."""
    extra: tuple[str, ...] = ()
    """Further arguments for vLLM."""

    def __post_init__(self) -> None:
        check_ranges(self, "--server.")

    @classmethod
    def of_run(cls, options: ServerOptions, *, quantized: bool) -> ServerConfig:
        """The server of a run, on a free port; `quantized` when the trainer's base is held in 4 bits, as vLLM's is not."""
        made = cls(**asdict(options))
        return replace(made, probe_mean=0.5, probe_max=8.0) if quantized else made


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """What a restart cost."""

    seconds: float
    """Without a server that answers."""
    freed: Freed | None
    """The memory that the old one gave back; None when there was none."""


def vllm_command(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The program that serves."""
    python = (os.environ if environ is None else environ).get(PYTHON_ENV)
    if python:
        if not os.access(python, os.X_OK):
            raise ConfigError(f"{PYTHON_ENV}={python} is no program. Set it to the python of the environment that has vLLM.")
        return (python, "-m", MODULE)
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            f"vLLM is not installed here. Install it in an environment of its own (docs/serving.md) and set {PYTHON_ENV} to "
            "that environment's python. On a CPU the sampler of this process is the default and needs none."
        )
    return (sys.executable, "-m", MODULE)


def check_start(config: ServerConfig) -> None:
    """Refuse, before a model is fetched or loaded, what would keep the server from starting afterwards."""
    vllm_command()
    if config.port:
        check_port(config.port)


class ModelServer:
    """A supervised server of one base model. Implements `AdapterServer`; without run-time loading every load is a restart."""

    def __init__(
        self,
        model: Path,
        *,
        slots: Slots,
        config: ServerConfig | None = None,
        log_file: Path,
        command: Sequence[str] | None = None,
        options: VllmOptions | None = None,
        on_freed: Callable[[Freed], None] | None = None,
        meter: Meter | None = None,
    ) -> None:
        """Prepare; `start` starts it.

        Args:
            model: folder in HF format.
            slots: how many adapters it must hold.
            config: how it is started.
            log_file: gets its output.
            command: the program; None is vLLM. Anything that takes vLLM's arguments and speaks its protocol will do.
            options: of the client.
            on_freed: called whenever it has ended, with the memory that it gave back.
            meter: measures memory; None measures this machine's.
        """
        self.model, self.slots, self.config, self.log_file = model, slots, config or ServerConfig(), log_file
        self._command = tuple(command) if command is not None else None
        self._options = options
        self._child: Child | None = None
        self._client: VllmClient | None = None
        self._modules: dict[str, Adapter] = {}
        self.can_load = True
        """Whether it loads adapters while it runs; known after `start`."""
        self.restarts: list[Restart] = []
        self._on_freed, self._meter = on_freed, meter or Meter()
        self._begun = time.time()
        self._running: tuple[MemoryUse, MemoryUse] | None = None
        """What it held when it had started, and other programs than ours with it."""

    @property
    def client(self) -> VllmClient:
        """Speaks to the running server.

        Raises:
            ServeError: it was not started.
        """
        if self._client is None:
            raise ServeError("the model server was not started. Call start() first.")
        return self._client

    @property
    def child(self) -> Child | None:
        """The process tree, when it was started."""
        return self._child

    def start(self) -> float:
        """Start it and wait until it is healthy; returns the seconds that took.

        Raises:
            ServeError: it ends or hangs while it starts.
            ConfigError: vLLM is not installed, or the port is taken.
        """
        if self._child is not None and self._child.alive:
            return 0.0
        command = self._command or vllm_command()
        port = self.config.port or (int(self._client.url.rpartition(":")[2]) if self._client else free_port())
        check_port(port)
        self._begun, idle = time.time(), self._meter.beside()
        self._child = Child(
            [*command, *self.arguments(port)], log_file=self.log_file, environ=self.environment(), name="model server"
        )
        if self._client is None:
            self._client = VllmClient(f"http://127.0.0.1:{port}", options=self._options)
        seconds = wait_until(self._client.healthy, self._child, within_s=self.config.startup_s)
        self.can_load = self._client.can_load()
        if not self.can_load:
            log.warning("%s. Every new adapter is a restart of the server instead.", WITHOUT_LOADING)
        self._running = self._meter.server(self._child.members(), idle), self._meter.beside()
        return seconds

    def stop(self) -> None:
        """End it; nothing of it is left when this returns. May be called again."""
        if self._client is not None:
            self._client.close()
            self._client = None
        self._end("stop")

    def _end(self, why: str) -> Freed | None:
        """End it and see what memory it gives back; None when it was not running, or never became healthy."""
        child, self._child = self._child, None
        if child is None:
            return None
        running, self._running = self._running, None
        # Of one that is gone already nothing can be measured any more: what was when it had started stands for it.
        if running is not None and child.alive:
            now, before = self._meter.held_by(child.members()), self._meter.beside()
            running = running[0].at_least(now), before
        why = why if child.alive else "killed"
        child.stop()
        if running is None:
            return None
        held, before = running
        freed = account(why, held=held, before=before, since=self._begun, meter=self._meter)
        if freed.complete:
            log.info("%s", freed.said())
        else:
            log.warning("%s", freed.warning())
        if self._on_freed is not None:
            self._on_freed(freed)
        return freed

    def restart(self) -> Restart:
        """End it, see what memory it gives back, and start it again with the adapters it must have.

        Raises:
            ServeError: as `start`.
        """
        started = time.monotonic()
        freed = self._end("restart")
        self.start()
        done = Restart(seconds=time.monotonic() - started, freed=freed)
        self.restarts.append(done)
        log.info("the model server was restarted in %.1f s", done.seconds)
        return done

    def names(self) -> tuple[str, ...]:
        return self.client.names()

    def load(self, adapter: Adapter) -> None:
        self._modules[adapter.name] = adapter
        try:
            if self.can_load:
                self.client.load(adapter)
            else:
                self.restart()
        except BaseException:
            self._modules.pop(adapter.name, None)
            raise

    def unload(self, name: str) -> None:
        # Without run-time loading the name goes with the next restart.
        self._modules.pop(name, None)
        if self.can_load:
            self.client.unload(name)

    def score(self, ids: Sequence[int], name: str | None) -> list[float]:
        return self.client.score(ids, name)

    def recover(self) -> None:
        """Start it again when it is gone, with all adapters that were loaded.

        Raises:
            ServeError: it does not start.
        """
        if self._child is not None and self._child.alive and self.client.healthy():
            return
        self.restart()
        listed = self.client.names()
        for adapter in list(self._modules.values()):
            if self.can_load and adapter.name not in listed:
                self.client.load(adapter)

    def arguments(self, port: int) -> list[str]:
        """VLLM's options."""
        config, slots = self.config, self.slots
        words = [
            *("--model", str(self.model), "--served-model-name", "base"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--dtype", config.dtype, "--max-model-len", str(config.max_model_len)),
            "--enable-lora",
            *("--max-loras", str(slots.max_loras), "--max-cpu-loras", str(slots.max_cpu_loras)),
            *("--max-lora-rank", str(slots.max_rank)),
            # Nothing else is let in. Told so, vLLM leaves the head alone: it would multiply it by zeros for every token, and on a
            # CPU its engine ends when a text is scored while replies are sampled (`einsum(): subscript b has size ...`).
            *("--lora-target-modules", *BaseShape.of_folder(self.model, digest="").targets),
            # What is recorded must be the log-probabilities of the distribution that was sampled from.
            *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
            "--enable-prefix-caching",
            # Without it a grammar may spend the whole reply on white space (vLLM issue 38696).
            *("--structured-outputs-config", '{"backend":"xgrammar","disable_any_whitespace":true}'),
            *("--uvicorn-log-level", "warning"),
        ]
        if config.eager:
            words += ["--enforce-eager"]
        if config.device == "cuda":
            words += ["--gpu-memory-utilization", str(config.gpu_memory)]
        if self._modules:
            words += ["--lora-modules", *(f"{name}={adapter.path.resolve()}" for name, adapter in self._modules.items())]
        return [*words, *config.extra]

    def environment(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """The server's whole environment."""
        source = os.environ if environ is None else environ
        kept = {name: value for name, value in source.items() if name in _PASSED or name.startswith(_PASSED_PREFIXES)}
        ours = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        if self.config.device == "cpu":
            ours |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": str(self.config.cpu_cache_gib)}
            # Without an answer for so long the engine ends itself; on busy cores one step may take more than the usual 300 s.
            ours |= {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "3600"}
        if self.config.eager:
            # Parts of sampling are compiled at the first request whatever the model's options are.
            ours |= {"TORCHDYNAMO_DISABLE": "1"}
        # What the operator says of loading wins: where it is forbidden, the fallback works.
        return {**ours, **kept}
