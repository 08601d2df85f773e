"""Scenario files: the five of the seed with their numbers, and every mistake named in plain words."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onthejob.envs.office import scenarios
from onthejob.envs.office.scenarios import SHIPPED, Scenario, as_data, from_data, lint, load
from onthejob.envs.office.simulator import Simulator
from onthejob.errors import ConfigError

FOLDER = Path(scenarios.__file__).parent


def shipped(name: str = "viral") -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def test_the_five_of_the_seed() -> None:
    assert SHIPPED == ("baseline", "competitor", "series_a", "churn", "viral")
    facts = {name: (s.cash, s.traffic, s.pressure) for name, s in ((name, load(name)) for name in SHIPPED)}
    assert facts == {
        "baseline": (100_000, 1000, "low"),
        "competitor": (100_000, 800, "high"),
        "series_a": (200_000, 1000, "high"),
        "churn": (100_000, 1000, "critical"),
        "viral": (100_000, 3000, "chaotic"),
    }
    assert load("competitor").event_rate == pytest.approx(1.5 * load("baseline").event_rate) == pytest.approx(0.225)
    assert [(e.day, e.kind) for e in load("competitor").schedule] == [
        (3, "funding_news"), (7, "feature_parity"), (15, "poaching"), (25, "pr_crisis"),
    ]  # fmt: skip
    assert [(e.day, e.day90) for e in load("series_a").schedule] == [(1, 1), (10, 30), (20, 60)]
    assert [e.day for e in load("churn").schedule] == [1, 5, 10, 20]
    assert [e.day for e in load("viral").schedule][:4] == [1, 3, 7, 15]


@pytest.mark.parametrize("name", SHIPPED)
def test_the_first_morning_is_what_the_file_says(name: str) -> None:
    scenario = load(name)
    s = Simulator(scenario).found(9)
    assert s.cash == scenario.cash * 100 == sum(s.ledger.values())
    assert sum(s.traffic) == pytest.approx(scenario.traffic)
    assert len(s.customers()) == scenario.customers
    assert len(s.accounts) == scenario.customers + scenario.leads
    assert (s.bug_critical, s.bug_major, s.bug_minor) == tuple(scenario.bugs.values())
    assert s.satisfaction() == pytest.approx(scenario.satisfaction, abs=0.12)
    assert len({a.id for a in s.accounts}) == len({a.name for a in s.accounts}) == len(s.accounts)
    assert s.mrr() == s.start_mrr


def test_churn_starts_in_a_crisis() -> None:
    s = Simulator(load("churn")).found(2)
    assert (s.bug_critical, len(s.customers())) == (4, 8)
    assert s.stability == pytest.approx(0.5, abs=0.1)
    assert s.nps() < 0


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_files_pass_and_come_back_from_their_data(name: str) -> None:
    assert lint(shipped(name)) == []
    assert from_data(as_data(load(name))) == load(name)


MISTAKES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unknown key": (lambda d: d.update(cahs=1), "unknown key 'cahs'"),
    "missing key": (lambda d: d.pop("cash"), "missing keys: cash"),
    "too little": (lambda d: d.update(cash=10), "cash must be a whole number in [1000, "),
    "fraction of dollars": (lambda d: d.update(cash=1e5), "cash must be a whole number"),
    "half a lead": (lambda d: d.update(leads=2.5), "leads must be a whole number"),
    "text for a number": (lambda d: d.update(traffic="many"), "traffic must be a whole number"),
    "true for a number": (lambda d: d.update(debt=True), "debt must be a number in [0, 1], got True"),
    "not a number": (lambda d: d.update(hazard=float("nan")), "hazard must be a number"),
    "infinite": (lambda d: d.update(hazard=float("inf")), "hazard must be a number"),
    "rate": (lambda d: d.update(event_rate=1.5), "event_rate must be a number in [0, 1], got 1.5"),
    "competitor": (lambda d: d.update(competitor=-0.1), "competitor must be"),
    "satisfaction": (lambda d: d.update(satisfaction=2), "satisfaction must be"),
    "payroll": (lambda d: d.update(payroll=-1), "payroll must be"),
    "board": (lambda d: d.update(board_rate="x"), "board_rate must be"),
    "no such key": (lambda d: d.update(mrr_goal=3.0), "unknown key 'mrr_goal'"),
    "too many accounts": (lambda d: d.update(leads=8, customers=8), "together must be at most 12, got 16"),
    "pressure": (lambda d: d.update(pressure="mild"), "pressure must be one of low, high, critical, chaotic, got 'mild'"),
    "name": (lambda d: d.update(name=""), "name must be a text"),
    "title": (lambda d: d.update(title=3), "title must be a text"),
    "shares": (lambda d: d.update(segment_mix=[0.5, 0.5]), "segment_mix must hold 3 shares"),
    "negative share": (lambda d: d.update(segment_mix=[1.2, -0.4, 0.2]), "segment_mix must hold 3 shares >= 0"),
    "share not a number": (lambda d: d.update(segment_mix=[float("nan"), 0.5, 0.5]), "segment_mix must hold"),
    "sum of shares": (lambda d: d.update(segment_mix=[0.5, 0.5, 0.5]), "must sum to 1, got 1.5"),
    "bugs": (lambda d: d.update(bugs={"critical": 1}), "bugs must give counts"),
    "negative bugs": (lambda d: d.update(bugs={"critical": -1, "major": 0, "minor": 0}), "bugs must give counts"),
    "bugs not a table": (lambda d: d.update(bugs=3), "bugs must give counts"),
    "schedule not a list": (lambda d: d.update(schedule=7), "schedule must be a list"),
    "event without day": (lambda d: d.update(schedule=[{"kind": "poaching"}]), "an event needs day and kind"),
    "event with more": (lambda d: d.update(schedule=[{"day": 1, "kind": "poaching", "x": 1}]), "an event needs day and kind"),
    "event not a table": (lambda d: d.update(schedule=["poaching"]), "an event needs day and kind"),
    "unknown event": (lambda d: d.update(schedule=[{"day": 1, "kind": "picnic"}]), "unknown event kind 'picnic'"),
    "event kind not a text": (lambda d: d.update(schedule=[{"day": 1, "kind": ["x"]}]), "unknown event kind ['x']"),
    "day beyond the horizon": (lambda d: d.update(schedule=[{"day": 31, "kind": "poaching"}]), "day 31, which is outside 1..30"),
    "day zero": (lambda d: d.update(schedule=[{"day": 0, "kind": "poaching"}]), "outside 1..30"),
    "half a day": (lambda d: d.update(schedule=[{"day": 1.5, "kind": "poaching"}]), "has day 1.5"),
    "preset day": (lambda d: d.update(schedule=[{"day": 1, "day90": 91, "kind": "poaching"}]), "has day90 91, which is outside"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_named(mistake: str) -> None:
    data = shipped()
    change, said = MISTAKES[mistake]
    change(data)
    problems = lint(data)
    assert len(problems) == 1
    assert said in problems[0]
    with pytest.raises(ConfigError, match="scenario"):
        from_data(data)


def test_all_mistakes_are_named_at_once() -> None:
    data = shipped() | {"cash": 1, "pressure": "x", "extra": 1}
    assert len(lint(data)) == 3


def test_lint_knows_the_horizon() -> None:
    data = shipped() | {"schedule": [{"day": 20, "kind": "poaching"}]}
    assert lint(data) == []
    assert "outside 1..10" in lint(data, days=10)[0]


def test_a_users_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = (FOLDER / "churn.toml").read_text(encoding="utf-8").replace('name = "churn"', 'name = "mine"')
    path.write_text(text.replace("traffic = 1000", "traffic = 1234"), encoding="utf-8")
    mine = load(path)
    assert (mine.name, mine.traffic) == ("mine", 1234)
    assert load(str(path)) == mine
    assert isinstance(mine, Scenario)


def test_a_calendar_out_of_order_is_kept_in_order() -> None:
    data = shipped() | {"schedule": [{"day": 20, "kind": "poaching"}, {"day": 2, "kind": "lead_flood"}]}
    s = Simulator(from_data(data)).found(1)
    assert s.schedule == [[2, "lead_flood"], [20, "poaching"]]


def test_whole_numbers_are_fine_where_shares_are_meant() -> None:
    s = Simulator(from_data(shipped() | {"debt": 0, "competitor": 1, "hazard": 2})).found(1)
    assert type(s.debt) is type(s.competitor) is type(s.hazard) is float


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nonesuch", "unknown scenario 'nonesuch'; known are baseline"),
        ("nowhere/missing.toml", "cannot be read: No such file"),
    ],
)
def test_what_cannot_be_loaded_is_said(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(name)


def test_files_that_are_not_toml_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("cash = = 3", encoding="utf-8")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "folder.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "folder.toml")
