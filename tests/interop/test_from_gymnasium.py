"""`gymnasium:ID`: Gymnasium's own games in text, and one of another package."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gymnasium", reason="needs the extra gymnasium")

import gymnasium
import numpy as np
from gymnasium import spaces

from onthejob.cli import main
from onthejob.envs.running import Forking, running
from onthejob.errors import ConfigError
from onthejob.interop.from_gymnasium import Gymnasium
from onthejob.interop.spaces import Unusable, actions_of, mask_of, shown
from onthejob.keys import keyed_choice
from onthejob.plugins import anchored, resolve
from onthejob.testing import check_environment
from onthejob.testing.env_check import check_env
from onthejob.types import Split, StopReason

DRY = '{"is_slippery": false}'

OWN = '''
import gymnasium
import numpy as np
from gymnasium import spaces

class Story(gymnasium.Env):
    """Open the door with the word that the sign shows."""
    observation_space = spaces.Text(200, charset="".join(map(chr, range(32, 127))))
    action_space = spaces.Text(20, charset="abcdefghijklmnopqrstuvwxyz ")
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.word = ["apple", "stone"][int(self.np_random.integers(2))]
        return f"A sign reads: {self.word}.", {}
    def step(self, action):
        won = action == self.word
        return "Nothing happens." if not won else "It opens.", float(won), won, False, {"is_success": won}

class Picture(gymnasium.Env):
    observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = spaces.Dict({"a": spaces.Discrete(2)})
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((64, 64, 3), np.uint8), {}
    def step(self, action):
        return np.zeros((64, 64, 3), np.uint8), float(action["a"]), True, False, {}

for name, kind in (("own/Story-v0", Story), ("own/Picture-v0", Picture)):
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=kind)

def described(observation, info, env):
    return f"a picture of {observation.shape[0]} rows"

def chosen(reply, env):
    if reply.strip() not in ("left", "right"):
        raise ValueError("Say left or right.")
    return {"a": int(reply.strip() == "right")}
'''


def of(what: str, **options: Any) -> Gymnasium:
    return resolve(f"gymnasium:{what}")(**options)  # type: ignore[return-value]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own_games.py"
    file.write_text(OWN, encoding="utf-8")
    return file


@pytest.mark.parametrize("name", ["FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "CliffWalking-v1"])
def test_the_package_pays_what_it_pays_when_it_is_stepped_directly(name: str):
    env = of(name, max_turns=30)
    env.open()
    run, plain = running(env), gymnasium.make(name)
    for task in env.tasks(Split.TRAIN)[:3]:
        seen, (_, info) = run.reset(task), plain.reset(seed=task.seed)
        for turn in range(30):
            reply = keyed_choice(seen.view["legal"], task.seed, turn)
            assert info.get("action_mask") is None or info["action_mask"][int(reply)]
            step = run.step(reply)
            _, reward, terminated, truncated, info = plain.step(int(reply))
            assert step.rewards.get("agent", 0.0) == float(reward)
            assert step.stop is (StopReason.DONE if terminated else StopReason.MAX_TURNS if truncated or turn == 29 else None)
            if step.observation is None:
                break
            seen = step.observation
    env.close()


def test_the_promises_of_every_environment_hold():
    env = of("FrozenLake-v1", names="left,down,right,up", max_turns=12)
    assert check_env(env, tasks=1).forks > 0


def test_pictures_masks_and_names_are_shown():
    lake = running(of("FrozenLake-v1", names="left,down,right,up", kwargs=DRY, instructions="Reach G."))
    first = lake.reset(lake.env.tasks(Split.DEV)[0])
    rules, reply, picture = first.messages[0].content.split("\n", 2)
    assert (rules, reply) == ("Reach G.", "Reply with one of: left, down, right, up.")
    assert picture.splitlines()[0] == "[red S]FFF"
    refused = lake.step("jump")
    assert (refused.valid, refused.rewards) == (False, {"agent": -1.0})
    assert "Reply with one of: left, down, right, up." in refused.observation.messages[0].content  # type: ignore[union-attr]
    for move in ("down", " Down", "right", "right\n", "down"):
        lake.step(move)
    assert lake.step("right").rewards == {"agent": 1.0}
    taxi = running(of("Taxi-v4"))
    seen = taxi.reset(taxi.env.tasks(Split.TRAIN)[0])
    assert len(seen.view["legal"]) < 6
    assert f"Possible now: {', '.join(seen.view['legal'])}." in seen.messages[0].content
    impossible = next(str(action) for action in range(6) if str(action) not in seen.view["legal"])
    assert not taxi.step(impossible).valid


def test_another_world_is_other_luck_and_a_fork_repeats_it():
    env = of("FrozenLake-v1")
    run = Forking(env)
    run.reset(env.tasks(Split.TRAIN)[0])
    texts = set()
    for world in range(8):
        branches = [run.branch("2", world=world, turns=3) for _ in range(2)]
        assert branches[0] == branches[1]
        fork = run.fork()
        fork.env._now.world = world
        texts.add(fork.step("2").observation.messages[0].content)  # type: ignore[union-attr]
    assert len(texts) > 1


def test_episodes_side_by_side_do_not_share_an_object():
    env = of("CliffWalking-v1", kwargs="{}")
    env.open()
    task = env.tasks(Split.TRAIN)[0]
    one, other = running(env), running(env)
    one.reset(task)
    other.reset(task)
    other.step("0")
    moved = one.step("0").observation
    alone = running(of("CliffWalking-v1"))
    alone.reset(task)
    assert moved == alone.step("0").observation
    kept: Any = one.env
    game = kept.game
    assert game is not other.env.game  # type: ignore[attr-defined]
    del kept
    one.reset(task)
    assert one.env.game is game  # type: ignore[attr-defined]
    env.close()


def test_another_package_is_played():
    pytest.importorskip("minigrid", reason="needs minigrid")
    env = of("minigrid:MiniGrid-Empty-5x5-v0", names="left,right,forward,pickup,drop,toggle,done", max_turns=20)
    assert check_environment(lambda: running(env), env.tasks(Split.TRAIN)[:1], choose=_random, branch_turns=2).forks
    seen = running(env).reset(env.tasks(Split.TRAIN)[0])
    assert json.loads(seen.messages[0].content.split("\n", 1)[1])["mission"] == "get to the green goal square"
    walk = running(env)
    walk.reset(env.tasks(Split.TRAIN)[0])
    for move in ("forward", "forward", "right", "forward"):
        walk.step(move)
    assert walk.step("forward").rewards["agent"] > 0.9


def _random(seen: Any, seed: int) -> str:
    return keyed_choice(seen.view["legal"], seed, "move")


def test_a_file_registers_texts_and_functions_show_and_act(own: Path, tmp_path: Path):
    story = running(of(f"{own}:own/Story-v0"))
    task = story.env.tasks(Split.TRAIN)[0]
    text = story.reset(task).messages[0].content
    assert text.startswith("Reply with a text of at most 20 characters.\nA sign reads: ")
    assert not story.step("Über").valid
    assert not story.step("").valid
    assert story.step(text.rsplit(" ", 1)[1].strip(".")).rewards == {"agent": 1.0}
    assert story.state()["metrics"]["success"] == 1.0
    with pytest.raises(ConfigError, match=r"action space Dict.*--env.actions"):
        of(f"{own}:own/Picture-v0").tasks(Split.TRAIN)
    with pytest.raises(ConfigError, match=r"12,288 numbers.*--env.render"):
        of(f"{own}:own/Picture-v0", actions=f"{own}:chosen").tasks(Split.TRAIN)
    picture = running(of(f"{own}:own/Picture-v0", actions=f"{own}:chosen", render=f"{own}:described"))
    assert picture.reset(picture.env.tasks(Split.DEV)[0]).messages[0].content == "a picture of 64 rows"
    assert picture.step("up").observation.messages[0].content == "Say left or right."  # type: ignore[union-attr]
    assert picture.step("right").rewards == {"agent": 1.0}
    assert anchored(f"gymnasium:{own.name}:own/Story-v0") == f"gymnasium:{Path(own.name).absolute()}:own/Story-v0"


@pytest.mark.parametrize(
    ("space", "reply", "meant", "wrong"),
    [
        (spaces.Discrete(3, start=-1), " 0 ", 0, ["2", "", "1.0"]),
        (spaces.MultiDiscrete([2, 3], start=[0, 5]), "1, 6", [1, 6], ["1", "1 8", "a b", "1 6 0", "[1, 6.5]"]),
        (spaces.MultiBinary(2), "[1, 0]", [1, 0], ["1 2", "[true, 0]"]),
        (spaces.Box(-1.0, 1.0, (2,)), "[0.5, -1]", [0.5, -1.0], ["[2, 0]", "0.5", "[NaN, 0]", "[1e999, 0]", "[" * 5_000]),
        (spaces.Box(0, 9, (), np.int64), "7", 7, ["7.5", "10", "one"]),
    ],
    ids=str,
)
def test_spaces_have_a_written_form(space: Any, reply: str, meant: Any, wrong: list[str]):
    actions = actions_of(space, (), "here")
    made = actions.action(reply, None)
    assert space.contains(made)
    assert np.asarray(made).tolist() == meant
    for text in wrong:
        with pytest.raises(Unusable):
            actions.action(text, None)
    for text in actions.legal(None, lambda name: random.Random(3)):
        assert space.contains(actions.action(text, None))


def test_replies_in_a_row_that_are_no_action_end_the_episode():
    env = of("FrozenLake-v1", names="left,down,right,up", kwargs=DRY, invalid_limit=3)
    env.open()
    playing = running(env)
    for _ in range(2):
        playing.reset(env.tasks(Split.TRAIN)[0])
        said = [playing.step(reply) for reply in ("jump", "jump", "left", "jump", "jump", "jump")]
        assert [step.valid for step in said] == [False, False, True, False, False, False]
        assert [step.rewards for step in said] == [{"agent": -1.0}, {"agent": -1.0}, {}, *[{"agent": -1.0}] * 3]
        assert [step.stop for step in said] == [None] * 5 + [StopReason.PARSE_ERROR]
        assert said[-1].observation is None
    env.close()


def test_observations_are_written_with_few_decimals():
    seen = {"at": np.array([0.123456, 1.0], np.float32), "on": np.array([True]), "n": np.int64(3), "says": "hi", "x": (1, None)}
    assert shown(seen) == '{"at": [0.123, 1.0], "on": [1], "n": 3, "says": "hi", "x": [1, null]}'
    assert mask_of({"observation": 4, "action_mask": [1, 0]}, {}) == (4, [1, 0])
    with pytest.raises(Unusable, match="object"):
        shown({"x": object()})


@pytest.mark.parametrize(
    ("what", "options", "said"),
    [
        ("FrozenLake-v99", {}, r"v99.*Correct the ID"),
        ("no_such_module_x:Game-v0", {}, "there is no module 'no_such_module_x'"),
        ("FrozenLake-v1", {"kwargs": "[1]"}, "--env.kwargs must be a JSON object"),
        ("FrozenLake-v1", {"kwargs": '{"nothing": 1}'}, "cannot be made with --env.kwargs"),
        ("FrozenLake-v1", {"names": "left,right"}, "must give 4 different names"),
        ("Blackjack-v1", {"show": "ansi"}, "has no ansi picture"),
        ("Blackjack-v1", {"invalid_limit": 0}, "--env.invalid-limit must be >= 1, got 0"),
        ("Blackjack-v1", {"render": "nothing"}, "--env.render must be path"),
    ],
)
def test_what_cannot_be_played_is_refused_at_once(what: str, options: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        of(what, **options).tasks(Split.TRAIN)


def test_the_commands_take_it(capsys: pytest.CaptureFixture[str]):
    arguments = ["gymnasium:FrozenLake-v1", "--env.kwargs", DRY, "--env.max-turns", "10"]
    assert main(["env", "check", *arguments, "--tasks", "2", "--group", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["errors"] == []
