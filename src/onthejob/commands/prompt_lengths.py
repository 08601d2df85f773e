"""How long the prompts of the models at a table may be: each model's context, as the environment shares it out."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onthejob.envs.env import Env
from onthejob.models.catalogue import Entry, window_of
from onthejob.models.counting import chat_window, hosted_window
from onthejob.types import Environment, PromptBudget, Window

if TYPE_CHECKING:
    from onthejob.commands.player_specs import ModelOptions
    from onthejob.commands.terminal import Terminal
    from onthejob.commands.train import Train
    from onthejob.models.chat import ChatEncoder
    from onthejob.models.transport import Transport

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Budgets of prompts in one environment, with one limit of replies."""

    env: Env
    reply: int
    """Limit of a reply in tokens."""

    def local(self, chat: ChatEncoder) -> PromptBudget | None:
        """Of a model of this machine; None where its prompts need none."""
        window = chat_window(chat, reply=self.reply)
        return None if window is None else self.env.budget_for(window)

    def hosted(self, spec: str, entry: Entry, transport: Transport, *, exact: bool) -> PromptBudget | None:
        """Of a hosted model; None where its prompts need none, or its context is unknown. An estimate is reported.

        Args:
            spec: the model.
            entry: what the catalogue says of it.
            transport: of its client.
            exact: the limit of a reply is not raised to the catalogue's, nor doubled after a reply that was cut.
        """
        if not self.prunes:
            return None
        tokens = window_of(spec, entry, transport)
        if tokens is None:
            return None
        reply = self.reply if exact else 2 * max(self.reply, entry.max_tokens)
        budget = self.env.budget_for(hosted_window(tokens, reply=reply))
        if budget is not None:
            log.info(
                "%s has a context of %d tokens: user messages of up to %d, estimated from above, as its tokenizer is not here",
                spec,
                tokens,
                budget.tokens,
            )
        return budget

    @property
    def prunes(self) -> bool:
        """Whether the environment can shorten its prompts."""
        return type(self.env).budget_for is not Env.budget_for


def local_window(
    options: ModelOptions, *, reply: int, progress: Callable[[str], None], limit: int | None = None
) -> Window | None:
    """The context of the model of these options, found without its weights; None where its configuration states no limit.

    Args:
        options: the model.
        reply: limit of a reply in tokens.
        progress: receives a line per step.
        limit: of prompt and reply together where a server allows no more.

    Raises:
        ConfigError, ModelError: it cannot be fetched or read.
    """
    from onthejob.models.encoder import load_encoder
    from onthejob.models.fetch import fetch
    from onthejob.models.template import read_arguments

    folder = fetch(options.name, weights=False, progress=progress)
    chat = load_encoder(folder, arguments=read_arguments(options.template_arguments))
    if limit is not None:
        chat.limit(limit)
    return chat_window(chat, reply=reply)


@contextmanager
def opened(options: Train, terminal: Terminal, *, new: bool = True) -> Iterator[tuple[Train, Callable[[], Environment]]]:
    """The environment, open: `options` with the budget of prompts that the model's context leaves, and what makes environments.

    The budget becomes an option of the environment, so that a run's record states it. No weights are read.

    Args:
        options: of the run.
        terminal: receives a line per step.
        new: False keeps the budget as it is, that of the record.
    """
    env = options.place().env
    if new and Fit(env=env, reply=1).prunes:
        window = local_window(
            options.model,
            reply=options.train.sampling.max_new_tokens,
            progress=terminal.progress,
            limit=options.server.max_model_len if options.sampler == "vllm" else None,
        )
        if window is not None and env.budget_for(window) is not None:
            options = dataclasses.replace(options, own=env.fitted(model=options.model.name, window=window))
    with options.place().opened() as make_env:
        yield options, make_env
