"""Sequences with common beginnings as one row of tokens: every shared prefix once.

A row is a prefix tree in depth-first order. Token j is visible to token i exactly when j is i or one of its ancestors, which in
this order reads `j <= i < end[j]`; positions restart at every branch. So one number per token, `end`, is the whole attention
mask. This file knows tokens only: no model, no loss.

Source: prefix sharing as in PrefixGrouper (arXiv 2506.05433) and tree training (arXiv 2511.00413).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTree:
    """T distinct (prefix, token) nodes in depth-first order."""

    ids: Ints
    """Token of each node, shape (T,)."""
    depth: Ints
    """Number of ancestors = position id, shape (T,)."""
    end: Ints
    """One past the last descendant, shape (T,)."""
    paths: tuple[Ints, ...]
    """For each sequence, in the order given, the node of each of its tokens."""

    def __len__(self) -> int:
        return len(self.ids)

    def visible(self) -> npt.NDArray[np.bool_]:
        """The dense attention mask, True where row i may look at column j, shape (T, T)."""
        index = np.arange(len(self))
        return (index[None, :] <= index[:, None]) & (index[:, None] < self.end[None, :])


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A run of consecutive queries with the keys that any of them can see."""

    start: int
    stop: int
    keys: Ints
    """Ancestors of node `start`, then the block itself, shape (S,)."""
    visible: npt.NDArray[np.bool_]
    """Which of `keys` each query sees.  # (stop - start, S)"""


def common_prefix(a: Sequence[int] | Ints, b: Sequence[int] | Ints) -> int:
    """Number of leading tokens that `a` and `b` share."""
    size = min(len(a), len(b))
    different = np.flatnonzero(np.asarray(a[:size]) != np.asarray(b[:size]))
    return int(different[0]) if len(different) else size


def build_tree(sequences: Sequence[Sequence[int]], *, share: bool = True) -> TokenTree:
    """Pack `sequences` into one row.

    Args:
        sequences: Token ids, each of length >= 1; equal ones are allowed and share all nodes.
        share: False gives every sequence nodes of its own (same result, more tokens); exists to prove that sharing is exact.

    Returns:
        The tree. It does not depend on the order of `sequences` except for `paths`, which follows that order.
    """
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    order = sorted(range(len(arrays)), key=lambda i: tuple(sequences[i]))
    paths: list[Ints] = [np.empty(0, dtype=np.int64)] * len(arrays)
    ids: list[Ints] = []
    depth: list[Ints] = []
    size = 0
    previous = previous_path = np.empty(0, dtype=np.int64)
    for i in order:
        # In sorted order the longest prefix already in the tree is the one shared with the neighbour.
        shared = common_prefix(previous, arrays[i]) if share else 0
        fresh = len(arrays[i]) - shared
        paths[i] = np.concatenate([previous_path[:shared], np.arange(size, size + fresh)])
        ids.append(arrays[i][shared:])
        depth.append(np.arange(shared, len(arrays[i])))
        size += fresh
        previous, previous_path = arrays[i], paths[i]
    end = np.zeros(size, dtype=np.int64)
    for path in paths:
        # Along a path all later nodes are descendants; the last path through a node reaches furthest.
        end[path] = np.maximum(end[path], path[-1] + 1)
    return TokenTree(ids=np.concatenate(ids), depth=np.concatenate(depth), end=end, paths=tuple(paths))


def attention_blocks(tree: TokenTree, *, size: int = 128) -> list[Block]:
    """Cut a tree's attention into blocks of `size` queries, so that the cost is near the visible pairs instead of T * T.

    For consecutive nodes in depth-first order every outside key is an ancestor of the first of them.
    """
    blocks = []
    for start, keys in zip(range(0, len(tree), size), block_keys(tree, size=size), strict=True):
        stop = min(start + size, len(tree))
        queries = np.arange(start, stop)[:, None]
        visible = (keys[None, :] <= queries) & (queries < tree.end[keys][None, :])
        blocks.append(Block(start=start, stop=stop, keys=keys, visible=visible))
    return blocks


def block_keys(tree: TokenTree, *, size: int) -> list[Ints]:
    """Of each block of `size` nodes: the ancestors of its first one, then the block itself, which are all that its nodes see."""
    index = np.arange(len(tree))
    return [
        np.concatenate([np.flatnonzero(tree.end[:start] > start), index[start : start + size]])
        for start in range(0, len(tree), size)
    ]
