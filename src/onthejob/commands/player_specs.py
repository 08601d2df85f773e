"""Who plays, as the command line names it: a scripted player, `base`, a run, adapters, hosted models, or `NAME=` one of these."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from onthejob.checkout import missing_player
from onthejob.commands.runs import RUNS, run_folder
from onthejob.envs.env import Env
from onthejob.errors import ConfigError
from onthejob.evaluate.teams import Team, scripted_team
from onthejob.files import where_kept
from onthejob.models.catalogue import is_hosted
from onthejob.types import Adapter, Context, Policy

if TYPE_CHECKING:
    from onthejob.commands.prompt_lengths import Fit
    from onthejob.learn.lora import LoraSpec
    from onthejob.models.base_model import Dtype
    from onthejob.models.catalogue import CatalogueModel
    from onthejob.models.chat import ChatEncoder
    from onthejob.models.hosted import Accounts, HostedPolicy, HostedUsage, SchemaOf
    from onthejob.models.providers import ChatClient, Schema
    from onthejob.models.transport import Transport
    from onthejob.stack import Stack

BASE = "base"
PARTNER = "heuristic"
"""The player of roles for which a run or folder has no adapter; the claw has no player of this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The language model behind `base` and behind every adapter."""

    name: str = "smollm2-135m"
    """As for `onthejob model fetch`."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Number format of the base's weights in memory; `auto` takes float32 where it is measured to be faster (see `onthejob
    doctor`), else bfloat16. A run keeps what it was started with."""
    device: str = "cpu"
    """torch device: `cpu`, `cuda` with an NVIDIA GPU, or, for `train --sampler worker`, `meta`: no weights on this machine."""
    quantize: Literal["none", "nf4"] = "none"
    """`nf4` holds the base's linear layers in 4 bits: a quarter of the memory on a GPU; needs bitsandbytes."""
    template_arguments: tuple[str, ...] = ()
    """Arguments of the model's chat template, each `NAME=VALUE`, e.g. `enable_thinking=false` for Qwen3. Play adapters with the
    arguments they were trained with."""

    def settled(self) -> ModelOptions:
        """These options without `auto`."""
        return replace(self, dtype=self.settled_dtype())

    def settled_dtype(self) -> Dtype:
        """What `dtype` means here."""
        if self.dtype != "auto":
            return self.dtype
        from onthejob.models.base_model import quicker_dtype

        return quicker_dtype(self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedLimits:
    """Together, what the hosted models of a command may use (`openai:...`, `anthropic:...`, `bedrock:...`)."""

    max_usd: float | None = None
    """Nothing more is sent when this much is spent; models without a price in the catalogue count as free."""
    max_tokens: int | None = None
    """Nothing more is sent when so many tokens were used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedOptions(HostedLimits):
    """Bounds of hosted models; their keys come from the environment."""

    deadline_s: float = 60.0
    """Seconds of one turn, all attempts and waits included."""
    attempts: int = 2
    """Requests sent for one turn at most, 1 or 2."""
    parallel: int = 8
    """Requests under way at the same time."""
    free_text: bool = False
    """Office: do not hold replies to the role's JSON schema. In the claw they are always free text."""


def office_schema(context: Context) -> Schema | None:
    """What a reply in the office must look like."""
    from onthejob.envs.office.reply_schema import reply_schema

    return reply_schema(context.observation)


class HostedSeats:
    """Hosted models at the table: one transport and one account for all of them, made when the first is seated."""

    def __init__(
        self, options: HostedOptions, *, schema: SchemaOf | None = office_schema, exact: bool = False, fit: Fit | None = None
    ) -> None:
        """Nothing is connected before a model is seated.

        Args:
            options: bounds of all of them.
            schema: what replies must look like; None where they are free text, as a shell agent's are.
            exact: the limit of a reply was stated and holds for hosted models too; else the catalogue's applies when longer.
            fit: budgets of their prompts; None sets none.
        """
        if schema is None and options.free_text:
            raise ConfigError("--hosted.free-text has no effect here: replies are always free text. Leave it out.")
        self._options, self._exact, self._fit = options, exact, fit
        self._schema = None if options.free_text else schema
        self._shared: tuple[Transport, Accounts] | None = None

    def policy(self, spec: str) -> HostedPolicy:
        """The hosted model that `spec` names."""
        from onthejob.models.hosted import HostedPolicy, Price

        client, entry, transport, accounts = self.client(spec)
        return HostedPolicy(
            client,
            transport,
            accounts=accounts,
            price=Price(prompt=entry.input_usd, completion=entry.output_usd),
            schema=self._schema if entry.schema_ else None,
            temperature=entry.temperature,
            min_tokens=None if self._exact else entry.max_tokens,
            prompt_budget=self._fit.hosted(spec, entry, transport, exact=self._exact) if self._fit is not None else None,
        )

    def client(self, spec: str) -> tuple[ChatClient, CatalogueModel, Transport, Accounts]:
        """What speaks to the model, what the catalogue says of it, and what all hosted models share."""
        from onthejob.models.catalogue import make_client
        from onthejob.models.hosted import Accounts
        from onthejob.models.transport import Transport, TurnLimits

        options = self._options
        if self._shared is None:
            limits = TurnLimits(deadline_s=options.deadline_s, attempts=options.attempts, parallel=options.parallel)
            self._shared = Transport(limits), Accounts(max_usd=options.max_usd, max_tokens=options.max_tokens)
        return (*make_client(spec, self._shared[0]), *self._shared)

    def team(self, name: str, spec: str, seats: Sequence[str]) -> Team:
        """The model in every one of `seats`.

        What it replied is cached under its name and what the catalogue says of it: delete the cache to ask again.
        """
        from onthejob.models.catalogue import behaviour_of, find, load_catalogue

        policy = self.policy(spec)
        form = ("text" if self._schema is None else "schema") + (":exact" if self._exact else "")
        kind = f"{form}:{behaviour_of(*find(spec, load_catalogue()))}"
        return Team(
            name=name,
            policies=dict.fromkeys(seats, policy),
            fingerprints=dict.fromkeys(seats, f"hosted:{policy.version}:{kind}"),
            learned=frozenset(seats),
        )

    @property
    def accounts(self) -> dict[str, HostedUsage]:
        """Role -> what it took; empty when no hosted model was seated."""
        return {} if self._shared is None else self._shared[1].roles

    def close(self) -> None:
        """Close connections."""
        if self._shared is not None:
            self._shared[0].close()
            self._shared = None


ACCOUNT_COLUMNS = ("role", "turns", "requests", "prompt tokens", "completion tokens", "USD", "unknown", "outcomes")


def account_rows(accounts: Mapping[str, HostedUsage]) -> list[tuple[object, ...]]:
    """One row per role for `ACCOUNT_COLUMNS`; `unknown` counts requests without known tokens or price."""
    return [
        (
            role,
            account.turns,
            account.requests,
            account.prompt_tokens,
            account.completion_tokens,
            account.usd,
            account.unanswered + account.unpriced,
            ", ".join(f"{name} {count}" for name, count in account.outcomes.most_common()),
        )
        for role, account in accounts.items()
    ]


def load_model(
    options: ModelOptions,
    progress: Callable[[str], None],
    check: Callable[[ChatEncoder], None] | None = None,
    *,
    sampled: bool = True,
) -> Stack:
    """The model of these options.

    Args:
        options: the model, and how it is computed.
        progress: receives a line per step.
        check: may refuse the encoder before the weights are read.
        sampled: the in-process sampler will run it, too.

    Raises:
        ConfigError: it cannot be computed with here.
        ModelError: it cannot be loaded, or not be sampled; the latter is found before its weights are read.
    """
    from onthejob.stack import check_sampler, load_stack

    if options.device == "meta":
        raise ConfigError("--model.device meta holds no weights: it is for `train --trainer URL --sampler worker` only.")
    if sampled:
        check_sampler(options.name, progress=progress)
    begun = time.monotonic()
    progress(f"loading {options.name}")
    stack = load_stack(
        options.name,
        dtype=options.settled_dtype(),
        device=options.device,
        quantize=options.quantize,
        arguments=options.template_arguments,
        check=check,
        progress=progress,
    )
    progress(f"loaded {options.name} in {time.monotonic() - begun:.0f} s")
    return stack


def adapters_folder(source: str) -> Path:
    """The folder that `source` names: a path, or the name of a run in `runs/`."""
    folder = run_folder(Path(source))
    if folder.exists():
        return folder
    if missing := missing_player(source):
        raise ConfigError(missing)
    if kept := where_kept(source):
        raise ConfigError(f"there is no folder {source}. {kept}")
    raise ConfigError(
        f"unknown player {source!r}: there is neither a folder {source} nor {RUNS / source}. Give a run's folder (or its "
        f"name in {RUNS}/) or a folder of adapters. A seat may also be taken by {BASE} or a scripted player."
    )


def named_adapters(source: str) -> dict[str, Adapter]:
    """Role -> adapter of `source`: as `adapters_folder`, where a run may be followed by `:best` or `:ITERATION`."""
    from onthejob.stack import find_adapters

    folder, at = place_and_iteration(source)
    return find_adapters(folder, at=at)


def absolute_source(source: str) -> str:
    """`source`, which names adapters, as it is found from every folder."""
    folder, at = place_and_iteration(source)
    return f"{folder.absolute()}:{at}" if at else str(folder.absolute())


def adapters_for(source: str, roles: Collection[str]) -> dict[str, Adapter]:
    """As `named_adapters`, for who is to play or to train some of `roles`."""
    found = as_called_now(named_adapters(source), roles)
    if not found.keys() & set(roles):
        raise ConfigError(
            f"{source} holds adapters of {', '.join(sorted(found))}; needed here is one of {', '.join(roles)}. "
            "Name a run or a folder that has one, or choose the workplace and the roles of these adapters."
        )
    return found


def lora_of(source: str, roles: Sequence[str], asked: LoraSpec) -> LoraSpec:
    """The LoRA shape in which `roles` continue from the adapters of `source`; see `stack.shape_of`."""
    from onthejob.stack import shape_of

    found = as_called_now(named_adapters(source), roles)
    return shape_of({role: adapter for role, adapter in found.items() if role in roles}, asked, where=source)


def as_called_now(found: Mapping[str, Adapter], roles: Collection[str]) -> dict[str, Adapter]:
    """`found`, with an adapter of `assistant` as that of `agent`, whose name in dataset: and reasoning_gym: it once was."""
    if set(found) == {"assistant"} and "agent" in roles and "assistant" not in roles:
        return {"agent": replace(found["assistant"], role="agent")}
    return dict(found)


def place_and_iteration(source: str) -> tuple[Path, str]:
    """The folder, and what follows it after a colon; a folder whose own name has a colon is found too."""
    name, colon, at = source.rpartition(":")
    if colon and (at == "best" or at.isdigit()) and not Path(source).exists():
        return adapters_folder(name), at
    return adapters_folder(source), ""


def teams(
    specs: Sequence[str],
    options: ModelOptions,
    progress: Callable[[str], None],
    *,
    seats: Sequence[str],
    shipped: Mapping[str, Policy],
    hosted: HostedSeats | None = None,
    parts: Sequence[Sequence[str]] = (),
    goes_on: bool = False,
    fit: Fit | None = None,
    check: Callable[[ChatEncoder], None] | None = None,
) -> tuple[list[Team], Stack | None]:
    """One team per spec, and the model that was loaded for them, if any needed one.

    Args:
        specs: as written on the command line.
        options: the language model.
        progress: told what is being done.
        seats: actors that every team plays.
        shipped: the workplace's scripted players.
        hosted: makes hosted models; None where none can sit.
        parts: of each spec the seats that its team takes; without, all of `seats`.
        goes_on: of the workplace.
        fit: budgets of the local model's prompts; None sets none.
        check: as for `load_model`.
    """
    named = names_and_sources(specs)
    local = local_sources(named, shipped)
    # Every name is checked before a model is loaded: a typing mistake should not cost a minute.
    places = parts or [seats] * len(named)
    adapters = [
        _adapters_of(source, taken, shipped) if source in local and source != BASE else {}
        for (_, source), taken in zip(named, places, strict=True)
    ]
    away: dict[int, Team] = {}
    for place, ((name, source), taken) in enumerate(zip(named, places, strict=True)):
        if is_hosted(source):
            if hosted is None:
                raise ConfigError(f"{source!r} is a hosted model, which cannot sit here. Name a local one.")
            away[place] = hosted.team(name, source, taken)

    def checked(chat: ChatEncoder) -> None:
        if fit is not None:
            fit.local(chat)
        if check is not None:
            check(chat)

    stack = load_model(options, progress, checked) if local else None
    budget = fit.local(stack.chat) if stack is not None and fit is not None else None
    made: list[Team] = []
    for place, ((name, source), taken, known) in enumerate(zip(named, places, adapters, strict=True)):
        if place in away:
            made.append(away[place])
        elif stack is None or source in shipped:
            made.append(scripted_team(name, shipped[source], taken))
        else:
            partner = shipped.get(PARTNER)
            if known and partner is not None and (without := [seat for seat in taken if seat not in known]):
                progress(f"{name}: no adapter of {', '.join(without)}; the {PARTNER} sits there")
            made.append(stack.team(name, known, taken, goes_on=goes_on, others=partner, prompt_budget=budget))
    return made, stack


def names_and_sources(specs: Sequence[str]) -> list[tuple[str, str]]:
    """Each spec as (name of the team, who plays)."""
    return [(name or default_name(source), source) for name, _, source in (spec.rpartition("=") for spec in specs)]


def local_sources(named: Sequence[tuple[str, str]], shipped: Collection[str]) -> list[str]:
    """Of `names_and_sources` those who are played by a model of this machine: neither scripted nor hosted."""
    return [source for _, source in named if source not in shipped and not is_hosted(source)]


def local_model(named: Sequence[tuple[str, str]], env: Env, options: ModelOptions) -> str:
    """The name of the local model where some of `names_and_sources` play it in `env`; else empty."""
    return options.name if local_sources(named, env.players()) else ""


def _adapters_of(source: str, seats: Sequence[str], shipped: Mapping[str, Policy]) -> dict[str, Adapter]:
    try:
        place_and_iteration(source)
    except ConfigError as error:
        players = (
            f"Here the scripted players are {', '.join(sorted(shipped))}." if shipped else "There are no scripted players here."
        )
        raise ConfigError(f"{error} {players}") from error
    return {role: adapter for role, adapter in adapters_for(source, seats).items() if role in seats}


def default_name(source: str) -> str:
    """Default name of a team: its folder's name, or a hosted model's own."""
    return source if is_hosted(source) else Path(source).name
