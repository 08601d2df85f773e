"""Tables: episodes of an environment of the user's own, played by a person in one seat, in several or in all.

A table keeps all that was said, and shows what the person's own seats were asked, replied and paid. The turns of other seats are
not even counted, because in some games the order of turns is a secret; they are shown after the end, when the person asks.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from onthejob.api.hands import Hands
from onthejob.api.schema_play import EnvView, Heard, OpenTable, RequestView, TableReply, TableView, TaskPage, TaskRow, TurnPlayed
from onthejob.api.world import HUMAN
from onthejob.compat.served import Served
from onthejob.errors import ConfigError, ContractError, OnTheJobError, RecordError
from onthejob.keys import keyed_seed
from onthejob.texts import encodable
from onthejob.types import Environment, Message, Observation, Split, Task

log = logging.getLogger(__name__)

MOST_TABLES = 32
"""Episodes that are kept; a further one takes the place of the one that was left alone for longest."""
MOST_LEGAL = 1_000
PATIENCE_S = 60.0
"""Seconds that a page waits for an environment."""
BUSY_S = 5.0
"""Seconds that a page waits for a table at which a reply is being stepped."""
FAILURES = (Exception, SystemExit)
"""What a user's code may raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One reply, with what it answers and what it paid."""

    role: str
    player: str
    messages: tuple[Message, ...]
    fresh: bool
    reply: str
    valid: bool
    rewards: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What is known of an environment besides what plays it."""

    workplace: Served
    tasks: Mapping[Split, Sequence[Task]]
    family: Callable[[Task], str]
    options: Mapping[str, Any] = field(default_factory=dict)
    max_turns: int
    max_new_tokens: int


class Table:
    """One episode. Its methods are called by one thread at a time."""

    def __init__(self, place: Served, task: Task, row: TaskRow, split: Split, seats: Mapping[str, str], seed: int) -> None:
        """Reset the environment and play until the person is asked.

        Raises:
            ContractError: `reset` fails.
        """
        self.id = secrets.token_urlsafe(12)
        self._place, self._task, self._row, self._split, self._seed = place, task, row, split, seed
        self._seats = dict(seats)
        self._mine = frozenset(role for role, player in seats.items() if player == HUMAN)
        self._turns: list[Turn] = []
        self._replies = 0
        self._stop = self._error = ""
        self._metrics: Mapping[str, float] = {}
        self._env: Environment = place.make()
        self._lock = threading.Lock()
        try:
            self._asked: Observation | None = self._env.reset(task)
        except OnTheJobError:
            raise
        except FAILURES as error:
            log.exception("%s, task %s", place.name, task.id)
            raise ContractError(f"{place.name}: reset of task {task.id} raised {_said(error)}.") from error
        self._play_others()

    def reply(self, given: TableReply) -> None:
        """Take the person's reply, and play until the person is asked again.

        Raises:
            ContractError: the episode is over, or this reply was given already.
        """
        with self._alone():
            if self._asked is None:
                raise ContractError("the episode is over. Begin another one.")
            if given.replies != self._replies:
                raise ContractError(f"this table has {self._replies} replies of yours, not {given.replies}. Load the page again.")
            self._replies += 1
            self._step(self._asked, HUMAN, encodable(given.text))
            self._play_others()

    def view(self, *, reveal: bool = False) -> TableView:
        """What the person's seats see; with `reveal`, what every seat saw.

        Raises:
            ContractError: `reveal` before the end.
        """
        with self._alone():
            if reveal and self._asked is not None:
                raise ContractError("other seats are shown when the episode is over. Finish it first.")
            seen = frozenset(self._seats) if reveal else self._mine
            turns, before = self._shown(seen)
            paid = {role: sum(turn.rewards.get(role, 0.0) for turn in self._turns) for role in self._seats if role in seen}
            return TableView(
                id=self.id,
                task=self._row,
                split=self._split,
                seed=self._seed,
                seats=self._seats,
                replies=self._replies,
                turns=turns,
                before=before,
                paid=paid,
                asked=None if self._asked is None else _request(self._asked),
                stop=self._stop,
                error=self._error,
                metrics=dict(self._metrics),
                revealed=seen == frozenset(self._seats),
            )

    def close(self) -> None:
        """Let go of the environment."""
        with self._alone():
            self._asked = None
            self._env.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nothing else touches the table; refused while the environment does not return."""
        if not self._lock.acquire(timeout=BUSY_S):
            raise ContractError(f"{self._place.name} is still at work on a reply. Wait, and load the page again.")
        try:
            yield
        finally:
            self._lock.release()

    def _shown(self, seen: frozenset[str]) -> tuple[list[TurnPlayed], dict[str, float]]:
        """The turns of these roles, and what these were paid before the first of them."""
        shown: list[TurnPlayed] = []
        before: dict[str, float] = {}
        for index, turn in enumerate(self._turns):
            paid = {role: amount for role, amount in turn.rewards.items() if role in seen}
            if turn.role in seen:
                shown.append(
                    TurnPlayed(
                        index=index if seen == frozenset(self._seats) else -1,
                        role=turn.role,
                        player=turn.player,
                        messages=_heard(turn.messages),
                        fresh=turn.fresh,
                        reply=turn.reply,
                        valid=turn.valid,
                        rewards=paid,
                    )
                )
            elif shown:
                sums = _added(shown[-1].rewards, paid)
                shown[-1] = shown[-1].model_copy(update={"rewards": sums})
            else:
                before = _added(before, paid)
        return shown, before

    def _play_others(self) -> None:
        while self._asked is not None and self._asked.actor not in self._mine:
            player = self._seats[self._asked.actor]
            seed = keyed_seed(self._task.seed, "table", self._seed, len(self._turns))
            try:
                text = self._place.players[player](self._asked, seed)
                if not isinstance(text, str):
                    raise ContractError(
                        f"the player {player} returned {type(text).__name__}, and replies are texts. Return a str."
                    )
            except FAILURES as error:
                self._fail(f"the player {player}", error)
                return
            self._step(self._asked, player, text)

    def _step(self, asked: Observation, player: str, text: str) -> None:
        try:
            step = self._env.step(text)
            metrics = self._env.state().get("metrics", {}) if step.observation is None else {}
        except FAILURES as error:
            self._fail("step", error)
            return
        turn = Turn(
            role=asked.actor,
            player=player,
            messages=tuple(asked.messages),
            fresh=asked.fresh,
            reply=text,
            valid=step.valid,
            rewards={role: float(amount) for role, amount in step.rewards.items()},
        )
        self._turns.append(turn)
        self._asked, self._metrics = step.observation, metrics
        if self._asked is None:
            self._stop = str(step.stop or "done")

    def _fail(self, what: str, error: BaseException) -> None:
        """An error of the user's code ends the episode, and the page says which one it was."""
        log.warning("%s, task %s: %s failed", self._place.name, self._task.id, what, exc_info=error)
        said = str(error) if isinstance(error, OnTheJobError) else f"{what} raised {_said(error)}."
        self._asked, self._stop, self._error = None, "error", said


class Tables:
    """All episodes of one environment, for as long as the context lasts."""

    def __init__(self, opened: Callable[[], AbstractContextManager[Played]], *, threads: int, name: str) -> None:
        """Describe what is played; entering the context opens it.

        Args:
            opened: opens the environment, and closes it at the end; called in the thread that steps it.
            threads: of the environment.
            name: of the environment, for messages.
        """
        self._opened, self._threads, self._name = opened, threads, name
        self._stack = ExitStack()
        self._tables: OrderedDict[str, Table] = OrderedDict()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._hands = Hands(self._threads, name=self._name, patience_s=PATIENCE_S)
        self._played: Played = self._hands.do(lambda: self._stack.enter_context(self._opened()))
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._hands.do(self._stack.close)
        except ContractError as error:
            log.warning("%s", error)
        self._hands.close()

    def describe(self) -> EnvView:
        """The environment, its seats and its players."""
        played, place = self._played, self._played.workplace
        return EnvView(
            name=place.name,
            description=place.description,
            roles=list(place.seats),
            players=list(place.players),
            partner=place.default_player,
            tasks={str(split): count for split, count in place.counts.items()},
            options=dict(played.options),
            max_turns=played.max_turns,
            max_new_tokens=played.max_new_tokens,
        )

    def tasks(self, split: Split, start: int, count: int) -> TaskPage:
        """Some tasks of a split."""
        held = self._played.tasks.get(split, ())
        rows = [self._row(task, start + number) for number, task in enumerate(held[start : start + count])]
        return TaskPage(split=split, total=len(held), rows=rows)

    def open(self, asked: OpenTable) -> TableView:
        """Begin an episode.

        Raises:
            ConfigError: no such task, role or player, or no seat for the person.
            ContractError: the environment fails, or takes too long.
        """
        seats = self._seating(asked.seats)
        held = self._played.tasks.get(asked.split, ())
        if asked.index >= len(held):
            raise ConfigError(f"task {asked.index + 1} must be in 1..{len(held)}, the tasks of the split {asked.split}.")
        task = held[asked.index]
        row = self._row(task, asked.index)
        table = self._hands.do(partial(Table, self._played.workplace, task, row, asked.split, seats, asked.seed))
        with self._lock:
            self._tables[table.id] = table
            forgotten = [self._tables.popitem(last=False)[1] for _ in range(len(self._tables) - MOST_TABLES)]
        for one in forgotten:
            self._hands.do(one.close)
        return table.view()

    def get(self, name: str) -> Table:
        """The table of this id.

        Raises:
            RecordError: there is none, or it has made way for others.
        """
        with self._lock:
            table = self._tables.get(name)
            if table is None:
                raise RecordError("this episode is not kept any more, or is of another server. Begin another one.")
            self._tables.move_to_end(name)
        return table

    def reply(self, name: str, given: TableReply) -> TableView:
        """Give the person's reply.

        Raises:
            RecordError: no such table.
            ContractError: as `Table.reply`, or the environment takes too long.
        """
        table = self.get(name)

        def work() -> TableView:
            table.reply(given)
            return table.view()

        return self._hands.do(work)

    def _row(self, task: Task, index: int) -> TaskRow:
        return TaskRow(index=index, id=task.id, family=self._played.family(task), seed=task.seed)

    def _seating(self, given: Mapping[str, str]) -> dict[str, str]:
        place = self._played.workplace
        if unknown := [role for role in given if role not in place.seats]:
            raise ConfigError(f"role must be one of {', '.join(place.seats)}, got {unknown[0]!r}.")
        usual = place.default_player or HUMAN
        seats = {role: given.get(role, usual) for role in place.seats}
        known = [HUMAN, *place.players]
        if wrong := [player for player in seats.values() if player not in known]:
            raise ConfigError(f"player must be one of {', '.join(known)}, got {wrong[0]!r}.")
        if HUMAN not in seats.values():
            raise ConfigError("take at least one seat: give `human` for a role.")
        return seats


def _request(asked: Observation) -> RequestView:
    legal = [str(reply) for reply in asked.view.get("legal", ())]
    return RequestView(
        role=asked.actor, messages=_heard(asked.messages), fresh=asked.fresh, legal=legal[:MOST_LEGAL], legal_count=len(legal)
    )


def _heard(messages: Sequence[Message]) -> list[Heard]:
    return [Heard(role=message.role, content=message.content) for message in messages]


def _added(sums: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    return {role: sums.get(role, 0.0) + more.get(role, 0.0) for role in dict.fromkeys([*sums, *more])}


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
