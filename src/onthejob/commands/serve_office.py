"""`onthejob serve env office`: what is refused when clients bring the players."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from onthejob.commands.named_env import Workplace, refuse_unused
from onthejob.commands.player_specs import ModelOptions
from onthejob.commands.prompt_lengths import local_window
from onthejob.commands.serve import Env
from onthejob.commands.terminal import Terminal
from onthejob.errors import ConfigError
from onthejob.office import Office, counter, reader_of


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvOffice(Env):
    """Serve the office under OpenEnv, until interrupted. One episode per WebSocket connection to `/ws`; see docs/openenv.md.

    With --env.tokenizer alone prompts are pruned to the context of that model.
    """

    max_new_tokens: int | None = None
    """With --env.tokenizer and no --env.prompt-budget: limit of the clients' replies in tokens, for which prompts leave room;
    default 32."""

    def fitted(self, place: Workplace, terminal: Terminal) -> Workplace:
        office = place.env
        if not isinstance(office, Office):
            return place
        derived = bool(office.tokenizer) and office.prompt_budget is None
        if self.max_new_tokens is not None and (self.max_new_tokens < 1 or not derived):
            raise ConfigError(
                "--max-new-tokens must be >= 1 and needs --env.tokenizer without --env.prompt-budget: it says how much of "
                f"the model's context prompts leave to replies. Got {self.max_new_tokens}."
            )
        if not derived:
            return place
        _ = office.config  # it says what is wrong with it
        reply = Office.max_new_tokens if self.max_new_tokens is None else self.max_new_tokens
        window = local_window(ModelOptions(name=office.tokenizer), reply=reply, progress=terminal.progress)
        fitted = office.fitted(window=window)
        if fitted.prompt_budget is None:
            # No prompt can exceed this context, so none is counted.
            fitted = dataclasses.replace(fitted, tokenizer="")
        else:
            terminal.progress(f"user messages of up to {fitted.prompt_budget} tokens, as the context of {office.tokenizer} holds")
        return dataclasses.replace(place, env=fitted)

    def check(self, place: Workplace) -> None:
        Env.check(self, place)
        start = Office.starting_options("Env")
        refuse_unused(place.env, start, ("scenarios", "seeds", "first", "partner", "curriculum"), "serve env")
        if not isinstance(place.env, Office):
            return
        if place.env.prompt_budget is not None and not place.env.tokenizer:
            raise ConfigError(
                "--env.prompt-budget needs --env.tokenizer here, the model that clients train, e.g. --env.tokenizer smollm2-135m."
            )
        # Loaded before the first session, which would wait for them, and refused here where they cannot be.
        reader_of(place.env.config)
        if place.env.tokenizer:
            counter(place.env.tokenizer)
