"""Recorded runs through the API."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from onthejob.api.players import Players
from onthejob.api.run_routes import _rule
from onthejob.errors import ConfigError
from onthejob.record import Run

from .conftest import RULE
from .recording import without_checksums


def test_a_run_that_weighed_advantages_below_zero_says_so():
    assert _rule({"learner": {"advantage": {"scale": "none", "negative_weight": 0.5}}}).negative_weight == 0.5
    assert _rule({}).negative_weight == 1.0


def test_runs_are_listed_and_shown(client: TestClient):
    (info,) = client.get("/api/runs").json()
    assert (info["name"], info["groups"], info["last_iteration"]) == ("first", 2, 1)
    shown = client.get("/api/runs/first").json()
    assert shown["actors"] == ["dev"]
    assert shown["scales"] == {"dev": {"outcome": 2.0, "return": 0.5}}
    assert shown["events"] == [{"iteration": 1, "kind": "note", "payload": {"why": "because"}}]
    assert client.get("/api/config").json()["open_run"] == "first"


@pytest.mark.parametrize(
    ("sql", "part", "iteration"),
    [
        ("UPDATE metrics SET value = 7 WHERE name = 'loss'", "metrics", 1),
        ("UPDATE metrics SET value = 7 WHERE iteration = 0", "metrics", 0),
        ("UPDATE events SET payload = '{}'", "events", 1),
        ("DELETE FROM events", "events", 1),
        ("UPDATE checksums SET rest = replace(rest, '2', '3') WHERE iteration = 1", "metrics", 1),
        ("DELETE FROM iterations WHERE n = 0", "the list of iterations", None),
    ],
)
def test_what_is_damaged_is_marked_and_not_shown(client: TestClient, runs: Path, sql: str, part: str, iteration: int | None):
    assert client.get("/api/runs/first").json()["damage"] == []
    assert [(info["damaged"], info["unverified"]) for info in client.get("/api/runs").json()] == [(0, 0)]
    with closing(sqlite3.connect(runs / "first" / "run.sqlite")) as database, database:
        database.execute("PRAGMA foreign_keys = ON")
        database.execute(sql)
    shown = client.get("/api/runs/first").json()
    assert {"part": part, "iteration": iteration} in shown["damage"]
    assert shown["info"]["damaged"] == len(shown["damage"])
    assert "7" not in str(shown["scales"])
    assert [info["error"] for info in client.get("/api/runs").json()] == [None]
    if part == "metrics":
        assert "metrics of iteration" in client.get("/api/runs/first/metrics").text


def test_a_group_that_is_damaged_is_named_and_the_other_is_shown(client: TestClient, runs: Path):
    with closing(sqlite3.connect(runs / "first" / "run.sqlite")) as database, database:
        database.execute("UPDATE turns SET text = 'other' WHERE id = 1")
    refused = client.get("/api/runs/first/group", params={"key": "it0001/0/dev"})
    assert refused.status_code >= 400
    assert "group it0001/0/dev of iteration 1 is damaged" in refused.text
    assert client.get("/api/runs/first/group", params={"key": "it0001/1/dev"}).status_code == 200


def test_a_run_without_checksums_is_marked(client: TestClient, runs: Path):
    with without_checksums(runs / "first"):
        pass
    assert [(info["damaged"], info["unverified"]) for info in client.get("/api/runs").json()] == [(0, 2)]
    assert client.get("/api/runs/first").json()["info"]["unverified"] == 2


def test_metrics_are_series_and_a_nan_is_a_gap(client: TestClient):
    series = {one["name"]: one for one in client.get("/api/runs/first/metrics", params={"scope": "train/dev"}).json()}
    assert series["loss"] == {"scope": "train/dev", "name": "loss", "iterations": [1], "values": [0.25]}
    assert series["kl"]["values"] == [None]
    (only,) = client.get("/api/runs/first/metrics", params={"metric": "loss"}).json()
    assert only["name"] == "loss"


def test_the_share_of_task_complete_is_a_line_from_the_first_iteration(client: TestClient, runs: Path):
    """The second article's table: an agent that never stops begins at 0, which is not recorded as such."""
    shares = ({"stop_max_turns": 1.0}, {"stop_done": 0.75, "stop_max_turns": 0.25}, {"stop_done": 1.0})
    with Run.create(runs, config={}, name="claw") as run:
        for n, (turns, kl, stops) in enumerate(zip((12.0, 7.375, 4.40625), (0.0, 0.0001, 0.0006), shares, strict=True), 1):
            with run.iteration(n) as it:
                it.metrics("loop", {"mean_turns": turns, **stops})
                it.metrics("train/agent", {"kl": kl, "reward": 0.5})
    series = {one["name"]: one for one in client.get("/api/runs/claw/metrics", params={"scope": "loop"}).json()}
    assert series["stop_done"] == {"scope": "loop", "name": "stop_done", "iterations": [1, 2, 3], "values": [0.0, 0.75, 1.0]}
    assert series["stop_max_turns"]["values"] == [1.0, 0.25, 0.0]
    assert series["mean_turns"]["values"] == [12.0, 7.375, 4.40625]


def test_groups_are_listed_with_what_they_can_teach(client: TestClient):
    page = client.get("/api/runs/first/groups", params={"iteration": 1, "actor": "dev"}).json()
    assert page["total"] == 2
    row = page["rows"][0]
    assert (row["size"], row["distinct"], row["invalid"], row["turn"]) == (4, 3, 1, 44)
    # The legal returns are 0.5, 1.5 and 1.0.
    assert row["spread"] == pytest.approx(0.5)
    assert row["best"] == "REFACTOR"
    assert (row["chosen"], row["returns"], row["valid"]) == (1, [0.5, 1.5, 1.0, 1.0], [True, True, False, True])
    assert row["actions"] == ["FIX_BUG major", "REFACTOR", "invalid", "REFACTOR"]
    assert row["episode"] is None, "its key names no episode"
    assert [one["trained"] for one in page["rows"]] == [True, False]
    assert client.get("/api/runs/first/groups", params={"iteration": 9}).json() == {"total": 0, "rows": []}


def test_a_group_shows_every_reply_as_it_was_sampled_and_judged(client: TestClient):
    group = client.get("/api/runs/first/group", params={"key": "it0001/0/dev"}).json()
    assert group["rule"] == {**RULE, "negative_weight": 1.0}
    replies = group["replies"]
    assert [reply["ret"] for reply in replies] == [0.5, 1.5, 1.0, 1.0]
    assert [reply["valid"] for reply in replies] == [True, True, False, True]
    assert replies[0]["ids"] == [7, 8]
    assert replies[0]["logprobs"] == [-0.5, -0.25]
    assert replies[0]["pieces"] is None
    # (0.5 - 1.0) / (0.5 + 0.02); the invalid one lies 0.5 below the worst legal one, or at -1.5.
    assert replies[0]["advantage"] == pytest.approx(-0.5 / 0.52)
    assert replies[2]["advantage"] == pytest.approx(min(-0.5 / 0.52 - 0.5, -1.5))
    assert (group["previous"], group["next"], group["chosen"]) == (None, "it0001/1/dev", 1)
    last = client.get("/api/runs/first/group", params={"key": "it0001/1/dev"}).json()
    assert [reply["advantage"] for reply in last["replies"]] == [None] * 4


def test_the_distribution_of_actions_sums_to_one(client: TestClient):
    shares = client.get("/api/runs/first/drift").json()
    assert {(one["action"], one["share"]) for one in shares} == {("REFACTOR", 0.5), ("FIX_BUG", 0.25), ("invalid", 0.25)}


@pytest.mark.parametrize(
    "path",
    ["/api/runs/none", "/api/runs/..%2f..", "/api/runs/first/group?key=none", "/api/runs/first/episode?iteration=1&episode=x"],
)
def test_what_does_not_exist_is_not_found(client: TestClient, path: str):
    answer = client.get(path)
    assert answer.status_code == 404, answer.text
    assert answer.json()["detail"]


def test_players_are_those_that_can_be_loaded(runs: Path):
    without = Players(runs=runs)
    assert {player.kind for player in without.list()} == {"scripted"}
    with pytest.raises(ConfigError, match="unknown player"):
        without.seat("base", "sales")
