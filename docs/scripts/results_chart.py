"""The README's chart: company value by team, from the kept rows of the evaluation.

    python docs/scripts/results_chart.py docs/images/results.svg

Needs matplotlib, which the extra `sb3` brings. Texts stay texts in the file, so that its figures can be read and compared with
the rows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

ROWS = Path(__file__).parents[2] / "adapters/office/evaluation.json"
TEAMS = {
    "random": "random legal play",
    "start": "warm start (SFT)",
    "heuristic": "scripted heuristic",
    "longer": "longer warm start, as long as GRPO took",
    "grpo": "GRPO after the warm start",
    "expert": "scripted expert",
}
"""Team of the rows -> its label, from the lowest value to the highest."""
COLOURS = {"start": "#7c9cbf", "longer": "#7c9cbf", "grpo": "#e8a33d"}
"""Trained teams; scripted ones are grey."""


class Bar(NamedTuple):
    """One team: mean company value and its 95 % interval, in dollars."""

    team: str
    mean: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """The mean as it stands next to the bar, rounded to 100 dollars."""
        return f"${round(self.mean, -2):,.0f}"


def bars(path: Path = ROWS) -> list[Bar]:
    """Read the mean over all episodes of every team, in the order of the chart."""
    means = json.loads(path.read_text(encoding="utf-8"))["means"]
    rows = {row["team"]: row for row in means if row["metric"] == "company_value" and row["stratum"] == "all"}
    return [Bar(team, rows[team]["mean"], rows[team]["low"], rows[team]["high"]) for team in TEAMS]


def draw(target: Path) -> None:
    """Write the chart as SVG; equal rows give an equal file."""
    pyplot.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "onthejob", "font.family": "sans-serif", "font.size": 11}
    shown = bars()
    figure, axes = pyplot.subplots(figsize=(9, 3.4))
    places = range(len(shown), 0, -1)
    means = [bar.mean for bar in shown]
    errors = [[bar.mean - bar.low for bar in shown], [bar.high - bar.mean for bar in shown]]
    axes.barh(places, means, height=0.62, color=[COLOURS.get(bar.team, "#b3b3b3") for bar in shown])
    axes.errorbar(means, places, xerr=errors, fmt="none", ecolor="#333333", elinewidth=1.2, capsize=3)
    for place, bar in zip(places, shown, strict=True):
        axes.text(4_000, place, bar.text, va="center", color="#1a1a1a", weight="bold" if bar.team == "grpo" else "normal")
    axes.set_yticks(list(places), [TEAMS[bar.team] for bar in shown])
    axes.set_xlim(0, 360_000)
    axes.xaxis.set_major_formatter(lambda value, _: f"${value / 1000:,.0f}k")
    axes.set_xlabel("company value after 30 days, mean and 95 % interval")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.tight_layout()
    figure.savefig(target, facecolor="white", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
