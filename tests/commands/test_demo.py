"""The demo: its words follow from the interval, its lines fit a narrow terminal, and it trains for real."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from onthejob.cli import main
from onthejob.commands.demo_judge import START, TRAINED, YARDSTICKS, Point, curve_line
from onthejob.commands.demo_result import Result, finish, kept_team
from onthejob.commands.terminal import Output, Terminal
from onthejob.evaluate.scores import Cell, CellValues, QualityConfig, QualityResult, Yardstick
from onthejob.evaluate.statistics import IntervalEstimate, mean_interval
from onthejob.record import Run

REPOSITORY = Path(__file__).parents[2]
STATES = 40


def result(gain: float, tmp_path: Path) -> Result:
    """Decisions that earn about 1 before practice and `gain` more after it; a seventh of the first replies is invalid."""
    rng = np.random.default_rng(0)
    before, noise = rng.normal(1.0, 2.0, STATES), rng.normal(0.0, 0.5, STATES)
    rewards = {START: before, TRAINED: before + gain + noise, "random": before - 0.2, "heuristic": before + 2.0}
    valid = {name: np.ones(STATES) for name in rewards} | {START: (np.arange(STATES) % 7 > 0).astype(float)}
    quality = QualityResult(
        yardsticks={"sales": Yardstick(np.zeros(STATES), np.ones(STATES), tuple(f"e{n // 2}" for n in range(STATES)))},
        cells={
            Cell(name, "sales", "t1_n32"): CellValues(
                value=rewards[name], valid=valid[name], outcome=before, reward=rewards[name]
            )
            for name in (*YARDSTICKS, START, TRAINED)
        },
        config=QualityConfig(),
        digest="d",
        branches_played=0,
        replies_sampled=0,
        scales={},
    )
    point = Point(update=0, reward=mean_interval(before, seed=0), valid=0.85, gain=None, best=3.0)
    return Result(role="sales", run=tmp_path, report=tmp_path / "report.html", updates=9, points=[point], quality=quality)


@pytest.mark.parametrize(
    ("gain", "head"), [(1.5, "Training helped"), (-1.5, "Training made it worse"), (0.0, "No effect of training is shown")]
)
def test_the_sentence_follows_from_the_interval(gain: float, head: str, tmp_path: Path):
    found = result(gain, tmp_path)
    assert found.sentence.startswith(f"{head}: after 9 updates a decision of sales earns ")
    low, high = found.gain.low, found.gain.high
    assert (low > 0, high < 0) == (gain > 0, gain < 0)
    assert "100% of its replies are valid instead of 85%" in found.sentence


def test_the_result_fits_eighty_columns(tmp_path: Path):
    terminal, written = Terminal(Output()), io.StringIO()
    terminal.out = Console(file=written, width=80, color_system=None)
    assert finish(terminal, result(1.5, tmp_path), seconds=301.0) == 0
    lines = written.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    bars = [line for line in lines if " valid " in line and "\u2588" in line]
    assert [line.split("  ")[1] for line in bars] == [
        "before practice",
        "after practice",
        "random legal play",
        "heuristic",
    ]
    assert max(line.count("\u2588") for line in bars) == 28
    # Random earns 0.2 less than before practice, the heuristic 2.0 more, and practice about 1.5: 0.2 / 2.2 and 1.7 / 2.2.
    way = re.search(r"to the heuristic that is (\d+) % .*it was (\d+) %", " ".join(written.getvalue().split()))
    assert way is not None
    assert (abs(int(way[1]) - 77) <= 9, int(way[2])) == (True, 9)


@pytest.mark.parametrize("reward", [-3.0, 0.0, 1.0, 99.0, -1234.5])
def test_a_line_of_the_curve_fits_eighty_columns(reward: float):
    estimate = IntervalEstimate(mean=reward, low=reward - 1, high=reward + 1, n=40, clusters=20, minimum=0.0)
    gain = IntervalEstimate(mean=-12.34, low=-15.67, high=-10.01, n=40, clusters=20, minimum=0.0)
    line = curve_line(Point(update=24, reward=estimate, valid=0.9, gain=gain, best=4.0))
    assert len(line) <= 80
    assert "-12.3" in line


def test_the_kept_team_is_quoted_from_its_record(tmp_path: Path):
    said = kept_team(REPOSITORY / "adapters" / "office")
    rows = json.loads((REPOSITORY / "adapters/office/evaluation.json").read_text(encoding="utf-8"))["differences"]
    (gain,) = (
        r for r in rows if (r["first"], r["second"], r["metric"], r["stratum"]) == ("grpo", "start", "company_value", "all")
    )
    assert f"{gain['mean']:+,.0f} [{gain['low']:+,.0f}, {gain['high']:+,.0f}]" in said
    assert kept_team(tmp_path) == ""


@pytest.mark.slow
def test_a_demo_trains_and_states_its_result(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The smallest demo of the real model: one update or more, a curve in the record, and a report."""
    monkeypatch.chdir(tmp_path)
    start = str(REPOSITORY / "adapters" / "demo")
    code = main(["demo", "--minutes", "0.5", "--states", "40", "--start", start, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    told = json.loads(captured.out)
    assert told["updates"] >= 1
    assert told["verdict"] in ("better", "worse", "no difference shown")
    assert told["curve"][0]["update"] == 0
    assert told["gain"]["n"] == 40
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Reward of a held-out decision" in report
    with Run.open(Path(told["run"]), readonly=True) as run:
        assert [adapter.version for adapter in run.adapters("sales")] == list(range(told["updates"] + 1))
        assert run.read_metrics("eval", iteration=0, name="reward")[0].value == pytest.approx(told["curve"][0]["reward"])
        # The settings by which the viewer explains the groups, where it looks for them.
        assert run.config["train"]["branch"]["worlds"] == 4
        assert run.config["train"]["advantage"]["shrink"] is True
    assert main(["runs", "replay", told["run"], "--limit", "2", "--quiet"]) == 0
