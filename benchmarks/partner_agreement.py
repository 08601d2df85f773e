"""Do scripted continuations of branches rank replies as continuations by the learned team do?

In training a reply is valued by branches in which the heuristic, or quick imitations of the policies, decide everything after it:
they cost microseconds a turn, the policies themselves some tenths of a second. Here the same legal replies, in the same states
and worlds, are valued three times: by the heuristic, by the imitations that a run recorded (with --run), and by the learned team
itself, at the training's temperature. Said is the rank correlation over the replies of a state with what the learned team makes
of them, mean over the states, and what the reply that a row calls best is worth to the learned team above the mean reply. Every
row is compared in worlds that it has not seen, half of them with the other half both ways round, so that no luck is shared: the
learned team's own row says how well a perfect partner would do with so few worlds.

    python benchmarks/partner_agreement.py --team adapters/office [--run runs/grpo] [--states 30] [--replies 5] [--worlds 4]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from stand_in_teams import habits_of  # the benchmark next to this one

from onthejob.envs.office.company_state import State
from onthejob.envs.office.env import SEATS, OfficeEnvironment
from onthejob.envs.office.market import prospects
from onthejob.envs.office.new_company import draw_unseen
from onthejob.envs.office.tasks import office_tasks
from onthejob.evaluate.held_out import collect_states
from onthejob.evaluate.states import HeldOutState
from onthejob.evaluate.statistics import Estimate, mean_interval, spearman
from onthejob.evaluate.teams import scripted_team
from onthejob.keys import keyed_seed, keyed_uniform
from onthejob.office_players import scripted
from onthejob.record import Run
from onthejob.rollout.stand_ins import Rates
from onthejob.stack import find_adapters, load_stack
from onthejob.types import Context, Policy, Sampling, Split


def states_for(count: int, seed: int) -> list[HeldOutState]:
    """Dev states from the heuristic's play, as many of every role as fit."""
    tasks = office_tasks(Split.DEV, seeds=2)
    heuristic = scripted_team("heuristic", scripted("heuristic"), SEATS)
    return collect_states(
        tasks,
        [heuristic],
        actors=SEATS,
        per_role=max(1, count // len(SEATS)),
        env_factory=OfficeEnvironment,
        sampling=Sampling(max_new_tokens=32),
        seed=seed,
        max_turns=420,
    )


def replies_in(state: HeldOutState, count: int, seed: int) -> list[str]:
    """Different legal replies by lot, kinds of action before targets of one kind."""
    env = OfficeEnvironment()
    env.restore(state.snapshot)
    texts = env.legal_replies()
    lots = {text: keyed_uniform(seed, "reply", state.key, text) for text in texts}
    kinds: dict[str, list[str]] = defaultdict(list)
    for text in sorted(texts, key=lots.__getitem__):
        kinds[json.loads(text)["action_type"]].append(text)
    ranked = sorted((rank, lots[text], text) for found in kinds.values() for rank, text in enumerate(found))
    return [text for _, _, text in ranked[:count]]


def scripted_values(
    state: HeldOutState, replies: Sequence[str], worlds: Sequence[int], turns: int, rates: Rates | None
) -> np.ndarray:
    """Dollars of branches that the heuristic or stand-ins continue; shape (replies, worlds)."""
    env = OfficeEnvironment()
    env.restore(state.snapshot)
    if rates is not None:
        env.continue_with(rates)
    return np.array([[env.branch(reply, world=world, turns=turns).outcome for world in worlds] for reply in replies])


class Played:
    """One branch that the learned team continues."""

    def __init__(self, state: HeldOutState, reply: str, world: int, turns: int) -> None:
        self.env = OfficeEnvironment(on_turn=self._look)
        self.env.restore(state.snapshot)
        company = self.env.company
        was, company.world = company.world, world
        draw_unseen(company, was)
        self._before, self.until = prospects(company), company.turn + turns
        self.outcome = 0.0
        """Dollars until now, or until its last turn."""
        self.key = (state.key, world)
        self.asked = self.env.step(reply).observation

    @property
    def over(self) -> bool:
        return self.asked is None or self.env.company.turn >= self.until

    def _look(self, company: State, *_: Any) -> None:
        # The environment plays the customer's turn too before it asks again: a branch may end before that.
        if company.turn <= self.until:
            self.outcome = (prospects(company) - self._before) / 100.0


def learned_values(
    states: Sequence[HeldOutState],
    replies: Sequence[Sequence[str]],
    worlds: Sequence[int],
    turns: int,
    *,
    policies: Mapping[str, Policy],
    encode: Callable[[Any], tuple[int, ...]],
    sampling: Sampling,
    rows: int,
    seed: int = 0,
) -> list[np.ndarray]:
    """`scripted_values` of every state, from branches that the policies continue.

    The actor with the most waiting branches answers first.
    """
    branches = [
        [[Played(state, reply, world, turns) for world in worlds] for reply in texts]
        for state, texts in zip(states, replies, strict=True)
    ]
    everyone = [branch for of_state in branches for of_reply in of_state for branch in of_reply]
    started, asked = time.perf_counter(), 0
    while open_ := [branch for branch in everyone if not branch.over]:
        waiting: dict[str, list[Played]] = defaultdict(list)
        for branch in open_:
            waiting[branch.asked.actor].append(branch)  # type: ignore[union-attr]
        actor, group = max(waiting.items(), key=lambda item: len(item[1]))
        # Branches that are behind come first, so that none is left over alone at the end.
        group = sorted(group, key=lambda branch: branch.env.company.turn - branch.until)[:rows]
        contexts = [
            Context(
                observation=branch.asked,  # type: ignore[arg-type]
                prompt_ids=encode(branch.asked.messages),  # type: ignore[union-attr]
                seed=keyed_seed(seed, *branch.key, branch.env.company.turn),
            )
            for branch in group
        ]
        for branch, said in zip(group, policies[actor].act(contexts, sampling), strict=True):
            branch.asked = branch.env.step(said.text).observation
        asked += len(group)
        if asked // 2_000 != (asked - len(group)) // 2_000:
            print(f"  {asked:,} decisions, {len(open_)} branches open, {time.perf_counter() - started:.0f} s", flush=True)
    return [np.array([[branch.outcome for branch in of_reply] for of_reply in of_state]) for of_state in branches]


def stand_ins_of(folder: Path) -> Rates:
    """The newest habits that a run recorded.

    Raises:
        SystemExit: it recorded none.
    """
    with Run.open(folder, readonly=True) as record:
        for iteration in range(record.last_iteration() or 0, 0, -1):
            if rates := habits_of(record, iteration):
                return rates
    raise SystemExit(f"{folder} recorded no stand-ins. Name a run trained with --branch.continuation both or stand_ins.")


def agreement(
    values: Sequence[np.ndarray], learned: Sequence[np.ndarray], tasks: Sequence[str], seed: int
) -> tuple[Estimate, Estimate]:
    """Rank correlation with the learned team in the other half of the worlds, and what a row's best is worth there."""
    ranks, best, known = [], [], []
    for a, b, task in zip(values, learned, tasks, strict=True):
        half = a.shape[1] // 2
        ways = [(a[:, :half].mean(axis=1), b[:, half:].mean(axis=1)), (a[:, half:].mean(axis=1), b[:, :half].mean(axis=1))]
        best.append(fmean(there[here.argmax()] - there.mean() for here, there in ways))
        rank = fmean(spearman(here, there) for here, there in ways)
        if math.isfinite(rank):  # a side on which all replies are worth the same has no order
            ranks.append(rank)
            known.append(task)
    return mean_interval(ranks, known, seed=seed), mean_interval(best, tasks, seed=seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--team", type=Path, required=True, help="adapters of all six roles: a folder or a run")
    parser.add_argument("--run", type=Path, help="folder of the run whose stand-ins play too")
    parser.add_argument("--states", type=int, default=30, help="states over all six roles")
    parser.add_argument("--replies", type=int, default=5, help="legal replies of a state")
    parser.add_argument("--worlds", type=int, default=4, help="worlds that all of them share; even")
    parser.add_argument("--turns", type=int, default=140, help="horizon of a branch")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--rows", type=int, default=256, help="decisions made at once")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON document at the end")
    given = parser.parse_args()
    if given.worlds % 2 or given.worlds < 2 or given.replies < 3:
        parser.error("--worlds must be even, for halves, and --replies at least 3, for ranks")
    states = states_for(given.states, given.seed)
    replies = [replies_in(state, given.replies, given.seed) for state in states]
    kept = [index for index, texts in enumerate(replies) if len(texts) >= 3]
    states, replies = [states[index] for index in kept], [replies[index] for index in kept]
    worlds = sorted(range(1, 9_000), key=lambda world: keyed_uniform(given.seed, "world", world))[: given.worlds]
    stack = load_stack(given.model, device=given.device)
    team = stack.team("learned", find_adapters(given.team), SEATS)
    found: dict[str, list[np.ndarray]] = {
        "heuristic": [scripted_values(s, r, worlds, given.turns, None) for s, r in zip(states, replies, strict=True)]
    }
    if given.run is not None:
        rates = stand_ins_of(given.run)
        found["stand-ins"] = [scripted_values(s, r, worlds, given.turns, rates) for s, r in zip(states, replies, strict=True)]
        # As in training: every other world.
        turns_of = np.arange(given.worlds) % 2 == 0
        found["both"] = [np.where(turns_of, b, a) for a, b in zip(found["heuristic"], found["stand-ins"], strict=True)]
    learned = learned_values(
        states,
        replies,
        worlds,
        given.turns,
        policies=team.policies,
        encode=stack.chat.encode,
        sampling=Sampling(temperature=given.temperature, max_new_tokens=32),
        rows=given.rows,
        seed=given.seed,
    )
    found["the learned team"] = learned
    tasks = [state.task.id for state in states]
    rows = {name: agreement(values, learned, tasks, given.seed) for name, values in found.items()}
    for name, (rank, best) in rows.items():
        print(
            f"{name:20s} rank correlation {rank.mean:+.2f} ({rank.low:+.2f} to {rank.high:+.2f}, {rank.n} states); "
            f"its best is worth {best.mean:+,.0f} dollars ({best.low:+,.0f} to {best.high:+,.0f}) to the learned team"
        )
    if given.json:
        parts = {name: {"spearman": rank.as_dict(), "best": best.as_dict()} for name, (rank, best) in rows.items()}
        print(json.dumps({"states": len(states), "worlds": worlds, "turns": given.turns, "rows": parts}))


if __name__ == "__main__":
    main()
