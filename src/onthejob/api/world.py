"""A world: one company, who plays it, and all that was said in it.

Frames are only ever appended (or cut by undo, which starts a new epoch), and readers take slices of them, so that no reader can
slow the play down: there is nothing to wait for. A point in the past is reached by playing the recorded replies again from the
nearest snapshot; the workplace is deterministic, so what is shown of the past is what was.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

from onthejob.api.frames import WORLD, Reply, Teller
from onthejob.api.schema_office import Frames, Seats, WorldName
from onthejob.api.seated import PROFILE, Seat, context, corrected
from onthejob.envs.office.actions import Action
from onthejob.envs.office.company_state import State
from onthejob.envs.office.env import CUSTOMER, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.fast_play import NIGHT
from onthejob.envs.office.reward_parts import TurnLog
from onthejob.errors import ContractError, OnTheJobError, RecordError
from onthejob.keys import keyed_seed
from onthejob.office import without_memories
from onthejob.rollout.contract import state_metrics
from onthejob.rollout.episode import TurnRecord
from onthejob.rollout.game_file import Said
from onthejob.train.collected import CompanyRecorder, Sampled
from onthejob.types import Completion, Context, Kind, Step, Task

log = logging.getLogger(__name__)

SNAPSHOT_EVERY = 60
"""Replies between snapshots: reaching any point plays at most so many again."""
HUMAN = "human"
RECORDED = "recorded"


class World:
    """One company in play. All methods may be called from any thread."""

    def __init__(self, name: WorldName, task: Task, seats: Mapping[str, Seat], *, human: str = "", pace_s: float = 0.5) -> None:
        self.name: WorldName = name
        self.task = task
        self.seats: dict[str, Seat] = dict(seats)
        """Role -> who sits there; without the customer its script plays it."""
        self.human = human
        self.pace_s = pace_s
        self.epoch = 0
        self.kept = 0
        """Frames that the newest epoch took over from the one before."""
        self.error = ""
        self._playing = False
        self._closed = False
        asked = CUSTOMER in self.seats
        self._config = OfficeConfig(profile=PROFILE, customer_asked=asked)
        self._teller = Teller(world=(NIGHT,) if asked else WORLD)
        self._replies: list[tuple[str, str, str]] = []
        """(actor, policy, text) of every step."""
        self._marks: list[int] = []
        """Number of frames before each of them."""
        self._snapshots: list[bytes] = []
        self._kept: CompanyRecorder | None = None
        """Receives all turns from the first one of a seat in training mode on."""
        self._saying = Reply("", "", 0)
        self._env = OfficeEnvironment(self._config, on_turn=self._on_turn)
        self._change = threading.Condition(threading.RLock())
        self._env.reset(task)
        self._teller.found(self._env.company, self._env.memories)
        self._snapshots.append(self._env.snapshot())
        self._thread = threading.Thread(target=self._run, name=f"world-{name}", daemon=True)
        self._thread.start()

    @property
    def length(self) -> int:
        """Frames so far."""
        return len(self._teller.frames)

    def status(self) -> Seats:
        """Seats of the world, and its progress."""
        return Seats(
            world=self.name,
            epoch=self.epoch,
            length=self.length,
            first=0,
            turns=14 * int(self.task.payload["days"]),
            scenario=str(self.task.payload["scenario"]),
            seed=self.task.seed,
            days=int(self.task.payload["days"]),
            seats={role: seat.name for role, seat in self.seats.items()},
            modes={role: seat.mode for role, seat in self.seats.items()},
            human=self.human,
            playing=self._playing,
            pace_s=self.pace_s,
            done=self._env.company.done,
            error=self.error,
        )

    def frames(self, start: int, stop: int | None = None) -> Frames:
        """Frames `start` to `stop` (all, by default), with what they build on."""
        with self._change:
            return Frames(seats=self.status(), start=start, base=self._teller.base(start), frames=self._teller.frames[start:stop])

    def at(self, seq: int) -> OfficeEnvironment:
        """The company as it was after the reply to which frame `seq` belongs; an environment of its own.

        Raises:
            ContractError: there is no such frame.
        """
        with self._change:
            if not 0 <= seq < self.length:
                raise ContractError(f"seq must be in 0..{self.length - 1}, got {seq}. Ask for a frame that was played.")
            step = self._teller.frames[seq].step
            env = OfficeEnvironment(self._config)
            nearest = step // SNAPSHOT_EVERY
            env.restore(self._snapshots[nearest])
            texts = [text for _, _, text in self._replies[nearest * SNAPSHOT_EVERY : step]]
        for text in texts:
            env.step(text)
        return env

    def step(self, text: str | None) -> None:
        """Play one turn: with `text` as the person's reply, without as the reply of the seat that is asked.

        Raises:
            ContractError: the episode is over, or it is not the person's turn, or it is and there is no text.
        """
        with self._change:
            observation = self._env.observe()
            if observation is None:
                raise ContractError("the episode is over: no role is asked. Reset the world.")
            if text is not None:
                if observation.actor != self.human:
                    raise ContractError(f"{observation.actor} is asked, and the person sits at {self.human or 'no seat'}.")
                self._play(observation.actor, HUMAN, text)
                self._change.notify_all()
                return
            if observation.actor == self.human:
                raise ContractError(f"{self.human} is yours: send a reply as `text`, or give the seat back.")
        self._ask()

    def play_to_person(self, limit: int = 14) -> None:
        """Let the others play until the person is asked, at most `limit` turns."""
        for _ in range(limit):
            if not self._ask():
                return

    def recall(self, replies: Sequence[Said]) -> None:
        """Play a recorded game, as far as it goes.

        Raises:
            RecordError: another actor is asked than the one that replied, so the game was played under other rules.
        """
        with self._change:
            for number, said in enumerate(replies):
                observation = self._env.observe()
                if observation is None or observation.actor != said.actor:
                    asked = "the episode is over" if observation is None else f"{observation.actor} is asked"
                    raise RecordError(f"reply {number} is of {said.actor}, but {asked}: the game was played under other rules.")
                self._say(said.actor, RECORDED, said.text)

    def undo(self) -> bool:
        """Take back the person's last reply and what came of it (without a person, the last reply); False when there is none."""
        with self._change:
            last = len(self._replies) - 1
            while last >= 0 and self.human and self._replies[last][0] != self.human:
                last -= 1
            if last < 0:
                return False
            self._end_kept()
            nearest = last // SNAPSHOT_EVERY
            replies = self._replies[nearest * SNAPSHOT_EVERY : last]
            self.epoch, self.kept, self.error = self.epoch + 1, self._marks[last], ""
            del self._snapshots[nearest + 1 :]
            # Playing again tells the frames again, so the teller goes back to the snapshot too.
            self._teller.cut(self._marks[nearest * SNAPSHOT_EVERY])
            del self._replies[nearest * SNAPSHOT_EVERY :], self._marks[nearest * SNAPSHOT_EVERY :]
            self._env.restore(self._snapshots[nearest])
            for actor, policy, text in replies:
                self._say(actor, policy, text)
            return True

    def configure(
        self,
        *,
        seats: Mapping[str, Seat] | None = None,
        human: str | None = None,
        playing: bool | None = None,
        pace_s: float | None = None,
    ) -> None:
        """Change who plays and how fast; takes effect with the next reply."""
        with self._change:
            self.seats.update(seats or {})
            self.human = self.human if human is None else human
            self.pace_s = self.pace_s if pace_s is None else pace_s
            if playing is not None:
                self._playing = playing
                self.error = ""
            self._change.notify_all()

    def close(self) -> None:
        """Stop playing for good."""
        with self._change:
            self._closed = True
            self._end_kept()
            self._change.notify_all()

    def suggest(self, seq: int, seat: Seat, count: int, temperature: float) -> tuple[str, list[str]]:
        """Who is asked at `seq`, and `count` replies that `seat` would give.

        Raises:
            ContractError: no such frame, or the episode is over there.
        """
        env = self.at(seq)
        observation = env.observe()
        if observation is None:
            raise ContractError(f"no role is asked at seq {seq}: the episode is over there.")
        seeds = [keyed_seed(self.task.seed, "suggest", seq, index) for index in range(count)]
        contexts = [context(env, seat, seed) for seed in seeds]
        replies = seat.policy.act(contexts, seat.asking.sampling(temperature))
        return observation.actor, [reply.text for reply in replies]

    def _run(self) -> None:
        """The thread that plays while `playing` is set."""
        while True:
            with self._change:
                while not self._closed and not (self._playing and self._somebody_else_is_asked()):
                    self._change.wait()
                if self._closed:
                    return
            try:
                self._ask()
            except OnTheJobError as error:
                log.warning("world %s stopped: %s", self.name, error)
                self._stop(str(error))
            except Exception as error:
                # A player's own failure must not end the thread: the world stops, and says so to all viewers.
                log.exception("world %s stopped", self.name)
                self._stop(f"{type(error).__name__}: {error}")
            with self._change:
                if self._playing and not self._closed and self.pace_s:
                    self._change.wait(self.pace_s)

    def _stop(self, error: str) -> None:
        with self._change:
            self.error, self._playing = error, False

    def _somebody_else_is_asked(self) -> bool:
        observation = self._env.observe()
        if observation is None:
            self._playing = False
        return observation is not None and observation.actor != self.human

    def _ask(self) -> bool:
        """Let the seat that is asked reply; False when it is the person's, or when no seat is asked."""
        with self._change:
            observation = self._env.observe()
            if observation is None or observation.actor == self.human:
                return False
            seat, mark = self.seats[observation.actor], (self.epoch, len(self._replies))
            # Before the prompt is rendered, which counts as a use of the memories in it.
            before = self._env.snapshot() if seat.retries or seat.recorder is not None else b""
            # Keyed by how many replies there were: taking a move back changes no other luck.
            asked = context(self._env, seat, keyed_seed(self.task.seed, "viewer", len(self._replies)))
            if seat.policy.reads == "view":
                # A script reads the live state, and is done in less time than a lock takes to change hands.
                (completion,) = seat.policy.act([asked], seat.asking.sampling())
                self._play(observation.actor, seat.policy.version, completion.text)
                return True
        # A model thinks while others look at the world, or change it: then its answer is no longer wanted.
        (completion,) = seat.policy.act([asked], seat.sampling)
        text = corrected(before, asked, completion.text, seat) if seat.retries else completion.text
        with self._change:
            if mark == (self.epoch, len(self._replies)) and not self._closed:
                if seat.recorder is not None and self._kept is None:
                    self._kept = seat.recorder.begin(self.task)
                sampled = self._sampled(seat, before, asked, completion) if seat.recorder is not None else None
                self._play(observation.actor, seat.policy.version, text, sampled)
        return True

    def _sampled(self, seat: Seat, before: bytes, asked: Context, completion: Completion) -> Sampled:
        """The pending turn of a seat in training mode."""
        return Sampled(
            snapshot=before if seat.asking.profile == PROFILE else without_memories(before),
            day=self._env.company.day + 1,
            prompt_ids=asked.prompt_ids,
            completion=completion,
            sampling=seat.sampling,
            policy=seat.fingerprint,
        )

    def _play(self, actor: str, policy: str, text: str, sampled: Sampled | None = None) -> None:
        """Play a turn that is new, and keep it where turns are kept."""
        at, index = self._env.company.turn, len(self._replies)
        step = self._say(actor, policy, text)
        if self._kept is None:
            return
        played = TurnRecord(
            index=index,
            actor=actor,
            policy=policy,
            kind=Kind.ACT,
            text=text,
            valid=step.valid,
            rewards=dict(step.rewards),
            parts={role: dict(parts) for role, parts in step.parts.items()},
            facts=dict(step.facts),
        )
        metrics = state_metrics(self._env.state(), "the office") if sampled is not None else None
        self._kept.turn(played, at=at, sampled=sampled, stop=step.stop, metrics=metrics)

    def _end_kept(self) -> None:
        """End the company in the record: later turns belong to another one."""
        if self._kept is not None:
            self._kept.finish(over=False)
            self._kept = None

    def _say(self, actor: str, policy: str, text: str) -> Step:
        self._marks.append(self.length)
        self._replies.append((actor, policy, text))
        self._saying = Reply(policy, text, len(self._replies))
        step = self._env.step(text)
        if not step.valid:
            self._teller.explain(str(step.facts.get("why", "")))
        self._teller.reflect(self._env.company.turn, self._env.memories)
        if len(self._replies) % SNAPSHOT_EVERY == 0:
            self._snapshots.append(self._env.snapshot())
        return step

    def _on_turn(self, s: State, role: str, action: Action | None, turn: TurnLog) -> None:
        self._teller.turn(s, role, action, turn, self._saying)
