"""Records written by earlier versions stay readable, and the documented queries work with nothing but sqlite3."""

from __future__ import annotations

import math
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from record_program import CONFIG, a_group, advance

from onthejob.record import Run
from onthejob.record.database import APPLICATION_ID, SCHEMA_VERSION

DATA = Path(__file__).parent / "data"
DIGEST_OF_V1 = "6dee8497a85f3015f10003b1908ad2a4fb1d140c15b47f5a71025fc1c8e7e1b0"


@pytest.fixture
def version_1(runs_dir: Path) -> Path:
    """The run that `data/v1.sql` holds, written by schema version 1. Never regenerate it: that is the point."""
    path = runs_dir / "v1"
    path.mkdir()
    with closing(sqlite3.connect(path / "run.sqlite")) as connection:
        connection.executescript((DATA / "v1.sql").read_text(encoding="utf-8"))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
    return path


def test_a_record_of_schema_1_reads_the_same_for_ever(version_1):
    with Run.open(version_1, readonly=True) as run:
        assert run.digest() == DIGEST_OF_V1
        assert run.config == CONFIG
        groups = list(run.read_groups())
        assert groups[:2] == [a_group("0/0"), a_group("0/1")]
        chain = groups[2].trajectories[0]
        assert [len(turn.prompt_ids) for turn in chain.turns] == [300, 301, 302]
        assert [turn.completion.text for turn in chain.turns] == ["text", "lone \ud800", "lone \ud800"]
        assert math.copysign(1, chain.rewards[0]) == -1
        assert chain.rewards[1:] == (math.inf, 1 / 3)
        assert math.isnan(groups[2].facts["odd"])
        assert [adapter.name for adapter in run.adapters()] == ["sales@0000"]
        assert len(run.get_blob("snapshot")) == 640


def test_a_record_of_schema_1_can_be_continued(version_1):
    with Run.open(version_1) as run:
        with run.iteration(2) as it:
            it.groups([a_group("2/0")])
        assert run.digest(through=1) == DIGEST_OF_V1


def test_a_new_record_has_the_documented_schema_version(runs_dir):
    page = (Path(__file__).parents[2] / "docs" / "record.md").read_text(encoding="utf-8")
    assert f"schema version {SCHEMA_VERSION}" in page
    with Run.create(runs_dir, config={}, name="r") as run:
        tables = {name for (name,) in run._database.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    schema = page.partition("\n## Schema")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^\| `(\w+)` \|", schema, flags=re.MULTILINE))
    assert documented == tables - {"sqlite_sequence"}


def test_the_documented_queries_answer(runs_dir):
    page = (Path(__file__).parents[2] / "docs" / "record.md").read_text(encoding="utf-8")
    queries = [
        query for block in re.findall(r"```sql\n(.*?)```", page, flags=re.DOTALL) for query in block.split(";") if query.strip()
    ]
    assert len(queries) >= 4
    with Run.create(runs_dir, config=CONFIG, name="r") as run:
        advance(run)
        advance(run)
        with closing(sqlite3.connect(f"file:{run.path}/run.sqlite?mode=ro", uri=True)) as connection:
            for query in queries:
                assert connection.execute(query).fetchall(), query


def test_the_documented_program_runs(runs_dir, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "record.md").read_text(encoding="utf-8")
    monkeypatch.chdir(runs_dir)
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(compile(block, "docs/record.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["0 0.25", "sales 0.7310585786300049"]
