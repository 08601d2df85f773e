"""`reasoning_gym:NAME`: a procedural dataset of Reasoning Gym, one prompt and one reply each, scored by the dataset itself.

Several names joined with + are mixed in equal parts. A task's item is made from the task's seed and split alone and is the same
in every process. A question belongs to one split, which is drawn from its text; a task takes the first item of its seed's that
is of its split. The answer is what stands between <answer> and </answer>, or the whole reply. Names and settings are checked
by the package, which runs in a process of its own; see `reasoning_gym_child`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Any, ClassVar

from onthejob.envs.env import Env
from onthejob.envs.exchange import Next, Reply
from onthejob.errors import ConfigError
from onthejob.interop.content_split import drawn_split
from onthejob.interop.reasoning_gym_items import items
from onthejob.keys import keyed_seed
from onthejob.types import Observation, Split, Task

WITHOUT_ANSWER = frozenset({"boxnet", "rush_hour"})
"""Datasets that score answers and know no right one."""
SHARES = {Split.TRAIN: 0.6, Split.DEV: 0.8, Split.TEST: 1.0}
"""Up to which draw a question belongs to a split; held-out ones are made again until they are, so they are not few."""
MOST_ITEMS = 500
"""Items that are made until one is of a task's split."""


class ReasoningGym(Env):
    """Items of Reasoning Gym, one reply each, scored by the dataset."""

    roles = ("agent",)
    max_turns = 1
    datasets: ClassVar[tuple[str, ...]] = ()
    """Names of the datasets; `environment` makes a subclass of each choice."""

    max_new_tokens: int = 128  # type: ignore[misc]
    """Limit of a reply in tokens."""
    config: str = ""
    """Settings of the dataset: key=value,key=value or a JSON object. With several datasets a key is NAME.KEY."""
    count: int = 200
    """Tasks of each split."""
    system: str = ""
    """System message: a text, or the name of one of the package's, which are DeepSeekZero, default, simple, direct and
    chain_of_draft and ask for <answer> tags."""

    def tasks(self, split: Split) -> list[Task]:
        """Tasks that differ by their seed; with several datasets they take turns."""
        for name, settings in self._settings().items():
            if wrong := items().checked(name, settings):
                raise ConfigError(f"--env.config: {wrong}.")
        made = self.seeded(split, count=self.count)
        for number, task in enumerate(made[: len(self.datasets)]):
            self._of_split(self._name(number), task)
        return [
            Task(id=task.id, env=task.env, split=split, seed=task.seed, payload={"family": self._name(number)})
            for number, task in enumerate(made)
        ]

    def reset(self, task: Task) -> Next:
        """Show the question of the task's seed."""
        self.dataset = str(task.payload["family"])
        self.settings = self._settings()[self.dataset]
        self.seed = self._of_split(self.dataset, task)
        question = items().item(self.dataset, self.settings, self.seed).question
        system = items().prompts().get(self.system, self.system) if self.system else ""
        return self.ask("agent", question, system=system, view={"dataset": self.dataset, "seed": self.seed})

    def step(self, reply: str) -> Next:
        """Score the reply."""
        reward, unusable = items().score(self.dataset, self.settings, self.seed, reply)
        return self.end(reward=reward, metrics={"correct": float(reward >= 0.99)}, valid=not unusable)

    def players(self) -> Mapping[str, Reply]:
        """`gold` knows the right answer, where the datasets know one."""
        return {} if WITHOUT_ANSWER & set(self.datasets) else {"gold": self._gold}

    def fingerprint(self) -> str:
        """The version of the package and the settings."""
        return f"reasoning-gym {version('reasoning-gym')} {json.dumps(self._settings(), sort_keys=True)}"

    def _gold(self, seen: Observation, _seed: int) -> str:
        name = str(seen.view["dataset"])
        answer = items().item(name, self._settings()[name], int(seen.view["seed"])).answer
        if answer is None:
            raise RuntimeError(f"reasoning_gym:{name} knows no answer of seed {seen.view['seed']}.")
        return answer

    def _of_split(self, name: str, task: Task) -> int:
        """Seed of the item that a task shows."""
        return seed_of_split(name, self._settings()[name], task.split, task.seed)

    def _name(self, number: int) -> str:
        return self.datasets[number % len(self.datasets)]

    def _settings(self) -> dict[str, str]:
        """Name of a dataset -> its settings as JSON."""
        given = parsed(self.config)
        if len(self.datasets) == 1:
            return {self.datasets[0]: json.dumps(given, sort_keys=True)}
        by_name: dict[str, dict[str, Any]] = {name: {} for name in self.datasets}
        for key, value in given.items():
            name, dot, setting = key.partition(".")
            if name not in by_name or not (dot or isinstance(value, dict)):
                first = self.datasets[0]
                raise ConfigError(f"--env.config has the key {key!r}; with several datasets write {first}.KEY=value.")
            by_name[name] |= {setting: value} if dot else value
        return {name: json.dumps(settings, sort_keys=True) for name, settings in by_name.items()}


@lru_cache(maxsize=4096)
def seed_of_split(name: str, settings: str, split: Split, seed: int) -> int:
    """`seed` where the question of it is of the split, else the first of those that are drawn from it whose question is."""
    for attempt in range(MOST_ITEMS):
        # Some datasets take no seed of more than 32 bits.
        one = keyed_seed(seed, "item", attempt) % 2**31 if attempt else seed
        if drawn_split(items().item(name, settings, one).question, SHARES) is split:
            return one
    raise ConfigError(
        f"reasoning_gym:{name} makes too few different questions with {settings}: of {MOST_ITEMS} none is of {split}, and no "
        "question may be in two splits. Widen --env.config, e.g. with longer or larger numbers."
    )


def parsed(text: str) -> dict[str, Any]:
    """The settings that --env.config states."""
    if not text.strip():
        return {}
    form = f"--env.config must be key=value,key=value or a JSON object such as '{{\"min_terms\": 2}}', got {text!r:.60}."
    if text.lstrip().startswith("{"):
        try:
            return dict(json.loads(text))
        except ValueError as error:
            raise ConfigError(form) from error
    found = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(form)
        found[key.strip()] = _value(value.strip())
    return found


def environment(what: str) -> type[ReasoningGym]:
    """The environment of one dataset, or of several joined with +.

    Raises:
        ConfigError: there is no such dataset.
        MissingDependency: the package is not installed.
    """
    known, names = items().names(), tuple(what.split("+"))
    for name in names:
        if name == "composite":
            raise ConfigError("reasoning_gym:composite is no dataset. Join names with +: reasoning_gym:chain_sum+gcd.")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=5, cutoff=0.5)
            raise ConfigError(
                f"reasoning-gym has no dataset {name!r}. {'Near it are' if near else 'Known are'} {', '.join(near or known)}."
            )
    if len(set(names)) != len(names):
        raise ConfigError(f"reasoning_gym:{what} names a dataset twice. Name each once.")
    return _kind(names)


def anchored(what: str) -> str:
    """A name is the same from every folder."""
    return what


@cache
def _kind(names: tuple[str, ...]) -> type[ReasoningGym]:
    members = {"datasets": names, "__module__": __name__, "__doc__": f"{', '.join(names)} of Reasoning Gym, one reply each."}
    return type("".join(part.capitalize() for part in "_".join(names).split("_")), (ReasoningGym,), members)


def _value(text: str) -> Any:
    """A number, true, false, null or a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
