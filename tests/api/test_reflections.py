"""Reflections in the viewer: in the frame of the turn that they followed, live, in the past, after an undo and recorded."""

from __future__ import annotations

from pathlib import Path

from onthejob.api.players import Players
from onthejob.api.recorded_frames import episode_frames
from onthejob.api.schema_office import Reset
from onthejob.api.worlds import Worlds
from onthejob.envs.office.env import SEATS, OfficeConfig
from onthejob.envs.office.records import Kind
from onthejob.record import Run

from .recording import office_run


def played(turns: int) -> Worlds:
    """A company of heuristics after so many replies."""
    worlds = Worlds(Players(), Reset(days=12, seed=1_000))
    world = worlds.get("live")
    while world.length and world._teller.frames[-1].step < turns:
        world.step(None)
    return worlds


def test_a_reflection_is_marked_in_its_turn_and_nothing_else_is():
    worlds = played(130)
    world = worlds.get("live")
    frames = world.frames(0).frames
    marked = {(frame.turn, role): texts for frame in frames for role, texts in frame.reflections.items()}
    # 12 replies a day: 130 of them are 152 turns, so every role has reflected twice.
    assert {turn for turn, _ in marked} == {69, 139}
    env = world.at(len(frames) - 1)
    for role in SEATS:
        kept = [memory for memory in env.memories(role) if memory.kind is Kind.REFLECTION]
        assert [text for turn in (69, 139) for text in marked.get((turn, role), [])] == [memory.text for memory in kept]
    assert all(frame.actor != "night" for frame in frames if frame.reflections)
    worlds.close()


def test_an_undo_takes_a_reflection_back_and_it_comes_again():
    worlds = played(60)
    world = worlds.get("live")

    def marked() -> list[int]:
        return [frame.turn for frame in world.frames(0).frames if frame.reflections]

    before = [frame for frame in world.frames(0).frames if frame.reflections]
    while marked():
        assert world.undo()
    while not marked():
        world.step(None)
    assert [frame for frame in world.frames(0).frames if frame.reflections] == before
    worlds.close()


def test_recorded_episodes_show_theirs(tmp_path: Path):
    office_run(tmp_path, "full", iterations=2, rules={"profile": "full"})
    rules = OfficeConfig(profile="full")
    with Run.open(tmp_path / "full", readonly=True) as run:
        found = [episode_frames(episode, "full", rules) for episode in run.read_episodes()]
    marked = [(part.seats.first, frame.turn) for part in found for frame in part.frames if frame.reflections]
    assert marked
    assert all(turn % 70 == 69 for _, turn in marked)
    spans = [range(part.frames[0].turn + 1, part.frames[-1].turn + 1) for part in found]
    assert len(marked) == sum(turn % 70 == 69 for span in spans for turn in span)
