"""The border to an environment: what it returns is checked, and numbers of NumPy and torch become floats.

The loop and `onthejob.testing.check_environment` use the same functions, so an environment that passes the check is one that the
loop can use. Messages are looked at only where a policy reads them, because they may be rendered lazily.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import index
from typing import Any, SupportsFloat, SupportsIndex

from onthejob.errors import ContractError
from onthejob.types import Branch, Kind, Message, Observation, Step, StopReason

MESSAGE_ROLES = ("system", "user", "assistant", "tool")


def number(value: object, what: str, *, finite: bool = True) -> float:
    """`value` as a float: a number of Python, NumPy or torch.

    Raises:
        ContractError: it is none, or (unless `finite` is False) not a finite one.
    """
    try:
        if not isinstance(value, SupportsFloat):
            raise TypeError
        found = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ContractError(f"{what} must be a number, got {type(value).__name__}: {value!r:.80}. Return a float.") from None
    if finite and not math.isfinite(found):
        raise ContractError(f"{what} must be a finite number, got {found}. Return a float.")
    return found


def accepted_step(step: object, where: str) -> Step:
    """`step` with rewards and reward parts as floats.

    Args:
        step: as `Environment.step` returned it.
        where: task and turn, for the message.

    Raises:
        ContractError: it is no `Step`, a reward is no finite number, or it lacks exactly one of observation and stop reason.
    """
    if not isinstance(step, Step):
        raise ContractError(f"{where}: step must return a types.Step, got {type(step).__name__}: {step!r:.80}.")
    if (step.observation is None) == (step.stop is None):
        raise ContractError(
            f"{where}: a step has either an observation or a stop reason, got {step.observation!r:.80} and {step.stop!r}. "
            "Return stop=StopReason.DONE (or another reason) with observation=None at the end of an episode."
        )
    if step.stop is not None and not isinstance(step.stop, StopReason):
        raise ContractError(f"{where}: stop must be a types.StopReason, got {step.stop!r}. Write StopReason.DONE.")
    if step.observation is not None:
        check_request(step.observation, where)
    rewards = {_actor(name, where): number(value, f"{where}: the reward of {name}") for name, value in step.rewards.items()}
    parts = {
        _actor(name, where): {str(part): number(value, f"{where}: part {part} of {name}") for part, value in named.items()}
        for name, named in step.parts.items()
    }
    return replace(step, rewards=rewards, parts=parts, valid=bool(step.valid))


def check_request(observation: Observation, where: str) -> None:
    """Refuse a request whose actor, kind or freshness is not what the loop compares with; messages are not rendered.

    Raises:
        ContractError: says which.
    """
    _actor(observation.actor, where)
    if not isinstance(observation.kind, Kind):
        raise ContractError(f"{where}: observation.kind must be a types.Kind, got {observation.kind!r}. Write Kind.ACT.")
    if not isinstance(observation.fresh, bool):
        raise ContractError(f"{where}: observation.fresh must be True or False, got {observation.fresh!r}.")


def check_messages(messages: Sequence[Message], where: str) -> None:
    """Refuse messages that no chat template can render.

    Raises:
        ContractError: there are none, or one is no `Message` with a known role and encodable text.
    """
    if not messages:
        raise ContractError(f"{where}: an observation needs at least one message, got none. Ask for the reply in a user message.")
    for place, message in enumerate(messages):
        what = f"{where}: messages[{place}]"
        if not isinstance(message, Message):
            raise ContractError(
                f"{what} must be a types.Message, got {type(message).__name__}: {message!r:.80}. Write Message('user', text)."
            )
        if message.role not in MESSAGE_ROLES:
            raise ContractError(f"{what}.role must be one of {', '.join(MESSAGE_ROLES)}, got {message.role!r}.")
        if not isinstance(message.content, str):
            raise ContractError(f"{what}.content must be text, got {type(message.content).__name__}: {message.content!r:.80}.")
        check_text(message.content, f"{what}.content")


def check_text(text: str, what: str) -> None:
    """Refuse text that no tokenizer can encode.

    Raises:
        ContractError: it holds a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ContractError(
            f"{what} holds a lone surrogate at character {error.start}, which is no text. Replace it, e.g. by "
            "text.encode('utf-8', 'replace').decode()."
        ) from error


def accepted_branch(branch: object, where: str) -> Branch:
    """`branch` with its outcome and returns as floats.

    Raises:
        ContractError: it is no `Branch`, one of its numbers is not finite, or it played no turn.
    """
    if not isinstance(branch, Branch):
        raise ContractError(f"{where}: branch must return a types.Branch, got {type(branch).__name__}: {branch!r:.80}.")
    if branch.turns < 1:
        raise ContractError(f"{where}: a branch plays at least one turn, got turns={branch.turns}.")
    returns = {_actor(name, where): number(value, f"{where}: the return of {name}") for name, value in branch.returns.items()}
    outcome = number(branch.outcome, f"{where}: a branch's outcome")
    return replace(branch, outcome=outcome, returns=returns, valid=bool(branch.valid))


def state_metrics(state: Mapping[str, Any], where: str) -> dict[str, float]:
    """`state["metrics"]` as floats, NaN included; empty when there are none.

    Raises:
        ContractError: one is no number.
    """
    metrics = state.get("metrics", {})
    return {str(name): number(value, f"{where}: metric {name}", finite=False) for name, value in metrics.items()}


def state_count(state: Mapping[str, Any], name: str, where: str) -> int | None:
    """`state[name]`, an optional whole number: `day` or `turn`.

    Raises:
        ContractError: it is something else.
    """
    if name not in state:
        return None
    value = state[name]
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise ContractError(
            f"{where}: state()[{name!r}] must be a whole number where it is given, got {type(value).__name__}: {value!r:.80}. "
            "Give it another name, or omit it."
        )
    return index(value)


def _actor(name: object, where: str) -> str:
    if not isinstance(name, str) or not name:
        raise ContractError(f"{where}: an actor must be named by text, got {name!r:.80}.")
    return name
