"""What PettingZoo's and Gymnasium's view of the office have in common: spaces, which episode comes next, observations, replies.

Three ways to look and to act, for three kinds of users:

    observations="text", actions="text"        language models: the prompt, and a reply as it would be written to a model
    observations="dict", actions="discrete"    networks with a mask: {"observation": vector, "action_mask": mask, "text": prompt}
    observations="vector", actions="discrete"  libraries that want a plain Box; the mask is in `info["action_mask"]`

With `actions="text"` there is no mask, and `observations="dict"` holds vector and text. Replies of every kind are accepted: what
cannot be executed does nothing and costs 1.
"""

from __future__ import annotations

import json
import string
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from onthejob.compat.discrete import DiscreteActions
from onthejob.compat.features import LIMIT, Features
from onthejob.envs.office.actions import IDLE, MAX_ATTEMPTS, MAX_REPLY_BYTES, render
from onthejob.envs.office.env import INVALID_KEY, SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.observation import OfficeObservation
from onthejob.envs.office.scenarios import load
from onthejob.envs.office.tasks import FIRST_SEED, MAX_DAYS, SEED_COUNT
from onthejob.errors import ConfigError, ContractError, MissingDependency
from onthejob.types import Kind, Split, Step, Task

try:
    from gymnasium import spaces
except ImportError as error:
    raise MissingDependency(
        "this interface needs gymnasium, which is not installed. Install onthejob[gymnasium] or onthejob[pettingzoo]."
    ) from error

OBSERVATIONS = ("text", "dict", "vector")
ACTIONS = ("text", "discrete")
RENDER_MODES = ("human", "ansi")
CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n"
"""What texts of a space consist of. An observation shows another character as `?`; a reply may hold any."""
MAX_TEXT = 16_384
"""Characters of an observation; what is longer is cut at its end."""
IDLE_REPLY = render(IDLE)

Observed = dict[str, Any] | np.ndarray | str
Chosen = str | int | np.integer[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfficeOptions:
    """How the office presents itself through another interface."""

    observations: str = "dict"
    """`text`, `dict` or `vector`."""
    actions: str = "discrete"
    """`text` or `discrete`."""
    scenarios: Sequence[str] = ("baseline",)
    """Names or TOML paths; each episode takes one of them at random."""
    split: Split = Split.TRAIN
    """From which seeds episodes are drawn; dev and test seeds are for evaluation."""
    days: int = 30
    """Length of an episode in days of two rounds, 1 to 90."""
    profile: str = "compact"
    """Of the text, `compact` or `full`."""
    retries: int = 0
    """Corrections of an unusable reply, 0 to 8, for agents that act by text in turn: the same agent is asked again, and its text
    ends with feedback that grows. Only the last unusable reply costs anything."""

    @classmethod
    def of(cls, given: Mapping[str, Any], *others: str) -> Self:
        """Options from keyword arguments; `others` are the names that the interface itself takes, for the message.

        Raises:
            ConfigError: an unknown name, or a value that cannot work.
        """
        known = cls.__dataclass_fields__
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise ConfigError(f"unknown option {', '.join(unknown)}; known are {', '.join((*known, *others))}.")
        return cls(**given)

    def __post_init__(self) -> None:
        for name, value, allowed in (("observations", self.observations, OBSERVATIONS), ("actions", self.actions, ACTIONS)):
            if value not in allowed:
                raise ConfigError(f"{name} must be one of {', '.join(allowed)}, got {value!r}.")
        if isinstance(self.scenarios, str) or not self.scenarios:
            raise ConfigError(f"scenarios must be a list of names, got {self.scenarios!r}. Write e.g. ('baseline', 'churn').")
        if not isinstance(self.split, str) or self.split not in list(Split):
            raise ConfigError(f"split must be one of {', '.join(Split)}, got {self.split!r}.")
        if isinstance(self.days, bool) or not isinstance(self.days, int) or not 1 <= self.days <= MAX_DAYS:
            raise ConfigError(f"days must be a whole number in 1..{MAX_DAYS}, got {self.days!r}.")
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or not 0 <= self.retries <= MAX_ATTEMPTS:
            raise ConfigError(f"retries must be a whole number in 0..{MAX_ATTEMPTS}, got {self.retries!r}.")
        if self.retries and self.actions != "text":
            raise ConfigError(
                f"retries={self.retries} has no effect with actions={self.actions!r}: a number is never malformed, and the mask "
                "says what is possible. Set actions='text', or leave retries out."
            )
        if self.retries and self.observations == "vector":
            raise ConfigError(
                f"retries={self.retries} has no effect with observations='vector', in which no feedback can be shown. "
                "Set observations='text' or 'dict', or leave retries out."
            )


@dataclass(slots=True)
class Seat:
    """What is fixed about one role's place at the interface."""

    role: str
    observations: str
    actions: str
    codec: DiscreteActions = field(init=False)
    features: Features = field(init=False)
    observation_space: spaces.Space[Any] = field(init=False)
    action_space: spaces.Space[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.codec, self.features = DiscreteActions(self.role), Features(self.role)
        vector = spaces.Box(-LIMIT, LIMIT, (len(self.features),), np.float32)
        text = spaces.Text(MAX_TEXT, min_length=0, charset=CHARACTERS)
        both: dict[str, spaces.Space[Any]] = {"observation": vector, "text": text}
        if self.actions == "discrete":
            both["action_mask"] = spaces.Box(0, 1, (len(self.codec),), np.int8)
        self.observation_space = {"text": text, "vector": vector, "dict": spaces.Dict(both)}[self.observations]
        self.action_space = (
            spaces.Discrete(len(self.codec))
            if self.actions == "discrete"
            else spaces.Text(MAX_REPLY_BYTES, min_length=0, charset=CHARACTERS)
        )

    def observe(self, env: OfficeEnvironment, request: OfficeObservation) -> Observed:
        """What the role sees, an element of `observation_space`."""
        if self.observations == "text":
            return prompt_text(request)
        if self.observations == "vector":
            return self.features(request.view)
        seen: dict[str, Any] = {"observation": self.features(request.view), "text": prompt_text(request)}
        return seen | ({"action_mask": self.mask(env, request)} if self.actions == "discrete" else {})

    def mask(self, env: OfficeEnvironment, request: OfficeObservation) -> np.ndarray:
        """(n,) int8, 1 where the numbered action is possible."""
        return self.codec.mask(env, request.view)

    def nothing(self) -> Observed:
        """What is seen when an episode is over: zeros and no text."""
        zeros = np.zeros(len(self.features), dtype=np.float32)
        if self.observations != "dict":
            return "" if self.observations == "text" else zeros
        seen: dict[str, Any] = {"observation": zeros, "text": ""}
        return seen | ({"action_mask": np.zeros(len(self.codec), dtype=np.int8)} if self.actions == "discrete" else {})

    def reply(self, action: Chosen, request: OfficeObservation) -> str:
        """The text of `action`.

        Raises:
            ConfigError: an action of another type than `action_space` has, or a number beyond it.
        """
        if self.actions == "text":
            if isinstance(action, str):
                return action
            raise ConfigError(
                f"{self.role} acts by text, got {action!r}. Pass a string, or make the office with actions='discrete'."
            )
        if isinstance(action, np.ndarray) and action.shape == ():
            action = action.item()
        if isinstance(action, bool) or not isinstance(action, int | np.integer):
            raise ConfigError(f"{self.role} acts by a number in 0..{len(self.codec) - 1}, got {action!r}.")
        return self.codec.reply(int(action), request.view)


class OfficeTable:
    """One office with its six seats, and the sequence of its episodes."""

    def __init__(self, options: OfficeOptions) -> None:
        """Set up; `begin` starts an episode.

        Raises:
            ConfigError: an unknown scenario or profile.
        """
        self.options = options
        for scenario in options.scenarios:
            load(scenario)
        self.env = OfficeEnvironment(OfficeConfig(profile=options.profile, days=options.days, retries=options.retries))
        self.seats = {role: Seat(role, options.observations, options.actions) for role in SEATS}
        self.task: Task | None = None
        self.last: Step | None = None
        """What the last reply did."""
        self.turn = 0
        """Replies executed in this episode."""

    def begin(self, generator: np.random.Generator, given: Mapping[str, Any] | None) -> None:
        """Start the episode that `given["task"]` names, or else one drawn with `generator` from the split.

        Other keys of `given` are ignored, as the interfaces' conformance tests demand.

        Raises:
            ConfigError: `task` is no office task.
        """
        task = (given or {}).get("task")
        if task is None:
            task = self._draw(generator)
        elif not isinstance(task, Task) or task.env != "office":
            raise ConfigError(f"options['task'] must be a task of the office, got {task!r}. `office_tasks` makes some.")
        self.task, self.last, self.turn = task, None, 0
        self.env.reset(task)

    def _draw(self, generator: np.random.Generator) -> Task:
        options = self.options
        which = int(generator.integers(len(options.scenarios)))
        split, scenario = Split(options.split), options.scenarios[which]
        seed = FIRST_SEED[split] + int(generator.integers(SEED_COUNT[split]))
        payload = {"scenario": scenario, "days": options.days}
        return Task(id=f"office-{scenario}-{seed}-d{options.days}", env="office", split=split, seed=seed, payload=payload)

    def asked(self) -> OfficeObservation | None:
        """The pending request; None when the episode is over."""
        return self.env.observe()

    def request(self, role: str) -> OfficeObservation:
        """What `role` is, or would be, shown now: a whole prompt, which feedback on an unusable reply ends."""
        pending = self.env.observe()
        if pending is None or pending.actor != role:
            return self.env.look(role)
        if pending.kind is not Kind.RETRY:
            return pending
        first = self.env.look(role)
        return OfficeObservation(role, first.view, lambda: (*first.messages, *pending.messages), kind=Kind.RETRY)

    def observe(self, role: str) -> Observed:
        """What `role` sees now through its seat."""
        seat = self.seats[role]
        return seat.nothing() if self.env.observe() is None else seat.observe(self.env, self.request(role))

    def mask(self, role: str) -> npt.NDArray[np.int8]:
        """(n,) 1 where an action of `role` is possible now, else 0; all 0 when the episode is over.

        Raises:
            ContractError: actions are texts, or nothing was reset.
        """
        seat = self.seats[role]
        if seat.actions != "discrete":
            raise ContractError(f"only actions='discrete' has a mask, got actions={seat.actions!r}.")
        if self.task is None:
            raise ContractError("a mask needs a running episode. Call reset first.")
        if self.env.observe() is None:
            return np.zeros(len(seat.codec), dtype=np.int8)
        return seat.mask(self.env, self.request(role))

    def info(self, role: str) -> dict[str, Any]:
        """The mask where the observation has no room for it; otherwise empty."""
        seat = self.seats[role]
        return {} if seat.actions != "discrete" or seat.observations == "dict" else {"action_mask": self.mask(role)}

    def step(self, reply: str) -> Step:
        """Execute the reply of the role that is asked."""
        self.last = self.env.step(reply)
        self.turn += 1
        return self.last

    def snapshot(self) -> bytes:
        """The episode as it is now: JSON that names the task, then the office's own snapshot.

        Raises:
            ContractError: nothing was reset.
        """
        if self.task is None:
            raise ContractError("a snapshot needs a running episode. Call reset first.")
        task = {"id": self.task.id, "split": self.task.split, "seed": self.task.seed, "payload": dict(self.task.payload)}
        pending = self.env.observe()
        head = json.dumps({"task": task, "turn": self.turn, "asked": pending and pending.actor}, default=str).encode()
        return len(head).to_bytes(4, "big") + head + self.env.snapshot()

    def restore(self, snapshot: bytes, *, asked: str) -> None:
        """Continue from `snapshot`, which was taken with the same profile; this table is unchanged when it cannot.

        Args:
            snapshot: of any table.
            asked: the role that must be asked in it, unless the episode is over.

        Raises:
            ContractError: the bytes are no such snapshot.
        """
        size = int.from_bytes(snapshot[:4], "big")
        try:
            head = json.loads(snapshot[4 : 4 + size])
            fields, turn, pending = head["task"], int(head["turn"]), head["asked"]
            seed, payload = int(fields["seed"]), dict(fields["payload"])
            task = Task(id=fields["id"], env="office", split=Split(fields["split"]), seed=seed, payload=payload)
        except (LookupError, TypeError, ValueError) as error:
            raise ContractError(f"not a snapshot: {error}. Restore what snapshot() returned.") from error
        if pending not in (None, asked):
            raise ContractError(f"in this snapshot {pending} is asked, not {asked}. Restore it in an environment of {pending}.")
        self.env.restore(snapshot[4 + size :])
        self.task, self.turn, self.last = task, turn, None

    def possible(self, role: str, reply: str) -> bool:
        """True when `reply` of `role` could be executed as things are now."""
        return self.env.canonical(reply, actor=role) != INVALID_KEY

    def render(self, mode: str | None) -> str | None:
        """The company in a few lines: returned in the mode `ansi`, printed in the mode `human`.

        Raises:
            ContractError: no mode, or no episode yet.
        """
        if mode is None:
            raise ContractError("render needs a mode. Make the environment with render_mode='human' or 'ansi'.")
        if mode == "ansi":
            return self.text()
        sys.stdout.write(self.text())
        return None

    def text(self) -> str:
        """The company and the last turn in a few lines, for `render`."""
        if self.task is None:
            raise ContractError("there is nothing to render before the first episode. Call reset first.")
        state = self.env.state()
        metrics = state["metrics"]
        names = ("company_value", "cash", "mrr", "customers", "satisfaction", "stability")
        lines = [f"{self.task.id}, day {state['day']}, turn {state['turn']}{', over: ' + state['done'] if state['done'] else ''}"]
        lines.append("  ".join(f"{name} {metrics[name]:,.4g}" for name in names))
        if self.last is not None:
            facts = self.last.facts
            did = f"{facts['action']} {facts.get('target', '')}".strip() if self.last.valid else f"nothing ({facts['why']})"
            lines.append(f"{facts['actor']}: {did} {self.last.rewards.get(facts['actor'], 0.0):+.2f}")
        pending = self.env.observe()
        return "\n".join(lines + ([f"next: {pending.actor}"] if pending is not None else [])) + "\n"


def prompt_text(request: OfficeObservation) -> str:
    """System and user message, separated by an empty line, in `CHARACTERS` and at most `MAX_TEXT` long."""
    text = "\n\n".join(message.content for message in request.messages)
    if not (text.isascii() and text.replace("\n", "").isprintable()):
        text = "".join(letter if letter in CHARACTERS else "?" for letter in text)
    return text[:MAX_TEXT]


def retried(step: Step) -> dict[str, int]:
    """For the info of the agent that replied: `retry`, the number of the correction that it is asked for; empty without one."""
    return {"retry": step.facts["retry"]} if "retry" in step.facts else {}


def check_render_mode(mode: str | None) -> None:
    """Refuse a mode that does not exist.

    Raises:
        ConfigError: neither None nor one of `RENDER_MODES`.
    """
    if mode is not None and mode not in RENDER_MODES:
        raise ConfigError(f"render_mode must be None or one of {', '.join(RENDER_MODES)}, got {mode!r}.")
