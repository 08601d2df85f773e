"""A state is data: it copies, packs and unpacks exactly, and refuses what is not a state."""

from __future__ import annotations

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import onthejob
from onthejob.envs.office.scenarios import Scenario
from onthejob.envs.office.state import CATALOGUE, PAINS, SNAPSHOT_VERSION, Account, Piece, Stage, State

PACKED = State.__slots__


@pytest.fixture(scope="module")
def lived(playing) -> State:
    """A company with everything in it: accounts of many stages, pieces, messages, campaigns on their way."""
    for _, s, *_ in playing("expert", "viral", 3):
        if s.turn >= 150 and s.campaigns and s.inbox and s.pieces and s.contractor_days:
            return s
    raise AssertionError("the episode never got there")


def spoil(value: Any) -> Any:
    """Change `value` in place where it can be changed; returns what to put in its place."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            value[index] = spoil(item)
        value.append("spoilt")
        return value
    if isinstance(value, dict):
        for key in list(value):
            value[key] = spoil(value[key])
        value["spoilt"] = 1
        return value
    if isinstance(value, Account | Piece):
        for slot in type(value).__slots__:
            setattr(value, slot, spoil(getattr(value, slot)))
        return value
    return "spoilt"


def test_a_copy_shares_nothing_that_can_change(lived: State) -> None:
    before = lived.dumps()
    twin = lived.copy()
    assert twin.dumps() == before
    for slot in PACKED:
        setattr(twin, slot, spoil(getattr(twin, slot)))
    assert lived.dumps() == before


@settings(max_examples=8)
@given(seed=st.integers(0, 10**9), turns=st.integers(0, 160), scenario=st.sampled_from(("baseline", "churn", "viral")))
def test_packing_is_exact_and_is_json(playing, seed: int, turns: int, scenario: str) -> None:
    s = next(s for _, s, *_ in playing("random", scenario, seed) if s.turn > turns or s.done)
    packed = s.dumps()
    again = State.loads(packed)
    assert again.dumps() == packed
    assert json.loads(packed)[0] == SNAPSHOT_VERSION
    for slot in PACKED:
        if slot not in ("accounts", "pieces"):
            assert repr(getattr(again, slot)) == repr(getattr(s, slot)), slot


@pytest.mark.parametrize("slot", PACKED)
def test_a_field_of_another_type_is_refused(lived: State, slot: str) -> None:
    values = json.loads(lived.dumps())
    place = 1 + PACKED.index(slot)
    values[place] = None
    with pytest.raises((TypeError, ValueError)):
        State.loads(json.dumps(values).encode())
    values[place] = {"a": 1} if not isinstance(getattr(lived, slot), dict) else [1]
    with pytest.raises((TypeError, ValueError)):
        State.loads(json.dumps(values).encode())


def test_every_field_is_read_by_some_rule() -> None:
    """What nobody reads is no state: it only makes forks and snapshots larger."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in Path(onthejob.__file__).parent.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    read = {node.attr for node in nodes if isinstance(node.ctx, ast.Load)}
    fields = {*State.__slots__, *Account.__slots__, *Piece.__slots__, *(field.name for field in dataclasses.fields(Scenario))}
    assert fields - read == set()


def test_other_versions_other_lengths_and_short_rows_are_refused(lived: State) -> None:
    values = json.loads(lived.dumps())
    for wrong in ([SNAPSHOT_VERSION + 1, *values[1:]], values[:-1], [*values, 0], [], {}, "state", 3):
        with pytest.raises(ValueError, match="not an office snapshot"):
            State.loads(json.dumps(wrong).encode())
    for slot in ("accounts", "pieces"):
        shorter = json.loads(lived.dumps())
        shorter[1 + PACKED.index(slot)][0].pop()
        with pytest.raises(ValueError, match="zip"):
            State.loads(json.dumps(shorter).encode())
    late = json.loads(lived.dumps())
    late[1 + PACKED.index("turn")] = lived.horizon + 1
    with pytest.raises(ValueError, match="outside an episode"):
        State.loads(json.dumps(late).encode())


def test_a_state_with_a_number_that_is_none_is_not_packed(lived: State) -> None:
    twin = lived.copy()
    twin.brand = float("nan")
    with pytest.raises(ValueError, match="JSON"):
        twin.dumps()


def test_a_record_needs_all_its_fields() -> None:
    with pytest.raises(TypeError, match="exactly the fields"):
        Piece(day=0, id=1)
    with pytest.raises(AttributeError):
        Piece(day=0, id=1, kind=0, left=0, quality=0.0, topic=0, fake=True)


def test_stability_is_what_bugs_debt_and_load_leave(office) -> None:
    s = office().state
    s.bug_critical, s.bug_major, s.bug_minor, s.debt, s.load = 2, 4, 5, 0.2, 0.5
    assert s.stability == pytest.approx(1 - 0.2 - 0.14 - 0.05 - 0.05 - 0.15)
    s.bug_critical = 40
    assert s.stability == 0.0


def test_nps_maps_half_to_zero_and_is_bounded(office) -> None:
    company = office()
    customer = company.account(Stage.WON, sat=0.5)
    for sat, nps in ((0.5, 0.0), (0.9, 80.0), (0.3, -40.0), (1.0, 100.0), (0.0, -100.0)):
        customer.sat = sat
        assert company.state.nps() == pytest.approx(nps)


def test_satisfaction_is_the_mean_of_customers_or_the_prior(office) -> None:
    company = office()
    assert company.state.satisfaction() == company.state.base_sat == 0.6
    company.account(Stage.WON, sat=0.2)
    company.account(Stage.WON, sat=0.6)
    company.account(Stage.PROPOSAL, sat=1.0)
    assert company.state.satisfaction() == pytest.approx(0.4)


def test_half_cures_add_up_to_a_whole_one_and_not_further(office) -> None:
    s = office().state
    security = PAINS.index("security")
    audit, sso = (next(i for i, spec in enumerate(CATALOGUE) if spec.name == name) for name in ("Audit", "SSO"))
    assert s.fit(security) == 0.0
    s.feature_shipped[audit] = 0
    assert s.fit(security) == 0.5
    s.feature_shipped[sso] = 3
    assert s.fit(security) == 1.0


def test_monthly_revenue_counts_paying_customers_only(office) -> None:
    company = office()
    company.account(Stage.WON, size=1)
    company.account(Stage.NEGOTIATION, size=2)
    assert company.state.mrr() == 180_000
