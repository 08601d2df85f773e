"""`onthejob runs replay RUN`: recorded play is executed again, and whatever was altered is found and named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onthejob.cli import main
from onthejob.evaluate.reexecute import sampled_in
from onthejob.record import Run
from onthejob.record.codec import pack_bytes, pack_floats, unpack_bytes
from onthejob.testing import tiny_tokenizer

from .recording import claw_run, office_run, without_checksums


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, model = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("model")
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(model)
    office_run(folder, tokenizer=tokenizer, model=str(model))
    claw_run(folder, tokenizer=tokenizer, model=str(model))
    return folder


@pytest.fixture
def copied(root: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(root / name, tmp_path / name))


def replay(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, Any]:
    capsys.readouterr()
    code = main(["runs", "replay", *map(str, words), "--json", "--quiet"])
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out else said.err


def alter(run: Path, episode: str, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Rewrite an episode's recorded turns."""
    with without_checksums(run) as database:
        (blob,) = database.execute("SELECT timeline FROM episodes WHERE iteration = 1 AND name = ?", (episode,)).fetchone()
        turns = json.loads(unpack_bytes(blob))
        change(turns)
        packed = pack_bytes(json.dumps(turns).encode())
        database.execute("UPDATE episodes SET timeline = ? WHERE iteration = 1 AND name = ?", (packed, episode))


def names(run: Path) -> list[str]:
    with Run.open(run, readonly=True) as opened:
        return [episode.name for episode in opened.read_episodes(1, turns=False)]


def test_a_run_of_the_office_is_as_recorded(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = replay(capsys, root / "office")
    assert (code, found["matches"], found["differing"], found["skipped"]) == (0, True, 0, {})
    with Run.open(root / "office", readonly=True) as run:
        episodes, groups = list(run.read_episodes()), list(run.read_groups())
    assert len(found["episodes"]) == len(episodes) == 6
    assert found["turns"] == sum(len(episode.timeline) for episode in episodes)
    assert found["groups"] == found["prompts"] == len(groups) > 15
    assert found["hash"] == found["recorded_hash"]
    code, some = replay(capsys, root / "office", "--iteration", "2", "--limit", "1")
    assert (code, [(one["iteration"], one["name"]) for one in some["episodes"]]) == (0, [(2, episodes[3].name)])
    assert some["hash"] != found["hash"]


def test_a_run_of_the_claw_is_as_recorded(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = replay(capsys, root / "claw")
    assert (code, found["matches"], len(found["episodes"]), found["groups"]) == (0, True, 4, 0)
    assert found["prompts"] == found["turns"] > 4


@pytest.mark.parametrize("what", ["rewards", "parts", "facts", "valid"])
def test_an_altered_effect_is_found_and_its_turn_named(
    copied: Callable[[str], Path], capsys: pytest.CaptureFixture[str], what: str
) -> None:
    run = copied("office")
    name = names(run)[1]

    def change(turns: list[dict[str, Any]]) -> None:
        turn = turns[5]
        if what == "rewards":
            turn["rewards"][turn["actor"]] += 0.001
        elif what == "parts":
            turn["parts"][turn["actor"]]["base"] = 7.0
        elif what == "facts":
            turn["facts"]["target"] = "another"
        else:
            turn["valid"] = not turn["valid"]

    alter(run, name, change)
    code, found = replay(capsys, run, "--iteration", "1", "--limit", "2")
    assert (code, found["matches"], found["differing"]) == (1, False, 1)
    (episode,) = [one for one in found["episodes"] if one["difference"]]
    turn, actor, differs, recorded, now = episode["difference"]
    assert (episode["name"], turn, differs, episode["turns"]) == (name, 5, what, 5)
    assert actor
    assert recorded != now
    assert main(["runs", "replay", str(run), "--iteration", "1", "--limit", "2", "--quiet"]) == 1
    assert f"{name}, turn 5: recorded" in capsys.readouterr().out.replace("\n", " ")


def test_an_altered_reply_is_found_even_where_it_does_the_same(
    copied: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied("office")
    with Run.open(run, readonly=True) as opened:
        episodes = list(opened.read_episodes(1))
        sampled = sampled_in(episodes, opened.read_groups(1))[0]
    trained = next(
        i for i, turn in enumerate(episodes[0].timeline) if turn["facts"]["turn"] in sampled.branched and turn["valid"]
    )

    def change(turns: list[dict[str, Any]]) -> None:
        turns[trained]["text"] = " " + turns[trained]["text"]

    alter(run, episodes[0].name, change)
    code, found = replay(capsys, run, "--iteration", "1", "--limit", "1")
    (difference,) = [one["difference"] for one in found["episodes"] if one["difference"]]
    assert (code, difference[0], difference[2]) == (1, trained, "the reply that was sampled")
    # Of those who are not trained, what the reply does is all there is to compare.
    other = copied("claw")
    assert replay(capsys, other)[0] == 0
    alter(other, names(other)[0], lambda turns: turns[0].update(text="```bash\necho another\n```"))
    code, found = replay(capsys, other)
    (difference,) = [one["difference"] for one in found["episodes"] if one["difference"]]
    assert (code, difference[0]) == (1, 0)


def test_an_altered_value_of_a_group_is_found(copied: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    run = copied("office")
    with Run.open(run, readonly=True) as opened:
        group = list(opened.read_groups(1))[4]
    with without_checksums(run) as database:
        (row,) = database.execute("SELECT id FROM groups WHERE key = ?", (group.key,)).fetchone()
        where = (row,)
        database.execute(
            "UPDATE trajectories SET rewards = ? WHERE group_id = ? AND position = 2",
            (pack_floats([group.trajectories[2].ret + 0.01]), *where),
        )
    code, found = replay(capsys, run, "--iteration", "1")
    (episode,) = [one for one in found["episodes"] if one["difference"]]
    assert code == 1
    assert group.key.split("/")[1] == episode["name"].split("/")[0]
    assert episode["difference"][1:3] == [group.actor, "reward of reply 2 of the group"]
    with without_checksums(run) as database:
        facts = {**group.facts, "by_world": {key: [v + 1 for v in values] for key, values in group.facts["by_world"].items()}}
        database.execute("UPDATE groups SET facts = ? WHERE id = ?", (json.dumps(facts), row))
    segment = int(group.key.split("/")[1][1:])
    difference = replay(capsys, run, "--iteration", "1")[1]["episodes"][segment]["difference"]
    assert difference[2].startswith("value in each world")


def test_an_altered_prompt_or_end_is_found(copied: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    run = copied("claw")
    with Run.open(run, readonly=True) as opened:
        (group,) = opened.read_groups(1)
    long = next(i for i, member in enumerate(group.trajectories) if len(member.turns) > 1)
    with without_checksums(run) as database:
        database.execute("UPDATE episode_metrics SET value = 0.25 WHERE name = 'assertion_rate' AND episode_id = 1")
        (row,) = database.execute("SELECT id FROM trajectories WHERE position = ? AND group_id IS NOT NULL", (long,)).fetchone()
        # The second turn's prompt is the first one's.
        database.execute(
            "UPDATE turns SET context_id = (SELECT context_id FROM turns WHERE trajectory_id = ? AND position = 0) "
            "WHERE trajectory_id = ? AND position = 1",
            (row, row),
        )
    code, found = replay(capsys, run)
    assert code == 1
    told = {i: one["difference"] for i, one in enumerate(found["episodes"]) if one["difference"]}
    if long != 0:
        assert told[0][2] == "metrics at the end"
        assert told[0][3] == {"assertion_rate": 0.25}
    assert told[long][0] == 1
    assert told[long][2] == "the prompt's tokens"


def test_what_cannot_be_played_again_is_said(
    copied: Callable[[str], Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = copied("office")
    with without_checksums(run) as database:
        facts = json.dumps({"task": "t", "stop": "max_turns", "error": None})
        database.execute("UPDATE episodes SET facts = ? WHERE position = 0 AND iteration = 1", (facts,))
    code, found = replay(capsys, run, "--iteration", "1")
    told = list(found["skipped"].values())
    assert (code, len(found["episodes"]), told) == (0, 2, ["the record does not say where they began"])
    code, said = replay(capsys, run, "--iteration", "9")
    assert (code, "holds no episode of iteration 9" in said) == (1, True)
    game = tmp_path / "game.json"
    game.write_text("{}")
    code, said = replay(capsys, game, "--iteration", "1")
    assert (code, "no effect on a game" in said) == (2, True)
    assert replay(capsys, tmp_path / "nowhere")[0] == 2
    assert replay(capsys, run, "--limit", "-1")[0] == 2


def test_other_rules_than_those_of_the_record_are_found(
    copied: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied("office")
    with without_checksums(run) as database:
        (text,) = database.execute("SELECT value FROM meta WHERE key = 'config'").fetchone()
        config = json.loads(text)
        config["train"]["branch"]["outcome_weight"] = 0.5
        database.execute("UPDATE meta SET value = ? WHERE key = 'config'", (json.dumps(config),))
    code, found = replay(capsys, run, "--limit", "1")
    assert code == 1
    assert found["episodes"][0]["difference"][2].startswith("value in each world")
