"""Environments of your own, played and checked: what the test next to an environment and `onthejob env check` use.

check_env(Guess())                                          # keeps its promises, or a ContractError says which one it breaks
play_env(Guess(), task, lambda seen, seed: "5").rewards     # one episode: {"guesser": 1.0}
"""

from __future__ import annotations

import io
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from onthejob.envs.declared import check_class
from onthejob.envs.env import Env
from onthejob.envs.exchange import Reply
from onthejob.envs.running import Forking, Running, random_legal, running
from onthejob.errors import ContractError, OnTheJobError, ProgramError, ServeError
from onthejob.keys import keyed_choice, keyed_seed
from onthejob.testing.conformance import ADVERSARIAL_REPLIES, Conformance, check_environment
from onthejob.types import Observation, Split, StopReason, Task

TEXTS = (
    *("", "yes", "no", "0", "1", "2", "3", "5", "10", "42", "-1", "0.5", "a", "b", "A", "hello", "up", "down", "left", "right"),
    *("I do not know.", "The answer is 4.", '{"action": "wait"}', "[1, 2]", "wait", "buy 3", "x = 1\ny = 2"),
)
"""Replies of many kinds, for environments that list no legal ones."""
MOST_TURNS = 200
"""Turns of an episode that a check plays at most."""
Method = Literal["reset", "step"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of the environment."""

    method: Method
    seconds: float
    printed: str
    """Written to stdout by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One episode."""

    task: Task
    rewards: Mapping[str, float]
    """Role -> sum of its rewards."""
    metrics: Mapping[str, float]
    turns: int
    invalid: int
    """Replies that could not be used."""
    stop: StopReason | None
    """None when it was not over after the turns that were played."""
    calls: tuple[Call, ...]
    prompts: tuple[tuple[str, int, int], ...]
    """(role, size of the request, size of the whole context with it) in turn."""
    legal: bool
    """The first request listed legal replies."""
    changed: bool
    """The payload of the task was changed."""
    rows: tuple[Any, ...]
    """All that was shown and paid, equal for equal episodes; empty unless it was kept."""


def random_reply(observation: Observation, seed: int) -> str:
    """A scripted player: one of the legal replies, else a text of any kind."""
    return random_legal(observation, seed) if observation.view.get("legal") else keyed_choice(TEXTS, seed, "text")


def malformed_reply(observation: Observation, seed: int) -> str:
    """A scripted player: replies that a model can write and that break careless parsers."""
    return keyed_choice(ADVERSARIAL_REPLIES, seed, "malformed")


def players_of(env: Env) -> dict[str, Reply]:
    """The environment's own scripted players.

    Raises:
        ContractError: it does not return them.
    """
    name = type(env).__name__
    try:
        found = env.players()
    except Exception as error:
        raise ContractError(f"{name}.players raised {_said(error, env)}. Return a dictionary of name -> function.") from error
    if not isinstance(found, Mapping) or not all(callable(reply) for reply in found.values()):
        raise ContractError(f"{name}.players returned {found!r:.80}. Return a dictionary of name -> function(observation, seed).")
    return {str(player): _naming(reply, f"{name}.players: {player!r}", env) for player, reply in found.items()}


def usual_reply(env: Env) -> Reply:
    """A player that gets beyond unusable replies: legal ones where they are listed, else the environment's own players."""
    players = list(players_of(env).values())

    def reply(observation: Observation, seed: int) -> str:
        if players and not observation.view.get("legal"):
            return keyed_choice(players, seed, "player")(observation, seed)
        return random_reply(observation, seed)

    return reply


def play_env(
    env: Env,
    task: Task,
    reply: Reply | Mapping[str, Reply],
    *,
    seed: int = 0,
    most_turns: int = MOST_TURNS,
    size: Callable[[str], int] = len,
    keep: bool = False,
) -> Played:
    """Play one episode.

    Args:
        env: its options count; the instance itself is not played.
        task: one of its tasks.
        reply: (observation, seed) -> reply of every role, or role -> its own.
        seed: keys the replies.
        most_turns: turns after which the episode is left as it is.
        size: measures prompts; by default in characters.
        keep: keep all that was shown and paid.

    Raises:
        ContractError: one sentence on what the environment does wrong, and in which method.
    """
    run = running(env)
    given = json.dumps(_plain(env, dict(task.payload), "tasks", "a payload"), sort_keys=True)
    calls: list[Call] = []
    observation: Observation | None = _called(run, "reset", task, calls, run.reset)
    legal = bool(observation.view.get("legal"))
    rows: list[Any] = [_row(env, observation)] if keep else []
    rewards, prompts, contexts = dict.fromkeys(env.roles, 0.0), [], dict.fromkeys(env.roles, 0)
    turns = invalid = 0
    stop: StopReason | None = None
    while observation is not None and turns < most_turns:
        actor = observation.actor
        length = sum(size(message.content) for message in observation.messages)
        if observation.fresh:
            length += sum(size(json.dumps(tool.function(), ensure_ascii=False)) for tool in observation.tools)
        contexts[actor] = length + (0 if observation.fresh else contexts[actor])
        prompts.append((actor, length, contexts[actor]))
        player = reply[actor] if isinstance(reply, Mapping) else reply
        text = player(observation, keyed_seed(seed, task.id, turns))
        contexts[actor] += size(text)
        step = _called(run, "step", text, calls, run.step)
        turns += 1
        invalid += not step.valid
        for role, paid in step.rewards.items():
            rewards[role] += paid
        observation, stop = step.observation, step.stop
        if keep:
            rows.append((_row(env, observation), dict(step.rewards), step.valid, step.stop))
    run.check_options()
    return Played(
        task=task,
        rewards=rewards,
        metrics=run.state()["metrics"],
        turns=turns,
        invalid=invalid,
        stop=stop,
        calls=tuple(calls),
        prompts=tuple(prompts),
        legal=legal,
        changed=json.dumps(_plain(env, dict(run.task.payload), "reset", "a payload"), sort_keys=True) != given,
        rows=tuple(rows),
    )


def check_env(env: Env, *, tasks: int = 3, split: Split = Split.TRAIN) -> Conformance:
    """Open an environment, play some of its tasks in many ways, and compare with what the contract promises.

    Args:
        env: with its options.
        tasks: how many, at least 1.
        split: of which the tasks are.

    Raises:
        ConfigError: its class cannot be played.
        ContractError: the first promise that is broken, in one sentence.
    """
    check_class(type(env))
    env.open()
    try:
        return check_promises(env, sampled(env.tasks(split), tasks))
    finally:
        env.close()


def check_promises(env: Env, tasks: Sequence[Task], *, branch_turns: int = 6) -> Conformance:
    """As `check_env`, of an environment that is open and tasks that were chosen.

    Raises:
        ContractError: the first promise that is broken, in one sentence.
    """
    reply = usual_reply(env)
    for task in tasks:
        check_equal(env, task, reply)
        check_replies(env, task)
    refused = not (forks_stated(type(env)) and players_of(env)) and why_not_forked(env, tasks[0]) is not None
    kind = Running if refused or not branch_turns else running
    try:
        return check_environment(
            lambda: kind(env),
            tasks,
            choose=reply,
            max_turns=min(env.max_turns, 40),
            branch_turns=max(1, branch_turns),
            spectators=env.roles,
        )
    except ContractError as error:
        name = type(env).__name__
        if str(error).startswith(name):
            raise
        raise ContractError(
            f"{name}: {str(error).rstrip('.')}. Keep the state of an episode in self, and nothing in the module or the class."
        ) from error


def check_equal(env: Env, task: Task, reply: Reply, *, most_turns: int = 40) -> Played:
    """Play a task twice with the same replies; both must be the same episode.

    Raises:
        ContractError: says where they differ.
    """
    first, second = (play_env(env, task, reply, most_turns=most_turns, keep=True) for _ in range(2))
    for turn, (one, other) in enumerate(zip(first.rows, second.rows, strict=False)):
        if one != other:
            method = "step" if turn else "reset"
            raise ContractError(
                f"{type(env).__name__}.{method}, task {task.id}, turn {turn}, is not the same twice: {_difference(one, other)}. "
                "Draw with task.draw(name) or self.rng(name), and keep nothing from one episode to the next."
            )
    return first


def check_replies(env: Env, task: Task) -> None:
    """Step replies that break careless parsers.

    Raises:
        ContractError: names the one that breaks this one.
    """
    for text in ADVERSARIAL_REPLIES:
        play_env(env, task, lambda observation, seed, text=text: text, most_turns=2)


def sampled(tasks: Sequence[T], count: int) -> list[T]:
    """`count` of the tasks, at equal distances, so that families that stand in a row are all met."""
    step = max(1, len(tasks) // max(1, count))
    return list(tasks[::step])[:count]


def is_users(env: Env) -> bool:
    """True when its class is the user's own, which can be changed; false where a reference such as gymnasium:ID made it."""
    return not type(env).__module__.startswith("onthejob.interop.")


def alike(env: Env, tasks: Sequence[Task], *, rounds: int = 4, most_turns: int = 40) -> bool:
    """True when tasks that differ by their seeds begin equal episodes, which continue and pay the same after the same replies.

    Args:
        env: it is open.
        tasks: some of them; only those with the payload of the first are compared.
        rounds: kinds of replies that are tried.
        most_turns: turns of an episode that are compared.
    """
    same = [task for task in tasks if task.payload == tasks[0].payload and task.seed != tasks[0].seed]
    for number in range(rounds if same else 0):

        def reply(seen: Observation, _seed: int, number: int = number) -> str:
            # Of what was shown alone, as `seed` differs from task to task.
            return keyed_choice(list(seen.view.get("legal") or TEXTS), number, "alike", *(one.content for one in seen.messages))

        first, *others = (play_env(env, task, reply, most_turns=most_turns, keep=True).rows for task in (tasks[0], *same))
        if any(one != first for one in others):
            return False
    return bool(same)


def forks_stated(kind: type[Env]) -> bool:
    """True when the class itself, or a base class below `Env`, says how it is forked."""
    return any("forks" in vars(base) for base in kind.__mro__ if base is not Env and issubclass(base, Env))


def why_not_forked(env: Env, task: Task) -> str | None:
    """Why an episode of the task cannot be forked at its first request; None when it can."""
    if env.forks == "no":
        return f"{type(env).__name__}.forks is 'no'."
    run = Forking(env)
    with redirect_stdout(io.StringIO()):
        legal = run.reset(task).view.get("legal")
        try:
            run.fork()
        except ContractError as error:
            return str(error)
    if not (env.partner or legal or players_of(env)):
        remedy = "Pass legal=[...] to self.ask, or write players()" if is_users(env) else "Group by episodes: --grouping episodes"
        return f"{type(env).__name__} has no player that continues branches. {remedy}."
    return None


def _called(run: Running, method: Method, given: Any, calls: list[Call], call: Callable[[Any], T]) -> T:
    """Call a method; what it raises and prints is noted."""
    env, started, printed = run.env, time.perf_counter(), io.StringIO()
    turn = sum(one.method == "step" for one in calls) + (method == "step")
    try:
        with redirect_stdout(printed):
            found = call(given)
    except (ServeError, ProgramError) as error:
        if method == "reset":
            raise
        raise type(error)(
            f"{str(error).rstrip('.')}. The check of the environment sent the reply {given!r:.40}, as a model may too."
        ) from error
    except OnTheJobError:
        raise
    except Exception as error:
        where = f"{type(env).__name__}.{method}, task {run.task.id}, turn {turn},"
        if method == "reset":
            raise ContractError(
                f"{where} raised {_said(error, env)}. Every task must begin with self.ask(role, text)."
            ) from error
        raise ContractError(
            f"{where} raised {_said(error, env)} for the reply {given!r:.40}. No reply may raise: return self.invalid(feedback)."
        ) from error
    calls.append(Call(method=method, seconds=time.perf_counter() - started, printed=printed.getvalue()))
    return found


def _naming(reply: Reply, name: str, env: Env) -> Reply:
    """A player whose mistakes are named."""

    def named(observation: Observation, seed: int) -> str:
        try:
            found = reply(observation, seed)
        except OnTheJobError:
            raise
        except Exception as error:
            raise ContractError(
                f"{name} raised {_said(error, env)} when {observation.actor} was asked. A player answers requests of any role."
            ) from error
        if not isinstance(found, str):
            raise ContractError(f"{name} replied {found!r:.80}, and replies are texts. Return a str.")
        return found

    return named


def _said(error: Exception, env: Env) -> str:
    """The error, and the last line of the environment's own file on the way to it."""
    file = getattr(sys.modules.get(type(env).__module__), "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{type(error).__name__}: {error}" + (f" (line {lines[-1]})" if lines else "")


def _plain(env: Env, value: Any, method: str, what: str) -> Any:
    """`value`, which must be of JSON's types."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ContractError(
            f"{type(env).__name__}.{method} gives {what} that is not of JSON's types: {error}. Use texts, numbers, lists and "
            "dictionaries."
        ) from error
    return value


def _row(env: Env, observation: Observation | None) -> Any:
    if observation is None:
        return None
    view = _plain(env, dict(observation.view), "ask", "a view")
    return observation.actor, [tuple(message) for message in observation.messages], observation.fresh, json.dumps(view)


def _difference(one: Any, other: Any) -> str:
    """The first place at which two rows differ, short."""
    for left, right in zip(_leaves(one), _leaves(other), strict=False):
        if left != right:
            return f"once {left!r:.60} and once {right!r:.60}"
    return "once it continues and once it does not"


def _leaves(row: Any) -> list[Any]:
    if isinstance(row, dict):
        row = tuple(row.values())
    if isinstance(row, (tuple, list)):
        return [leaf for part in row for leaf in _leaves(part)]
    return [row]
