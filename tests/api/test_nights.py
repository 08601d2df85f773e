"""What frames tell of real episodes: who left and why, what belongs to the night, and that no reward is lost or told twice."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from onthejob.api.frames import NIGHT
from onthejob.api.players import Players
from onthejob.api.schema_office import Frame, Frames, Reset
from onthejob.api.world import World
from onthejob.api.worlds import Worlds
from onthejob.envs.office.company_state import TURNS_PER_DAY
from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.reward_parts import PARTS

PENALTY = PARTS.index("penalty")
EPISODES = [
    ("baseline", "heuristic", 1_000),
    ("churn", "heuristic", 1_000),
    ("viral", "expert", 1_001),
    ("churn", "random", 1_002),
]


@cache
def world(scenario: str, player: str, seed: int) -> World:
    """A company of 20 days, played to its end in this thread."""
    asked = Reset(scenario=scenario, seed=seed, days=20, seats=dict.fromkeys(SEATS, player))  # type: ignore[arg-type]
    made = Worlds(Players(), asked).get("live")
    while not made.status().done:
        made.step(None)
    return made


def told(scenario: str, player: str, seed: int) -> Frames:
    return world(scenario, player, seed).frames(0)


def accounts(frames: Sequence[Frame]) -> list[dict[int, str]]:
    """Account -> stage, after every frame."""
    found: list[dict[int, str]] = []
    for frame in frames:
        found.append({a.id: a.stage for a in frame.accounts} if frame.accounts is not None else found[-1])
    return found


@pytest.mark.parametrize("episode", EPISODES, ids=str)
def test_every_account_that_leaves_is_a_move_with_its_reason(episode: tuple[str, str, int]):
    frames = told(*episode).frames
    held = accounts(frames)
    counts = {"lost": 0, "churned": 0, "won": 0}
    for number, frame in enumerate(frames[1:], start=1):
        gone = set(held[number - 1]) - set(held[number])
        leaving = {move.id: move for move in frame.moves if move.after in ("lost", "churned")}
        assert set(leaving) == gone
        for move in leaving.values():
            assert move.before == held[number - 1][move.id]
            assert (move.reason == "unhappy") == (move.after == "churned") == (move.before == "won")
            assert (move.reason == "refused") == (frame.actor == "sales")
        for move in frame.moves:
            counts[move.after] = counts.get(move.after, 0) + 1
            assert bool(move.reason) == (move.id in leaving)
        assert (counts["lost"], counts["churned"], counts["won"]) == (frame.kpis.lost, frame.kpis.churned, frame.kpis.won)


def test_the_episodes_hold_every_reason():
    """Otherwise the test above could not fail."""
    moves = [move for episode in EPISODES for frame in told(*episode).frames for move in frame.moves]
    assert {move.reason for move in moves} == {"", "silence", "deadline", "refused", "unhappy"}


def test_silence_is_ten_days_without_contact():
    silent = 0
    for episode in EPISODES:
        frames = told(*episode).frames
        contacts = {a.id: a.contact for frame in frames for a in frame.accounts or ()}
        for frame in frames:
            for move in frame.moves:
                if move.reason in ("silence", "deadline"):
                    idle = frame.turn + 1 - contacts[move.id]
                    assert (idle >= 10 * TURNS_PER_DAY) == (move.reason == "silence")
                    silent += move.reason == "silence"
    assert silent


@pytest.mark.parametrize("episode", EPISODES, ids=str)
def test_a_night_follows_every_day_and_is_billed_to_no_turn(episode: tuple[str, str, int]):
    part = told(*episode)
    turns, day = range(part.seats.turns), TURNS_PER_DAY
    expected = [(turn, night) for turn in turns for night in ((False, True) if (turn + 1) % day == 0 else (False,))]
    assert [(frame.turn, frame.actor == NIGHT) for frame in part.frames[1:]] == expected[: len(part.frames) - 1]
    payroll = 0.0
    floor = part.frames[0].floor
    for frame, after in zip(part.frames[1:], [*part.frames[2:], None], strict=True):
        floor = frame.floor or floor
        assert floor is not None
        night = frame.actor == NIGHT
        assert (floor.ledger.get("payroll", 0.0) != payroll) == night, "wages are paid overnight"
        payroll = floor.ledger.get("payroll", 0.0)
        assert (frame.phase == NIGHT) == night
        assert frame.day == frame.turn // TURNS_PER_DAY
        assert frame.waiting == (after.actor if after is not None else "")
        charged = {role for role, line in frame.parts.items() if line[PENALTY] < 0}
        if night:
            assert (frame.text, frame.action, frame.policy, frame.valid) == ("", "", "world", True)
        else:
            assert charged <= {frame.actor}, "a turn charges only its own actor"


@pytest.mark.parametrize("episode", EPISODES, ids=str)
def test_the_frames_of_a_reply_add_up_to_what_its_step_paid(episode: tuple[str, str, int]):
    company = world(*episode)
    frames = company.frames(0).frames
    env = OfficeEnvironment(OfficeConfig(profile="full"))
    env.reset(company.task)
    texts = {frame.step: frame.text for frame in frames if frame.text}
    for number in range(1, frames[-1].step + 1):
        mine = [frame for frame in frames if frame.step == number]
        step = env.step(texts[number])
        sums = {role: sum(frame.rewards[role] for frame in mine) for role in step.rewards}
        assert sums == pytest.approx(dict(step.rewards), abs=1e-9)
        for frame in mine:
            assert {role: sum(line) for role, line in frame.parts.items()} == pytest.approx(
                {role: paid for role, paid in frame.rewards.items() if role in frame.parts}, abs=1e-9
            )
    assert env.observe() is None
    totals = {role: sum(frame.rewards[role] for frame in frames[1:]) for role in frames[1].rewards}
    assert totals == pytest.approx({role: env.state()["metrics"][f"reward_{role}"] for role in totals})


def test_taking_back_a_day_tells_its_night_again():
    company = Worlds(Players(), Reset(days=3, seed=1_003, human="hr")).get("live")
    company.play_to_person(100)
    texts = ['{"action_type": "IDLE", "target": ""}'] * 4
    for text in texts:
        company.step(text)
        company.play_to_person(100)
    before = company.frames(0).frames
    assert any(frame.actor == NIGHT for frame in before)
    assert company.undo()
    company.step(texts[0])
    company.play_to_person(100)
    assert company.frames(0).frames == before


@pytest.mark.parametrize("episode", EPISODES, ids=str)
def test_every_frame_says_why_it_paid_what_it_paid(episode: tuple[str, str, int]):
    for frame in told(*episode).frames[1:]:
        for role, line in frame.parts.items():
            for part, paid in enumerate(line):
                shares = [reason.amounts[role][part] for reason in frame.reasons if role in reason.amounts]
                assert sum(shares) == pytest.approx(paid, abs=1e-4)
                assert abs(paid) <= 1 or shares
        for move in frame.moves:
            assert [reason for reason in frame.reasons if reason.account == move.id and reason.text.startswith(move.name)]
        penalties = [(role, line[PENALTY]) for reason in frame.reasons for role, line in reason.amounts.items() if line[PENALTY]]
        assert {role for role, _ in penalties} == {role for role, line in frame.parts.items() if line[PENALTY]}
    assert told(*episode).frames[0].reasons == []
