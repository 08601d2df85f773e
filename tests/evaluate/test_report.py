"""The report: complete, self-contained, escaped, and made from a real record."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from onthejob.errors import ConfigError, RecordError
from onthejob.evaluate.behaviours import INVALID, UNNAMED, shifts
from onthejob.evaluate.cache import EvaluationCache
from onthejob.evaluate.charts import Line, Whisker, describe, interval_chart, line_chart, number, smoothed, ticks
from onthejob.evaluate.comparison import compare
from onthejob.evaluate.held_out import collect_states
from onthejob.evaluate.pass_fail import keep
from onthejob.evaluate.quality import decision_quality
from onthejob.evaluate.quality_file import read_quality
from onthejob.evaluate.recorded import annotate, annotated_turns, recorded_scales, training_curves
from onthejob.evaluate.report import render, write_report
from onthejob.evaluate.report_data import PANELS, AnnotatedReply, AnnotatedTurn, Report, verdicts
from onthejob.evaluate.report_parts import with_shifts
from onthejob.evaluate.scores import QualityConfig, QualityResult
from onthejob.evaluate.statistics import Estimate
from onthejob.evaluate.teams import scripted_team
from onthejob.evaluate.terminal_tables import (
    behaviour_table,
    comparison_table,
    differences_table,
    quality_differences_table,
    quality_table,
)
from onthejob.learn.advantage import AdvantageConfig, advantages
from onthejob.models.scripted import ScriptedPolicy
from onthejob.record.store import Run
from onthejob.rollout.branch import BranchConfig, BranchScorer, ReplyScores, Scales, ScoreRequest, branch_group, score_replies
from onthejob.testing import ToyWorkplace, expert_reply, heuristic_reply, random_legal_reply, toy_tasks
from onthejob.types import Completion, Group, Sampling, Split

ACTORS = ("maker", "seller")
ATTACK = "<script>alert('&\"')</script>"
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Collects what the tests ask about, and insists that tags are balanced."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: Counter[str] = Counter()
        self.tags: Counter[str] = Counter()
        self.references: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            assert name not in ("src", "onclick", "onload"), f"{tag} has {name}"
            if name == "id":
                self.ids[value or ""] += 1
            if name == "href":
                self.links.append(value or "")
            if name == "aria-labelledby":
                self.references += (value or "").split()
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


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
        config={"model": "none", "grpo": {"lr": 1e-4, "roles": ["maker", "seller"]}},
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


def test_the_page_is_whole_self_contained_and_accessible(report: Report, run: Run) -> None:
    full = replace(
        report, curves=training_curves(run), turns=annotated_turns(run, decode=lambda ids: f"prompt {ids} {ATTACK}", count=3)
    )
    html = render(full)
    page = Page(html)
    assert max(page.ids.values()) == 1
    assert set(page.references) <= set(page.ids)
    assert page.tags["script"] == page.tags["link"] == page.tags["img"] == page.tags["iframe"] == 0
    assert not re.search(r"https?:|//[a-z]|url\(|@import", html)
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert page.tags["svg"] >= 5
    charts = html.count('role="img"')
    assert html.count("<desc ") == charts >= 5
    assert page.tags["table"] == page.tags["caption"] >= 6
    assert "<script>alert" not in html
    assert ATTACK in page.text  # shown as text, everywhere it came from
    assert "width=device-width" in html
    assert "prefers-color-scheme:dark" in html
    for word in ("Nothing was tuned.", "grpo.lr", "maker@0000", "Play continued", "storm"):
        assert word in page.text, word


def test_numbers_in_the_page_are_those_of_the_results(report: Report) -> None:
    assert report.comparison is not None
    text = Page(render(report)).text
    difference = report.comparison.difference("grpo", "sft", "company_value", "calm")
    assert describe(difference) in text
    assert describe(report.comparison.estimate("heuristic", "episode_reward")) in text


def test_an_empty_report_says_what_is_missing() -> None:
    text = Page(render(Report(title="Nothing"))).text
    for sentence in ("Decision quality was not measured.", "not compared", "No training metrics", "No scored decisions"):
        assert sentence in text


def test_decision_quality_from_a_file_is_shown_like_the_result(report: Report, tmp_path: Path) -> None:
    assert isinstance(report.quality, QualityResult)
    path = tmp_path / "quality.json"
    path.write_text(json.dumps(report.quality.as_dict()), encoding="utf-8")
    assert render(replace(report, quality=read_quality(path))) == render(report)
    held = json.loads(path.read_text(encoding="utf-8"))
    for broken in ("[]", "{", json.dumps({**held, "cells": []}), json.dumps({k: v for k, v in held.items() if k != "method"})):
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


def test_verdicts_count_only_intervals_that_exclude_zero(report: Report) -> None:
    assert report.quality is not None
    assert report.comparison is not None
    sentences = verdicts(report)
    assert len(sentences) == 4
    quality = report.quality
    cells = [cell for cell in quality.cells if cell.team == "grpo" and cell.decoding == quality.decodings[0]]
    above = sum(quality.difference(cell, cell._replace(team="sft")).above_zero for cell in cells)
    assert f"above sft in {above} of 2 roles" in sentences[0]
    swapped = verdicts(replace(report, featured="sft"))
    assert any("sft is below grpo in company_value" in sentence for sentence in swapped)


def test_writing_is_atomic_and_refusals_are_clear(tmp_path: Path) -> None:
    path = write_report(tmp_path / "deep" / "report.html", Report(title="x"))
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [item.name for item in path.parent.iterdir()] == ["report.html"]
    with pytest.raises(RecordError, match="cannot write the report"):
        write_report(path / "below-a-file" / "report.html", Report(title="x"))


@pytest.mark.parametrize("text", ["\ud800", "so \udfff what", "\ude00\ud83d", "é\ud83d", '{"target": "\udc00"}'])
def test_halves_of_surrogate_pairs_are_written_as_replacements(text: str, tmp_path: Path) -> None:
    page = write_report(tmp_path / "report.html", Report(title=text)).read_text(encoding="utf-8")
    kept = keep(tmp_path, "first", {"replies": [text]}).read_text(encoding="utf-8")
    assert "\ufffd" in page
    assert "\ufffd" in json.loads(kept)["replies"][0]


def test_curves_come_from_the_record(run: Run) -> None:
    curves = training_curves(run)
    assert {(curve.role, curve.metric) for curve in curves} == {
        (actor, metric) for actor in ACTORS for metric in ("reward", "frac_reward_zero_std", "kl")
    }
    by_key = {(curve.role, curve.metric): curve.points for curve in curves}
    assert by_key["maker", "reward"] == ((1, 0.1), (2, 0.2))
    assert by_key["maker", "frac_reward_zero_std"] == ((1, 0.75), (2, 0.75))  # shown as groups alive
    assert recorded_scales(run) == {actor: Scales(outcome=12.5, ret=2.0) for actor in ACTORS}


def test_annotated_turns_are_the_recorded_groups(run: Run) -> None:
    turns = annotated_turns(run, decode=lambda ids: f"prompt {ids}", count=2)
    assert {turn.role for turn in turns} == set(ACTORS)  # one of each before a second of any
    by_key = {group.key: group for group in run.read_groups()}
    for turn in turns:
        group = by_key[turn.key]
        assert turn.prompt == f"prompt {group.trajectories[0].turns[0].prompt_ids}"
        assert [reply.chosen for reply in turn.replies] == [False, True, False, False]
        assert [reply.valid for reply in turn.replies] == [True, True, True, False]
        for reply, trajectory in zip(turn.replies, group.trajectories, strict=True):
            assert reply.value == pytest.approx(trajectory.ret)
            assert np.mean(reply.by_world) == pytest.approx(reply.value)
        assert turn.replies[3].advantage is not None
        assert turn.replies[3].advantage <= -2.0
    assert len(annotated_turns(run, decode=str, count=3)) == 3
    with pytest.raises(ConfigError, match="count"):
        annotated_turns(run, decode=str, count=0)
    with pytest.raises(ConfigError, match="no branch values"):
        annotate(replace(by_key[turns[0].key], facts={}), None, decode=str)


def test_a_turn_shows_every_reply_with_its_worlds() -> None:
    replies = tuple(
        AnnotatedReply(
            text=f"reply {k}", valid=True, value=float(k), by_world=(k - 0.5, k + 0.5), advantage=k - 1.0, chosen=k == 0
        )
        for k in range(3)
    )
    turn = AnnotatedTurn(key="it0001/x", role="sales", policy="sales@0001", prompt="P", replies=replies, worlds=(11, 12))
    text = Page(render(Report(title="x", turns=[turn]))).text
    for part in ("World 11", "World 12", "reply 2", "+1.00", "-1.00", "▶", "2.50"):
        assert part in text, part


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
        console.print(behaviour_table(report.shifts))
    text = capture.get()
    assert describe(report.comparison.difference("grpo", "sft", "company_value")) in text
    assert describe(report.comparison.estimate("sft", "company_value")) in text
    assert "100.0%" in text
    assert "drift" in text


def test_ticks_are_round_and_cover_the_range() -> None:
    assert ticks(0.0, 1.0, 5) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert ticks(3.0, 3.0, 5, whole=True) == [3.0, 4.0]
    for low, high in ((-0.3, 0.9), (1e5, 1.4e6), (0.0, 3e-5), (-12_000.0, 34_000.0), (7.0, 7.0)):
        marks = ticks(low, high, 5)
        assert marks[0] <= low <= high <= marks[-1]
        assert 2 <= len(marks) <= 9


def test_numbers_are_as_precise_as_their_interval() -> None:
    assert describe(Estimate(mean=0.4231, low=0.31, high=0.5512, n=9, clusters=9)) == "0.42 [0.31, 0.55]"
    assert describe(Estimate(mean=123456.7, low=100_000, high=150_000, n=9, clusters=9)) == "123,457 [100,000, 150,000]"
    assert describe(Estimate(mean=1.0, low=1.0, high=1.0, n=9, clusters=9)) == "1.00 (no spread)"
    assert number(float("nan")) == "–"
    assert number(-0.0001, 1.0) == "0.0"


def test_smoothing_starts_at_the_first_value_and_keeps_a_constant() -> None:
    points = [(float(x), 2.0) for x in range(5)]
    assert smoothed(points, 0.6) == tuple((x, pytest.approx(2.0)) for x, _ in points)
    assert smoothed([(0.0, 1.0), (1.0, 3.0)], 0.5)[1][1] == pytest.approx((0.5 * 1.0 + 3.0) / 1.5)


def test_charts_survive_what_training_can_record() -> None:
    nan = float("nan")
    gaps = Line(name="a", points=((0, nan), (1, 2.0), (2, nan), (3, 4.0)), slot=0)
    drawn = line_chart([gaps, Line(name="b", points=(), slot=1)], id="x", title="t", description="d", x_label="i", smooth=0.6)
    assert "nan" not in drawn
    assert "No values" in line_chart([], id="x", title="t", description="d", x_label="i")
    lone = Estimate(mean=1.0, low=float("-inf"), high=float("inf"), n=1, clusters=1)
    whisker = interval_chart([Whisker(label="a", estimate=lone, slot=0)], id="x", title="t", description="d", x_label="v")
    assert "inf" not in whisker.replace("no interval", "")
    assert len(PANELS) == 6
