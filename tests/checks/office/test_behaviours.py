"""Claimed behaviours as numbers: by hand on planted decisions, then over real episodes and through the command."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checks.commands.behaviours import estimates, shown, tallied
from checks.office.behaviours import (
    METRICS,
    Deed,
    Prompted,
    Tally,
    Topics,
    content_asks_dev,
    content_asks_dev_above_chance,
    content_writes_to_dev,
    deeds,
    launches_timed,
    launches_timed_above_chance,
    prompted_names,
    sales_asks_dev,
    sales_asks_dev_above_chance,
    sales_asks_dev_for_open_needs,
    specialisation,
    specialised_early,
    turns_to_retention,
    uses_memory,
    uses_memory_above_chance,
    writes_on_shipped,
)
from checks.office.recall import RECALLED, moved, recalls
from onthejob.cli import main
from onthejob.envs.office.actions import Action
from onthejob.envs.office.env import OfficeConfig, OfficeEnvironment
from onthejob.envs.office.policies import Player, as_reply
from onthejob.envs.office.policies.expert import expert
from onthejob.envs.office.policies.heuristic import heuristic
from onthejob.envs.office.roles import ROLES, Role
from onthejob.rollout.game_file import Replay, Said

NOTHING = Prompted(frozenset(), frozenset())


def deed(turn: int, role: str, action: Action | None, **changes: Any) -> Deed:
    known: dict[str, Any] = {"satisfaction": 0.6, "customers": 3, "shipped": {}, "begun": True, "promised": "", "since": turn}
    about = Topics().of(action.message) if action is not None and action.message_to else frozenset()
    return Deed(turn=turn, role=role, action=action, **{**known, "about": about, "prompted": NOTHING, **changes})


def test_launches_count_near_a_ship_that_serves_their_theme() -> None:
    shipped = {"SSO": 4}
    launch = [deed(14 * day, "marketing", Action("LAUNCH_CAMPAIGN", pain), shipped=shipped) for day, pain in
              ((4, "security"), (7, "security"), (8, "security"), (5, "sync"))]  # fmt: skip
    assert launches_timed(launch) == Tally(2.0, 4.0)
    assert math.isnan(launches_timed([deed(1, "marketing", Action("RUN_AD", "retail"))]).rate)


def test_who_always_launches_launches_in_time_only_by_chance() -> None:
    shipped = {"SSO": 4}
    always = [deed(14 * day, "marketing", Action("LAUNCH_CAMPAIGN", "security"), shipped=shipped) for day in range(20)]
    assert launches_timed(always) == Tally(4.0, 20.0)
    assert launches_timed_above_chance(always).hits == pytest.approx(0.0)
    waits = [deed(14 * day, "marketing", Action("OPTIMIZE_FUNNEL"), shipped=shipped) for day in range(19)]
    timed = [*waits, deed(14 * 5, "marketing", Action("LAUNCH_CAMPAIGN", "security"), shipped=shipped)]
    assert launches_timed_above_chance(timed) == Tally(pytest.approx(1.0 - 5 / 20), 1.0)  # days 4 to 7, and day 5 twice


def ask(turn: int, text: str, role: str = "sales", to: str = "dev") -> Deed:
    return deed(turn, role, Action("UPDATE_PIPELINE", message_to=to, message=text))


def promise(turn: int, pain: str = "security", **changes: Any) -> Deed:
    return deed(turn, "sales", Action("SEND_PROPOSAL", "Acme"), promised=pain, **changes)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("need security", True),
        ("Do we have Single Sign-On, or when?", True),
        ("is the audit trail coming?", True),
        ("lunch at noon?", False),
        ("need sync", False),
        ("is the API done?", False),
        ("what ships this week?", False),
    ],
)
def test_a_question_is_about_what_is_promised(text: str, counts: bool) -> None:
    assert sales_asks_dev([ask(1, text), promise(8)]) == Tally(float(counts), 1.0)


def test_a_question_comes_before_the_promise_and_goes_to_dev() -> None:
    related = "need security"
    assert sales_asks_dev([ask(1, related), promise(15)]).rate == 1.0
    assert sales_asks_dev([ask(1, related), promise(16)]).rate == 0.0  # more than a day before
    assert sales_asks_dev([promise(8), ask(9, related)]).rate == 0.0  # after it
    with_it = deed(8, "sales", Action("SEND_PROPOSAL", "Acme", message_to="dev", message=related), promised="security")
    assert sales_asks_dev([with_it]).rate == 0.0  # no answer can come any more
    assert sales_asks_dev([ask(1, related, role="hr"), promise(8)]).rate == 0.0
    assert sales_asks_dev([ask(1, related, to="content"), promise(8)]).rate == 0.0
    assert math.isnan(sales_asks_dev([ask(1, related)]).rate)


def test_only_open_needs_have_to_be_asked_about() -> None:
    served, fresh = {"SSO": 1}, {"SSO": 4}
    done = [promise(14 * 5, shipped=served), ask(14 * 5 + 1, "need security"), promise(14 * 5 + 8, shipped=fresh)]
    assert sales_asks_dev(done) == Tally(1.0, 2.0)
    assert sales_asks_dev_for_open_needs(done) == Tally(1.0, 1.0)  # it shipped after it was asked for


def test_who_always_writes_the_same_has_asked_by_chance() -> None:
    same = [d for i in range(6) for d in (ask(20 * i + 1, "need security"), promise(20 * i + 8))]
    assert sales_asks_dev(same).rate == 1.0
    assert sales_asks_dev_above_chance(same).rate == pytest.approx(0.0)
    pains = ("security", "sync", "reports")
    fitting = [d for i, pain in enumerate(pains) for d in (ask(20 * i + 1, f"need {pain}"), promise(20 * i + 8, pain))]
    assert sales_asks_dev_above_chance(fitting).rate == pytest.approx(2 / 3)  # any topic fits a third of the time


def test_content_asks_before_it_publishes() -> None:
    def published(turn: int, since: int, pain: str = "sync") -> Deed:
        return deed(turn, "content", Action("WRITE_BLOG", pain), promised=pain, since=since)

    def question(turn: int, text: str) -> Deed:
        return deed(turn, "content", Action("WRITE_BLOG", "sync", message_to="dev", message=text))

    related, unrelated = "Is the REST API ready?", "nice work"
    assert content_asks_dev([question(1, related), published(15, since=1)]).rate == 1.0  # with its beginning
    assert content_asks_dev([question(8, related), published(15, since=1)]).rate == 1.0  # while it is written
    assert content_asks_dev([question(1, related), published(44, since=30)]).rate == 0.0
    assert content_asks_dev([published(15, since=1), question(16, related)]).rate == 0.0
    silent = [question(1, unrelated), published(15, since=1)]
    assert content_asks_dev(silent).rate == 0.0
    assert content_writes_to_dev(silent).rate == 1.0
    both = [question(1, related), question(2, unrelated), published(10, since=9), published(40, since=30)]
    assert content_asks_dev_above_chance(both) == Tally(0.0, 2.0)  # both questions fall before the first: it had to be among them


def test_content_on_what_is_there() -> None:
    pieces = [deed(1, "content", Action("WRITE_BLOG", pain), shipped={"SSO": 0}) for pain in ("security", "sync", "sync", "sync")]
    assert writes_on_shipped(pieces).rate == 0.25


def test_specialisation_is_0_for_any_and_1_for_always_the_same() -> None:
    names = ROLES[Role.DEV].actions
    rng = np.random.default_rng(0)
    drawn = [[deed(i, "dev", Action(names[k])) for i, k in enumerate(rng.integers(len(names), size=20))] for _ in range(400)]
    chance = [specialisation(done, 0.0, 1.0) for done in drawn]
    assert np.mean([tally.rate for tally in chance]) == pytest.approx(0.0, abs=0.02)
    every = [deed(i, "dev", Action(name)) for i, name in enumerate(names * 3)]
    same = [deed(i, "dev", Action(names[0])) for i in range(9)]
    assert specialisation(same, 0.0, 1.0) == Tally(1.0, 1.0)
    assert specialisation([*every, *same, *same], 2 / 3, 1.0).rate > specialisation([*every, *same, *same], 0.0, 1 / 3).rate
    # Hardly any reply is usable: the few that are show no specialisation.
    assert specialisation([deed(i, "dev", Action(names[0]) if i < 2 else None) for i in range(40)], 0.0, 1.0).occasions == 0.0
    assert specialised_early([]).occasions == 0.0


def test_only_what_memories_alone_hold_counts_as_remembered() -> None:
    prompt = "Day 3\nShipped: SSO\nTeam:\ndev: building\nMemories:\nI did RUN_DEMO Acme: it worked\nSSO shipped\n"
    prompt += "Insights:\nBolt needs sync\nJSON:"
    assert prompted_names(prompt) == (frozenset({"Acme", "Bolt", "sync", "SSO"}), frozenset({"SSO"}))
    assert prompted_names("Day 3\nLeads: Acme\nJSON:") == (frozenset(), frozenset({"Acme"}))
    acme = Prompted(frozenset({"Acme"}), frozenset())
    done = [
        deed(1, "sales", Action("FOLLOW_UP", "Acme"), prompted=acme),
        deed(2, "sales", Action("FOLLOW_UP", "Coda"), prompted=acme),
        deed(3, "dev", Action("REFACTOR", message_to="hr", message="what about Acme?"), prompted=acme),
        deed(4, "dev", Action("REFACTOR")),
        deed(5, "sales", Action("FOLLOW_UP", "Acme"), prompted=Prompted(frozenset({"Acme"}), frozenset({"Acme"}))),
    ]
    assert uses_memory(done) == Tally(2.0, 3.0)


def test_what_is_always_named_is_remembered_by_chance() -> None:
    both = [Prompted(frozenset({name}), frozenset()) for name in ("Acme", "Bolt", "Coda")]
    always = [deed(i, "sales", Action("FOLLOW_UP", "Acme"), prompted=both[0]) for i in range(6)]
    assert uses_memory(always).rate == 1.0
    assert uses_memory_above_chance(always).rate == 0.0
    fitting = [deed(i, "sales", Action("FOLLOW_UP", *p.remembered), prompted=p) for i, p in enumerate(both)]
    assert uses_memory_above_chance(fitting).rate == 1.0


def test_the_shift_is_what_is_more_in_a_crisis() -> None:
    care, build = Action("FIX_BUG", "minor"), Action("BUILD_FEATURE", "SSO")
    done = [deed(i, "dev", action, satisfaction=sat) for i, (action, sat) in enumerate(
        ((care, 0.3), (care, 0.3), (build, 0.3), (build, 0.3), (care, 0.7), (build, 0.7), (build, 0.7), (build, 0.7))
    )]  # fmt: skip
    shift = turns_to_retention(done)
    assert shift.rate == pytest.approx(0.25)
    # One decision in a crisis says less than four.
    assert turns_to_retention(done[3:]).occasions < shift.occasions
    assert turns_to_retention([deed(0, "dev", care)]).occasions == 0.0
    calm = [deed(0, "dev", care, customers=0, satisfaction=0.1), deed(1, "dev", care)]
    assert turns_to_retention(calm).occasions == 0.0


def replies_of(task, config: OfficeConfig, by: Player = expert) -> list[str]:
    env, player, replies = OfficeEnvironment(config), as_reply(by), []
    observation = env.reset(task)
    while observation is not None:
        replies.append(player(observation, 1))
        observation = env.step(replies[-1]).observation
    return replies


def talking(text: str) -> Player:
    """The heuristic, whose Sales writes `text` to Dev wherever it asks; `PAIN` there stands for what is needed."""

    def play(view, legal, luck):
        action = heuristic(view, legal, luck)
        if action is None or action.message_to != "dev":
            return action
        return replace(action, message=text.replace("PAIN", action.message.removeprefix("need ")))

    return play


@pytest.mark.parametrize(("text", "rate"), [("Could we do PAIN soon?", 1.0), ("The coffee is out again.", 0.0)])
def test_questions_in_a_real_episode(task, text: str, rate: float) -> None:
    day = task("baseline", 5, days=12)
    done = deeds(OfficeEnvironment(), day, replies_of(day, OfficeConfig(), by=talking(text)))
    found = sales_asks_dev(done)
    assert found.occasions > 2
    assert found.rate == rate
    proposals = [d for d in done if d.action is not None and d.action.action_type == "SEND_PROPOSAL"]
    assert found.occasions == len(proposals) == sum(bool(d.promised) for d in done if d.role == "sales")


def test_pieces_of_a_real_episode(task) -> None:
    day = task("baseline", 5, days=9)
    done = [d for d in deeds(OfficeEnvironment(), day, replies_of(day, OfficeConfig(), by=heuristic)) if d.role == "content"]
    first = next(i for i, d in enumerate(done) if d.promised)
    assert [d.begun for d in done[: first + 1]] == [True, False, False]  # a blog takes three turns
    assert done[first].since == done[0].turn
    assert done[first].promised == done[0].action.target


def test_deeds_of_a_real_episode(task) -> None:
    config = OfficeConfig(profile="full")
    day = task("churn", 5, days=12)
    done = deeds(OfficeEnvironment(config), day, replies_of(day, config))
    assert len(done) == 12 * 12  # two rounds of six
    assert all(d.action is not None for d in done)
    assert done[0].customers == 8
    assert done[0].satisfaction < 0.4
    assert done[-1].shipped
    assert min(done[-1].shipped.values()) > 0
    assert any(d.prompted.remembered - d.prompted.elsewhere for d in done)
    pieces = [d for d in done if d.role == "content" and d.action is not None and d.action.action_type == "WRITE_BLOG"]
    assert 0 < sum(d.begun for d in pieces) < len(pieces)
    compact = deeds(OfficeEnvironment(), day, replies_of(day, OfficeConfig()))
    assert not any(d.prompted.remembered for d in compact)  # with the memory off there is nothing to remember
    spoiled = deeds(OfficeEnvironment(), day, ["nonsense", *replies_of(day, OfficeConfig())[1:]])
    assert spoiled[0].action is None
    table = estimates([tallied(done), tallied(compact)])
    assert set(table) == {*METRICS, *RECALLED}
    assert table["usable replies"].mean == 1.0
    # The memory that is off gives no occasion, and is no 0.
    assert table["decisions that name what only memories hold"].n == 1


def test_an_episode_counts_by_its_occasions() -> None:
    one, none = Tally(1.0, 1.0), Tally(0.0, 0.0)
    many = estimates([{"x": one}, {"x": Tally(0.0, 9.0)}, {"x": none}])["x"]
    assert (many.mean, many.n) == (0.1, 2)
    assert math.isnan(estimates([{"x": none}])["x"].mean)


def test_requests_are_asked_again_with_other_memories(task) -> None:
    config = OfficeConfig(profile="full")
    day = task("churn", 5, days=6)
    replies = replies_of(day, config)
    asked = recalls(OfficeEnvironment(config), day, replies, count=10)
    assert len(asked) == 10
    assert len({recall.own.actor for recall in asked}) > 1
    for own, reordered, other in asked:
        texts = [x.messages[-1].content for x in (own, reordered, other)]
        assert sorted(texts[0].splitlines()) == sorted(texts[1].splitlines())
        before = [text.partition("Memories:")[0] for text in texts]
        assert before[0] == before[1] == before[2]
        assert all(text.endswith("\nJSON:") for text in texts)
    assert any(own.messages != reordered.messages for own, reordered, _ in asked)
    assert sum(own.messages != other.messages for own, _, other in asked) == 10
    assert recalls(OfficeEnvironment(), day, replies, count=10) == []  # the compact prompt has none


def test_what_changes_with_the_memories_but_not_with_their_order_is_use() -> None:
    build, fix = '{"action_type":"BUILD_FEATURE","target":"SSO"}', '{"action_type":"FIX_BUG","target":"minor"}'
    uses, wavers, ignores, garbage = (build, build, fix), (build, fix, fix), (build, build, build), ("?", build, fix)
    assert moved([uses, ignores, ignores, garbage], ["dev"] * 4) == (Tally(1.0, 3.0), Tally(1.0, 3.0))
    assert moved([wavers, wavers], ["dev"] * 2) == (Tally(2.0, 2.0), Tally(0.0, 2.0))
    assert moved([(build, build, "?")], ["dev"])[1] == Tally(1.0, 1.0)
    reasoned = build.replace("}", ',"reasoning":"because"}')
    assert moved([(build, reasoned, reasoned)], ["dev"])[0] == Tally(0.0, 1.0)


def test_the_crisis_bonus_can_be_taken_away(task) -> None:
    paid = {}
    for bonus in (True, False):
        config = OfficeConfig(crisis_bonus=bonus)
        env = OfficeEnvironment(config)
        env.reset(task("churn", 5, days=3))
        for reply in replies_of(task("churn", 5, days=3), config):
            env.step(reply)
        paid[bonus] = env.state()["metrics"]
    assert paid[True]["team_reward"] > paid[False]["team_reward"]
    assert paid[True]["company_value"] == paid[False]["company_value"]


def test_the_command_measures_teams_and_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str], task) -> None:
    game = task("baseline", 5, days=3)
    file = tmp_path / "game.json"
    said = tuple(Said("any", text) for text in replies_of(game, OfficeConfig()))
    Replay(task=game, replies=said, hash="not checked here").write(file)
    words = ["--teams", "random", "expert", "--replays", str(file), "--scenarios", "churn", "--seeds", "2", "--days", "3"]
    assert main(["office", "behaviours", *words, "--json", "--quiet"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data["behaviours"]) == {"random", "expert", "replays"}
    assert set(data["behaviours"]["expert"]) == {*METRICS, *RECALLED}
    assert data["episodes"] == {"random": 2, "expert": 2, "replays": 1}
    assert data["behaviours"]["expert"]["usable replies"]["n"] == 2
    assert data["behaviours"]["replays"]["usable replies"]["n"] == 1
    assert (
        main(["office", "behaviours", "--teams", "expert", "--scenarios", "churn", "--seeds", "1", "--days", "2", "--quiet"]) == 0
    )
    assert "specialisation, first third" in capsys.readouterr().out
    assert main(["office", "behaviours", "--teams", "nobody"]) == 2
    assert main(["office", "behaviours", "--batch", "0"]) == 2


def test_batches_change_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for batch in ("1", "3"):
        words = ["--teams", "random", "--seeds", "1", "--days", "3", "--batch", batch, "--json", "--quiet"]
        assert main(["office", "behaviours", *words]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1]


def test_numbers_are_shown_with_their_interval() -> None:
    many = estimates([tallied([deed(0, "dev", Action("REFACTOR"))]) for _ in range(9)])
    assert shown(many["usable replies"], 9) == "1.00 (1.00 to 1.00)"
    assert shown(many["usable replies"], 12) == "1.00 (1.00 to 1.00) [9]"
    assert shown(many["launches timed to ships"], 9) == "-"
    assert shown(estimates([tallied([deed(0, "dev", None)])])["usable replies"], 1) == "0.00"


def test_help_says_what_the_flag_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["office", "behaviours", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--no-crisis-bonus Omit the extra reward" in said
    assert "speak of; for the rest, a team plays as before. (default: False)" in said
