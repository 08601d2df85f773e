from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onthejob.learn.tree import attention_blocks, build_tree, common_prefix

# Few symbols, so that shared beginnings, equal sequences and sequences that end inside another one are frequent.
SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple), min_size=1, max_size=8)


def test_hand_made_tree():
    tree = build_tree([(5, 6, 8), (5, 6, 7, 9), (5, 6, 7), (1, 2)])
    assert tree.ids.tolist() == [1, 2, 5, 6, 7, 9, 8]
    assert tree.depth.tolist() == [0, 1, 0, 1, 2, 3, 2]
    assert tree.end.tolist() == [2, 2, 7, 7, 6, 6, 7]
    assert [path.tolist() for path in tree.paths] == [[2, 3, 6], [2, 3, 4, 5], [2, 3, 4], [0, 1]]


def test_common_prefix():
    assert common_prefix((1, 2, 3), (1, 2, 4)) == 2
    assert common_prefix((1, 2), (1, 2, 4)) == 2
    assert common_prefix((), (1,)) == 0


@given(SEQUENCES)
def test_every_prefix_is_there_exactly_once(sequences):
    tree = build_tree(sequences)
    prefixes = {sequence[: size + 1] for sequence in sequences for size in range(len(sequence))}
    assert len(tree) == len(prefixes)
    for sequence, path in zip(sequences, tree.paths, strict=True):
        assert tuple(tree.ids[path]) == sequence
        assert tree.depth[path].tolist() == list(range(len(sequence)))


@given(SEQUENCES)
def test_a_node_sees_exactly_its_own_path(sequences):
    tree = build_tree(sequences)
    expected = np.zeros((len(tree), len(tree)), dtype=bool)
    for path in tree.paths:
        for position, node in enumerate(path):
            expected[node, path[: position + 1]] = True
    np.testing.assert_array_equal(tree.visible(), expected)


@given(SEQUENCES)
def test_without_sharing_sequences_are_apart(sequences):
    tree = build_tree(sequences, share=False)
    assert len(tree) == sum(len(sequence) for sequence in sequences)
    assert len(np.unique(np.concatenate(tree.paths))) == len(tree)


@given(SEQUENCES, st.integers(1, 9))
def test_blocks_hold_all_visible_pairs_and_no_others(sequences, size):
    tree = build_tree(sequences)
    seen = np.zeros((len(tree), len(tree)), dtype=bool)
    for block in attention_blocks(tree, size=size):
        for row, query in enumerate(range(block.start, block.stop)):
            seen[query, block.keys[block.visible[row]]] = True
    np.testing.assert_array_equal(seen, tree.visible())


@given(SEQUENCES, st.data())
def test_the_tree_does_not_depend_on_the_order_of_sequences(sequences, data):
    order = data.draw(st.permutations(range(len(sequences))))
    tree, other = build_tree(sequences), build_tree([sequences[i] for i in order])
    np.testing.assert_array_equal(tree.ids, other.ids)
    np.testing.assert_array_equal(tree.end, other.end)
    for place, i in enumerate(order):
        np.testing.assert_array_equal(other.paths[place], tree.paths[i])
