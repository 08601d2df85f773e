"""How a model of this machine is asked in its seat: as in the run that trained it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from onthejob.envs.office import prompt
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.observation import OfficeObservation
from onthejob.office import Office, counting
from onthejob.record import Run
from onthejob.types import Message, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The prompt that a model reads, and the limits of prompt and reply. The defaults are those of training."""

    profile: Literal["compact", "full"] = "compact"
    """Of the prompt."""
    budget: int | None = None
    """Tokens of the user message at most: those of the run, or what the context of the base leaves; None sets no limit."""
    tokenizer: str = ""
    """The model whose tokenizer counts them, as for `onthejob model fetch`."""
    max_new_tokens: int = Office.max_new_tokens
    """Limit of a reply in tokens."""
    window: int | None = None
    """Tokens that prompt and reply had together at most where the run's server allowed fewer than the model; else None."""
    template_arguments: tuple[str, ...] = ()
    """Of the chat template, each `NAME=VALUE`."""
    base: str = ""
    """The base model, as for `onthejob model fetch`."""

    def sampling(self, temperature: float = 0.0) -> Sampling:
        """Greedy unless a temperature is given."""
        return Sampling(temperature=temperature, max_new_tokens=self.max_new_tokens)

    def messages(self, env: OfficeEnvironment, asked: OfficeObservation) -> Sequence[Message]:
        """The prompt for `asked`, the pending request of `env`, which keeps memories."""
        if self.profile == "full" and self.budget is None:
            return asked.messages
        blocks = env.sections(asked.actor) if self.profile == "full" else prompt.sections(asked.view)
        count = counting(self.tokenizer) if self.budget is not None else None
        return prompt.rendered(asked.actor, self.profile, blocks, budget=self.budget, count=count)

    def describe(self) -> str:
        """What a seat plays with, in a few words."""
        budget = f" of up to {self.budget} tokens" if self.budget is not None else " within its context"
        window = f", {self.window} in all" if self.window is not None else ""
        return f"{self.profile} prompt{budget}, replies of up to {self.max_new_tokens} tokens{window}"


def office_options(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options of the environment in a run's configuration; those of early runs stand among the run's own."""
    return next((found for name in ("env", "own") if isinstance(found := config.get(name), Mapping)), config)


def asking_of(config: Mapping[str, Any], usual: Asking) -> Asking:
    """How a run with this configuration asked its models; what it does not state is as in `usual`."""
    options, model = office_options(config), _table(config, "model")
    sampling, server = _table(_table(config, "train"), "sampling"), _table(config, "server")
    base = str(model.get("name") or usual.base)
    return Asking(
        profile="full" if options.get("profile", usual.profile) == "full" else "compact",
        budget=options.get("prompt_budget"),
        tokenizer=str(options.get("tokenizer") or base),
        max_new_tokens=int(sampling.get("max_new_tokens", usual.max_new_tokens)),
        window=server.get("max_model_len") if config.get("sampler") == "vllm" else None,
        template_arguments=tuple(model.get("template_arguments", usual.template_arguments)),
        base=base,
    )


def asking_in(folder: Path, usual: Asking) -> Asking:
    """How the adapter in `folder` was asked in training: by the record of the run in whose folder it lies, else as in `usual`.

    Raises:
        RecordError: the record cannot be read.
    """
    place = folder.resolve()
    for above in (place, *place.parents):
        if (above / "run.sqlite").is_file():
            with Run.open(above, readonly=True, skip_damaged=True) as run:
                return asking_of(run.config, usual)
    return usual


def _table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}
