"""Do memories move decisions? The same request is asked again with the memories of another time.

That a decision names what a memory holds can be chance, and mostly cannot be seen: what may be chosen is listed in the request
anyway. So a player is asked three times, greedily: with its memories as they are, with the same memories in reverse order, and
with those that the same role had on another turn of the episode. What changes with the content but not with the order is use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from checks.office.behaviours import HEADINGS, Tally
from onthejob.envs.office.actions import Action, Invalid, parse
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.roles import Role
from onthejob.types import Kind, Message, Observation, Task, TextObservation

RECALLED: MappingProxyType[str, str] = MappingProxyType(
    {
        "decisions that change with the memories": "Share of usable greedy decisions that become others when the request shows "
        "the role's memories of half an episode away.",
        "decisions that change with the memories, above chance": "The same, less the share that become others when its own "
        "memories are shown in reverse order.",
    }
)
"""Behaviour -> what its number says, in the order of `moved`."""
_BLOCK = re.compile(rf"^(?:{'|'.join(HEADINGS)})\n.*?(?=^JSON:$)", re.MULTILINE | re.DOTALL)


class Recall(NamedTuple):
    """One request, and what it would be with other memories."""

    own: TextObservation
    reordered: TextObservation
    other: TextObservation


def recalls(env: OfficeEnvironment, task: Task, replies: Iterable[str], *, count: int) -> list[Recall]:
    """At most `count` requests of the episode that `replies` played, spread evenly over those that show memories.

    The other memories are those that the role was shown half an episode away.
    """
    observation: Observation | None = env.reset(task)
    asked: dict[str, list[TextObservation]] = {}
    order: list[tuple[str, int]] = []
    for reply in replies:
        if observation is None:
            break
        if observation.kind is Kind.ACT and _BLOCK.search(observation.messages[-1].content):
            mine = asked.setdefault(observation.actor, [])
            order.append((observation.actor, len(mine)))
            seen = dict(observation.view)
            mine.append(TextObservation(actor=observation.actor, messages=tuple(observation.messages), view=seen))
        observation = env.step(reply).observation
    spread = [order[i * len(order) // count] for i in range(count)] if len(order) > count else order
    found = []
    for role, place in spread:
        mine = asked[role]
        own, other = mine[place], mine[(place + len(mine) // 2) % len(mine)]
        lines = _memories(own)
        found.append(Recall(own, _with(own, _reversed(lines)), _with(own, _memories(other))))
    return found


def moved(replies: Sequence[tuple[str, str, str]], roles: Sequence[str]) -> tuple[Tally, Tally]:
    """How often the decision changes with the memories, and that less how often it changes with their order.

    Args:
        replies: to `own`, `reordered` and `other` of each recall. Where the first is unusable, nothing was decided.
        roles: who replied.
    """
    decided = [
        tuple(_decision(text, role) for text in texts)
        for texts, role in zip(replies, roles, strict=True)
        if _decision(texts[0], role) is not None
    ]
    content = sum(other != own for own, _, other in decided)
    order = sum(reordered != own for own, reordered, _ in decided)
    return Tally(content, len(decided)), Tally(content - order, len(decided))


def _decision(text: str, role: str) -> Action | None:
    parsed = parse(text, Role(role))
    return None if isinstance(parsed, Invalid) else replace(parsed, reasoning="")


def _memories(request: TextObservation) -> str:
    found = _BLOCK.search(request.messages[-1].content)
    return found[0] if found else ""


def _with(request: TextObservation, memories: str) -> TextObservation:
    *before, last = request.messages
    text = _BLOCK.sub(lambda _: memories, last.content, count=1)
    return replace(request, messages=(*before, Message(last.role, text)))


def _reversed(memories: str) -> str:
    """The lines under each heading in reverse order."""
    blocks: list[list[str]] = []
    for line in memories.splitlines():
        if line in HEADINGS:
            blocks.append([line])
        else:
            blocks[-1].append(line)
    return "".join(f"{line}\n" for heading, *lines in blocks for line in (heading, *reversed(lines)))
