"""Verdicts: words that follow from the interval, the number of tasks it would take, and the kept team's recorded evaluation."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from onthejob.evaluate.findings import About, Evidence, Findings, findings, findings_of
from onthejob.evaluate.numbers import describe
from onthejob.evaluate.statistics import IntervalEstimate, paired_difference
from onthejob.evaluate.terminal_tables import findings_block
from onthejob.evaluate.verdict import Verdict, advice, needed, verdict

KEPT = Path(__file__).with_name("comparison.json")
"""What `compare --json` said of six teams of the office on 20 companies, of differences those to `grpo`."""


def estimate(mean: float, low: float, high: float, n: int = 20) -> IntervalEstimate:
    return IntervalEstimate(mean=mean, low=low, high=high, n=n, clusters=n)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.1, 2.0, Verdict.BETTER),
        (-2.0, -0.1, Verdict.WORSE),
        (-1.0, 2.0, Verdict.NOT_SHOWN),
        (0.0, 2.0, Verdict.NOT_SHOWN),
        (-2.0, 0.0, Verdict.NOT_SHOWN),
        (0.0, 0.0, Verdict.NOT_SHOWN),
        (-math.inf, math.inf, Verdict.TOO_FEW),
    ],
)
def test_the_word_follows_from_the_interval_alone(low: float, high: float, word: Verdict):
    for mean in (-1.0, 0.0, 1.0):
        assert verdict(estimate(mean, low, high)) is word


def test_the_number_of_tasks_it_would_take():
    # Half width 3 of 20 tasks, so one standard error is 3 / 1.95996; shown in 80 % of comparisons at 2.80159 standard errors
    # of the larger set: 20 * (2.80159 / 1.95996 * 3 / 1)^2 = 367.8.
    assert needed(estimate(1.0, -2.0, 4.0)) == 368
    assert needed(estimate(1.0, 0.5, 1.5)) is None, "it is shown already"
    assert needed(estimate(0.0, 0.0, 0.0)) is None, "nothing differs"
    assert needed(estimate(1.0, -math.inf, math.inf, n=1)) == 6
    assert advice(estimate(1.0, -2.0, 4.0), "start", "task") == (
        "To show a difference of this size from start takes about 370 tasks instead of 20."
    )
    assert advice(estimate(1.0, -math.inf, math.inf, n=1), "start", "task") == "1 task cannot say: an interval needs 6 tasks."
    assert "more than 20,000 tasks" in advice(estimate(0.01, -2.0, 2.02), "start", "task")


def test_so_many_tasks_show_it_in_four_of_five_comparisons():
    """The promise of `needed`, by simulation: a first comparison whose estimate is exact, and repetitions at that size."""
    rng, effect, spread, first = np.random.default_rng(0), 1.0, 3.0, 12
    half = 1.959964 * spread / math.sqrt(first)
    count = needed(estimate(effect, effect - half, effect + half, n=first))
    assert count is not None
    shown = [
        verdict(paired_difference(rng.normal(effect, spread, count), np.zeros(count), seed=0, resamples=200)) for _ in range(150)
    ]
    assert 0.7 < sum(word is Verdict.BETTER for word in shown) / len(shown) < 0.9


def test_an_end_beside_zero_is_not_shown_as_zero():
    assert describe(estimate(0.09, 0.0009, 0.35)) == "0.090 [0.001, 0.350]"
    assert describe(estimate(-0.09, -0.35, -0.0009)) == "-0.090 [-0.350, -0.001]"
    assert describe(estimate(0.09, -0.0009, 0.35)) == "0.09 [0.00, 0.35]", "it holds 0"


def kept(**chosen: Any) -> dict[str, Any]:
    return {**json.loads(KEPT.read_text(encoding="utf-8")), "start": "start", "featured": "grpo", **chosen}


def text_of(found: Findings, part: About) -> dict[str, tuple[str | None, str]]:
    return {line.subject: (line.word, line.text) for line in found.of(part)}


def test_a_real_comparison_in_words():
    found = findings_of(kept())
    assert found is not None
    assert (found.question, found.answer) == ("Did training help?", "better")
    results = text_of(found, About.RESULT)
    assert list(results) == [f"against {team}" for team in ("start", "longer", "heuristic", "expert", "random")]
    assert results["against start"] == ("better", "+65,349 [48,944, 82,859]")
    assert results["against expert"] == ("worse", "-42,950 [-66,200, -18,361]")
    # (284,021 - 116,082) / (326,971 - 116,082)
    scale = text_of(found, About.SCALE)
    assert scale["grpo"] == (None, "284,021 · 80 % [70, 89]")
    assert scale["start"][1].startswith("218,672 · 49 %")
    assert "random (116,082) to expert (326,971)" in found.headings[About.SCALE]
    assert not found.of(About.NEXT), "nothing is open"


def test_a_start_without_a_paired_difference_is_no_start():
    found = findings_of(kept(), featured="longer")
    assert found is not None
    assert found.question == "Is longer better than grpo?"
    assert found.answer == "worse"
    # The document holds grpo minus longer.
    assert text_of(found, About.RESULT)["against grpo"] == ("worse", "-36,268 [-61,124, -7,780]")


def test_single_teams_and_unknown_metrics_have_no_verdict():
    document = kept()
    assert findings_of(document, metric="no_such") is None
    alone = {**document, "means": [row for row in document["means"] if row["team"] == "grpo"], "differences": []}
    alone["episodes"] = [row for row in document["episodes"] if row["team"] == "grpo"]
    assert findings_of(alone) is None


def made(shift: float, *, teams: tuple[str, ...] = ("start", "random", "expert", "new"), n: int = 12) -> Evidence:
    rng = np.random.default_rng(3)
    base = dict(zip(teams, (1.0, 0.0, 4.0, 1.0 + shift), strict=True))
    values = {team: {f"t{k}": base[team] + rng.normal(0, 0.2) for k in range(n)} for team in teams}

    def difference(first: str, second: str) -> IntervalEstimate:
        return paired_difference(list(values[first].values()), list(values[second].values()), seed=0)

    actions = {"start": {"dev": {"FIX_BUG": 80, "A_B_TEST": 20}}, "new": {"dev": {"FIX_BUG": 30, "A_B_TEST": 65, "(invalid)": 5}}}
    return Evidence(values=values, difference=difference, actions=actions, valid={"start": 0.88, "new": 0.94})


def test_changes_of_behaviour_and_of_validity_are_told():
    found = findings(made(1.0), featured="new", start="start", metric="reward", how="greedy")
    assert found is not None
    assert text_of(found, About.CHANGES) == {"dev": (None, "fix bug 80 → 30 %, a b test 20 → 65 %, invalid replies 0 → 5 %")}
    assert text_of(found, About.ROLES) == {"valid replies": (None, "88% → 94%")}
    assert found.answer is Verdict.BETTER
    share = text_of(found, About.SCALE)["new"][1]
    assert 45 <= int(share.partition(" · ")[2].split(" %")[0]) <= 55, share


def test_nothing_shown_says_how_many_it_would_take():
    found = findings(made(0.02), featured="new", start="start", metric="reward", how="greedy")
    assert found is not None
    assert found.answer is Verdict.NOT_SHOWN
    (line,) = found.of(About.NEXT)
    assert "instead of 12" in line.text or "more than" in line.text
    few = findings(made(1.0, n=1), featured="new", start="start", metric="reward", how="greedy")
    assert few is not None
    assert few.answer is Verdict.TOO_FEW
    assert few.of(About.NEXT)[0].text == "1 task cannot say: an interval needs 6 tasks."


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_block_holds_every_line_whole(width: int):
    found = findings_of(kept(actions={"start": {"ceo": {"A": 90, "B": 10}}, "grpo": {"ceo": {"A": 20, "B": 80}}}))
    assert found is not None
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(findings_block(found))
    lines = [" ".join(line.split()) for line in capture.get().splitlines()]
    assert lines[0] == "Did training help? BETTER"
    for line in found.lines:
        assert " ".join(filter(None, (line.subject, line.word, line.text))) in lines
    assert all(len(line) <= width for line in capture.get().splitlines())


def test_the_best_player_of_an_environment_ends_the_scale_where_there_is_no_expert():
    evidence = replace(made(1.0, teams=("start", "random", "halving", "new")), scripted=("random", "halving"))
    found = findings(evidence, featured="new", start="start", metric="reward", how="greedy")
    assert found is not None
    assert re.search(r"the way from random \(.*\) to halving", found.headings[About.SCALE])
    assert set(text_of(found, About.SCALE)) == {"new", "start"}
    alone = findings(replace(evidence, scripted=("random",)), featured="new", start="start", metric="reward", how="greedy")
    assert alone is not None
    assert alone.headings[About.SCALE] == "Reward, mean"
