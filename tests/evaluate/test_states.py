"""The file of held-out states: exact, and refused when it is not what it says."""

import hashlib
import json
import lzma
from dataclasses import replace
from pathlib import Path

import pytest

from onthejob.errors import ConfigError, RecordError
from onthejob.evaluate.states import HeldOutState, load_collection, load_states, save_states, states_digest
from onthejob.testing import ToyWorkplace, toy_tasks
from onthejob.types import Split


def some_states(split: Split = Split.TEST) -> list[HeldOutState]:
    env, states = ToyWorkplace(), []
    for turn, task in enumerate(toy_tasks(5, split=split)):
        observation = env.reset(task)
        states.append(HeldOutState(task=task, snapshot=env.snapshot(), actor=observation.actor, source="sft", turn=turn))
    return states


def test_round_trip(tmp_path: Path) -> None:
    states = some_states()
    digest = save_states(tmp_path / "deep" / "states.bin", states)
    loaded = load_states(tmp_path / "deep" / "states.bin")
    assert loaded == states
    assert [state.key for state in loaded] == [state.key for state in states]
    assert states_digest(loaded) == states_digest(states)
    assert save_states(tmp_path / "again.bin", states) == digest
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["states.bin"]


def test_a_file_says_how_it_was_collected_and_one_of_before_that_it_does_not(tmp_path: Path) -> None:
    states, collected = some_states(), {"first": 12, "per_role": 500}
    save_states(tmp_path / "states.bin", states, collected)
    assert load_collection(tmp_path / "states.bin") == (states, collected)
    fields = [
        {"task": s.task.row(), "actor": s.actor, "source": s.source, "turn": s.turn, "snapshot_bytes": len(s.snapshot)}
        for s in states
    ]
    header = json.dumps(fields).encode()
    payload = len(header).to_bytes(8, "big") + header + b"".join(s.snapshot for s in states)
    digest = hashlib.sha256(payload).hexdigest().encode()
    (tmp_path / "former.bin").write_bytes(b"onthejob-states 1\n" + digest + b"\n" + lzma.compress(payload))
    assert load_collection(tmp_path / "former.bin") == (states, {})


def test_snapshots_of_an_episode_compress_well(tmp_path: Path) -> None:
    env, states = ToyWorkplace(), []
    task = toy_tasks(1, split=Split.DEV, days=30)[0]
    observation = env.reset(task)
    for turn in range(58):
        assert observation is not None
        states.append(HeldOutState(task=task, snapshot=env.snapshot(), actor=observation.actor, source="sft", turn=turn))
        observation = env.step("HOLD").observation
    save_states(tmp_path / "states.bin", states)
    assert (tmp_path / "states.bin").stat().st_size < 0.3 * sum(len(state.snapshot) for state in states)


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "states.bin"
    save_states(path, some_states())
    raw = path.read_bytes()
    for position in range(0, len(raw), 37):
        path.write_bytes(raw[:position] + bytes([raw[position] ^ 0xFF]) + raw[position + 1 :])
        with pytest.raises(RecordError):
            load_states(path)
    path.write_bytes(raw[:-20])
    with pytest.raises(RecordError, match="damaged"):
        load_states(path)


def test_training_tasks_are_refused_on_both_sides(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="split dev or test"):
        save_states(tmp_path / "states.bin", some_states(Split.TRAIN))
    with pytest.raises(ConfigError, match="at least one"):
        save_states(tmp_path / "states.bin", [])
    with pytest.raises(RecordError, match="cannot read"):
        load_states(tmp_path / "absent.bin")
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="cannot write"):
        save_states(tmp_path / "file" / "states.bin", some_states())


def test_the_key_names_everything_a_value_depends_on() -> None:
    state = some_states()[0]
    assert len({state.key, replace(state, actor="seller").key, replace(state, snapshot=b"x").key}) == 3
    assert replace(state, source="heuristic", turn=9).key == state.key
