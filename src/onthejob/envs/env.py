"""Env: the base class of an environment of your own.

    class Guess(Env):
        roles = ("guesser",)
        highest: int = 9                       # an option: --env.highest 20

        def tasks(self, split): ...            # what is played
        def reset(self, task): ...             # begin an episode: return self.ask(...)
        def step(self, reply): ...             # take a reply: return self.ask, self.tell, self.invalid or self.end (...)

An instance plays one episode at a time. Annotated fields are its options; everything that `reset` and `step` set on `self` is the
state of the episode. Nothing here calls a model, and nothing but these four members has to be written. What the loop steps is
`onthejob.envs.running.Running`, which keeps the promises of `onthejob.types.Environment` on an Env's behalf. An Env can also
return an Environment of its own from `make_environment`, as the office and the claw do.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, dataclass_transform

from onthejob.envs.exchange import FIRST_SEEDS, MOST_TASKS, Forks, Next, Now, Reply, Request, ServedTasks
from onthejob.errors import ConfigError, ContractError
from onthejob.keys import keyed_seed
from onthejob.types import Environment, Message, Observation, PromptBudget, Rubric, Split, StopReason, Task, ToolSpec, Window


@dataclass_transform(kw_only_default=True)
class Env:
    """Base class of an environment: subclass it and write `roles`, `tasks`, `reset` and `step`."""

    roles: ClassVar[tuple[str, ...]] = ()
    """Who is asked; each can be trained with an adapter of its own. Names match [a-z][a-z0-9_]*."""
    max_turns: ClassVar[int] = 20
    """Replies, of all roles together, after which an episode always ends."""
    max_new_tokens: ClassVar[int] = 64
    """Usual limit of a reply in tokens."""
    forks: ClassVar[Forks] = "copy"
    """How an episode is continued twice from the same state: `copy` copies what `reset` and `step` set on `self` (numbers, texts,
    lists, dictionaries, sets, dataclasses, enums, `random.Random`), `replay` plays the replies so far again, which needs an
    environment that always does the same, and `no` cannot."""
    headline: ClassVar[tuple[str, ...]] = ("reward",)
    """Metrics whose differences `compare` shows."""
    partner: ClassVar[str] = ""
    """The scripted player of roles that are not trained, and of branches; empty for the first of `players`, else `random`."""
    threads: ClassVar[int] = 1
    """Threads that step episodes side by side; more than 1 where stepping waits for something."""
    processes: ClassVar[int] = 0
    """Worker processes in which episodes are stepped side by side, for steps that take long to compute; 0 steps in this one."""
    step_limit_s: ClassVar[float] = 60.0
    """With `processes`: seconds after which a reset or step has failed; its process is killed, and its episodes end as
    errors."""
    usual_grouping: ClassVar[Literal["branch", "episodes"]] = "episodes"
    """What a group of training usually compares: replies to one request, or whole episodes of one task."""
    usual_group_size: ClassVar[int] = 8
    """Usual number of replies or episodes in a group."""
    shown_metrics: ClassVar[tuple[str, ...]] = ()
    """Metrics that the tables of `compare` show; empty for those of `headline`, rewards by role, turns, tokens and seconds."""
    best_metric: ClassVar[str] = "episode_reward"
    """Metric of held-out episodes by which training keeps its best version."""
    goes_on: ClassVar[bool] = True
    """A prompt usually repeats the conversation so far and appends to it; samplers then keep what they computed."""
    open_files: ClassVar[int] = 4
    """Most files that an episode keeps open; a server raises its limit by that many per session."""
    own_commands: ClassVar[Mapping[str, str]] = {}
    """Class of a command, e.g. `Play` -> the class that takes its place for this environment, as `package.module:Class`."""
    judge_rubric: ClassVar[Rubric | None] = None
    """What `train --judge` grades, and an example by which the judge is tried; None refuses a judge."""
    tools: ClassVar[Any] = ()
    """Functions that a reply may call, methods among them, as a list or as lists by role; or a method that returns these.
    A reply with calls does not reach `step`: the tools run, and their results are the next messages of the role."""
    bad_call_reward: ClassVar[float] = 0.0
    """Reward of a reply with a call that cannot be run: no such tool, wrong arguments, or no JSON."""

    _now: Now

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "__init__" in cls.__dict__:
            raise ConfigError(
                f"{cls.__name__} defines __init__. Write options as annotated fields with defaults, e.g. `highest: int = 9`, and "
                "set the state of an episode in reset."
            )
        dataclass(kw_only=True)(cls)

    # What is written for an environment.

    def tasks(self, split: Split) -> list[Task]:
        """The tasks of a split, the same in every call; `self.seeded(split)` makes some."""
        raise NotImplementedError(f"{type(self).__name__} has no tasks(split). Return e.g. self.seeded(split, count=200).")

    def reset(self, task: Task) -> Next:
        """Begin the task's episode and ask for the first reply: `return self.ask(role, text)`."""
        raise NotImplementedError(f"{type(self).__name__} has no reset(task). Return self.ask(role, text).")

    def step(self, reply: str) -> Next:
        """Take the reply of the role last asked: return `ask`, `tell`, `invalid` or `end`. Never raises because of `reply`."""
        raise NotImplementedError(f"{type(self).__name__} has no step(reply). Return self.tell(text) or self.end(reward=...).")

    # What may be written besides.

    def players(self) -> Mapping[str, Reply]:
        """Name -> scripted player of any role; `random` need not be among them where `legal` replies are given."""
        return {}

    def family(self, task: Task) -> str:
        """What a task is like: training keeps its statistics by family, comparisons can be read by it."""
        return str(task.payload.get("family", "all"))

    def groupings(self) -> Mapping[str, Callable[[Task], str]]:
        """Name -> the property that groups tasks in a comparison; the first is the one for intervals."""
        return {"family": self.family}

    def fingerprint(self) -> str:
        """What else than the source and the options decides how episodes go, e.g. the digest of a file of tasks."""
        return ""

    def anchored(self) -> Mapping[str, Any]:
        """Options whose values are recorded otherwise than they were given, e.g. the absolute path of a file."""
        return {}

    @classmethod
    def starting_options(cls, command: str) -> Self:
        """The options with which a command begins.

        Args:
            command: its class, e.g. `Train`.
        """
        return cls()

    def check_options(self, *, training: bool = False) -> None:
        """Refuse options that cannot work, before anything is loaded.

        Args:
            training: also those with which nothing can be trained.

        Raises:
            ConfigError: says which.
        """

    def why_untrained(self, role: str) -> str:
        """Why `role` is none of `roles` though it takes part, in a sentence; empty where it does not."""
        return ""

    def check_players(self, *, models: bool) -> None:
        """Refuse options that have no effect on those who play.

        Args:
            models: some model plays, hosted ones included.

        Raises:
            ConfigError: says which.
        """

    def fitted(self, *, model: str = "", hosted: bool = False, window: Window | None = None) -> Self:
        """This environment with the options that were left open as they follow from who plays.

        Args:
            model: the local model, with which the loop or a team samples.
            hosted: a hosted model plays.
            window: context of the only model that plays, when it is known.
        """
        return self

    def budget_for(self, window: Window) -> PromptBudget | None:
        """Budget of the prompts that a model reads; None where no prompt can exceed its context, or none can be pruned.

        Its requests are then `onthejob.types.Prunable`.

        Args:
            window: context of the model.

        Raises:
            ConfigError: it cannot hold what no prompt may omit.
        """
        return None

    def full_fingerprint(self) -> str:
        """Identifies code and rules; results are cached under it. Empty to derive it from source, options and `fingerprint`."""
        return ""

    def task_splits(self) -> tuple[Split, ...]:
        """The splits that have tasks."""
        return tuple(Split)

    def players_for(self, tasks: Sequence[Task]) -> Mapping[str, Reply]:
        """As `players`, and those that need to know which tasks are played, e.g. because they carry out solutions."""
        return self.players()

    @property
    def hosted_partner(self) -> str:
        """The hosted model that plays the roles that are not trained; empty where a scripted player does."""
        return ""

    def reply_schema(self, observation: Observation) -> Mapping[str, Any] | None:
        """JSON schema to which hosted models are held in their reply; None where it is free text."""
        return None

    def more_tasks(self) -> Callable[[int], Sequence[Task]] | None:
        """A pure function: round of growth, from 1 -> more training tasks, for when those so far have nothing more to teach.

        It returns none when there are no more. None where tasks do not grow.
        """
        return None

    def task_schedule(self, iterations: int) -> Callable[..., Task] | None:
        """What turns a sampled task into the one that is played, in a run of so many iterations; None plays it as it is.

        It is an `onthejob.rollout.pool.Curriculum`.
        """
        return None

    def task_finder(self) -> Callable[[str], Task | None]:
        """Function that finds a training task by its id, also one that the tasks grew by.

        It returns None where no task has the id, or where records themselves say from which state an episode began.
        """
        return {task.id: task for task in self.tasks(Split.TRAIN)}.get

    @property
    def steps_inline(self) -> bool:
        """True if a step takes milliseconds and never waits; a server then steps without a thread."""
        # In one thread, so that an environment that asks for one is never stepped by two.
        return self.threads == 1

    def public_facts(self, task: Task) -> Mapping[str, Any]:
        """What a client may know of a task besides its id and seed; the rest may hold what no role is to know."""
        return {"family": self.family(task)}

    def served_tasks(self) -> ServedTasks | None:
        """What a server offers; None for all tasks and all players."""
        return None

    def make_environment(self) -> Environment:
        """A new environment, which plays episodes with these options; called while this Env is open.

        Override it to bring an implementation of `onthejob.types.Environment`, or of `Forkable` unless `forks` is "no"; `reset`
        and `step` then need not be written.
        """
        from onthejob.envs.running import running

        return running(self)

    def open(self) -> None:
        """Called once before episodes are played in this process."""

    def close(self) -> None:
        """Called once after the last one."""

    # What they are written with.

    @property
    def world(self) -> int:
        """Which luck the episode meets; what `rng` draws depends on it."""
        return self._now.world

    @property
    def role(self) -> str:
        """Who gave the reply that is being taken."""
        request = self._now.request
        if request is None:
            raise ContractError(f"{type(self).__name__}: no role has replied yet. In reset, name the role: self.ask(role, text).")
        return request.role

    def seeded(self, split: Split, count: int = 200, **payload: Any) -> list[Task]:
        """`count` tasks of a split that differ by their seed; no seed is in two splits.

        Raises:
            ConfigError: a count that is not in 1..40,000.
        """
        if not 1 <= count <= MOST_TASKS:
            raise ConfigError(f"{type(self).__name__}.seeded needs count in 1..{MOST_TASKS}, got {count}.")
        first, name = FIRST_SEEDS[split], name_of(type(self))
        return [
            Task(id=f"{name}-{split}-{number:05d}", env=name, split=split, seed=first + number, payload=dict(payload))
            for number in range(count)
        ]

    def rng(self, name: str = "") -> random.Random:
        """Randomness of this turn: depends on the task, the turn, `name` and the world, and on nothing else."""
        now = self._now
        return random.Random(keyed_seed(now.task.seed, "rng", name, now.turn, now.world))

    def ask(
        self,
        role: str,
        text: str,
        *,
        system: str = "",
        legal: Sequence[str] = (),
        view: Mapping[str, Any] | None = None,
        fresh: bool | None = None,
        before: Sequence[Message] = (),
        speaker: str = "user",
        tools: Sequence[ToolSpec] = (),
        reward: float = 0.0,
        rewards: Mapping[str, float] | None = None,
    ) -> Next:
        """Ask `role` for a reply.

        Args:
            role: one of `roles`.
            text: the request.
            system: stands before `text` where its context begins.
            legal: texts of legal replies, all or a fair sample; random players choose among them.
            view: facts for scripted players in addition to `text` and `legal`, in JSON's types; only what the role may know.
            fresh: begin a new context; by default only the first time that the role is asked.
            before: messages of a conversation that stand between `system` and `text` where its context begins, and before `text`
                with fresh=False.
            speaker: role of the message that holds `text`: `user`, or `tool` for the result of a call.
            tools: tools whose calls `step` takes as text (`onthejob.calls` reads them), in addition to those of `Env.tools`.
            reward: for who has just replied.
            rewards: role -> reward, for anyone.
        """
        request = Request(
            role=role,
            text=text,
            system=system,
            legal=self._replies(legal),
            view=dict(view or {}),
            fresh=fresh,
            before=tuple(before),
            speaker=speaker,
            tools=tuple(tools),
        )
        return Next(request=request, rewards=self._paid(reward, rewards))

    def tell(
        self,
        text: str,
        *,
        legal: Sequence[str] | None = None,
        view: Mapping[str, Any] | None = None,
        reward: float = 0.0,
        rewards: Mapping[str, float] | None = None,
    ) -> Next:
        """Tell who has just replied what came of it, and ask it for the next reply; `legal` and `view` stay unless given."""
        before = self._now.request
        if before is None:
            raise ContractError(f"{type(self).__name__}.reset: no role has replied yet. Use self.ask(role, text).")
        request = Request(
            role=before.role,
            text=text,
            legal=before.legal if legal is None else self._replies(legal),
            view=before.view if view is None else dict(view),
            fresh=False,
            tools=before.tools,
        )
        return Next(request=request, rewards=self._paid(reward, rewards))

    def invalid(self, feedback: str, *, reward: float = 0.0) -> Next:
        """The reply could not be used: tell the role why, and ask it again."""
        return dataclasses.replace(self.tell(feedback, reward=reward), valid=False)

    def end(
        self,
        reward: float | None = None,
        *,
        rewards: Mapping[str, float] | None = None,
        metrics: Mapping[str, float] | None = None,
        valid: bool = True,
        stop: StopReason = StopReason.DONE,
    ) -> Next:
        """End the episode.

        Args:
            reward: for every role.
            rewards: role -> reward; instead of `reward`.
            metrics: name -> figure of the episode, for tables.
            valid: False when the last reply could not be used.
            stop: why.
        """
        if reward is not None and rewards is not None:
            raise ContractError(f"{type(self).__name__}: self.end takes reward= for every role or rewards= by role, not both.")
        paid = dict(rewards or {}) if reward is None else dict.fromkeys(self.roles, reward)
        return Next(request=None, rewards=paid, metrics=dict(metrics or {}), valid=valid, stop=stop)

    def _paid(self, reward: float, rewards: Mapping[str, float] | None) -> dict[str, float]:
        paid = dict(rewards or {})
        if reward:
            # Alone it stays what it is, so that one that is no number is named as it was given.
            paid[self.role] = paid[self.role] + reward if self.role in paid else reward
        return paid

    def _replies(self, legal: Sequence[str]) -> tuple[str, ...]:
        if isinstance(legal, str):
            raise ContractError(f"{type(self).__name__}: legal is the text {legal!r:.60}, and must list texts. Pass legal=[...].")
        return tuple(legal)


def name_of(kind: type[Env]) -> str:
    """Name of an environment in ids and tables: that of its class, in lower case with hyphens."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", kind.__name__).lower()
