"""`textarena:ID`: every game of the package is played or refused, and what a player sees, is paid and draws is its own."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from onthejob.cli import main
from onthejob.envs.running import Forking, random_legal, running
from onthejob.errors import ConfigError
from onthejob.plugins import resolve
from onthejob.testing import check_env, play_env
from onthejob.types import Observation, Split, StopReason

pytest.importorskip("textarena", exc_type=ImportError)

from textarena.envs.registration import ENV_REGISTRY

from onthejob.interop.textarena import TextArena
from onthejob.interop.textarena_games import LISTED, NEWER_PYTHON, REFUSED, REFUSED_IDS, SEATS

TEXTS = (
    "hello",
    "[0]",
    "[1]",
    "[up]",
    "[a1 b2]",
    "[bet 5]",
    "[[[",
    "",
    "[0 0]",
    "[check]",
    "[Cooperate]",
    "\ud800" + "9" * 5_000,
)


def folder(game_id: str) -> str:
    spec: Any = ENV_REGISTRY[game_id]
    return str(spec.entry_point).split(".")[2]


FIRST = {folder(game_id): game_id for game_id in reversed(ENV_REGISTRY) if not game_id.endswith(("-raw", "-train"))}
"""Folder -> its first id."""


def of(game_id: str, **options: Any) -> TextArena:
    return resolve(f"textarena:{game_id}")(**options)  # type: ignore[return-value]


def begun(game_id: str, **options: Any) -> tuple[Forking, Observation]:
    env = of(game_id, **options)
    playing = running(env)
    assert isinstance(playing, Forking)
    return playing, playing.reset(env.tasks(Split.TRAIN)[0])


def said(observation: Observation) -> str:
    return "\n".join(message.content for message in observation.messages)


def in_turn(*replies: str) -> Callable[[Observation, int], str]:
    left: Iterator[str] = iter(replies)
    return lambda seen, seed: next(left)


def any_text(seen: Observation, seed: int) -> str:
    return random.Random(seed).choice(TEXTS)


def test_every_game_has_a_number_of_players_or_a_reason():
    assert len(ENV_REGISTRY) > 700
    assert set(FIRST) == set(SEATS) | set(REFUSED)
    assert not set(SEATS) & set(REFUSED)
    assert set(SEATS) >= NEWER_PYTHON | LISTED
    assert set(REFUSED_IDS) <= set(ENV_REGISTRY)


@pytest.mark.parametrize("game_id", sorted(FIRST.values()))
def test_every_game_is_played_or_refused(game_id: str):
    name = folder(game_id)
    if name in REFUSED or (name in NEWER_PYTHON and sys.version_info < (3, 12)):
        with pytest.raises(ConfigError, match=rf"textarena:{game_id} cannot be played: .*\. Choose another game"):
            of(game_id)
        return
    env = of(game_id)
    task = env.tasks(Split.DEV)[0]
    assert env.roles == tuple(f"player_{number}" for number in range(SEATS[name][0]))
    first, second = (play_env(env, task, any_text, most_turns=12, keep=True) for _ in range(2))
    assert first.rows == second.rows
    assert all(call.printed == "" for call in first.calls)


@pytest.mark.parametrize("game_id", sorted({f"{one}-train" for one in FIRST.values()} & set(ENV_REGISTRY)))
def test_every_game_is_played_with_composed_observations(game_id: str):
    try:
        env = of(game_id)
    except ConfigError:
        return
    play_env(env, env.tasks(Split.DEV)[1], any_text, most_turns=6)


@pytest.mark.parametrize(
    ("game_id", "message"),
    [
        ("Wordle-v0", "it downloads word lists of NLTK when it is imported"),
        ("GuessWho-v0-raw", "it asks a hosted model through OpenRouter"),
        ("UsedCar-v0-balanced", "the package lacks its module"),
        ("LightsOut-v0-train", "textarena:LightsOut-v0 can be played"),
        ("TicTacToe", r"TextArena has no game 'TicTacToe'\. Near it are TicTacToe-v0, "),
        ("Nothing-at-all", "Ids are those of textarena.make"),
    ],
)
def test_a_game_that_cannot_be_played_says_why(game_id: str, message: str):
    with pytest.raises(ConfigError, match=message):
        of(game_id)


def test_the_number_of_players_is_an_option():
    assert of("LiarsDice-v0", seats=5).roles == ("player_0", "player_1", "player_2", "player_3", "player_4")
    env = of("LiarsDice-v0", seats=5)
    played = play_env(env, env.tasks(Split.DEV)[0], any_text, most_turns=60)
    assert set(played.rewards) == set(env.roles)
    with pytest.raises(ConfigError, match=r"--env.seats of textarena:TicTacToe-v0 must be one of 2, got 3"):
        of("TicTacToe-v0", seats=3).tasks(Split.DEV)
    with pytest.raises(ConfigError, match=r"Snake-v0 cannot begin with 15 players: Board 5x5 is too small"):
        of("Snake-v0", seats=15).tasks(Split.DEV)


def test_one_player_finds_a_number_by_the_hints():
    env = of("GuessTheNumber-v0")
    for task in env.tasks(Split.TEST)[:5]:
        bounds = [1, 20]

        def halve(seen: Observation, seed: int, bounds: list[int] = bounds) -> str:
            text, middle = said(seen), sum(bounds) // 2
            if "number is higher" in text:
                bounds[0] = middle + 1
            elif "number is lower" in text:
                bounds[1] = middle - 1
            return f"[{sum(bounds) // 2}]"

        played = play_env(env, task, halve)
        assert (played.rewards, played.invalid, played.stop) == ({"player_0": 1.0}, 0, StopReason.DONE)


def test_two_players_read_texts_of_their_own_and_one_wins():
    playing, seen = begun("TicTacToe-v0")
    assert seen.actor == "player_0"
    assert "You are Player 0" in said(seen)
    assert seen.fresh
    second = playing.step("[0]").observation
    assert second is not None
    assert second.actor == "player_1"
    assert "You are Player 1" in said(second)
    assert "[Player 0] [0]" in said(second)
    third = playing.step("[3]").observation
    assert third is not None
    assert not third.fresh
    # What it said itself stands in its conversation already, and its rules do too.
    assert "[Player 1] [3]" in said(third)
    assert "[Player 0] [0]" not in said(third)
    assert "You are Player" not in said(third)
    for reply in ("[1]", "[4]"):
        assert playing.step(reply).rewards == {}
    end = playing.step("[2]")
    assert end.observation is None
    assert (end.rewards, end.valid, end.stop) == ({"player_0": 1.0, "player_1": -1.0}, True, StopReason.DONE)


def test_an_unusable_reply_is_treated_as_the_game_does():
    playing, _ = begun("TicTacToe-v0")
    again = playing.step("the middle")
    assert (again.valid, again.rewards) == (False, {})
    assert again.observation is not None
    assert again.observation.actor == "player_0"
    assert "attempted an invalid move" in said(again.observation)
    end = playing.step("the middle")
    assert (end.valid, end.rewards, end.observation) == (False, {"player_0": -1.0, "player_1": 1.0}, None)


def test_hidden_cards_stay_hidden():
    env = of("KuhnPoker-v0")
    met = set()
    for task in env.tasks(Split.TRAIN)[:12]:
        playing = running(env)
        first = playing.reset(task)
        second = playing.step("[check]").observation
        assert second is not None
        cards = {seen.actor: set(re.findall(r"Your card is: '(\w)'", said(seen))) for seen in (first, second)}
        assert [len(found) for found in cards.values()] == [1, 1]
        assert cards["player_0"] != cards["player_1"]
        met.add(tuple(sorted((role, *found) for role, found in cards.items())))
    assert len(met) > 3


def test_a_game_is_made_with_the_arguments_that_are_given():
    env = of("KuhnPoker-v0", kwargs='{"max_rounds": 1}')
    playing = running(env)
    seen = playing.reset(env.tasks(Split.TRAIN)[0])
    assert "in a 1 round game" in said(seen)
    playing.step("[check]")
    end = playing.step("[check]")
    assert end.observation is None
    assert sorted(end.rewards.values()) == [-1.0, 1.0]


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ("[1]", "--env.kwargs must be a JSON object"),
        ('{"rounds": 1}', "KuhnPoker-v0 cannot begin with 2 players and --env.kwargs"),
    ],
)
def test_arguments_that_a_game_does_not_take_are_refused(kwargs: str, told: str):
    with pytest.raises(ConfigError, match=re.escape(told)):
        of("KuhnPoker-v0", kwargs=kwargs).tasks(Split.TRAIN)


def test_composed_observations_begin_a_new_context_in_every_turn():
    playing, seen = begun("ConnectFour-v0-train")
    for column in "0123":
        assert seen.fresh
        assert "Player" in said(seen)
        step = playing.step(f"[col {column}]")
        assert step.observation is not None
        assert step.valid
        seen = step.observation


def test_games_do_not_disturb_each_other_nor_the_global_generators():
    env = of("PigDice-v0")
    task, other = env.tasks(Split.TRAIN)[:2]
    alone = play_env(env, task, lambda *_: "[roll]", most_turns=20, keep=True)
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()
    one, two = running(env), running(env)
    texts = [said(one.reset(task))]
    two.reset(other)
    for _ in range(20):
        step = one.step("[roll]")
        two.step("[roll]")
        assert step.observation is not None
        texts.append(said(step.observation))
    assert texts == [row[0][1][0][1] if number else row[1][0][1] for number, row in enumerate(alone.rows)]
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


@pytest.mark.parametrize("game_id", ["KuhnPoker-v0", "PigDice-v0-train", "FifteenPuzzle-v0"])
def test_they_keep_the_promises_of_every_environment(game_id: str):
    found = check_env(of(game_id, max_turns=12))
    assert found.forks > 0


def test_worlds_have_luck_of_their_own():
    playing, _ = begun("PigDice-v0")

    def rolled(world: int) -> str:
        fork = playing.fork()
        fork.env._now.world = world
        step = fork.step("[roll]")
        assert step.observation is not None
        return said(step.observation)

    assert [rolled(world) for world in (1, 2, 3)] == [rolled(world) for world in (1, 2, 3)]
    assert len({rolled(world) for world in range(1, 9)}) > 2


@pytest.mark.parametrize("game_id", sorted(FIRST[name] for name in LISTED))
def test_a_random_player_is_offered_legal_moves_only(game_id: str):
    env = of(game_id, max_turns=40)
    for task in env.tasks(Split.TRAIN)[:3]:
        played = play_env(env, task, random_legal)
        assert played.legal
        assert played.invalid == 0


def test_a_game_that_fails_is_lost_by_who_made_it_fail():
    # After two unusable replies this game pays a text.
    env = of("Countdown-v0")
    played = play_env(env, env.tasks(Split.DEV)[0], in_turn("x", "x"))
    assert (played.rewards, played.metrics["failed"], played.invalid) == ({"player_0": -1.0}, 1.0, 2)


@pytest.mark.parametrize("game_id", ["PublicGoodsGame-v0", "MarketEntryGame-v0", "Poker-v0", "SantoriniBaseFixed-v0"])
def test_a_game_that_does_not_end_with_its_players_is_ended(game_id: str):
    env = of(game_id)
    for reply in ("x", "[E]"):
        played = play_env(env, env.tasks(Split.DEV)[0], lambda *_, reply=reply: reply, most_turns=400)
        assert played.stop is not None
    assert play_env(env, env.tasks(Split.DEV)[0], lambda *_: "x").rewards["player_0"] <= 0


def test_the_commands_take_them(capsys: pytest.CaptureFixture[str]):
    assert main(["play", "textarena:TicTacToe-v0", "--policy", "random"]) == 0
    assert "player_1 reads: [GAME] You are Player 1 in Tic Tac Toe." in capsys.readouterr().out
    assert main(["env", "show", "textarena:Snake-v0", "--env.seats", "3"]) == 0
    assert "player_2" in capsys.readouterr().out
    assert main(["env", "show", "textarena:Snake-v0", "--env.seats", "16"]) == 2
