"""Training with other processes: the server that samples, the worker that updates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

from onthejob.commands.scaling import crew_learner, crew_sampler
from onthejob.commands.terminal import Terminal
from onthejob.types import Learner, Sampler

if TYPE_CHECKING:
    from onthejob.commands.train import Train
    from onthejob.learn.learner import LocalLearner
    from onthejob.record import Run
    from onthejob.scale.runtime import Runtime
    from onthejob.serve.freed import Freed
    from onthejob.serve.server import ServerConfig
    from onthejob.stack import Stack


def servers_ready(options: Train, terminal: Terminal) -> None:
    """Reach the worker of `--trainer` and look at what vLLM needs, before a model is loaded.

    Raises:
        ConfigError: no token, a worker that lacks something, no vLLM, or its port is taken.
        ServeError: the worker does not answer.
    """
    if options.trainer:
        from onthejob.serve.remote import reach, token_from

        terminal.progress(f"connecting to the training worker at {options.trainer}")
        reach(options.trainer, token=token_from(), roles=options.roles, samples=options.sampler == "worker")
    if options.sampler == "vllm":
        from onthejob.serve.server import check_start

        check_start(server_of(options))


def server_of(options: Train) -> ServerConfig:
    """The vLLM of a run with these options."""
    from onthejob.serve.server import ServerConfig

    return ServerConfig.of_run(options.server, quantized=options.model.quantize != "none")


def sampler_here(options: Train, stack: Stack, runtime: Runtime, terminal: Terminal) -> Sampler | None:
    """The sampler of this process or those of the runtime; None where another program samples.

    Made before a run exists: a base that it cannot compute leaves no empty run behind.
    """
    if options.scale.samplers:
        return crew_sampler(options, stack, runtime, terminal)
    return stack.sampler(goes_on=options.place().env.goes_on) if options.sampler == "in-process" else None


def make_sampler(options: Train, stack: Stack, learner: Learner, run: Run, terminal: Terminal, helpers: ExitStack) -> Sampler:
    """The sampler of another program; a server that is started ends with `helpers`."""
    if options.sampler == "worker":
        from onthejob.serve.remote import token_from
        from onthejob.serve.remote_sampler import RemoteSampler

        far = RemoteSampler(
            options.trainer, stack.chat, base_digest=stack.digest, token=token_from(), gone_s=options.trainer_wait_s
        )
        helpers.callback(far.close)
        return far
    from onthejob.commands.servers import PROBE_TEXT, start_server
    from onthejob.models.fetch import fetch
    from onthejob.record.listing import FREED
    from onthejob.serve.publish import trainer_scores
    from onthejob.serve.vllm import VllmSampler

    def keep_freed(freed: Freed) -> None:
        run.live(FREED, freed.as_dict())

    base = fetch(options.model.name, progress=terminal.progress)
    server, publisher = start_server(
        base,
        server_of(options),
        roles=len(options.roles) + len(options.freeze),
        rank=options.lora.rank,
        files=run.path / "server",
        terminal=terminal,
        on_freed=keep_freed,
    )
    helpers.callback(server.stop)
    ids = tuple(stack.chat.tokenizer.encode(PROBE_TEXT, add_special_tokens=False))
    return VllmSampler(
        server.client,
        stack.chat,
        publisher,
        expected=lambda adapter: trainer_scores(learner.model, adapter.role, ids) if adapter.role in options.roles else None,
        recover=server.recover,
    )


@contextmanager
def updated_by(options: Train, stack: Stack, learner: LocalLearner, runtime: Runtime, terminal: Terminal) -> Iterator[Learner]:
    """Who makes the updates: `learner`, those of the runtime, or the worker of `--trainer`, which are ready before a run exists.

    Raises:
        ConfigError: no token, or a worker that does not fit.
        ServeError: the worker does not answer.
        ScaleError: no learner can be started.
    """
    if not options.trainer:
        yield crew_learner(options, stack, learner, runtime, terminal) if options.scale.learners else learner
        return
    from onthejob.serve.remote import RemoteLearner, token_from

    made = RemoteLearner(learner, options.trainer, base_digest=stack.digest, token=token_from(), gone_s=options.trainer_wait_s)
    with closing(made) as remote:
        yield remote
