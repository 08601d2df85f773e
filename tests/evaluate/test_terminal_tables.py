"""Tables for the terminal: with many teams and large numbers, no name and no digit is cut."""

from __future__ import annotations

import re

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from onthejob.evaluate.comparison import Comparison, EpisodeResult, Key
from onthejob.evaluate.numbers import describe, number
from onthejob.evaluate.scores import Cell, CellValues, QualityConfig, QualityResult, Yardstick
from onthejob.evaluate.sheets import matched_sheets
from onthejob.evaluate.terminal_tables import (
    comparison_table,
    differences_table,
    quality_differences_table,
    quality_table,
    sheet_table,
)
from onthejob.types import Sampling, Split, Task

TEAMS = ("heuristic", "expert", "random", "start", "sft-warm-start-of-sales", "grpo")
SCENARIOS = ("baseline", "feature_request_wave")
TASKS = tuple(Task(id=f"t{n}", env="office", split=Split.TEST, seed=n, payload={"scenario": SCENARIOS[n % 2]}) for n in range(10))
METRICS = ("company_value", "team_reward", "valid_rate")
SEEN = ("maker", "customer success")


def comparison() -> Comparison:
    rng = np.random.default_rng(0)
    results = {
        Key(team, task.id): EpisodeResult(
            metrics={
                "company_value": rng.normal(1_300_000, 700_000),
                "team_reward": rng.normal(-800, 300),
                "valid_rate": rng.uniform(),
                "passed/exists": float(rng.integers(0, 9)),
                "total/exists": 9.0,
            },
            actions={},
            stop="done" if rng.uniform() < 0.5 else "max_turns",
        )
        for team in TEAMS
        for task in TASKS
    }
    return Comparison(
        teams=TEAMS,
        tasks=TASKS,
        strata={task.id: str(task.payload["scenario"]) for task in TASKS},
        results=results,
        failed={},
        sampling=Sampling(temperature=0.0),
        seed=0,
        played=len(results),
    )


def quality() -> QualityResult:
    rng = np.random.default_rng(1)
    yardstick = Yardstick(random=np.zeros(12), best=rng.uniform(0.5, 1.5, 12), episodes=tuple(f"e{n}" for n in range(12)))
    cells = {
        Cell(team, role, "t0_n32"): CellValues(
            value=rng.normal(-1, 3, 12), valid=rng.uniform(size=12), outcome=np.zeros(12), reward=np.zeros(12)
        )
        for team in TEAMS
        for role in SEEN
    }
    return QualityResult(
        yardsticks=dict.fromkeys(SEEN, yardstick),
        cells=cells,
        config=QualityConfig(),
        digest="d",
        branches_played=0,
        replies_sampled=0,
        scales={},
    )


def printed(table: Table, width: int) -> list[str]:
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(table)
    lines = capture.get().splitlines()
    assert all(len(line) <= width for line in lines)
    assert not any("…" in line for line in lines), lines
    return lines


def rows_of(lines: list[str], section: str) -> list[str]:
    """The indented lines below the section's name."""
    start = [line.strip() for line in lines].index(section) + 1
    return lines[start : next((n for n in range(start, len(lines)) if not lines[n].startswith("  ")), len(lines))]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_row_names_its_team_and_holds_every_digit(width: int) -> None:
    made, judged = comparison(), quality()
    others = [team for team in TEAMS if team != "grpo"]
    lines = printed(comparison_table(made, metrics=METRICS), width)
    for metric in METRICS:
        for line, team in zip(rows_of(lines, metric), TEAMS, strict=True):
            estimate = made.estimate(team, metric)
            assert re.search(rf"^  {team} +{re.escape(describe(estimate))} +{re.escape(number(estimate.minimum))}$", line), line
    lines = printed(differences_table(made, "company_value", featured="grpo"), width)
    for scenario in ("all", *SCENARIOS):
        for line, team in zip(rows_of(lines, scenario), others, strict=True):
            estimate = made.difference("grpo", team, "company_value", scenario)
            assert re.search(rf"^  {team} +{estimate.n} +{re.escape(describe(estimate))}$", line), line
    scores, differences = printed(quality_table(judged), width), printed(quality_differences_table(judged), width)
    for role in SEEN:
        for line, team in zip(rows_of(scores, role), TEAMS, strict=True):
            cell = Cell(team, role, "t0_n32")
            assert re.search(
                rf"^  {team} +{re.escape(describe(judged.score(cell)))} +{judged.valid_rate(cell):.1%} +12$", line
            ), line
        for line, team in zip(rows_of(differences, role), others, strict=True):
            estimate = judged.difference(Cell("grpo", role, "t0_n32"), Cell(team, role, "t0_n32"))
            assert re.search(rf"^  {team} +{re.escape(describe(estimate))}$", line), line


@pytest.mark.parametrize("width", [80, 100, 120])
def test_sheets_are_not_cut_either(width: int) -> None:
    sheets = matched_sheets(
        comparison(), {"scenario": lambda task: str(task.payload["scenario"])}, ["company_value", "valid_rate"], featured="grpo"
    )
    assert sheets[0].title == "grpo minus others, paired by task", "what a reader looks for comes first"
    for sheet in sheets:
        lines = printed(sheet_table(sheet), width)
        for name, *rest in sheet.rows:
            assert " ".join(rest) in [re.sub(r" +", " ", line).strip() for line in rows_of(lines, name)]


@pytest.mark.parametrize("width", [80, 100])
def test_a_name_too_long_for_the_terminal_is_folded_and_its_numbers_stay_whole(width: int) -> None:
    long = "grpo-of-a-run-whose-name-is-a-sentence-and-a-half-with-a-date-2026-11-27"
    made = comparison()
    renamed = Comparison(
        teams=(long, "grpo"),
        tasks=made.tasks,
        strata=made.strata,
        results={Key(long if key.team == "expert" else key.team, key.task_id): row for key, row in made.results.items()},
        failed={},
        sampling=made.sampling,
        seed=0,
        played=0,
    )
    lines = printed(comparison_table(renamed, metrics=METRICS), width)
    for metric in METRICS:
        first, *others = rows_of(lines, metric)
        estimate = describe(renamed.estimate(long, metric))
        assert estimate in first
        folded = first[: first.index(estimate)].strip() + "".join(line.strip() for line in others[:-1])
        assert folded == long
        assert others[-1].startswith("  grpo ")
