"""Files: one line per iteration, and one row per episode and turn; complete, never doubled, also after a kill."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from onthejob.record import Run, check_run
from onthejob.track.rows import cell
from onthejob.track.to_csv import CsvSheet


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_lines_hold_metrics_and_transcripts_and_are_continued(recorder, sync):
    recorder.add(2)
    sync("jsonl")
    recorder.add(1)
    sync("jsonl", "jsonl:mine.jsonl")
    path = recorder.path / "track" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [0, 1, 2]
    assert lines[2]["metrics"] == {"train/guesser/reward": 0.5, "train/guesser/loss": -0.25, "time/iteration_s": 0.5}
    assert lines[1]["metrics"]["train/guesser/loss"] is None, "NaN is not JSON"
    assert {row["reply"] for row in lines[0]["transcripts"]} <= set("123456789")
    assert Path("mine.jsonl").read_text() == path.read_text()


@pytest.mark.parametrize("cut", [1, 40, 400])
def test_a_line_that_a_kill_has_cut_is_written_again(recorder, sync, cut: int):
    recorder.add(3)
    sync("jsonl:mine.jsonl")
    whole = Path("mine.jsonl").read_bytes()
    Path("mine.jsonl").write_bytes(whole[:-cut])
    sync("jsonl:mine.jsonl")
    assert Path("mine.jsonl").read_bytes() == whole


@pytest.mark.parametrize("cut", [0, 1, 3, 30, 200, 100_000])
def test_csv_rows_are_those_of_the_record_after_any_cut(recorder, sync, rows_of, cut: int):
    recorder.add(2)
    sync("rows.csv")
    for name in ("rows-episodes.csv", "rows-turns.csv"):
        data = Path(name).read_bytes()
        Path(name).write_bytes(data[: max(0, len(data) - cut)])
    recorder.add(2)
    sync("rows.csv")
    episodes, turns = table(Path("rows-episodes.csv")), table(Path("rows-turns.csv"))
    assert (len(episodes), len(turns)) == rows_of(recorder.path)
    assert len({row["key"] for row in turns}) == len(turns)
    assert [row["key"] for row in turns] == sorted(row["key"] for row in turns)
    with Run.open(recorder.path, readonly=True) as run:
        for row, episode in zip(episodes, run.read_episodes(), strict=True):
            assert float(row["reward"]) == pytest.approx(sum(turn["rewards"].get("guesser", 0.0) for turn in episode.timeline))
            assert row["metrics.found"] == ("" if "found" not in episode.metrics else str(episode.metrics["found"]))
            actions = [
                turn["action"] for turn in turns if (turn["iteration"], turn["episode"]) == (row["iteration"], row["episode"])
            ]
            assert actions == [turn["text"] for turn in episode.timeline]
    before = Path("rows-turns.csv").read_bytes()
    sync("rows.csv")
    assert Path("rows-turns.csv").read_bytes() == before


def test_texts_of_a_model_are_no_formulas_and_lose_no_row(tmp_path: Path):
    first = ("run", "key", "action")
    texts = ["=1+1", "@x", "a\r\nb", 'say "no", please', "ünï⏎\u2028x", cell("\ud800\x00\x1b[2J")]
    sheet = CsvSheet(tmp_path / "t.csv", first)
    sheet.append([{"run": "a", "key": f"id/{number}", "action": text} for number, text in enumerate(texts)])
    again = CsvSheet(tmp_path / "t.csv", first)
    assert again.newest("id") == f"id/{len(texts) - 1}"
    assert again.newest("other") == ""
    again.append([{"run": "a", "key": "id/9", "action": "x", "part.speed": 0.5}])
    found = table(tmp_path / "t.csv")
    assert [row["action"] for row in found] == [
        "'=1+1", "'@x", "a\nb", 'say "no", please', "ünï⏎\u2028x", "\ufffd\ufffd\ufffd[2J", "x",
    ]  # fmt: skip
    assert [row["part.speed"] for row in found] == [""] * len(texts) + ["0.5"]
    assert list(tmp_path.iterdir()) == [tmp_path / "t.csv"]


def test_a_workbook_has_two_sheets_that_grow(recorder, sync, rows_of):
    openpyxl = pytest.importorskip("openpyxl")
    recorder.add(2)
    sync("rows.xlsx")
    recorder.add(1)
    sync("rows.xlsx")
    sync("rows.xlsx")
    book = openpyxl.load_workbook("rows.xlsx")
    episodes, turns = (list(book[name].iter_rows(values_only=True)) for name in ("episodes", "turns"))
    assert (len(episodes) - 1, len(turns) - 1) == rows_of(recorder.path)
    column = turns[0].index("action")
    with Run.open(recorder.path, readonly=True) as run:
        texts = [turn["text"] for episode in run.read_episodes() for turn in episode.timeline]
    assert [row[column] for row in turns[1:]] == texts
    assert {row[turns[0].index("valid")] for row in turns[1:]} <= {True, False}


def test_a_reply_in_a_workbook_is_no_formula(tmp_path: Path):
    openpyxl = pytest.importorskip("openpyxl")
    from onthejob.track.to_xlsx import XlsxSheet

    book = openpyxl.Workbook()
    sheet = XlsxSheet(book, "turns", ("key", "action"), tmp_path / "b.xlsx")
    sheet.append([{"key": "id/0", "action": "=1+1"}, {"key": "id/1", "action": cell("a\x00b")}])
    book.save(tmp_path / "b.xlsx")
    kept = openpyxl.load_workbook(tmp_path / "b.xlsx")["turns"]
    assert (kept["B2"].value, kept["B2"].data_type) == ("=1+1", "s")
    assert kept["B3"].value == "a\ufffdb"


def test_two_runs_share_a_file(recorder, sync, rows_of):
    recorder.add(2)
    recorder.close()
    shutil.copytree(recorder.path, recorder.path.with_name("b"))
    for name in ("a", "b", "a"):
        sync("rows.csv", "jsonl:all.jsonl", run=name)
    assert len(table(Path("rows-episodes.csv"))) == 2 * rows_of(recorder.path)[0]
    assert len(Path("all.jsonl").read_text().splitlines()) == 4


def test_the_record_is_left_as_it_was(recorder, sync):
    recorder.add(2)
    recorder.close()
    with Run.open(recorder.path, readonly=True) as run:
        before = run.digest()
    sync("jsonl", "rows.csv")
    with Run.open(recorder.path, readonly=True) as run:
        assert run.digest() == before
    assert not check_run(recorder.path).damage


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("nothing",), "there is no tracker 'nothing': known are trackio"),
        (("jsonl:",), "says nothing after the colon"),
        (("jsonl:no/such/m.jsonl",), "no/such. Make it, or name another one"),
        (("sheets:abc",), "Set GOOGLE_APPLICATION_CREDENTIALS"),
        (("nowhere:Tracker",), "there is no module 'nowhere'"),
        (("mine.py:Mine",), "there is no file"),
        (("jsonl", "jsonl"), "names jsonl twice"),
        (("json:loads",), "a tracker is a class"),
        (("collections:OrderedDict",), "lacks adapter, episodes, finish"),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(recorder, sync, names, said: str):
    recorder.add(1)
    assert said in sync(*names, code=2)
    assert not (recorder.path / "track").exists()


def test_a_foreign_file_is_not_written_to(recorder, sync):
    recorder.add(1)
    Path("rows-turns.csv").write_bytes(b"name,age\r\nx,1\r\n")
    assert "does not begin with the columns" in sync("rows.csv", code=1)
    assert Path("rows-turns.csv").read_bytes() == b"name,age\r\nx,1\r\n"
