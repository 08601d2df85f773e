"""What no role can have seen is part of a branch's luck: a reply is worth its mean over what its author cannot distinguish."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onthejob.envs.office.actions import render
from onthejob.envs.office.company_state import PAINS, Account, Stage, State
from onthejob.envs.office.env import SEATS, OfficeEnvironment
from onthejob.envs.office.events import discount_demands
from onthejob.envs.office.luck import mix
from onthejob.envs.office.market import PRICES
from onthejob.envs.office.new_company import (
    FIRST_ID,
    INQUIRY_SLOT,
    MEAN_DRAWN_PRICE,
    MEAN_PRICE,
    REFERRAL_SLOT,
    SIZE_WEIGHTS,
    arrive,
    brought,
    draw_unseen,
    drawn_quality,
    usual_price,
)
from onthejob.envs.office.policies.expert import expert
from onthejob.envs.office.views import view

HIDDEN = ("pain", "size", "price", "quality", "deadline")
KNOWN = tuple(name for name in Account.__slots__ if name not in HIDDEN)


def redrawn(s: State, world: int) -> State:
    copy = s.copy()
    copy.world = world
    draw_unseen(copy, s.world)
    return copy


@pytest.fixture(scope="module")
def met(playing: Callable[..., Iterator[tuple[Any, ...]]]) -> list[State]:
    """Companies on many days, with leads of every stage and every way of arriving."""
    found = []
    for scenario, seed in (("baseline", 1), ("viral", 2), ("series_a", 3), ("churn", 4)):
        found += [s.copy() for turn, (_, s, *_) in enumerate(playing("expert", scenario, seed)) if turn % 23 == 5 and not s.done]
    return found


def test_nobody_sees_a_difference(met: list[State]) -> None:
    changed = 0
    for s in met:
        other = redrawn(s, 7)
        changed += any(
            getattr(a, name) != getattr(b, name) for a, b in zip(s.accounts, other.accounts, strict=True) for name in HIDDEN
        )
        for role in (*SEATS, "customer"):
            assert json.dumps(view(s, role)) == json.dumps(view(other, role))
    assert changed > 0.8 * len(met)


def test_what_was_seen_stays(met: list[State]) -> None:
    stages = Counter()
    for s in met:
        for a, b in zip(s.accounts, redrawn(s, 3).accounts, strict=True):
            stages[a.stage, a.failed > 0] += 1
            assert [getattr(a, name) for name in KNOWN] == [getattr(b, name) for name in KNOWN]
            if a.stage >= Stage.WON:
                assert [getattr(a, name) for name in HIDDEN] == [getattr(b, name) for name in HIDDEN]
            if a.known:
                assert (a.pain, a.size, a.price) == (b.pain, b.size, b.price)
            if a.failed:
                assert a.quality == b.quality
    assert {(Stage.LEAD, False), (Stage.QUALIFIED, False), (Stage.WON, False)} < stages.keys()
    assert any(refused for _, refused in stages)


def test_a_lead_is_still_there_in_every_world(met: list[State]) -> None:
    waits = set()
    for s in met:
        for world in range(1, 30):
            for a in redrawn(s, world).accounts:
                if a.stage < Stage.WON:
                    assert s.day < a.deadline <= max(a.id // 16 + 17, s.day + 1)
                    waits.add(a.deadline - a.id // 16)
    assert waits >= set(range(9, 18))


def test_a_world_has_its_own_luck_and_always_the_same(met: list[State]) -> None:
    s = next(s for s in met if sum(not a.known for a in s.accounts) >= 3)
    drawn = [tuple((a.pain, a.size, a.quality) for a in redrawn(s, world).accounts) for world in range(1, 20)]
    assert len(set(drawn)) == len(drawn)
    assert drawn == [tuple((a.pain, a.size, a.quality) for a in redrawn(s, world).accounts) for world in range(1, 20)]


def test_leads_are_drawn_as_on_arrival(office) -> None:
    company = office(leads=0)
    s = company.state
    s.turn = 14 * 4
    s.researched[:] = [2] * len(s.researched)
    key = mix(s.seed, 1 + s.world)
    plain, warm = arrive(s, key, 0), arrive(s, key, 1, theme=2)
    inquiry, referral = arrive(s, key, INQUIRY_SLOT, large=True), arrive(s, key, REFERRAL_SLOT, referred=True)
    assert [usual_price(s, a) for a in (plain, warm, inquiry, referral)] == [MEAN_PRICE, MEAN_DRAWN_PRICE, PRICES[2], MEAN_PRICE]
    worlds = [redrawn(s, world) for world in range(1, 3001)]
    found = {a.id: [next(b for b in w.accounts if b.id == a.id) for w in worlds] for a in (plain, warm, inquiry, referral)}
    for a, expected in ((plain, MEAN_PRICE), (warm, MEAN_DRAWN_PRICE), (inquiry, PRICES[2]), (referral, MEAN_PRICE)):
        assert statistics.mean(b.price for b in found[a.id]) == pytest.approx(expected, rel=0.05)
        assert {usual_price(w, b) for w, b in zip(worlds, found[a.id], strict=True)} == {usual_price(s, a)}
    shares = Counter(b.size for b in found[plain.id])
    assert [shares[size] / 3000 for size in range(3)] == pytest.approx(SIZE_WEIGHTS, abs=0.03)
    assert statistics.mean(b.quality for b in found[plain.id]) == pytest.approx(0.5, abs=0.03)
    assert min(b.quality for b in found[warm.id]) >= brought(0.0)
    assert min(b.quality for b in found[inquiry.id] + found[referral.id]) >= 0.5
    wants = s.demand[plain.segment]
    pains = Counter(b.pain for b in found[plain.id])
    assert [pains[i] / 3000 for i in range(len(PAINS))] == pytest.approx([w / sum(wants) for w in wants], abs=0.04)


def test_a_fork_that_keeps_the_secrets_finds_no_luck_in_them(office) -> None:
    """The oracle's forks know the company's true present."""
    s = office(leads=0).state
    s.turn = 14 * 4
    leads = [arrive(s, mix(s.seed, 1 + s.world), slot) for slot in range(12)]
    assert {usual_price(s, a) for a in leads} == {MEAN_PRICE}
    fork = s.copy()
    fork.world = 5_000
    assert [usual_price(fork, a) for a in fork.accounts] == [a.price for a in leads]
    draw_unseen(fork, s.world)
    assert {usual_price(fork, a) for a in fork.accounts} == {MEAN_PRICE}


def test_a_campaign_still_tells_what_its_leads_need(office) -> None:
    s = office(leads=0).state
    s.turn = 14 * 4
    lead = arrive(s, mix(s.seed, 1), 0, theme=2)

    def share() -> float:
        return statistics.mean(redrawn(s, world).accounts[-1].pain == 2 for world in range(1, 2001))

    assert s.accounts[-1] is lead
    without = share()
    s.novelty[2] = s.day - 3
    wants = s.demand[lead.segment]
    tripled = 3 * wants[2] / (sum(wants) + 2 * wants[2])
    assert share() == pytest.approx(tripled, abs=0.04)
    assert without == pytest.approx(wants[2] / sum(wants), abs=0.04)


def test_no_campaign_has_drawn_those_of_the_first_morning(office) -> None:
    s = office("viral", leads=8).state
    assert max(a.id for a in s.leads()) == FIRST_ID - 1
    before = [redrawn(s, world) for world in range(1, 200)]
    s.novelty[2] = 0
    for world, old in enumerate(before, 1):
        now = redrawn(s, world)
        assert [(a.pain, a.size, a.quality) for a in now.accounts] == [(a.pain, a.size, a.quality) for a in old.accounts]


def test_whom_a_customer_brings_on_the_first_day_is_no_founding_lead(office) -> None:
    company = office("viral", traffic=1, leads=0)
    for customer in company.state.customers():
        customer.sat = 0.9
    log = company.act("customer", "REFER_LEAD")
    (lead,) = company.state.leads()
    assert lead.id // 16 == 0
    assert lead.id >= FIRST_ID
    assert log.parts()["marketing"]["stage"] == 1.5
    assert min(redrawn(company.state, world).leads()[0].quality for world in range(1, 300)) >= 0.5
    lead.deadline = 99
    lost = [log for log in company.sleep(11) if log.parts()["sales"]["penalty"] < -1.0]
    assert company.state.lost == 1
    assert lost[-1].parts()["marketing"]["stage"] == -1.5


def test_a_discount_outlives_the_luck(office) -> None:
    s = office("price_war", leads=6).state
    s.turn = 14 * 4
    leads = [arrive(s, mix(s.seed, 1), slot) for slot in range(3)]
    expected = [usual_price(s, a) for a in leads]
    discount_demands(s)
    assert [usual_price(s, a) for a in leads] == pytest.approx([0.9 * price for price in expected])
    for world in range(1, 50):
        for a in redrawn(s, world).accounts:
            assert a.price == PRICES[a.size] * 9 // 10 or a.stage >= Stage.WON


def test_a_branch_does_not_know_more_than_its_author(task) -> None:
    """Two companies that differ only in what no role can have seen give every reply the same value, exactly."""
    compared = 0
    for name in ("baseline", "competitor"):
        env = OfficeEnvironment()
        observation = env.reset(task(name))
        while observation is not None:
            s = env.company
            unseen = [a for a in s.accounts if not a.known and a.quality == drawn_quality(s.seed, 0, a.id)]
            if len(unseen) > 1 and s.turn % 5 == 0:
                other = env.fork()
                for a in other.company.accounts:
                    if a.id in {b.id for b in unseen}:
                        a.pain, a.size, a.price = (a.pain + 1) % len(PAINS), (a.size + 1) % 3, PRICES[(a.size + 1) % 3]
                        a.quality, a.deadline = 1.0 - a.quality, s.day + 1
                replies = env.legal_replies()
                assert replies == other.legal_replies()
                for reply in {replies[0], replies[-1]}:
                    assert env.branch(reply, world=5, turns=56) == other.branch(reply, world=5, turns=56)
                compared += 1
            action = expert(observation.view, list, 0.5)
            observation = env.step(render(action) if action is not None else "").observation
    assert compared >= 5
