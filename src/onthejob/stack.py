"""A base model with everything around it, assembled: adapters, learner, encoder, samplers, teams.

The base is loaded once; every sampler and the learner share its weights.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from onthejob.errors import ConfigError, ModelError
from onthejob.evaluate.teams import Team, adapter_fingerprint
from onthejob.types import Adapter, Policy, PromptBudget

if TYPE_CHECKING:
    from onthejob.learn.learner import Learner, LearnerConfig
    from onthejob.learn.lora import LoraSpec
    from onthejob.models.base_model import Dtype
    from onthejob.models.chat import ChatEncoder
    from onthejob.models.sampler import Sampler
    from onthejob.record import Run

log = logging.getLogger(__name__)

Progress = Callable[[str], None]
CONFIG, META = "adapter_config.json", "adapter_meta.json"


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
        from onthejob.models.template import written_arguments

        numerics = "-".join((self.numerics, *written_arguments(self.chat.arguments)))
        return adapter_fingerprint(self.digest, adapter, numerics=numerics)

    def team(
        self,
        name: str,
        adapters: Mapping[str, Adapter],
        seats: Sequence[str],
        *,
        goes_on: bool = False,
        others: Policy | None = None,
        prompt_budget: PromptBudget | None = None,
    ) -> Team:
        """The model in `seats`: with its adapters, or without any in all of them as it is.

        Where only some seats have an adapter, `others` takes the rest: a role that was trained among scripted partners is not
        worth what the bare model makes of the other seats. None leaves those to the bare model.
        `prompt_budget` is that of the prompts which the model reads.
        """
        from onthejob.models.adapter_policy import AdapterPolicy

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
            policies[seat] = AdapterPolicy(
                sampler, self.chat, adapter=None if adapter is None else adapter.name, prompt_budget=prompt_budget
            )
            fingerprints[seat] = self.fingerprint(adapter)
        learned = frozenset(adapters) if adapters else frozenset(seats)
        return Team(name=name, policies=policies, fingerprints=fingerprints, learned=learned)


def load_stack(
    model: str,
    *,
    dtype: Dtype = "bfloat16",
    device: str = "cpu",
    quantize: Literal["none", "nf4"] = "none",
    arguments: Sequence[str] = (),
    check: Callable[[ChatEncoder], None] | None = None,
    progress: Progress | None = None,
) -> Stack:
    """Fetch and load a base model.

    Args:
        model: as for `onthejob model fetch`.
        dtype: of the base's weights in memory; adapters are float32.
        device: torch device.
        quantize: as for `load_base`.
        arguments: of the chat template, each `NAME=VALUE`.
        check: called with the encoder before the weights are read: what it refuses costs no loading.
        progress: told in words what is being done.

    Raises:
        ConfigError, MissingDependency, ModelError: it cannot be fetched or loaded.
    """
    from onthejob.models.base_model import check_device, load_base
    from onthejob.models.encoder import load_encoder
    from onthejob.models.fetch import fetch
    from onthejob.models.template import read_arguments

    check_device(device)  # before anything is downloaded
    read = read_arguments(arguments)
    folder = fetch(model, progress=progress)
    chat = load_encoder(folder, arguments=read)
    if check is not None:
        check(chat)
    base = load_base(folder, dtype=dtype, device=device, quantize=quantize, tokenizer=chat.tokenizer)
    held = dtype if quantize == "none" else f"{dtype}-{quantize}"
    numerics = f"{held}-{base.model.device.type}"
    return Stack(model=base.model, chat=chat, digest=base.digest, numerics=numerics)


def describe_stack(model: str, *, digest: str, arguments: Sequence[str] = (), progress: Progress | None = None) -> Stack:
    """A stack whose base has no weights: for a run whose replies and updates others make.

    Args:
        model: as for `onthejob model fetch`; only its configuration and tokenizer are needed here.
        digest: of the weights that the others compute with.
        arguments: as for `load_stack`.
        progress: told in words what is being done.

    Raises:
        ConfigError, ModelError: it cannot be fetched or read.
    """
    from onthejob.models.base_model import describe_base
    from onthejob.models.encoder import load_encoder
    from onthejob.models.fetch import fetch
    from onthejob.models.template import read_arguments

    read = read_arguments(arguments)
    folder = fetch(model, weights=False, progress=progress)
    return Stack(model=describe_base(folder, digest=digest).model, chat=load_encoder(folder, arguments=read), digest=digest)


def plan_lora(model: str, asked: LoraSpec, *, progress: Progress | None = None) -> LoraSpec:
    """`asked` with the names of the layers that its targets mean in a base model; reports what will be trained.

    Only the model's configuration is read, so that a wrong target costs neither a download nor the loading of weights.

    Args:
        model: as for `onthejob model fetch`.
        asked: shape of the adapters.
        progress: receives the sentence.

    Raises:
        ConfigError: a target that matches nothing, or anything that takes no adapter.
        ModelError: the configuration cannot be read.
    """
    from onthejob.learn.lora import plan
    from onthejob.models.base_model import skeleton
    from onthejob.models.fetch import fetch

    targets = plan(skeleton(fetch(model, weights=False, progress=progress)), asked)
    if progress is not None:
        progress(targets.describe(asked.rank))
    return replace(asked, targets=targets.names)


def check_sampler(model: str, *, progress: Progress | None = None) -> None:
    """Refuse a base model that the in-process sampler cannot run, before its weights are fetched or loaded.

    Raises:
        ConfigError, ModelError: it cannot be fetched, or its cache is of another kind.
    """
    from transformers import AutoConfig

    from onthejob.models.fetch import fetch
    from onthejob.models.generic import check_cache

    folder = fetch(model, weights=False, progress=progress)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"the configuration at {folder} cannot be read: {error}. Fetch the model again.") from error
    check_cache(config)


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
    """The LoRA shape of saved adapters: training continues in it, also of roles that have none.

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
                f"Leave --lora.{name} out: adapters continue in their own shape."
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
        found = [read_adapter(folder) for folder in adapter_folders(source).values()]
    newest: dict[str, Adapter] = {}
    for adapter in found:
        held = newest.get(adapter.role)
        if held is not None and held.version == adapter.version and held.digest != adapter.digest:
            raise ModelError(f"{source} holds two versions {adapter.version} of {adapter.role}. Name the folder of one of them.")
        if held is None or adapter.version > held.version:
            newest[adapter.role] = adapter
    if not newest:
        foreign = next(folders_with(source, CONFIG), None)
        remedy = (
            f"That of another program in {foreign} can be taken in: onthejob adapters import {foreign} --role ROLE."
            if foreign is not None
            else "Give a run or a folder of adapters."
        )
        raise ConfigError(f"{source} holds no adapter ({META} is in none of its folders). {remedy}")
    return newest


def adapter_folders(source: Path) -> dict[Path, Path]:
    """Every folder in `source` (or itself) that holds an adapter, sorted -> itself, or what it is a symbolic link to."""
    return {folder: folder.resolve() if folder.is_symlink() else folder for folder in sorted(folders_with(source, META))}


def folders_with(source: Path, name: str) -> Iterator[Path]:
    """Every folder in `source` (or itself) that holds a file `name`; links are followed, and each folder is met once."""
    met: set[Path] = set()
    for folder, below, files in os.walk(source, followlinks=True):
        if (real := Path(folder).resolve()) in met:
            below.clear()
            continue
        met.add(real)
        below.sort()
        if name in files:
            yield Path(folder)


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
