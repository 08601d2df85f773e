"""Stand-ins do what the counted replies did, and continue branches when they are asked to."""

from __future__ import annotations

from collections import Counter

import pytest

from onthejob.envs.office.actions import Action, Invalid, UnusableReason, render
from onthejob.envs.office.env import SEATS, OfficeEnvironment
from onthejob.envs.office.policies.expert import expert
from onthejob.envs.office.policies.stand_in import EXPERT, INVALID, StandIn, habits
from onthejob.rollout.stand_ins import StandIns
from onthejob.types import Imitable, Split, Task

TASK = Task(id="office-stand-in", env="office", split=Split.DEV, seed=20_900, payload={"scenario": "baseline", "days": 30})


@pytest.fixture
def env() -> OfficeEnvironment:
    made = OfficeEnvironment()
    made.reset(TASK)
    return made


def test_the_office_offers_stand_ins(env: OfficeEnvironment):
    assert isinstance(env, Imitable)


def test_habits_count_what_was_chosen_out_of_what_could_have_been(env: OfficeEnvironment):
    observation = env.observe()
    assert observation is not None
    legal = env.legal_actions()
    own = expert(observation.view, list, 0.5)
    assert own is not None
    other = next(action for action in legal if action.action_type != own.action_type)
    spoken = Action(own.action_type, own.target, message_to="dev", message="please")
    replies = [render(own), render(spoken), render(other), "no action", render(other), render(other)]
    counted = env.habits(replies)
    assert counted[INVALID] == (1.0, 6.0)
    assert counted[EXPERT] == (2.0, 6.0)
    assert counted[other.action_type] == (3.0, 3.0)
    unchosen = {action.action_type for action in legal} - {other.action_type}
    assert all(counted[name] == (0.0, 3.0) for name in unchosen)
    assert set(counted) == {INVALID, EXPERT, *(action.action_type for action in legal)}


def test_a_stand_in_has_the_rates_it_was_given(env: OfficeEnvironment):
    observation, legal = env.observe(), env.legal_actions()
    assert observation is not None
    own = expert(observation.view, list, 0.5)
    types = list(dict.fromkeys(action.action_type for action in legal if action.action_type != own.action_type))
    assert len(types) >= 3
    rates = {INVALID: 0.2, EXPERT: 0.3, own.action_type: 0.0, **dict.fromkeys(types, 0.0), types[0]: 0.1, types[1]: 0.3}
    player = StandIn(rates)
    draws = [player(observation.view, env.legal_actions, (i + 0.5) / 4000) for i in range(4000)]
    assert draws.count(None) == pytest.approx(800, abs=2)
    got = Counter(action.action_type for action in draws if action is not None and action != own)
    assert got[types[1]] == pytest.approx(3 * got[types[0]], rel=0.02)
    assert sum(got.values()) == pytest.approx(2000, abs=2)
    targets = Counter(action.target for action in draws if action and action != own and action.action_type == types[1])
    offered = {action.target for action in legal if action.action_type == types[1]}
    assert set(targets) == offered
    assert max(targets.values()) - min(targets.values()) <= 2


def test_counted_habits_become_a_stand_in_that_has_them(env: OfficeEnvironment):
    """Fitted to a stand-in's own replies, the rates are found again."""
    truth = StandIn({INVALID: 0.1, EXPERT: 0.5, "QUALIFY_LEAD": 0.9, "CLOSE_DEAL": 0.2})
    observed = []
    observation, number = env.observe(), 0
    while observation is not None:
        view, legal = observation.view, env.legal_actions()
        replies = [truth(view, lambda legal=legal: legal, (number + 0.37 * k) % 1.0) for k in range(8)]
        read = [Invalid(UnusableReason.NOT_JSON, "none") if action is None else action for action in replies]
        observed.append((observation.actor, habits(view, legal, read)))
        number += 0.618
        observation = env.step("" if replies[0] is None else render(replies[0])).observation
    counts = StandIns()
    counts.add(observed)
    rates = counts.rates()
    assert set(rates) == set(SEATS)
    assert rates["ceo"][INVALID] == pytest.approx(0.1, abs=0.08)
    assert rates["dev"][EXPERT] > 0.45
    assert rates["sales"]["QUALIFY_LEAD"] > rates["sales"]["FOLLOW_UP"]
    counts.add([])
    assert counts.rates()["dev"][EXPERT] == pytest.approx(rates["dev"][EXPERT], abs=0.02)
    assert StandIns.from_state(counts.state()).rates() == counts.rates()


def test_branches_are_played_on_by_stand_ins_until_told_otherwise(env: OfficeEnvironment):
    reply = env.legal_replies()[0]
    by_partners = env.branch(reply, world=1, turns=140)
    useless = {role: {INVALID: 1.0} for role in SEATS}
    env.continue_with(useless)
    by_stand_ins = env.branch(reply, world=1, turns=140)
    assert by_stand_ins.outcome < by_partners.outcome
    assert env.fork().branch(reply, world=1, turns=140) == by_stand_ins
    env.continue_with({"sales": {INVALID: 1.0}})
    alone = env.branch(reply, world=1, turns=140)
    assert alone not in (by_partners, by_stand_ins)
    env.continue_with({})
    assert env.branch(reply, world=1, turns=140) == by_partners
    assert env.fork().branch(reply, world=1, turns=140) == by_partners


def test_stand_ins_reply_for_themselves_too(env: OfficeEnvironment):
    observation = env.observe()
    assert observation is not None
    own = expert(observation.view, list, 0.5)
    assert own is not None
    replies = env.stand_ins({observation.actor: {INVALID: 0.25, EXPERT: 0.75}})[observation.actor]
    said = Counter(replies(observation, seed) for seed in range(400))
    assert set(said) == {"", render(own)}
    assert said[""] == pytest.approx(100, abs=30)
