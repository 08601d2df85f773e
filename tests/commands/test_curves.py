"""`onthejob runs show --curve`: the table of a run by iteration."""

from __future__ import annotations

from pathlib import Path

from onthejob.cli import main
from onthejob.record import Run

TABLE = ((1, 7.375, 0.75, 0.0), (5, 6.53, 0.8125, 0.0001), (16, 4.40625, 1.0, 0.0006), (34, 4.625, 0.96875, 0.002))
"""Rows of the second article: step, mean turns, share of task_complete, KL."""


def article_run(root: Path) -> Path:
    """A claw run with the article's figures; iteration 3 played nothing to its end."""
    with Run.create(root, config={}, name="claw") as run:
        for n, turns, done, kl in (*TABLE[:1], (3, 12.0, 0.0, 0.0), *TABLE[1:]):
            with run.iteration(n) as it:
                shares = {"stop_done": done, "stop_max_turns": 1 - done}
                it.metrics("loop", {"mean_turns": turns} | {name: share for name, share in shares.items() if share})
                it.metrics("train/agent", {"kl": kl, "reward": 0.5, "loss": 0.1})
    return root / "claw"


def test_curves_are_one_row_per_iteration_and_one_column_per_name(call, tmp_path: Path):
    article_run(tmp_path / "runs")
    found = call("runs", "show", "claw", "--curve", "mean_turns", "stop_done", "kl")["curves"]
    assert [(one["scope"], one["name"]) for one in found] == [
        ("loop", "mean_turns"),
        ("loop", "stop_done"),
        ("train/agent", "kl"),
    ]
    rows = list(zip(found[0]["iterations"], *(one["values"] for one in found), strict=True))
    assert rows == [TABLE[0], (3, 12.0, 0.0, 0.0), *TABLE[1:]]


def test_curves_are_a_table_that_people_read(tmp_path: Path, capsys):
    assert main(["runs", "show", str(article_run(tmp_path)), "--curve", "stop_done", "kl"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["16", "1", "0.0006"] in lines
    assert ["34", "0.9688", "0.002"] in lines
    assert "loop stop_done" in " ".join(lines[0])


def test_a_curve_that_is_not_there_is_refused_with_those_that_are(call, tmp_path: Path):
    article_run(tmp_path / "runs")
    said = " ".join(call("runs", "show", "claw", "--curve", "task_complete", code=2).split())
    assert "no metric 'task_complete'. It has kl, loss, mean_turns, reward, stop_done, stop_max_turns." in said
