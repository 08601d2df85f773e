"""Behaviours that are claimed to emerge in such an office, as numbers over an episode.

An episode is its task and its replies: playing them again in the environment gives every decision with what was known then
(`deeds`), so that recorded and played episodes are measured alike. Each metric maps the deeds of one episode to a number, NaN
where the episode gave no occasion. None of them is rewarded; what is rewarded is in `reward`.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from onthejob.envs.office.actions import Action, Invalid, parse
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.founding import HELD_OUT_NAMES, NAMES
from onthejob.envs.office.handlers import RETENTION, all_handlers
from onthejob.envs.office.policies import View
from onthejob.envs.office.policies.heuristic import PAIN_OF, WRITE
from onthejob.envs.office.reward import CRISIS_SATISFACTION
from onthejob.envs.office.roles import ROLES, Role
from onthejob.envs.office.state import PAINS, TURNS_PER_DAY
from onthejob.types import Kind, Observation, Task

LAUNCH_DAYS = 3
"""Days after a ship in which a campaign on its theme counts as timed to it (and is worth double)."""
ASKED_WITHIN = TURNS_PER_DAY
"""Turns within which a question counts as asked before."""
CARING = frozenset(name for (_, name), handler in all_handlers().items() if handler.tag == RETENTION)
"""Actions that serve retention."""
_WRITING = tuple(WRITE.values())
_PROMISING = ("SEND_PROPOSAL",)
_NAMES = frozenset({*NAMES, *HELD_OUT_NAMES, *PAIN_OF, *PAINS})
_WORD = re.compile(r"[A-Za-z]+")
_HEADINGS = ("Memories:", "Insights:")
_SECTIONS = re.compile(r"^(Team|Copies|Board|Memories|Insights):$|^JSON:$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One decision of one role."""

    turn: int
    role: str
    action: Action | None
    """None for an unusable reply."""
    satisfaction: float
    """Mean of the customers before it, [0, 1]."""
    customers: int
    shipped: dict[str, int]
    """Feature -> the day on which it was first there."""
    begun: bool
    """For Content: no draft of this kind and topic was open, so that this decision begins a piece."""
    recalled: frozenset[str]
    """Names that the prompt shows in memories only."""

    @property
    def day(self) -> int:
        """Counted from 0."""
        return self.turn // TURNS_PER_DAY


def deeds(env: OfficeEnvironment, task: Task, replies: Iterable[str]) -> list[Deed]:
    """Play `replies` and note what was decided with what knowledge; requests for reflection are passed over."""
    observation: Observation | None = env.reset(task)
    done: list[Deed] = []
    shipped: dict[str, int] = {}
    for reply in replies:
        if observation is None:
            break
        state = env.state()
        if observation.kind is not Kind.REFLECT:
            view = observation.view
            for name in view["shipped"]:
                shipped.setdefault(name, int(view["day"]) - 1)
            parsed = parse(reply, Role(observation.actor))
            usable = None if isinstance(parsed, Invalid) or env.canonical(reply) == "invalid" else parsed
            done.append(
                Deed(
                    turn=int(state["turn"]),
                    role=observation.actor,
                    action=usable,
                    satisfaction=float(state["metrics"]["satisfaction"]),
                    customers=int(state["metrics"]["customers"]),
                    shipped=dict(shipped),
                    begun=usable is not None and not _goes_on(view, usable),
                    recalled=only_remembered(observation.messages[-1].content),
                )
            )
        observation = env.step(reply).observation
    return done


def only_remembered(prompt: str) -> frozenset[str]:
    """Names of companies, features and pains that `prompt` holds in its memories and nowhere else."""
    places = list(_SECTIONS.finditer(prompt))
    memories, rest = "", prompt[: places[0].start()] if places else prompt
    for place, following in zip(places, [*places[1:], None], strict=True):
        text = prompt[place.end() : following.start() if following is not None else len(prompt)]
        if place[0] in _HEADINGS:
            memories += text
        else:
            rest += text
    return _named(memories) - _named(rest)


def _named(text: str) -> frozenset[str]:
    return _NAMES.intersection(_WORD.findall(text))


def _goes_on(view: View, action: Action) -> bool:
    return any(WRITE.get(d["kind"]) == action.action_type and d["topic"] == action.target for d in view.get("drafts", ()))


def _share(hits: Iterable[bool]) -> float:
    found = list(hits)
    return sum(found) / len(found) if found else math.nan


def launches_timed(done: Sequence[Deed]) -> float:
    """Share of campaigns within three days after the ship of a feature that serves their theme."""
    return _share(
        any(PAIN_OF[name] == d.action.target and 0 <= d.day - day <= LAUNCH_DAYS for name, day in d.shipped.items())
        for d in done
        if d.action is not None and d.action.action_type == "LAUNCH_CAMPAIGN"
    )


def sales_asks_dev(done: Sequence[Deed]) -> float:
    """Share of proposals before which Sales wrote to Dev within a day."""
    return _asked(done, "sales", _PROMISING, begun=False)


def content_asks_dev(done: Sequence[Deed]) -> float:
    """Share of pieces before whose beginning, or with it, Content wrote to Dev within a day."""
    return _asked(done, "content", _WRITING, begun=True)


def _asked(done: Sequence[Deed], role: str, types: Sequence[str], *, begun: bool) -> float:
    last = -ASKED_WITHIN - 1
    hits = []
    for d in done:
        if d.role != role or d.action is None:
            continue
        if d.action.message_to == "dev":
            last = d.turn
        if d.action.action_type in types and (d.begun or not begun):
            hits.append(d.turn - last <= ASKED_WITHIN)
    return _share(hits)


def writes_on_shipped(done: Sequence[Deed]) -> float:
    """Share of Content's pieces that begin on a need which a shipped feature serves."""
    return _share(
        d.action.target in {PAIN_OF[name] for name in d.shipped}
        for d in done
        if d.role == "content" and d.action is not None and d.action.action_type in _WRITING and d.begun
    )


def specialisation(done: Sequence[Deed], first: float, last: float) -> float:
    """How far the roles' choice among their own actions is from chance, in [0, 1], between these shares of the decisions.

    1 - entropy of a role's action types / entropy of all of them equally often, mean over roles: 0 any, 1 always the same.
    """
    chosen = done[int(first * len(done)) : int(last * len(done))]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for d in chosen:
        if d.action is not None:
            counts[d.role][d.action.action_type] += 1
    if not counts:
        return math.nan
    scores = []
    for role, counter in counts.items():
        total = counter.total()
        entropy = -sum(n / total * math.log(n / total) for n in counter.values())
        scores.append(1.0 - entropy / math.log(len(ROLES[Role(role)].actions)))
    return sum(scores) / len(scores)


def specialised_early(done: Sequence[Deed]) -> float:
    """Specialisation in the first third."""
    return specialisation(done, 0.0, 1 / 3)


def specialised_late(done: Sequence[Deed]) -> float:
    """Specialisation in the last third."""
    return specialisation(done, 2 / 3, 1.0)


def uses_memory(done: Sequence[Deed]) -> float:
    """Share of decisions that name something which only the memories of the prompt hold, of those where there is such a name."""
    return _share(
        not d.recalled.isdisjoint(_WORD.findall(f"{d.action.target} {d.action.message}"))
        for d in done
        if d.recalled and d.action is not None
    )


def turns_to_retention(done: Sequence[Deed]) -> float:
    """Share of actions that serve retention while satisfaction is below 0.4, less their share otherwise."""
    caring: dict[bool, list[bool]] = {True: [], False: []}
    for d in done:
        if d.action is not None and d.customers:
            caring[d.satisfaction < CRISIS_SATISFACTION].append(d.action.action_type in CARING)
    return _share(caring[True]) - _share(caring[False])


def usable_replies(done: Sequence[Deed]) -> float:
    """Share of decisions that were usable: the context for all others."""
    return _share(d.action is not None for d in done)


Metric = Callable[[Sequence[Deed]], float]
METRICS: MappingProxyType[str, Metric] = MappingProxyType(
    {
        "launches timed to ships": launches_timed,
        "Sales asks Dev before promising": sales_asks_dev,
        "Content asks Dev before publishing": content_asks_dev,
        "Content writes on what has shipped": writes_on_shipped,
        "specialisation, first third": specialised_early,
        "specialisation, last third": specialised_late,
        "decisions that use memories": uses_memory,
        "shift to retention in a crisis": turns_to_retention,
        "usable replies": usable_replies,
    }
)
"""Behaviour -> its metric, in the order of the table."""
