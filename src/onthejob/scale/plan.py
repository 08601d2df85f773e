"""Which node has which actors: computed from what the nodes have, before any actor is started. No input or output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onthejob.errors import ConfigError
from onthejob.scale.worker_bench import differing

COPIES = {"learner": 1, "sampler": 2}
"""Kind of actor -> how often it holds the weights; the compiled code packs them once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleNode:
    """One machine of a cluster, as it was found."""

    id: str
    """Ray's; empty for this machine without a cluster."""
    name: str
    """Its address."""
    cpus: int
    """Actors that it takes, one for each."""
    memory_bytes: int
    found: Mapping[str, str] = field(default_factory=dict)
    """As `worker_bench.found_here`; empty where it could not be asked."""
    problem: str = ""
    """Why it could not be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A cluster, and what a run would make of it."""

    nodes: tuple[ScaleNode, ...]
    seats: Mapping[str, tuple[str, ...]]
    """As `seated_on`."""
    wrong: Mapping[str, str]
    """Name of each node that cannot be used -> what differs there from this process, or why it did not answer."""

    def check(self) -> None:
        """Refuse a cluster of which a node cannot be used.

        Raises:
            ConfigError: names what differs on each of them.
        """
        if self.wrong:
            told = "; ".join(f"{name}: {text}" for name, text in self.wrong.items())
            raise ConfigError(
                f"{len(self.wrong)} of {len(self.nodes)} nodes cannot be used. {told}. Every node needs the same versions, base "
                "and files: `onthejob scale plan` lists them."
            )


def wrong_with(node: ScaleNode, expected: Mapping[str, str]) -> str:
    """What differs on a node from what is expected, or why it did not answer; empty when it can be used."""
    return node.problem or differing(expected, node.found)


def seated_on(nodes: Sequence[ScaleNode], counts: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Kind of actor -> the id of the node of each, in order.

    Each actor takes a CPU of the node that has the fewest of its kind, then the most free CPUs, then comes first. So learners are
    spread before workers fill what is left.

    Args:
        nodes: in a fixed order.
        counts: kind -> how many; kinds are seated in this order.

    Raises:
        ConfigError: there are too few CPUs.
    """
    total, wanted = sum(node.cpus for node in nodes), sum(counts.values())
    if wanted > total:
        asked = " and ".join(f"{count} {kind}s" for kind, count in counts.items() if count)
        raise ConfigError(
            f"the Ray cluster has {total} CPUs, and {asked} need one each. Set --scale.workers, --scale.learners or "
            "--scale.samplers, or add nodes."
        )
    free = {node.id: node.cpus for node in nodes}
    seats: dict[str, tuple[str, ...]] = {}
    for kind, count in counts.items():
        taken: Counter[str] = Counter()
        chosen = []
        for _ in range(count):
            best = min((id for id in free if free[id] > 0), key=lambda id: (taken[id], -free[id]))
            free[best] -= 1
            taken[best] += 1
            chosen.append(best)
        seats[kind] = tuple(chosen)
    return seats


def too_little_memory(nodes: Sequence[ScaleNode], seats: Mapping[str, Sequence[str]], base_bytes: int) -> dict[str, str]:
    """Name of each node whose learners' and samplers' bases exceed its memory -> how much they take there.

    Args:
        nodes: all.
        seats: as `seated_on`.
        base_bytes: of one base model in memory.
    """
    found = {}
    for node in nodes:
        held = base_bytes * sum(copies * list(seats.get(kind, ())).count(node.id) for kind, copies in COPIES.items())
        if held > node.memory_bytes:
            found[node.name] = f"{held / 1e9:.1f} GB of base models, and the node has {node.memory_bytes / 1e9:.1f} GB"
    return found
