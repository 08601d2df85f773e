"""Who may know what: a field that a role may not see never alters a byte of its prompt, in either profile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onthejob.api.frames import kpis
from onthejob.envs.office.company_state import FOCI, Account, CompanyState, Piece, Stage
from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.handlers import heard
from onthejob.envs.office.handlers.customer import deliver
from onthejob.envs.office.market import pipeline_value
from onthejob.envs.office.policies import Noisy
from onthejob.envs.office.prompt import messages
from onthejob.envs.office.roles import ROLES
from onthejob.envs.office.simulator import actor_of
from onthejob.envs.office.snapshot import dumps, loads
from onthejob.envs.office.views import DOING, copies, desk, team_status, view
from onthejob.office_players import as_policy, players
from onthejob.types import Context, Kind, Sampling

# The allow-list, from the texts: CEO and Marketing may see all KPIs (traffic, revenue, conversion, brand, pipeline value, budget,
# NPS, MRR, stability, features, bugs, velocity, satisfaction); Dev what is technical; Sales revenue and the pipeline in detail, a
# pain only after QUALIFY_LEAD; Content its pieces and how they do; HR morale, blockers and speed; totals and the calendar are the
# CEO's; one's own messages, envelope and blocker; the clock, the focus, events and what has shipped are known to all.
ALL = set(SEATS)
KPI = {"ceo", "marketing"}
MAY: dict[str, set[str]] = {
    "days": ALL,
    "drawn_names": ALL,
    "turn": ALL,
    "events": ALL,
    "feature_shipped": ALL,
    "focus": ALL,
    "focus_left": ALL,
    "cash": KPI,
    "payroll": {"ceo"},
    "board_pool": {"ceo"},
    "board_rate": {"ceo"},
    "schedule": {"ceo"},
    "envelopes.marketing": {"ceo", "marketing"},
    "envelopes.hr": {"ceo", "hr"},
    "envelopes.dev": {"ceo", "dev"},
    "traffic": KPI,
    "brand": KPI,
    "conversion": KPI,
    "adstock": {"marketing"},
    "campaigns": {"marketing"},
    "novelty": {"marketing"},
    "ad_segment": {"marketing"},
    "ad_days": {"marketing"},
    "ab_wins": {"marketing"},
    "competitor": {"marketing"},
    "intel": {"marketing"},
    "researched": {"marketing"},
    "pivot_segment": {"ceo", "marketing"},
    "pivot_days": {"ceo", "marketing"},
    "content_stock": {"content"},
    "feature_left": {"dev"},
    "feature_reviewed": {"dev"},
    "bug_critical": {"dev", *KPI},
    "bug_major": {"dev", *KPI},
    "bug_minor": {"dev", *KPI},
    "debt": {"dev", *KPI},
    "load": {"dev", *KPI},
    "docs_level": {"dev"},
    "velocity": {"dev", "hr", *KPI},
    "morale": {"hr"},
    "alignment": {"hr", "ceo"},  # the CEO's REVIEW_STRATEGY works on it
    "tracked": {"hr"},
    "daily": {"hr"},  # how often the sprint was planned today
    "contractor_days": {"hr", "dev"},
    "okr_base": {"ceo"},
    "okr_met": {"ceo"},
    "won": KPI,
    "lost": KPI,
    "churned": KPI,
    "base_sat": {"content", *KPI},
    "updated_day": {"sales"},
    **{f"directive.{role}": {"ceo", role} for role in SEATS},
    **{f"blockers.{role}": {"hr", role} for role in SEATS},
    **{f"inbox.{role}": {role} for role in (*SEATS, "customer")},
    # Accounts, by attribute. Totals and means reach who may see the KPI.
    "account.stage": {"sales", "content", *KPI},
    "account.price": {"sales", *KPI},
    "account.sat": {"sales", "content", *KPI},
    "account.contact": {"sales"},
    "account.name": {"sales", "ceo"},  # the CEO: of deals that Sales asked it to approve
    "account.known": {"sales", "ceo"},
    "account.size": {"sales", "ceo"},
    "account.approved": {"sales", "ceo"},
    "account.objections": {"sales"},
    "account.id": {"sales"},  # the order of the desk
    "account.tier": {"sales"},
    "goal": {"ceo"},
    "start_mrr": {"ceo"},  # what a goal's growth is counted from
    "account.demo": {"sales"},
    "account.touches": {"sales"},
    "account.warmth": {"sales"},
    "account.failed": {"sales"},
    "account.pain of a lead nobody qualified": set(),
    "account.pain of a known lead": {"sales"},
    "account.pain of a customer": {"sales", "content"},  # a case study is written with a customer
    "account.size of a lead nobody qualified": set(),
    **{f"piece.{slot}": {"content"} for slot in Piece.__slots__},
}
# What the full profile adds for all: the board, and one coarse word on every colleague's last turn.
COARSE = {"shared", "acted"} | {f"blockers.{role}" for role in SEATS}
# What has to be visible, so that the test is known to see.
CORE = {
    (name, role)
    for role, names in {
        "ceo": "cash traffic board_pool alignment account.price inbox.ceo conversion brand account.sat goal start_mrr",
        "dev": "debt feature_left bug_minor velocity inbox.dev blockers.dev",
        "marketing": "conversion novelty researched envelopes.marketing competitor cash account.price account.stage account.sat",
        "sales": "account.contact account.objections account.sat account.name account.tier updated_day inbox.sales "
        "directive.sales",
        "content": "content_stock piece.quality piece.left base_sat",
        "hr": "morale blockers.sales contractor_days envelopes.hr tracked",
    }.items()
    for name in [*names.split(), "focus", "events", "feature_shipped", "days"]
} | {("account.pain of a known lead", "sales")}

Change = Callable[[CompanyState], None]
OUTSIDE = {"turn", "done"}
"""Changing the clock asks another role, and no role is asked after the end."""


def other_values(value: Any, far: int = 7_654_321) -> list[Any]:
    """Values of the same type that any rounding shows; `far` is large in the unit of the field."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value + far, 0]
    if isinstance(value, float):
        return [value + 0.29, value * 3 + 400.0, 0.0]
    if isinstance(value, str):
        return [value + "x", "hidden"]
    if isinstance(value, list):
        changed = [[*value[:i], new, *value[i + 1 :]] for i, item in enumerate(value) for new in other_values(item)[:2][-1:]]
        return changed or [[7]]
    raise AssertionError(f"no other value for {value!r}")


def setter(slot: str, value: Any) -> Change:
    return lambda s: setattr(s, slot, value)


def in_dict(slot: str, key: str, value: Any) -> Change:
    return lambda s: getattr(s, slot).__setitem__(key, value)


def direct(s: CompanyState, role: str) -> None:
    s.directive_role, s.directive_left = role, 2


LIMITS = {"stage": Stage.NEGOTIATION + 2, "pain": 6, "size": 3, "segment": 3, "tier": 3, "topic": 6, "kind": 5}


def rows(s: CompanyState, slot: str, kind: type[Account] | type[Piece]) -> Iterator[tuple[str, Change]]:
    """One field of all rows at once, each row to another of the possible values."""
    fields: dict[str, list[tuple[int, str, list[Any]]]] = {}
    for index, row in enumerate(getattr(s, slot)):
        for name in kind.__slots__:
            value = getattr(row, name)
            label = f"{kind.__name__.lower()}.{name}"
            if kind is Account and name == "pain":
                where = "a customer" if row.stage == Stage.WON else "a known lead" if row.known else "a lead nobody qualified"
                label += f" of {where}"
            if kind is Account and name == "size" and not row.known:
                label += " of a lead nobody qualified"
            values = (
                [(value + 1) % LIMITS[name], (value + 2) % LIMITS[name]]
                if name in LIMITS
                else other_values(value, 700_000 if name == "price" else 40)
            )
            if not (kind is Piece and name == "kind"):
                fields.setdefault(label, []).append((index, name, values))

    def change(cells: list[tuple[int, str, list[Any]]], turn: int) -> Change:
        def apply(state: CompanyState) -> None:
            for index, name, values in cells:
                setattr(getattr(state, slot)[index], name, values[(index + turn) % len(values)])

        return apply

    for label, cells in fields.items():
        for turn in range(max(len(values) for _, _, values in cells)):
            yield label, change(cells, turn)


def changes(s: CompanyState) -> Iterator[tuple[str, Change]]:
    """(what is changed, how) for every field of the state."""
    for slot in CompanyState.__slots__:
        value = getattr(s, slot)
        if slot in OUTSIDE:
            continue
        if slot == "accounts":
            yield from rows(s, slot, Account)
        elif slot == "pieces":
            yield from rows(s, slot, Piece)
        elif slot == "inbox":
            for role in (*SEATS, "customer"):
                told = [*value.get(role, []), [s.turn - 1, "hr", "psst", role]]
                yield f"inbox.{role}", in_dict(slot, role, told)
        elif slot == "blockers":
            for role in SEATS:
                yield (
                    f"blockers.{role}",
                    lambda s, role=role: None if s.blockers.pop(role, None) is not None else s.blockers.update({role: 0}),
                )
        elif slot in ("directive_role", "directive_left"):
            for role in SEATS:
                if s.directive_left == 0:
                    yield (
                        f"directive.{role}",
                        lambda s, role=role: direct(s, role),
                    )
        elif slot == "envelopes":
            for name, cents in value.items():
                yield f"envelopes.{name}", in_dict(slot, name, cents + 1_234_500)
        elif slot == "focus":
            for focus in range(len(FOCI)):
                yield slot, setter(slot, focus)
        elif slot == "demand":
            yield slot, setter(slot, [list(reversed(wants)) for wants in value])
        elif slot == "researched":
            yield slot, setter(slot, [(pain + 2) % 6 for pain in value])
        elif slot == "feature_shipped":
            yield slot, setter(slot, [0 if day < 0 else -1 for day in value])
        elif slot == "events":
            yield slot, setter(slot, [*value, [s.turn, "poaching"]])
        elif slot == "schedule":
            yield slot, setter(slot, [[29, "poaching"]])
        elif slot == "shared":
            yield slot, setter(slot, [*value, [s.turn - 1, "dev", "hello"]])
        elif slot == "campaigns":
            yield slot, setter(slot, [] if value else [[s.day + 1, 0, 500.0, 2]])
        elif slot == "contractor_days":
            yield slot, setter(slot, {} if value else {"dev": 3, "content": 4})
        elif slot == "acted":
            others = {str(role): next(name for name in ROLES[role].actions if name != value.get(role)) for role in ROLES}
            yield slot, setter(slot, others)
        elif slot == "goal":
            yield slot, setter(slot, {"features": 5.0} if value else {"mrr": 9_000.0})
            yield slot, setter(slot, {"mrr_growth": 2.0, "customers": 3.0})
        elif slot == "okr_base":
            yield slot, setter(slot, [x - 1.0 for x in value] or [1.0, 2.0, 0.1])
        elif isinstance(value, dict):
            yield slot, in_dict(slot, "hr PLAN_SPRINT ", 7)
            for key, held in list(value.items())[:3]:
                yield slot, in_dict(slot, key, other_values(held)[0])
        elif slot == "days":
            yield slot, setter(slot, 77)
        else:
            for new in other_values(value):
                yield slot, setter(slot, new)


def states(task, profile: str) -> Iterator[tuple[OfficeEnvironment, str, bytes, CompanyState]]:
    """(environment, role, head of the snapshot, state) at requests to every role, of a team that does a bit of everything."""
    env = OfficeEnvironment(OfficeConfig(profile=profile))
    policy = as_policy(Noisy(players()["expert"], 0.3), version="noisy")
    for scenario, turns in (("viral", range(60, 67)), ("churn", range(73, 80)), ("baseline", range(7, 14))):
        observation = env.reset(task(scenario, 1_003))
        while observation is not None and env.state()["turn"] < turns.stop:
            turn = env.state()["turn"]
            if turn in turns:
                snapshot = env.snapshot()
                size = 4 + int.from_bytes(snapshot[:4], "big")
                yield env, observation.actor, snapshot[:size], loads(snapshot[size:])
                env.restore(snapshot)
            reply = policy.act([Context(observation=observation, seed=turn)], Sampling())[0].text
            observation = env.step(reply).observation


def seen_changes(task, profile: str) -> set[tuple[str, str]]:
    """(field, role) wherever a change of the field altered the role's prompt."""
    found = set()
    asked = set()
    for env, role, head, s in states(task, profile):
        if s.directive_left:
            s.directive_left = 0
        deliver(s, "sales", "ceo", f"approve {s.accounts[-1].name}")
        usual = env.restore(head + dumps(s))
        assert usual is not None
        assert (usual.actor, usual.kind) == (role, Kind.ACT)
        before = tuple(usual.messages)
        for name, change in changes(s):
            if (name, role) in found:
                continue
            twin = s.copy()
            change(twin)
            altered = env.restore(head + dumps(twin))
            assert altered is not None
            if tuple(altered.messages) != before:
                found.add((name, role))
        asked.add(role)
    assert asked == ALL
    return found


@pytest.mark.parametrize("profile", ["compact", "full"])
def test_what_a_role_may_not_see_alters_no_byte_of_its_prompt(task, profile: str) -> None:
    seen = seen_changes(task, profile)
    allowed = {(name, role) for name, roles in MAY.items() for role in roles}
    if profile == "full":
        allowed |= {(name, role) for name in COARSE for role in SEATS}
    assert seen - allowed == set()
    must = CORE | {(f"account.{own}", "sales") for own in ("demo", "warmth", "tier", "failed")} if profile == "full" else CORE
    assert must - seen == set()
    hidden = {"demand", "hazard", "luck", "seed", "world", "account.quality", "account.deadline", "ledger", "reward_total"}
    assert not hidden & {name for name, _ in seen}


def test_a_view_holds_nothing_that_the_compact_prompt_does_not_show(task) -> None:
    """Two states with the same compact prompt have the same view, whatever field tells them apart."""
    for _, role, _, s in states(task, "compact"):
        usual = view(s, role)
        shown = messages(usual)
        for name, change in changes(s):
            twin = s.copy()
            change(twin)
            if messages(view(twin, role)) == shown:
                assert view(twin, role) == usual, (role, name)


def test_what_a_prompt_leaves_out_is_left_out_of_the_view(office) -> None:
    company = office()
    for pain in range(3):
        company.state.pieces.append(Piece(day=0, id=pain, kind=0, left=2, quality=0.0, topic=pain, vapor=False))
    assert [draft["topic"] for draft in view(company.state, "content")["drafts"]] == ["security", "sync"]


def test_copies_are_for_the_full_profile(office) -> None:
    company = office()
    company.act("sales", "UPDATE_PIPELINE", message="need sync", to="dev")
    assert "copies" not in view(company.state, "ceo")


def test_the_desk_tells_sales_what_its_own_work_showed(office) -> None:
    s = office().state
    assert desk(s) == []
    lead = s.leads()[0]
    lead.stage, lead.known, lead.demo, lead.warmth = int(Stage.DEMO), True, -0.26, 0.44
    assert desk(s) == [f"{lead.name}: demo -0.3, warmth 0.4, refused 0 of 3"]
    lead.stage, lead.tier, lead.failed = int(Stage.NEGOTIATION), 2, 2
    assert desk(s) == [f"{lead.name}: demo -0.3, warmth 0.4, offered annual, refused 2 of 3"]


def test_the_changes_cover_every_field(playing) -> None:
    covered: set[str] = set()
    for _, s, *_ in playing("random", "churn", 3, days=8):
        if s.turn % 50 == 0:
            covered |= {name.partition(" of ")[0] for name, _ in changes(s)}
    expected = {
        slot
        for slot in CompanyState.__slots__
        if slot not in (*OUTSIDE, "accounts", "pieces", "directive_left", "directive_role")
    }
    expected |= {f"account.{slot}" for slot in Account.__slots__} | {
        f"piece.{slot}" for slot in Piece.__slots__ if slot != "kind"
    }
    assert {name for name in expected if name not in covered and not any(c.startswith(f"{name}.") for c in covered)} == set()


def test_the_customer_sees_its_side_only(office) -> None:
    company = office("churn")
    before = messages(view(company.state, "customer"))
    s = company.state
    for slot in ("cash", "morale", "velocity", "brand", "debt", "competitor", "board_pool"):
        setattr(s, slot, getattr(s, slot) * 2)
    assert messages(view(s, "customer")) == before


def test_views_are_plain_data(playing) -> None:
    for _, s, *_ in playing("random", "viral", 2, days=10):
        for role in ROLES:
            seen = view(s, str(role))
            assert json.loads(json.dumps(seen, allow_nan=False)) == seen
            assert seen["role"] == role


def test_looking_changes_nothing(playing) -> None:
    for _, s, *_ in playing("expert", "churn", 2, days=4):
        before = dumps(s)
        for role in ROLES:
            view(s, str(role))
            team_status(s, str(role))
        assert dumps(s) == before


def test_team_status_is_one_coarse_word_without_names_or_numbers(playing) -> None:
    words: set[str] = set()
    for _, s, *_ in playing("random", "viral", 2):
        for role in ROLES:
            status = team_status(s, str(role))
            assert set(status) == {str(other) for other in ROLES} - {str(role)}
            words |= set(status.values())
    assert len(words) > 20
    assert all(word.isalpha() and word.islower() for word in words)


def test_every_action_has_its_word() -> None:
    assert set(DOING) == {(str(role), action) for role, spec in ROLES.items() for action in spec.actions}


def test_team_status_follows_from_what_a_colleague_did_last(office) -> None:
    company = office()
    assert set(team_status(company.state, "dev").values()) == {"starting"}
    company.act("ceo", "SET_OKRS", "growth")
    assert team_status(company.state, "dev")["ceo"] == "planning"
    company.state.blockers["sales"] = 0
    assert team_status(company.state, "dev")["sales"] == "blocked"
    company.state.acted["hr"] = ""
    assert team_status(company.state, "dev")["hr"] == "idle"


def test_the_kpis_of_the_ceo_and_of_marketing(office) -> None:
    s = office("series_a").state
    s.conversion, s.brand, s.cash = 0.0234, 31.4, 12_345_600
    for account in s.customers():
        account.sat = 0.73
    s.leads()[0].stage = int(Stage.PROPOSAL)
    price = s.leads()[0].price
    for role in ("ceo", "marketing"):
        seen = view(s, role)
        assert (seen["conversion"], seen["brand"], seen["nps"], seen["cash"]) == (23, 31, 46, 123)
        assert (seen["mrr"], seen["pipeline"]) == (s.mrr() // 10_000, price // 10_000)
        text = messages(seen)[1].content
        for shown in ("conversion 2.3%", "brand 31", "NPS 46", "ash 123k", f"MRR {s.mrr() // 10_000 / 10:.1f}k", "pipeline"):
            assert shown in text, (role, shown)


def test_the_pipeline_is_the_same_figure_for_everybody_to_the_end(playing) -> None:
    last = 0
    for _, s, *_ in playing("expert", "viral", 3, days=6):
        deals = sum(a.price for a in s.leads() if a.stage >= Stage.DEMO)
        assert pipeline_value(s) == deals
        assert kpis(s).pipeline == deals / 100
        assert {view(s, role)["pipeline"] for role in ("ceo", "marketing")} == {deals // 10_000}
        last = deals if s.done else 0
    assert last > 0


def test_sales_sees_the_contract_of_a_customer(office) -> None:
    s = office("series_a").state
    customer = s.customers()[0]
    customer.tier, customer.sat = 2, 0.7
    assert f"{customer.name} {(s.turn - customer.contact) // 14}d 7 annual" in messages(view(s, "sales"))[1].content


def test_the_ceo_reads_every_bound_of_the_goal(office) -> None:
    s = office("series_a").state
    text = messages(view(s, "ceo"))[1].content
    assert f"Goal by day 30: MRR 3 times the first (now 1), MRR 32k (now {round(s.mrr() / 100_000, 1):g})" in text
    assert set(s.goal) == {"mrr_growth", "mrr"}
    assert all("Goal" not in messages(view(s, str(role)))[1].content for role in ROLES if role != "ceo")
    s.goal = {"mrr_growth": 2.25, "satisfaction": 0.55, "customers": 6}
    text = messages(view(s, "ceo"))[1].content
    assert "MRR 2.25 times the first (now 1), satisfaction 55 (now " in text
    assert "6 customers (now 4)" in text
    s.goal = {}
    assert "Goal" not in messages(view(s, "ceo"))[1].content


def test_private_messages_reach_their_addressee_and_the_ceo_as_a_copy(office) -> None:
    company = office()
    company.sleep()
    company.state.turn += 7
    company.act("sales", "UPDATE_PIPELINE", message="need sync", to="dev")
    told = {str(role): view(company.state, str(role)) for role in ROLES}
    assert [role for role, seen in told.items() if seen["inbox"]] == ["dev"]
    assert told["dev"]["inbox"] == ["sales: need sync"]
    assert copies(company.state) == ["sales to dev: need sync"]


@pytest.mark.parametrize("text", ["approve Acme: to be sure", "to dev: need sync", "to Acme we owe a call"])
def test_what_a_message_says_never_makes_it_a_copy(office, text: str) -> None:
    company = office()
    company.act("sales", "UPDATE_PIPELINE", message=text, to="ceo")
    seen = view(company.state, "ceo")
    assert seen["inbox"] == [f"sales: {text}"]
    assert f"sales: {text}" in messages(seen)[1].content
    assert copies(company.state) == []


def test_what_the_ceo_hears_is_what_its_prompt_shows(office) -> None:
    company = office()
    company.act("sales", "UPDATE_PIPELINE", message="approve Acme: to be sure", to="ceo")
    company.act("hr", "TEAM_SYNC", message="approve Bolt", to="dev")
    assert heard(company.state, "ceo", "approve") == [("sales", "Acme: to be sure")]
    assert heard(company.state, "dev", "approve") == [("hr", "Bolt")]


def test_messages_fade_after_three_days(office) -> None:
    company = office()
    company.act("sales", "UPDATE_PIPELINE", message="need sync", to="dev")
    company.sleep(2)
    assert view(company.state, "dev")["inbox"]
    company.sleep(2)
    assert not view(company.state, "dev")["inbox"]


def test_a_lead_shows_pain_and_size_once_it_is_qualified(office) -> None:
    company = office(leads=0)
    lead = company.account(Stage.LEAD, pain="billing", size=1)
    (shown,) = view(company.state, "sales")["leads"]
    assert (shown["pain"], shown["size"]) == ("?", "?")
    company.act("sales", "QUALIFY_LEAD", lead.name)
    (shown,) = view(company.state, "sales")["leads"]
    assert (shown["pain"], shown["size"], shown["stage"]) == ("billing", "M", "qualified")


def test_build_times_are_turns_at_todays_pace(office) -> None:
    company = office()
    company.state.velocity = 1.0
    assert view(company.state, "dev")["build"] == {
        "SSO": 3, "API": 3, "Dashboard": 2, "App": 6, "Cache": 2, "Invoices": 3, "Audit": 2, "Webhooks": 2,
    }  # fmt: skip
    company.state.velocity = 2.0
    assert view(company.state, "dev")["build"]["SSO"] == 2
    company.state.contractor_days["dev"] = 3
    assert view(company.state, "dev")["build"]["App"] == 3
    assert actor_of(company.state.turn) == "ceo"
