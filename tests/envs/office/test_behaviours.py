"""Claimed behaviours as numbers: by hand on planted decisions, then over real episodes and through the command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from onthejob.cli import main
from onthejob.commands.behaviours import measured, shown
from onthejob.envs.office.actions import Action
from onthejob.envs.office.behaviours import (
    METRICS,
    Deed,
    content_asks_dev,
    deeds,
    launches_timed,
    only_remembered,
    sales_asks_dev,
    specialisation,
    turns_to_retention,
    uses_memory,
    writes_on_shipped,
)
from onthejob.envs.office.env import OfficeConfig, OfficeEnvironment
from onthejob.envs.office.policies import as_reply
from onthejob.envs.office.policies.expert import expert
from onthejob.rollout.replay import Replay, Said


def deed(turn: int, role: str, action: Action | None, **changes: Any) -> Deed:
    known: dict[str, Any] = {"satisfaction": 0.6, "customers": 3, "shipped": {}, "begun": True, "recalled": frozenset()}
    return Deed(turn=turn, role=role, action=action, **{**known, **changes})


def test_launches_count_near_a_ship_that_serves_their_theme() -> None:
    shipped = {"SSO": 4}
    launch = [deed(14 * day, "marketing", Action("LAUNCH_CAMPAIGN", pain), shipped=shipped) for day, pain in
              ((4, "security"), (7, "security"), (8, "security"), (5, "sync"))]  # fmt: skip
    assert launches_timed(launch) == 0.5
    assert math.isnan(launches_timed([deed(1, "marketing", Action("RUN_AD", "retail"))]))


def test_questions_count_for_a_day() -> None:
    ask = Action("QUALIFY_LEAD", "Acme", message_to="dev", message="need sync")
    promise = Action("SEND_PROPOSAL", "Acme")
    assert sales_asks_dev([deed(1, "sales", ask), deed(8, "sales", promise)]) == 1.0
    assert sales_asks_dev([deed(1, "sales", ask), deed(16, "sales", promise)]) == 0.0
    assert sales_asks_dev([deed(1, "hr", ask), deed(8, "sales", promise)]) == 0.0
    blog = Action("WRITE_BLOG", "sync")
    asking = Action("WRITE_BLOG", "sync", message_to="dev", message="is sync done?")
    assert content_asks_dev([deed(1, "content", asking), deed(8, "content", blog, begun=False), deed(40, "content", blog)]) == 0.5


def test_content_on_what_is_there() -> None:
    pieces = [deed(1, "content", Action("WRITE_BLOG", pain), shipped={"SSO": 0}) for pain in ("security", "sync", "sync", "sync")]
    assert writes_on_shipped(pieces) == 0.25


def test_specialisation_is_0_for_any_and_1_for_always_the_same() -> None:
    from onthejob.envs.office.roles import ROLES, Role

    names = ROLES[Role.DEV].actions
    every = [deed(i, "dev", Action(name)) for i, name in enumerate(names * 3)]
    same = [deed(i, "dev", Action(names[0])) for i in range(9)]
    assert specialisation(every, 0.0, 1.0) == pytest.approx(0.0)
    assert specialisation(same, 0.0, 1.0) == 1.0
    assert specialisation([*every, *same, *same], 2 / 3, 1.0) > specialisation([*every, *same, *same], 0.0, 1 / 3)


def test_only_what_memories_alone_hold_counts_as_remembered() -> None:
    prompt = "Day 3\nShipped: SSO\nTeam:\ndev: building\nMemories:\nI did RUN_DEMO Acme: it worked\nSSO shipped\n"
    prompt += "Insights:\nBolt needs sync\nJSON:"
    assert only_remembered(prompt) == {"Acme", "Bolt", "sync"}
    assert only_remembered("Day 3\nLeads: Acme\nMemories:\nAcme is large\nJSON:") == frozenset()
    assert only_remembered("Day 3\nLeads: Acme\nJSON:") == frozenset()
    done = [
        deed(1, "sales", Action("FOLLOW_UP", "Acme"), recalled=frozenset({"Acme"})),
        deed(2, "sales", Action("FOLLOW_UP", "Coda"), recalled=frozenset({"Acme"})),
        deed(3, "dev", Action("REFACTOR", message_to="hr", message="what about Acme?"), recalled=frozenset({"Acme"})),
        deed(4, "dev", Action("REFACTOR")),
    ]
    assert uses_memory(done) == pytest.approx(2 / 3)


def test_the_shift_is_what_is_more_in_a_crisis() -> None:
    care, build = Action("FIX_BUG", "minor"), Action("BUILD_FEATURE", "SSO")
    done = [deed(i, "dev", action, satisfaction=sat) for i, (action, sat) in enumerate(
        ((care, 0.3), (care, 0.3), (build, 0.3), (build, 0.3), (care, 0.7), (build, 0.7), (build, 0.7), (build, 0.7))
    )]  # fmt: skip
    assert turns_to_retention(done) == pytest.approx(0.25)
    assert math.isnan(turns_to_retention([deed(0, "dev", care)]))
    assert math.isnan(turns_to_retention([deed(0, "dev", care, customers=0, satisfaction=0.1), deed(1, "dev", care)]))


def replies_of(task, config: OfficeConfig) -> list[str]:
    env, player, replies = OfficeEnvironment(config), as_reply(expert), []
    observation = env.reset(task)
    while observation is not None:
        replies.append(player(observation, 1))
        observation = env.step(replies[-1]).observation
    return replies


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
    assert any(d.recalled for d in done)
    pieces = [d for d in done if d.role == "content" and d.action is not None and d.action.action_type == "WRITE_BLOG"]
    assert 0 < sum(d.begun for d in pieces) < len(pieces)
    compact = deeds(OfficeEnvironment(), day, replies_of(day, OfficeConfig()))
    assert not any(d.recalled for d in compact)  # with the memory off there is nothing to remember
    spoiled = deeds(OfficeEnvironment(), day, ["nonsense", *replies_of(day, OfficeConfig())[1:]])
    assert spoiled[0].action is None
    table = measured([done, compact])
    assert set(table) == set(METRICS)
    assert table["usable replies"].mean == 1.0


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
    assert set(data["behaviours"]["expert"]) == set(METRICS)
    assert data["behaviours"]["expert"]["usable replies"]["n"] == 2
    assert data["behaviours"]["replays"]["usable replies"]["n"] == 1
    assert (
        main(["office", "behaviours", "--teams", "expert", "--scenarios", "churn", "--seeds", "1", "--days", "2", "--quiet"]) == 0
    )
    assert "specialisation, first third" in capsys.readouterr().out
    assert main(["office", "behaviours", "--teams", "nobody"]) == 2


def test_numbers_are_shown_with_their_interval() -> None:
    many = measured([[deed(0, "dev", Action("REFACTOR"))] for _ in range(9)])
    assert shown(many["usable replies"]) == "1.00 (1.00 to 1.00)"
    assert shown(many["launches timed to ships"]) == "-"
    assert shown(measured([[deed(0, "dev", None)]])["usable replies"]) == "0.00"
