"""Recorded play, played again: training episodes as frames of the office, and a group's branches turn by turn.

The record holds replies and where a segment began (`rollout.origin`), not states. The office is deterministic, so playing the
replies again gives what was; every reward is compared with the recorded one, and what differs is refused and not shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from onthejob.api.asking import office_options
from onthejob.api.frames import NIGHT, FrameReply, Stages, Teller
from onthejob.api.schema_office import Frames, SeatsView
from onthejob.api.schema_runs import BranchTrace, TraceReason, Traces, TraceTurn
from onthejob.api.tokens import model_of
from onthejob.envs.office.actions import Action
from onthejob.envs.office.company_state import CompanyState
from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.market import company_value
from onthejob.envs.office.reward_parts import TurnLog, team_reward
from onthejob.envs.office.reward_reasons import reasons
from onthejob.errors import RecordError
from onthejob.evaluate.recorded import recorded_scales
from onthejob.evaluate.reexecute import begin, learners_of, place_of, same_numbers
from onthejob.office import office_of
from onthejob.record import Run
from onthejob.record.from_rows import RecordedEpisode
from onthejob.rollout.branch import BranchConfig, Scales, playing_on
from onthejob.rollout.origin import Origin, read_origin
from onthejob.rollout.stand_ins import Rates
from onthejob.rollout.value import branch_value
from onthejob.types import Group, Kind

RULES = {
    "profile": "profile",
    "crisis_bonus": "crisis_bonus",
    "reader": "reader",
    "prompt_budget": "budget",
    "reflect": "reflect",
}
"""Options of a training run that say what its office paid and asked, and which snapshots it can restore -> their field."""


SMALLEST = 0.1
"""Of a reward that a reason in a branch's turn tells of."""


def rules_of(run: Run) -> OfficeConfig:
    """The configuration of a run's office; what its record does not say has its default."""
    options = office_options(run.config)
    return OfficeConfig(**{field: options[name] for name, field in RULES.items() if name in options})


def episode_frames(episode: RecordedEpisode, run: str, rules: OfficeConfig) -> Frames:
    """A recorded segment of the office as frames.

    Raises:
        RecordError: it is of another workplace, or of a record that does not say where it began, or rules have changed since.
    """
    origin = _origin(episode, run)
    teller = Teller()
    saying = FrameReply("", "", 0)

    def tell(s: CompanyState, role: str, action: Action | None, log: TurnLog) -> None:
        teller.turn(s, role, action, log, saying)

    # Frames show no prompt, so no tokenizer is needed.
    env = office_of(replace(rules, budget=None), on_turn=tell)
    begin(env, origin, f"episode {episode.name!r} of run {run!r}")
    teller.found(env.company, env.memories)
    first = env.company.turn
    for number, turn in enumerate(episode.timeline):
        saying = FrameReply(str(turn["policy"]), str(turn["text"]), number + 1)
        _repeat(env, turn, number, episode, run)
        if not turn["valid"]:
            teller.explain(str(turn["facts"].get("why", "")))
        teller.reflect(env.company.turn, env.memories)
    payload, policies = origin.task.payload, episode.policies
    length = len(teller.frames)
    seats = SeatsView(
        world="recorded",
        epoch=0,
        length=length,
        first=first,
        turns=env.company.turn - first,
        scenario=str(payload.get("scenario", "baseline")),
        seed=origin.task.seed,
        days=int(payload.get("days", 30)),
        seats={role: policies.get(role, "–") for role in SEATS},
        modes={},
        human="",
        playing=False,
        pace_s=0.5,
        done=str(episode.facts.get("stop") or "recorded"),
        error="",
    )
    return Frames(seats=seats, start=0, base=teller.base(0), frames=teller.frames)


def traces(run: Run, name: str, group: Group, iteration: int, world: int) -> Traces:
    """What followed each distinct reply of a recorded group in one of its worlds, turn by turn.

    Raises:
        RecordError: the group was not scored by branches, `world` is none of its worlds, or the segment cannot be played again.
    """
    facts = group.facts
    if facts.get("source") != "branch" or "turn" not in facts:
        raise RecordError(f"group {group.key!r} was not scored by branches: nothing was continued from its replies.")
    if world not in facts["worlds"]:
        raise RecordError(f"group {group.key!r} was not played in world {world}, only in {facts['worlds']}. Choose one of them.")
    loop = run.config.get("train")
    config = BranchConfig(**_known(loop.get("branch") if isinstance(loop, Mapping) else None))
    if config.continuation == "policy":
        raise RecordError(
            f"the branches of group {group.key!r} were continued by the policies of that time, which are not kept here."
        )
    scales = recorded_scales(run).get(group.actor, Scales())
    env, stand_ins = _at(run, name, group, iteration)
    place = list(facts["worlds"]).index(world)
    stand_ins = playing_on(stand_ins, config.continuation, place)
    env.continue_with(stand_ins)
    longest = int(facts["turns"])
    found: dict[str, BranchTrace] = {}
    start = company_value(env.company) / 100
    for index, (key, member) in enumerate(zip(facts["keys"], group.trajectories, strict=True)):
        if key in found:
            continue
        told = _Trace(group.actor, env.company)
        branch = env.branch(member.turns[0].completion.text, world=world, turns=config.turns, on_turn=told)
        ret = branch.returns.get(group.actor, 0.0)
        value = branch_value(branch.outcome, ret, turns=longest, weights=config, scales=scales)
        recorded = float(facts["by_world"][key][place])
        found[key] = BranchTrace(
            index=index,
            outcome=branch.outcome,
            ret=ret,
            value=value,
            recorded=recorded,
            agrees=math.isclose(value, recorded, rel_tol=1e-6, abs_tol=1e-9),
            turns=told.turns,
        )
    return Traces(
        key=group.key,
        actor=group.actor,
        world=world,
        turn=env.company.turn,
        start=start,
        stand_ins=bool(stand_ins),
        replies=list(found.values()),
    )


class _Trace:
    """Spectator of one branch."""

    def __init__(self, actor: str, s: CompanyState) -> None:
        self.turns: list[TraceTurn] = []
        self._actor = actor
        self._stages = Stages((account.id, account.stage) for account in s.accounts)

    def __call__(self, s: CompanyState, role: str, action: Action | None, log: TurnLog) -> None:
        paid = log.rewards()
        self.turns.append(
            TraceTurn(
                turn=log.turn,
                actor=role,
                action=action.action_type if action is not None else "",
                target=action.target if action is not None else "",
                valid=action is not None or role == NIGHT,
                paid=team_reward(paid) if role == NIGHT else paid[role],
                own=paid[self._actor],
                value=company_value(s) / 100,
                mrr=s.mrr() / 100,
                moves=self._stages.moves(s, log),
                reasons=self._because(s, log) or None,
            )
        )

    def _because(self, s: CompanyState, log: TurnLog) -> list[TraceReason]:
        shares = [(reason.of(self._actor), reason.text) for reason in reasons(s, log)]
        large = sorted((share for share in shares if abs(share[0]) >= SMALLEST), key=lambda share: -abs(share[0]))
        return [TraceReason(text=text, own=own) for own, text in large]


def _at(run: Run, name: str, group: Group, iteration: int) -> tuple[OfficeEnvironment, Rates]:
    """The company as it was when the group's replies were sampled, and the stand-ins of then."""
    place = place_of(group.key)
    episodes: Iterator[RecordedEpisode] = run.read_episodes(iteration, place[0]) if place else iter(())
    episode = next(iter(episodes), None)
    if episode is None:
        raise RecordError(f"run {name!r} does not hold the episode to which group {group.key!r} belongs.")
    origin = _origin(episode, name)
    env = office_of(rules_of(run), model=model_of(run.config))
    begin(env, origin, f"episode {episode.name!r} of run {name!r}")
    for number, turn in enumerate(episode.timeline):
        asked = env.observe()
        # A reflection is asked for before the decision of the same turn.
        if env.company.turn == group.facts["turn"] and (asked is None or asked.kind is not Kind.REFLECT):
            break
        _repeat(env, turn, number, episode, name)
    pending = env.observe()
    if pending is None or env.company.turn != group.facts["turn"] or pending.actor != group.actor:
        raise RecordError(f"turn {group.facts['turn']} of episode {episode.name!r} of run {name!r} is not {group.actor}'s.")
    return env, learners_of(group, origin)


def _origin(episode: RecordedEpisode, run: str) -> Origin:
    where = f"episode {episode.name!r} of run {run!r}"
    origin = read_origin(episode.facts, where)
    if origin is None:
        raise RecordError(f"{where} has no recorded start, so it cannot be shown again. `onthejob train` records it.")
    if origin.task.env != "office":
        raise RecordError(f"{where} is of the workplace {origin.task.env!r}; only the office can be shown as one.")
    return origin


def _repeat(env: OfficeEnvironment, turn: Mapping[str, Any], number: int, episode: RecordedEpisode, run: str) -> None:
    """Step the recorded reply; what it pays must be what it paid."""
    pending = env.observe()
    if pending is not None and pending.actor == turn["actor"]:
        step = env.step(str(turn["text"]))
        if same_numbers(step.rewards, turn["rewards"]):
            return
    raise RecordError(
        f"reply {number} of episode {episode.name!r} of run {run!r} has another effect than recorded: the rules have changed."
    )


def _known(config: object) -> dict[str, Any]:
    """The run's branch options, without those that this version does not have."""
    fields = BranchConfig.__dataclass_fields__
    return {name: value for name, value in config.items() if name in fields} if isinstance(config, Mapping) else {}
