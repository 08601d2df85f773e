"""A base model with everything around it, assembled: adapters, learner, encoder, samplers, teams.

The base is loaded once; every sampler and the learner share its weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from onthejob.errors import ConfigError, ModelError
from onthejob.evaluate.teams import Team, adapter_fingerprint
from onthejob.types import Adapter, Message, Policy

if TYPE_CHECKING:
    from onthejob.learn.learner import Learner, LearnerConfig
    from onthejob.learn.lora import LoraSpec
    from onthejob.models.base import Dtype
    from onthejob.models.chat import ChatEncoder
    from onthejob.models.sampler import Sampler
    from onthejob.record import Run

log = logging.getLogger(__name__)

Progress = Callable[[str], None]
META = "adapter_meta.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One base model in this process. Make it with `load_stack`."""

    model: Any
    """The bare base, or a PeftModel around it once `learner` was called."""
    chat: ChatEncoder
    digest: str
    """Of the base's weights on disk."""
    numerics: str = ""
    """In what they are held and computed, e.g. `float32-cpu` or `bfloat16-nf4-cuda`; part of the fingerprints of teams."""

    def sampler(self, *, goes_on: bool = False) -> Sampler:
        """A sampler of its own (adapter names repeat between runs, so every team has one) on the shared weights."""
        from onthejob.models.sampler import Sampler

        return Sampler(self.model, self.chat, base_digest=self.digest, goes_on=goes_on)

    def fingerprint(self, adapter: Adapter | None) -> str:
        """Under which this base's replies, with an adapter or without one, are cached."""
        return adapter_fingerprint(self.digest, adapter, numerics=self.numerics)

    def replies(self, messages: Sequence[Message]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """(prompt ids, reply ids) of every assistant message of a conversation, each prompt grown from the one before it.

        The prompts are those that a sampler is given when it plays the same conversation, token for token.

        Raises:
            ConfigError: no assistant message, or nothing before the first one.
        """
        found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        prompt: tuple[int, ...] = ()
        heard: list[Message] = []
        for message in messages:
            if message.role != "assistant":
                heard.append(message)
                continue
            if not heard:
                raise ConfigError("a conversation must not begin with a reply, nor hold two in a row. Collect it again.")
            prompt = self.chat.extend(*found[-1], heard) if found else self.chat.encode(heard)
            found.append((prompt, self.chat.reply_ids(message.content)))
            heard = []
        if not found:
            raise ConfigError(f"a conversation needs a reply to learn from, got {len(messages)} messages without one.")
        return found

    def team(
        self,
        name: str,
        adapters: Mapping[str, Adapter],
        seats: Sequence[str],
        *,
        goes_on: bool = False,
        others: Policy | None = None,
    ) -> Team:
        """The model in `seats`: with its adapters, or without any in all of them as it is.

        Where only some seats have an adapter, `others` takes the rest: a role that was trained among scripted partners is not
        worth what the bare model makes of the other seats. None leaves those to the bare model.
        """
        from onthejob.models.in_process import InProcessPolicy

        sampler = self.sampler(goes_on=goes_on)
        for adapter in adapters.values():
            sampler.publish(adapter)
        policies: dict[str, Policy] = {}
        fingerprints: dict[str, str] = {}
        for seat in seats:
            adapter = adapters.get(seat)
            if adapter is None and adapters and others is not None:
                policies[seat], fingerprints[seat] = others, others.version
                continue
            policies[seat] = InProcessPolicy(sampler, self.chat, adapter=None if adapter is None else adapter.name)
            fingerprints[seat] = self.fingerprint(adapter)
        learned = frozenset(adapters) if adapters else frozenset(seats)
        return Team(name=name, policies=policies, fingerprints=fingerprints, learned=learned)


def load_stack(
    model: str,
    *,
    dtype: Dtype = "bfloat16",
    device: str = "cpu",
    quantize: Literal["none", "nf4"] = "none",
    progress: Progress | None = None,
) -> Stack:
    """Fetch and load a base model.

    Args:
        model: as for `onthejob model fetch`.
        dtype: of the base's weights in memory; adapters are float32.
        device: torch device.
        quantize: as for `load_base`.
        progress: told in words what is being done.

    Raises:
        ConfigError, MissingDependency, ModelError: it cannot be fetched or loaded.
    """
    from onthejob.models.base import check_device, load_base
    from onthejob.models.chat import ChatEncoder
    from onthejob.models.fetch import fetch

    check_device(device)  # before anything is downloaded
    base = load_base(fetch(model, progress=progress), dtype=dtype, device=device, quantize=quantize)
    held = dtype if quantize == "none" else f"{dtype}-{quantize}"
    numerics = f"{held}-{base.model.device.type}"
    return Stack(model=base.model, chat=ChatEncoder(base.tokenizer), digest=base.digest, numerics=numerics)


def describe_stack(model: str, *, digest: str, progress: Progress | None = None) -> Stack:
    """A stack whose base has no weights: for a run whose replies and updates others make.

    Args:
        model: as for `onthejob model fetch`; only its configuration and tokenizer are needed here.
        digest: of the weights that the others compute with.
        progress: told in words what is being done.

    Raises:
        ConfigError, ModelError: it cannot be fetched or read.
    """
    from onthejob.models.base import describe_base
    from onthejob.models.chat import ChatEncoder
    from onthejob.models.fetch import fetch

    base = describe_base(fetch(model, weights=False, progress=progress), digest=digest)
    return Stack(model=base.model, chat=ChatEncoder(base.tokenizer), digest=digest)


def attach_learner(
    stack: Stack,
    roles: Sequence[str],
    *,
    lora: LoraSpec,
    config: LearnerConfig,
    seed: int,
    init: Mapping[str, Adapter] | None = None,
) -> tuple[Stack, Learner]:
    """Put one adapter per role on the stack's base, filled from `init` where it has the role.

    Returns:
        The stack around the PEFT model, and a learner of it. The given stack must not be used to train any more.
    """
    from onthejob.learn.adapter_files import load_adapter
    from onthejob.learn.learner import Learner
    from onthejob.learn.lora import attach

    model = attach(stack.model, roles, lora, seed=seed)
    for role in roles:
        if init and role in init:
            load_adapter(model, role, init[role], base_digest=stack.digest)
    learner = Learner(model, roles, config=config, seed=seed)
    return replace(stack, model=model), learner


def shape_of(adapters: Mapping[str, Adapter], asked: LoraSpec, *, where: str) -> LoraSpec:
    """The LoRA shape of saved adapters: training goes on in it, also of roles that have none.

    Only configurations are read, so that nothing needs to be loaded to learn that an option does not fit.

    Args:
        adapters: role -> adapter; none gives `asked`.
        asked: as the options say; what is at its default follows the adapters.
        where: what the adapters are called in an error.

    Raises:
        ConfigError: the adapters differ among each other, or from an option that was set.
        ModelError: one states no shape.
    """
    from onthejob.learn.adapter_files import read_spec
    from onthejob.learn.lora import LoraSpec

    found = {role: read_spec(adapter.path) for role, adapter in sorted(adapters.items())}
    if not found:
        return asked
    first, spec = next(iter(found.items()))
    learns = asked.logit_scale or any(other.logit_scale for other in found.values())
    for role, other in found.items():
        if _words(other) != _words(spec):
            raise ConfigError(
                f"the adapters of {where} differ in shape: {first} has {_words(spec)}, {role} has {_words(other)}; roles that "
                "are trained together have one shape. Name roles of one shape with --roles."
            )
    usual = LoraSpec()
    for name in ("rank", "alpha", "targets"):
        want, default, have = getattr(asked, name), getattr(usual, name), getattr(spec, name)
        if name == "targets":
            want, default, have = (tuple(sorted(value)) for value in (want, default, have))
        if want not in (default, have):
            raise ConfigError(
                f"--lora.{name} {_plain(want)} does not fit the adapters of {where}, which have {_plain(have)}. "
                f"Leave --lora.{name} out: adapters go on in their own shape."
            )
    # Equal but for the order of targets: stays as it was written.
    return replace(asked if _words(asked) == _words(spec) else spec, logit_scale=learns)


def _words(spec: LoraSpec) -> str:
    return f"rank {spec.rank}, alpha {spec.alpha:g}, targets {_plain(tuple(sorted(spec.targets)))}"


def _plain(value: float | tuple[str, ...]) -> str:
    return " ".join(value) if isinstance(value, tuple) else f"{value:g}"


def find_adapters(source: Path, *, at: str = "") -> dict[str, Adapter]:
    """Role -> its newest adapter in `source`: a run, a folder of adapters, or one adapter.

    Args:
        source: where they are.
        at: of a run, the adapters with which it stood after the iteration `at`, a number or `best`, the one that its evaluation
            on held-out tasks chose; empty for the newest.

    Raises:
        ConfigError: there is no such folder, or it holds no adapter (of that iteration).
        ModelError: two different adapters claim the same role and version, or one is damaged.
    """
    from onthejob.learn.adapter_files import read_adapter
    from onthejob.record import Run

    if not source.is_dir():
        raise ConfigError(f"{source} is neither a run nor a folder of adapters. `onthejob runs ls` lists the runs of a folder.")
    if (source / "run.sqlite").is_file():
        # The record says which adapters count: a killed run may have left others behind.
        with Run.open(source, readonly=True) as run:
            last = _iteration(run, at) if at else None
            found = [adapter for adapter in run.adapters() if last is None or adapter.version <= last]
    elif at:
        raise ConfigError(f"{source} is no run, so it has no iteration {at!r}. Leave `:{at}` out.")
    else:
        found = [read_adapter(path.parent) for path in sorted(source.rglob(META))]
    newest: dict[str, Adapter] = {}
    for adapter in found:
        held = newest.get(adapter.role)
        if held is not None and held.version == adapter.version and held.digest != adapter.digest:
            raise ModelError(f"{source} holds two versions {adapter.version} of {adapter.role}. Name the folder of one of them.")
        if held is None or adapter.version > held.version:
            newest[adapter.role] = adapter
    if not newest:
        raise ConfigError(f"{source} holds no adapter ({META} is in none of its folders). Give a run or a folder of adapters.")
    return newest


def _iteration(run: Run, at: str) -> int:
    """The number that `at` means in `run`."""
    if at == "best":
        chosen = run.read_metrics("eval", name="best_iteration")
        if not chosen:
            raise ConfigError(f"{run.path} was never evaluated, so no iteration is the best. Train with --eval-every 5.")
        return int(chosen[-1].value)
    if not at.isdigit() or int(at) not in run.iterations():
        raise ConfigError(f"{run.path} has iterations 0 to {run.last_iteration()}, got {at!r}. Give one of them, or `best`.")
    return int(at)
