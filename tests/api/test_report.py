"""The report: complete, escaped, and made from a real record; the viewer's own tests open such a file in a browser."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from onthejob.api.one_file import PLACE, SINGLE_FILE, single_file
from onthejob.api.report import Report, held, with_shifts, write_report
from onthejob.errors import ConfigError, RecordError
from onthejob.evaluate.behaviours import INVALID, UNNAMED, shifts
from onthejob.evaluate.cache import EvaluationCache
from onthejob.evaluate.comparison import compare
from onthejob.evaluate.held_out import collect_states
from onthejob.evaluate.numbers import describe, number
from onthejob.evaluate.pass_fail import keep
from onthejob.evaluate.quality import decision_quality
from onthejob.evaluate.quality_file import read_quality
from onthejob.evaluate.recorded import recorded_scales
from onthejob.evaluate.scores import Cell, QualityConfig, QualityResult
from onthejob.evaluate.statistics import IntervalEstimate
from onthejob.evaluate.teams import scripted_team
from onthejob.evaluate.terminal_tables import (
    comparison_table,
    differences_table,
    quality_differences_table,
    quality_table,
)
from onthejob.evaluate.verdict import verdict
from onthejob.learn.advantage import AdvantageConfig, advantages
from onthejob.models.scripted import ScriptedPolicy
from onthejob.record.store import Run
from onthejob.rollout.branch import BranchConfig, BranchScorer, ReplyScores, Scales, ScoreRequest, branch_group, score_replies
from onthejob.testing import ToyWorkplace, expert_reply, heuristic_reply, random_legal_reply, toy_tasks
from onthejob.types import Completion, Group, Sampling, Split

from .recording import office_run
from .test_browser import node, play_in_browser

ACTORS = ("maker", "seller")
ATTACK = "<script>alert('&\"')</script>"
BEFORE, AFTER = f"<html>{PLACE}", "</script></html>"


def read(path: Path) -> dict[str, Any]:
    """What the pages in the file show; nothing of it may end the element that holds it."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith(BEFORE)
    assert text.endswith(AFTER)
    data = text.removeprefix(BEFORE).removesuffix(AFTER)
    assert "<" not in data
    return json.loads(data)


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """Pages as a build leaves them, as far as a report is put into them."""
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / SINGLE_FILE).write_text(f"{BEFORE}null{AFTER}", encoding="utf-8")
    return folder


def mixed(share: int):
    return lambda observation, seed: (expert_reply if seed % 10 < share else random_legal_reply)(observation, seed)


@pytest.fixture(scope="module")
def report() -> Report:
    teams = [
        scripted_team(name, ScriptedPolicy(reply, version=name), ACTORS)
        for name, reply in (("sft", mixed(2)), ("heuristic", heuristic_reply), ("grpo", mixed(9)))
    ]
    tasks = [
        replace(task, id=f"{task.id}-{scenario}", payload={**task.payload, "scenario": scenario})
        for scenario, days in (("calm", 4), (f"storm {ATTACK}", 8))
        for task in toy_tasks(4, split=Split.TEST, days=days)
    ]
    with EvaluationCache(None, env="toy") as cache:
        states = collect_states(
            tasks, teams[:2], actors=ACTORS, per_role=16, env_factory=ToyWorkplace, sampling=Sampling(), seed=0, max_turns=50
        )
        quality = decision_quality(
            states,
            teams,
            random=ScriptedPolicy(random_legal_reply, version="random"),
            env_factory=ToyWorkplace,
            cache=cache,
            config=QualityConfig(turns=6, candidates=6),
        )
        comparison = compare(teams, tasks, env_factory=ToyWorkplace, cache=cache, sampling=Sampling(), seed=0, max_turns=50)
    return Report(
        title=f"Toy {ATTACK}",
        lead="Two roles.",
        quality=quality,
        comparison=comparison,
        shifts=shifts(comparison.actions("sft"), comparison.actions("grpo"), seed=0),
        shift_names=("sft", "grpo"),
        notes=["Nothing was tuned."],
    )


def groups() -> list[Group]:
    """Real branch groups of the toy, one per turn of a day."""
    env, found = ToyWorkplace(), []
    config = BranchConfig(group_size=4, turns=6, worlds=3)
    observation = env.reset(toy_tasks(1)[0])
    with BranchScorer(ToyWorkplace) as scorer:
        for turn in range(4):
            assert observation is not None
            replies = (*(observation.view["legal"][k % 2] for k in range(3)), f"ship {ATTACK}")
            request = ScoreRequest(
                snapshot=env.snapshot(), actor=observation.actor, replies=replies,
                keys=tuple(env.canonical(reply) for reply in replies), worlds=(5, 6, 7),
            )  # fmt: skip
            (scores,) = score_replies(scorer, [request], config, {actor: Scales() for actor in ACTORS})
            assert isinstance(scores, ReplyScores)
            completions = [Completion(text=reply, token_ids=(1, 2), logprobs=(-0.1, -0.2)) for reply in replies]
            found.append(
                branch_group(
                    f"it0001/t{turn}", "toy-train-100000", (turn, 8, 9), completions, scores, actor=observation.actor,
                    policy_version=f"{observation.actor}@0000", sampling=Sampling(), facts={"chosen": 1},
                )
            )  # fmt: skip
            observation = env.step(replies[0]).observation
    return found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    recorded = groups()
    with Run.create(tmp_path, config={"seed": 1}, name="run") as run:
        with run.iteration(0) as it:
            for actor in ACTORS:
                it.metrics(f"scales/{actor}", {"outcome": 12.5, "return": 2.0})
        for n in (1, 2):
            with run.iteration(n) as it:
                if n == 1:
                    it.groups(recorded, [advantages(group, AdvantageConfig()) for group in recorded])
                for actor in ACTORS:
                    it.metrics(f"train/{actor}", {"reward": n / 10, "frac_reward_zero_std": 0.25, "kl": float("nan"), "lr": 1.0})
        yield run


def test_the_file_holds_the_results_and_the_run(report: Report, run: Run, pages: Path, tmp_path: Path) -> None:
    found = read(write_report(tmp_path / "deep" / "report.html", replace(report, run=run.path), pages=pages))
    told, compared = found["report"], report.comparison
    assert compared is not None
    assert ATTACK in told["title"]
    assert told["notes"] == ["Nothing was tuned."]
    assert (told["verdict"]["featured"], told["verdict"]["metric"]) == ("grpo", "company_value")
    assert (told["metric"], told["featured"]) == ("company_value", "grpo")
    (row,) = [
        row
        for row in told["comparison"]["differences"]
        if (row["first"], row["second"], row["metric"], row["stratum"]) == ("grpo", "sft", "company_value", "calm")
    ]
    difference = compared.difference("grpo", "sft", "company_value", "calm")
    assert (row["mean"], row["low"], row["high"]) == (difference.mean, difference.low, difference.high)
    assert report.quality is not None
    for decoding, picture in zip(report.quality.decodings, told["pictures"], strict=True):
        for cell in (cell for cell in report.quality.cells if cell.decoding == decoding):
            (shown,) = [row for row in picture["rows"] if row["name"] == f"{cell.actor}, {cell.team}"]
            assert shown["mean"] == pytest.approx(report.quality.score(cell).mean)
            assert shown["text"] == describe(report.quality.score(cell))
    titles = [table["title"] for table in told["tables"]]
    assert f"(set {report.quality.digest})" in titles[0]
    assert titles[1] == "Decision quality: grpo minus others, paired by state"
    assert [title.split(":")[0] for title in titles[2:]] == [f"Actions of {actor}, sft and grpo" for actor in ACTORS]
    assert all(len(row) == len(table["columns"]) for table in told["tables"] for row in table["rows"])
    held = found["run"]
    assert found["config"]["open_run"] == held["name"] == "run"
    assert set(held["groups"]) == {group.key for group in run.read_groups()}
    assert all(f"ship {ATTACK}" in [reply["text"] for reply in group["replies"]] for group in held["groups"].values())
    assert {(one["scope"], one["name"]) for one in held["metrics"]} >= {("train/maker", "reward"), ("train/seller", "kl")}


def test_a_part_that_is_missing_is_left_out(pages: Path, tmp_path: Path) -> None:
    found = read(write_report(tmp_path / "report.html", Report(title="Nothing"), pages=pages))
    assert found["run"] is None
    assert not any(found["report"][name] for name in ("verdict", "notes", "pictures", "tables", "comparison"))


def test_writing_is_atomic_and_refusals_are_clear(pages: Path, tmp_path: Path) -> None:
    path = write_report(tmp_path / "deep" / "report.html", Report(title="x"), pages=pages)
    assert [item.name for item in path.parent.iterdir()] == ["report.html"]
    with pytest.raises(RecordError, match="cannot write the report"):
        write_report(path / "below-a-file" / "report.html", Report(title="x"), pages=pages)
    with pytest.raises(RecordError, match=r"are not built.*make viewer"):
        write_report(tmp_path / "other.html", Report(title="x"), pages=tmp_path)
    with pytest.raises(RecordError, match=r"phaser\.js is not among"):
        single_file({"part": {"frames": []}}, pages)
    (pages / SINGLE_FILE).write_text("<html></html>", encoding="utf-8")
    with pytest.raises(RecordError, match="no place for a record"):
        write_report(tmp_path / "other.html", Report(title="x"), pages=pages)


@pytest.mark.parametrize("text", ["\ud800", "so \udfff what", "\ude00\ud83d", "é\ud83d", '{"target": "\udc00"}'])
def test_halves_of_surrogate_pairs_are_written_as_replacements(text: str, pages: Path, tmp_path: Path) -> None:
    page = write_report(tmp_path / "report.html", Report(title=text), pages=pages).read_text(encoding="utf-8")
    kept = keep(tmp_path, "first", {"replies": [text]}).read_text(encoding="utf-8")
    assert "\ufffd" in page
    assert "\ufffd" in json.loads(kept)["replies"][0]


def test_scales_come_from_the_record(run: Run) -> None:
    assert recorded_scales(run) == {actor: Scales(outcome=12.5, ret=2.0) for actor in ACTORS}


def test_decision_quality_from_a_file_is_shown_like_the_result(report: Report, tmp_path: Path) -> None:
    assert isinstance(report.quality, QualityResult)
    path = tmp_path / "quality.json"
    path.write_text(json.dumps(report.quality.as_dict()), encoding="utf-8")
    assert held(replace(report, quality=read_quality(path))) == held(report)
    found = json.loads(path.read_text(encoding="utf-8"))
    for broken in ("[]", "{", json.dumps({**found, "cells": []}), json.dumps({k: v for k, v in found.items() if k != "method"})):
        path.write_text(broken, encoding="utf-8")
        with pytest.raises(RecordError, match="holds no decision quality"):
            read_quality(path)


def test_shifts_are_of_named_actions_of_teams_that_are_there(report: Report) -> None:
    bare = replace(report, shifts=(), shift_names=("before", "after"))
    made = with_shifts(bare, before="heuristic", after="grpo")
    assert made.shift_names == ("heuristic", "grpo")
    assert report.comparison is not None
    assert {shift.actor: shift.before for shift in made.shifts} == report.comparison.actions("heuristic")
    rows = {key: replace(row, actions={"maker": {UNNAMED: 9, INVALID: 1}}) for key, row in report.comparison.results.items()}
    nameless = replace(bare, comparison=replace(report.comparison, results=rows))
    assert not with_shifts(nameless, before="heuristic", after="grpo").shifts
    with pytest.raises(ConfigError, match=r"sft, heuristic, grpo.*'base'"):
        with_shifts(bare, before="base", after="grpo")


def test_the_verdict_is_that_of_the_paired_differences(report: Report) -> None:
    assert isinstance(report.quality, QualityResult)
    assert report.comparison is not None
    told = held(replace(report, start="sft"))["report"]["verdict"]
    assert told["question"] == "Did training help?"
    against = {line["subject"]: line for line in told["lines"] if line["part"] == "result"}
    for team in ("sft", "heuristic"):
        difference = report.comparison.difference("grpo", team, "company_value")
        assert against[f"against {team}"]["word"] == verdict(difference)
        assert describe(difference) in against[f"against {team}"]["text"]
    decoding = report.quality.decodings[0]
    for line in (line for line in told["lines"] if line["part"] == "roles" and line["subject"] in ACTORS):
        pair = (Cell(team, line["subject"], decoding) for team in ("grpo", "sft"))
        assert line["word"] == verdict(report.quality.difference(*pair))
    assert {line["subject"] for line in told["lines"] if line["part"] == "roles"} >= set(ACTORS)
    swapped = held(replace(report, featured="sft"))["report"]["verdict"]
    (worse,) = [line for line in swapped["lines"] if line["subject"] == "against grpo"]
    assert worse["word"] == "worse"


def test_tables_for_the_terminal(report: Report) -> None:
    assert report.quality is not None
    assert report.comparison is not None
    console = Console(width=200, record=True, file=None, force_terminal=False, quiet=True)
    console.quiet = False
    with console.capture() as capture:
        console.print(quality_table(report.quality))
        console.print(quality_differences_table(report.quality))
        console.print(comparison_table(report.comparison, metrics=["company_value"]))
        console.print(differences_table(report.comparison, "company_value"))
    text = capture.get()
    assert describe(report.comparison.difference("grpo", "sft", "company_value")) in text
    assert describe(report.comparison.estimate("sft", "company_value")) in text
    assert "100.0%" in text


def test_numbers_are_as_precise_as_their_interval() -> None:
    assert describe(IntervalEstimate(mean=0.4231, low=0.31, high=0.5512, n=9, clusters=9)) == "0.42 [0.31, 0.55]"
    assert describe(IntervalEstimate(mean=123456.7, low=100_000, high=150_000, n=9, clusters=9)) == "123,457 [100,000, 150,000]"
    assert describe(IntervalEstimate(mean=1.0, low=1.0, high=1.0, n=9, clusters=9)) == "1.00 (no spread)"
    assert number(float("nan")) == "–"
    assert number(-0.0001, 1.0) == "0.0"


@pytest.mark.browser
@pytest.mark.timeout(900)
def test_it_opens_from_disk(report: Report, runs: Path, tmp_path: Path) -> None:
    node()
    whole = replace(report, title="Toy report", run=office_run(runs))
    play_in_browser("report", write_report(tmp_path / "report.html", whole).as_uri(), "")
