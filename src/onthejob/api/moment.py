"""Looks at one moment of a company: a role's prompt, and what replies would lead to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, cast

import numpy as np

from onthejob.api.schema_moment import BranchAsk, Branches, BranchView, Legal, PromptView, SectionView
from onthejob.api.schema_office import RoleName, WorldName
from onthejob.api.tokens import Tokens
from onthejob.envs.office import prompt
from onthejob.envs.office.actions import Action, render
from onthejob.envs.office.company_state import State
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.fast_play import NIGHT
from onthejob.envs.office.market import company_value
from onthejob.envs.office.reward_parts import TurnLog
from onthejob.envs.office.sections import Section, prune
from onthejob.errors import ConfigError, ContractError
from onthejob.rollout.branch import group_worlds


def prompt_view(
    env: OfficeEnvironment,
    world: WorldName,
    seq: int,
    role: RoleName,
    *,
    profile: Literal["compact", "full"],
    budget: int | None,
    tokens: Tokens,
) -> PromptView:
    """What `role` sees at this point, as sections with their priority, size and fate."""
    pending = env.observe()
    if pending is None:
        raise ContractError(f"no role is asked at seq {seq}: the episode is over there.")
    seen = env.look(role).view
    blocks = env.sections(role) if profile == "full" else prompt.sections(seen)
    system = prompt.system_text(role, profile)
    kept: dict[str, Section] = {block.key: block for block in blocks if block.text}
    total = tokens.count("\n".join(block.text for block in blocks if block.text))
    if budget is not None:
        if total is None:
            raise ConfigError("a budget needs the model's tokenizer, which is not on this machine. Run `onthejob model fetch`.")
        pruned = prune(blocks, budget, lambda text: cast(int, tokens.count(text)))
        kept, total = {block.key: block for block in pruned.kept}, pruned.tokens
    sections = [
        SectionView(
            key=block.key,
            priority=block.priority,
            pinned=block.pinned,
            text=kept[block.key].text if block.key in kept else block.text,
            tokens=tokens.count(block.text),
            kept=block.key in kept,
            cut=block.key in kept and kept[block.key].text != block.text,
        )
        for block in blocks
        if block.text
    ]
    legal = [_legal(action) for action in env.legal_actions(role)]
    return PromptView(
        world=world,
        seq=seq,
        role=role,
        asked=pending.actor == role,
        system=system,
        system_tokens=tokens.count(system),
        sections=sections,
        budget=budget,
        tokens=total,
        view=dict(seen),
        legal=legal,
    )


def _legal(action: Action) -> Legal:
    return Legal(text=render(dataclasses.replace(action, reasoning="")), action=action.action_type, target=action.target)


def branched(env: OfficeEnvironment, asked: BranchAsk) -> Branches:
    """Every distinct reply stepped in forks that meet the same luck, and continued by the heuristic."""
    pending = env.observe()
    if pending is None:
        raise ContractError(f"no role is asked at seq {asked.seq}: the episode is over there.")
    shared = group_worlds(env.company.seed, "viewer", env.company.turn, count=asked.worlds)
    keys = [env.canonical(reply) for reply in asked.replies]
    first = {key: keys.index(key) for key in keys}
    told = {key: [_Values() for _ in shared] for key in first}
    found = {
        key: [
            env.branch(asked.replies[index], world=world, turns=asked.turns, on_turn=values)
            for world, values in zip(shared, told[key], strict=True)
        ]
        for key, index in first.items()
    }
    means = [float(np.mean([branch.outcome for branch in found[key]])) for key in keys]
    legal = [mean for mean, key in zip(means, keys, strict=True) if found[key][0].valid]
    spread = float(np.std(legal, ddof=1)) if len(legal) > 1 else 0.0
    replies = []
    for index, key in enumerate(keys):
        results = found[key]
        roles = sorted({role for branch in results for role in branch.returns})
        replies.append(
            BranchView(
                text=asked.replies[index],
                valid=results[0].valid,
                same_as=first[key],
                outcomes=[branch.outcome for branch in results],
                mean=means[index],
                advantage=(means[index] - float(np.mean(legal))) / spread if spread > 0 and results[0].valid else None,
                returns={role: float(np.mean([branch.returns.get(role, 0.0) for branch in results])) for role in roles},
                values=_mean_line([values.dollars for values in told[key]]),
            )
        )
    turns = max(branch.turns for branches in found.values() for branch in branches)
    start = company_value(env.company) / 100
    return Branches(seq=asked.seq, role=pending.actor, worlds=list(shared), turns=turns, start=start, replies=replies)


class _Values:
    """Spectator of one branch: what the company was worth after each turn, and the night if one followed."""

    def __init__(self) -> None:
        self.dollars: list[float] = []

    def __call__(self, s: State, role: str, action: Action | None, log: TurnLog) -> None:
        if role == NIGHT:
            self.dollars.pop()
        self.dollars.append(company_value(s) / 100)


def _mean_line(lines: Sequence[Sequence[float]]) -> list[float]:
    """Mean after each turn; a line that ended keeps its last value."""
    longest = max(map(len, lines))
    return [float(np.mean([line[min(turn, len(line) - 1)] for line in lines])) for turn in range(longest)]
