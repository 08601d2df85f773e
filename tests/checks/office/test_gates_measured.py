"""The gates' measurements on the real office: small, and on planted teams and environments that must fail."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from checks.commands.gates import Workers, write_section
from checks.office.gates.audit import audit, moved_back
from checks.office.gates.deviation import Deviation
from checks.office.gates.exact import check_exactness, check_processes, digest_command
from checks.office.gates.finding import Statistics
from checks.office.gates.foresight import Foresight
from checks.office.gates.gate import QUICK, Counts, Played
from checks.office.gates.influence import Influence
from checks.office.gates.matches import Match, Table, ledger_gap
from checks.office.gates.measure import GATES, measure, plan, work
from checks.office.gates.measured import MeasuredJobs, job_key
from checks.office.gates.oracle import Planning
from checks.office.gates.order import Order
from checks.office.gates.scoping import Look, Scoping, shown
from checks.office.gates.signal import Sample, Signal, take_sample
from checks.office.gates.teams import SEATS, STRANGERS, Kind, Team, all_teams, tuned_for
from checks.office.gates.windows import LookAhead, look_ahead
from checks.office.players.exploiters import EXPLOITS
from onthejob.cli import main
from onthejob.envs.office.actions import Action
from onthejob.envs.office.company_state import CompanyState, Stage
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.policies import do_nothing, random_legal
from onthejob.envs.office.policies.expert import expert
from onthejob.envs.office.policies.heuristic import heuristic
from onthejob.envs.office.scenarios import load
from onthejob.envs.office.simulator import ROLE_NAMES, Simulator
from onthejob.errors import ConfigError, ContractError
from onthejob.evaluate.statistics import paired_difference, spearman
from onthejob.types import Task

BEGIN, END = "<!-- gates:begin -->", "<!-- gates:end -->"
STATISTICS = Statistics(partial(paired_difference, seed=0, resamples=200), spearman)


def small_table() -> dict[str, Team]:
    """The smallest table that every gate can judge, with a heuristic that is worse than doing nothing."""
    kept = ("random", "expert", "expert-no-sales", "expert-mute", "okr-looper@hr", "tuned-baseline", "tuned-baseline-mute")
    known = {name: team for name, team in all_teams().items() if name in kept}
    known["heuristic"] = Team(Kind.HEURISTIC, dict.fromkeys(SEATS, do_nothing))
    known["good-exploiter"] = Team(Kind.EXPLOITER, dict.fromkeys(SEATS, expert))
    return known


def test_matches_of_a_planted_player_table_fail_the_order() -> None:
    counts = Counts(scenarios=("baseline",), seeds=2, influence_seeds=2, deviation_seeds=2, oracle_seeds=0, days=12)
    rows = [job.run() for job in plan(counts, [Order()], small_table) if isinstance(job, Match)]
    assert len(rows) == 2 * 5  # the table without ablation, deviant and mutes
    assert all(row.ledger_gap == 0 and row.finite and not row.problems for row in rows)
    failed = [finding.what for finding in Order().judge(Played(rows), STATISTICS) if finding.passed is False]
    assert any("heuristic - good-exploiter" in what for what in failed)
    table = Table(rows)
    assert table.worth("baseline", "expert") == table.worth("baseline", "good-exploiter")


def test_a_match_is_the_same_in_another_process() -> None:
    job = Match(scenario="viral", team="expert~0.3", seed=3, days=4)
    with Workers(1) as mapper:
        (there,) = mapper(work, [job])
    assert there == job.run()


def test_a_match_in_another_order_of_roles_is_another_episode() -> None:
    job = Match(scenario="baseline", team="expert", seed=3, days=4)
    turned = replace(job, order=ROLE_NAMES[::-1])
    assert turned.run().rewards != job.run().rewards
    assert turned.run().order == ROLE_NAMES[::-1]
    with pytest.raises(ConfigError, match="every role once"):
        Simulator(load("baseline"), order=("ceo", "ceo"))


def test_a_scenario_of_ones_own_is_played_by_the_baselines_tuned_expert() -> None:
    table = all_teams()
    assert tuned_for("churn", table) == "tuned-churn"
    assert tuned_for("mine.toml", table) == "tuned-baseline"


def test_jobs_that_several_gates_need_are_run_once() -> None:
    jobs = plan(Counts(seeds=2, influence_seeds=2, deviation_seeds=2, oracle_seeds=2, windows=1, states=1))
    assert len(set(jobs)) == len(jobs)
    assert isinstance(jobs[0], Foresight)
    assert isinstance(jobs[-1], Match)
    assert sum(isinstance(job, Foresight) for job in jobs) == 2 * 5


def test_ledger_gap_finds_money_without_a_booking() -> None:
    s = Simulator(load("baseline")).found(5)
    assert ledger_gap(s) == 0
    s.cash -= 1
    assert ledger_gap(s) == -1
    assert any("the ledger says" in problem for problem in audit(s))


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lambda s: setattr(s, "morale", 1.2), "morale is 1.2"),
        (lambda s: setattr(s, "brand", float("nan")), "brand is nan"),
        (lambda s: s.envelopes.update(hr=-5), "the envelope of hr"),
        (lambda s: s.traffic.__setitem__(0, -1.0), "traffic is -1.0"),
        (lambda s: setattr(s.accounts[0], "sat", 1.5), "sat of account"),
        (lambda s: setattr(s.accounts[0], "stage", int(Stage.LOST)), "still listed"),
        (lambda s: setattr(s.accounts[0], "id", s.accounts[1].id), "the same id"),
    ],
)
def test_the_audit_sees_a_planted_problem(plant: Callable[[CompanyState], None], said: str) -> None:
    s = Simulator(load("viral")).found(5)
    assert list(audit(s)) == []
    plant(s)
    assert any(said in problem for problem in audit(s))


def test_a_stage_that_falls_is_seen() -> None:
    s = Simulator(load("viral")).found(5)
    before = {a.id: a.stage for a in s.accounts}
    assert list(moved_back(before, s)) == []
    before[s.accounts[-1].id] = int(Stage.DEMO)
    assert len(list(moved_back(before, s))) == 1


def test_look_ahead_improves_a_bad_player_and_not_itself_without_choice() -> None:
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


def test_sampled_actions_have_values_and_a_dead_continuation_has_none() -> None:
    job = Sample(scenario="viral", role="sales", seed=4, turn=40, turns=28, worlds=2)
    spread = take_sample(job)
    assert len(spread.values) == 8
    assert len(set(spread.values)) > 1
    assert take_sample(job) == spread
    # On the first day HR has no budget to spend, and within one turn no role builds on what it does: a dead group.
    dead = [take_sample(replace(job, role="hr", seed=seed, turn=0, turns=1, continuation=do_nothing)) for seed in (5, 6, 7)]
    assert Signal().spreads(dead)[0].passed is False


def test_secrets_stay_secret_and_a_talkative_prompt_is_caught() -> None:
    job = Look(scenario="churn", seed=7, turn=100)
    look = job.run()
    assert look.leaks == ()
    assert {"morale", "objections", "messages to dev", "money to allocate"} <= set(look.seen)

    def talkative(s: CompanyState, role: str) -> bytes:
        return shown(s, role) + f"morale {s.morale}".encode()

    leaks = replace(job, reader=talkative).run()
    assert "dev sees morale" in leaks.leaks
    assert any(finding.passed is False for finding in Scoping().judge(Played([leaks]), STATISTICS))


@pytest.mark.parametrize("partners", sorted(STRANGERS))
def test_secrets_stay_secret_among_strangers(partners: str) -> None:
    looks = [Look(scenario="churn", seed=seed, turn=150, partners=partners).run() for seed in (7, 8)]
    assert [look.leaks for look in looks] == [(), ()]
    assert all(look.partners == partners and look.checked for look in looks)
    assert any("messages to dev" in look.seen for look in looks)


def planted_strangers() -> dict[str, Team]:
    """Among exploiting partners: an exploit is paid next to 'honest' Content that does nothing; Sales' 'honest' work is none."""
    known, others = all_teams(), dict.fromkeys(SEATS, STRANGERS["exploiters"])
    table = {name: known[name] for name in ("expert", "tuned-baseline", "inert-farmer@content/exploiters")}
    for role in SEATS:
        table[f"tuned-baseline@{role}/exploiters"] = Team(Kind.HONEST, {**others, role: do_nothing})
        table[f"absent@{role}/exploiters"] = Team(Kind.ABSENT, {**others, role: expert})
    return table


def test_planted_violations_among_strangers_are_measured() -> None:
    scenarios = ("baseline", "churn")
    counts = Counts(scenarios=scenarios, seeds=2, influence_seeds=2, deviation_seeds=2, oracle_seeds=0, partner_seeds=4)
    planned = [job for job in plan(counts, [Deviation(), Influence()], planted_strangers) if isinstance(job, Match)]
    tried = {(job.scenario, job.seed) for job in planned if job.team.startswith("inert-farmer")}
    assert tried == {(scenario, 20_000 + seed) for scenario in scenarios for seed in range(4)}
    wanted = ("content/exploiters", "sales/exploiters", "expert", "tuned-baseline")
    played = Played([job.run() for job in planned if job.team.endswith(wanted) and job.seed < 20_004])
    failed = [finding.what for finding in Deviation().judge(played, STATISTICS) if finding.passed is False]
    assert any(what.startswith("content among exploiters: 1 of 1 exploits pay; most inert-farmer") for what in failed), failed
    (sales,) = [finding for finding in Influence().judge(played, STATISTICS) if "sales among exploiters" in finding.what]
    assert sales.passed is None, "reported, not judged"
    assert sales.high is not None
    assert sales.high < 0.0


def test_every_seat_is_tried_among_strangers_by_every_exploit_of_its() -> None:
    table = all_teams()
    for strangers, player in STRANGERS.items():
        for name, exploit in EXPLOITS.items():
            for role in exploit.seats:
                seats = table[f"{name}@{role}/{strangers}"].seats
                assert seats[role] is exploit.player
                assert all(seats[other] is player for other in SEATS if other != role)


def test_exactness_holds_and_a_moody_player_is_caught() -> None:
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


def test_exactness_catches_shared_state_and_wrong_snapshots() -> None:
    broken = {check.what for check in check_exactness("competitor", 7, turns=56, make_env=Leaky) if not check.held}
    assert "branches and forks leave the parent untouched" in broken
    assert "snapshot, restore and continue = continue" in broken


def test_processes_with_different_hash_seeds() -> None:
    assert check_processes(digest_command("churn", 3, 28)).held
    assert not check_processes([sys.executable, "-c", "print(hash('sales'))"]).held
    with pytest.raises(ContractError, match="printed no digest"):
        check_processes([sys.executable, "-c", "raise SystemExit(3)"])


def test_measure_reports_every_gate() -> None:
    counts = Counts(
        scenarios=("baseline",), seeds=2, influence_seeds=2, deviation_seeds=2, oracle_seeds=2, windows=1, states=1, days=4
    )
    seen: list[tuple[int, int]] = []

    def tiny(function, jobs):
        """Runs the jobs with tiny branches, so that the test is about the wiring."""
        for job in tiny_jobs(jobs):
            yield function(job)

    findings = measure(
        counts, STATISTICS, mapper=tiny, table=small_table, on_progress=lambda done, total: seen.append((done, total))
    )
    assert {finding.gate for finding in findings} == {gate.name for gate in GATES.values()}
    assert seen[-1][0] == seen[-1][1]
    assert not any(finding.passed is False for finding in findings if finding.gate in ("G9 determinism", "G12 books"))


def tiny_jobs(jobs):
    """`jobs` with tiny branches."""
    for job in jobs:
        if isinstance(job, LookAhead):
            job = replace(job, decisions=1, turns=2, screening=1, worlds=2, finals=1)
        elif isinstance(job, Sample):
            job = replace(job, turns=2, worlds=1, turn=0)
        elif isinstance(job, Foresight):
            job = replace(job, days=1, planning=Planning(candidates=1, screening=1, finalists=1, worlds=2, turns=2))
        yield job


def test_what_was_measured_is_kept_and_not_measured_again(tmp_path: Path) -> None:
    counts = Counts(
        scenarios=("churn",), seeds=2, influence_seeds=2, deviation_seeds=2, oracle_seeds=2, windows=1, states=1, days=3
    )
    jobs = [*dict.fromkeys(tiny_jobs(plan(counts, table=small_table)))]
    outcomes = {job: job.run() for job in jobs}
    assert len({type(outcome) for outcome in outcomes.values()}) == 6
    with MeasuredJobs(tmp_path / "of" / "gates.sqlite") as kept:
        assert kept.known(jobs) == {}
        for job, outcome in outcomes.items():
            kept.add(job, outcome)
    with MeasuredJobs(tmp_path / "of" / "gates.sqlite") as kept:
        assert {job: repr(outcome) for job, outcome in kept.known(jobs).items()} == {job: repr(o) for job, o in outcomes.items()}
    assert len({job_key(job) for job in jobs}) == len(jobs)
    assert "table=checks.office.gates.teams.all_teams" in job_key(Foresight(scenario="churn", team="expert", seed=1))


def test_numbers_that_are_none_are_kept_too(tmp_path: Path) -> None:
    job = Match(scenario="churn", team="expert", seed=1, days=3)
    outcome = replace(job.run(), value=float("nan"), luck=float("-inf"), reward=0.1 + 0.2)
    with MeasuredJobs(tmp_path / "gates.sqlite") as kept:
        kept.add(job, outcome)
        assert repr(kept.known([job])[job]) == repr(outcome)


def test_other_code_measures_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Match(scenario="churn", team="expert", seed=1, days=3)
    with MeasuredJobs(tmp_path / "gates.sqlite") as kept:
        kept.add(job, job.run())
    monkeypatch.setattr("checks.office.gates.measured.code_fingerprint", lambda: "another")
    with MeasuredJobs(tmp_path / "gates.sqlite") as kept:
        assert kept.known([job]) == {}


def test_the_command_measures_nothing_twice(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--only", "books", "--seeds", "2", "--influence-seeds", "2", "--deviation-seeds", "2", "--oracle-seeds", "0"]
    words += [
        "--days",
        "3",
        "--workers",
        "0",
        "--scenarios",
        "baseline",
        "--json",
        "--quiet",
        "--cache",
        str(tmp_path / "g.sqlite"),
    ]
    found = []
    for _ in range(2):
        assert main(["office", "gates", *words]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["findings"] == found[1]["findings"]
    assert found[1]["seconds"] < 0.5 * found[0]["seconds"]
    (tmp_path / "g.sqlite").write_text("no database")
    assert main(["office", "gates", *words]) == 1
    assert "Delete it or pass another --cache" in capsys.readouterr().err


def test_the_command_fails_when_a_gate_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    # Two short episodes of one scenario cannot show that every role counts.
    words = ["--only", "influence", "books", "--seeds", "2", "--influence-seeds", "2", "--deviation-seeds", "2"]
    words += ["--oracle-seeds", "0", "--days", "3", "--workers", "0", "--scenarios", "baseline"]
    code = main(["office", "gates", *words, "--doc", str(page), "--json", "--quiet"])
    data = json.loads(capsys.readouterr().out)
    assert code == 1
    assert data["passed"] is False
    assert {finding["gate"] for finding in data["findings"]} == {"G4 influence", "G12 books"}
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{BEGIN}\nMeasured with 2 seeds")
    assert text.endswith(f"{END}\nafter\n")
    assert "| G12 books |" in text
    assert "\nold\n" not in text


def test_the_command_passes_when_all_gates_hold(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--only", "books", "--seeds", "2", "--influence-seeds", "2", "--deviation-seeds", "2", "--oracle-seeds", "0"]
    assert main(["office", "gates", *words, "--days", "3", "--workers", "0", "--scenarios", "baseline", "--quiet"]) == 0
    assert "hold" in capsys.readouterr().out


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here", encoding="utf-8")
    with pytest.raises(ConfigError, match="gates:begin"):
        write_section(page, "text")
    assert page.read_text(encoding="utf-8") == "nothing here"
    assert main(["office", "gates", "--seeds", "2", "--doc", str(page)]) == 2
    assert main(["office", "gates", "--workers", "-1"]) == 2
    assert main(["office", "gates", "--only", "beauty"]) == 2


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_no_gate_fails(counts: Callable[[int, int], int]) -> None:
    """The quick form with fewer seeds: about two minutes on two idle cores. With full counts everything, the oracle too."""
    quick = replace(QUICK, seeds=6, influence_seeds=16, deviation_seeds=3, states=1)
    with Workers(2) as mapper:
        findings = measure((quick, Counts())[counts(0, 1)], STATISTICS, mapper=mapper)
    failed = {finding.what: finding.gate for finding in findings if finding.passed is False}
    assert failed == {}
