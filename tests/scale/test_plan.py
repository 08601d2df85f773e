"""Who sits where, by numbers worked by hand; and what is wrong with a node, in words."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onthejob.errors import ConfigError
from onthejob.scale.plan import ScaleNode, Survey, seated_on, too_little_memory, wrong_with


def node(id: str, cpus: int, *, memory: int = 8_000_000_000, problem: str = "", **found: str) -> ScaleNode:
    return ScaleNode(id=id, name=f"10.0.0.{id}", cpus=cpus, memory_bytes=memory, found=found, problem=problem)


def test_learners_are_spread_before_workers_fill_the_rest():
    nodes = [node("a", 2), node("b", 4), node("c", 1)]
    seats = seated_on(nodes, {"learner": 2, "worker": 5})
    # The node with the most free CPUs first: b, then a. Then one worker on each node, then where room is left.
    assert seats == {"learner": ("b", "a"), "worker": ("b", "a", "c", "b", "b")}


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(0, 8), st.integers(0, 8))
def test_no_node_has_more_actors_than_cpus(cpus: list[int], learners: int, workers: int):
    nodes = [node(str(number), count) for number, count in enumerate(cpus)]
    counts = {"learner": learners, "worker": workers}
    if learners + workers > sum(cpus):
        with pytest.raises(ConfigError, match=rf"has {sum(cpus)} CPUs"):
            seated_on(nodes, counts)
        return
    seats = seated_on(nodes, counts)
    assert {kind: len(ids) for kind, ids in seats.items()} == counts
    taken = Counter(id for ids in seats.values() for id in ids)
    assert all(taken[one.id] <= one.cpus for one in nodes)
    assert seats == seated_on(nodes, counts)


def test_a_cluster_is_refused_with_what_differs_on_each_node():
    expected = {"torch": "2.13.0", "base": "abc", "sandbox": "usable"}
    equal = node("1", 1, torch="2.13.0", base="abc", sandbox="usable")
    other = node("2", 1, torch="2.12.0", base="missing (no such folder)", sandbox="without bubblewrap")
    silent = node("3", 1, problem="ModuleNotFoundError: No module named 'onthejob'")
    nodes = (equal, other, silent)
    wrong = {one.name: text for one in nodes if (text := wrong_with(one, expected))}
    assert wrong == {
        "10.0.0.2": "base missing (no such folder) (here abc), sandbox without bubblewrap (here usable), "
        "torch 2.12.0 (here 2.13.0)",
        "10.0.0.3": "ModuleNotFoundError: No module named 'onthejob'",
    }
    with pytest.raises(ConfigError, match=r"2 of 3 nodes cannot be used. 10\.0\.0\.2: base missing.*10\.0\.0\.3: Module"):
        Survey(nodes=nodes, seats={}, wrong=wrong).check()
    Survey(nodes=nodes, seats={}, wrong={}).check()


def test_bases_that_exceed_a_nodes_memory_are_named():
    nodes = [node("1", 4), node("2", 4)]
    # A sampler holds the weights twice.
    seats = {"learner": ("2", "2"), "sampler": ("1",), "worker": ("2",)}
    assert too_little_memory(nodes, seats, 3_000_000_000) == {}
    told = "10.0 GB of base models, and the node has 8.0 GB"
    assert too_little_memory(nodes, seats, 5_000_000_000) == {"10.0.0.1": told, "10.0.0.2": told}
