"""Each gate sees a planted violation fail, and the real office's small measurements have the shape the gates expect."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from onthejob.cli import main
from onthejob.commands.gates import Workers, write_section
from onthejob.envs.office.actions import Action
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.gates import judge
from onthejob.envs.office.gates.exact import Check, check_exactness, check_processes, digest_command
from onthejob.envs.office.gates.headroom import Gain, LookAhead, look_ahead
from onthejob.envs.office.gates.judge import Finding, Statistics, Table
from onthejob.envs.office.gates.matches import SEATS, Kind, Match, Result, Team, all_teams, ledger_gap, play_match
from onthejob.envs.office.gates.measure import Counts, measure, plan
from onthejob.envs.office.gates.signal import Sample, Spread, take_sample
from onthejob.envs.office.policies import do_nothing, random_legal
from onthejob.envs.office.policies.expert import expert
from onthejob.envs.office.policies.heuristic import heuristic
from onthejob.envs.office.scenarios import load
from onthejob.envs.office.simulator import Simulator
from onthejob.errors import ConfigError, ContractError
from onthejob.evaluate.statistics import paired_difference, spearman
from onthejob.types import Task

BEGIN, END = "<!-- gates:begin -->", "<!-- gates:end -->"
STATISTICS = Statistics(partial(paired_difference, seed=0, resamples=200), spearman)
SEEDS = range(8)
SCENARIOS = ("baseline", "churn", "viral", "series_a", "competitor")
# Made-up results of a healthy office: (kind, company value in thousands, team reward).
HEALTHY = {
    "spammer": (Kind.EXPLOITER, 60.0, 20.0),
    "random": (Kind.IDLE, 70.0, 30.0),
    "heuristic": (Kind.HEURISTIC, 200.0, 500.0),
    "expert": (Kind.EXPERT, 260.0, 640.0),
    "expert-mute": (Kind.MUTED, 240.0, 600.0),
    **{f"expert-no-{role}": (Kind.ABLATION, 220.0, 560.0) for role in SEATS},
}


def results(changes: dict[str, tuple[Kind, float, float]] | None = None) -> list[Result]:
    """One result per scenario, team and seed; seeds share their luck."""
    return [
        Result(
            scenario=scenario, team=team, kind=kind, seed=seed, value=1000.0 * (value + 5 * seed + (seed * len(team)) % 3),
            reward=reward, luck=float(seed - 3.5), won=5, churned=1, ledger_gap=0, finite=True,
        )
        for scenario in SCENARIOS
        for team, (kind, value, reward) in {**HEALTHY, **(changes or {})}.items()
        for seed in SEEDS
    ]  # fmt: skip


def failed(findings: list[Finding]) -> list[str]:
    return sorted({finding.gate for finding in findings if finding.passed is False})


def judged(rows: list[Result]) -> list[Finding]:
    table = Table(rows)
    return [
        *judge.judge_order(table, STATISTICS),
        *judge.judge_agreement(table, STATISTICS),
        *judge.judge_influence(table, STATISTICS),
        *judge.judge_books(rows, [Check(what="same", held=True)]),
    ]


def test_a_healthy_office_passes():
    assert failed(judged(results())) == []


@pytest.mark.parametrize(
    ("changes", "gates"),
    [
        ({"spammer": (Kind.EXPLOITER, 205.0, 20.0)}, {"order"}),
        ({"heuristic": (Kind.HEURISTIC, 265.0, 500.0)}, {"order"}),
        ({"spammer": (Kind.EXPLOITER, 60.0, 700.0)}, {"agreement", "reward order"}),
        ({"random": (Kind.IDLE, 70.0, 630.0), "expert": (Kind.EXPERT, 260.0, 10.0)}, {"agreement"}),
        ({"expert-no-ceo": (Kind.ABLATION, 258.0, 560.0)}, {"influence"}),
        ({"expert-no-hr": (Kind.ABLATION, 270.0, 640.0)}, {"influence"}),
    ],
    ids=[
        "exploiter builds value",
        "heuristic beats expert",
        "exploiter is paid",
        "reward disagrees",
        "role hardly counts",
        "role harms",
    ],
)
def test_gates_on_order_agreement_and_influence_see_violations(changes: dict, gates: set[str]):
    assert set(failed(judged(results(changes)))) >= gates


def test_influence_in_three_of_five_scenarios_is_too_little():
    rows = [
        replace(row, value=next(r.value for r in results() if (r.scenario, r.team, r.seed) == (row.scenario, "expert", row.seed)))
        if row.team == "expert-no-dev" and row.scenario in SCENARIOS[:2]
        else row
        for row in results()
    ]
    findings = judge.judge_influence(Table(rows), STATISTICS)
    (dev,) = [finding for finding in findings if "dev doing nothing" in finding.what]
    assert dev.passed is False
    assert dev.low is not None
    assert dev.low > 0.0
    assert failed([finding for finding in findings if finding is not dev]) == []


def test_teams_with_different_numbers_of_seeds_are_compared_on_common_seeds():
    rows = [row for row in results() if row.team != "heuristic" or row.seed >= 5]
    first, second = Table(rows).values("churn", "expert", "heuristic")
    assert len(first) == len(second) == 3
    assert [x - y for x, y in zip(first, second, strict=True)] == pytest.approx(
        [1000.0 * (60.0 + (seed * 6) % 3 - (seed * 9) % 3) for seed in (5, 6, 7)]
    )


def test_headroom_needs_a_gain_and_the_interval_above_zero():
    def gains(*values: float) -> list[Gain]:
        return [Gain(scenario="viral", role=SEATS[i % 6], seed=i, gain=value, changed=1) for i, value in enumerate(values)]

    assert failed(judge.judge_headroom(gains(900, 1100, 700, 1500, 400, 800, 950, 1200), STATISTICS)) == []
    assert failed(judge.judge_headroom(gains(900, -1100, 700, -1500, 400, 800, -950, 1200), STATISTICS)) == ["headroom"]
    assert failed(judge.judge_headroom(gains(*[0.0] * 8), STATISTICS)) == ["headroom"]
    assert failed(judge.judge_headroom([], STATISTICS)) == ["headroom"]


def test_signal_needs_living_groups():
    def spreads(*rows: tuple[float, ...]) -> list[Spread]:
        return [Spread(scenario="viral", role="dev", seed=i, values=row) for i, row in enumerate(rows)]

    lively, dead, faint = (0.0, 100.0, 50.0), (70.0, 70.0, 70.0), (70.0, 70.5, 70.2)
    assert failed(judge.judge_signal(spreads(lively, lively, lively, lively, dead))) == []
    assert failed(judge.judge_signal(spreads(lively, lively, lively, dead, faint))) == ["signal"]
    assert failed(judge.judge_signal(spreads(dead, dead))) == ["signal"]
    assert failed(judge.judge_signal([])) == ["signal"]


def test_books_see_a_missing_cent_a_nan_and_a_broken_twin():
    rows = results()
    assert failed(judge.judge_books([*rows, replace(rows[0], ledger_gap=-1)], [])) == ["ledger"]
    assert failed(judge.judge_books([*rows, replace(rows[0], finite=False)], [])) == ["ledger"]
    assert failed(judge.judge_books([], [])) == ["ledger"]
    assert failed(judge.judge_books(rows, [Check(what="twin", held=False)])) == ["determinism"]


def test_ledger_gap_finds_money_without_a_booking():
    s = Simulator(load("baseline")).found(5)
    assert ledger_gap(s) == 0
    s.cash -= 1
    assert ledger_gap(s) == -1


def small_table() -> dict[str, Team]:
    """The smallest table that every gate can judge, with a heuristic that is worse than doing nothing."""
    known = {name: team for name, team in all_teams().items() if name in ("random", "expert", "expert-no-sales", "expert-mute")}
    known["heuristic"] = Team(Kind.HEURISTIC, dict.fromkeys(SEATS, do_nothing))
    known["good-exploiter"] = Team(Kind.EXPLOITER, dict.fromkeys(SEATS, expert))
    return known


def test_matches_of_a_planted_player_table_fail_the_order():
    counts = Counts(scenarios=("baseline",), seeds=2, influence_seeds=2, windows=1, states=1, days=12)
    rows = [play_match(job) for job in plan(counts, small_table) if isinstance(job, Match)]
    assert len(rows) == 2 * 6
    assert all(row.ledger_gap == 0 and row.finite for row in rows)
    table = Table(rows)
    assert "order" in failed(judge.judge_order(table, STATISTICS))
    assert "reward order" in failed(judge.judge_order(table, STATISTICS))
    assert table.worth("baseline", "expert") == table.worth("baseline", "good-exploiter")


def test_a_match_is_the_same_in_another_process():
    job = Match(scenario="viral", team="expert~0.3", seed=3, days=4)
    with Workers(1) as mapper:
        (there,) = mapper(play_match, [job])
    assert there == play_match(job)


def test_look_ahead_improves_a_bad_player_and_not_itself_without_choice():
    window = LookAhead(
        scenario="churn", role="sales", seed=11, start=84, decisions=3, turns=14, screening=2, worlds=4, finals=3, player=shy
    )  # fmt: skip
    bad = look_ahead(window)
    assert bad.changed >= 1
    assert bad.gain > 0.0
    none = look_ahead(replace(window, decisions=0))
    assert (none.gain, none.changed) == (0.0, 0)
    with pytest.raises(ConfigError, match="worlds >= 2"):
        look_ahead(replace(window, worlds=1))


def shy(view, legal, luck):
    """The heuristic, but Sales never asks for a signature."""
    action = heuristic(view, legal, luck)
    return Action("UPDATE_PIPELINE") if action is not None and action.action_type == "CLOSE_DEAL" else action


def test_sampled_actions_have_values_and_a_dead_continuation_has_none():
    job = Sample(scenario="viral", role="sales", seed=4, turn=40, turns=28, worlds=2)
    spread = take_sample(job)
    assert len(spread.values) == 8
    assert len(set(spread.values)) > 1
    assert take_sample(job) == spread
    # On the first day HR has no budget to spend, and within one turn nobody builds on what it does: a dead group.
    dead = [take_sample(replace(job, role="hr", seed=seed, turn=0, turns=1, continuation=do_nothing)) for seed in (5, 6, 7)]
    assert failed(judge.judge_signal(dead)) == ["signal"]


def test_exactness_holds_and_a_moody_player_is_caught():
    checks = check_exactness("competitor", 7, turns=56)
    assert [check.what for check in checks if not check.held] == []
    calls: list[int] = []

    def moody(view, legal, luck):
        calls.append(1)
        return random_legal(view, legal, (luck + len(calls) * 0.37) % 1.0)

    broken = {check.what for check in check_exactness("competitor", 7, turns=56, player=moody) if not check.held}
    assert "equal seed, equal transcript" in broken
    assert "fork and continue = continue" in broken


class Leaky(OfficeEnvironment):
    """An environment that forgets to copy: a fork is the parent, and a snapshot forgets the world it was in."""

    def fork(self) -> Leaky:
        return self

    def restore(self, snapshot: bytes):
        self.reset(Task(id="exact-other", env="office", split="dev", seed=9, payload={"scenario": "viral"}))  # type: ignore[arg-type]
        return self.observe()


def test_exactness_catches_shared_state_and_wrong_snapshots():
    broken = {check.what for check in check_exactness("competitor", 7, turns=56, make_env=Leaky) if not check.held}
    assert "branches and forks leave the parent untouched" in broken
    assert "snapshot, restore and continue = continue" in broken


def test_processes_with_different_hash_seeds():
    assert check_processes(digest_command("churn", 3, 28)).held
    assert not check_processes([sys.executable, "-c", "print(hash('sales'))"]).held
    with pytest.raises(ContractError, match="printed no digest"):
        check_processes([sys.executable, "-c", "raise SystemExit(3)"])


def test_counts_refuse_what_cannot_be_judged():
    with pytest.raises(ConfigError, match="gates need"):
        Counts(seeds=1)
    with pytest.raises(ConfigError, match="gates need"):
        Counts(seeds=9, influence_seeds=8)
    with pytest.raises(ConfigError, match="gates need"):
        Counts(windows=0)
    with pytest.raises(ConfigError, match="gates need"):
        Counts(states=0)
    with pytest.raises(ConfigError, match="gates need"):
        Counts(scenarios=())
    with pytest.raises(ConfigError, match="days must be"):
        Counts(days=2)


def test_measure_reports_every_gate_once_asked():
    counts = Counts(scenarios=("baseline",), seeds=2, influence_seeds=2, windows=1, states=1, days=4)
    seen: list[tuple[int, int]] = []

    def tiny(function, jobs):
        """Runs the jobs with tiny branches, so that the test is about the wiring."""
        for job in jobs:
            if isinstance(job, LookAhead):
                job = replace(job, decisions=1, turns=2, screening=1, worlds=2, finals=1)
            elif isinstance(job, Sample):
                job = replace(job, turns=2, worlds=1, turn=0)
            yield function(job)

    findings = measure(
        counts, STATISTICS, mapper=tiny, table=small_table, on_progress=lambda done, total: seen.append((done, total))
    )
    gates = {finding.gate for finding in findings}
    assert gates == {
        "order", "reward order", "agreement", "influence", "messages", "headroom", "signal", "ledger", "determinism",
        "luck account",
    }  # fmt: skip
    assert seen[-1][0] == seen[-1][1] == 6 + 6 + 12


def test_the_command_fails_when_a_gate_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    # Two seeds cannot show that six exploiters lose and every role counts: the interval of two values is very wide.
    words = ["--seeds", "2", "--influence-seeds", "2", "--windows", "1", "--states", "1", "--days", "4", "--workers", "0"]
    code = main(["office", "gates", *words, "--scenarios", "baseline", "--doc", str(page), "--json", "--quiet"])
    data = json.loads(capsys.readouterr().out)
    assert code == 1
    assert data["passed"] is False
    assert any(finding["passed"] is False for finding in data["findings"])
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{BEGIN}\nMeasured with 2 seeds")
    assert text.endswith(f"{END}\nafter\n")
    assert "| determinism |" in text
    assert "\nold\n" not in text


def test_a_page_without_markers_is_refused(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("nothing here", encoding="utf-8")
    with pytest.raises(ConfigError, match="gates:begin"):
        write_section(page, "text")
    assert page.read_text(encoding="utf-8") == "nothing here"
    assert main(["office", "gates", "--seeds", "2", "--doc", str(page)]) == 2
    assert main(["office", "gates", "--workers", "-1"]) == 2
