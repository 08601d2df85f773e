"""Snapshots and forks: the same future, small, read when asked for; garbage and damage are refused, older ones read."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.scenarios import SHIPPED
from onthejob.envs.office.snapshot import dumps, loads
from onthejob.envs.office.views import team_status
from onthejob.errors import ContractError
from onthejob.types import Kind, Observation, Split, Step, Task

from .playing import ASKING, COMPACT, FULL, advance, answer, row, turns


@pytest.mark.parametrize("config", [COMPACT, FULL, ASKING], ids=["compact", "full", "asking"])
def test_a_restored_and_a_forked_episode_have_the_same_future(task, config: OfficeConfig) -> None:
    env, setup = OfficeEnvironment(config), task("churn", 1_004, days=12)
    played = [(env.snapshot(), env.fork(), reply, row(step)) for _, reply, step in snapshots(env, setup)]
    for mark in range(0, len(played), 13):
        taken, fork, _, _ = played[mark]
        other = OfficeEnvironment(config)
        seen = other.restore(taken)
        assert seen is not None
        assert other.snapshot() == fork.snapshot() == taken
        for _, _, reply, expected in played[mark : mark + 40]:
            assert row(other.step(reply)) == expected
            assert row(fork.step(reply)) == expected


def snapshots(env: OfficeEnvironment, setup: Task) -> Iterator[tuple[Observation, str, Step]]:
    """Like `turns`, but yields before the step is taken, and with every seventh reply spoilt."""
    observation: Observation | None = env.reset(setup)
    asked = 0
    while observation is not None:
        reply = answer(observation, int(env.state()["turn"])) if asked % 7 else "nonsense"
        twin = env.fork()
        yield observation, reply, twin.step(reply)
        observation = env.step(reply).observation
        asked += 1


@pytest.mark.parametrize("config", [COMPACT, ASKING], ids=["compact", "asking"])
def test_a_fork_leaves_its_parent_untouched(task, config: OfficeConfig) -> None:
    env = OfficeEnvironment(config)
    advance(env, task("viral"), lambda asked: int(env.state()["turn"]) >= 75)
    before = env.snapshot()
    children = [env.fork() for _ in range(3)]
    for seed, child in enumerate(children):
        observation: Observation | None = child.observe()
        for _ in range(40):
            assert observation is not None
            observation = child.step(answer(observation, seed)).observation
    assert env.snapshot() == before
    assert len({child.snapshot() for child in children}) == 3
    children[0].restore(before)
    assert children[0].snapshot() == before


def test_a_pending_retry_and_a_pending_reflection_survive(task) -> None:
    env = OfficeEnvironment(ASKING)
    advance(env, task("churn"), lambda asked: asked.kind is Kind.REFLECT)
    waiting = [env.snapshot()]
    env.step("It is quiet [0]")
    env.step("{")
    env.step('{"action_type":"RUN_DEMO","target":"Nobody"}')
    waiting.append(env.snapshot())
    for taken, kind in zip(waiting, (Kind.REFLECT, Kind.RETRY), strict=True):
        env.restore(taken)
        other = OfficeEnvironment(ASKING)
        seen, same, forked = other.restore(taken), env.observe(), env.fork().observe()
        assert seen is not None
        assert same is not None
        assert forked is not None
        assert seen.kind is same.kind is forked.kind is kind
        assert list(seen.messages) == list(same.messages) == list(forked.messages)
        for reply in ("{", '{"action_type":"TEAM_SYNC"}', "{"):
            assert row(other.step(reply)) == row(env.step(reply))


@pytest.mark.parametrize("name", ["expert", "heuristic"])
@pytest.mark.parametrize("scenario", SHIPPED)
def test_snapshots_stay_small(task, scenario: str, name: str) -> None:
    sizes = {}
    env = OfficeEnvironment()
    for observation, _, _ in turns(env, task(scenario, 1_000), name):
        turn = int(env.state()["turn"])
        sizes[turn] = len(env.snapshot()) if observation else 0
        if turn > 400:
            break
    early, late = (next(size for turn, size in sizes.items() if turn >= wanted) for wanted in (60, 400))
    assert late < 3_200
    assert late <= 1.5 * early


def test_snapshots_of_long_episodes_stay_small(task) -> None:
    sizes: dict[tuple[str, int], int] = {}
    for profile in ("compact", "full"):
        env = OfficeEnvironment(OfficeConfig(profile=profile, days=90))
        for observation, _, _ in turns(env, task("viral", 5, days=90), "expert"):
            turn = int(env.state()["turn"])
            if observation and turn % 200 < 3:
                sizes[profile, turn // 200 * 200] = len(env.snapshot())
    assert all(size < 3_600 for (profile, _), size in sizes.items() if profile == "compact")
    assert sizes["compact", 1200] < 1.2 * sizes["compact", 400]
    # The memories fill up to their capacity and then stay.
    assert all(size < 32_000 for size in sizes.values())
    assert sizes["full", 1200] < 1.2 * sizes["full", 800]


def test_what_is_restored_is_read_when_it_is_asked_for(task) -> None:
    """The memories of a restored episode lie packed until then; prompt, branch, fork and future do not tell."""
    env = OfficeEnvironment(FULL)
    advance(env, task("viral"), lambda asked: int(env.state()["turn"]) >= 150)
    taken, asked = env.snapshot(), env.observe()
    assert asked is not None
    readers = [OfficeEnvironment(FULL) for _ in range(4)]
    seen = [reader.restore(taken) for reader in readers]
    reply = answer(asked, 0)
    assert readers[0].branch(reply, world=1, turns=9) == env.branch(reply, world=1, turns=9)
    assert {tuple(reader.memories(role)) for role in SEATS for reader in readers[1:2]} == {
        tuple(env.memories(role)) for role in SEATS
    }
    fork = readers[2].fork()
    after = row(env.step(reply))
    assert all(row(one.step(reply)) == after for one in (*readers, fork))
    # What was asked before the step still says what it said then.
    assert all(one is not None and list(one.messages) == list(asked.messages) for one in seen)
    assert len({one.snapshot() for one in (env, *readers, fork)}) == 1


def garbage(taken: bytes) -> dict[str, bytes]:
    size = int.from_bytes(taken[:4], "big")
    line, _, memories = taken[4 : 4 + size].partition(b"\n")
    head, body = json.loads(line), taken[4 + size :]

    def with_head(remembered: bytes = memories, **changes: Any) -> bytes:
        text = json.dumps({**head, **changes}).encode() + b"\n" + remembered
        return len(text).to_bytes(4, "big") + text + body

    state, rows = loads(body), body[body.index(b"\n") :]
    state.turn = 10_000
    fields = json.loads(body[: -len(rows)])
    counts, lengths, *words = fields[-1]

    def with_columns(rows: bytes, counts: list[int], lengths: list[int]) -> bytes:
        return taken[: 4 + size] + json.dumps([*fields[:-1], [counts, lengths, *words]]).encode() + rows

    return {
        "empty": b"",
        "short": b"\0\0",
        "noise": bytes(range(256)),
        "cut": taken[:-20],
        "cut head": taken[: size // 2],
        "more": taken + b"]",
        "rows alone": taken[: 4 + size] + rows,
        "no rows": taken[: -len(rows)],
        "more rows": with_columns(rows, [counts[0] + 1, *counts[1:]], lengths),
        "fewer rows": with_columns(rows, [counts[0] - 1, *counts[1:]], lengths),
        **{
            f"more of {place}": with_columns(
                rows, [count + 300 * (place == index) for index, count in enumerate(counts)], lengths
            )
            for place in range(len(counts))
        },
        "other rows": with_columns(rows, counts, [*lengths[:-1], lengths[-1] - 1]),
        "rows of nothing": with_columns(b"\n", [0] * 8, [-1, 0, 0, 0, 0]),
        "pickle": b"\x80\x04K\x01.",
        "deep": (3).to_bytes(4, "big") + b"{} " + b"[" * 100_000,
        "no head": (2).to_bytes(4, "big") + b"[]" + body,
        "unknown scenario": with_head(scenario="picnic"),
        "bad scenario": with_head(scenario={"name": "x"}),
        "memories of nobody": with_head(memories={"records": [], "streams": {}}),
        "memories of none": with_head(b"", memories=[0]),
        "other memories": with_head(b"x" * len(memories)) if memories else b"",
        "memories cut": with_head(memories[:-1]) if memories else b"",
        "attempts without a problem": with_head(attempts=1),
        "too many attempts": with_head(attempts=9, problem=["not_json", "x", "y"]),
        "unknown reason": with_head(problem=["because", "x", "y"]),
        "late": taken[: 4 + size] + dumps(state),
    }


@pytest.mark.parametrize("config", [COMPACT, FULL], ids=["compact", "full"])
def test_garbage_is_refused_and_leaves_the_episode_as_it_was(task, config: OfficeConfig) -> None:
    env = OfficeEnvironment(config)
    advance(env, task("churn"), lambda asked: int(env.state()["turn"]) >= 30)
    taken, asked = env.snapshot(), env.observe()
    for name, wrong in garbage(taken).items():
        with pytest.raises(ContractError, match="not an office snapshot"):
            env.restore(wrong)
        assert env.snapshot() == taken, name
        assert env.observe() is asked, name
    other = OfficeEnvironment(FULL if config is COMPACT else COMPACT)
    with pytest.raises(ContractError, match="another profile"):
        other.restore(taken)
    assert other.observe() is None


@settings(max_examples=60)
@given(data=st.data())
def test_a_damaged_snapshot_is_refused_or_plays(data) -> None:
    """Damage that still reads as a state cannot be distinguished from one, but it never breaks anything but the restore."""
    env = OfficeEnvironment()
    env.reset(Task(id="t", env="office", split=Split.DEV, seed=3, payload={"scenario": "viral"}))
    taken = bytearray(env.snapshot())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(taken) - 1))
        taken[place] = data.draw(st.sampled_from(b'0123456789.,:[]{}"ntfe-\xff\x00'))
    try:
        seen = env.restore(bytes(taken))
    except ContractError:
        seen = env.observe()
    if seen is not None:
        assert seen.messages


def test_an_older_snapshot_of_the_compact_profile_is_read(task) -> None:
    """Runs of 0.1.0 hold snapshots whose head has other keys for what only retries use."""
    env = OfficeEnvironment()
    advance(env, task("churn"), lambda asked: int(env.state()["turn"]) >= 20)
    taken = env.snapshot()
    size = int.from_bytes(taken[:4], "big")
    head = json.loads(taken[4 : 4 + size])
    old = json.dumps(
        {"task": head["task"], "scenario": "churn", "attempts": 0, "last_reply": "", "reflecting": False, "memories": {}}
    )
    env.restore(len(old).to_bytes(4, "big") + old.encode() + taken[4 + size :])
    assert env.snapshot() == taken


def test_an_older_snapshot_of_the_full_profile_is_read(task) -> None:
    """Runs of 0.1.0 hold memories as JSON, every record once, and remember of what was reflected how it went."""
    env = OfficeEnvironment(FULL)
    advance(env, task("churn"), lambda asked: int(env.state()["turn"]) >= 80)
    taken = env.snapshot()
    size = int.from_bytes(taken[:4], "big")
    head = json.loads(taken[4 : 4 + size].partition(b"\n")[0])
    records: list[Any] = []
    streams = {}
    for role in SEATS:
        assert env._memory is not None
        stream = env._memory.stream(role)
        ids, accessed, held, _ = zip(*stream._held, strict=True)
        head_of = [stream._next_id, stream._reflected, stream._unread, stream._plan, ids, accessed]
        streams[role] = [*head_of, [len(records) + place for place in range(len(held))]]
        records += [one[:6] for one in held]
    old = json.dumps({**head, "memories": {"records": records, "streams": streams}})
    other = OfficeEnvironment(FULL)
    other.restore(len(old).to_bytes(4, "big") + old.encode() + taken[4 + size :])
    assert other.snapshot() == taken


def test_a_users_scenario_travels_in_the_snapshot(task, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = (Path(sys.modules[OfficeEnvironment.__module__].__file__ or "").parent / "scenarios" / "viral.toml").read_text()
    path.write_text(text.replace("event_rate = 0.15", "event_rate = 1.0"), encoding="utf-8")  # the name stays `viral`
    env = OfficeEnvironment()
    advance(env, task(str(path)), lambda asked: int(env.state()["turn"]) >= 20)
    taken = env.snapshot()
    path.unlink()
    other = OfficeEnvironment()
    other.reset(task("viral"))
    for twin in (other, env.fork()):
        twin.restore(taken)
        observation: Observation | None = twin.observe()
        events = 0
        while observation is not None and int(twin.state()["turn"]) < 90:
            step = twin.step(answer(observation, 0))
            events += len(step.facts["notes"])
            observation = step.observation
        assert events >= 5  # one a day, as the file says
        assert twin.snapshot() != taken


@pytest.mark.parametrize("version", ["2", "3"])
def test_snapshots_of_earlier_versions_are_read(version: str) -> None:
    """As they were written before roles' last actions and goals were part of the state."""
    kept = json.loads((Path(__file__).parents[2] / "data" / "office_snapshots.json").read_text(encoding="utf-8"))
    s = loads(base64.b64decode(kept[version]))
    assert (s.seed, s.scenario, s.turn, s.cash, s.inbox) == tuple(map(kept.get, ("seed", "scenario", "turn", "cash", "inbox")))
    assert (s.acted, s.goal) == ({}, {})
    assert set(team_status(s, "dev").values()) <= {"starting", "blocked"}
    written = dumps(s)
    assert written.startswith(b"[5,")
    assert dumps(loads(written)) == written


def test_a_restored_snapshot_of_an_earlier_version_has_its_scenarios_goal(task) -> None:
    kept = json.loads((Path(__file__).parents[2] / "data" / "office_snapshots.json").read_text(encoding="utf-8"))
    env = OfficeEnvironment()
    env.reset(task(kept["scenario"], kept["seed"]))
    taken = env.snapshot()
    size = 4 + int.from_bytes(taken[:4], "big")
    env.restore(taken[:size] + base64.b64decode(kept["3"]))
    assert env.company.turn == kept["turn"]
    assert env.company.goal == {"mrr_growth": 3.0, "satisfaction": 0.7}


def test_what_roles_did_and_the_goal_are_in_a_snapshot(office) -> None:
    company = office("series_a")
    company.act("dev", "REFACTOR")
    s = loads(dumps(company.state))
    assert s.acted == company.state.acted
    assert s.acted["dev"] == "REFACTOR"
    assert s.goal == {"mrr_growth": 3.0, "mrr": 32_000}
