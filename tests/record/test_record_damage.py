"""A record whose file was changed says which part is damaged, shows nothing else than what was written, and reads the rest."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from record_program import CONFIG, advance

from onthejob.cli import main
from onthejob.errors import ContractError, DamagedRecord, RecordError
from onthejob.record import Run, check_run, list_runs, show
from onthejob.record.database import APPLICATION_ID

ITERATIONS = 3


@pytest.fixture
def whole(memory_dir: Path) -> Path:
    """A closed run with every kind of content."""
    with Run.create(memory_dir, config=CONFIG, name="r") as run:
        for _ in range(ITERATIONS):
            advance(run)
    return memory_dir / "r"


@pytest.fixture
def version_1(memory_dir: Path) -> Path:
    """A closed run of schema version 1, which has no checksums."""
    path = memory_dir / "v1"
    path.mkdir()
    with closing(sqlite3.connect(path / "run.sqlite")) as connection:
        connection.executescript((Path(__file__).parent / "data" / "v1.sql").read_text(encoding="utf-8"))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
    return path


def shown(path: Path) -> str:
    """All that can be read of a run; NaN has no equal but its text."""
    with Run.open(path, readonly=True) as run:
        details = show(run)
        keys = run.read_group_keys()
        return repr((
            run.created_at, run.config, run.iterations(), details.summary.turns, details.metrics, details.events,
            list(run.read_group_heads()), list(run.read_groups()), run.read_advantages(), keys,
            [list(run.read_groups(key=key)) for _, key in keys], list(run.read_episodes()),
            list(run.read_episodes(turns=False)), run.read_metrics(), run.read_events(), run.read_live(), run.adapters(),
            [(key, run.get_blob(key)) for key in run.blob_keys()],
        ))  # fmt: skip


def flips(content: bytes, count: int) -> Iterator[bytes]:
    rng = random.Random(7)
    for _ in range(count):
        place, changed = rng.randrange(8 * len(content)), bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        yield bytes(changed)


def truncations(content: bytes, count: int) -> Iterator[bytes]:
    rng = random.Random(7)
    for _ in range(count):
        yield content[: rng.randrange(len(content))]


def outcomes(path: Path, variants: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    """What is shown of each variant, and the error where it is refused; one that is not named ends the test."""
    for content in variants:
        (path / "run.sqlite").write_bytes(content)
        for leftover in ("run.sqlite-wal", "run.sqlite-shm"):
            (path / leftover).unlink(missing_ok=True)
        try:
            yield shown(path), ""
        except RecordError as error:
            yield "", str(error)


@pytest.mark.parametrize(("damage", "reduced", "full"), [(flips, 60, 1000), (truncations, 20, 200)])
def test_damage_is_named_or_harmless_and_changes_nothing_that_is_shown(whole, counts, damage, reduced, full):
    before, content = shown(whole), (whole / "run.sqlite").read_bytes()
    said = list(outcomes(whole, damage(content, counts(reduced, full))))
    assert {text for text, _ in said} <= {before, ""}
    assert any(not text for text, _ in said)
    assert all("run.sqlite" in error for text, error in said if not text)


@pytest.mark.parametrize("damage", [flips, truncations])
def test_damage_of_a_record_without_checksums_ends_in_no_other_error(version_1, counts, damage):
    content = (version_1 / "run.sqlite").read_bytes()
    assert list(outcomes(version_1, damage(content, counts(20, 500))))


def execute(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path / "run.sqlite", isolation_level=None)) as connection:
        connection.execute(sql)


CHANGES = {
    "reward": ("UPDATE trajectories SET rewards = (SELECT max(rewards) FROM trajectories) WHERE id = 1", "group 0/0"),
    "readable copy": ("UPDATE trajectories SET ret = 9 WHERE id = 1", "group 0/0"),
    "advantages": ("UPDATE groups SET advantages = NULL WHERE id = 1", "group 0/0"),
    "facts": ("UPDATE groups SET facts = '{}' WHERE key = '1/1'", "group 1/1"),
    "reply": ("UPDATE turns SET text = 'better' WHERE id = 1", "group 0/0"),
    "validity": ("UPDATE turns SET valid = 0 WHERE id = 1", "group 0/0"),
    "prompt of a turn": ("UPDATE turns SET context_id = 2 WHERE id = 1", "group 0/0"),
    "prompt": ("UPDATE contexts SET tail = (SELECT tail FROM contexts WHERE id = 2) WHERE id = 1", "group 0/0"),
    "prompt in a circle": ("UPDATE contexts SET parent = id WHERE id = 1", "group 0/0"),
    "lost prompt": ("DELETE FROM contexts WHERE id = 1", "group 0/0"),
    "lost turn": ("DELETE FROM turns WHERE id = 1", "group 0/0"),
    "lost trajectory": ("DELETE FROM trajectories WHERE id = 2", "group 0/0"),
    "lost group": ("DELETE FROM groups WHERE key = '1/0'", "group 1/0"),
    "group of another iteration": ("UPDATE groups SET iteration = 2, position = 7 WHERE key = '1/0'", "group 1/0"),
    "metric": ("UPDATE metrics SET value = 1 WHERE name = 'loss' AND iteration = 1", "metrics"),
    "lost metric": ("DELETE FROM metrics WHERE name = 'kl' AND iteration = 1", "metrics"),
    "metric of an episode": ("UPDATE episode_metrics SET value = 1", "episode dev/1"),
    "timeline": ("UPDATE episodes SET timeline = X'62725b5d'", "episode dev/1"),
    "lost episode": ("DELETE FROM episodes WHERE iteration = 1", "episode dev/1"),
    "event": ("UPDATE events SET payload = '{}' WHERE iteration = 1", "events"),
    "adapter": ("UPDATE adapters SET parent = 'sales@0007' WHERE version = 1", "adapters"),
    "blob": ("UPDATE blobs SET data = X'627200'", "blob 'snapshot'"),
    "blob key": ("UPDATE blob_keys SET key = 'other' WHERE iteration = 1", "blobs"),
    "live message": ("UPDATE live SET payload = '{}' WHERE seq = 2", "live message 2"),
    "lost live message": ("DELETE FROM live WHERE seq = 3", "live messages"),
    "lost iteration": ("DELETE FROM iterations WHERE n = 2", "list of iterations"),
    "another iteration": ("UPDATE iterations SET n = 9 WHERE n = 2", "list of iterations"),
    "checksum": ("UPDATE checksums SET rest = replace(rest, '\"turns\":', '\"turns\":1') WHERE iteration = 1", "checksums"),
    "lost checksums": ("DELETE FROM checksums WHERE iteration = 1", "list of iterations"),
    "configuration": ("UPDATE meta SET value = '{}' WHERE key = 'config'", "`meta`"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_the_damaged_part_is_named(whole, change, capsys):
    sql, part = CHANGES[change]
    assert check_run(whole).damage == ()
    execute(whole, sql)
    with pytest.raises(DamagedRecord, match=r"run\.sqlite.*Restore") as raised:
        shown(whole)
    assert "is damaged" in str(raised.value)
    verdict = check_run(whole)
    assert any(part in f"{damage.part} of iteration {damage.iteration}" or part in damage.problem for damage in verdict.damage)
    assert main(["runs", "check", str(whole)]) == 1
    assert part.partition(" of ")[0] in capsys.readouterr().out


def test_the_rest_is_read(whole, capsys):
    with Run.open(whole, readonly=True) as run:
        before, metrics = list(run.read_groups()), run.read_metrics()
    for change in ("reply", "metric", "lost group"):
        execute(whole, CHANGES[change][0])
    with Run.open(whole, readonly=True) as run:
        assert list(run.read_groups(iteration=2)) == before[4:]
        assert repr(run.read_metrics(iteration=2)) == repr([metric for metric in metrics if metric.iteration == 2])
        with pytest.raises(DamagedRecord, match="group 0/0 of iteration 0 is damaged"):
            list(run.read_groups(key="0/0"))
        assert list(run.read_groups(key="0/1")) == [before[1]]
    with Run.open(whole, readonly=True, skip_damaged=True) as run:
        assert list(run.read_groups()) == [before[1], before[3], *before[4:]]
        assert {metric.iteration for metric in run.read_metrics()} == {0, 2}
        parts = {(damage.iteration, damage.part) for damage in run.damage}
        assert parts == {(0, "group 0/0"), (1, "group 1/0"), (1, "metrics")}
    assert main(["runs", "show", str(whole)]) == 1
    assert "metrics" in capsys.readouterr().out
    with pytest.raises(ContractError, match="readonly=True"):
        Run.open(whole, skip_damaged=True)


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
@pytest.mark.parametrize("change", ["reply", "metric", "lost group", "event", "timeline", "adapter", "lost checksums", "facts"])
def test_the_rest_is_exported_and_what_is_missing_is_named(whole, change, format, tmp_path, capsys):
    def exported(folder: str) -> tuple[int, dict[str, list[str]]]:
        code = main(["runs", "export", str(whole), "--out", str(tmp_path / folder), "--format", format])
        return code, {file.stem: rows_of(file) for file in (tmp_path / folder).iterdir()}

    code, before = exported("before")
    assert code == 0
    assert "damaged" not in capsys.readouterr().out
    sql, part = CHANGES[change]
    execute(whole, sql)
    code, after = exported("after")
    assert code == 1
    assert part.partition(" of ")[0] in capsys.readouterr().out
    assert after.keys() == before.keys()
    assert all(set(rows) <= set(before[table]) for table, rows in after.items())
    assert after != before
    assert any(after.values())


def rows_of(file: Path) -> list[str]:
    if file.suffix == ".jsonl":
        return file.read_text(encoding="utf-8").splitlines()
    return [repr(row) for row in pytest.importorskip("pyarrow.parquet").read_table(file).to_pylist()]


@pytest.mark.parametrize(
    ("kind", "table", "column"),
    [
        ("version_1", "iterations", "n"),
        ("whole", "iterations", "n"),
        ("whole", "checksums", "iteration"),
        ("whole", "groups", "id"),
        ("whole", "trajectories", "id"),
        ("whole", "contexts", "id"),
    ],
)
def test_a_damaged_schema_whose_numbers_are_none_is_named(kind, table, column, request):
    """One bit in the text of the schema turns `PRIMARY KEY` into the name of a type, and the column is NULL from then on."""
    path = request.getfixturevalue(kind)
    content = (path / "run.sqlite").read_bytes()
    words = f"CREATE TABLE {table} (\n    {column} INTEGER PRIMARY".encode()
    assert content.count(words) == 1
    (path / "run.sqlite").write_bytes(content.replace(words, words[:-1] + b"X"))
    with pytest.raises(RecordError, match=r"run\.sqlite.*(damaged|Restore)"):
        shown(path)
    assert check_run(path).damage
    assert [run.error is None or "run.sqlite" in run.error for run in list_runs(path.parent)] == [True]


@pytest.mark.parametrize(
    ("place", "part"),
    [
        ("adapters/sales/sales@0001/adapter_model.safetensors", "adapter sales@0001"),
        ("checkpoints/000002/state", "checkpoint"),
    ],
)
def test_damaged_files_beside_the_record_are_named(whole, place, part):
    file = whole / place
    file.write_bytes(file.read_bytes()[::-1] + b"x")
    assert [damage.part for damage in check_run(whole).damage] == [part]
    file.unlink()
    assert [damage.part for damage in check_run(whole).damage] == [part]


def test_a_record_of_an_earlier_version_is_unverified_until_it_is_continued(version_1, capsys):
    assert check_run(version_1).unverified == (0, 1)
    assert [(run.unverified, run.error) for run in list_runs(version_1.parent)] == [(2, None)]
    main(["runs", "ls", str(version_1.parent)])
    assert "unverified" in capsys.readouterr().out
    before = shown(version_1)
    with Run.open(version_1) as run, run.iteration(2) as it:
        it.metrics("train/sales", {"loss": 0.5})
    with Run.open(version_1, readonly=True) as run:
        assert run.unverified() == [0, 1]
        assert run.iterations() == [0, 1, 2]
        assert repr(list(run.read_groups())) in before
        assert run.counts()["turns"] == show(run).summary.turns > 0
    execute(version_1, "UPDATE metrics SET value = 1 WHERE iteration = 2")
    assert [(damage.iteration, damage.part) for damage in check_run(version_1).damage if damage.iteration] == [(2, "metrics")]


def test_a_rewound_iteration_gets_new_checksums(whole):
    with Run.open(whole) as run:
        run.rewind(1)
        with run.iteration(2) as it:
            it.metrics("train/sales", {"loss": -0.0, "kl": float("inf")})
    assert check_run(whole).damage == ()
    with Run.open(whole, readonly=True) as run:
        assert [metric.value for metric in run.read_metrics(iteration=2)] == [float("inf"), 0.0]


class _Text(str):
    """A text of another class, as numpy's and an enumeration's are."""

    def __repr__(self) -> str:
        return "other"


VALUES: dict[str, Callable[[Any], object]] = {
    "texts of other classes": lambda it: it.event(_Text("kind"), {"key": _Text("value")}),
    "names that sort by code point": lambda it: it.metrics("s", {"\U0001f600": 1.0, "\uffff": 2.0, "a": 3.0, "Z": 4.0}),
    "whole numbers": lambda it: it.metrics("s", {"int": 3, "bool": True, "large": 2**60}),
    "small and large numbers": lambda it: it.metrics("s", {"tiny": 5e-324, "huge": 1.7e308, "minus": -0.0}),
    "an episode without a turn": lambda it: it.episode("e", policies={}, metrics={"b": 1, "a": float("nan")}),
    "empty blobs": lambda it: (it.put_blob("a", b""), it.put_blob("b", b"")),
    "nothing": lambda it: None,
}


@pytest.mark.parametrize("value", VALUES)
def test_what_was_written_has_its_checksum(memory_dir, value):
    with Run.create(memory_dir, config={"text": "é\u2028"}, name="r") as run, run.iteration(0) as it:
        VALUES[value](it)
    assert check_run(memory_dir / "r").damage == ()


@pytest.mark.parametrize(
    ("table", "read"),
    [
        ("adapters", Run.adapters),
        ("blob_keys", Run.blob_keys),
        ("groups", lambda run: len(list(run.read_groups()))),
        ("groups", Run.read_group_keys),
        ("episodes", lambda run: len(list(run.read_episodes()))),
        ("metrics", Run.read_metrics),
        ("events", Run.read_events),
        ("live", Run.read_live),
        ("iterations", Run.counts),
        ("iterations", show),
    ],
)
def test_what_is_committed_in_the_middle_of_a_reading_is_no_damage(whole, table, read, monkeypatch):
    with Run.open(whole) as writer, Run.open(whole, readonly=True) as reader:
        rows, committed = reader._database.rows, list[int]()

        def then_commit(sql: str, parameters: Any = ()) -> Any:
            found = rows(sql, parameters)
            if f"FROM {table}" in sql and len(committed) < 3:
                committed.append(len(committed))
                advance(writer)
            return found

        monkeypatch.setattr(reader._database, "rows", then_commit)
        read(reader)
        assert committed
        read(reader)
    assert check_run(whole).damage == ()


def test_a_reader_that_follows_a_run_sees_no_damage(whole):
    with Run.open(whole) as writer, Run.open(whole, readonly=True) as reader:
        for n in range(ITERATIONS, ITERATIONS + 3):
            advance(writer)
            assert reader.last_iteration() == n
            assert len(list(reader.read_groups(iteration=n))) == 2
            assert reader.read_live()[-1].seq == n + 1
