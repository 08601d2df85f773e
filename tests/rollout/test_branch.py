"""Branch scoring: same luck for the group, one branch per distinct reply, the same numbers with and without processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from onthejob.errors import ConfigError, ContractError
from onthejob.rollout.branch import (
    BranchConfig,
    BranchFailure,
    BranchScorer,
    Scales,
    ScoreRequest,
    group_worlds,
    score_replies,
)
from onthejob.rollout.library import Entry, SnapshotLibrary, entry_of, visit
from onthejob.rollout.scales import measure_scales
from onthejob.testing import ToyShell, ToyWorkplace, heuristic_reply, toy_tasks
from onthejob.types import Branch

CONFIG = BranchConfig(group_size=4, turns=6, worlds=3)
SCALES = {"maker": Scales(outcome=10.0, ret=0.5), "seller": Scales(outcome=20.0, ret=0.25)}


def request_at_start(replies: tuple[str, ...] = ("MAKE", " make ", "WAIT", "nonsense")) -> ScoreRequest:
    env = ToyWorkplace()
    env.reset(toy_tasks(1)[0])
    keys = tuple(env.canonical(reply) for reply in replies)
    return ScoreRequest(snapshot=env.snapshot(), actor="maker", replies=replies, keys=keys, worlds=(5, 6, 7))


def test_values_equal_the_formula_worked_by_hand():
    request = request_at_start()
    with BranchScorer(ToyWorkplace) as scorer:
        (scores,) = score_replies(scorer, [request], CONFIG, SCALES)
    env = ToyWorkplace()
    env.restore(request.snapshot)
    expected = []
    for world in (5, 6, 7):
        branch = env.branch("MAKE", world=world, turns=6)
        assert branch.turns == 6
        expected.append(branch.outcome / 6 / 10.0 + 0.25 * branch.returns["maker"] / 6 / 0.5)
    assert not isinstance(scores, BranchFailure)
    assert scores.by_world["MAKE"] == pytest.approx(expected)
    assert scores.values[0] == pytest.approx(sum(expected) / 3)
    assert scores.values[0] == scores.values[1]  # equal canonical replies
    assert scores.keys == ("MAKE", "MAKE", "WAIT", "INVALID")
    assert scores.valid == (True, True, True, False)


class Counting(ToyWorkplace):
    """Counts its branches."""

    branches: ClassVar[list[tuple[str, int]]] = []

    def branch(self, reply: str, *, world: int, turns: int) -> Branch:
        Counting.branches.append((reply, world))
        return super().branch(reply, world=world, turns=turns)


def test_each_distinct_reply_is_branched_once_per_world():
    Counting.branches.clear()
    score_replies(BranchScorer(Counting), [request_at_start()], CONFIG, SCALES)
    assert Counting.branches == [(reply, world) for reply in ("MAKE", "WAIT", "nonsense") for world in (5, 6, 7)]


@pytest.mark.server
def test_processes_give_the_same_scores():
    requests = [request_at_start(), request_at_start(("WAIT", "SCRAP"))]
    inline = score_replies(BranchScorer(ToyWorkplace), requests, CONFIG, SCALES)
    with BranchScorer(ToyWorkplace, workers=2) as scorer:
        assert score_replies(scorer, requests, CONFIG, SCALES) == inline


ORPHANS = """
import multiprocessing, sys, time
from onthejob.rollout.branch import BranchConfig, BranchScorer, Scales, ScoreRequest, score_replies
from onthejob.testing import ToyWorkplace, toy_tasks

if __name__ == "__main__":
    scorer = BranchScorer(ToyWorkplace, workers=2)
    env = ToyWorkplace()
    env.reset(toy_tasks(1)[0])
    request = ScoreRequest(snapshot=env.snapshot(), actor="maker", replies=("MAKE", "WAIT"), keys=("MAKE", "WAIT"), worlds=(1, 2))
    score_replies(scorer, [request] * 8, BranchConfig(), {"maker": Scales()})
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(60)
"""


@pytest.mark.server
def test_workers_do_not_outlive_a_killed_parent():
    parent = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(alive(pid) for pid in pids)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)


def alive(pid: int) -> bool:
    """True for a running process; an ended one without a waiting parent is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Broken(ToyWorkplace):
    def branch(self, reply: str, *, world: int, turns: int) -> Branch:
        if reply == "WAIT":
            raise ZeroDivisionError("no divisor")
        return super().branch(reply, world=world, turns=turns)


def test_a_failing_branch_costs_its_group_and_is_never_a_zero():
    results = score_replies(BranchScorer(Broken), [request_at_start(), request_at_start(("MAKE", "SCRAP"))], CONFIG, SCALES)
    assert isinstance(results[0], BranchFailure)
    assert "ZeroDivisionError" in str(results[0])
    assert not isinstance(results[1], BranchFailure)


def test_worlds_are_distinct_keyed_and_in_the_range_of_branches():
    worlds = group_worlds(3, "group", 1, count=50)
    assert len(set(worlds)) == 50
    assert min(worlds) >= 1
    assert max(worlds) <= 9_999
    assert worlds[:4] == group_worlds(3, "group", 1, count=4)
    assert worlds != group_worlds(3, "group", 2, count=50)


@pytest.mark.parametrize(
    "fields",
    [
        {"group_size": 1},
        {"turns": 0},
        {"worlds": 0},
        {"outcome_weight": 0, "return_weight": 0},
        {"return_weight": float("nan")},
    ],
)
def test_bad_options_are_refused(fields: dict[str, float]):
    with pytest.raises(ConfigError, match=rf"{list(fields)[-1]} must (not both )?be"):
        BranchConfig(**fields)  # pyright: ignore[reportArgumentType]


def test_two_kinds_of_players_need_an_even_number_of_worlds():
    with pytest.raises(ConfigError, match=r"even.*got 5"):
        BranchConfig(worlds=5, continuation="both")
    with pytest.raises(ConfigError, match=r"partners, stand_ins, both.*'experts'"):
        BranchConfig(continuation="experts")  # type: ignore[arg-type]
    assert [BranchConfig(continuation=kind).imitates for kind in ("partners", "stand_ins", "both")] == [False, True, True]


def test_an_environment_that_cannot_fork_is_refused():
    with pytest.raises(ContractError, match="Forkable"):
        BranchScorer(ToyShell)


def states(count: int = 12) -> list[Entry]:
    from onthejob.models.scripted import ScriptedPolicy

    policy = ScriptedPolicy(heuristic_reply, version="heuristic")
    return visit(ToyWorkplace, toy_tasks(count), {"maker": policy, "seller": policy}, seed=0, share=0.5, max_turns=99)


def test_scales_are_the_spread_between_legal_replies():
    scales = measure_scales(
        BranchScorer(ToyWorkplace), ToyWorkplace(), states(), config=CONFIG, actors=["maker", "seller"], seed=1
    )
    again = measure_scales(
        BranchScorer(ToyWorkplace), ToyWorkplace(), states(), config=CONFIG, actors=["maker", "seller"], seed=1
    )
    assert scales == again
    # MAKE, WAIT and SCRAP differ by 100..300 dollars over at most 6 turns.
    assert 10.0 < scales["maker"].outcome < 200.0
    assert 0.0 < scales["maker"].ret < 1.0
    with pytest.raises(ConfigError, match=r"the scales of 'ghost' need a state .* of 0 states that ask it"):
        measure_scales(BranchScorer(ToyWorkplace), ToyWorkplace(), states(2), config=CONFIG, actors=["ghost"], seed=1)


def test_the_library_spreads_over_days_forgets_the_oldest_and_survives_bytes():
    library = SnapshotLibrary(per_day=3)
    library.add(states(20))
    assert library.days == (1, 2, 3, 4, 5)
    assert len(library) == 15
    newest = [entry for entry in states(20) if entry.day == 2][-3:]
    assert [entry for entry in library.entries() if entry.day == 2] == newest
    copy = SnapshotLibrary.from_bytes(library.to_bytes())
    assert copy.entries() == library.entries()
    assert copy.to_bytes() == library.to_bytes()
    drawn = [library.sample(0, index).day for index in range(400)]
    assert all(drawn.count(day) > 40 for day in library.days)
    assert [copy.sample(0, index).day for index in range(400)] == drawn
    with pytest.raises(ContractError, match="empty"):
        SnapshotLibrary().sample(0)


def test_a_state_without_a_day_counts_turns_and_a_day_that_is_no_number_is_refused():
    class Dayless(ToyWorkplace):
        extra: Mapping[str, Any] = {}

        def state(self):
            return {"metrics": {"x": 1.0}, **self.extra}

    env, task = Dayless(), toy_tasks(1)[0]
    env.reset(task)
    entry = entry_of(env, task, turn=7)
    assert entry is not None
    assert entry.day == 7
    env.extra = {"day": "Monday"}
    with pytest.raises(ContractError, match=r"state\(\)\['day'\] must be a whole number where it is given, got str: 'Monday'"):
        entry_of(env, task, turn=7)
