"""What the viewer reads and sends of the office; `schema_runs` has what it reads of runs, `schema_play` other environments.

Its TypeScript types are generated from these classes through the OpenAPI document.

Money is in dollars here (the simulation counts cents), rates are in [0, 1], turns and days count from 0.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from onthejob.api.schema_base import Asked, Player, Seed, Sent
from onthejob.api.schema_play import EnvView
from onthejob.envs.office.actions import MAX_REPLY_BYTES
from onthejob.envs.office.tasks import MAX_DAYS
from onthejob.rollout.seats import Mode

WorldName = Literal["live", "race-1", "race-2", "race-3"]
ShownName = Literal["live", "race-1", "race-2", "race-3", "recorded"]
"""`recorded` is an episode of a run: it can be looked at, but not continued."""
LossName = Literal["", "silence", "deadline", "refused", "unhappy"]
"""`onthejob.envs.office.reward_parts.Loss`, or empty."""
CauseName = Literal["deal", "rule", "work", "money", "product", "market", "team"]
"""`onthejob.envs.office.reward_reasons.Cause`."""
RoleName = Literal["ceo", "dev", "marketing", "sales", "content", "hr", "customer"]
SeatName = Literal["ceo", "dev", "marketing", "sales", "content", "hr"]
Text = Annotated[str, StringConstraints(max_length=MAX_REPLY_BYTES)]


class AccountView(Sent):
    """A lead, a deal or a customer."""

    id: int
    name: str
    segment: str
    size: str
    pain: str
    known: bool
    """Sales has qualified it; before that its pain and size are hidden from the whole company."""
    stage: str
    price: float
    """Dollars per month."""
    tier: str
    satisfaction: float
    warmth: float
    objections: int
    contact: int
    """Turn of the last contact."""


class Feature(Sent):
    """An entry of the product's catalogue."""

    name: str
    pain: str
    effort: float
    left: float
    """Dev turns left at velocity 1."""
    shipped: int
    """Day, -1 when it has not shipped."""


class Floor(Sent):
    """State of the company other than accounts and features."""

    focus: str
    focus_left: int
    directive: str
    """Role whom the CEO's directive favours, or empty."""
    blockers: dict[str, int]
    contractors: dict[str, int]
    envelopes: dict[str, float]
    bugs: dict[str, int]
    drafts: int
    published: int
    campaigns: int
    competitor: float
    ledger: dict[str, float]


class AccountMove(Sent):
    """An account that arrived, changed its stage or left."""

    id: int
    name: str
    before: str
    """Empty: it has just arrived."""
    after: str
    """`lost` and `churned`: it is no longer among the accounts."""
    price: float
    reason: LossName
    """Why it left: no contact for ten days, its deadline passed, it refused three times, or it was an unhappy customer."""


class ReasonView(Sent):
    """One cause of what a turn or a night paid."""

    cause: CauseName
    text: str
    """One line, in English."""
    account: int
    """The account that it is about; -1 for none or several."""
    amounts: dict[str, list[float]]
    """Role -> its share in the six parts, in the order of `parts` in `/api/config`; roles without a share are omitted."""


class Talk(Sent):
    """A message between roles."""

    sender: str
    to: str
    text: str


class Kpis(Sent):
    """The company in numbers."""

    value: float
    """Cash + twelve months of retained contracts - liabilities, dollars."""
    cash: float
    mrr: float
    revenue: float
    """Subscriptions paid so far, dollars."""
    pipeline: float
    """Price a month at list of the open deals, leads from the demo on, dollars."""
    traffic: float
    """Visits yesterday."""
    nps: float
    satisfaction: float
    stability: float
    velocity: float
    morale: float
    alignment: float
    debt: float
    brand: float
    """0 to 100."""
    conversion: float
    customers: int
    leads: int
    won: int
    lost: int
    churned: int
    features: int


class Frame(Sent):
    """One turn of a company, or the night after a day's last one: what was done, what it paid, and what is true after it.

    Frame 0 is the founding. The rewards of all frames add up to those of the episode: a night's belong to no role's turn.
    """

    seq: int
    step: int
    """How many replies were given up to here; the customer's turns add none unless a model plays it."""
    turn: int
    """The turn that was played, of a night the one before it; in frame 0, where no role acts, the one before the first: -1 for
    the founding."""
    day: int
    phase: str
    """`night` between two days."""
    actor: str
    """A role, `night` for what happens between two days, or empty in frame 0."""
    policy: str
    text: str
    """The reply as it was given; empty for what is part of the world: the night, and the customer unless a model plays it."""
    action: str
    target: str
    reasoning: str
    valid: bool
    why: str
    """Why the reply could not be used."""
    changed: bool
    """It achieved something."""
    talk: Talk | None
    notes: list[str]
    reflections: dict[str, list[str]]
    """Role -> what it concluded after this turn, where it reflected on its last 70 turns."""
    events: list[str]
    """What happened to the company in this turn."""
    rewards: dict[str, float]
    parts: dict[str, list[float]]
    """Role -> the six parts in the order of `parts` in `/api/config`; roles that were paid nothing are omitted."""
    reasons: list[ReasonView]
    """Why the turn paid what it paid, largest first; their shares, rounded to 1e-5, add up to `parts`."""
    moves: list[AccountMove]
    kpis: Kpis
    waiting: str
    """The next actor; empty at the end."""
    accounts: list[AccountView] | None
    """None: as in the frame before. So are the next two."""
    features: list[Feature] | None
    floor: Floor | None


class Base(Sent):
    """State before the first frame of an answer, so that frames can omit what did not change."""

    accounts: list[AccountView]
    features: list[Feature]
    floor: Floor | None


class SeatsView(Sent):
    """Who plays, and how."""

    world: ShownName
    epoch: int
    """Rises with every reset and undo: frames of another epoch are void."""
    length: int
    """Frames so far."""
    first: int
    """Turns that were played before frame 0: not 0 where a recorded segment began in the middle of an episode."""
    turns: int
    """Turns that the timeline has when all is played; a night's frame follows each of them that ends a day."""
    scenario: str
    seed: int
    days: int
    seats: dict[str, str]
    modes: dict[str, Mode]
    """Role -> how its seat is taken; empty for a recorded episode."""
    human: str
    """The seat that waits for a person, or empty."""
    playing: bool
    pace_s: float
    done: str
    """Why it ended, or empty."""
    error: str
    """The exception that ended it, or empty."""


class Frames(Sent):
    """A stretch of a world."""

    seats: SeatsView
    start: int
    """Of the first frame. A client that has other frames from here on drops them."""
    base: Base
    frames: list[Frame]


class Config(Sent):
    """What does not change while the server runs."""

    version: str
    parts: list[str]
    part_meanings: dict[str, str]
    """Part -> what it pays for, in a sentence or two."""
    roles: dict[str, str]
    """Role -> who it is."""
    actions: dict[str, list[str]]
    duties: dict[str, str]
    event_effects: dict[str, str]
    """Kind of a company event -> what it does, in a sentence."""
    worlds: list[SeatsView]
    runs: bool
    """A folder of runs is served."""
    open_run: str
    """The run to show first, or empty."""
    collect: str
    """The run to which turns of seats in training mode are added; empty where no seat can be in it."""
    env: EnvView | None
    """An environment of the user's own, which is played here instead of the office."""


class ScenarioInfo(Sent):
    """One shipped scenario."""

    name: str
    title: str
    pressure: str
    cash: float
    events: int


class NeedInfo(Sent):
    """Something that a model needs."""

    what: str
    """Name of the environment variable of a key, a package as pip knows it, or words."""
    there: bool | None
    """None where only a request tells."""


class PlayerInfo(Sent):
    """A player that can take a seat."""

    name: str
    kind: Literal["scripted", "model", "hosted"]
    note: str
    needs: list[NeedInfo]
    ready: bool
    """Nothing that it needs is missing, or what is missing is fetched when it is first seated."""
    spent: str
    """What all hosted models took so far, with each of them; else empty."""


class Reset(Asked):
    """Found a company."""

    world: WorldName = "live"
    scenario: str = Field("baseline", max_length=40)
    seed: Seed = 1_000
    days: int = Field(30, ge=1, le=MAX_DAYS)
    seats: dict[RoleName, Player] = Field({})
    """Who sits where; the others keep their seats and modes, or are heuristic at first. The customer is played by
    `script`, as at first, or by a model, from the founding on."""
    modes: dict[SeatName, Mode] = Field({})
    """Other modes of seats than that which follows from who sits there."""
    human: SeatName | Literal[""] = ""
    playing: bool = False
    pace_s: float = Field(0.5, ge=0, le=60)
    """Pause between turns; 0 plays as fast as the players think."""


class StepAsk(Asked):
    """Play one turn: with `text`, as the person whose turn it is."""

    world: WorldName = "live"
    text: Text | None = None


class UndoAsk(Asked):
    """Take the last reply of the person (or, without one, the last reply) back."""

    world: WorldName = "live"


class Reconfigure(Asked):
    """Change what is given, keep the rest; takes effect with the next reply."""

    world: WorldName = "live"
    seats: dict[SeatName, Player] = Field({})
    modes: dict[SeatName, Mode] = Field({})
    """`training` adds the turns of a seat with a model of this machine to the run that the server collects in, `inference` ends
    that. A seat that is given away is in the mode that follows from its player."""
    human: SeatName | Literal[""] | None = None
    playing: bool | None = None
    pace_s: float | None = Field(None, ge=0, le=60)


class Problem(Sent):
    """Why a request was refused."""

    detail: str
