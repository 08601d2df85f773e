"""Recorded play is played again: as frames, as branches turn by turn, as one file; and what cannot be is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from onthejob.api.app import create_app
from onthejob.api.recorded_frames import episode_frames, rules_of, traces
from onthejob.envs.office.env import OfficeConfig
from onthejob.errors import RecordError
from onthejob.record import Run
from onthejob.rollout.branch import BranchConfig
from onthejob.rollout.origin import FACT, read_origin

from .recording import claw_run, comparison, office_run

TOKEN = "a-token-for-tests-0123"
PAGE = '<html><script type="application/json" id="onthejob-episode">null</script></html>'


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    office_run(folder)
    claw_run(folder)
    comparison(folder)
    return folder


@pytest.fixture
def client(root: Path, tmp_path: Path) -> Iterator[TestClient]:
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "replay.html").write_text(PAGE)
    (pages / "phaser.js").write_text("export {};")
    with TestClient(create_app(token=TOKEN, hosts=("testserver",), runs=root, pages=pages)) as made:
        yield made


def ask(client: TestClient, path: str, **query: Any) -> Any:
    answer = client.get(f"/api/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_segment_of_training_is_shown_as_the_office_that_it_was(client: TestClient):
    rows = ask(client, "runs/office/episodes")
    first_turns, days = set(), 0
    for row in rows:
        where = {"iteration": row["iteration"], "episode": row["name"]}
        told, recorded = ask(client, "runs/office/office", **where), ask(client, "runs/office/episode", **where)
        assert recorded["office"]
        assert recorded["row"] == row
        assert row["turns"] == len(recorded["turns"]) > 0
        seats, frames = told["seats"], told["frames"]
        first_turns.add(seats["first"])
        turns = [frame["turn"] for frame in frames[1:] if frame["actor"] != "night"]
        assert (seats["world"], seats["length"], seats["turns"]) == ("recorded", len(frames), len(turns))
        nights = [frame["turn"] for frame in frames if frame["actor"] == "night"]
        assert nights == [turn for turn in turns if (turn + 1) % 14 == 0]
        days += len(nights)
        assert frames[0]["actor"] == ""
        assert frames[0]["turn"] == seats["first"] - 1
        assert turns == list(range(seats["first"], seats["first"] + len(turns)))
        for frame in frames:
            for role, line in frame["parts"].items():
                said = [sum(reason["amounts"].get(role, ())) for reason in frame["reasons"]]
                assert sum(said) == pytest.approx(sum(line), abs=1e-3), "what the record does not hold is said again"
        acted = [frame for frame in frames if frame["actor"] not in ("", "customer", "night")]
        assert [(frame["actor"], frame["text"], frame["valid"], frame["policy"]) for frame in acted] == [
            (turn["actor"], turn["text"], turn["valid"], turn["policy"]) for turn in recorded["turns"]
        ]
        # A company that is continued has accounts, which do not arrive.
        if seats["first"]:
            assert frames[0]["accounts"]
            assert frames[0]["moves"] == []
        assert frames[-1]["kpis"]["value"] == pytest.approx(row["metrics"]["company_value"])
    assert days
    assert 0 in first_turns
    assert len(first_turns) > 1, "no segment began in the library"


def test_every_recorded_value_of_a_branch_is_found_again(client: TestClient):
    rows = ask(client, "runs/office/groups", count=500)["rows"]
    assert len(rows) > 15
    replies = turns = 0
    for row in rows[::3]:
        group = ask(client, "runs/office/group", key=row["key"])
        for world in group["worlds"][:2]:
            found = ask(client, "runs/office/branches", key=row["key"], world=world)
            assert found["turn"] == row["turn"]
            assert len(found["replies"]) == row["distinct"]
            for trace in found["replies"]:
                member = group["replies"][trace["index"]]
                assert trace["agrees"], (row["key"], world, trace["value"], trace["recorded"])
                assert trace["recorded"] == member["by_world"][group["worlds"].index(world)]
                head = trace["turns"][0]
                assert (head["actor"], head["valid"]) == (group["actor"], member["valid"])
                if member["valid"]:
                    assert head["action"] == json.loads(member["text"])["action_type"]
                assert trace["ret"] == pytest.approx(sum(turn["own"] for turn in trace["turns"]))
                for turn in trace["turns"]:
                    said = sum(reason["own"] for reason in turn["reasons"] or ())
                    assert said == pytest.approx(turn["own"], abs=0.7), "small amounts are omitted"
                    assert abs(turn["own"]) <= 1 or turn["reasons"]
                replies, turns = replies + 1, turns + len(trace["turns"])
    assert replies > 20
    assert turns > 20 * replies


def test_a_run_is_played_again_under_its_own_rules(tmp_path: Path):
    """Other prompts have other snapshots, and without the crisis bonus the same replies are paid otherwise."""
    office_run(tmp_path, "other", iterations=1, rules={"profile": "full", "crisis_bonus": False})
    with Run.open(tmp_path / "other", readonly=True) as run:
        rules, episodes = rules_of(run), list(run.read_episodes(1))
        assert rules == OfficeConfig(profile="full", crisis_bonus=False)
        assert all(episode_frames(episode, "other", rules).frames for episode in episodes)
        group = next(iter(run.read_groups(1)))
        found = traces(run, "other", group, 1, group.facts["worlds"][0])
        assert found.replies
        assert all(reply.agrees for reply in found.replies)
    begun = [episode for episode in episodes if (origin := read_origin(episode.facts, "it")) and origin.start]
    assert begun, "no segment began with a snapshot"
    with pytest.raises(RecordError):
        episode_frames(begun[0], "other", OfficeConfig())


def test_branches_are_played_on_by_whom_they_were(tmp_path: Path):
    office_run(tmp_path, "both", branch=BranchConfig(group_size=4, turns=42, worlds=2, continuation="both"))
    compared, kinds = 0, set()
    with Run.open(tmp_path / "both", readonly=True) as run:
        for group in list(run.read_groups(2))[:12]:
            for place, world in enumerate(group.facts["worlds"]):
                found = traces(run, "both", group, 2, world)
                assert all(reply.agrees for reply in found.replies)
                assert not (place == 1 and found.stand_ins)
                kinds.add(found.stand_ins)
                compared += len(found.replies)
    assert compared > 20
    assert kinds == {True, False}


def test_what_cannot_be_played_again_is_refused_with_a_reason(client: TestClient, root: Path, tmp_path: Path):
    key = ask(client, "runs/office/groups")["rows"][0]["key"]
    refused = client.get("/api/runs/office/branches", params={"key": key, "world": 9_999})
    assert (refused.status_code, "only in" in refused.json()["detail"]) == (404, True)
    key = ask(client, "runs/claw/groups")["rows"][0]["key"]
    refused = client.get("/api/runs/claw/branches", params={"key": key, "world": 1})
    assert "not scored by branches" in refused.json()["detail"]
    row = ask(client, "runs/claw/episodes")[0]
    refused = client.get("/api/runs/claw/office", params={"iteration": row["iteration"], "episode": row["name"]})
    assert "has no recorded start" in refused.json()["detail"]
    with Run.open(root / "office", readonly=True) as run:
        episode = next(iter(run.read_episodes(1)))
    with pytest.raises(RecordError, match="damaged"):
        read_origin({FACT: {**episode.facts[FACT], "start": "not base64!"}}, "x")
    # Another reply in the place of a recorded one pays something else: it is not shown as if it had been.
    changed = [dict(turn) for turn in episode.timeline]
    changed[3]["text"] = "nonsense" if changed[3]["valid"] else '{"action_type":"IDLE","target":""}'
    with pytest.raises(RecordError, match="rules have changed"):
        episode_frames(replace(episode, timeline=tuple(changed)), "office", OfficeConfig())


def test_a_shell_is_shown_with_commands_outputs_files_and_assertions(client: TestClient):
    solved = given_up = 0
    for row in ask(client, "runs/claw/episodes"):
        shown = ask(client, "runs/claw/episode", iteration=row["iteration"], episode=row["name"])
        assert not shown["office"]
        last = shown["turns"][-1]["facts"]
        assert all(set(verdict) == {"kind", "path", "passed", "reason"} for verdict in last["verdicts"])
        if row["metrics"]["passed"]:
            solved += 1
            commands = [turn["facts"] for turn in shown["turns"] if "command" in turn["facts"]]
            assert commands
            assert all(facts["exit_code"] == 0 for facts in commands)
            made = {change["path"] for facts in commands for change in facts["files"]}
            checked = {verdict["path"] for verdict in last["verdicts"]}
            assert made & checked, "what is checked was made by some command"
        else:
            given_up += 1
            assert len(shown["turns"]) == 1
            assert not all(verdict["passed"] for verdict in last["verdicts"])
    assert solved
    assert given_up


def test_comparisons_are_listed_and_shown_with_their_intervals(client: TestClient, root: Path):
    (root / "comparisons" / "broken.json").write_text('{"means": 3}')
    listed = {one["name"]: one for one in ask(client, "comparisons")}
    assert listed["matched"]["teams"] == ["random", "heuristic", "expert"]
    assert "holds no comparison" in listed["broken"]["error"]
    shown = ask(client, "comparisons/matched")
    kept = json.loads((root / "comparisons" / "matched.json").read_text())
    assert shown["tasks"] == len(kept["tasks"]) == 2
    assert shown["strata"] == ["all", "baseline", "churn"]
    assert len(shown["differences"]) == len(kept["differences"])
    for mine, theirs in zip(shown["differences"], kept["differences"], strict=True):
        for field in ("first", "second", "metric", "stratum", "mean", "low", "high", "n"):
            assert mine[field] == theirs[field]
    assert client.get("/api/comparisons/nowhere").status_code == 404
    assert client.get("/api/comparisons/..%2Foffice").status_code == 404


def test_a_run_is_one_file_that_holds_the_answers_of_the_api(client: TestClient):
    text = client.get("/api/runs/office/export", params={"groups": 5, "episodes": 2}).text
    held = json.loads(text.partition('id="onthejob-episode">')[2].partition("</script>")[0])
    run = held["run"]
    assert held["config"]["open_run"] == "office"
    assert run["view"] == ask(client, "runs/office")
    assert run["metrics"] == ask(client, "runs/office/metrics")
    assert run["rows"] == ask(client, "runs/office/groups", count=500)["rows"]
    assert len(run["groups"]) == 5
    for key, group in run["groups"].items():
        assert group == ask(client, "runs/office/group", key=key)
    assert run["rows"][-1]["key"] in run["groups"]
    assert len(run["episodes"]) == len(run["offices"]) == 2
    assert client.get("/api/runs/nowhere/export").status_code == 404
