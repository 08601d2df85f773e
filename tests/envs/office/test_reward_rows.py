"""Every row of the reward tables is paid somewhere: the simulator is driven into the situation that pays it, exactly.

A row that no situation reaches would promise something that does not exist, to players and to readers of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MappingProxyType

import pytest

from onthejob.envs.office import reward_parts
from onthejob.envs.office.company_state import FEATURE_INDEX, PAINS, Piece, Stage
from onthejob.envs.office.reward_parts import KPI_NAMES, KPI_WEIGHTS, ORDER, TurnLog
from onthejob.envs.office.simulator import kpis

Row = tuple[str, str]
Paid = dict[str, float]
SATISFACTION = 0.1
"""Of the company in its crisis; the gap to the threshold of 0.4 is then three quarters of it."""


def line(values: Iterable[float]) -> Paid:
    """A row of a table as role -> value."""
    return dict(zip(ORDER, values, strict=True))


def only(**paid: float) -> Paid:
    """What these roles are paid, and the others nothing."""
    return dict.fromkeys(ORDER, 0.0) | paid


def summed(part: str, logs: Iterable[TurnLog]) -> Paid:
    """Role -> what one part paid it in these turns."""
    shown = [log.parts() for log in logs]
    return {role: sum(parts[role][part] for parts in shown) for role in ORDER}


# One function per situation: it returns what happened, and what the part of the table pays in all.


def referral(office) -> tuple[list[TurnLog], Paid]:
    company = office(traffic=1, leads=0)
    company.account(Stage.WON, sat=0.9)
    return [company.act("customer", "REFER_LEAD")], line(reward_parts.STAGE_TABLE["lead"])


def advance(stage: Stage, action: str, row: str) -> Callable:
    def situation(office) -> tuple[list[TurnLog], Paid]:
        company = office(traffic=1, leads=0)
        return [company.act("sales", action, company.account(stage).name)], line(reward_parts.STAGE_TABLE[row])

    return situation


def signature(office) -> tuple[list[TurnLog], Paid]:
    """A monthly contract and the ten days in which it vests."""
    for seed in range(40):
        company = office(seed=seed, leads=0, hazard=0.0, traffic=1)
        deal = company.account(Stage.PROPOSAL, quality=1.0, warmth=1.0, demo=1.0)
        logs = [company.act("sales", "CLOSE_DEAL", deal.name)]
        if deal.stage == Stage.WON:
            return logs + company.sleep(11), line(reward_parts.STAGE_TABLE["closed_won"])
    raise AssertionError("no deal was won in forty companies")


def neglect(office) -> tuple[list[TurnLog], Paid]:
    """Lost, with the advance for qualifying it taken back."""
    company = office(traffic=1, leads=0)
    company.account(Stage.QUALIFIED)
    lost, advanced = (line(reward_parts.STAGE_TABLE[row]) for row in ("closed_lost", "qualified"))
    return company.sleep(10), {role: lost[role] - advanced[role] for role in ORDER}


def departure(office) -> tuple[list[TurnLog], Paid]:
    """A customer of before the episode leaves, which has nothing to be taken back."""
    company = office(traffic=1, leads=0)
    customer = company.account(Stage.WON, rewarded=False, vest_left=0.0)
    company.state.hazard, logs = 10**6, []
    while customer in company.state.accounts:
        customer.sat = 0.0
        logs += company.sleep()
    return logs, line(reward_parts.STAGE_TABLE["churned"])


def release(office) -> tuple[list[TurnLog], Paid]:
    company = office()
    company.state.feature_left[FEATURE_INDEX["SSO"]] = 0.0
    return [company.act("dev", "SHIP_RELEASE", "SSO")], line(reward_parts.EFFECTS["release shipped"])


def blocker(office) -> tuple[list[TurnLog], Paid]:
    company = office()
    company.state.blockers["dev"] = 0
    return [company.act("hr", "RESOLVE_BLOCKER", "dev")], line(reward_parts.EFFECTS["blocker cleared"])


def publication(office) -> tuple[list[TurnLog], Paid]:
    company = office()
    draft(company, left=1)
    return [company.act("content", "WRITE_DOCS", "sync")], line(reward_parts.EFFECTS["piece published"])


def research(office) -> tuple[list[TurnLog], Paid]:
    return [office().act("marketing", "RESEARCH_MARKET", "retail")], line(reward_parts.EFFECTS["segment researched"])


def key_result(office) -> tuple[list[TurnLog], Paid]:
    company = office()
    company.act("ceo", "SET_OKRS", "product")
    company.state.feature_shipped[0] = 0
    return company.sleep(), line(reward_parts.EFFECTS["key result reached"])


def draft(company, *, left: int) -> None:
    """Product docs on `sync`, published when no work is left."""
    company.state.pieces.append(Piece(day=0, id=5, kind=4, left=left, quality=0.5, topic=PAINS.index("sync"), vapor=False))


def built_on_request(office) -> tuple[list[TurnLog], Paid]:
    company = office()
    company.act("sales", "UPDATE_PIPELINE", message="need security", to="dev")
    company.wait("dev")
    company.state.feature_left[FEATURE_INDEX["SSO"]] = 0.0
    paid = reward_parts.USES["feature built on request"]
    return [company.act("dev", "SHIP_RELEASE", "SSO")], only(dev=paid, sales=paid)


def written_about(office) -> tuple[list[TurnLog], Paid]:
    company = office()
    company.state.feature_shipped[FEATURE_INDEX["API"]] = 0
    draft(company, left=1)
    paid = reward_parts.USES["feature written about"]
    return [company.act("content", "WRITE_DOCS", "sync")], only(dev=paid, content=paid)


def carried(office) -> tuple[list[TurnLog], Paid]:
    company = office()
    draft(company, left=0)
    company.state.envelopes["marketing"] = 100_000
    paid = reward_parts.USES["content carries a campaign"]
    return [company.act("marketing", "LAUNCH_CAMPAIGN", "sync")], only(marketing=paid, content=paid)


def helped(office) -> tuple[list[TurnLog], Paid]:
    company = office(leads=0)
    draft(company, left=0)
    lead, paid = company.account(Stage.QUALIFIED, pain="sync"), reward_parts.USES["content helps a demo"]
    return [company.act("sales", "RUN_DEMO", lead.name)], only(sales=paid, content=paid)


def approved(office) -> tuple[list[TurnLog], Paid]:
    company = office()
    deal, paid = company.account(Stage.PROPOSAL, size=2), reward_parts.USES["deal approved on request"]
    company.act("sales", "UPDATE_PIPELINE", message=f"approve {deal.name}", to="ceo")
    return [company.act("ceo", "APPROVE_INITIATIVE", deal.name)], only(ceo=paid, sales=paid)


def crisis(role: str, action: str, target: str = "", **besides: float) -> Callable:
    """An action that helps while satisfaction is low; `besides` is what its effect pays anyway."""

    def situation(office) -> tuple[list[TurnLog], Paid]:
        for seed in range(20):  # a bug may resist
            company = office(seed=seed, traffic=1, leads=0)
            s = company.state
            s.base_sat, s.bug_minor, s.blockers = SATISFACTION, 4, {"marketing": 0}
            name = target
            if action == "COLLECT_FEEDBACK":
                name = company.account(Stage.WON, sat=SATISFACTION, contact=-99).name
            log = company.act(role, action, name)
            if log.changed:
                gap = (reward_parts.CRISIS_SATISFACTION - SATISFACTION) / reward_parts.CRISIS_SATISFACTION
                own = besides.get(role, 0.0) + reward_parts.CRISIS_TABLE[role, action] * gap
                return [log], only(**{role: own})
        raise AssertionError(f"{action} of {role} never achieved anything")

    return situation


def repeated(number: int) -> Callable:
    """The base of the first, second, ... identical action of a day."""

    def situation(office) -> tuple[list[TurnLog], Paid]:
        company = office()
        logs = [company.act("content", "WRITE_SOCIAL_POST", "sync") for _ in range(number)]
        return logs[-1:], only(content=reward_parts.BASE[number - 1])

    return situation


def unusable(office) -> tuple[list[TurnLog], Paid]:
    company = office()
    company.wait("hr")
    return [company.simulator.step(company.state, None)], only(hr=-reward_parts.INVALID)


def promise(office) -> tuple[list[TurnLog], Paid]:
    log = office().act("content", "WRITE_BLOG", "sync", title="SSO is live")
    return [log], only(content=-reward_parts.VAPORWARE)


def idle_day(office) -> tuple[list[TurnLog], Paid]:
    return office(traffic=1, leads=0).sleep(), only(sales=-reward_parts.NO_PIPELINE_WORK)


def stale(office) -> tuple[list[TurnLog], Paid]:
    """The fifth night of a lead that Sales does not call, while it keeps the sheet current."""
    company = office(traffic=1, leads=0)
    company.account(Stage.QUALIFIED)
    for _ in range(4):
        company.act("sales", "UPDATE_PIPELINE")
        company.sleep()
    company.act("sales", "UPDATE_PIPELINE")
    return company.sleep(), only(sales=-reward_parts.STALE_LEAD)


SITUATIONS: MappingProxyType[Row, Callable] = MappingProxyType({
    ("stage", "lead"): referral,
    ("stage", "qualified"): advance(Stage.LEAD, "QUALIFY_LEAD", "qualified"),
    ("stage", "demo"): advance(Stage.QUALIFIED, "RUN_DEMO", "demo"),
    ("stage", "proposal"): advance(Stage.DEMO, "SEND_PROPOSAL", "proposal"),
    ("stage", "closed_won"): signature,
    ("stage", "closed_lost"): neglect,
    ("stage", "churned"): departure,
    ("action", "release shipped"): release,
    ("action", "blocker cleared"): blocker,
    ("action", "piece published"): publication,
    ("action", "segment researched"): research,
    ("action", "key result reached"): key_result,
    ("action", "ceo SET_OKRS"): crisis("ceo", "SET_OKRS", "retention"),
    ("action", "ceo SEND_DIRECTIVE"): crisis("ceo", "SEND_DIRECTIVE", "dev"),
    ("action", "dev FIX_BUG"): crisis("dev", "FIX_BUG", "minor"),
    ("action", "dev WRITE_DOCS"): crisis("dev", "WRITE_DOCS"),
    ("action", "sales COLLECT_FEEDBACK"): crisis("sales", "COLLECT_FEEDBACK"),
    ("action", "content WRITE_DOCS"): crisis("content", "WRITE_DOCS", "sync"),
    ("action", "hr RESOLVE_BLOCKER"): crisis("hr", "RESOLVE_BLOCKER", "marketing", hr=1.5),
    ("action", "hr PERFORMANCE_REVIEW"): crisis("hr", "PERFORMANCE_REVIEW"),
    ("action", "marketing RESEARCH_MARKET"): crisis("marketing", "RESEARCH_MARKET", "retail", marketing=0.3),
    ("collaboration", "feature built on request"): built_on_request,
    ("collaboration", "feature written about"): written_about,
    ("collaboration", "content carries a campaign"): carried,
    ("collaboration", "content helps a demo"): helped,
    ("collaboration", "deal approved on request"): approved,
    ("base", "first"): repeated(1),
    ("base", "second"): repeated(2),
    ("penalty", "unusable"): unusable,
    ("penalty", "vaporware"): promise,
    ("penalty", "no pipeline work"): idle_day,
    ("penalty", "stale lead"): stale,
})  # fmt: skip
"""(part, row) -> the situation in which exactly this is paid."""


@pytest.mark.parametrize("row", SITUATIONS, ids=" ".join)
def test_each_row_is_paid_to_the_cent(office, row: Row) -> None:
    logs, expected = SITUATIONS[row](office)
    assert any(expected.values())
    assert summed(row[0], logs) == pytest.approx(expected)


def test_no_row_is_missing_here() -> None:
    """A row that is added to a table needs the situation in which it is paid."""
    rows = {("stage", row) for row in reward_parts.STAGE_TABLE}
    rows |= {("action", row) for row in reward_parts.EFFECTS} | {("action", " ".join(row)) for row in reward_parts.CRISIS_TABLE}
    rows |= {("collaboration", row) for row in reward_parts.USES}
    rows |= {("base", name) for name, value in zip(("first", "second", "later"), reward_parts.BASE, strict=True) if value}
    rows |= {("penalty", row) for row in ("unusable", "vaporware", "no pipeline work", "stale lead")}
    assert set(SITUATIONS) == rows


# KPIs: what moves each of them


def set_and_reach(company) -> list[TurnLog]:
    company.act("ceo", "SET_OKRS", "product")
    company.wait("dev")
    company.state.feature_left[FEATURE_INDEX["SSO"]] = 0.0
    return [company.act("dev", "SHIP_RELEASE", "SSO")]


def expand(company) -> list[TurnLog]:
    for _ in range(4):  # each takes more with a chance of 0.8
        company.account(Stage.WON, sat=1.0, won_day=-9)
    return [company.act("customer", "RENEW_CONTRACT")]


def fix(company) -> list[TurnLog]:
    company.wait("dev")
    company.state.bug_critical = 1
    return [company.act("dev", "FIX_BUG", "critical")]


def listen(company) -> list[TurnLog]:
    return [company.act("sales", "COLLECT_FEEDBACK", company.account(Stage.WON, sat=0.5, contact=-99).name)]


MOVES: MappingProxyType[str, Callable[..., list[TurnLog]]] = MappingProxyType({
    "stability": fix,
    "reach": lambda company: company.sleep()[-1:],
    "conversion": lambda company: [company.act("marketing", "OPTIMIZE_FUNNEL")],
    "deals": lambda company: [company.act("sales", "QUALIFY_LEAD", company.account(Stage.LEAD).name)],
    "velocity": lambda company: [company.act("hr", "PLAN_SPRINT")],
    "okr": set_and_reach,
    "satisfaction": listen,
    "expansion": expand,
    "efficiency": lambda company: company.sleep()[-1:],
})  # fmt: skip
"""KPI -> what moves it, as the only or the last turn of what is returned."""


@pytest.mark.parametrize("name", KPI_NAMES)
def test_each_kpi_moves_and_pays_the_roles_that_it_drives(office, name: str) -> None:
    """Read before and after the turn: of the moved KPIs each role is paid weight x change, this one's among them."""
    company = office(seed=3, leads=0)
    states: list[tuple[float, ...]] = []
    step = company.simulator.step

    def watched(s, action):
        states.append(kpis(s))
        return step(s, action)

    company.simulator.step = watched
    (log,) = MOVES[name](company)
    change = dict(
        zip(KPI_NAMES, (after - before for before, after in zip(states[-1], kpis(company.state), strict=True)), strict=True)
    )
    assert change[name] != 0
    assert any(KPI_WEIGHTS[name])
    for index, role in enumerate(ORDER):
        expected = sum(KPI_WEIGHTS[kpi][index] * moved for kpi, moved in change.items())
        assert log.parts()[role]["kpi"] == pytest.approx(expected, abs=1e-9)


def test_the_tables_name_every_kpi() -> None:
    assert set(MOVES) == set(KPI_NAMES) == set(KPI_WEIGHTS)
