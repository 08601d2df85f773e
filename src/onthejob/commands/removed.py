"""Options that earlier versions had: how the command line, files for --config and recorded runs are checked for them.

A file or a record that states such an option with the value that holds for every run now reads as if it did not. With another
value a file is refused; a record is read, shown and replayed, and cannot be continued.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from onthejob.errors import ConfigError
from onthejob.learn.earlier import MOVED, SAME


class Removed(NamedTuple):
    """One option that is gone."""

    now: tuple[Any, ...]
    """Values with which runs are made today, as files and records hold them."""
    instead: str
    """A sentence or two: what holds now, or what to do."""
    kept: bool = False
    """The library still has the setting, so that recorded runs are continued with theirs."""


class Choice(NamedTuple):
    """One value that an option no longer takes."""

    option: str
    value: str
    successor: str
    """The nearest that it takes."""
    same: bool
    """The successor gives the same numbers, so that recorded runs are continued with it."""


_SERVER = "`onthejob serve model` and `serve trainer` have it; the server of a run needs none."
_JUDGE = "A judge is tried on known replies first and after every 200, and may miss a tenth of its scores. Leave it out."
_HOSTED = "In training a turn of a hosted model has 60 seconds and two attempts, and eight run side by side. Leave it out."
_LOSS = "`--loss path/to/file.py:function` takes a loss of yours with it (docs/plugins.md)."

TRAIN: Mapping[str, Removed] = {
    "adapter_dtype": Removed(("float32",), "Trained adapters are float32, which samples exactly what is trained. Leave it out."),
    "library_share": Removed((0.2,), "A fifth of the visited states is kept. Set --library-tasks for more of them.", True),
    "max_turns": Removed((1000,), "The environment limits its episodes: --env.max-turns, or `max_turns` of its class.", True),
    "runs": Removed((), "Runs are made in the folder `runs` of the working directory. Change the directory instead."),
    "learner.adam_eps": Removed((1e-8,), "Adam's epsilon is 1e-8. Leave it out."),
    "learner.weight_decay": Removed((0.0,), "Adapters are trained without weight decay. Leave it out."),
    "learner.max_grad_norm": Removed((1.0,), "Gradients are scaled down to the norm 1. Leave it out."),
    "learner.minibatches": Removed((1,), "All groups of an update make one step. Set --learner.epochs for more steps."),
    "learner.layout": Removed((), "Rows are a prefix tree, or padded where a model cannot compute one. Leave it out."),
    "learner.loss.level": Removed(("token",), "Set --loss gspo for one ratio per trajectory."),
    "learner.loss.delta": Removed((), _LOSS),
    "learner.loss.kl": Removed(("k3",), "The KL term is estimated by k3. Leave it out."),
    "learner.loss.kl_ratio": Removed((False,), "The KL term is not multiplied by the ratio. Leave it out."),
    "learner.loss.old": Removed(
        ("trainer",), "The ratio compares with the trainer's numbers; --learner.loss.correction corrects for the sampler's."
    ),
    "learner.loss.correction_min": Removed((), "A correction has no lower bound. Leave it out."),
    "learner.loss.correction_max": Removed((3.0,), "A correction is bounded by 3. Leave it out."),
    "learner.loss.max_completion_tokens": Removed((), "dr_grpo divides by --sampling.max-new-tokens. Leave it out.", True),
    "learner.advantage.negative_weight": Removed(
        (1.0,), "`--advantage path/to/file.py:function` takes an estimator of yours with it (docs/plugins.md)."
    ),
    "lora.dropout": Removed((0.0,), "Adapters are trained without dropout. Leave it out."),
    "judging.max_missing": Removed((0.1,), _JUDGE),
    "judging.min_items": Removed((20,), _JUDGE),
    "judging.canary_every": Removed((200,), _JUDGE),
    "judging.canary_gap": Removed((0.25,), _JUDGE),
    "judging.max_characters": Removed((6000,), "A judge reads at most 6,000 characters of an episode. Leave it out."),
    "judging.max_tokens": Removed((), "A verdict has as many tokens as the catalogue says, at least 64. Leave it out."),
    "hosted.deadline_s": Removed((60.0,), _HOSTED),
    "hosted.attempts": Removed((2,), _HOSTED),
    "hosted.parallel": Removed((8,), _HOSTED),
    "hosted.free_text": Removed((False,), "In training the office's hosted models reply by its schema. Leave it out."),
    "server.port": Removed((0,), f"A run's server takes a free port. {_SERVER}"),
    "server.dtype": Removed(("bfloat16",), f"A run's server holds the base in bfloat16. {_SERVER}"),
    "server.cpu_cache_gib": Removed((1,), f"A run's server has 1 GiB of keys and values on a CPU. {_SERVER}"),
    "server.startup_s": Removed((900.0,), f"A run waits 900 seconds for its server. {_SERVER}"),
    "server.extra": Removed(([],), f"A run's server takes no other arguments. {_SERVER}"),
    "server.probe_mean": Removed((0.1, 0.5), "The tolerance follows --model.quantize. Leave it out."),
    "server.probe_max": Removed((1.0, 8.0), "The tolerance follows --model.quantize. Leave it out."),
}  # fmt: skip
"""Option of `train` by its name on the command line -> what to do without it."""
COMMANDS: Mapping[str, Mapping[str, Removed]] = {
    "train": TRAIN,
    "sft": {
        "weight_decay": TRAIN["learner.weight_decay"],
        "max_grad_norm": TRAIN["learner.max_grad_norm"],
        "lora.dropout": TRAIN["lora.dropout"],
    },
    "serve trainer": {"lora.dropout": TRAIN["lora.dropout"]},
}
"""Command -> its options that are gone."""
CHOICES = (
    *(Choice(option, value, successor, same=True) for (option, value), successor in SAME.items()),
    Choice("learner.loss.correction", "sequence_truncate", "token_truncate", same=False),
    Choice("learner.loss.correction", "token_mask", "sequence_mask", same=False),
)
"""Values that options of `train` no longer take."""
SHORT = {"loss": "learner.loss.loss"}
"""Short names of those options."""
LOOP = "train"
"""Table of a file and of a record whose options have no prefix on the command line."""


def flag_of(name: str) -> str:
    """`--learner.adam-eps` of `learner.adam_eps`."""
    return f"--{name.replace('_', '-')}"


def check_words(command: str, words: Sequence[str]) -> None:
    """Refuse an option on the command line that is gone, or a value that one no longer takes."""
    gone = COMMANDS.get(command, {})
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        if not word.startswith("--"):
            continue
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if name in gone:
            raise ConfigError(f"{flag} is no longer an option of `{command}`. {gone[name].instead}")
        for table, now in MOVED.items() if command == LOOP else ():
            if name.startswith(f"{table}."):
                raise ConfigError(f"{flag} is now {flag_of(now + name.removeprefix(table))}.")
        for choice in CHOICES if command == LOOP else ():
            if (SHORT.get(name, name), value if equals else after) == choice[:2]:
                raise ConfigError(f"{flag} no longer takes {choice.value}. Set {flag} {choice.successor}.")


def check_file(options: Mapping[str, Any], default: Any, where: str) -> dict[str, Any]:
    """The options of a file without those that are gone.

    Args:
        options: tables as in the file.
        default: the command with the environment's defaults.
        where: the file, for the message.
    """
    kept, found = _split(options, record=False)
    for name, value in found.items():
        choice = next((choice for choice in CHOICES if choice[:2] == (name, value)), None)
        if choice is not None:
            raise ConfigError(f"{where}: {name} no longer takes {value!r}. Set {choice.successor!r}.")
        if value != _setting(default, name):
            raise ConfigError(f"{where}: {name} = {value!r} is no longer an option. {TRAIN[name].instead}")
    for table, now in MOVED.items():
        if _taken(kept, table):
            raise ConfigError(f"{where}: the table [{table}] is now [{LOOP}.{now}].")
    return kept


def check_record(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a record states without the options that are gone, and the values of those by name where another holds now."""
    kept, found = _split(options, record=True)
    for table, now in MOVED.items():
        if stated := _taken(kept, table):
            kept[LOOP] = {**kept.get(LOOP, {}), now: stated}
    return kept, found


def _taken(options: dict[str, Any], table: str) -> Any:
    """The table of this name, taken out of `options`; None where it has none."""
    parent, _, name = table.rpartition(".")
    return options[parent].pop(name, None) if isinstance(options.get(parent), dict) else None


def _split(table: Mapping[str, Any], *, record: bool, prefix: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """A table without what is gone, and what of that has another value than now, by the option's name."""
    kept: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = prefix + key
        gone = TRAIN.get(name)
        choice = next((choice for choice in CHOICES if choice[:2] == (name, value)), None)
        if isinstance(value, Mapping):
            kept[key], inside = _split(value, record=record, prefix="" if name == LOOP else f"{name}.")
            found |= inside
        elif choice is not None:
            if record and choice.same:
                kept[key] = choice.successor
            else:
                found[name] = value
        elif gone is None or (record and gone.kept):
            kept[key] = value
        elif value not in gone.now:
            found[name] = value
    return kept, found


def _setting(default: Any, name: str) -> Any:
    """What the library has for an option of this name where none is stated; None for one that it lacks too."""
    value = default if hasattr(default, name.partition(".")[0]) else default.train
    for part in name.split("."):
        value = getattr(value, part, None)
    return value
