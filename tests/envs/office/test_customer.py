"""The customer as a seat: it may be asked instead of being scripted, and what its player can change has limits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onthejob.envs.office.actions import Action, render
from onthejob.envs.office.company_state import FEATURE_INDEX, TURNS_PER_DAY, Stage, State
from onthejob.envs.office.env import CUSTOMER, SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.fast_play import run
from onthejob.envs.office.handlers import Now, all_handlers
from onthejob.envs.office.handlers.ceo import approvable
from onthejob.envs.office.handlers.customer import EXPANSION, REFERRAL_COOLDOWN, deliver
from onthejob.envs.office.luck import mix
from onthejob.envs.office.market import company_value
from onthejob.envs.office.policies.heuristic import heuristic
from onthejob.envs.office.reward_parts import USES, TurnLog
from onthejob.envs.office.roles import ROLES, Role
from onthejob.envs.office.scenarios import SHIPPED, load
from onthejob.envs.office.simulator import Simulator, actor_of
from onthejob.envs.office.tasks import office_tasks
from onthejob.errors import ContractError
from onthejob.testing import check_environment
from onthejob.types import Kind, Observation, Split

from .playing import advance, answer

ACTIONS = ROLES[Role.CUSTOMER].actions
PROFILES = ("compact", "full")


def asked(profile: str = "compact", **options: object) -> OfficeEnvironment:
    return OfficeEnvironment(OfficeConfig(profile=profile, customer_asked=True, **options))  # type: ignore[arg-type]


def reply(env: OfficeEnvironment, observation: Observation, name: str = "heuristic") -> str:
    """What the script or a scripted player does."""
    if observation.actor != CUSTOMER:
        return answer(observation, env.company.turn, name)
    return render(Simulator(load(env.company.scenario)).customer_action(env.company))


def until_customer(env: OfficeEnvironment, observation: Observation | None, times: int = 1) -> Observation:
    """Play until the customer is asked for the given time."""
    while observation is not None:
        if observation.actor == CUSTOMER:
            times -= 1
            if times == 0:
                return observation
        observation = env.step(reply(env, observation)).observation
    raise AssertionError("the customer was not asked")


@pytest.mark.parametrize(("profile", "reflect"), [("compact", False), ("full", False), ("full", True)])
@pytest.mark.parametrize("scenario", ["baseline", "churn"])
def test_asked_and_played_by_its_script_it_makes_the_same_company(task, scenario: str, profile: str, reflect: bool) -> None:
    """State and memories are equal to the byte at every request of another role, and so is the sum of what was paid."""
    usual = OfficeEnvironment(OfficeConfig(profile=profile, reflect=reflect))
    other = asked(profile, reflect=reflect)
    first, second = usual.reset(task(scenario, days=8)), other.reset(task(scenario, days=8))
    customers = 0
    while first is not None:
        assert second is not None
        assert (first.actor, first.kind, list(first.messages)) == (second.actor, second.kind, list(second.messages))
        assert usual.snapshot() == other.snapshot()
        text = reply(usual, first)
        step, own = usual.step(text), other.step(text)
        paid = dict(own.rewards)
        while own.observation is not None and own.observation.actor == CUSTOMER:
            customers += 1
            own = other.step(reply(other, own.observation))
            assert own.valid
            paid = {role: paid.get(role, 0.0) + reward for role, reward in own.rewards.items()}
        assert paid == pytest.approx(dict(step.rewards), abs=1e-9)
        assert own.stop == step.stop
        first, second = step.observation, own.observation
    assert customers == 2 * 8
    assert usual.state()["metrics"] == other.state()["metrics"]


@pytest.mark.parametrize("profile", PROFILES)
def test_with_the_customer_asked_it_keeps_what_every_environment_promises(profile: str) -> None:
    tasks = office_tasks(Split.DEV, seeds=1, scenarios=["churn", "viral"])
    checked = check_environment(lambda: asked(profile), tasks, max_turns=40)
    assert (checked.tasks, checked.steps) == (2, 80)
    assert checked.branches > 0


def test_it_is_asked_in_its_turns_and_by_default_never(task) -> None:
    env, usual = asked(), OfficeEnvironment()
    assert (env.asked, usual.asked) == ((*SEATS, CUSTOMER), SEATS)
    observation, actors = env.reset(task(days=3)), []
    while observation is not None:
        actors.append(observation.actor)
        observation = env.step(reply(env, observation)).observation
    assert actors == [actor_of(turn) for turn in range(3 * TURNS_PER_DAY)]
    usual.reset(task())
    with pytest.raises(ContractError, match="no seat is asked for 'customer'; the seats are ceo"):
        usual.look(CUSTOMER)


@pytest.mark.parametrize("profile", PROFILES)
def test_its_prompt_has_status_and_board_and_no_memories(task, profile: str) -> None:
    env = asked(profile)
    observation = until_customer(env, env.reset(task("churn")), times=12)
    system, user = (message.content for message in observation.messages)
    assert system.startswith("You are Oracle, customer of a startup")
    assert all(name in system for name in ACTIONS)
    assert [action.action_type for action in env.legal_actions()] == list(ACTIONS)
    assert observation.view["legal"] == env.legal_replies()
    assert ("Team:" in user, "Board:" in user) == (profile == "full", profile == "full")
    assert "Memories" not in user
    assert "Insights" not in user
    assert env.memories(CUSTOMER) == []
    assert env.look(CUSTOMER).messages == observation.messages
    shown = [block.text for block in env.sections(CUSTOMER)]
    assert "\n".join(text for text in shown if text) == user
    assert env.scores(env.legal_replies()[0])["rule_score"] > 0.5


def test_it_is_never_asked_to_reflect(task) -> None:
    env = asked("full", reflect=True)
    observation, kinds = env.reset(task(days=7)), set()
    while observation is not None:
        kinds.add((observation.actor == CUSTOMER, observation.kind))
        observation = env.step(reply(env, observation)).observation
    assert kinds == {(False, Kind.ACT), (False, Kind.REFLECT), (True, Kind.ACT)}


def test_its_message_is_delivered_besides_what_its_action_says(task) -> None:
    env = asked()
    until_customer(env, env.reset(task("churn")))
    turn = env.company.turn
    step = env.step('{"action_type":"GIVE_FEEDBACK","target":"","message":"dev: it crashes every morning"}')
    assert step.facts["message"] == "dev: it crashes every morning"
    said = [[sender, text, to] for at, sender, text, to in env.company.inbox["dev"] if at == turn]
    assert said == [[CUSTOMER, "it crashes every morning", "dev"]]
    (told,) = [text for at, sender, text, _ in env.company.inbox["sales"] if (at, sender) == (turn, CUSTOMER)]
    assert told.startswith("unhappy ")


def test_an_unusable_reply_costs_it_and_nobody_else(task) -> None:
    env = asked(retries=3)
    until_customer(env, env.reset(task()))
    for told in ("no JSON object", "It began with", "action_type must be one of: EVALUATE_PRODUCT, REQUEST_FEATURE"):
        again = env.step("More features!").observation
        assert again is not None
        assert (again.actor, again.kind, told in again.messages[-1].content) == (CUSTOMER, Kind.RETRY, True)
    second = env.step('{"action_type":"CLOSE_DEAL","target":"Acme"}')
    assert not second.valid
    assert {role: parts["penalty"] for role, parts in second.parts.items() if parts["penalty"]} == {CUSTOMER: -1.0}


# Snapshots and branches


@pytest.mark.parametrize("profile", PROFILES)
def test_a_snapshot_that_waits_for_the_customer_is_refused_where_the_script_plays_it(task, profile: str) -> None:
    env, usual = asked(profile), OfficeEnvironment(OfficeConfig(profile=profile))
    observation = until_customer(env, env.reset(task()), times=3)
    usual.reset(task("viral"))
    before = usual.snapshot()
    with pytest.raises(ContractError, match="it waits for the customer, whose script this environment plays"):
        usual.restore(env.snapshot())
    assert usual.snapshot() == before
    again = asked(profile)
    restored = again.restore(env.snapshot())
    assert restored is not None
    assert list(restored.messages) == list(observation.messages)
    text = render(Action("RENEW_CONTRACT"))
    assert env.fork().step(text).rewards == again.step(text).rewards == env.step(text).rewards


@pytest.mark.parametrize("profile", PROFILES)
def test_any_other_snapshot_serves_both(task, profile: str) -> None:
    env, usual = asked(profile), OfficeEnvironment(OfficeConfig(profile=profile))
    advance(usual, task("churn"), lambda seen: usual.company.turn == 5)
    assert env.restore(usual.snapshot()) is not None
    assert env.step(answer(env.observe(), 5)).observation.actor == CUSTOMER  # type: ignore[arg-type, union-attr]
    env.restore(usual.snapshot())
    assert usual.restore(env.snapshot()) is not None
    assert usual.step(answer(usual.observe(), 5)).observation.actor == "ceo"  # type: ignore[arg-type, union-attr]


def test_a_branch_continues_with_the_script(task) -> None:
    """As by hand: the reply, then the heuristic in six seats and the script in the seventh."""
    env = asked()
    until_customer(env, env.reset(task("churn")), times=5)
    action = Action("GIVE_FEEDBACK")
    branch = env.branch(render(action), world=3, turns=40)
    fork = env.fork()
    fork.enter(3)
    s, simulator = fork.company, Simulator(load("churn"))
    returns = dict(simulator.step(s, action).rewards())
    for role, paid in run(simulator, s, dict.fromkeys(SEATS, heuristic), turns=39).items():
        returns[role] += paid
    assert branch.turns == 40
    assert branch.facts["company_value"] == company_value(s) / 100.0
    assert dict(branch.returns) == pytest.approx(returns)
    assert env.canonical('{"action_type":"give feedback","target":"x","reasoning":"why"}') == render(action)
    lost = env.branch("nonsense", world=3, turns=40)
    assert not lost.valid
    assert lost.returns[CUSTOMER] < branch.returns[CUSTOMER]


# What a player of the customer can change


def states() -> Iterator[tuple[Simulator, State]]:
    """The customer's turns of three days in every scenario but those that end a day, with a critical bug and a happy customer."""
    for scenario in SHIPPED:
        simulator = Simulator(load(scenario))
        s = simulator.found(1_001, 20)
        while s.day < 20 and not s.done:
            if actor_of(s.turn) == CUSTOMER and s.day in (2, 9, 17) and (s.turn + 1) % TURNS_PER_DAY:
                held = s.copy()
                held.bug_critical = max(1, held.bug_critical)
                for account in held.customers()[:1]:
                    account.sat, account.won_day = 0.9, -9
                yield simulator, held
            run(simulator, s, dict.fromkeys(SEATS, heuristic), turns=1)


def test_no_action_and_no_message_changes_satisfaction_or_the_books() -> None:
    """Only the price of a contract and a referred lead can be won, and both need customers that are satisfied already."""
    moved: dict[str, set[str]] = {}
    for simulator, start in states():
        for name in ACTIONS:
            for to in (None, *SEATS, "all"):
                s = start.copy()
                simulator.step(s, Action(name, message_to=to, message="we love it, 10 of 10" if to else ""))
                assert [(a.id, a.sat) for a in s.customers()] == [(a.id, a.sat) for a in start.customers()]
                assert (s.base_sat, s.hazard, s.morale, s.cash) == (start.base_sat, start.hazard, start.morale, start.cash)
                changed = {
                    "leads": len(s.leads()) != len(start.leads()),
                    "prices": s.mrr() != start.mrr(),
                    "board": s.shared != start.shared,
                    "inboxes": s.inbox != start.inbox,
                }
                if to is None:
                    moved.setdefault(name, set()).update(what for what, differs in changed.items() if differs)
    assert moved == {
        "EVALUATE_PRODUCT": {"board"},
        "REQUEST_FEATURE": {"inboxes"},
        "GIVE_FEEDBACK": {"inboxes"},
        "REFER_LEAD": {"leads"},
        "ESCALATE_ISSUE": {"board"},
        "RENEW_CONTRACT": {"prices"},
    }


def called_every_turn(office, name: str, satisfaction: float) -> tuple[State, list[int]]:
    """The state after 30 days in which the customer does one thing only, and the turns on which that achieved something."""
    held = office("churn")
    s, key = held.state, mix(held.state.seed, 1)
    act, done = all_handlers()[CUSTOMER, name].run, []
    for account in s.customers():
        account.sat = satisfaction
    for turn in range(30 * TURNS_PER_DAY):
        if actor_of(turn) == CUSTOMER:
            s.turn = turn
            if act(s, Action(name), Now(key, TurnLog(s), 1.0)):
                done.append(turn)
    return s, done


def test_referrals_asked_for_every_turn_are_five_days_apart(office) -> None:
    s, done = called_every_turn(office, "REFER_LEAD", 0.9)
    days = [turn // TURNS_PER_DAY for turn in done]
    assert days == list(range(0, 30, REFERRAL_COOLDOWN))
    assert called_every_turn(office, "REFER_LEAD", 0.7)[1] == []
    assert len(s.leads()) - len(office("churn").state.leads()) == len(days)


def test_renewals_asked_for_every_turn_are_drawn_twice_for_each_customer(office) -> None:
    before = {account.id: account.price for account in office("churn").state.customers()}
    s, done = called_every_turn(office, "RENEW_CONTRACT", 0.9)
    after = {account.id: account.price for account in s.customers()}
    assert before.keys() == after.keys()
    assert {account.expanded for account in s.customers()} == {2}
    most = 1 + EXPANSION
    assert all(after[name] <= round(price * most * most) for name, price in before.items())
    assert 0 < len(done) <= 2 * len(before)
    assert called_every_turn(office, "RENEW_CONTRACT", 0.72)[1] == []


def test_its_words_can_share_in_devs_credit_and_approve_nothing(office) -> None:
    """A request in its own words counts like one of REQUEST_FEATURE; terms of a large deal are asked for by Sales alone."""
    held = office()
    account = held.account(Stage.PROPOSAL, size=2)
    deliver(held.state, CUSTOMER, "ceo", f"approve {account.name}")
    assert account.name not in approvable(held.state)
    deliver(held.state, "sales", "ceo", f"approve {account.name}")
    assert account.name in approvable(held.state)
    held.act(CUSTOMER, "EVALUATE_PRODUCT", message="need security", to="dev")
    held.wait("dev")
    held.state.feature_left[FEATURE_INDEX["SSO"]] = 0.0
    parts = held.act("dev", "SHIP_RELEASE", "SSO").parts()
    credit = USES["feature built on request"]
    assert {role: part["collaboration"] for role, part in parts.items() if part["collaboration"]} == {
        "dev": credit,
        CUSTOMER: credit,
    }
