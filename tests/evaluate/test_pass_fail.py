"""What a matched comparison says beyond means, against numbers worked by hand and against SciPy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from scipy.stats import binomtest

from onthejob.errors import ConfigError, RecordError
from onthejob.evaluate.comparison import Comparison, EpisodeResult, Key
from onthejob.evaluate.pass_fail import (
    binomial_p,
    document,
    grouped,
    joined,
    kind_difference,
    kind_rate,
    kinds,
    matched_dict,
    mcnemar,
    outcomes,
    read_comparison,
    stop_shares,
)
from onthejob.evaluate.sheets import matched_sheets
from onthejob.evaluate.statistics import mean_interval
from onthejob.types import Sampling, Split, Task

TASKS = tuple(
    Task(id=f"t{number}", env="toy", split=Split.TEST, seed=number, payload={"who": "ab"[number % 2]}) for number in range(8)
)
WHO: Callable[[Task], str] = lambda task: str(task.payload["who"])  # noqa: E731


def result(passed: int, exists: tuple[int, int], same: tuple[int, int] | None = None, *, stop: str = "done") -> EpisodeResult:
    metrics = {"passed": float(passed), "turns": 4.0, "passed/exists": float(exists[0]), "total/exists": float(exists[1])}
    if same is not None:
        metrics |= {"passed/same": float(same[0]), "total/same": float(same[1])}
    return EpisodeResult(metrics=metrics, actions={}, stop=stop)


def comparison(**teams: list[EpisodeResult]) -> Comparison:
    results = {Key(team, task.id): row for team, rows in teams.items() for task, row in zip(TASKS, rows, strict=False)}
    return Comparison(
        teams=tuple(teams),
        tasks=TASKS,
        strata={task.id: WHO(task) for task in TASKS},
        results=results,
        failed={},
        sampling=Sampling(temperature=0.0),
        seed=3,
        played=len(results),
        max_turns=12,
        env="code",
    )


GOOD = [result(1, (2, 2), (1, 1)) for _ in range(6)] + [result(0, (1, 2)), result(0, (0, 2), stop="max_turns")]
POOR = [result(0, (0, 2), (1, 1), stop="max_turns") for _ in range(7)] + [result(1, (2, 2))]


@pytest.mark.parametrize(("fewer", "count"), [(0, 0), (0, 1), (1, 7), (2, 4), (3, 30), (0, 12), (70, 150)])
def test_the_exact_probability_is_scipys(fewer: int, count: int):
    expected = binomtest(fewer, count).pvalue if count else 1.0
    assert binomial_p(fewer, count) == pytest.approx(expected)


def test_mcnemar_counts_pairs():
    found = outcomes(comparison(poor=POOR, good=GOOD), "good", "poor", "passed")
    assert found is not None
    assert found[:4] == (6, 1, 0, 1)
    assert found.p == pytest.approx(binomtest(1, 7).pvalue)
    assert outcomes(comparison(poor=POOR, good=GOOD), "good", "poor", "turns") is None, "turns are not passed or failed"


def test_other_tasks_are_refused_and_other_values_too():
    with pytest.raises(ConfigError, match=r"1 of 2 are only on one side, e\.g\. b"):
        mcnemar({"a": 1.0}, {"a": 1.0, "b": 0.0})
    with pytest.raises(ConfigError, match=r"outcomes of 0 and 1, got 0\.5"):
        mcnemar({"a": 0.5}, {"a": 1.0})


def test_kinds_are_pooled_over_the_tasks_that_have_them():
    made = comparison(poor=POOR, good=GOOD)
    assert kinds(made) == ("exists", "same")
    assert kind_rate(made, "good", "exists").mean == pytest.approx(13 / 16)
    assert (kind_rate(made, "good", "same").mean, kind_rate(made, "good", "same").n) == (1.0, 6)
    assert kind_rate(made, "good").mean == pytest.approx(19 / 22)
    difference = kind_difference(made, "good", "poor", "exists")
    assert difference.mean == pytest.approx((13 - 2) / 16)
    assert difference.n == 8


def test_what_one_team_did_not_finish_counts_for_nobody():
    unfinished = comparison(poor=POOR[:5], good=GOOD)
    assert kind_rate(unfinished, "good", "exists").n == 5
    assert unfinished.estimate("good", "passed").n == unfinished.estimate("poor", "passed").n == 5
    assert stop_shares(unfinished, "good") == {"done": 1.0}
    assert comparison(none=[], good=GOOD).estimate("good", "passed").n == 8, "a team that finished nothing has no say"


def test_a_number_that_is_always_0_is_no_share():
    flat = [EpisodeResult(metrics={"churned": 0.0, "valid_rate": 1.0, "passed": 1.0}, actions={}, stop="done")] * 8
    made = comparison(first=flat, second=flat)
    exact = mean_interval([1.0] * 8, strata=[WHO(task) for task in TASKS], seed=3, binary=True).low
    assert made.estimate("first", "valid_rate").low == exact
    assert made.estimate("first", "churned").low == made.estimate("first", "churned").high == 0.0
    assert made.difference("second", "first", "passed").high == pytest.approx(1.0 - exact)
    assert made.difference("second", "first", "valid_rate").high == 0.0


def test_stops_and_groups():
    made = comparison(poor=POOR, good=GOOD)
    assert stop_shares(made, "good") == {"done": 7 / 8, "max_turns": 1 / 8}
    by = grouped(made, lambda task: "low" if task.seed < 4 else "high")
    assert by.estimate("good", "passed", "low").mean == 1.0
    assert by.estimate("good", "passed", "high").mean == 0.5


def test_json_and_sheets_hold_the_same():
    made = comparison(poor=POOR, good=GOOD)
    groupings = {"who": WHO}
    data = json.loads(json.dumps(matched_dict(made, groupings, ["passed", "turns", "absent"])))
    (test,) = data["mcnemar"]
    assert (test["first"], test["second"], test["only_first"]) == ("good", "poor", 6)
    assert {row["group"] for row in data["groups"]} == {"a", "b"}
    sheets = matched_sheets(made, groupings, ["passed", "turns"], featured="good")
    titles = [sheet.title for sheet in sheets]
    assert titles[:3] == ["good minus others, paired by task", "Assertions that hold, by kind", "How episodes end"]
    assert all(len(row) == len(sheet.columns) for sheet in sheets for row in sheet.rows)
    assert "passed, by who" in titles
    cells = [cell for sheet in sheets for row in sheet.rows for cell in row]
    for text in ("+6 -1", "87.5%"):
        assert any(text in cell for cell in cells)


def test_an_earlier_comparison_joins_only_when_it_matches(tmp_path: Path):
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(document(comparison(poor=POOR))), encoding="utf-8")
    both = joined(comparison(good=GOOD), read_comparison(path))
    assert both.teams == ("poor", "good")
    assert both.difference("good", "poor", "passed").mean == pytest.approx(5 / 8)
    with pytest.raises(ConfigError, match="NAME=poor"):
        joined(comparison(poor=GOOD), read_comparison(path))

    def refused(match: str, **changes: object) -> None:
        held = json.loads(json.dumps(document(comparison(poor=POOR))))
        held["settings"] |= {key: value for key, value in changes.items() if key in held["settings"]}
        held["tasks"] = changes.get("tasks", held["tasks"])
        path.write_text(json.dumps(held), encoding="utf-8")
        with pytest.raises(ConfigError, match=match):
            joined(comparison(good=GOOD), read_comparison(path))

    tasks = document(comparison(poor=POOR))["tasks"]
    refused("temperature 1.0 there, 0.0 here", temperature=1.0)
    refused("env 'older' there", env="older")
    refused("different tasks", tasks={key: value for key, value in tasks.items() if key != "t3"})
    refused("another content, e.g. t3", tasks={**tasks, "t3": "t3:0000"})
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(RecordError, match="holds no comparison"):
        joined(comparison(good=GOOD), read_comparison(path))
