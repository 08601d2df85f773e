"""How long a new adapter takes to go live on a running server, beside a restart of the server; and tokens per second.

    python benchmarks/publish.py                       # vLLM (see docs/serving.md), SmolLM2-135M, six roles
    python benchmarks/publish.py --tests-server        # the tests' own server: measures our side only
    python benchmarks/publish.py --model FOLDER --roles 6 --versions 20 --json

A publish is everything from the adapter's directory to the switch of traffic: check, copy, load, list, probe. `loaded` is
measured while threads sample from the live versions. The restart is what a server without run-time loading costs each time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from onthejob.learn import lora
from onthejob.models.base import load_base
from onthejob.models.chat import ChatEncoder
from onthejob.models.fetch import fetch
from onthejob.serve.intake import BaseShape, Intake
from onthejob.serve.local import trainer_scores
from onthejob.serve.publish import Probe, Publisher, Slots
from onthejob.serve.server import ModelServer, ServerConfig
from onthejob.serve.vllm import VllmSampler
from onthejob.types import Adapter, Sampling

ROLES = ("ceo", "dev", "marketing", "sales", "content", "hr")
TEXT = "Acme asks for a demo of the new release on Monday; the deal is worth 12,000 dollars a year and needs single sign-on."


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
        program = f"import sys; sys.path[:0] = {sys.path!r}; from onthejob.testing.model_server import main; main(sys.argv[1:])"
        command = (sys.executable, "-c", program) if options.tests_server else None
        self.server = ModelServer(
            path,
            slots=Slots.for_roles(len(self.roles), rank=8),
            config=ServerConfig(device=options.device, max_model_len=1024),
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
        return lora.save_adapter(self.model, role, self.out, version=self.version, parent=None, base_digest=self.digest)

    def publish(self, role: str) -> float:
        """Seconds until the next version of `role` answers."""
        adapter = self.write(role)
        expected = trainer_scores(self.model, role, self.ids)
        return self.publisher.publish(adapter.path, expected=expected).first_served_s

    def tokens_per_second(self, roles: int, *, replies: int = 8, tokens: int = 32) -> float:
        """Sampled tokens per second with `roles` adapters in the same batch."""
        counts: list[int] = []

        def sample(role: str) -> None:
            with self.publisher.lease(role) as adapter:
                prompts = [self.ids] * replies
                sampling = Sampling(max_new_tokens=tokens)
                done = self.sampler.generate(prompts, adapter=adapter.name, sampling=sampling, seeds=[0] * replies)
                counts.append(sum(len(reply.token_ids) for reply in done))

        threads = [threading.Thread(target=sample, args=(role,)) for role in self.roles[:roles]]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) / (time.perf_counter() - started)

    def under_load(self, versions: int) -> list[float]:
        """Seconds of publishes while two threads sample."""
        over = threading.Event()

        def sample() -> None:
            while not over.is_set():
                with self.publisher.lease(self.roles[0]) as adapter:
                    self.sampler.generate([self.ids] * 8, adapter=adapter.name, sampling=Sampling(), seeds=[0] * 8)

        threads = [threading.Thread(target=sample) for _ in range(2)]
        for thread in threads:
            thread.start()
        seconds = [self.publish(self.roles[index % len(self.roles)]) for index in range(versions)]
        over.set()
        for thread in threads:
            thread.join()
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--roles", type=int, default=6, choices=range(1, 7))
    parser.add_argument("--versions", type=int, default=20, help="publishes measured, idle and loaded each")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tests-server", action="store_true", help="the tests' server in vLLM's place")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        try:
            for role in bench.roles:
                bench.publish(role)
            idle = [bench.publish(bench.roles[index % len(bench.roles)]) for index in range(options.versions)]
            loaded = bench.under_load(options.versions)
            speeds = {f"tokens_per_s_{count}": bench.tokens_per_second(count) for count in (1, 3, 6) if count <= len(bench.roles)}
            restart = bench.server.restart()
            result = {
                "start_s": bench.start_s,
                "publish_idle_s": statistics.median(idle),
                "publish_idle_max_s": max(idle),
                "publish_loaded_s": statistics.median(loaded),
                "publish_loaded_max_s": max(loaded),
                "restart_s": restart.seconds,
                **speeds,
            }
        finally:
            bench.server.stop()
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        for name, value in result.items():
            print(f"{name:<22} {value:10.3f}")


if __name__ == "__main__":
    main()
