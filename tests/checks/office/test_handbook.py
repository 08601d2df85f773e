"""docs/office.md: its tables are those of the code. docs/gates.md: it explains every gate and shows what was measured of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from checks.office.gates.measure import GATES
from checks.office.handbook import TABLES, refresh, replace_section
from onthejob.envs.office.market import efficacy
from onthejob.envs.office.overnight import MOST_OPEN, SIGNUP_TO_LEAD
from onthejob.envs.office.roles import ROLES
from onthejob.envs.office.scenarios import load
from onthejob.envs.office.simulator import Simulator
from onthejob.errors import ConfigError


@pytest.fixture
def page(repository: Path) -> str:
    return (repository / "docs" / "office.md").read_text(encoding="utf-8")


def test_the_tables_are_current(page: str):
    assert refresh(page) == page, "run: python -m checks.office.handbook docs/office.md"


def test_a_changed_rule_makes_the_page_stale(page: str):
    changed = dict(TABLES) | {"tiers": lambda: TABLES["tiers"]().replace("15 %", "16 %")}
    assert refresh(page, changed) != page


def test_every_action_is_on_the_page(page: str):
    for role, spec in ROLES.items():
        for action in spec.actions:
            assert f"| {role} | `{action}` |" in page


def test_every_gate_is_explained_and_measured(repository: Path):
    page = (repository / "docs" / "gates.md").read_text(encoding="utf-8")
    told, measured_part = page.split("<!-- gates:begin -->")
    explained = {
        f"{number} {name}".strip() for number, name in re.findall(r"^\| (G?\d*) ?\| `([a-z]+)` \|", told, flags=re.MULTILINE)
    }
    assert explained == {gate.name.removesuffix(" account") for gate in GATES.values()}
    assert set(re.findall(r"`([a-z]+)` \|", told)) == set(GATES)
    measured = set(re.findall(r"^\| (G\d+ [a-z]+) \|", measured_part, flags=re.MULTILINE))
    assert measured == {gate.name for gate in GATES.values() if gate.name.startswith("G")}


def test_the_numbers_of_the_text_are_those_of_the_code(page: str):
    s = Simulator(load("baseline")).found(1)
    s.focus_left = s.directive_left = 0
    s.blockers.clear()

    def percent(**changes: object) -> str:
        """What efficacy gains when the company is changed so, against an even mood."""
        changed = s.copy()
        for name, value in {"morale": 0.5, "alignment": 0.5, **changes}.items():
            setattr(changed, name, value)
        plain = s.copy()
        plain.morale = plain.alignment = 0.5
        return f"{100 * (efficacy(changed, 'dev', 0) / efficacy(plain, 'dev', 0) - 1):.0f}"

    focus = {"focus": 0, "focus_left": 3}
    told = (
        f"morale (±{percent(morale=1.0)} %), alignment (±{percent(alignment=1.0)} %), the live focus "
        f"(±{percent(**focus)} %, ±{percent(**focus, tracked=s.day)} % while tracked), a directive "
        f"(+{percent(directive_left=2, directive_role='dev')} %), and a blocker "
        f"(−{percent(blockers={'dev': 0}).lstrip('-')} %;"
    )
    text = " ".join(page.split())
    assert told in text
    assert f"The leads of a segment are its visits × conversion × {100 * SIGNUP_TO_LEAD:.1f} %" in text
    assert f"none arrive while {MOST_OPEN} accounts are open" in text


def test_no_handler_is_without_words():
    for name, make in TABLES.items():
        assert "|  |  |" not in make(), name
        assert "None" not in make(), name


def test_markers_are_demanded():
    assert (
        replace_section("a <!-- x:begin --> old <!-- x:end --> b", "x", r"new \1")
        == "a <!-- x:begin -->\nnew \\1\n<!-- x:end --> b"
    )
    for text in ("nothing", "<!-- x:end --> <!-- x:begin -->", "<!-- x:begin --> <!-- x:begin --> <!-- x:end -->"):
        with pytest.raises(ConfigError, match="x:begin"):
            replace_section(text, "x", "body")
