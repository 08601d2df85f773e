"""The environment behind its protocol: branches, retries, reflection, and replies of any kind."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onthejob.envs.office import scenarios
from onthejob.envs.office.actions import parse
from onthejob.envs.office.company_state import Stage
from onthejob.envs.office.env import INVALID_KEY, REFLECTION_KEY, SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.fast_play import run
from onthejob.envs.office.market import LEAD_MONTHS, company_value, lead_value, pipeline_value
from onthejob.envs.office.new_company import draw_unseen
from onthejob.envs.office.policies import do_nothing
from onthejob.envs.office.policies.expert import expert
from onthejob.envs.office.policies.heuristic import heuristic
from onthejob.envs.office.roles import ROLES, Role
from onthejob.envs.office.scenarios import SHIPPED
from onthejob.envs.office.simulator import Simulator
from onthejob.envs.office.snapshot import loads
from onthejob.envs.office.tasks import office_tasks
from onthejob.errors import ConfigError, ContractError
from onthejob.testing import ADVERSARIAL_REPLIES, check_environment
from onthejob.types import Forkable, Kind, Observation, Split, StopReason, Task

from .playing import ASKING, COMPACT, FULL, advance, answer, turns

GOLDEN = Path(__file__).parents[2] / "data" / "office_golden.json"


# The contract


@pytest.mark.parametrize("config", [COMPACT, FULL, ASKING], ids=["compact", "full", "asking"])
def test_it_keeps_what_every_environment_promises(config: OfficeConfig) -> None:
    tasks = office_tasks(Split.DEV, seeds=1)
    checked = check_environment(lambda: OfficeEnvironment(config), tasks, max_turns=40, spectators=("customer",))
    assert (checked.tasks, checked.steps, checked.forks) == (5, 200, 15)
    assert checked.adversarial > 100
    assert checked.branches == 90


def test_it_keeps_them_where_actors_are_asked_to_reflect() -> None:
    def choose(observation: Observation, seed: int) -> str:
        return answer(observation, seed)

    checked = check_environment(
        lambda: OfficeEnvironment(ASKING),
        office_tasks(Split.DEV, seeds=1, scenarios=["churn"]),
        choose=choose,
        max_turns=75,
        spectators=("customer",),
    )
    assert checked.steps == 75
    assert isinstance(OfficeEnvironment(), Forkable)


def played(setup: Task, name: str) -> dict[str, Any]:
    """What a recorded episode is compared by: digests of all texts and of all rewards, and how the company ended."""
    env, texts, rewards = OfficeEnvironment(), hashlib.sha256(), hashlib.sha256()
    for observation, reply, step in turns(env, setup, name):
        for text in (*(message.content for message in observation.messages), reply):
            texts.update(text.encode() + b"\0")
        rewards.update(json.dumps([[round(v, 6) + 0.0 for v in parts.values()] for parts in step.parts.values()]).encode())
    metrics = env.state()["metrics"]
    return {
        "texts": texts.hexdigest(),
        "rewards": rewards.hexdigest(),
        "company_value": metrics["company_value"],
        "team_reward": round(metrics["team_reward"], 6),
    }


def test_recorded_episodes_play_as_they_were_recorded(task) -> None:
    """Texts, rewards and values of the compact profile: a difference means that old runs and new ones do not compare.

    When the rules are meant to change, record again with ONTHEJOB_RECORD=1 and say so in docs/log.
    """
    recorded = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert {(row["scenario"], row["policy"]) for row in recorded} == {
        (scenario, policy) for scenario in SHIPPED for policy in ("expert", "heuristic", "random")
    }
    again = [{**row, **played(task(row["scenario"], row["seed"], world=row["world"]), row["policy"])} for row in recorded]
    if os.environ.get("ONTHEJOB_RECORD") == "1":
        GOLDEN.write_text(json.dumps(again, indent=1) + "\n", encoding="utf-8")
        pytest.skip("recorded again")
    for row, expected in zip(again, recorded, strict=True):
        assert row == expected


TRANSCRIPT = """
import hashlib, json, sys
from onthejob.envs.office.env import OfficeConfig, OfficeEnvironment
from onthejob.envs.office.policies import Noisy
from onthejob.office_players import as_policy, players
from onthejob.types import Context, Sampling, Split, Task
for profile in ("compact", "full"):
    env = OfficeEnvironment(OfficeConfig(profile=profile))
    asked = env.reset(Task(id="t", env="office", split=Split.DEV, seed=77, payload={"scenario": "viral"}))
    policy, turns, digest = as_policy(Noisy(players()["expert"], 0.3), version="noisy"), 0, hashlib.sha256()
    while asked is not None:
        reply = policy.act([Context(observation=asked, seed=turns)], Sampling())[0].text
        step = env.step(reply)
        rewards = {actor: reward.hex() for actor, reward in step.rewards.items()}
        digest.update(json.dumps([asked.messages, dict(asked.view), reply, rewards, step.facts]).encode())
        asked, turns = step.observation, turns + 1
    digest.update(env.snapshot())
    print(profile, turns, env.state()["turn"], digest.hexdigest())
"""


def test_processes_agree_to_the_byte() -> None:
    printed = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", TRANSCRIPT], capture_output=True, text=True, env=environment, check=True)
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    assert [line.split()[:3] for line in printed[0].splitlines()] == [["compact", "360", "420"], ["full", "360", "420"]]


# Branches


def test_branches_are_determined_by_their_world_and_not_by_their_order(task) -> None:
    env = OfficeEnvironment()
    asked = advance(env, task("viral"), lambda asked: asked.actor == "sales" and int(env.state()["turn"]) > 50)
    before = env.snapshot()
    replies = [*env.legal_replies()[:3], *env.legal_replies()[-2:]]
    asked_for = [(reply, world) for reply in replies for world in (1, 2, 3)]
    first = {key: env.branch(key[0], world=key[1], turns=28) for key in asked_for}
    again = {key: env.fork().branch(key[0], world=key[1], turns=28) for key in reversed(asked_for)}
    assert first == again
    assert env.snapshot() == before
    for reply in replies:
        assert len({first[reply, world].outcome for world in (1, 2, 3)}) == 3
    assert len({json.dumps(first[reply, 1].returns) for reply in replies}) >= 3
    assert asked.actor == "sales"


@pytest.mark.parametrize("config", [COMPACT, FULL], ids=["compact", "full"])
def test_a_branch_is_what_step_and_the_continuation_give(task, config: OfficeConfig) -> None:
    env = OfficeEnvironment(config, continuation=dict.fromkeys(SEATS, expert))
    advance(env, task("series_a"), lambda asked: asked.actor == "dev" and int(env.state()["turn"]) > 30)
    reply = env.legal_replies()[0]
    got = env.branch(reply, world=3, turns=30)
    taken = env.snapshot()
    s = loads(taken[4 + int.from_bytes(taken[:4], "big") :])
    s.world = 3
    draw_unseen(s, 0)
    start = company_value(s) + lead_value(s) - s.luck
    simulator = env._simulator
    assert simulator is not None
    action = parse(reply, Role.DEV)
    log = simulator.step(s, action)  # type: ignore[arg-type]
    returns = run(simulator, s, dict.fromkeys(SEATS, expert), turns=29)
    assert got.outcome == (company_value(s) + lead_value(s) - s.luck - start) / 100
    assert got.returns == pytest.approx({role: returns[role] + log.rewards()[role] for role in returns})
    assert (got.turns, got.valid) == (30, True)


@pytest.mark.parametrize("config", [COMPACT, FULL], ids=["compact", "full"])
def test_a_fork_that_entered_a_world_is_played_on_as_its_branch_is(task, config: OfficeConfig) -> None:
    env = OfficeEnvironment(config)
    advance(env, task("churn"), lambda asked: asked.actor == "sales" and int(env.state()["turn"]) > 30)
    before = env.snapshot()
    for reply in (env.legal_replies()[0], env.legal_replies()[-1], "{"):
        fork, paid = env.fork(), dict.fromkeys(SEATS, 0.0)
        fork.enter(3)
        steps = [fork.step(reply)]
        while len(steps) < 17:
            assert steps[-1].observation is not None
            steps.append(fork.step(answer(steps[-1].observation, len(steps), "heuristic")))
        for step in steps:
            for role, amount in step.rewards.items():
                paid[role] = paid.get(role, 0.0) + amount
        elapsed = int(fork.state()["turn"]) - int(env.state()["turn"])  # the customer's turns, for which no seat is asked, count
        expected = env.branch(reply, world=3, turns=elapsed)
        assert elapsed > 17
        assert fork.outcome() == pytest.approx(expected.outcome)
        assert paid == pytest.approx(expected.returns)
    assert env.snapshot() == before
    with pytest.raises(ContractError, match="world >= 1"):
        env.enter(0)


def test_open_leads_count_only_where_the_episode_goes_on(office) -> None:
    company = office()
    before = lead_value(company.state)
    company.account(Stage.PROPOSAL, size=2)
    assert lead_value(company.state) == before + int(450_000 * LEAD_MONTHS[Stage.PROPOSAL])
    company.account(Stage.WON, size=2)
    assert lead_value(company.state) == before + int(450_000 * LEAD_MONTHS[Stage.PROPOSAL])
    shown = pipeline_value(company.state)
    assert shown == sum(a.price for a in company.state.accounts if Stage.DEMO <= a.stage < Stage.WON) == 450_000
    company.state.done = "horizon"
    assert lead_value(company.state) == 0
    assert pipeline_value(company.state) == shown


def test_an_unusable_reply_branches_as_a_lost_turn(task) -> None:
    env = OfficeEnvironment(OfficeConfig(retries=8))
    advance(env, task("churn"), lambda asked: asked.actor == "hr")
    wrong, other = env.branch("{", world=1, turns=14), env.branch("I would rather not", world=1, turns=14)
    assert wrong == other
    assert not wrong.valid
    assert wrong.returns["hr"] < env.branch('{"action_type":"TEAM_SYNC"}', world=1, turns=14).returns["hr"]


def test_a_reflection_changes_no_branch(task) -> None:
    env = OfficeEnvironment(ASKING)
    advance(env, task("churn"), lambda asked: asked.kind is Kind.REFLECT)
    assert env.canonical("one thing") == env.canonical('{"action_type":"TEAM_SYNC"}') == REFLECTION_KEY
    one, other = (env.branch(reply, world=2, turns=14) for reply in ("People are tired [1]", "{"))
    assert one == other
    assert one.valid
    assert one.turns == 14


def test_a_branch_ends_with_the_episode(task) -> None:
    env = OfficeEnvironment()
    advance(env, task("baseline", days=2), lambda asked: int(env.state()["turn"]) >= 20)
    turn = int(env.state()["turn"])
    assert env.branch("", world=1, turns=500).turns == 28 - turn


@pytest.mark.parametrize(("world", "length"), [(0, 5), (-1, 5), (1, 0)])
def test_the_main_line_is_no_branch(task, world: int, length: int) -> None:
    env = OfficeEnvironment()
    env.reset(task())
    with pytest.raises(ContractError, match="world >= 1"):
        env.branch("", world=world, turns=length)


def test_worlds_share_the_first_morning_and_differ_afterwards(task) -> None:
    firsts, lasts = set(), set()
    for world in (0, 1, 10_000):
        env = OfficeEnvironment()
        first = env.reset(task("viral", 9, world=world))
        firsts.add(json.dumps(dict(first.view)))
        observation: Observation | None = first
        while observation is not None and int(env.state()["turn"]) < 100:
            observation = env.step(answer(observation, 0, "expert")).observation
        lasts.add(env.state()["metrics"]["company_value"])
    assert len(firsts) == 1
    assert len(lasts) == 3


def test_seeds_and_scenarios_differ(task) -> None:
    seen = set()
    for scenario in SHIPPED:
        for seed in (1, 2):
            env = OfficeEnvironment()
            env.reset(task(scenario, seed))
            taken = env.snapshot()
            seen.add(taken[4 + int.from_bytes(taken[:4], "big") :])
    assert len(seen) == 10


# Replies


def test_every_legal_reply_is_taken(task) -> None:
    env, tried = OfficeEnvironment(), 0
    for observation, _, _ in turns(env, task("churn", days=10), "expert"):
        assert observation
        if env.observe() is None or int(env.state()["turn"]) % 11:
            continue
        for reply in env.legal_replies():
            assert env.fork().step(reply).valid, reply
            assert env.canonical(reply) == reply
            tried += 1
    assert tried > 100


def test_equal_actions_have_one_key(task) -> None:
    env = OfficeEnvironment()
    env.reset(task())
    key = env.canonical('{"action_type":"SET_OKRS","target":"growth"}')
    assert key == env.canonical(' {"target": "growth", "action_type": "set okrs", "reasoning": "because"}\n')
    assert key != env.canonical('{"action_type":"SET_OKRS","target":"product"}')
    assert key == env.canonical('{"action_type":"SET_OKRS","target":"growth","parameters":{"tier":"annual","x":[1]}}')
    assert env.canonical("") == env.canonical('{"action_type":"SET_OKRS","target":"fame"}') == INVALID_KEY


def monkey(rng: random.Random, legal: list[str]) -> str:
    """A reply of the kind that sampled models write: right, nearly right, wrong."""
    reply = rng.choice(legal)
    match rng.randrange(8):
        case 0:
            return rng.choice(ADVERSARIAL_REPLIES)
        case 1:
            return reply[: rng.randrange(len(reply))]
        case 2:
            place = rng.randrange(len(reply))
            return (
                reply[:place]
                + chr(rng.choice([0, 34, 92, 0x202E, 0xD800, 0x1F4A5, rng.randrange(32, 1000)]))
                + reply[place + 1 :]
            )
        case 3:
            role = rng.choice(list(ROLES))
            fields = {"action_type": rng.choice(ROLES[role].actions), "target": rng.choice(["", "sync", "Acme", "p7", "x" * 200])}
            return json.dumps(fields)
        case 4:
            extra = rng.choice([None, 7, "all: hello", "ceo: to dev: need x", "dev:", ["a"], {"a": [1e300]}, "x" * 400])
            return json.dumps({**json.loads(reply), "message": extra})
        case 5:
            extra = rng.choice(
                [{"tier": rng.choice(["annual", "free", 3, [1]])}, {"title": "SSO"}, {"a": {"b": {}}}, [], "x", {"n": -1e12}]
            )
            return json.dumps({**json.loads(reply), "parameters": extra})
        case 6:
            return "Sure! ```json\n" + reply + "\n``` and " + reply
        case _:
            return reply


@pytest.mark.parametrize("config", [COMPACT, FULL, ASKING], ids=["compact", "full", "asking"])
def test_no_reply_raises(task, config: OfficeConfig) -> None:
    rng = random.Random(5)
    invalid = count = 0
    for scenario in ("churn", "viral", "baseline"):
        env = OfficeEnvironment(config)
        observation: Observation | None = env.reset(task(scenario, rng.randrange(1000)))
        while observation is not None:
            reply = monkey(rng, observation.view["legal"])
            assert isinstance(env.canonical(reply), str)
            step = env.step(reply)
            json.dumps(step.facts).encode()
            str(step.facts).encode("utf-8", "strict")
            invalid += not step.valid
            observation, count = step.observation, count + 1
            if observation is not None:
                for message in observation.messages:
                    message.content.encode("utf-8", "strict")
        assert env.state()["turn"] == 420 or env.state()["done"] == "bankrupt"
    assert count > 900
    assert 0.2 < invalid / count < 0.7


@settings(max_examples=40)
@given(reply=st.text(max_size=300) | st.binary(max_size=80).map(lambda raw: raw.decode("latin-1")))
def test_any_text_is_a_reply(reply: str) -> None:
    env = OfficeEnvironment()
    env.reset(Task(id="t", env="office", split=Split.DEV, seed=1))
    assert not env.step(reply).valid
    assert env.state()["metrics"]["invalid"] == 1.0


def test_an_unusable_reply_is_a_lost_turn_that_costs_one(task) -> None:
    env = OfficeEnvironment()
    env.reset(task())
    step = env.step("no")
    assert not step.valid
    assert step.parts["ceo"]["penalty"] == -1.0
    assert step.facts["action"] == INVALID_KEY
    assert "JSON" in step.facts["why"]
    assert step.observation is not None
    assert step.observation.actor == "dev"


def test_the_text_of_a_reply_is_measured_by_what_its_author_is_shown() -> None:
    """Named accounts count for Sales, who has them on the desk; measuring changes nothing, and a reflection is no action."""
    env = OfficeEnvironment()
    env.reset(Task(id="t", env="office", split=Split.DEV, seed=1_000, payload={"scenario": "baseline"}))
    seen: set[float] = set()
    while (observation := env.observe()) is not None and observation.actor != "sales":
        env.step(answer(observation, 0))
    assert observation is not None
    lead = observation.view["leads"][0]["name"]
    before = env.snapshot()
    for target, score in ((lead, 1.1), ("Nobody Inc", 1.0), ("", 0.9)):
        reply = json.dumps({"action_type": "FOLLOW_UP", "target": target})
        assert env.scores(reply) == {"rule_score": score}
        seen.add(score)
    assert len(seen) == 3
    assert env.scores("hello") == {"rule_score": 0.0}
    assert env.snapshot() == before
    asking = OfficeEnvironment(ASKING)
    observation = asking.reset(Task(id="t", env="office", split=Split.DEV, seed=1_000, payload={"scenario": "baseline"}))
    while observation.kind is not Kind.REFLECT:
        observation = asking.step(answer(observation, 0)).observation
        assert observation is not None
    assert asking.scores("I learned a lot.") == {}


# Retries


def test_feedback_grows_up_to_eight_attempts(task) -> None:
    env = OfficeEnvironment(OfficeConfig(retries=8))
    first = env.reset(task("churn"))
    texts = []
    for attempt in range(1, 9):
        step = env.step('{"action_type":"FLY","target":"moon"}')
        assert not step.valid
        assert not step.rewards
        asked = step.observation
        assert asked is not None
        assert (asked.actor, asked.kind, asked.fresh) == (first.actor, Kind.RETRY, False)
        ((role, text),) = asked.messages
        assert role == "user"
        assert step.facts["retry"] == attempt
        texts.append(text)
    assert [len(text.split("\n")) for text in texts] == list(range(1, 9))
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert 'There is no action "FLY"' in texts[0]
    assert "FLY" in texts[1].split("\n")[1]
    types = texts[2].split("\n")[2].removeprefix("action_type must be one of: ").removesuffix(".").split(", ")
    assert set(types) == {json.loads(reply)["action_type"] for reply in env.legal_replies()}
    examples = texts[6].split("\n")[6].partition(": ")[2].split(" ")
    assert all(json.loads(example)["action_type"] in types for example in examples)
    assert "last attempt" in texts[7]
    assert env.state()["turn"] == 0
    final = env.step("still no")
    assert final.parts["ceo"]["penalty"] == -1.0
    assert env.state()["turn"] == 1


def test_the_feedback_names_the_last_mistake(task) -> None:
    env = OfficeEnvironment(OfficeConfig(retries=4))
    env.reset(task())
    said = []
    for reply in ('{"action_type":"SET_OKRS","target":"fame"}', "hm", '{"action_type":"FIX_BUG","target":"major"}'):
        asked = env.step(reply).observation
        assert asked is not None
        said.append(asked.messages[0].content.split("\n")[0])
    assert "it may have: growth, product, retention" in said[0]
    assert "no JSON object" in said[1]
    assert "belongs to dev" in said[2]


def test_a_corrected_reply_counts_and_the_next_actor_starts_afresh(task) -> None:
    env = OfficeEnvironment(OfficeConfig(retries=2))
    env.reset(task())
    env.step("no")
    step = env.step('{"action_type":"SET_OKRS","target":"growth"}')
    assert step.valid
    assert step.rewards["ceo"] > -0.5
    assert step.observation is not None
    assert (step.observation.kind, step.observation.fresh) == (Kind.ACT, True)
    assert len(step.observation.messages) == 2
    assert env.state()["metrics"]["invalid"] == 0.0


def test_reset_forgets_a_pending_retry(task) -> None:
    env, fresh = OfficeEnvironment(OfficeConfig(retries=2)), OfficeEnvironment(OfficeConfig(retries=2))
    env.reset(task())
    env.step("no")
    env.reset(task())
    fresh.reset(task())
    assert env.snapshot() == fresh.snapshot()


# Reflection and memory


def test_actors_are_asked_to_reflect_every_seventy_turns(task) -> None:
    env = OfficeEnvironment(ASKING)
    asked: dict[str, list[int]] = {}
    insights = plans = 0
    for observation, reply, step in turns(env, task("churn", 1_002)):
        if observation.kind is Kind.REFLECT:
            system, user = observation.messages
            assert "Reply with JSON" not in system.content
            assert user.content.startswith("Your recent memories:\n[")
            assert not step.rewards
            assert step.observation is not None
            assert (step.observation.actor, step.observation.kind) == (observation.actor, Kind.ACT)
            assert step.facts["reflection"] == reply
            asked.setdefault(observation.actor, []).append(int(env.state()["turn"]))
        else:
            text = observation.messages[-1].content
            insights += "taught something" in text
            plans += "Plan: go on" in text
    assert set(asked) == set(SEATS)
    for found in asked.values():
        assert len(found) == 5
        assert all(70 <= later - earlier < 84 for earlier, later in pairwise(found))
    assert plans > 200
    assert insights > 100


def test_without_a_model_the_template_reflects(task) -> None:
    env = OfficeEnvironment(FULL)
    learned: dict[str, set[str]] = {}
    for observation, _, _ in turns(env, task("churn", 1_002), "expert"):
        assert observation.kind is Kind.ACT
        lines = observation.messages[1].content.split("\n")
        if "Insights:" in lines:
            learned.setdefault(observation.actor, set()).update(lines[lines.index("Insights:") + 1 : -1])
    assert set(learned) == set(SEATS)
    assert all(any(line.startswith("Plan: ") for line in lines) for lines in learned.values())
    sales = " ".join(learned["sales"])
    assert " lead worked " in sales or "customer worked" in sales  # sorts of things, not names


def test_everybody_remembers_public_facts_and_only_the_actor_its_own(task) -> None:
    env = OfficeEnvironment(FULL)
    shipped = 0
    for observation, _, _ in turns(env, task("viral", 1_002, days=10), "expert"):
        lines = observation.messages[1].content.split("\n")
        for line in lines:
            if line.startswith("I did "):
                assert line.split()[2].removesuffix(":") in ROLES[Role(observation.actor)].actions
        shipped += any(line.startswith("dev shipped") for line in lines) and observation.actor != "dev"
    assert shipped > 5


# Metrics, errors, ends


def test_metrics_say_what_the_state_holds(task) -> None:
    env = OfficeEnvironment()
    assert env.state() == {"metrics": {}}
    env.reset(task("churn"))
    metrics = env.state()["metrics"]
    assert (metrics["cash"], metrics["customers"], metrics["invalid"]) == (100_000.0, 8.0, 0.0)
    for _ in turns(env, task("churn"), "expert"):
        pass
    state = env.state()
    metrics = state["metrics"]
    assert metrics["cash"] == sum(state["ledger"].values()) / 100
    assert state["done"] == "horizon"
    assert metrics["team_reward"] == pytest.approx(sum(metrics[f"reward_{role}"] for role in SEATS))
    assert -100 <= metrics["nps"] <= 100
    json.dumps(state, allow_nan=False)


def test_the_end(task) -> None:
    env = OfficeEnvironment(OfficeConfig(days=2))
    (*_, (_, _, step)) = turns(env, Task(id="t", env="office", split=Split.DEV, seed=1))
    assert step.stop is StopReason.HORIZON
    assert not step.stop.truncated
    assert env.observe() is None
    assert env.restore(env.snapshot()) is None
    assert env.fork().observe() is None
    for call in (lambda: env.step(""), lambda: env.canonical(""), lambda: env.branch("", world=1, turns=1), env.legal_replies):
        with pytest.raises(ContractError, match="no reply is pending"):
            call()
    env.close()


def test_bankruptcy_ends_an_episode(task, tmp_path: Path) -> None:
    path = tmp_path / "poor.toml"
    text = (Path(sys.modules[OfficeEnvironment.__module__].__file__ or "").parent / "scenarios" / "baseline.toml").read_text()
    path.write_text(text.replace("cash = 100_000", "cash = 5_000"), encoding="utf-8")
    env = OfficeEnvironment()
    (*_, (_, _, step)) = turns(env, task(str(path)))
    assert step.stop is StopReason.BANKRUPT
    assert env.state()["metrics"]["cash"] < 0


def test_nothing_is_pending_before_the_first_reset(task) -> None:
    env = OfficeEnvironment()
    assert env.observe() is None
    with pytest.raises(ContractError, match="reset first"):
        env.step("")
    with pytest.raises(ContractError, match="snapshot needs a running episode"):
        env.snapshot()
    env.reset(task())
    assert env.observe() is not None


def test_legal_replies_are_listed_only_while_they_are_asked_for(task) -> None:
    env = OfficeEnvironment()
    asked = env.reset(task())
    assert asked.view["legal"] == asked.view.get("legal") == env.legal_replies()
    assert "legal" not in dict(asked.view)
    with pytest.raises(KeyError):
        asked.view["nonesuch"]
    assert asked.view.get("nonesuch", 3) == 3
    env.step("")
    with pytest.raises(ContractError, match="only while it is pending"):
        asked.view["legal"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"profile": "medium"}, "profile must be one of compact, full, got 'medium'"),
        ({"retries": 9}, "retries must be in 0..8, got 9"),
        ({"retries": -1}, "retries"),
        ({"days": 0}, "days must be in 1..90, got 0"),
        ({"days": 91}, "days"),
        ({"budget": 0}, "budget must be >= 1"),
        ({"reflect": True}, "reflect needs the memories of the full profile"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        OfficeConfig(**options)


def test_a_budget_needs_a_tokenizer_and_a_continuation_all_seats() -> None:
    with pytest.raises(ConfigError, match="needs a token counter"):
        OfficeEnvironment(OfficeConfig(budget=100))
    with pytest.raises(ConfigError, match="no player for dev, marketing"):
        OfficeEnvironment(continuation={"ceo": heuristic})
    with pytest.raises(ConfigError, match="no player for ceo"):
        OfficeEnvironment(continuation={})


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"scenario": "picnic"}, "unknown scenario 'picnic'"),
        ({"scenario": 5}, "scenario must be a name or a path, got 5"),
        ({"setting": "churn"}, "unknown payload keys"),
        ({"days": 0}, "days must be a whole number in 1..90, got 0"),
        ({"days": "ten"}, "days must be a whole number"),
        ({"days": 1.5}, "days must be a whole number"),
        ({"days": True}, "days must be a whole number"),
        ({"world": -1}, "world must be a whole number"),
    ],
)
def test_tasks_that_cannot_be_played_are_refused(payload: dict[str, Any], said: str) -> None:
    env = OfficeEnvironment()
    with pytest.raises(ConfigError, match=said):
        env.reset(Task(id="t", env="office", split=Split.DEV, seed=1, payload=payload))


@pytest.mark.parametrize("profile", ["compact", "full"])
def test_doing_nothing_costs_the_same_through_the_door_and_on_the_fast_path(task, profile: str) -> None:
    env = OfficeEnvironment(OfficeConfig(profile=profile))
    paid = dict.fromkeys(map(str, Role), 0.0)
    for _, reply, step in turns(env, task("churn", 1_004, days=6), "do-nothing"):
        assert step.valid
        assert (step.facts["action"], step.facts["changed"]) == ("IDLE", False)
        assert env.observe() is None or env.canonical(reply) == reply
        for role, reward in step.rewards.items():
            paid[role] += reward
    simulator = Simulator(scenarios.load("churn"))
    s = simulator.found(1_004, 6)
    assert paid == pytest.approx(run(simulator, s, dict.fromkeys(SEATS, do_nothing), turns=6 * 14))
    assert env.state()["metrics"]["company_value"] == company_value(s) / 100.0
    assert env.state()["metrics"]["value_less_luck"] == (company_value(s) - s.luck) / 100.0 != company_value(s) / 100.0
    assert env.state()["metrics"]["invalid"] == s.invalid == 0


def test_doing_nothing_is_no_unusable_reply(task) -> None:
    env = OfficeEnvironment()
    observation = env.reset(task("churn"))
    idle, bad = '{"action_type":"IDLE","target":""}', "nothing"
    assert idle not in env.legal_replies()
    assert "IDLE" not in str(observation.messages)
    assert env.canonical(idle) == env.canonical('{"action_type":"idle","target":"x","message":"dev: hello"}') == idle
    free, charged = env.branch(idle, world=1, turns=1), env.branch(bad, world=1, turns=1)
    assert (free.valid, charged.valid) == (True, False)
    assert free.returns[observation.actor] == pytest.approx(charged.returns[observation.actor] + 1.0)


def test_the_continuation_matters(task) -> None:
    outcomes = []
    for player in (heuristic, do_nothing):
        env = OfficeEnvironment(continuation=dict.fromkeys(SEATS, player))
        env.reset(task("viral"))
        outcomes.append(env.branch(env.legal_replies()[0], world=1, turns=140).outcome)
    assert outcomes[0] > outcomes[1]
