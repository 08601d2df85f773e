"""Time until a new adapter is live on a running server, against a restart of the server.

    python benchmarks/publish.py                       # vLLM (see docs/serving.md), SmolLM2-135M, six roles
    python benchmarks/publish.py --tests-server        # the tests' own server: measures onthejob's part only
    python benchmarks/publish.py --model FOLDER --roles 6 --versions 20 --json

`publish` is everything from the adapter's directory to the switch of traffic: check, copy, load, list, probe. `first_token` ends
when the new version has sampled one token. `loaded` is measured while threads sample from the live versions. The restart is
what a server without run-time loading costs each time. `probe` is the largest mean difference to the trainer's numbers, in nats.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from onthejob.learn import adapter_files, lora
from onthejob.models.base_model import load_base
from onthejob.models.chat import ChatEncoder
from onthejob.models.fetch import fetch
from onthejob.serve.intake import BaseShape, Intake
from onthejob.serve.publish import Probe, Publisher, Slots, trainer_scores
from onthejob.serve.server import ModelServer, ServerConfig
from onthejob.serve.vllm import VllmSampler
from onthejob.types import Adapter, Sampling

ROLES = ("ceo", "dev", "marketing", "sales", "content", "hr")
TEXT = "Acme asks for a demo of the new release on Monday; the deal is worth 12,000 dollars a year and needs single sign-on."


class Live(NamedTuple):
    """What one publish took."""

    publish_s: float
    first_token_s: float
    probe_mean: float


class Bench:
    """A server, a trainer's model and a publisher between them."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        path = fetch(options.model)
        base = load_base(path)
        self.roles = ROLES[: options.roles]
        self.chat = ChatEncoder(base.tokenizer)
        self.ids = tuple(base.tokenizer.encode(TEXT, add_special_tokens=False))
        self.model = lora.attach(base.model, list(self.roles), lora.LoraSpec(rank=8, alpha=16), seed=0)
        self.digest, self.out, self.version = base.digest, folder / "adapters", 0
        found = "from onthejob.checkout import from_checks; from_checks('servers.model_server', what='the server').main()"
        program = f"import sys; sys.path[:0] = {sys.path!r}; {found}"
        command = (sys.executable, "-c", program) if options.tests_server else None
        self.server = ModelServer(
            path,
            slots=Slots.for_roles(len(self.roles), rank=8),
            config=ServerConfig(device=options.device, max_model_len=1024, startup_s=3600, eager=options.eager),
            log_file=folder / "server.log",
            command=command,
        )
        self.start_s = self.server.start()
        intake = Intake(folder / "store", BaseShape.of_folder(path, digest=base.digest))
        self.publisher = Publisher(self.server, intake, probe=Probe(ids=self.ids))
        self.sampler = VllmSampler(self.server.client, self.chat, self.publisher)

    def write(self, role: str) -> Adapter:
        """A version that differs from the one before."""
        self.version += 1
        generator = torch.Generator().manual_seed(self.version)
        with torch.no_grad():
            for name, parameter in lora.parameters(self.model, role).items():
                if ".lora_B." in name:
                    parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
        return adapter_files.save_adapter(self.model, role, self.out, version=self.version, parent=None, base_digest=self.digest)

    def publish(self, role: str) -> Live:
        """Let the next version of `role` go live; another thread samples one token of it as soon as traffic is switched."""
        adapter = self.write(role)
        expected = trainer_scores(self.model, role, self.ids)
        seconds: list[float] = []
        failed = threading.Event()

        def sample_first() -> None:
            while not failed.is_set():
                live = self.publisher.live.get(role)
                if live is not None and live.name == adapter.name:
                    self.sampler.generate([self.ids], adapter=live.name, sampling=Sampling(max_new_tokens=1), seeds=[0])
                    seconds.append(time.perf_counter() - started)
                    return
                time.sleep(0.002)

        client = threading.Thread(target=sample_first)
        started = time.perf_counter()
        client.start()
        try:
            done = self.publisher.publish(adapter.path, expected=expected)
        except BaseException:
            failed.set()
            raise
        finally:
            client.join()
        shutil.rmtree(adapter.path)  # The publisher has its own copy.
        assert done.probe_mean is not None  # A probe is made wherever the trainer's numbers are given.
        return Live(done.first_served_s, seconds[0], done.probe_mean)

    def publish_all(self, versions: int) -> list[Live]:
        """So many versions, one role after the other."""
        return [self.publish(self.roles[index % len(self.roles)]) for index in range(versions)]

    def under_load(self, versions: int) -> list[Live]:
        """The same while two threads sample eight replies each."""
        over = threading.Event()

        def sample() -> None:
            while not over.is_set():
                with self.publisher.lease(self.roles[0]) as adapter:
                    self.sampler.generate([self.ids] * 8, adapter=adapter.name, sampling=Sampling(), seeds=[0] * 8)

        threads = [threading.Thread(target=sample) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            return self.publish_all(versions)
        finally:
            over.set()
            for thread in threads:
                thread.join()


def summary(name: str, lives: Sequence[Live]) -> dict[str, float]:
    """Medians and worst of one series."""
    publishes, tokens = [live.publish_s for live in lives], [live.first_token_s for live in lives]
    return {
        f"publish_{name}_s": statistics.median(publishes),
        f"publish_{name}_max_s": max(publishes),
        f"first_token_{name}_s": statistics.median(tokens),
        f"first_token_{name}_max_s": max(tokens),
    }


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Options that this benchmark shares with serving.py."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--roles", type=int, default=6, choices=range(1, 7))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--eager", action="store_true", help="vLLM without compilation: a quicker start, slower tokens")
    parser.add_argument("--tests-server", action="store_true", help="the tests' server in vLLM's place")
    parser.add_argument("--json", action="store_true")
    return parser


def show(result: Mapping[str, float], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result, indent=2))
        return
    for name, value in result.items():
        print(f"{name:<26} {value:10.3f}")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--versions", type=int, default=20, help="publishes measured, idle and loaded each")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        try:
            bench.publish_all(len(bench.roles))
            idle = bench.publish_all(options.versions)
            loaded = bench.under_load(options.versions)
            restart = bench.server.restart()
            result = {
                "start_s": bench.start_s,
                **summary("idle", idle),
                **summary("loaded", loaded),
                "restart_s": restart.seconds,
                "restart_over_publish": restart.seconds / statistics.median(live.publish_s for live in idle),
                "probe_nats": max(live.probe_mean for live in (*idle, *loaded)),
            }
        finally:
            bench.server.stop()
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
