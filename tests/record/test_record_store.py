"""What goes in comes out, whole iterations only, one writer, any number of readers."""

from __future__ import annotations

import dataclasses
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import record_program
from hypothesis import given
from hypothesis import strategies as st
from record_program import CONFIG, a_group, a_turn, save_adapter

from onthejob.errors import ContractError, RecordError
from onthejob.record import Run
from onthejob.record.store import LIVE_KEPT
from onthejob.types import Adapter, Completion, Group, Kind, StopReason, Trajectory, Turn

PROGRAM = Path(record_program.__file__)


def bits(values: tuple[float, ...]) -> list[bytes]:
    return [struct.pack("<d", value) for value in values]


def comparable(group: Group) -> Group:
    """`group` with floats as bits, so that NaN equals itself and -0.0 does not equal 0.0."""

    def turn(t: Turn):
        return dataclasses.replace(t, completion=dataclasses.replace(t.completion, logprobs=tuple(bits(t.completion.logprobs))))

    def trajectory(t: Trajectory):
        metrics = {name: bits((value,)) for name, value in t.metrics.items()}
        return dataclasses.replace(t, turns=tuple(map(turn, t.turns)), rewards=tuple(bits(t.rewards)), metrics=metrics)

    return dataclasses.replace(group, trajectories=tuple(map(trajectory, group.trajectories)))


floats = st.floats(allow_nan=True, allow_infinity=True) | st.floats(width=32, allow_nan=False)
texts = st.text(st.characters(exclude_categories=()), max_size=12)  # every code point, lone surrogates and NUL included
names = st.text(max_size=6)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
token_ids = st.lists(st.integers(0, 2**16 - 1) | st.integers(0, 2**32 - 1), max_size=40).map(tuple)


@st.composite
def turns(draw) -> Turn:
    ids = draw(token_ids)
    completion = Completion(
        text=draw(texts),
        token_ids=ids,
        logprobs=tuple(draw(st.lists(floats, min_size=len(ids), max_size=len(ids)))),
        finish_reason=draw(st.sampled_from(["stop", "length"])),
    )
    return Turn(
        prompt_ids=draw(token_ids),
        completion=completion,
        policy_version=draw(names),
        kind=draw(st.sampled_from(list(Kind))),
        temperature=draw(st.floats(0, 2)),
        valid=draw(st.booleans()),
    )


@st.composite
def trajectories(draw) -> Trajectory:
    decisions = list(draw(st.lists(turns(), max_size=4)))
    for index in range(1, len(decisions)):  # some prompts continue the previous one, as in a shell session
        if draw(st.booleans()):
            longer = decisions[index - 1].prompt_ids + decisions[index].prompt_ids
            decisions[index] = dataclasses.replace(decisions[index], prompt_ids=longer)
    return Trajectory(
        task_id=draw(names),
        actor=draw(names),
        turns=tuple(decisions),
        rewards=tuple(draw(st.lists(floats, min_size=len(decisions), max_size=len(decisions)))),
        stop=draw(st.sampled_from(list(StopReason))),
        metrics=draw(st.dictionaries(names, st.floats(allow_nan=False), max_size=3)),
    )


groups = st.builds(
    Group,
    key=names,
    actor=names,
    trajectories=st.lists(trajectories(), max_size=3).map(tuple),
    facts=st.dictionaries(names, json_values, max_size=3),
)


@given(st.lists(groups, max_size=3, unique_by=lambda group: group.key))
def test_groups_come_back_bit_for_bit(tmp_path_factory, given_groups):
    with Run.create(tmp_path_factory.mktemp("runs"), config={}, name="r") as run:
        with run.iteration(0) as it:
            it.groups(given_groups)
        first = run.digest()
        assert [comparable(group) for group in run.read_groups()] == [comparable(group) for group in given_groups]
        assert run.digest() == first


def test_prompts_are_stored_once_and_continuations_as_tails(runs_dir):
    prompt = tuple(range(1000))
    turns = tuple(dataclasses.replace(a_turn(t), prompt_ids=prompt + tuple(range(t * 10))) for t in range(30))
    trajectory = Trajectory(task_id="t", actor="a", turns=turns, rewards=(0.0,) * 30, stop=StopReason.DONE)
    with Run.create(runs_dir, config={}, name="r") as run:
        for n in range(2):
            with run.iteration(n) as it:
                it.groups([Group(key=f"{n}", actor="a", trajectories=(trajectory,) * 4)])
        stored = run._database.rows("SELECT count(*), sum(length(tail)), max(tokens) FROM contexts")[0]
        assert stored[0] == 30
        assert stored[1] < 2 * 1000 + 30 * 40  # one whole prompt of 16-bit ids and 29 short tails
        assert stored[2] == 1290
        assert [group.trajectories[0].turns for group in run.read_groups()] == [turns, turns]


def test_a_block_that_raises_records_nothing(runs_dir):
    with Run.create(runs_dir, config=CONFIG, name="r") as run:
        empty = run.digest()
        with pytest.raises(ZeroDivisionError), run.iteration(0) as it:  # noqa: PT012
            it.groups([a_group("k")])
            it.metrics("train", {"loss": 1.0})
            raise ZeroDivisionError
        assert run.last_iteration() is None
        assert run.digest() == empty
        with run.iteration(0) as it:  # the same iteration can be done again
            it.groups([a_group("k")])
        assert run.last_iteration() == 0


def test_a_commit_that_fails_records_nothing(runs_dir):
    with Run.create(runs_dir, config=CONFIG, name="r") as run:
        with run.iteration(0) as it:
            it.groups([a_group("same")])
        before = run.digest()
        with pytest.raises(RecordError, match=r"UNIQUE constraint failed: groups\.key.*only once"), run.iteration(1) as it:  # noqa: PT012
            it.metrics("train", {"loss": 1.0})
            it.groups([a_group("other"), a_group("same")])
        assert run.digest() == before
        assert run.last_iteration() == 0


@pytest.mark.parametrize("n", [-1, 0, 1])
def test_iterations_only_go_forward(runs_dir, n):
    with Run.create(runs_dir, config={}, name="r") as run:
        with run.iteration(1):
            pass
        with pytest.raises(RecordError, match=rf"after 1, the last recorded, got {n}"), run.iteration(n):
            pass


def test_one_iteration_at_a_time(runs_dir):
    with Run.create(runs_dir, config={}, name="r") as run:
        with pytest.raises(ContractError, match="iteration 0 is still open"), run.iteration(0), run.iteration(1):
            pass
        with pytest.raises(ContractError, match="needs an open iteration"):
            run.put_blob("k", b"")


def test_filters_and_advantages(runs_dir):
    with Run.create(runs_dir, config={}, name="r") as run:
        for n in range(2):
            with run.iteration(n) as it:
                dev = dataclasses.replace(a_group(f"{n}/dev"), actor="dev")
                it.groups([a_group(f"{n}/sales"), dev], [np.array([0.1, float("nan"), -0.1]), None])
        assert [group.key for group in run.read_groups(1)] == ["1/sales", "1/dev"]
        assert [group.key for group in run.read_groups(actor="dev")] == ["0/dev", "1/dev"]
        advantages = run.read_advantages(0)
        np.testing.assert_array_equal(advantages["0/sales"], np.array([0.1, float("nan"), -0.1]))
        assert advantages["0/dev"] is None


@pytest.mark.parametrize("advantages", [[[0.0, 1.0]], [[0.0]], [], [None, None]])
def test_advantages_must_fit(runs_dir, advantages):
    with (
        Run.create(runs_dir, config={}, name="r") as run,
        pytest.raises(ContractError, match="advantages"),
        run.iteration(0) as it,
    ):
        it.groups([a_group("k")], advantages)


@pytest.mark.parametrize(
    ("facts", "place"),
    [({"a": [1, {2}]}, r"a\[1\]"), ({"b": {1: 2}}, "key must be text"), ({"$float": "nan"}, "key must be text")],
)
def test_facts_must_be_json(runs_dir, facts, place):
    with Run.create(runs_dir, config={}, name="r") as run, pytest.raises(ContractError, match=place), run.iteration(0) as it:
        it.groups([dataclasses.replace(a_group("k"), facts=facts)])


@pytest.mark.parametrize("ids", [(-1,), (2**32,), (1.5,)])
def test_token_ids_must_be_token_ids(runs_dir, ids):
    bad = dataclasses.replace(a_group("k", size=1, turns=1))
    turn = dataclasses.replace(a_turn(0), prompt_ids=ids)
    bad = dataclasses.replace(bad, trajectories=(dataclasses.replace(bad.trajectories[0], turns=(turn,)),))
    with (
        Run.create(runs_dir, config={}, name="r") as run,
        pytest.raises(ContractError, match="token ids"),
        run.iteration(0) as it,
    ):
        it.groups([bad])


def test_metrics_keep_nan_and_mark_clocks(runs_dir):
    with Run.create(runs_dir, config={}, name="r") as run:
        with run.iteration(3) as it:
            it.metrics("train/sales", {"loss": float("nan"), "kl": float(np.float32(0.5)), "alive": 3, "up": float("inf")})
            it.metrics("time", {"update_s": 1.5, "tokens_per_second": 9.0, "peak_rss": 1.0, "latency": 2.0}, clocks=["latency"])
            it.metrics("auto", {"update_s": 1.5, "tokens_per_s": 9.0, "rss_mb": 1.0, "seats": 2.0, "reward/wall": 1.0})
        values = {metric.name: metric.value for metric in run.read_metrics("train/sales")}
        assert np.isnan(values.pop("loss"))
        assert values == {"kl": 0.5, "alive": 3.0, "up": float("inf")}
        assert {m.name for m in run.read_metrics("time") if m.is_clock} == {"latency"}
        assert {m.name for m in run.read_metrics("auto") if not m.is_clock} == {"seats"}
        assert run._database.rows("SELECT value, is_nan FROM metrics WHERE name = 'loss'") == [(None, 1)]
        assert {m.iteration for m in run.read_metrics(name="kl")} == {3}


def test_a_metric_is_a_number_and_recorded_once(runs_dir):
    with Run.create(runs_dir, config={}, name="r") as run:
        with pytest.raises(ContractError, match=r"'loss' of train must be a number, got str"), run.iteration(0) as it:
            it.metrics("train", {"loss": "high"})  # pyright: ignore[reportArgumentType]
        with pytest.raises(ContractError, match="already recorded in iteration 0"), run.iteration(0) as it:  # noqa: PT012
            it.metrics("train", {"loss": 1.0})
            it.metrics("train", {"loss": 2.0})


def test_episodes_events_and_blobs(runs_dir):
    trajectory = a_group("k").trajectories[0]
    timeline = [{"day": day, "actor": "sales", "cash": float("inf")} for day in range(3)]
    with Run.create(runs_dir, config={}, name="r") as run:
        for n in range(2):
            with run.iteration(n) as it:
                it.episode("dev/7", policies={"sales": "sales@0001"}, metrics={"value": n / 3, "nps": float("nan")},
                           trajectories=[trajectory], timeline=timeline, facts={"task": "t"})  # fmt: skip
                it.event("dead_group", {"key": f"{n}"})
                run.put_blob("library/a", b"version %d" % n)
                assert run.get_blob("library/a") == b"version %d" % n  # readable before the commit
                it.put_blob("library/b", b"same" * 100)
        episodes = list(run.read_episodes(1, "dev/7"))
        assert len(episodes) == 1
        assert episodes[0].trajectories == (trajectory,)
        assert list(episodes[0].timeline) == timeline
        assert episodes[0].metrics["value"] == 1 / 3
        assert np.isnan(episodes[0].metrics["nps"])
        assert episodes[0].facts == {"task": "t"}
        assert [episode.trajectories for episode in run.read_episodes(turns=False)] == [(), ()]
        assert [(event.iteration, event.payload["key"]) for event in run.read_events(kind="dead_group")] == [(0, "0"), (1, "1")]
        assert run.get_blob("library/a") == b"version 1"
        assert run.blob_keys("library/") == ["library/a", "library/b"]
        assert run._database.rows("SELECT count(*) FROM blobs") == [(3,)]  # two versions of a, one of b
        with pytest.raises(RecordError, match="no blob 'c'"):
            run.get_blob("c")


def test_adapters_are_checked_and_follow_the_folder(runs_dir):
    with Run.create(runs_dir, config={}, name="r") as run:
        saved = [save_adapter(run, n, bytes([n]) * 10) for n in range(2)]
        for n, adapter in enumerate(saved):
            with run.iteration(n) as it:
                it.adapter(adapter)
        adapter = saved[-1]
        assert run.latest_adapter("sales") == adapter
        assert run.latest_adapter("dev") is None
        assert [a.name for a in run.adapters()] == ["sales@0000", "sales@0001"]
        with pytest.raises(ContractError, match="digest"), run.iteration(2) as it:
            it.adapter(dataclasses.replace(adapter, version=2, digest="0" * 64))
        with pytest.raises(ContractError, match="Save the adapter"), run.iteration(2) as it:
            it.adapter(Adapter(role="sales", version=2, path=run.path / "nowhere"))
    (runs_dir / "r").rename(runs_dir / "moved")
    with Run.open(runs_dir / "moved", readonly=True) as run:
        latest = run.latest_adapter("sales")
        assert latest is not None
        assert latest.path == runs_dir / "moved" / "adapters" / "sales" / "sales@0001"
        assert latest.path.is_dir()


def test_opening_removes_only_what_no_commit_names(runs_dir):
    with Run.create(runs_dir, config={}, name="r") as run:
        with run.iteration(0) as it:
            it.adapter(save_adapter(run, 0, b"0"))
            run.write_checkpoint(0, {"a": b"0"})
        save_adapter(run, 1, b"1")
        run.write_checkpoint(1, {"a": b"1"})
        (run.path / "adapters" / "sales" / ".tmp-sales@0002-1").mkdir()
        (run.path / "adapters" / "sales" / "notes").mkdir()
        (run.path / "checkpoints" / ".tmp-000002-1").mkdir()
    with Run.open(runs_dir / "r", readonly=True) as run:  # a reader changes nothing
        assert (run.path / "adapters" / "sales" / "sales@0001").is_dir()
    with Run.open(runs_dir / "r") as run:
        assert sorted(p.name for p in (run.path / "adapters" / "sales").iterdir()) == ["notes", "sales@0000"]
        assert [p.name for p in (run.path / "checkpoints").iterdir()] == ["000000"]


def test_adapters_behind_a_link_to_another_disk_stay(runs_dir, tmp_path):
    with Run.create(runs_dir, config={}, name="r") as run:
        (tmp_path / "disk").mkdir()
        (run.path / "adapters").symlink_to(tmp_path / "disk")
        with run.iteration(0) as it:
            it.adapter(save_adapter(run, 0, b"0"))
        save_adapter(run, 1, b"1")
    (runs_dir / "r").rename(runs_dir / "moved")
    with Run.open(runs_dir / "moved") as run:
        (kept,) = run.adapters()
        assert kept.path == runs_dir / "moved" / "adapters" / "sales" / "sales@0000"
        assert [path.name for path in (tmp_path / "disk" / "sales").iterdir()] == ["sales@0000"]


def test_rewinding_forgets_iterations_entirely(runs_dir):
    with Run.create(runs_dir, config=CONFIG, name="r") as run:
        record_program.advance(run)
        once, rows = run.digest(), run._database.rows("SELECT count(*) FROM contexts")
        with run.iteration(1) as it:
            turns = tuple(dataclasses.replace(a_turn(t), prompt_ids=(9,) * (5 + t)) for t in range(3))
            trajectory = Trajectory(task_id="t", actor="a", turns=turns, rewards=(0.0,) * 3, stop=StopReason.DONE)
            it.groups([Group(key="new", actor="a", trajectories=(trajectory,))])
            it.put_blob("snapshot", b"other")
            it.adapter(save_adapter(run, 1, b"1"))
            run.write_checkpoint(1, {"state": b"1"})
        assert run.digest() != once
        run.rewind(0)
        assert run.digest() == once
        assert run.latest_checkpoint() == 0
        assert [a.version for a in run.adapters()] == [0]
        assert not (run.path / "adapters" / "sales" / "sales@0001").exists()
        assert run._database.rows("SELECT count(*) FROM contexts") == rows
        assert run._database.rows("SELECT count(*) FROM blobs") == [(1,)]
        record_program.advance(run)
        run.rewind(None)
        assert run.last_iteration() is None
        assert run.latest_checkpoint() is None


def test_digest_ignores_clocks_place_and_live_but_nothing_else(runs_dir):
    def record(
        name: str, *, clock: float = 0.0, config=CONFIG, reward=1.0, loss=0.5, key="k", event="e", blob=b"b", advantage=0.0
    ):
        with Run.create(runs_dir, config=config, name=name, clock=lambda: clock) as run:
            run.live("progress", {"at": clock})
            with run.iteration(0) as it:
                group = a_group(key, size=1, turns=1)
                group = dataclasses.replace(group, trajectories=(dataclasses.replace(group.trajectories[0], rewards=(reward,)),))
                it.groups([group], [[advantage]])
                it.metrics("train", {"loss": loss, "update_s": clock})
                it.episode("e", policies={}, metrics={"value": loss, "wall": clock})
                it.event(event, {})
                it.put_blob("b", blob)
            return run.digest(), run.digest(clocks=True)

    same, with_clocks = record("a")
    assert record("b", clock=5.0)[0] == same
    assert record("c", clock=5.0)[1] != with_clocks
    changes = [
        {"config": {"seed": 8}}, {"reward": 1.0000000000000002}, {"reward": float("nan")}, {"loss": 0.25}, {"loss": float("nan")},
        {"key": "l"}, {"event": "f"}, {"blob": b"c"}, {"advantage": -0.0},
    ]  # fmt: skip
    digests = [record(f"d{i}", **change)[0] for i, change in enumerate(changes)]
    assert len({same, *digests}) == len(changes) + 1


def test_digest_does_not_depend_on_row_ids(runs_dir):
    with Run.create(runs_dir, config={}, name="a") as run:
        with run.iteration(0) as it:
            it.groups([a_group("x")])
        expected = run.digest()
    with Run.create(runs_dir, config={}, name="b") as run:
        with run.iteration(0) as it:
            it.groups([a_group("other", size=5, turns=7), a_group("more")])
        run.rewind(None)
        with run.iteration(0) as it:
            it.groups([a_group("x")])
        assert run.digest() == expected


def test_live_messages_are_numbered_and_pruned(runs_dir):
    with Run.create(runs_dir, config={}, name="r") as run:
        with run.iteration(0):
            first = run.live("progress", {"done": 0})  # outside the open iteration's transaction, seen at once
            with Run.open(run.path, readonly=True) as viewer:
                assert [message.payload for message in viewer.read_live()] == [{"done": 0}]
        assert run.live("progress", {"done": 1}) == first + 1
        assert [message.seq for message in run.read_live(after=first)] == [first + 1]
        with run._database.transaction("test") as connection:
            connection.executemany("INSERT INTO live (at, kind, payload) VALUES ('', 'x', '{}')", [()] * LIVE_KEPT)
        with run.iteration(1):
            pass
        kept = run.read_live(limit=10 * LIVE_KEPT)
        assert len(kept) == LIVE_KEPT
        assert kept[-1].seq == first + 1 + LIVE_KEPT


@pytest.mark.parametrize("name", ["", "..", ".", "../x", "a/b", "/etc", ".hidden", "a\0b", "ü", "x" * 101])
def test_names_cannot_leave_the_folder(runs_dir, name):
    with pytest.raises(RecordError, match="name must be"):
        Run.create(runs_dir, config={}, name=name)
    assert list(runs_dir.iterdir()) == []
    with Run.create(runs_dir, config={}, name="r") as run, pytest.raises(RecordError, match="a role must be"):
        run.adapter_path(name, 1)


def test_default_names_come_from_the_clock(runs_dir):
    noon = 1_800_000_000.0
    created = []
    for _ in range(2):
        with Run.create(runs_dir, config={"a": Path("x")}, clock=lambda: noon) as run:
            created.append((run.name, run.created_at, run.config))
    assert created == [(f"20270115-080000-0{i}", "2027-01-15T08:00:00.000+00:00", {"a": "x"}) for i in (1, 2)]


def test_a_taken_name_is_refused(runs_dir):
    Run.create(runs_dir, config={}, name="r").close()
    with pytest.raises(RecordError, match="a run named 'r' exists"):
        Run.create(runs_dir, config={}, name="r")


def holder(command: str, path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), command, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def finish(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    process.wait(10)


def test_a_second_writer_is_refused_by_pid(runs_dir):
    Run.create(runs_dir, config={}, name="r").close()
    process = holder("hold", runs_dir / "r")
    try:
        with pytest.raises(RecordError, match=f"being written by process {process.pid} .*Wait until it ends or stop it"):
            Run.open(runs_dir / "r")
        with Run.open(runs_dir / "r", readonly=True) as run:
            assert run.last_iteration() is None
    finally:
        finish(process)
    Run.open(runs_dir / "r").close()


def test_a_second_writer_in_the_same_process_is_refused(runs_dir):
    with (
        Run.create(runs_dir, config={}, name="r") as run,
        pytest.raises(RecordError, match=f"being written by process {os.getpid()} "),
    ):
        Run.open(run.path)


def test_the_lock_of_a_dead_writer_is_taken_over(runs_dir):
    Run.create(runs_dir, config={}, name="r").close()
    process = holder("heir", runs_dir / "r")  # a forked child still holds the lock file of the killed writer
    try:
        process.wait(10)
        with Run.open(runs_dir / "r") as run, pytest.raises(RecordError, match=f"process {os.getpid()} "):
            Run.open(run.path)
    finally:
        finish(process)


def test_a_reader_follows_a_working_writer_in_another_process(runs_dir):
    process = subprocess.Popen([sys.executable, str(PROGRAM), "write", str(runs_dir), "40"])
    seen = set()
    try:
        while process.poll() is None and not (runs_dir / "r" / "run.sqlite").exists():
            time.sleep(0.002)
        with Run.open(runs_dir / "r", readonly=True) as run:
            while process.poll() is None:
                with run.frozen():
                    last = run.last_iteration()
                    groups = len(list(run.read_groups()))
                assert groups == (0 if last is None else 2 * (last + 1))  # never half an iteration
                seen.add(last)
                assert all(message.kind == "progress" for message in run.read_live())
            assert run.last_iteration() == 40
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert len(seen) >= 3


def test_a_reader_leaves_the_log_of_a_killed_writer_to_the_next_writer(runs_dir):
    process = holder("hold", _with_one_iteration(runs_dir))
    process.kill()
    finish(process)
    copy = runs_dir / "copy"
    with Run.open(runs_dir / "r") as run:
        with run.iteration(1) as it:
            it.groups([a_group("1")])
        copy.mkdir()
        for name in ("run.sqlite", "run.sqlite-wal"):  # what a killed writer leaves: commits that are in the log only
            (copy / name).write_bytes((run.path / name).read_bytes())
    size = (copy / "run.sqlite-wal").stat().st_size
    assert size > 0
    with Run.open(copy, readonly=True) as run:
        assert run.last_iteration() == 1
        assert len(list(run.read_groups(1))) == 1
    assert (copy / "run.sqlite-wal").stat().st_size == size
    with Run.open(copy) as run:
        assert run.last_iteration() == 1


def _with_one_iteration(root: Path) -> Path:
    with Run.create(root, config={}, name="r") as run, run.iteration(0) as it:
        it.groups([a_group("0")])
    return root / "r"


def test_a_reader_may_not_write(runs_dir):
    path = _with_one_iteration(runs_dir)
    with Run.open(path, readonly=True) as run:
        assert run.readonly
        for attempt in (
            lambda: run.iteration(1).__enter__(),
            lambda: run.live("x", {}),
            lambda: run.write_checkpoint(1, {}),
            lambda: run.rewind(None),
            lambda: run.adapter_path("sales", 1),
        ):
            with pytest.raises(RecordError, match="readonly=True"):
                attempt()


def test_recording_needs_neither_torch_nor_pyarrow():
    code = "import sys, onthejob.record; print([m for m in ('torch', 'pyarrow', 'safetensors') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
