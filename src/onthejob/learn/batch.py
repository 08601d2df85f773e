"""Trajectories to packed rows: which tokens are forwarded, which are scored, and what each scored token belongs to.

A turn is a path: its context as sampled, then its completion. Paths go into prefix trees (`learn.tree`), which does several
things at once: the prompt of a group is there once for its K completions, a turn that extends its context continues the same
branch (the observation in between is forwarded and never scored), equal completions or equal beginnings of completions are
computed once, and roles with a common system prompt share it. Each (trajectory, token) keeps a term of its own with its own
sampled log-probability and advantage, so sharing changes the cost and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from onthejob.errors import ConfigError, ContractError
from onthejob.learn.tree import Ints, TokenTree, build_tree, common_prefix
from onthejob.models.window import refuse_longer
from onthejob.types import Group, StopReason, Trajectory

Floats = npt.NDArray[np.float32]
Advantages = npt.NDArray[np.float64]
"""One per trajectory of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One sequence with a scored tail."""

    ids: tuple[int, ...]
    """Context, then completion."""
    context: int
    """Length of the context, 1 <= context < len(ids). Tokens from here on are scored."""
    temperature: float = 1.0
    """Logits are divided by it before the softmax, > 0."""
    owner: int = 0
    """Paths of one owner (a trajectory) stay in one row when they fit."""
    unit: int = 0
    """Paths of one unit (a group) stay in one row when they fit; owners of a unit are numbered consecutively."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One forward pass: a tree of tokens and the N scored (path, token) terms in it."""

    tree: TokenTree
    contexts: Ints
    """Length of the unscored beginning of each tree path."""
    heads: Ints
    """The R distinct nodes whose next-token distribution is needed.  # (R,)"""
    temperatures: Floats
    """Of each head. A node scored at two temperatures is two heads.  # (R,)"""
    pair_head: Ints
    """The U distinct (head, next token) pairs: index into `heads`.  # (U,)"""
    pair_token: Ints
    """The U distinct (head, next token) pairs: the token.  # (U,)"""
    term_pair: Ints
    """Which pair gives the log-probability of each term.  # (N,)"""
    term_source: Ints
    """Which of the paths given to `pack` a term belongs to.  # (N,)"""
    term_offset: Ints
    """Place of the term in its path's completion.  # (N,)"""

    def __len__(self) -> int:
        return len(self.tree)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A row of one update, with what the loss needs about each of its N terms."""

    row: Row
    trajectory: Ints
    """Number of the trajectory within the whole collation.  # (N,)"""
    sampled: Floats
    """Log-probability recorded when the token was sampled; NaN when the sampler did not say.  # (N,)"""
    advantage: Floats
    """Of the term's trajectory.  # (N,)"""
    length: Floats
    """Scored tokens of the term's trajectory in all rows.  # (N,)"""
    group: Ints
    """Number of the term's group within the whole collation.  # (N,)"""
    copies: Floats
    """Trajectories of the term's group that hold the same tokens as its own, itself included.  # (N,)"""
    size: Floats
    """Trajectories of the term's group.  # (N,)"""
    legal: npt.NDArray[np.bool_]
    """False where the term's trajectory is a reply that could not be used (see `Trajectory.is_legal`).  # (N,)"""
    groups: int
    """Groups in the whole collation."""
    trajectories: int
    """Trajectories in the whole collation; the denominator does not depend on how rows are cut."""
    tokens: int
    """Scored tokens in the whole collation."""
    complete: bool
    """True when every trajectory that occurs here has all its terms here."""
    whole: bool
    """True when every group that occurs here has all its terms here."""

    def __len__(self) -> int:
        return len(self.trajectory)


class _Owner(NamedTuple):
    """What a trajectory's terms have in common."""

    advantage: float
    length: int
    unit: int
    copies: int
    size: int
    legal: bool


def collate(
    groups: Sequence[Group],
    advantages_G: Sequence[Advantages | None],
    *,
    max_tokens: int,
    share: bool = True,
    skip_zero: bool = False,
    window: int | None = None,
) -> list[Batch]:
    """Pack the groups of one update into rows; those that teach nothing are omitted.

    Every trajectory has one advantage and weighs as one trajectory, however many turns, contexts or rows it spans.

    Args:
        groups: Any number, of any sizes.
        advantages_G: Per group, one advantage per trajectory, or None where it teaches nothing.
        max_tokens: Largest row. A single context longer than that gets a row alone; nothing is ever truncated.
        share: False computes every path by itself, padded to the longest of its row (same gradients, more tokens).
        skip_zero: Trajectories whose advantage is 0 are counted and not forwarded: the same gradient where nothing but the
            advantage pays, that is without a KL term and not with the loss `expected`.
        window: Tokens of the longest context that the model was made for; None sets no limit.

    Raises:
        ContractError: A turn without token ids (a text-only policy), without a prompt, or with as many log-probabilities as not
            to match its tokens; or a number of advantages that does not match its group.
        ConfigError: max_tokens < 2, or a context that exceeds `window`.
    """
    live = [(group, values) for group, values in zip(groups, advantages_G, strict=True) if values is not None]
    turns = [turn for group, _ in live for row in group.trajectories for turn in row.turns]
    refuse_longer(window, [turn.prompt_ids + turn.completion.token_ids for turn in turns], new_tokens=0)
    paths: list[Path] = []
    owners: list[_Owner] = []
    sampled: list[tuple[float, ...]] = []
    for unit, (group, values) in enumerate(live):
        if len(values) != len(group):
            raise ContractError(f"group {group.key!r} has {len(group)} trajectories and {len(values)} advantages.")
        used = [trajectory for trajectory in group.trajectories if trajectory.stop is not StopReason.ERROR]
        same = Counter(map(_tokens, used))
        for trajectory, advantage in zip(group.trajectories, values, strict=True):
            if trajectory.stop is StopReason.ERROR:
                continue
            own = _paths(trajectory, owner=len(owners), unit=unit, key=group.key)
            if advantage != 0 or not skip_zero:
                paths += own
                sampled += [turn.completion.logprobs for turn in trajectory.turns]
            length = sum(len(path.ids) - path.context for path in own)
            owners.append(
                _Owner(
                    float(advantage), length, unit, copies=same[_tokens(trajectory)], size=len(used), legal=trajectory.is_legal
                )
            )
    if not paths:
        return []
    tokens = sum(owner.length for owner in owners)
    owner_of = np.array([path.owner for path in paths], dtype=np.int64)
    # Trajectories that are not forwarded have no terms anywhere, so no row can hold them.
    terms_of = np.bincount([path.unit for path in paths], [len(path.ids) - path.context for path in paths], minlength=len(live))
    batches = []
    for row in pack(paths, max_tokens=max_tokens, share=share):
        owner = owner_of[row.term_source]
        length = np.array([owners[i].length for i in owner], dtype=np.float32)
        unit_of = np.array([owners[i].unit for i in owner], dtype=np.int64)
        batches.append(
            Batch(
                row=row,
                trajectory=owner,
                sampled=np.array(
                    [sampled[s][t] for s, t in zip(row.term_source, row.term_offset, strict=True)], dtype=np.float32
                ),
                advantage=np.array([owners[i].advantage for i in owner], dtype=np.float32),
                length=length,
                group=unit_of,
                copies=np.array([owners[i].copies for i in owner], dtype=np.float32),
                size=np.array([owners[i].size for i in owner], dtype=np.float32),
                legal=np.array([owners[i].legal for i in owner], dtype=np.bool_),
                groups=len(live),
                trajectories=len(owners),
                tokens=tokens,
                complete=bool((np.bincount(owner)[owner] == length).all()),
                whole=bool((np.bincount(unit_of)[unit_of] == terms_of[unit_of]).all()),
            )
        )
    return batches


def pack(paths: Sequence[Path], *, max_tokens: int, share: bool = True) -> list[Row]:
    """Cut `paths` into rows of at most `max_tokens` nodes, padding included, neighbours in the tree side by side.

    Units are laid out in the order of their first path, so that common beginnings meet; a unit or owner is split over rows only
    when it does not fit in one. Rows that share hold no padding, so filling them in this order wastes nothing.

    Raises:
        ContractError: A path without a context or without a scored token, or a temperature that is not positive.
        ConfigError: max_tokens < 2.
    """
    if max_tokens < 2:
        raise ConfigError(f"max_tokens must be >= 2 (a prompt token and a scored one), got {max_tokens}. 2048 is usual.")
    for path in paths:
        if not 1 <= path.context < len(path.ids):
            raise ContractError(
                f"a path needs >= 1 context token and >= 1 scored token, got {path.context} and {len(path.ids) - path.context}."
            )
        if not path.temperature > 0:
            raise ContractError(f"temperature must be > 0 to score tokens, got {path.temperature}. Greedy replies count as 1.")
    rows: list[list[int]] = []
    for piece in _pieces(paths, max_tokens, share=share):
        if rows and _size(paths, rows[-1] + piece, share=share) <= max_tokens:
            rows[-1] += piece
        else:
            rows.append(list(piece))
    return [_row(paths, sources, share=share) for sources in rows]


def _tokens(trajectory: Trajectory) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    return tuple((turn.prompt_ids, turn.completion.token_ids) for turn in trajectory.turns)


def _paths(trajectory: Trajectory, *, owner: int, unit: int, key: str) -> list[Path]:
    paths = []
    for index, turn in enumerate(trajectory.turns):
        ids, logprobs = turn.completion.token_ids, turn.completion.logprobs
        if not ids or not turn.prompt_ids:
            raise ContractError(
                f"turn {index} of a trajectory of group {key!r} has {len(turn.prompt_ids)} prompt and {len(ids)} completion "
                "tokens; only turns recorded with their token ids can be trained on."
            )
        if len(ids) != len(logprobs):
            raise ContractError(
                f"turn {index} of a trajectory of group {key!r} has {len(ids)} tokens and {len(logprobs)} log-probabilities."
            )
        # Recorded log-probabilities of greedy replies are those of temperature 1.
        temperature = turn.temperature if turn.temperature > 0 else 1.0
        paths.append(
            Path(ids=turn.prompt_ids + ids, context=len(turn.prompt_ids), temperature=temperature, owner=owner, unit=unit)
        )
    return paths


def _pieces(paths: Sequence[Path], max_tokens: int, *, share: bool) -> list[list[int]]:
    """Paths that should stay together: a unit if it fits, else an owner, else single paths."""
    pieces = []
    for unit in _grouped(range(len(paths)), lambda i: paths[i].unit, paths):
        if _size(paths, unit, share=share) <= max_tokens:
            pieces.append(unit)
            continue
        parts = []
        for owner in _grouped(unit, lambda i: paths[i].owner, paths):
            fits = _size(paths, owner, share=share) <= max_tokens
            parts += [owner] if fits else [[source] for source in owner]
        pieces += sorted(parts, key=lambda part: paths[part[0]].ids)
    return pieces


def _grouped(sources, key, paths: Sequence[Path]) -> list[list[int]]:
    """Partition by `key`; members in lexicographic order of their tokens, partitions in order of their first member."""
    found: dict[int, list[int]] = {}
    for source in sorted(sources, key=lambda i: (paths[i].ids, i)):
        found.setdefault(key(source), []).append(source)
    return list(found.values())


def _size(paths: Sequence[Path], sources: Sequence[int], *, share: bool) -> int:
    """Nodes of the tree of `sources`, without building it; of paths by themselves, those of as many of the longest."""
    ordered = sorted(paths[source].ids for source in sources)
    if not share:
        return len(ordered) * max(map(len, ordered))
    return sum(map(len, ordered)) - sum(common_prefix(a, b) for a, b in pairwise(ordered))


def _row(paths: Sequence[Path], sources: Sequence[int], *, share: bool) -> Row:
    tree = build_tree([paths[source].ids for source in sources], share=share)
    node, token, source_of, offset, temperature = [], [], [], [], []
    for source, nodes in zip(sources, tree.paths, strict=True):
        path, scored = paths[source], len(paths[source].ids) - paths[source].context
        node.append(nodes[path.context - 1 : -1])  # A token is scored at the node before it.
        token.append(np.asarray(path.ids[path.context :], dtype=np.int64))
        source_of.append(np.full(scored, source))
        offset.append(np.arange(scored))
        temperature.append(np.full(scored, path.temperature))
    heads, term_head = np.unique(np.stack([np.concatenate(node), np.concatenate(temperature)]), axis=1, return_inverse=True)
    pairs, term_pair = np.unique(np.stack([term_head.ravel(), np.concatenate(token)]), axis=1, return_inverse=True)
    return Row(
        tree=tree,
        contexts=np.array([paths[source].context for source in sources], dtype=np.int64),
        heads=heads[0].astype(np.int64),
        temperatures=heads[1].astype(np.float32),
        pair_head=pairs[0].astype(np.int64),
        pair_token=pairs[1].astype(np.int64),
        term_pair=term_pair.ravel().astype(np.int64),
        term_source=np.concatenate(source_of).astype(np.int64),
        term_offset=np.concatenate(offset).astype(np.int64),
    )
