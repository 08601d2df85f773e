"""Exports hold what was recorded; listings say what there is."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from record_program import CONFIG, a_group, advance

from onthejob.errors import ConfigError
from onthejob.record import Run, export, list_runs, show

TABLES = ["groups", "turns", "metrics", "episodes", "adapters", "events"]


@pytest.fixture
def run(runs_dir):
    with Run.create(runs_dir, config=CONFIG, name="r") as run:
        advance(run)
        advance(run)
        yield run


def rows(files, table):
    if files[table].suffix == ".parquet":
        return pq.read_table(files[table]).to_pylist()
    return [json.loads(line) for line in files[table].read_text().splitlines()]


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_exports_hold_the_turns_as_sampled(run, tmp_path, format):
    files = export(run, tmp_path / "out", format)
    assert list(files) == TABLES
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(f"{table}.{format}" for table in TABLES)
    turns = rows(files, "turns")
    of_groups = [row for row in turns if row["group"] is not None]
    expected = [
        (n, group.key, index, position, turn, reward)
        for n in range(2)
        for group in run.read_groups(n)
        for index, trajectory in enumerate(group.trajectories)
        for position, (turn, reward) in enumerate(zip(trajectory.turns, trajectory.rewards, strict=True))
    ]
    assert len(of_groups) == len(expected) == 24
    advantages = {0: -1.0, 1: 0.0, 2: 1.0}
    for row, (n, key, index, position, turn, reward) in zip(of_groups, expected, strict=True):
        assert (row["iteration"], row["group"], row["trajectory"], row["turn"]) == (n, key, index, position)
        assert tuple(row["prompt_ids"]) == turn.prompt_ids
        assert tuple(row["completion_ids"]) == turn.completion.token_ids
        assert tuple(row["logprobs"]) == turn.completion.logprobs
        assert (row["text"], row["reward"], row["valid"]) == (turn.completion.text, reward, True)
        assert row["advantage"] == (advantages[index] if key.endswith("/0") else None)
    of_episodes = [row for row in turns if row["episode"] is not None]
    assert {row["episode"] for row in of_episodes} == {"dev/1"}
    assert len(of_episodes) == 12
    groups = rows(files, "groups")
    assert [row["key"] for row in groups] == ["0/0", "0/1", "1/0", "1/1"]
    assert groups[0]["returns"] == [trajectory.ret for trajectory in a_group("x").trajectories]
    assert [row["version"] for row in rows(files, "adapters")] == [0, 1]
    assert {row["kind"] for row in rows(files, "events")} == {"dead_group"}
    assert len(rows(files, "episodes")) == 2


def test_nan_is_null_in_jsonl_and_nan_in_parquet(run, tmp_path):
    for format, is_same in (("jsonl", lambda value: value is None), ("parquet", lambda value: value != value)):
        metrics = rows(export(run, tmp_path / format, format), "metrics")
        assert len(metrics) == 6
        assert all(is_same(row["value"]) for row in metrics if row["name"] == "kl")
        assert [row["is_clock"] for row in metrics if row["name"] == "update_s"] == [True, True]


def test_json_columns_are_text_in_parquet(run, tmp_path):
    group = rows(export(run, tmp_path, "parquet"), "groups")[0]
    assert json.loads(group["facts"]) == {"day": 3, "worlds": [1, 2]}


def test_an_empty_run_has_the_same_columns(run, runs_dir, tmp_path):
    with Run.create(runs_dir, config={}, name="empty") as empty:
        of_empty = export(empty, tmp_path / "empty", "parquet")
    of_full = export(run, tmp_path / "full", "parquet")
    for table in TABLES:
        assert pq.read_schema(of_empty[table]).equals(pq.read_schema(of_full[table]))


def test_exporting_again_replaces_whole_files(run, tmp_path):
    first = export(run, tmp_path)["groups"].read_text()
    advance(run)
    second = export(run, tmp_path)["groups"].read_text()
    assert second.startswith(first)
    assert len(second) > len(first)


def test_hostile_text_is_exported(run, runs_dir, tmp_path):
    import dataclasses

    group = a_group("k", size=1, turns=1)
    turn = group.trajectories[0].turns[0]
    text = "\ud800 \0 \u2028 </script>"
    turn = dataclasses.replace(turn, completion=dataclasses.replace(turn.completion, text=text))
    group = dataclasses.replace(group, trajectories=(dataclasses.replace(group.trajectories[0], turns=(turn,)),))
    with Run.create(runs_dir, config={}, name="hostile") as hostile:
        with hostile.iteration(0) as it:
            it.groups([group])
        assert rows(export(hostile, tmp_path / "j"), "turns")[0]["text"] == text
        assert rows(export(hostile, tmp_path / "p", "parquet"), "turns")[0]["text"] == text.replace("\ud800", "?")


def test_unknown_format(run, tmp_path):
    with pytest.raises(ConfigError, match="format must be jsonl or parquet, got 'csv'"):
        export(run, tmp_path, "csv")


def test_parquet_without_pyarrow_names_the_extra(run, tmp_path):
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from onthejob.record import Run, export\n"
        "from onthejob.errors import MissingDependency\n"
        "with Run.open(sys.argv[1], readonly=True) as run:\n"
        "    export(run, sys.argv[2])\n"
        "    try:\n        export(run, sys.argv[2], 'parquet')\n    except MissingDependency as error:\n        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run.path), str(tmp_path)], capture_output=True, text=True, check=True)
    assert "onthejob[export]" in done.stdout


def test_listing_and_showing(run, runs_dir):
    Run.create(runs_dir, config={}, name="a-new-one").close()
    (runs_dir / "broken").mkdir()
    (runs_dir / "broken" / "run.sqlite").write_bytes(b"x" * 5000)
    (runs_dir / "not-a-run").mkdir()
    new, broken, full = list_runs(runs_dir)
    assert (new.name, new.last_iteration, new.error) == ("a-new-one", None, None)
    assert broken.name == "broken"
    assert "not a database" in str(broken.error)
    assert (full.name, full.last_iteration, full.groups, full.episodes, full.adapters) == ("r", 1, 4, 2, 2)
    assert full.turns == 24 + 12
    assert full.size_bytes > 0
    details = show(run)
    assert details.summary == full
    assert details.config == CONFIG
    assert [adapter.name for adapter in details.adapters["sales"]] == ["sales@0000", "sales@0001"]
    assert details.checkpoints == (0, 1)
    assert details.events == {"dead_group": 2}
    newest = {metric.name: metric.value for metric in run.read_metrics("train/sales", iteration=1)}
    assert details.metrics["train/sales"]["loss"] == newest["loss"]
