"""`onthejob serve env office`: what is refused when clients bring the players."""

from __future__ import annotations

from dataclasses import dataclass

from onthejob.commands.serve import Env
from onthejob.commands.workplace import Workplace, refuse_unused
from onthejob.errors import ConfigError
from onthejob.office import Office, counter, reader_of


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvOffice(Env):
    """Serve the office under OpenEnv, until interrupted. One episode per WebSocket connection to `/ws`; see docs/openenv.md."""

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
