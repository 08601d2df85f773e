"""The demo's result: one sentence and one picture, in the terminal and in report.html."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from onthejob.commands.demo_judge import BAR, START, TRAINED, YARDSTICKS, Point
from onthejob.commands.terminal import Terminal
from onthejob.evaluate.findings import About, Evidence, Findings, findings
from onthejob.evaluate.numbers import decoding_words
from onthejob.evaluate.scores import Cell, QualityResult
from onthejob.evaluate.statistics import IntervalEstimate
from onthejob.evaluate.verdict import Verdict, signed, verdict

KEPT = Path("adapters/office")
"""The kept team of a checkout; its evaluation.json holds every episode on which it was judged."""
HEADS = {
    Verdict.BETTER: "Training helped",
    Verdict.WORSE: "Training made it worse",
    Verdict.NOT_SHOWN: "No effect of training is shown",
    Verdict.TOO_FEW: "These are too few decisions to say whether training helped",
}
STYLES = {Verdict.BETTER: "bold green", Verdict.WORSE: "bold red", Verdict.NOT_SHOWN: "bold", Verdict.TOO_FEW: "bold"}
NAMES = {START: "before practice", TRAINED: "after practice", "random": "random legal play", "heuristic": "heuristic"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one demo found."""

    role: str
    run: Path
    report: Path | None
    """None where the viewer's pages, which it is made of, are not built."""
    updates: int
    points: Sequence[Point]
    """The learning curve."""
    quality: QualityResult
    """The last comparison: start, trained, and the yardsticks."""

    def cell(self, team: str) -> Cell:
        """Where `quality` holds a policy's values."""
        return Cell(team, self.role, self.quality.decodings[0])

    @property
    def gain(self) -> IntervalEstimate:
        """Reward of a decision after practice minus before, paired by decision."""
        return self.quality.reward_difference(self.cell(TRAINED), self.cell(START))

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        after, before = (self.quality.reward(self.cell(name)).mean for name in (TRAINED, START))
        valid, was = (self.quality.valid_rate(self.cell(name)) for name in (TRAINED, START))
        return (
            f"{HEADS[verdict(self.gain)]}: after {self.updates} updates a decision of {self.role} earns {after:.2f} reward "
            f"instead of {before:.2f} ({signed(self.gain)}, 95 % interval, {self.gain.n} held-out decisions), and {valid:.0%} "
            f"of its replies are valid instead of {was:.0%}."
        )

    @property
    def findings(self) -> Findings:
        """The verdict of the last comparison, of rewards of single decisions."""
        cells = {name: self.cell(name) for name in (START, TRAINED, *YARDSTICKS)}
        evidence = Evidence(
            values={name: {str(at): value for at, value in enumerate(self.quality.cells[cells[name]].reward)} for name in cells},
            difference=lambda first, second: self.quality.reward_difference(cells[first], cells[second]),
            clusters={str(at): episode for at, episode in enumerate(self.quality.yardsticks[self.role].episodes)},
            seed=self.quality.config.seed,
            valid={name: self.quality.valid_rate(cell) for name, cell in cells.items()},
            unit="decision",
        )
        how = decoding_words(self.quality.decodings[0])
        found = findings(evidence, featured=TRAINED, start=START, metric="reward", how=how)
        assert found is not None  # the start always takes part
        return found

    @property
    def way(self) -> str:
        """The share of the way from random play to the heuristic, after practice and before; empty where that is no way."""
        scale = {line.subject: line.text for line in self.findings.of(About.SCALE)}
        if "%" not in scale.get(TRAINED, ""):
            return ""
        after, before = (scale[name].partition(" · ")[2] for name in (TRAINED, START))
        return f"Of the way from random legal play to the heuristic that is {after}; it was {before}."

    def rows(self) -> list[tuple[str, IntervalEstimate, float]]:
        """(name, reward of a decision, share of valid replies) of the compared policies."""
        return [
            (NAMES[name], self.quality.reward(self.cell(name)), self.quality.valid_rate(self.cell(name)))
            for name in (START, TRAINED, *YARDSTICKS)
        ]


def write(result: Result, path: Path) -> None:
    """Write report.html."""
    from onthejob.api.report import Picture, Report, write_report

    gains = [(f"update {point.update}", point.gain) for point in result.points if point.gain is not None]
    unit = "reward until the role's next turn"
    report = Report(
        title="onthejob demo",
        lead=result.sentence,
        findings=result.findings,
        quality=result.quality,
        featured=TRAINED,
        pictures=(
            Picture(
                title="Reward of a held-out decision",
                unit=unit,
                rows=tuple((name, reward) for name, reward, _ in result.rows()),
            ),
            Picture(
                title="Gain over the start, paired by decision",
                unit=unit,
                rows=(*gains, (f"all {result.gain.n} decisions", result.gain)),
            ),
        ),
        notes=(note,) if (note := kept_team()) else (),
        run=result.run,
    )
    write_report(path, report)


def finish(terminal: Terminal, result: Result, *, seconds: float) -> int:
    """Print the result."""
    data: dict[str, Any] = {
        "run": result.run,
        "report": result.report,
        "seconds": seconds,
        "updates": result.updates,
        "verdict": verdict(result.gain),
        "findings": result.findings.as_dict(),
        "gain": result.gain.as_dict(),
        "curve": [{"update": point.update, **point.metrics()} for point in result.points],
        "quality": result.quality.as_dict(),
    }
    rows = result.rows()
    longest = max(reward.mean for _, reward, _ in rows)
    bars = [
        f"  {name:<18} {reward.mean:6.2f} {'█' * round(BAR * max(0.0, reward.mean) / longest):<{BAR}} valid {valid:4.0%}"
        for name, reward, valid in rows
    ]
    kept = kept_team()
    terminal.result(
        data,
        Text(result.sentence, style=STYLES[verdict(result.gain)]),
        "",
        *bars,
        "",
        *((result.way, "") if result.way else ()),
        *(said for line in result.findings.of(About.NEXT) for said in (line.text, "")),
        *((kept, "") if kept else ()),
        f"Took {seconds / 60:.1f} minutes. This run in pictures:  onthejob view {result.run}",
        f"Report:  {result.report.as_uri()}" if result.report else "No report: its pages are not built. Run `make viewer`.",
    )
    return 0


def kept_team(folder: Path = KEPT) -> str:
    """The kept team against its start, from the recorded evaluation next to its adapters; empty where there is none."""
    file = folder / "evaluation.json"
    if not file.is_file():
        return ""
    rows = json.loads(file.read_text(encoding="utf-8"))
    means = {row["team"]: row["mean"] for row in rows["means"] if (row["metric"], row["stratum"]) == ("company_value", "all")}
    (gain,) = (
        row
        for row in rows["differences"]
        if (row["first"], row["second"], row["metric"], row["stratum"]) == ("grpo", "start", "company_value", "all")
    )
    interval = f"[{gain['low']:+,.0f}, {gain['high']:+,.0f}]"
    return (
        f"A whole team, trained by the same loop for an hour (recorded in {file}): its company was worth ${means['grpo']:,.0f} "
        f"after 30 days, with the start ${means['start']:,.0f}: {gain['mean']:+,.0f} {interval}, "
        f"{gain['n']} held-out episodes. Watch it:  onthejob view --policy {folder}"
    )
