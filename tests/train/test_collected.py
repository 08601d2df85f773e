"""Collected turns: what a seat in training mode leaves behind is exact, survives a kill, and is refused where it does not fit."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from onthejob.commands.play_collect import Keeping
from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.tasks import office_tasks
from onthejob.errors import ConfigError, DamagedRecord, RecordError
from onthejob.models.chat import ChatEncoder
from onthejob.office import make_office, without_memories
from onthejob.office_players import scripted
from onthejob.record import Run, check_run
from onthejob.rollout.branch import BranchConfig
from onthejob.rollout.collect import CollectConfig
from onthejob.rollout.episode import TurnRecord
from onthejob.rollout.play import play
from onthejob.rollout.seats import Seats
from onthejob.testing import ScriptedTokens, ToyWorkplace, heuristic_reply, tiny_tokenizer, toy_tasks
from onthejob.train import TrainConfig
from onthejob.train.collected import (
    Collected,
    CollectedTurn,
    Sampled,
    TurnRecorder,
    better_paid,
    library_of,
    read_collected,
)
from onthejob.types import Completion, Kind, Sampling, Split, Task, Turn

TOKENIZER = tiny_tokenizer()
(TASK,) = office_tasks(Split.TRAIN, seeds=1, scenarios=["baseline"], days=2)
LIMIT = 400


def expert_tokens(role: str) -> ScriptedTokens:
    """The expert as a model of tokens, whose every fifth reply cannot be used."""

    def reply(observation, seed: int) -> str:
        if seed % 5 == 0:
            return "no idea"
        (said,) = scripted("expert").act([_context(observation, seed)], Sampling())
        return said.text

    return ScriptedTokens(TOKENIZER, reply, version=f"{role}@0003")


def _context(observation, seed: int):
    from onthejob.types import Context

    return Context(observation=observation, seed=seed)


def collect(folder: Path, *, roles: Sequence[str] = ("dev", "sales"), profile: str = "compact", turns: int = 1_000):
    """Play `TASK` with these seats in training mode; returns the episode."""
    env, sampling = OfficeEnvironment(OfficeConfig(profile=profile)), Sampling(temperature=1.0, max_new_tokens=LIMIT)
    run = Run.open(folder) if folder.exists() else Run.create(folder.parent, config={"mode": "training"}, name=folder.name)
    with closing(TurnRecorder(run)) as recorder:
        keeping = Keeping(recorder, env, TASK, sampling)
        policies = {role: scripted("heuristic") for role in SEATS}
        policies |= {role: keeping.policy(role, expert_tokens(role), f"lm:{role}") for role in roles}
        (episode,) = play(
            [env],
            [TASK],
            Seats(policies, trained=tuple(roles)),
            sampling,
            seed=7,
            encoder=ChatEncoder(TOKENIZER),
            max_turns=turns,
            on_turn=lambda live, completion, step: keeping.on_turn(live),
        )
    return episode


def read(folder: Path) -> Collected:
    with Run.open(folder, readonly=True) as run:
        return read_collected(run)


@pytest.mark.parametrize("profile", ["compact", "full"])
def test_every_turn_is_kept_as_it_was_sampled_with_the_moment_before_it(tmp_path: Path, profile: str):
    episode = collect(tmp_path / "shift", profile=profile)
    found = read(tmp_path / "shift")
    assert {turn.actor for turn in found.turns} == {"dev", "sales"}
    env, chat = OfficeEnvironment(OfficeConfig(profile=profile)), ChatEncoder(TOKENIZER)
    for actor in ("dev", "sales"):
        own = [turn for turn in found.turns if turn.actor == actor]
        assert tuple(turn.turn for turn in own) == episode.trajectories[actor].turns
        assert [turn.day for turn in own] == [1, 1, 2, 2]
        for turn in own:
            request = env.restore(turn.snapshot)
            assert request is not None
            assert (request.actor, env.company.turn) == (actor, turn.at)
            assert chat.encode(request.messages) == turn.turn.prompt_ids
            assert turn.policy == f"lm:{actor}"
    assert any(not turn.turn.valid for turn in found.turns)
    (company,) = found.paid
    assert found.over == {company}
    # The record has all that every role was paid, also in the turns of the others and at night.
    for role in (*SEATS, "customer"):
        told = sum(rewards.get(role, 0.0) for _, rewards in found.paid[company])
        assert told == pytest.approx(sum(record.rewards.get(role, 0.0) for record in episode.transcript))
    assert check_run(tmp_path / "shift").damage == ()


def test_returns_are_those_of_the_role_in_the_turns_that_follow():
    turn = collected_turn(0, "sales", at=3, day=1)
    rows = [(3, {"sales": 1.0, "dev": 9.0}), (4, {"sales": 0.5}), (9, {"dev": 1.0}), (16, {"sales": 2.0}), (17, {"sales": 4.0})]
    found = Collected(path=Path(), config={}, turns=(turn,), paid={"c": rows}, over=frozenset())
    assert found.returns(14) == [(turn, 3.5)], "turns 3 to 16"
    assert found.returns(1) == [(turn, 1.0)]
    assert found.returns(15) == [(turn, 7.5)]
    assert found.returns(16) == [], "turn 18 was not played"
    assert replace(found, over=frozenset({"c"})).returns(16) == [(turn, 7.5)], "the episode had no turn 18"


def collected_turn(number: int, actor: str, *, at: int = 0, day: int = 1, valid: bool = True) -> CollectedTurn:
    turn = Turn(prompt_ids=(1,), completion=Completion(text="x"), policy_version="p", valid=valid)
    return CollectedTurn(number=number, company="c", task=TASK, actor=actor, snapshot=b"", day=day, at=at, turn=turn, policy="")


def test_the_better_paid_are_better_than_usual_for_their_role_at_their_time():
    # Sales: a first week in which 2 is much, and a last one in which 100 is little; one of the best replies cannot be used.
    paid = [(1, 0.0), (1, 2.0), (2, 1.0), (28, 100.0), (29, 120.0), (29, 110.0)]
    returns = [(collected_turn(number, "sales", day=day), value) for number, (day, value) in enumerate(paid)]
    returns.append((collected_turn(6, "sales", day=29, valid=False), 150.0))
    returns += [(collected_turn(7, "dev"), 1.0), (collected_turn(8, "dev"), 1.0)]
    # Means: 1 in the first days, 120 in the last ones. Above: number 1 by 1. Number 4 earned just what is usual.
    assert [turn.number for turn in better_paid(returns, 0.5)] == [1]
    del returns[6]
    # Without the unusable reply the last mean is 110: number 4 is above it by 10, number 1 by 1. A fifth of six turns is two.
    assert [turn.number for turn in better_paid(returns, 0.2)] == [1, 4]
    assert [turn.number for turn in better_paid(returns, 0.1)] == [4]
    assert not [turn for turn in better_paid(returns, 1.0) if turn.actor == "dev"], "equal pay prefers nothing"


def test_several_companies_and_sessions_are_one_run(tmp_path: Path):
    collect(tmp_path / "shift", turns=10)
    before = read(tmp_path / "shift")
    collect(tmp_path / "shift", roles=("dev",), turns=10)
    found = read(tmp_path / "shift")
    assert found.turns[: len(before.turns)] == before.turns
    assert len(found.paid) == 2, "companies are told apart, also of one task"
    assert not found.over, "both were cut"
    ends = [rows[-1][0] for rows in found.paid.values()]
    assert ends == [10, 10], "what the last turns of the others paid is kept when the episode is cut"


def test_what_a_turn_paid_is_not_lost_when_it_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    played, write = [], TurnRecorder._append

    def fails_once(self: TurnRecorder, name: str, **given: object) -> None:
        played.append(name)
        if len(played) == 2:
            raise RecordError("the disk is full")
        write(self, name, **given)

    monkeypatch.setattr(TurnRecorder, "_append", fails_once)
    with closing(TurnRecorder(Run.create(tmp_path, config={"mode": "training"}, name="shift"))) as recorder:
        company = recorder.begin(TASK)
        sampled = Sampled(
            snapshot=b"s", day=1, prompt_ids=(1,), completion=Completion(text="x"), sampling=Sampling(), policy="lm"
        )  # fmt: skip
        for at, paid in enumerate((1.0, 100.0, 1.0, 1.0)):
            turn = TurnRecord(
                index=at, actor="dev", policy="p", kind=Kind.ACT, text="x", valid=True, rewards={"dev": paid}, parts={}, facts={}
            )
            with suppress(RecordError):
                company.turn(turn, at=at, sampled=sampled)
    found = read(tmp_path / "shift")
    assert [turn.at for turn in found.turns] == [0, 2, 3]
    assert found.returns(3)[0][1] == 102.0


KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_collected
from onthejob.train.collected import CompanyRecorder
turn, count = CompanyRecorder.turn, [0]

def dies(self, played, **given):
    turn(self, played, **given)
    count[0] += given["sampled"] is not None
    if count[0] == 3:
        os.kill(os.getpid(), 9)

CompanyRecorder.turn = dies
test_collected.collect(Path(sys.argv[1]))
"""


def test_a_killed_process_loses_no_turn_that_was_played(tmp_path: Path):
    words = [sys.executable, "-c", KILLED, str(tmp_path / "shift"), str(Path(__file__).parent)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert check_run(tmp_path / "shift").damage == ()
    killed = read(tmp_path / "shift")
    assert len(killed.turns) == 3
    collect(tmp_path / "whole")
    assert [turn.turn for turn in killed.turns] == [turn.turn for turn in read(tmp_path / "whole").turns[:3]]
    collect(tmp_path / "shift")
    assert len(read(tmp_path / "shift").turns) == 3 + 8, "another process adds to it"


def test_damage_is_found_and_named(tmp_path: Path):
    collect(tmp_path / "shift", turns=10)
    with closing(sqlite3.connect(tmp_path / "shift/run.sqlite")) as connection:
        connection.execute("UPDATE turns SET reward = 99, valid = 1 - valid WHERE id = 1")
        connection.commit()
    with pytest.raises(DamagedRecord, match="t001"):
        read(tmp_path / "shift")
    (damage,) = check_run(tmp_path / "shift").damage
    assert "t001/dev" in damage.part


def test_what_was_not_collected_is_refused(tmp_path: Path):
    with Run.create(tmp_path, config={}, name="trained") as run, pytest.raises(ConfigError, match="is no run of collected turns"):
        read_collected(run)
    with Run.create(tmp_path, config={"mode": "training"}, name="empty") as run:
        with pytest.raises(ConfigError, match="holds no turn yet"):
            read_collected(run)
        with run.iteration(0) as it:
            it.episode("t", policies={}, metrics={}, facts={"task": "t"})
        with pytest.raises(RecordError, match=r"record 0 of .* is no collected turn: 'collected'"):
            read_collected(run)


def test_the_library_holds_the_states_and_refuses_what_is_kept_for_evaluation(tmp_path: Path):
    collect(tmp_path / "shift")
    turns = read(tmp_path / "shift").turns
    entries = library_of(turns, make_office())
    assert [(entry.actor, entry.day, entry.snapshot) for entry in entries] == [
        (turn.actor, turn.day, turn.snapshot) for turn in turns
    ]
    with pytest.raises(ConfigError, match=r"snapshot of record 0 cannot be restored: .*another profile than full"):
        library_of(turns, make_office(OfficeConfig(profile="full")))
    held_out = Task(id="h", env="office", split=Split.TRAIN, seed=TASK.seed, payload={"scenario": "outage", "days": 2})
    for task, said in (
        (held_out, "training refuses held-out scenarios"),
        (replace(TASK, seed=1_003), "training refuses evaluation seeds"),
    ):
        with pytest.raises(ConfigError, match=said):
            library_of([replace(turns[0], task=task)], make_office())
    with pytest.raises(RecordError, match="does not ask ceo"):
        library_of([replace(turns[0], actor="ceo")], make_office())


def test_dev_turns_are_refused_when_they_are_read(tmp_path: Path):
    played = collect(tmp_path / "shift", turns=2).transcript[1]
    with closing(TurnRecorder(Run.create(tmp_path, config={"mode": "training"}, name="dev"))) as recorder:
        company = recorder.begin(replace(TASK, split=Split.DEV, seed=1_003))
        turn = read(tmp_path / "shift").turns[0]
        sampled = Sampled(
            snapshot=turn.snapshot,
            day=1,
            prompt_ids=turn.turn.prompt_ids,
            completion=turn.turn.completion,
            sampling=Sampling(),
            policy="",
        )
        company.turn(played, at=1, sampled=sampled)
    with pytest.raises(ConfigError, match=r"seed 1003 is of split dev. Play with a training seed"):
        read(tmp_path / "dev")


def test_a_snapshot_without_memories_is_that_of_the_compact_profile():
    full, compact = OfficeEnvironment(OfficeConfig(profile="full")), OfficeEnvironment()
    full.reset(TASK)
    request = compact.reset(TASK)
    for turn in range(20):
        assert without_memories(full.snapshot()) == compact.snapshot() == without_memories(compact.snapshot())
        assert request is not None
        (said,) = scripted("expert").act([_context(request, turn)], Sampling())
        full.step(said.text)
        request = compact.step(said.text).observation


def test_training_starts_in_collected_states_only_and_resumes_with_them(start):
    """In the toy workplace: states of its second day, and no other is met at the beginning of a segment."""
    from onthejob.models.scripted import ScriptedPolicy
    from onthejob.rollout.library import visit

    heuristic = ScriptedPolicy(heuristic_reply, version="heuristic")
    seats = {"maker": heuristic, "seller": heuristic}
    states = visit(ToyWorkplace, toy_tasks(6)[2:], seats, seed=0, share=1.0, max_turns=50)
    collected = [entry for entry in states if entry.day == 2]
    assert {entry.actor for entry in collected} == {"maker", "seller"}
    config = TrainConfig(
        iterations=1,
        collect=CollectConfig(episodes=3, segment_turns=2, fresh_share=0.0, partner_share=0.0, keep_share=0.0),
        branch=BranchConfig(group_size=4, turns=4, worlds=2),
        scale_states=4,
    )
    run = start()
    run.train(config, ToyWorkplace, collected=collected)
    again = replace(config, iterations=2)
    run.train(again, ToyWorkplace, resume=True)
    known = {entry.snapshot for entry in collected}
    (event,) = run.run.read_events(kind="collected")
    assert sum(event.payload["turns"].values()) == len(collected)
    for iteration in (1, 2):
        library = run.run.read_metrics("loop", iteration=iteration, name="library")
        assert [metric.value for metric in library] == [len(collected)]
        groups = list(run.run.read_groups(iteration))
        assert groups
        assert {group.facts["origin"] for group in groups} == {"library"}
        from onthejob.rollout.origin import read_origin

        origins = [read_origin(episode.facts, "") for episode in run.run.read_episodes(iteration)]
        assert {origin.start for origin in origins} <= known
    whole = start(name="whole")
    whole.train(again, ToyWorkplace, collected=collected)
    assert [group.trajectories for group in whole.run.read_groups(2)] == [group.trajectories for group in run.run.read_groups(2)]
