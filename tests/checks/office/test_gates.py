"""Each gate passes a healthy office and sees a planted violation fail; the numbers here are made up, none is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from checks.office.gates.agreement import Agreement
from checks.office.gates.books import Books, Luck
from checks.office.gates.deviation import Deviation
from checks.office.gates.exact import Check, Checks, Determinism
from checks.office.gates.finding import Finding, Statistics
from checks.office.gates.foresight import Foreseen
from checks.office.gates.gate import Counts, Gate, Played
from checks.office.gates.headroom import Headroom
from checks.office.gates.influence import Influence
from checks.office.gates.matches import Result, Table
from checks.office.gates.messages import Messages
from checks.office.gates.order import Order
from checks.office.gates.position import ORDERS, Position
from checks.office.gates.scoping import PARTNERS, SECRETS, Leak, Scoping
from checks.office.gates.signal import Signal, Spread
from checks.office.gates.teams import SEATS, STRANGERS, Kind
from checks.office.gates.variety import Variety
from checks.office.gates.windows import Gain
from onthejob.errors import ConfigError
from onthejob.evaluate.statistics import paired_difference, spearman

STATISTICS = Statistics(partial(paired_difference, seed=0, resamples=200), spearman)
SEEDS = range(8)
SCENARIOS = ("baseline", "churn", "viral", "series_a", "competitor")
# Made-up results of a healthy office: (kind, company value in thousands, team reward).
HEALTHY: dict[str, tuple[Kind, float, float]] = {
    "spammer": (Kind.EXPLOITER, 60.0, 20.0),
    "random": (Kind.IDLE, 70.0, 30.0),
    "heuristic": (Kind.HEURISTIC, 200.0, 500.0),
    "expert": (Kind.EXPERT, 260.0, 640.0),
    "expert-mute": (Kind.MUTED, 240.0, 600.0),
    **{f"expert-no-{role}": (Kind.ABLATION, 220.0, 560.0) for role in SEATS},
    **{f"spammer@{role}@{scenario}": (Kind.DEVIANT, 200.0, 550.0) for role in SEATS for scenario in SCENARIOS},
    **{f"tuned-{scenario}": (Kind.TUNED, 300.0, 700.0) for scenario in SCENARIOS},
    **{f"tuned-{scenario}-mute": (Kind.MUTED, 270.0, 650.0) for scenario in SCENARIOS},
    **{f"tuned-{scenario}@{role}/{strangers}": (Kind.HONEST, 130.0, 120.0)
       for scenario in SCENARIOS for role in SEATS for strangers in STRANGERS},
    **{f"absent@{role}/{strangers}": (Kind.ABSENT, 90.0, 0.0) for role in SEATS for strangers in STRANGERS},
    **{f"spammer@{role}/{strangers}": (Kind.INTRUDER, 80.0, 60.0) for role in SEATS for strangers in STRANGERS},
}  # fmt: skip


def result(scenario: str, team: str, seed: int, kind: Kind, value: float, reward: float, **changes: Any) -> Result:
    made: dict[str, Any] = {
        "scenario": scenario, "team": team, "kind": kind, "seed": seed, "reward": reward,
        "value": 1000.0 * (value + 5 * seed + (seed * len(team)) % 3), "rewards": tuple([reward / 6 + seed] * 6),
        "luck": float(seed - 3.5), "won": 5, "churned": 1, "ledger_gap": 0, "finite": True,
        "goal": team == "expert" and seed < 5,
        "path": tuple((1000.0 * (1 + SCENARIOS.index(scenario)) + seed, 1.0 * day) for day in range(4)),
    }  # fmt: skip
    return Result(**{**made, **changes})


def results(changes: dict[str, tuple[Kind, float, float]] | None = None) -> list[Result]:
    """One result per scenario, team and seed; seeds share their luck. A tuned team plays at home, the baseline's everywhere."""
    made = []
    for scenario in SCENARIOS:
        for team, (kind, value, reward) in {**HEALTHY, **(changes or {})}.items():
            if kind == Kind.DEVIANT and not team.endswith(f"@{scenario}"):
                continue
            home = team.removeprefix("tuned-").removesuffix("-mute").partition("@")[0]
            if kind == Kind.HONEST and home != scenario:
                continue
            if team.startswith("tuned-") and home not in (scenario, "baseline"):
                continue
            abroad = 20.0 if team.startswith("tuned-") and home != scenario else 0.0
            seeds = SEEDS[: len(SEEDS) // 2] if kind == Kind.INTRUDER else SEEDS
            made += [result(scenario, team, seed, kind, value - abroad, reward) for seed in seeds]
    return made


def others() -> list[Any]:
    """Healthy outcomes that are no episodes of the usual teams."""
    return [
        *(Foreseen(scenario=s, team=f"tuned-{s}", seed=seed, value=1000.0 * (350 + 5 * seed))
          for s in SCENARIOS for seed in SEEDS),
        *(Gain(scenario="viral", role=SEATS[i % 6], seed=i, gain=500.0 + i, changed=1) for i in range(12)),
        *(Spread(scenario="viral", role="dev", seed=i, values=(0.0, 100.0, 50.0)) for i in range(5)),
        *(Leak(scenario="viral", seed=1, checked=60, leaks=(), seen=tuple(SECRETS), partners=kind) for kind in PARTNERS),
        Checks([Check(what="twin", held=True)]),
        *(
            result(s, "expert", seed, Kind.EXPERT, 260.0, 641.0, order=order)
            for s in SCENARIOS for seed in SEEDS for order in ORDERS
        ),
    ]  # fmt: skip


GATES: tuple[Gate, ...] = (
    Order(), Agreement(), Deviation(), Influence(), Headroom(), Variety(), Messages(), Scoping(), Determinism(), Position(),
    Signal(), Books(), Luck(),
)  # fmt: skip


def judged(gate: Gate, outcomes: list[Any]) -> list[Finding]:
    return gate.judge(Played(outcomes), STATISTICS)


def failures(gate: Gate, outcomes: list[Any]) -> list[str]:
    """What of this gate did not hold."""
    findings = judged(gate, outcomes)
    assert any(finding.passed is not None for finding in findings), "the gate asked for nothing"
    assert {finding.gate for finding in findings} == {gate.name}
    return [finding.what for finding in findings if finding.passed is False]


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_a_healthy_office_passes(gate: Gate) -> None:
    assert failures(gate, [*results(), *others()]) == []


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_a_gate_without_measurements_fails(gate: Gate) -> None:
    assert failures(gate, [])


@pytest.mark.parametrize(
    ("gate", "changes", "said"),
    [
        (Order(), {"spammer": (Kind.EXPLOITER, 205.0, 20.0)}, "heuristic - spammer"),
        (Order(), {"random": (Kind.IDLE, 205.0, 20.0)}, "heuristic - random"),
        (Order(), {"heuristic": (Kind.HEURISTIC, 265.0, 500.0)}, "expert - heuristic"),
        (Order(), {"tuned-viral": (Kind.TUNED, 255.0, 700.0)}, "viral: scenario-tuned expert - expert"),
        (Order(), {"tuned-viral": (Kind.TUNED, 360.0, 700.0)}, "viral: oracle"),
        (Agreement(), {"spammer": (Kind.EXPLOITER, 60.0, 700.0)}, "best paid exploiter"),
        (Agreement(), {"random": (Kind.IDLE, 70.0, 630.0), "expert": (Kind.EXPERT, 260.0, 10.0)}, "reward and company value"),
        (Deviation(), {"spammer@hr@viral": (Kind.DEVIANT, 200.0, 760.0)}, "hr: 1 of 5 exploits pay"),
        (Influence(), {"expert-no-ceo": (Kind.ABLATION, 258.0, 560.0)}, "ceo doing nothing"),
        (Influence(), {"expert-no-hr": (Kind.ABLATION, 270.0, 640.0)}, "hr doing nothing"),
        (Deviation(), {"spammer@hr/random": (Kind.INTRUDER, 80.0, 180.0)}, "hr among random: 1 of 1 exploits pay"),
        (Deviation(), {"spammer@ceo/exploiters": (Kind.INTRUDER, 80.0, 180.0)}, "ceo among exploiters: 1 of 1 exploits pay"),
        (Headroom(), {"tuned-churn": (Kind.TUNED, 340.0, 700.0)}, "churn: lead of the oracle"),
        (Variety(), {"tuned-churn": (Kind.TUNED, 275.0, 700.0)}, "churn: its own tuned expert"),
        (Messages(), {f"tuned-{s}-mute": (Kind.MUTED, 295.0, 700.0) for s in SCENARIOS}, "blanking"),
    ],
    ids=lambda value: value.name if isinstance(value, Order | Agreement) else None,
)  # fmt: skip
def test_gates_on_teams_see_violations(gate: Gate, changes: dict, said: str) -> None:
    failed = failures(gate, [*results(changes), *others()])
    assert any(said in what for what in failed), failed


def test_an_exploit_that_helps_the_company_is_no_violation() -> None:
    assert failures(Deviation(), results({"spammer@hr@viral": (Kind.DEVIANT, 320.0, 760.0)})) == []
    assert failures(Deviation(), results({"spammer@hr@viral": (Kind.DEVIANT, 100.0, 660.0)})) == []
    assert failures(Deviation(), results({"spammer@hr/random": (Kind.INTRUDER, 180.0, 760.0)})) == []
    assert failures(Deviation(), results({"spammer@hr/random": (Kind.INTRUDER, 20.0, 60.0)})) == []


def test_an_exploit_that_pays_in_one_scenario_among_strangers_is_seen() -> None:
    rows = [
        replace(
            row, rewards=tuple(r + 60.0 + row.seed % 3 for r in row.rewards)
        )  # A few that are all alike would be no evidence.
        if row.team == "spammer@hr/random" and row.scenario == "viral"
        else row
        for row in results()
    ]
    (what,) = failures(Deviation(), rows)
    assert what.startswith("hr among random: 1 of 1 exploits pay; most spammer in viral")


def test_influence_in_three_of_five_scenarios_is_too_little() -> None:
    experts = {(r.scenario, r.seed): r.value for r in results() if r.team == "expert"}
    rows = [
        replace(row, value=experts[row.scenario, row.seed])
        if row.team == "expert-no-dev" and row.scenario in SCENARIOS[:2]
        else row
        for row in results()
    ]
    (dev,) = [finding for finding in judged(Influence(), rows) if "dev doing nothing" in finding.what]
    assert dev.passed is False
    assert dev.low is not None
    assert dev.low > 0.0


@pytest.mark.parametrize(
    ("team", "share", "passes"),
    [("expert", 1.0, False), ("expert", 0.25, False), ("expert", 0.625, True), ("random", 0.125, False), ("random", 0.0, True)],
)
def test_goals_are_neither_given_nor_out_of_reach(team: str, share: float, passes: bool) -> None:
    rows = [replace(r, goal=r.seed < share * len(SEEDS)) if r.team == team else r for r in results()]
    failed = failures(Headroom(), [*rows, *others()])
    assert (failed == []) is passes
    assert all(team in what for what in failed)


def test_headroom_of_single_decisions_needs_the_interval_above_zero() -> None:
    def windows(*values: float) -> list[bool | None]:
        gains = [Gain(scenario="viral", role=SEATS[i % 6], seed=i, gain=v, changed=1) for i, v in enumerate(values)]
        return [finding.passed for finding in Headroom().windows(gains, STATISTICS) if finding.passed is not None]

    assert windows(900, 1100, 700, 1500, 400, 800, 950, 1200) == [True]
    assert windows(900, -1100, 700, -1500, 400, 800, -950, 1200) == [False]
    assert windows(*[0.0] * 8) == [False]
    assert windows() == [False]


def test_scenarios_that_look_alike_are_seen() -> None:
    # Every scenario's episodes are the same five paths, so a path says nothing about its scenario.
    alike = [replace(r, path=((float(r.seed), 1.0),)) for r in results()]
    assert any("KPIs" in what for what in failures(Variety(), alike))


def test_leaks_and_a_blind_test_are_seen() -> None:
    healthy = [Leak(scenario="viral", seed=1, checked=60, leaks=(), seen=tuple(SECRETS), partners=kind) for kind in PARTNERS]
    assert failures(Scoping(), healthy) == []
    for place, kind in enumerate(PARTNERS):
        told = [replace(leak, leaks=("dev sees morale",)) if i == place else leak for i, leak in enumerate(healthy)]
        (what,) = failures(Scoping(), told)
        assert what.startswith(f"{kind}: ")
        (what,) = failures(Scoping(), [leak for leak in healthy if leak.partners != kind])
        assert f"no state of a team of {kind}" in what
    assert any("nothing was tested" in what for what in failures(Scoping(), [replace(leak, seen=()) for leak in healthy]))


def test_a_broken_twin_is_seen() -> None:
    made = [Checks([Check(what="twin", held=True, detail="a")]), Checks([Check(what="twin", held=False, detail="b")])]
    assert failures(Determinism(), made) == ["twin, 2 episodes (b)"]
    assert failures(Determinism(), made[:1]) == []


def test_a_role_that_gains_by_acting_first_is_seen() -> None:
    moved = [
        replace(r, rewards=(r.rewards[0], 1.08 * r.rewards[1], *r.rewards[2:]))
        if isinstance(r, Result) and r.order in ORDERS
        else r
        for r in others()
    ]
    failed = failures(Position(), [*results(), *moved])
    assert len(failed) == 1
    assert failed[0].startswith("dev:")


def test_orders_that_cancel_each_other_are_seen() -> None:
    factors = dict(zip(ORDERS, (1.3, 0.85, 0.85), strict=True))
    moved = [
        replace(r, rewards=(r.rewards[0], factors[r.order] * r.rewards[1], *r.rewards[2:]))
        if isinstance(r, Result) and r.order in ORDERS
        else r
        for r in others()
    ]
    (failed,) = failures(Position(), [*results(), *moved])
    assert failed.startswith("dev:")


@pytest.mark.parametrize(
    ("gate", "absent", "said"),
    [
        (Order(), lambda r: r.kind == Kind.EXPLOITER, "viral: no exploiters played"),
        (Order(), lambda r: r.kind == Kind.IDLE, "viral: no idle teams played"),
        (Deviation(), lambda r: "@hr@" in r.team, "hr: no deviation was played"),
        (Influence(), lambda r: r.team == "expert-no-content", "content was never omitted"),
        (Influence(), lambda r: r.team == "absent@ceo/random", "ceo was never omitted among random"),
        (Deviation(), lambda r: r.team == "spammer@dev/exploiters", "dev among exploiters: no deviation was played"),
        (Luck(), lambda r: r.kind == Kind.HEURISTIC, "no heuristic team played"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_part_that_was_not_measured_does_not_hold(gate: Gate, absent: Callable[[Result], bool], said: str) -> None:
    assert said in failures(gate, [r for r in results() if not absent(r)])


def test_influence_must_be_beyond_chance_where_it_counts() -> None:
    """In two of five scenarios the mean is above 3 % and the interval is not above 0."""
    rows = [
        replace(row, value=row.value + (90_000.0 if row.seed % 2 else -90_000.0))
        if row.team == "expert-no-dev" and row.scenario in SCENARIOS[:2]
        else row
        for row in results()
    ]
    (dev,) = [finding for finding in judged(Influence(), rows) if "dev doing nothing" in finding.what]
    assert dev.passed is False


def test_signal_needs_living_groups() -> None:
    def spreads(*rows: tuple[float, ...]) -> list[Any]:
        return [Spread(scenario="viral", role="dev", seed=i, values=row) for i, row in enumerate(rows)]

    lively, dead, faint = (0.0, 100.0, 50.0), (70.0, 70.0, 70.0), (70.0, 70.5, 70.2)
    assert failures(Signal(), spreads(lively, lively, lively, lively, dead)) == []
    assert failures(Signal(), spreads(lively, lively, lively, dead, faint))
    assert failures(Signal(), spreads(dead, dead))


@pytest.mark.parametrize("broken", [{"ledger_gap": -1}, {"finite": False}, {"problems": ("morale is 2.0, outside [0, 1]",)}])
def test_books_see_a_missing_cent_a_nan_and_a_broken_invariant(broken: dict) -> None:
    rows = results()
    assert len(failures(Books(), [*rows, replace(rows[0], **broken)])) == 1


def test_the_luck_account_sees_skill_that_was_taken_for_luck() -> None:
    assert failures(Luck(), results()) == []
    lucky = [replace(row, luck=15_000.0 + row.luck) if row.kind == Kind.EXPERT else row for row in results()]
    (what,) = failures(Luck(), lucky)
    assert what.endswith("expert teams")


def test_teams_with_different_numbers_of_seeds_are_compared_on_common_seeds() -> None:
    rows = [row for row in results() if row.team != "heuristic" or row.seed >= 5]
    first, second = Table(rows).values("churn", "expert", "heuristic")
    assert len(first) == len(second) == 3
    assert [x - y for x, y in zip(first, second, strict=True)] == pytest.approx(
        [1000.0 * (60.0 + (seed * 6) % 3 - (seed * 9) % 3) for seed in (5, 6, 7)]
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"seeds": 1}, {"seeds": 9, "influence_seeds": 8}, {"windows": 0}, {"states": 0}, {"scenarios": ()}, {"days": 2},
        {"deviation_seeds": 1}, {"oracle_seeds": 1}, {"oracle_seeds": 61}, {"partner_seeds": 0},
    ],
)  # fmt: skip
def test_counts_refuse_what_cannot_be_judged(wrong: dict) -> None:
    with pytest.raises(ConfigError, match=r"gates need|days must be|oracle seeds must be|partner seeds must be"):
        Counts(**wrong)
