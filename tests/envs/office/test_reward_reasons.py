"""Reasons of whole episodes: their shares add up to the rewards, every larger reward has one, and what they say is true."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from onthejob.envs.office import scenarios
from onthejob.envs.office.actions import Action
from onthejob.envs.office.books import Book, book
from onthejob.envs.office.company_state import HELD_OUT, Account, CompanyState
from onthejob.envs.office.env import SEATS
from onthejob.envs.office.fast_play import NIGHT, run, step_watched
from onthejob.envs.office.policies import Noisy, Player, random_legal
from onthejob.envs.office.policies.expert import expert
from onthejob.envs.office.policies.heuristic import heuristic
from onthejob.envs.office.reward_parts import (
    EFFECTS,
    INVALID,
    MEANINGS,
    NO_PIPELINE_WORK,
    ORDER,
    PARTS,
    USES,
    VAPORWARE,
    TurnLog,
)
from onthejob.envs.office.reward_reasons import TEXTS, Cause, RewardReason, reasons
from onthejob.envs.office.scenarios import SHIPPED
from onthejob.envs.office.simulator import Simulator
from onthejob.errors import ContractError

PLAYERS: dict[str, Player] = {
    "random": random_legal,
    "heuristic": heuristic,
    "expert": expert,
    "careless": lambda view, legal, luck: None if luck < 0.2 else Noisy(heuristic, 0.4)(view, legal, (luck - 0.2) / 0.8),
}
ROUNDING = 60
"""Cents by which a value may miss the sum of its shares: every account's figures are whole cents."""


class Told(NamedTuple):
    """A turn or a night with its reasons."""

    actor: str
    log: TurnLog
    found: list[RewardReason]
    after: Book


def told(scenario: str, seed: int, player: str, days: int = 30) -> Iterator[Told]:
    """An episode."""
    simulator = Simulator(scenarios.load(scenario))
    s = simulator.found(seed, days)
    rows: list[Told] = []

    def look(s: CompanyState, actor: str, action: Action | None, log: TurnLog) -> None:
        rows.append(Told(actor, log, reasons(s, log), book(s)))

    run(simulator, s, dict.fromkeys(SEATS, PLAYERS[player]), turns=days * 14, on_turn=look)
    return iter(rows)


@pytest.mark.parametrize("player", PLAYERS)
@pytest.mark.parametrize("scenario", [*SHIPPED, *HELD_OUT])
def test_reasons_add_up_to_every_part_and_every_larger_reward_has_one(scenario: str, player: str, counts):
    nights = 0
    for seed in range(1_000, 1_000 + counts(1, 10)):
        for row in told(scenario, seed, player, counts(12, 30)):
            nights += row.actor == NIGHT
            for index, role in enumerate(ORDER):
                for part, paid in enumerate(row.log.lines[index]):
                    shares = [reason.amounts[role][part] for reason in row.found if role in reason.amounts]
                    assert sum(shares) == pytest.approx(paid, abs=1e-9), (row.actor, role, PARTS[part], row.found)
                    assert abs(paid) <= 1 or any(abs(share) > 0.02 for share in shares)
            sizes = [reason.size for reason in row.found]
            assert sizes == sorted(sizes, reverse=True)
            assert len({reason.text for reason in row.found}) == len(row.found), "one cause, one reason"
            assert row.log.before is not None
            for reason in row.found:
                assert 10 < len(reason.text) < 200
                assert reason.text[0].isupper()
                assert not reason.text.endswith(".")
                assert reason.text != "rounding"
                assert reason.amounts
                if reason.account >= 0:
                    line = row.after.accounts.get(reason.account) or row.log.before.accounts[reason.account]
                    assert reason.text.startswith(f"{line.name} ")
    assert nights


@pytest.mark.parametrize("scenario", ["baseline", "churn", "series_a", "key_person"])
def test_the_dollars_in_the_texts_are_those_that_were_paid(scenario: str):
    """The dollars that a text names are its share of the value, of which HR is paid 6 per 10,000 dollars."""
    seen = set()
    for row in told(scenario, 1_001, "heuristic"):
        for reason in row.found:
            found = re.fullmatch(
                r"(Expected payments of .*? (rose|fell) by|Wages:|Hosting:|.*? spent) \$([\d,]+)(:.*)?", reason.text
            )
            if found is None:
                continue
            cents = 100 * int(found[3].replace(",", ""))
            worth = 1_000_000 / 6 * reason.amounts["hr"][PARTS.index("kpi")]
            sign = 1 if found[2] == "rose" else -1
            assert worth == pytest.approx(sign * cents, abs=100)
            seen.add(found[1].split()[0])
    assert {"Expected", "Wages:", "Hosting:"} < seen


@pytest.mark.parametrize(("scenario", "player"), [("baseline", "heuristic"), ("churn", "careless"), ("series_a", "expert")])
def test_the_accounts_share_of_the_value_is_what_their_contracts_changed_by(scenario: str, player: str):
    """All but payments of the company itself; no more than cents of rounding are left over, so no cause is missing."""
    for row in told(scenario, 1_002, player):
        before, kpi = row.log.before, PARTS.index("kpi")
        assert before is not None
        contracts = 0
        for account, line in before.accounts.items():
            contracts -= line.worth if account not in row.after.accounts else 0
        for account, line in row.after.accounts.items():
            contracts += line.worth - (before.accounts[account].worth if account in before.accounts else 0)
        contracts += sum(cents for _, cents in row.log.booked)
        own = sum(
            cents - before.ledger.get(kind, 0)
            for kind, cents in row.after.ledger.items()
            if kind not in ("subscriptions", "refunds")
        )
        assert row.after.value - before.value == pytest.approx(contracts + own, abs=ROUNDING)
        said = sum(reason.amounts["marketing"][kpi] for reason in row.found if reason.cause is Cause.MONEY)
        assert said == pytest.approx(6 * own / 1_000_000, abs=1e-4)


def test_departures_signatures_and_neglect_are_said_with_names_and_reasons():
    rows = [row for scenario in ("baseline", "churn") for row in told(scenario, 1_000, "careless")]
    texts = [(row, reason) for row in rows for reason in row.found]
    left = [departure for row in rows for departure in row.log.departures]
    assert left
    for row in rows:
        said = {reason.account: reason for reason in row.found}
        for account, after, why in row.log.departures:
            reason = said[account.id]
            assert reason.text.startswith(
                f"{account.name} {'churned' if after == 7 else 'was lost'} (${account.price / 100:,.0f}/mo)"
            )
            assert reason.cause is Cause.DEAL
            assert reason.team < 0
            assert (f"satisfaction {account.sat:.0%}" in reason.text) == (why.value == "unhappy")
            assert ("third time" in reason.text) == (why.value == "refused")
            assert ("ten days" in reason.text) == (why.value == "silence")
    assert any("signed a" in reason.text and reason.team > 5 for _, reason in texts)
    for row, reason in texts:
        if "No contact for five days" in reason.text:
            assert row.actor == NIGHT
            assert set(reason.amounts) == {"sales"}
            changed = {reason.account for reason in row.found}
            stale = [about for _, kind, about, *_ in row.log.payments if kind == "stale lead"]
            count = sum(isinstance(about, Account) and about.id not in changed for about in stale)
            named = len(re.findall(r", | and ", reason.text)) + 1
            assert named == count or "more" in reason.text
            assert reason.of("sales") == -0.5 * count
    assert any("No contact for five days" in reason.text for _, reason in texts)


def test_every_rule_that_is_broken_is_named(office):
    company = office(leads=1)

    def watched(role: str, action: Action | None) -> list[RewardReason]:
        company.wait(role)
        rows: list[RewardReason] = []
        step_watched(company.simulator, company.state, action, lambda s, who, did, log: rows.extend(reasons(s, log)))
        return rows

    (invalid,) = [reason for reason in watched("hr", None) if reason.cause is Cause.RULE]
    assert (invalid.text, invalid.of("hr")) == ("The reply could not be used", -INVALID)
    promise = Action("WRITE_BLOG", "sync", message_to="all", message="Our SSO is live for everybody today.")
    (promised,) = [reason for reason in watched("content", promise) if reason.cause is Cause.RULE]
    assert (promised.text, promised.of("content")) == ("Promised SSO, which has not shipped", -VAPORWARE)
    idle = [reason for row in told("baseline", 1_000, "careless") for reason in row.found if "worked on no lead" in reason.text]
    assert idle
    assert all(reason.of("sales") == -NO_PIPELINE_WORK for reason in idle)


def test_who_used_whose_work_is_said():
    texts = " | ".join(reason.text for scenario in SHIPPED for row in told(scenario, 1_001, "expert") for reason in row.found)
    for said in (
        "Content helped the demo: ",
        "Content carries the campaign: ",
        "Content wrote about ",
        "Dev released what was asked for by Customer",
        "The key result of the focus ",
        "is no longer blocked",
        " was released",
    ):
        assert said in texts


def test_rewards_of_a_turn_without_a_spectator_are_not_explained():
    simulator = Simulator(scenarios.load("baseline"))
    s = simulator.found(1_000)
    log = simulator.step(s, None)
    with pytest.raises(ContractError, match="on_turn"):
        reasons(s, log)


def test_whatever_the_tables_pay_for_has_a_text():
    assert {*EFFECTS, *USES} <= set(TEXTS)


def test_every_part_has_a_meaning():
    assert tuple(MEANINGS) == PARTS
