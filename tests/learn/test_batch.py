from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onthejob.errors import ConfigError, ContractError
from onthejob.learn.batch import Path, collate, pack
from onthejob.types import Completion, Group, StopReason, Trajectory, Turn

from .conftest import make_group, make_turn, random_groups


def test_hand_made_row():
    group = make_group(
        (1, make_turn([5, 6], [7, 8], logprobs=[-0.1, -0.2])), (2, make_turn([5, 6], [7, 9], logprobs=[-0.3, -0.4]))
    )
    (batch,) = collate([group], [np.array([0.5, -0.5])], max_tokens=100)
    row = batch.row
    assert row.tree.ids.tolist() == [5, 6, 7, 8, 9]
    assert row.heads.tolist() == [1, 2]  # The last prompt token predicts 7, the common 7 predicts 8 and 9.
    assert list(zip(row.heads[row.pair_head], row.pair_token, strict=True)) == [(1, 7), (2, 8), (2, 9)]
    assert row.term_pair.tolist() == [0, 1, 0, 2]
    assert batch.trajectory.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(batch.sampled, [-0.1, -0.2, -0.3, -0.4])
    assert batch.advantage.tolist() == [0.5, 0.5, -0.5, -0.5]
    assert batch.length.tolist() == [2, 2, 2, 2]
    assert (batch.trajectories, batch.tokens, batch.complete) == (2, 4, True)


def test_a_turn_that_extends_its_context_joins_its_branch():
    first = make_turn([1, 2], [3, 4])
    second = make_turn([1, 2, 3, 4, 5, 6], [7])  # 5 and 6 are the observation.
    (batch,) = collate([make_group((0, [first, second]), (1, make_turn([1, 2], [9])))], [np.array([-1.0, 1.0])], max_tokens=50)
    assert len(batch.row) == 8
    targets = batch.row.pair_token[batch.row.term_pair]
    assert targets[batch.trajectory == 0].tolist() == [3, 4, 7]
    assert batch.length[batch.trajectory == 0].tolist() == [3, 3, 3]


def test_fresh_turns_are_separate_contexts_of_one_trajectory():
    turns = [make_turn([1, 2], [3]), make_turn([8, 9], [3, 4])]
    group = make_group((0, turns), (1, make_turn([1, 2], [5])))
    (whole,) = collate([group], [np.array([-1.0, 1.0])], max_tokens=50)
    assert whole.complete
    split = collate([group], [np.array([-1.0, 1.0])], max_tokens=4)
    assert len(split) == 2
    assert not all(batch.complete for batch in split)
    for batch in [whole, *split]:
        assert batch.length[batch.trajectory == 0].tolist() == [3] * int((batch.trajectory == 0).sum())
        assert (batch.trajectories, batch.tokens) == (2, 4)


def test_rows_of_separate_paths_are_bounded_with_their_padding():
    long = [make_turn(list(range(1, 40)), [1])]
    short = [make_turn([1, 2, index], [3]) for index in range(3, 14)]
    group = make_group(*((float(index), turn) for index, turn in enumerate(long + short)))
    rows = [batch.row for batch in collate([group], [np.ones(len(group))], max_tokens=80, share=False)]
    sizes = [len(row.tree.paths) * max(len(nodes) for nodes in row.tree.paths) for row in rows]
    assert max(sizes) <= 80
    assert sum(len(row.tree.paths) for row in rows) == 12
    assert len(rows) == 2


def test_equal_replies_are_computed_once_and_counted_each():
    group = make_group(*((value, make_turn([1, 2, 3], [4, 5])) for value in (1, 2, 3)))
    (batch,) = collate([group], [np.array([-1.0, 0.0, 1.0])], max_tokens=50)
    assert len(batch.row) == 5
    assert len(batch) == 6
    assert len(batch.row.pair_token) == 2


def test_failed_trajectories_are_left_out():
    good = make_group((1, make_turn([1], [2])), (2, make_turn([1], [3])))
    failed = Trajectory(task_id="t", actor="sales", turns=(), rewards=(), stop=StopReason.ERROR)
    group = Group(key="g", actor="sales", trajectories=(*good.trajectories, failed))
    (batch,) = collate([group], [np.array([-1.0, 1.0, 0.0])], max_tokens=50)
    assert batch.trajectories == 2


def test_what_has_no_advantage_is_counted_and_not_forwarded():
    group = make_group(*((index, make_turn([1, 2], [3 + index] * (index + 1))) for index in range(3)))
    values = [np.array([1.0, 0.0, -1.0])]
    (all_of_it,), (batch,) = (collate([group], values, max_tokens=100, skip_zero=skip) for skip in (False, True))
    assert set(all_of_it.trajectory.tolist()) == {0, 1, 2}
    assert batch.trajectory.tolist() == [0, 2, 2, 2]
    assert len(batch.row) == len(all_of_it.row) - 2
    assert (batch.trajectories, batch.tokens, batch.complete) == (3, 6, True)
    assert collate([group], [np.zeros(3)], max_tokens=100, skip_zero=True) == []


def test_tokens_of_different_temperature_have_heads_of_their_own():
    group = make_group((1, make_turn([1, 2], [3], temperature=0.5)), (2, make_turn([1, 2], [3], temperature=0)))
    (batch,) = collate([group], [np.array([-1.0, 1.0])], max_tokens=50)
    assert len(batch.row) == 3
    assert batch.row.heads.tolist() == [1, 1]
    assert batch.row.temperatures[batch.row.pair_head][batch.row.term_pair].tolist() == [0.5, 1.0]


def test_nothing_to_do():
    assert collate([], [], max_tokens=10) == []


@pytest.mark.parametrize(
    ("turn", "problem"),
    [
        (make_turn([1], []), "0 completion"),
        (make_turn([], [1]), "0 prompt"),
        (
            Turn(prompt_ids=(1,), completion=Completion(text="", token_ids=(1, 2), logprobs=(-1.0,)), policy_version=""),
            "2 tokens",
        ),
    ],
)
def test_turns_that_cannot_be_trained_on(turn, problem):
    group = make_group((1, turn), (2, make_turn([1], [2])))
    with pytest.raises(ContractError, match=problem):
        collate([group], [np.array([-1.0, 1.0])], max_tokens=10)


def test_mismatched_advantages_and_small_rows_are_errors():
    group = make_group((1, make_turn([1], [2])), (2, make_turn([1], [3])))
    with pytest.raises(ContractError, match="3 advantages"):
        collate([group], [np.array([-1.0, 1.0, 0.0])], max_tokens=10)
    with pytest.raises(ConfigError, match="max_tokens"):
        collate([group], [np.array([-1.0, 1.0])], max_tokens=1)
    with pytest.raises(ContractError, match="temperature"):
        pack([Path(ids=(1, 2), context=1, temperature=0)], max_tokens=10)


@given(st.integers(0, 10_000), st.integers(2, 80), st.booleans())
def test_every_sampled_token_is_scored_once_with_its_own_numbers(seed, max_tokens, share):
    groups = random_groups(seed, groups=3, size=3)
    values = [np.arange(3) + 10.0 * index for index in range(3)]
    batches = collate(groups, values, max_tokens=max_tokens, share=share)
    found: dict[int, list[tuple[tuple[int, ...], int, float, float]]] = {}
    for batch in batches:
        row = batch.row
        path_of = dict(zip(sorted(set(row.term_source.tolist())), range(len(row.tree.paths)), strict=True))
        assert len(path_of) == len(row.tree.paths)
        for i in range(len(batch)):
            head = row.heads[row.pair_head[row.term_pair[i]]]
            ancestors = np.flatnonzero((np.arange(len(row)) <= head) & (row.tree.end > head))
            context = tuple(row.tree.ids[ancestors].tolist())
            token = int(row.pair_token[row.term_pair[i]])
            term = (context, token, float(batch.sampled[i]), float(batch.advantage[i]))
            found.setdefault(int(batch.trajectory[i]), []).append(term)
    expected, number = {}, 0
    for group, advantage in zip(groups, values, strict=True):
        for trajectory, value in zip(group.trajectories, advantage, strict=True):
            (turn,) = trajectory.turns
            ids = turn.completion.token_ids
            expected[number] = sorted(
                (turn.prompt_ids + ids[:t], ids[t], float(np.float32(turn.completion.logprobs[t])), value)
                for t in range(len(ids))
            )
            number += 1
    assert {key: sorted(terms) for key, terms in found.items()} == expected
    longest = max(len(t.turns[0].prompt_ids) + len(t.turns[0].completion.token_ids) for g in groups for t in g.trajectories)
    assert all(len(batch.row) <= max(max_tokens, longest) for batch in batches)


def test_equal_trajectories_of_a_group_are_counted():
    turn, other = make_turn([1, 2], [3]), make_turn([1, 2], [4, 5])
    groups = [make_group((1, turn), (0, other), (1, turn)), make_group((1, turn), (0, other), key="second")]
    (batch,) = collate(groups, [np.array([1.0, -2.0, 1.0]), np.array([1.0, -1.0])], max_tokens=100)
    assert batch.groups == 2
    terms = sorted(zip(*(a.tolist() for a in (batch.trajectory, batch.group, batch.copies)), strict=True))
    assert terms == [(0, 0, 2), (1, 0, 1), (1, 0, 1), (2, 0, 2), (3, 1, 1), (4, 1, 1), (4, 1, 1)]


def test_a_group_stays_in_one_row_when_it_fits():
    groups = random_groups(0, groups=6, size=4)
    whole = [len(collate([group], [np.ones(4)], max_tokens=10_000)[0].row) for group in groups]
    batches = collate(groups, [np.ones(4)] * 6, max_tokens=max(whole))
    assert all(batch.complete and batch.whole for batch in batches)
    assert sorted(number for batch in batches for number in set(batch.group.tolist())) == list(range(6))
    for batch in batches:
        assert len(batch.row) <= max(whole)
