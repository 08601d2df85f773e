"""What the viewer reads of recorded runs and of comparisons; units as in `onthejob.api.schema_office`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from onthejob.api.schema_base import Asked, Sent
from onthejob.api.schema_comparisons import FindingsView
from onthejob.api.schema_office import AccountMove


class OutcomeView(Sent):
    """The verdict on a run in one line."""

    word: str
    """As in `FindingLine`."""
    against: str
    text: str
    """The paired difference with its interval."""
    metric: str
    comparison: str
    """Name of the comparison that it is of; empty for the run's own evaluations while it was trained."""


class AgainstView(Sent):
    """How far a run is from the chosen baseline, on the same tasks."""

    word: str
    """As in `FindingLine`."""
    text: str
    """The paired difference with its interval, run minus baseline."""
    metric: str
    tasks: int
    comparison: str
    """Name of the comparison in which both took part."""


class NotesView(Sent):
    """What people wrote about a run."""

    tags: list[str]
    note: str
    star: bool


class NotesAsk(Asked):
    """New notes of a run, instead of those that it has."""

    tags: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=100)]
    note: Annotated[str, Field(max_length=100_000)]
    star: bool


class RunRow(Sent):
    """One line of the list of runs."""

    name: str
    status: str
    """`running`, `ended`, `stopped` or `killed`."""
    roles: list[str]
    """Trained roles."""
    model: str
    seconds: float
    """Time of its iterations together."""
    outcome: OutcomeView | None
    notes: NotesView
    env: str
    """The environment that the run names, without folders: `office`, `claw`, `guess.py`; empty where it names none."""
    created_at: str | None
    last_iteration: int | None
    groups: int
    episodes: int
    turns: int
    adapters: int
    size_bytes: int
    unverified: int
    """Iterations that were recorded without checksums."""
    damaged: int
    """Damaged parts that were met."""
    error: str | None


class RunDamage(Sent):
    """A part of a run that does not have the content that was written, and is not shown."""

    iteration: int | None
    part: str


class RunView(Sent):
    """One run."""

    info: RunRow
    config: dict[str, Any]
    iterations: list[int]
    actors: list[str]
    """Roles that were trained."""
    events: list[RunEvent]
    scales: dict[str, dict[str, float]]
    damage: list[RunDamage]


class OverviewView(Sent):
    """What a reader wants to know of a run first."""

    verdict: FindingsView | None
    comparison: str
    """Name of the comparison that the verdict is of; empty for the run's own evaluations."""
    telling: list[GroupRow]
    """Groups of the newest iterations whose replies differ most in value, of different roles where there are several."""


class RunEvent(Sent):
    """Something that happened while training."""

    iteration: int
    kind: str
    payload: dict[str, Any]


class MetricSeries(Sent):
    """One metric over iterations."""

    scope: str
    name: str
    iterations: list[int]
    values: list[float | None]
    """None where NaN or infinity was recorded."""


class GroupRow(Sent):
    """One line of the list of groups."""

    key: str
    iteration: int
    actor: str
    size: int
    distinct: int
    """Different actions among the replies."""
    invalid: int
    day: int | None
    turn: int | None
    origin: str
    spread: float
    """Sample deviation of the legal returns."""
    best: str
    """The action with the highest return."""
    trained: bool
    episode: str | None
    """In which the replies were sampled; None where the members are whole episodes."""
    chosen: int | None
    """The reply with which the episode continued."""
    actions: list[str]
    """What each reply does, in short; empty where the record does not say."""
    returns: list[float | None]
    valid: list[bool]


class GroupPage(Sent):
    """Some of a run's groups."""

    total: int
    rows: list[GroupRow]


class ReplyView(Sent):
    """One reply of a group, exactly as it was sampled and judged."""

    text: str
    valid: bool
    stop: str
    policy: str
    temperature: float
    finish: str
    key: str
    """What it does, without reasoning and message; equal keys have equal branches."""
    ids: list[int]
    pieces: list[str] | None
    """The tokens' texts; None when the model's tokenizer is not on this machine."""
    logprobs: list[float]
    ret: float
    rewards: list[float]
    metrics: dict[str, float]
    advantage: float | None
    by_world: list[float]
    """Scaled value in each of the group's worlds."""
    turns: list[TurnView]
    """Of whole episodes: every turn; empty for branches of one reply."""


class TurnView(Sent):
    """One turn of a recorded trajectory."""

    index: int
    text: str
    kind: str
    valid: bool
    reward: float | None
    policy: str
    prompt: str | None
    """The prompt, or what was appended to the conversation since the turn before; None without the model's tokenizer."""


class AdvantageRule(Sent):
    """How the run turns returns into advantages."""

    estimator: str
    """`group`, or the function of the user's that the rest here says nothing about."""
    scale: str
    eps: float
    shrink: bool
    """Multiplied by the share of the replies' spread that the worlds' noise does not explain."""
    bound: float | None
    """Advantages of legal replies are cut to plus and minus this."""
    invalid_gap: float
    invalid_ceiling: float
    negative_weight: float
    """Factor of advantages below 0, which runs of earlier versions may have; else 1."""


class BranchTerms(Sent):
    """How a branch's outcome and the role's return make its value: each per turn and per scale, weighted, added."""

    outcome_weight: float
    return_weight: float
    outcome_scale: float
    return_scale: float
    turns: int
    """Length of the group's longest branch."""


class GroupView(Sent):
    """One group."""

    key: str
    episode: str | None
    """As in `GroupRow`."""
    terms: BranchTerms | None
    """None where the values are not those of branches."""
    env: str
    """As in `RunRow`."""
    iteration: int
    actor: str
    prompt: str | None
    prompt_ids: int
    rule: AdvantageRule
    source: str
    worlds: list[int]
    chosen: int | None
    """The reply with which the episode continued."""
    facts: dict[str, Any]
    replies: list[ReplyView]
    previous: str | None
    """Key of the group before it in the run."""
    next: str | None


class ActionShare(Sent):
    """How often a role chose an action among its sampled replies in an iteration."""

    iteration: int
    actor: str
    action: str
    share: float


class EpisodeRow(Sent):
    """One recorded episode."""

    iteration: int
    name: str
    policies: dict[str, str]
    metrics: dict[str, float | None]
    stop: str
    error: str | None
    turns: int


class EpisodeTurn(Sent):
    """One step of a recorded episode."""

    index: int
    actor: str
    policy: str
    kind: str
    text: str
    valid: bool
    reward: float
    """Of who acted."""
    rewards: dict[str, float]
    """Of every role that this turn paid."""
    prompt: str | None
    """As in `TurnView`; None where the run did not record the role's trajectory whole."""
    parts: dict[str, float]
    facts: dict[str, Any]
    group: str | None
    """Key of the group of replies that were sampled in this turn."""


class EpisodeView(Sent):
    """An episode turn by turn."""

    row: EpisodeRow
    turns: list[EpisodeTurn]
    office: bool
    """`/api/runs/{name}/office` can show it as frames."""


class TraceReason(Sent):
    """One cause of what a turn of a branch paid."""

    text: str
    """As in `ReasonView`."""
    own: float
    """What it paid to the role whose reply is judged."""


class TraceTurn(Sent):
    """One turn of a branch, or the night after a day's last one (actor `night`)."""

    turn: int
    actor: str
    action: str
    target: str
    valid: bool
    paid: float
    """To the actor; of a night, to the team."""
    own: float
    """To the role whose reply is judged."""
    value: float
    """Company value after it, dollars."""
    mrr: float
    moves: list[AccountMove]
    reasons: list[TraceReason] | None = None
    """Why it paid `own`, largest first, from 0.1 on; None where no cause paid that much."""


class BranchTrace(Sent):
    """What followed one reply in one world."""

    index: int
    """Of the first reply of the group that does this."""
    outcome: float
    """Change of the company's prospects less luck, dollars."""
    ret: float
    """Return of the role over the branch."""
    value: float
    """Scaled value, computed again."""
    recorded: float
    agrees: bool
    """The two are the same."""
    turns: list[TraceTurn]


class Traces(Sent):
    """What followed each distinct reply of a group in one of its worlds."""

    key: str
    actor: str
    world: int
    turn: int
    """In which the replies were given."""
    start: float
    """Company value before, dollars."""
    stand_ins: bool
    """Imitations of the policies continued the branches, not the scripted partners."""
    replies: list[BranchTrace]


class FileDiff(Sent):
    """What a turn changed in one file."""

    path: str
    what: str
    """`created`, `changed` or `removed`."""
    lines: list[str]
    """Of a unified diff without its first two lines: they begin with `@@`, `+`, `-`, a space or a backslash."""
    further: int
    """Further lines of the diff."""
    note: str
    """A sentence that says why there are no lines; else empty."""


class ChangedFiles(Sent):
    """What a turn changed in its files, found by executing the episode again."""

    files: list[FileDiff]
    further: int
    """Further files that it changed."""
