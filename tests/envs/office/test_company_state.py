"""A state is data: it copies, packs and unpacks exactly, and refuses what is not a state."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import onthejob
from onthejob.envs.office.company_state import CATALOGUE, HELD_OUT, PAINS, STATE_FIELDS, Account, CompanyState, Piece, Stage
from onthejob.envs.office.env import SEATS
from onthejob.envs.office.fast_play import run
from onthejob.envs.office.market import PRICES, TIER_VESTS, VESTING_DAYS, prospects
from onthejob.envs.office.names import HELD_OUT_NAMES, NAMES
from onthejob.envs.office.new_company import DRAWN_WARMTH, brought, drawn_quality
from onthejob.envs.office.phrases import PHRASES
from onthejob.envs.office.policies import Player
from onthejob.envs.office.policies.expert import expert
from onthejob.envs.office.roles import ROLES
from onthejob.envs.office.scenarios import SHIPPED, Scenario, load
from onthejob.envs.office.simulator import ROLE_NAMES, Simulator
from onthejob.envs.office.snapshot import VERSION, dumps, loads
from onthejob.envs.office.views import view

PACKED = tuple(slot for slot in STATE_FIELDS if slot != "drawn_names")
ROWS = ("accounts", "pieces", "collab_seen")
"""Fields that are compared otherwise: records, and a list whose order means nothing."""


def plain(s: CompanyState) -> list[Any]:
    """`s` as version 4 of the snapshot has it, all JSON, for what does not fit the columns."""
    values = {slot: getattr(s, slot) for slot in PACKED}
    for slot in ("accounts", "pieces"):
        values[slot] = [[getattr(item, name) for name in sorted(type(item).__slots__)] for item in values[slot]]
    return json.loads(json.dumps([4, *values.values()]))


def packed(values: Any) -> bytes:
    return json.dumps(values).encode()


def same(one: CompanyState, other: CompanyState) -> None:
    """Equal in every bit of every field, types included."""
    for slot in STATE_FIELDS:
        if slot not in ROWS:
            assert repr(getattr(one, slot)) == repr(getattr(other, slot)), slot
    for slot in ("accounts", "pieces"):
        rows = [
            [[repr(getattr(item, name)) for name in sorted(type(item).__slots__)] for item in getattr(s, slot)]
            for s in (one, other)
        ]
        assert rows[0] == rows[1], slot
    assert sorted(one.collab_seen) == sorted(other.collab_seen)


@pytest.fixture(scope="module")
def lived(playing) -> CompanyState:
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


def test_a_copy_shares_nothing_that_can_change(lived: CompanyState) -> None:
    before = dumps(lived)
    twin = lived.copy()
    assert dumps(twin) == before
    for slot in PACKED:
        setattr(twin, slot, spoil(getattr(twin, slot)))
    assert dumps(lived) == before


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10**9),
    turns=st.integers(0, 419),
    scenario=st.sampled_from((*SHIPPED, *HELD_OUT)),
    player=st.sampled_from(("random", "expert", "heuristic")),
)
def test_packing_is_exact_and_uses_the_columns(playing, seed: int, turns: int, scenario: str, player: str) -> None:
    s = next(s for _, s, *_ in playing(player, scenario, seed) if s.turn > turns or s.done)
    taken = dumps(s)
    assert json.loads(taken.partition(b"\n")[0])[0] == VERSION
    again = loads(taken)
    assert dumps(again) == taken
    same(again, s)
    same(loads(packed(plain(s))), s)


def other(value: Any) -> list[Any]:
    """Values that a field next to `value` could hold, also such as no rule makes."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, -7, 300, 70_000, 2**40]
    if isinstance(value, float):
        return [value + 0.125, 0.0, 1.0, 0.5 * 1.3, 1.3, 0.2, -3.5e300, 5e-324]
    return ["Nobody & Sons", "Zürich", ""]


@pytest.mark.parametrize(("slot", "record"), [("accounts", Account), ("pieces", Piece)])
def test_a_row_that_fits_no_column_is_packed_too(lived: CompanyState, slot: str, record: type[Account | Piece]) -> None:
    for name in record.__slots__:
        for place in (0, len(getattr(lived, slot)) - 1):
            for value in other(getattr(getattr(lived, slot)[place], name)):
                s = lived.copy()
                setattr(getattr(s, slot)[place], name, value)
                same(loads(dumps(s)), s)


def test_what_is_said_by_strangers_is_packed_too(lived: CompanyState) -> None:
    for change in (
        lambda s: s.shared.append([s.turn, "nobody", "hello"]),
        lambda s: s.inbox.update({"nobody": []}),
        lambda s: s.inbox.update({"dev": [[70_000, "ceo", "ü", "dev"]]}),
        lambda s: s.daily.update({"dev": 1}),
        lambda s: s.daily.update({"hr PLAN_SPRINT ": 300}),
        lambda s: s.schedule.append([400, "poaching"]),
        lambda s: s.campaigns.append([-1, 0, 1.0, 2]),
        lambda s: s.campaigns.append([3, 0, 1, 2]),
        lambda s: s.collab_seen.append(77),
    ):
        s = lived.copy()
        change(s)
        same(loads(dumps(s)), s)


def test_an_account_that_luck_did_not_make_keeps_its_own_numbers(lived: CompanyState) -> None:
    """Quality, warmth and vesting are omitted where they follow from luck and dates, so all of these are tried elsewhere."""
    s = lived.copy()
    for world, turn in ((0, s.turn), (7, s.turn), (7, s.turn - 28)):
        s.world, s.turn = world, turn
        same(loads(dumps(s)), s)


def test_what_a_signature_and_a_night_forget_is_asked_by_nothing(lived: CompanyState) -> None:
    """With it still there the episode continues in the same way."""
    simulator = Simulator(load(lived.scenario))
    forgetful, keeping = lived.copy(), lived.copy()
    assert keeping.customers()
    for a in keeping.customers():
        assert (a.demo, a.quality, a.warmth, a.deadline, a.failed, a.touches) == (0.0, 0.0, 0.0, 0, 0, 0)
        a.demo, a.quality, a.warmth, a.deadline, a.failed, a.touches = 0.9, 0.3, 0.7, 1, 2, 9
    keeping.inbox = {
        role: [[keeping.turn - 43, "sales", "need sync", role], *keeping.inbox.get(role, [])][-3:] for role in ROLE_NAMES
    }
    keeping.collab_seen += [(1_000 + a.id) * 64 + 3 * 8 for a in keeping.customers()] + [(3_000 + 1) * 64 + 4 * 8 + 3]
    for days in range(1, 12):
        played = [run(simulator, s, players_of(expert), turns=14) for s in (forgetful, keeping)]
        assert played[0] == played[1], days
        assert [view(forgetful, role) for role in ROLE_NAMES] == [view(keeping, role) for role in ROLE_NAMES]
        assert prospects(forgetful) == prospects(keeping)


@pytest.mark.parametrize("slot", PACKED)
def test_a_field_of_another_type_is_refused(lived: CompanyState, slot: str) -> None:
    values = plain(lived)
    place = 1 + PACKED.index(slot)
    values[place] = None
    with pytest.raises((TypeError, ValueError)):
        loads(packed(values))
    values[place] = {"a": 1} if not isinstance(getattr(lived, slot), dict) else [1]
    with pytest.raises((TypeError, ValueError)):
        loads(packed(values))


def test_every_field_is_read_by_some_rule() -> None:
    """What is never read is not state: it only makes forks and snapshots larger."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in Path(onthejob.__file__).parent.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    read = {node.attr for node in nodes if isinstance(node.ctx, ast.Load)}
    fields = {
        *CompanyState.__slots__,
        *Account.__slots__,
        *Piece.__slots__,
        *(field.name for field in dataclasses.fields(Scenario)),
    }
    assert fields - read == set()


def test_what_the_columns_leave_out_belongs_to_the_version() -> None:
    """Snapshots of a version are read with these; a change of one raises the version, or old snapshots would lie."""
    drawn = [drawn_quality(3, 0, 5), drawn_quality(3, 2, 100), brought(0.25), DRAWN_WARMTH]
    tables = [PACKED, NAMES, HELD_OUT_NAMES, [[role, spec.actions] for role, spec in ROLES.items()], PHRASES]
    rules = [PRICES, TIER_VESTS, VESTING_DAYS, drawn]
    digest = hashlib.sha256(json.dumps([tables, rules]).encode()).hexdigest()[:16]
    assert (VERSION, digest) == (5, "80a1d53034399371")


def test_other_versions_other_lengths_and_short_rows_are_refused(lived: CompanyState) -> None:
    values = plain(lived)
    for wrong in ([VERSION + 3, *values[1:]], [VERSION, *values[1:]], values[:-1], [*values, 0], [], {}, "state", 3):
        with pytest.raises(ValueError, match="not an office snapshot"):
            loads(packed(wrong))
    for slot in ("accounts", "pieces"):
        shorter = plain(lived)
        shorter[1 + PACKED.index(slot)][0].pop()
        with pytest.raises(ValueError, match="unpack"):
            loads(packed(shorter))
    late = plain(lived)
    late[1 + PACKED.index("turn")] = lived.horizon + 1
    with pytest.raises(ValueError, match="outside an episode"):
        loads(packed(late))


def test_a_state_with_a_number_that_is_none_is_not_packed(lived: CompanyState) -> None:
    twin = lived.copy()
    twin.brand = float("nan")
    with pytest.raises(ValueError, match="JSON"):
        dumps(twin)


def test_a_record_needs_all_its_fields() -> None:
    with pytest.raises(TypeError, match="missing 5 required"):
        Piece(day=0, id=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'fake'"):
        Piece(day=0, id=1, kind=0, left=0, quality=0.0, topic=0, vapor=False, fake=True)


def players_of(player: Player) -> dict[str, Player]:
    return dict.fromkeys(SEATS, player)


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
