"""Behaviours that are claimed to emerge in such an office, as numbers over an episode.

An episode is its task and its replies: playing them again in the environment gives every decision with what was known then
(`deeds`), so that recorded and played episodes are measured alike. Each metric maps the deeds of one episode to a `Tally`, whose
occasions are 0 where the episode gave none. None of them is rewarded; what is rewarded is in `reward`.

Some behaviours happen by chance as well: who launches often also launches after a ship, and who always writes the same to Dev has
also written about what comes next. For these a second number is what exceeds the chance, where chance is the mean over all ways
to shuffle what the episode itself holds: the times of launches, the topics of messages, the memories of one role.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from onthejob.envs.office.actions import Action, Invalid, parse
from onthejob.envs.office.company_state import PAINS, TURNS_PER_DAY, CompanyState
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.handlers import RETENTION, all_handlers
from onthejob.envs.office.handlers.content import VERBS
from onthejob.envs.office.names import HELD_OUT_NAMES, NAMES
from onthejob.envs.office.policies.heuristic import PAIN_OF
from onthejob.envs.office.reward_parts import CRISIS_SATISFACTION
from onthejob.envs.office.roles import ROLES, Role
from onthejob.envs.office.simulator import FEATURE_ALIASES, HELD_OUT_ALIASES
from onthejob.envs.office.vaporware import Registry
from onthejob.types import Kind, Observation, Task

LAUNCH_DAYS = 3
"""Days after a ship in which a campaign on its theme counts as timed to it (and is worth double)."""
ASKED_WITHIN = TURNS_PER_DAY
"""Turns within which a question counts as asked before."""
CARING = frozenset(name for (_, name), handler in all_handlers().items() if handler.tag == RETENTION)
"""Actions that serve retention."""
_PROMISE = "SEND_PROPOSAL"
_NAMES = frozenset({*NAMES, *HELD_OUT_NAMES, *PAIN_OF, *PAINS})
_WORD = re.compile(r"[A-Za-z]+")
HEADINGS = ("Memories:", "Insights:")
"""Sections of a full prompt that hold what its reader remembers."""
_SECTIONS = re.compile(r"^(Team|Copies|Board|Memories|Insights):$|^JSON:$", re.MULTILINE)


class Tally(NamedTuple):
    """One behaviour in one episode. A team's number is the sum of its hits over the sum of its occasions."""

    hits: float
    """How much of it was done; may be below 0 where chance is subtracted."""
    occasions: float
    """How often, or with what weight, it could have been; 0 where the episode gave no occasion."""

    @property
    def rate(self) -> float:
        """Hits per occasion, NaN without one."""
        return self.hits / self.occasions if self.occasions else math.nan


class Prompted(NamedTuple):
    """Names of companies, features and needs that a prompt holds."""

    remembered: frozenset[str]
    """In its memories and insights."""
    elsewhere: frozenset[str]
    """In the rest of the request, which is the user message."""


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
    """Feature -> the day on which it shipped, of those that had shipped before it."""
    begun: bool
    """It began a piece of Content."""
    about: frozenset[str]
    """Needs that its message names, themselves or by a feature that serves them."""
    promised: str
    """The need that it made public work on: of the lead for a proposal, of the piece for a publication; else empty."""
    since: int
    """Turn on which the work on what it promised began: its own, or the one that began the piece."""
    prompted: Prompted

    @property
    def day(self) -> int:
        """Counted from 0."""
        return self.turn // TURNS_PER_DAY

    @property
    def names(self) -> frozenset[str]:
        """What its target and its message name."""
        return _named(f"{self.action.target} {self.action.message}") if self.action is not None else frozenset()


class Topics:
    """Finds the needs that a text is about: by their names, or by names and aliases of the features that serve them."""

    def __init__(self) -> None:
        self._features = Registry({**FEATURE_ALIASES, **HELD_OUT_ALIASES})
        self._needs = Registry(dict.fromkeys(PAINS, ()))

    def of(self, text: str) -> frozenset[str]:
        """Needs, denied or not."""
        return self._needs.mentions(text) | {PAIN_OF[name] for name in self._features.mentions(text)}


def deeds(env: OfficeEnvironment, task: Task, replies: Iterable[str]) -> list[Deed]:
    """Play `replies` and note what was decided with what knowledge; requests for reflection are passed over."""
    observation: Observation | None = env.reset(task)
    done: list[Deed] = []
    topics = Topics()
    for reply in replies:
        if observation is None:
            break
        if observation.kind is Kind.REFLECT:
            observation = env.step(reply).observation
            continue
        s, role, turn = env.company, observation.actor, env.company.turn
        parsed = parse(reply, Role(role))
        action = None if isinstance(parsed, Invalid) or env.canonical(reply) == "invalid" else parsed
        satisfaction, customers, shipped = s.satisfaction(), len(s.customers()), _shipped(s)
        promised, since = _proposed(s, action), turn
        prompted = prompted_names(observation.messages[-1].content)
        unfinished = {piece.id for piece in s.pieces if piece.left > 0}
        observation = env.step(reply).observation
        mine = [p for p in env.company.pieces if role == "content" and (p.id == turn or p.id in unfinished)]
        for piece in mine:
            if piece.left == 0:
                promised, since = PAINS[piece.topic], piece.id
        done.append(
            Deed(
                turn=turn,
                role=role,
                action=action,
                satisfaction=satisfaction,
                customers=customers,
                shipped=shipped,
                begun=any(piece.id == turn for piece in mine),
                about=topics.of(action.message) if action is not None and action.message_to else frozenset(),
                promised=promised,
                since=since,
                prompted=prompted,
            )
        )
    return done


def _shipped(s: CompanyState) -> dict[str, int]:
    return {spec.name: day for spec, day in zip(s.catalogue, s.feature_shipped, strict=True) if day >= 0}


def _proposed(s: CompanyState, action: Action | None) -> str:
    """The need of the lead to whom `action` makes a proposal."""
    if action is None or action.action_type != _PROMISE:
        return ""
    return next((PAINS[account.pain] for account in s.accounts if account.name == action.target), "")


def prompted_names(prompt: str) -> Prompted:
    """Names of companies, features and needs that `prompt` holds in its memories, and those that it holds elsewhere."""
    places = list(_SECTIONS.finditer(prompt))
    memories, rest = "", prompt[: places[0].start()] if places else prompt
    for place, following in zip(places, [*places[1:], None], strict=True):
        text = prompt[place.end() : following.start() if following is not None else len(prompt)]
        if place[0] in HEADINGS:
            memories += text
        else:
            rest += text
    return Prompted(_named(memories), _named(rest))


def _named(text: str) -> frozenset[str]:
    return _NAMES.intersection(_WORD.findall(text))


def _share(hits: Iterable[float]) -> Tally:
    found = list(hits)
    return Tally(float(sum(found)), float(len(found)))


def _less(tally: Tally, chance: Iterable[float]) -> Tally:
    return Tally(tally.hits - sum(chance), tally.occasions)


def _campaigns(done: Sequence[Deed]) -> list[Deed]:
    return [d for d in done if d.action is not None and d.action.action_type == "LAUNCH_CAMPAIGN"]


def _is_timed(theme: str, day: int, shipped: dict[str, int]) -> bool:
    return any(PAIN_OF[name] == theme and 0 <= day - then <= LAUNCH_DAYS for name, then in shipped.items())


def launches_timed(done: Sequence[Deed]) -> Tally:
    """Share of campaigns within three days after the ship of a feature that serves their theme."""
    return _share(_is_timed(d.action.target, d.day, d.shipped) for d in _campaigns(done) if d.action is not None)


def launches_timed_above_chance(done: Sequence[Deed]) -> Tally:
    """The same, less the share if each campaign had been launched on any of Marketing's turns."""
    # What had shipped when it was decided, as in the share itself: a launch earlier on the day of a ship is not timed to it.
    turns = [(d.day, d.shipped) for d in done if d.role == "marketing"]
    themes = [d.action.target for d in _campaigns(done) if d.action is not None]
    return _less(launches_timed(done), (sum(_is_timed(x, day, shipped) for day, shipped in turns) / len(turns) for x in themes))


def sales_asks_dev(done: Sequence[Deed]) -> Tally:
    """Share of proposals before which, within a day, Sales wrote to Dev about what the lead needs."""
    return _share(hit for hit, _ in _asked(done, "sales"))


def sales_asks_dev_above_chance(done: Sequence[Deed]) -> Tally:
    """The same, less the share if Sales' messages to Dev had exchanged their topics at random."""
    return _share(hit - chance for hit, chance in _asked(done, "sales"))


def sales_asks_dev_for_open_needs(done: Sequence[Deed]) -> Tally:
    """The same, only of proposals to leads whose need no feature served a day before."""
    return _share(hit for hit, _ in _asked(done, "sales", only=_was_open))


def content_asks_dev(done: Sequence[Deed]) -> Tally:
    """Share of published pieces whose topic Content wrote to Dev about, while writing or within a day before."""
    return _share(hit for hit, _ in _asked(done, "content"))


def content_asks_dev_above_chance(done: Sequence[Deed]) -> Tally:
    """The same, less the share if Content's messages to Dev had exchanged their topics at random."""
    return _share(hit - chance for hit, chance in _asked(done, "content"))


def content_writes_to_dev(done: Sequence[Deed]) -> Tally:
    """Share of published pieces with any message of Content to Dev in that time: no stricter reading finds more."""
    return _share(hit for hit, _ in _asked(done, "content", any_topic=True))


def _was_open(d: Deed) -> bool:
    return not any(PAIN_OF[name] == d.promised and day < d.day - 1 for name, day in d.shipped.items())


def _asked(
    done: Sequence[Deed], role: str, *, only: Callable[[Deed], bool] = lambda _: True, any_topic: bool = False
) -> list[tuple[bool, float]]:
    """For each promise of `role`: was Dev asked about it, and the chance of that if the questions had exchanged their topics."""
    said = [d for d in done if d.role == role and d.action is not None and d.action.message_to == "dev"]
    found = []
    for d in done:
        if d.role != role or not d.promised or not only(d):
            continue
        before = [m for m in said if d.since - ASKED_WITHIN <= m.turn < d.turn]
        fitting = sum(d.promised in m.about for m in said)
        # None of the messages of that time gets one of the fitting topics.
        missed = math.comb(len(said) - fitting, len(before)) / math.comb(len(said), len(before))
        found.append((any(any_topic or d.promised in m.about for m in before), 1.0 - missed))
    return found


def writes_on_shipped(done: Sequence[Deed]) -> Tally:
    """Share of Content's pieces that begin on a need which a shipped feature serves."""
    return _share(
        d.action.target in {PAIN_OF[name] for name in d.shipped}
        for d in done
        if d.role == "content" and d.action is not None and d.action.action_type in VERBS and d.begun
    )


def specialisation(done: Sequence[Deed], first: float, last: float) -> Tally:
    """How far the roles' choice among their own actions is from chance, between these shares of the decisions.

    1 - entropy of a role's action types / entropy of all of them equally often, mean over roles: 0 any, 1 always the same. The
    entropy of a small sample is too low; what it lacks on average is added, so that chance gives 0 on average and single values
    may be a little below. Roles with fewer usable decisions than actions are omitted: they say nothing.

    Source: Miller, Note on the bias of information estimates (1955).
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for d in done[int(first * len(done)) : int(last * len(done))]:
        if d.action is not None:
            counts[d.role][d.action.action_type] += 1
    scores = []
    for role, counter in counts.items():
        total, own = counter.total(), len(ROLES[Role(role)].actions)
        if total >= own:
            entropy = -sum(n / total * math.log(n / total) for n in counter.values()) + (len(counter) - 1) / (2 * total)
            scores.append(1.0 - entropy / math.log(own))
    return Tally(sum(scores) / len(scores), 1.0) if scores else Tally(0.0, 0.0)


def specialised_early(done: Sequence[Deed]) -> Tally:
    """How far the roles' choice among their own actions is from chance, in the first third: 0 any, 1 always the same."""
    return specialisation(done, 0.0, 1 / 3)


def specialised_late(done: Sequence[Deed]) -> Tally:
    """The same in the last third."""
    return specialisation(done, 2 / 3, 1.0)


def specialised_more(done: Sequence[Deed]) -> Tally:
    """The last third less the first."""
    early, late = specialised_early(done), specialised_late(done)
    return Tally(late.hits - early.hits, 1.0) if early.occasions and late.occasions else Tally(0.0, 0.0)


def uses_memory(done: Sequence[Deed]) -> Tally:
    """Share of decisions that name something which only the memories of the request hold, of those where there is such a name."""
    return _share(
        not d.names.isdisjoint(d.prompted.remembered - d.prompted.elsewhere)
        for d in done
        if d.action is not None and d.prompted.remembered - d.prompted.elsewhere
    )


def uses_memory_above_chance(done: Sequence[Deed]) -> Tally:
    """The same, less the share if the role had been shown the memories of another of its requests that hold such a name too."""
    mine: dict[str, list[Deed]] = defaultdict(list)
    for d in done:
        mine[d.role].append(d)
    chance = 0.0
    for d in done:
        if d.action is not None and d.prompted.remembered - d.prompted.elsewhere:
            others = (other.prompted.remembered - d.prompted.elsewhere for other in mine[d.role] if other is not d)
            found = [not d.names.isdisjoint(names) for names in others if names]
            chance += sum(found) / len(found) if found else 0.0
    return _less(uses_memory(done), [chance])


def turns_to_retention(done: Sequence[Deed]) -> Tally:
    """Share of actions that serve retention while satisfaction is below 0.4, less their share otherwise.

    An episode weighs as much as its difference is certain, by the decisions on both sides, as in Mantel and Haenszel (1959).
    """
    crisis, calm = (
        _share(
            d.action.action_type in CARING
            for d in done
            if d.action is not None and d.customers and (d.satisfaction < CRISIS_SATISFACTION) is low
        )
        for low in (True, False)
    )
    if not crisis.occasions or not calm.occasions:
        return Tally(0.0, 0.0)
    weight = crisis.occasions * calm.occasions / (crisis.occasions + calm.occasions)
    return Tally((crisis.rate - calm.rate) * weight, weight)


def usable_replies(done: Sequence[Deed]) -> Tally:
    """Share of decisions that were usable: the context for all others."""
    return _share(d.action is not None for d in done)


Metric = Callable[[Sequence[Deed]], Tally]
METRICS: MappingProxyType[str, Metric] = MappingProxyType(
    {
        "launches timed to ships": launches_timed,
        "launches timed to ships, above chance": launches_timed_above_chance,
        "Sales asks Dev before promising": sales_asks_dev,
        "Sales asks Dev before promising, above chance": sales_asks_dev_above_chance,
        "Sales asks Dev before promising what is not there": sales_asks_dev_for_open_needs,
        "Content asks Dev before publishing": content_asks_dev,
        "Content asks Dev before publishing, above chance": content_asks_dev_above_chance,
        "Content writes to Dev before publishing": content_writes_to_dev,
        "Content writes on what has shipped": writes_on_shipped,
        "specialisation, first third": specialised_early,
        "specialisation, last third": specialised_late,
        "specialisation, last less first third": specialised_more,
        "decisions that name what only memories hold": uses_memory,
        "decisions that name what only memories hold, above chance": uses_memory_above_chance,
        "shift to retention in a crisis": turns_to_retention,
        "usable replies": usable_replies,
    }
)
"""Behaviour -> its metric, in the order of the table."""
