"""The list of runs: status, outcome and notes, which are written with the token and never into the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from onthejob.evaluate.evaluations import keep_evaluation
from onthejob.record import Run

from .recording import kept_comparison

NOTES = {"tags": ["cautious"], "note": "two\nlines", "star": True}


def test_a_row_says_how_a_run_was_left_and_what_came_of_it(client: TestClient, runs: Path):
    (row,) = client.get("/api/runs").json()
    assert (row["status"], row["outcome"], row["notes"]) == ("stopped", None, {"tags": [], "note": "", "star": False})
    keep_evaluation(runs / "first", 0, "reward", {f"t{n}": {"reward": 1.0 * n} for n in range(8)})
    keep_evaluation(runs / "first", 1, "reward", {f"t{n}": {"reward": 1.1 * n - 6} for n in range(8)})
    (row,) = client.get("/api/runs").json()
    assert (row["outcome"]["word"], row["outcome"]["against"], row["outcome"]["comparison"]) == ("worse", "against start", "")
    kept_comparison(runs, "first")
    (row,) = client.get("/api/runs").json()
    assert (row["outcome"]["word"], row["outcome"]["text"]) == ("better", "+65,349 [48,944, 82,859]")
    assert (row["outcome"]["metric"], row["outcome"]["comparison"]) == ("company_value", "kept")


def test_a_run_is_compared_with_a_baseline_only_where_both_were_played(client: TestClient, runs: Path):
    assert client.get("/api/runs/first/differences").json() == {}
    kept_comparison(runs, "first", others={"start": "warm"})
    assert client.get("/api/runs/first/differences").json() == {
        "warm": {
            "word": "worse", "text": "-65,349 [-82,859, -48,944]", "metric": "company_value", "tasks": 20, "comparison": "kept",
        }
    }  # fmt: skip
    assert client.get("/api/runs/warm/differences").status_code == 404, "it is in the comparison and has no record here"


def test_the_overview_is_the_verdict_and_the_groups_that_show_most(client: TestClient, runs: Path):
    before = client.get("/api/runs/first/overview").json()
    assert (before["verdict"], before["comparison"]) == (None, "")
    assert [row["iteration"] for row in before["telling"]] == [1, 1]
    kept_comparison(runs, "first")
    found = client.get("/api/runs/first/overview").json()
    assert found["comparison"] == "kept"
    page = client.get("/api/comparisons/kept").json()
    assert found["verdict"] == page["verdict"], "one verdict"
    assert list(page["verdict"]["headings"])[:2] == ["result", "scale"]
    assert client.get("/api/runs/nothing/overview").status_code == 404


def test_notes_are_written_and_the_record_stays(client: TestClient, runs: Path):
    with Run.open(runs / "first", readonly=True) as run:
        before = run.digest(clocks=True)
    assert client.post("/api/runs/first/notes", json=NOTES).json() == NOTES
    assert client.get("/api/runs").json()[0]["notes"] == NOTES
    assert client.get("/api/runs/first").json()["info"]["notes"] == NOTES
    with Run.open(runs / "first", readonly=True) as run:
        assert run.digest(clocks=True) == before


def test_notes_need_the_token(client: TestClient, runs: Path):
    for headers in ({"x-onthejob-token": ""}, {"x-onthejob-token": "wrong"}):
        refused = client.post("/api/runs/first/notes", json=NOTES, headers=headers)
        assert refused.status_code == 401
        assert "token" in refused.json()["detail"]
    assert not (runs / "first" / "notes.json").exists()


@pytest.mark.parametrize(
    ("name", "asked", "status", "said"),
    [
        ("first", {**NOTES, "tags": ["x" * 41]}, 400, "1 to 40"),
        ("first", {**NOTES, "tags": ["a", "a"]}, 400, "each once"),
        ("first", {**NOTES, "note": "x" * 4001}, 400, "at most 4000"),
        ("first", {**NOTES, "star": "yes?"}, 422, "star"),
        ("first", {"tags": []}, 422, "note"),
        ("first", {**NOTES, "more": 1}, 422, "more"),
        ("nothing", NOTES, 404, "no run 'nothing'"),
        ("comparisons", NOTES, 404, "no run 'comparisons'"),
        ("..", NOTES, 404, ""),
        ("%2e%2e", NOTES, 404, ""),
    ],
)
def test_bad_notes_are_refused_with_the_reason(
    client: TestClient, runs: Path, name: str, asked: dict[str, Any], status: int, said: str
):
    (runs / "comparisons").mkdir(exist_ok=True)
    refused = client.post(f"/api/runs/{name}/notes", json=asked)
    assert refused.status_code in (status, 405 if name == ".." else status)
    assert said in refused.text
    assert not list(runs.rglob("notes.json"))
    assert not (runs.parent / "notes.json").exists()
