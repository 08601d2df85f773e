"""The outcome of a run: of the comparisons kept next to the runs, else of its own evaluations."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from onthejob.evaluate.evaluations import FILE, keep_evaluation, newest_findings
from onthejob.evaluate.findings import About
from onthejob.evaluate.outcomes import Outcomes
from onthejob.evaluate.pass_fail import COMPARISONS

KEPT = json.loads(Path(__file__).with_name("comparison.json").read_text(encoding="utf-8"))


def evaluations(folder: Path, *means: float) -> None:
    """Evaluations of iterations 0, 2, 4, ... of eight tasks that differ among each other and have the given means."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, mean in enumerate(means):
        tasks = {
            f"t{n}": {"reward": mean + (n - 3.5) * (1 + 0.1 * index), "valid_rate": 0.5 + 0.1 * index, "turns": 3.0}
            for n in range(8)
        }
        keep_evaluation(folder, 2 * index, "reward", tasks)


def test_the_newest_evaluation_is_paired_with_the_start(tmp_path: Path):
    evaluations(tmp_path, 0.0, 9.0, 2.0)
    found = newest_findings(tmp_path, 4)
    assert found is not None
    assert (found.answer, found.featured, found.start) == ("better", "iteration 4", "start")
    (line,) = found.of(About.RESULT)
    assert line.text.startswith("+2.0"), "of the newest, not of the best"
    assert [one.text for one in found.of(About.ROLES)] == ["50% → 70%"]
    rewound = newest_findings(tmp_path, 2)
    assert rewound is not None
    assert rewound.featured == "iteration 2"
    assert newest_findings(tmp_path, 0) is None


def test_an_iteration_that_was_played_again_counts_as_last_played_and_half_a_line_not_at_all(tmp_path: Path):
    evaluations(tmp_path, 0.0, 9.0)
    keep_evaluation(tmp_path, 2, "reward", {f"t{n}": {"reward": n - 9.0} for n in range(8)})
    with (tmp_path / FILE).open("a", encoding="utf-8") as file:
        file.write('{"iteration": 4, "metric": "rew')
    found = newest_findings(tmp_path, 4)
    assert found is not None
    assert (found.answer, found.featured) == ("worse", "iteration 2")
    # The next one begins on a line of its own, whatever stands before it.
    (tmp_path / FILE).write_text("not JSON\n[]\n3\n", encoding="utf-8")
    assert newest_findings(tmp_path, 4) is None


def keep(root: Path, name: str, at: int, **changed: Any) -> None:
    path = root / COMPARISONS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**KEPT, **changed}), encoding="utf-8")
    os.utime(path, (at, at))


def test_a_comparison_with_the_start_comes_first_and_the_newest_of_them(tmp_path: Path):
    outcomes = Outcomes(tmp_path)
    assert outcomes.of("kept", 4) is None
    evaluations(tmp_path / "kept", 0.0, -2.0)
    own = outcomes.of("kept", 4)
    assert own is not None
    assert (own.comparison, own.findings.answer) == ("", "worse")
    keep(tmp_path, "yardsticks", 300, runs={"grpo": "kept"})
    assert outcomes.of("kept", 4) == own, "it is without the start"
    keep(tmp_path, "old", 100, runs={"grpo": "kept"}, start="start")
    keep(tmp_path, "new", 200, runs={"grpo": "kept"}, start="start")
    found = outcomes.of("kept", 4)
    assert found is not None
    assert (found.comparison, found.findings.question, found.findings.answer) == ("new", "Did training help?", "better")
    assert outcomes.of("other", None) is None
    # A file that has changed is read again.
    keep(tmp_path, "new", 250, runs={"grpo": "other"}, start="start")
    other, kept = outcomes.of("other", None), outcomes.of("kept", 4)
    assert other is not None
    assert kept is not None
    assert (other.comparison, kept.comparison) == ("new", "old")


def test_comparisons_of_earlier_versions_name_a_run_as_a_team(tmp_path: Path):
    keep(tmp_path, "old", 100)
    found = Outcomes(tmp_path).of("grpo", None)
    assert found is not None
    assert found.comparison == "old"


def test_runs_are_subtracted_only_where_both_played_the_same_tasks(tmp_path: Path):
    outcomes = Outcomes(tmp_path)
    assert outcomes.differences("warm") == {}
    keep(tmp_path, "old", 100, runs={"grpo": "trained", "start": "warm"}, start="start")
    keep(tmp_path, "other", 200, runs={"grpo": "elsewhere"}, start="start")
    found = outcomes.differences("warm")
    assert found.keys() == {"trained"}, "elsewhere was compared with a start that is no run"
    one = found["trained"]
    (kept,) = [
        row
        for row in KEPT["differences"]
        if (row["first"], row["second"], row["metric"], row["stratum"]) == ("grpo", "start", "company_value", "all")
    ]
    assert (one.estimate.mean, one.estimate.low, one.estimate.n) == (kept["mean"], kept["low"], 20)
    assert (one.metric, one.comparison) == ("company_value", "old")
    (turned,) = outcomes.differences("trained").values()
    assert (turned.estimate.mean, turned.estimate.high) == (-kept["mean"], -kept["low"])
    # Of several comparisons the newest counts.
    keep(tmp_path, "new", 300, runs={"grpo": "trained", "start": "warm"}, start="start")
    assert outcomes.differences("warm")["trained"].comparison == "new"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"means": [{}]}', "\x00"])
def test_a_broken_comparison_is_passed_over(tmp_path: Path, text: str):
    (tmp_path / COMPARISONS).mkdir()
    (tmp_path / COMPARISONS / "broken.json").write_text(text, encoding="utf-8")
    assert Outcomes(tmp_path).of("grpo", None) is None
    assert Outcomes(tmp_path).differences("grpo") == {}
