"""From a company's state to frames: the one form in which the viewer sees a world, live or recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from onthejob.api.schema_office import AccountMove, AccountView, Base, Feature, Floor, Frame, Kpis, LossName, ReasonView, Talk
from onthejob.envs.office.actions import Action
from onthejob.envs.office.company_state import (
    FOCI,
    PAINS,
    SEGMENTS,
    SIZES,
    STAGES,
    TIERS,
    TURNS_PER_DAY,
    Account,
    CompanyState,
)
from onthejob.envs.office.env import CUSTOMER, SEATS
from onthejob.envs.office.fast_play import NIGHT
from onthejob.envs.office.market import company_value, pipeline_value
from onthejob.envs.office.memory import REFLECTION_TURNS, Memory
from onthejob.envs.office.records import MemoryKind
from onthejob.envs.office.reward_parts import ORDER, TurnLog
from onthejob.envs.office.reward_reasons import reasons
from onthejob.envs.office.simulator import actor_of, phase_of
from onthejob.texts import encodable

WORLD = frozenset({CUSTOMER, NIGHT})
"""Actors that are part of the world: their frames belong to the reply before them and hold no reply of their own."""

DIGITS = 5
"""Decimals of the shares in a reward: more are not shown, and would make frames a third longer."""

Memories = Callable[[str], Sequence[Memory]]
"""Role -> what it remembers."""


class FrameReply(NamedTuple):
    """A policy's reply in the turn of a frame."""

    policy: str
    text: str
    step: int


class Teller:
    """Frames of one world; remembers the last one, so that unchanged parts are omitted."""

    def __init__(self, *, world: Collection[str] = WORLD) -> None:
        """world: actors without replies of their own; where a model plays the customer, only the night."""
        self._world = world
        self.frames: list[Frame] = []
        self._bases: list[Base] = []
        self._stages = Stages(())
        self._before: dict[str, int] = {}
        """Role -> turn of its last reflection before the beginning."""
        self._reflected: dict[str, int] = {}
        """The same of all frames so far."""

    def found(self, s: CompanyState, memories: Memories) -> None:
        """Write the first frame, which need not be the founding; forgets all frames before."""
        self.frames, self._bases = [], []
        self._before = {role: max((m.turn for m in _reflections(memories(role))), default=0) for role in SEATS}
        self._reflected = dict(self._before)
        # Accounts of a company that is founded arrive; those of one that is continued were there.
        self._stages = Stages(() if s.turn == 0 else ((a.id, a.stage) for a in s.accounts))
        log = TurnLog(s)
        log.turn = s.turn - 1
        self._tell(s, actor="", reply=FrameReply("", "", 0), action=None, log=log, valid=True)

    def turn(self, s: CompanyState, role: str, action: Action | None, log: TurnLog, reply: FrameReply) -> None:
        """Tell one turn or, of `NIGHT`, what happened overnight; `s` is the state after it."""
        said = reply._replace(policy="world", text="") if role in self._world else reply
        self._tell(s, actor=role, reply=said, action=action, log=log, valid=action is not None or role == NIGHT)

    def explain(self, why: str) -> None:
        """Say why the newest reply could not be used; the night may have passed and a scripted customer acted since."""
        for index in range(len(self.frames) - 1, -1, -1):
            if self.frames[index].actor not in self._world:
                self.frames[index] = self.frames[index].model_copy(update={"why": encodable(why)})
                return

    def reflect(self, turn: int, memories: Memories) -> None:
        """Say what roles have concluded since they were last looked at.

        Args:
            turn: the next one.
            memories: what a role remembers; nothing where the office keeps no memories.
        """
        for role in SEATS:
            last = self._reflected[role]
            if turn - last < REFLECTION_TURNS:
                continue
            new = [memory for memory in _reflections(memories(role)) if memory.turn > last]
            for made in sorted({memory.turn for memory in new}):
                self._add_reflection(role, made - 1, [encodable(memory.text) for memory in new if memory.turn == made])
                self._reflected[role] = made

    def _add_reflection(self, role: str, turn: int, texts: list[str]) -> None:
        """Put a reflection into the frame of the turn that it followed."""
        for index in range(len(self.frames) - 1, -1, -1):
            frame = self.frames[index]
            if frame.turn == turn and frame.actor != NIGHT:
                self.frames[index] = frame.model_copy(update={"reflections": {**frame.reflections, role: texts}})
                return

    def cut(self, length: int) -> None:
        """Forget the frames from `length` on."""
        del self.frames[length:], self._bases[length:]
        told = {role: frame.turn + 1 for frame in self.frames for role in frame.reflections}
        self._reflected = {**self._before, **told}
        self._stages = Stages((a.id, STAGES.index(a.stage)) for a in self._bases[-1].accounts)

    def base(self, seq: int) -> Base:
        """What was true after frame `seq - 1`."""
        return self._bases[seq - 1] if 0 < seq <= len(self._bases) else Base(accounts=[], features=[], floor=None)

    def _tell(self, s: CompanyState, *, actor: str, reply: FrameReply, action: Action | None, log: TurnLog, valid: bool) -> None:
        before = self._bases[-1] if self._bases else Base(accounts=[], features=[], floor=None)
        now = Base(accounts=[_account(a) for a in s.accounts], features=_features(s), floor=_floor(s))
        shown = max(log.turn, 0)
        over_night = s.turn == log.turn and s.turn % TURNS_PER_DAY == TURNS_PER_DAY - 1
        self.frames.append(
            Frame(
                seq=len(self.frames),
                step=reply.step,
                turn=log.turn,
                day=shown // TURNS_PER_DAY,
                phase=NIGHT if actor == NIGHT else phase_of(shown),
                actor=actor,
                policy=reply.policy,
                text=reply.text,
                action=action.action_type if action is not None else "",
                target=action.target if action is not None else "",
                reasoning=action.reasoning if action is not None else "",
                valid=valid,
                why="",
                changed=log.changed,
                talk=_talk(actor, action, log),
                notes=list(log.notes),
                reflections={},
                events=[kind for at, kind in s.events if at == s.turn] if s.turn % TURNS_PER_DAY == 0 else [],
                rewards=log.rewards() if actor else {},
                parts=_parts(log.lines),
                reasons=_reasons(s, log) if actor else [],
                moves=self._stages.moves(s, log),
                kpis=kpis(s),
                waiting=NIGHT if over_night else "" if s.done else actor_of(s.turn),
                accounts=now.accounts if now.accounts != before.accounts else None,
                features=now.features if now.features != before.features else None,
                floor=now.floor if now.floor != before.floor else None,
            )
        )
        self._bases.append(now)


class Stages:
    """The stage of every account in the last frame, and what has moved since."""

    def __init__(self, stages: Iterable[tuple[int, int]]) -> None:
        self._stages = dict(stages)

    def moves(self, s: CompanyState, log: TurnLog) -> list[AccountMove]:
        """Accounts that arrived or changed their stage, and those that left: they are in the log, no longer in the state."""
        moves = [_move(a, self._stages.get(a.id), a.stage) for a in s.accounts if self._stages.get(a.id) != a.stage]
        for a, after, reason in log.departures:
            moves.append(_move(a, self._stages.get(a.id, a.stage), after, reason.value))
        self._stages = {a.id: a.stage for a in s.accounts}
        return moves


def _move(a: Account, before: int | None, after: int, reason: LossName = "") -> AccountMove:
    told = STAGES[before] if before is not None else ""
    return AccountMove(id=a.id, name=a.name, before=told, after=STAGES[after], price=a.price / 100, reason=reason)


def _reflections(memories: Iterable[Memory]) -> list[Memory]:
    return [memory for memory in memories if memory.kind is MemoryKind.REFLECTION]


def kpis(s: CompanyState) -> Kpis:
    """The company in numbers."""
    return Kpis(
        value=company_value(s) / 100,
        cash=s.cash / 100,
        mrr=s.mrr() / 100,
        revenue=s.ledger.get("subscriptions", 0) / 100,
        pipeline=pipeline_value(s) / 100,
        traffic=sum(s.traffic),
        nps=s.nps(),
        satisfaction=s.satisfaction(),
        stability=s.stability,
        velocity=s.velocity,
        morale=s.morale,
        alignment=s.alignment,
        debt=s.debt,
        brand=s.brand,
        conversion=s.conversion,
        customers=len(s.customers()),
        leads=len(s.leads()),
        won=s.won,
        lost=s.lost,
        churned=s.churned,
        features=sum(1 for day in s.feature_shipped if day >= 0),
    )


def _talk(actor: str, action: Action | None, log: TurnLog) -> Talk | None:
    """The message of a turn: the actor's own, else the one that its action sends."""
    if action is not None and action.message_to:
        return Talk(sender=actor, to=action.message_to, text=action.message)
    if log.said is not None:
        to, text = log.said
        return Talk(sender=actor, to=to, text=text)
    return None


def _parts(lines: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    return {role: list(line) for role, line in zip(ORDER, lines, strict=True) if any(line)}


def _reasons(s: CompanyState, log: TurnLog) -> list[ReasonView]:
    return [
        ReasonView(
            cause=reason.cause.value,
            text=reason.text,
            account=reason.account,
            amounts={role: [round(share, DIGITS) for share in line] for role, line in reason.amounts.items()},
        )
        for reason in reasons(s, log)
    ]


def _account(a: Account) -> AccountView:
    return AccountView(
        id=a.id,
        name=a.name,
        segment=SEGMENTS[a.segment],
        size=SIZES[a.size],
        pain=PAINS[a.pain],
        known=a.known,
        stage=STAGES[a.stage],
        price=a.price / 100,
        tier=TIERS[a.tier],
        satisfaction=a.sat,
        warmth=a.warmth,
        objections=a.objections,
        contact=a.contact,
    )


def _features(s: CompanyState) -> list[Feature]:
    rows = zip(s.catalogue, s.feature_left, s.feature_shipped, strict=True)
    return [
        Feature(name=spec.name, pain=PAINS[spec.pain], effort=spec.effort, left=left, shipped=day) for spec, left, day in rows
    ]


def _floor(s: CompanyState) -> Floor:
    drafts = sum(1 for piece in s.pieces if piece.left > 0)
    return Floor(
        focus=FOCI[s.focus] if s.focus >= 0 and s.focus_left > 0 else "",
        focus_left=s.focus_left,
        directive=s.directive_role if s.directive_left > 0 else "",
        blockers=dict(s.blockers),
        contractors=dict(s.contractor_days),
        envelopes={name: cents / 100 for name, cents in s.envelopes.items()},
        bugs={"critical": s.bug_critical, "major": s.bug_major, "minor": s.bug_minor},
        drafts=drafts,
        published=len(s.pieces) - drafts,
        campaigns=len(s.campaigns),
        competitor=s.competitor,
        ledger={kind: cents / 100 for kind, cents in s.ledger.items()},
    )
