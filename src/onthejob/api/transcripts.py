"""Requests of recorded turns: a timeline holds replies, and the groups of whole episodes hold the tokens that were read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onthejob.api.tokens import Tokens
from onthejob.record import Run
from onthejob.record.from_rows import Episode
from onthejob.types import Trajectory, Turn


def read_by_turn(turns: Sequence[Turn], tokens: Tokens) -> Iterator[str | None]:
    """The text that each turn read: the whole prompt of a fresh context, else what was appended to the conversation before it.

    None where the model's tokenizer is not on this machine.
    """
    held: tuple[int, ...] = ()
    for turn in turns:
        appended = bool(held) and turn.prompt_ids[: len(held)] == held
        yield tokens.text(turn.prompt_ids[len(held) :] if appended else turn.prompt_ids)
        held = (*turn.prompt_ids, *turn.completion.token_ids)


def requests(run: Run, episode: Episode, tokens: Tokens) -> dict[int, str]:
    """Place in the timeline -> the request that the turn answered, for the roles whose trajectories the run recorded whole."""
    found: dict[int, str] = {}
    for trajectory in _trajectories(run, episode):
        places = [place for place, turn in enumerate(episode.timeline) if turn.get("actor") == trajectory.actor]
        if [episode.timeline[place].get("text") for place in places] != [turn.completion.text for turn in trajectory.turns]:
            continue
        for place, text in zip(places, read_by_turn(trajectory.turns, tokens), strict=True):
            if text is not None:
                found[place] = text
    return found


def _trajectories(run: Run, episode: Episode) -> Iterator[Trajectory]:
    """The episode's trajectories: members of its task's groups, which hold the attempts in the order of their episodes."""
    task = str(episode.facts.get("task", ""))
    keys = [key for at, key in run.read_group_keys() if at == episode.iteration and key.split("/")[1:-1] == task.split("/")]
    if not task or not keys:
        return
    attempts = [
        other
        for other in run.read_episodes(episode.iteration, turns=False)
        if other.facts.get("task") == task and not other.facts.get("error")
    ]
    for key in keys:
        for group in run.read_groups(key=key):
            # An attempt in which the role was never asked has no member in its group.
            names = [other.name for other in attempts if group.actor in other.policies]
            if group.facts.get("source") == "episodes" and len(group.trajectories) == len(names) and episode.name in names:
                yield group.trajectories[names.index(episode.name)]
