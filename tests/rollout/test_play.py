"""play: rewards are conserved, contexts only grow, order does not matter, failures stay where they happened."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onthejob import progress
from onthejob.errors import ConfigError
from onthejob.models.chat import ChatEncoder
from onthejob.models.scripted import ScriptedPolicy
from onthejob.rollout.collect_episodes import episode_groups
from onthejob.rollout.episode import Episode
from onthejob.rollout.play import play
from onthejob.testing import (
    ScriptedTokens,
    ToyShell,
    ToyWorkplace,
    heuristic_reply,
    random_legal_reply,
    shell_tasks,
    tiny_tokenizer,
    toy_tasks,
)
from onthejob.types import Completion, Context, Kind, Message, Observation, Sampling, Step, StopReason, Task, TextObservation

RANDOM = ScriptedPolicy(random_legal_reply, version="random")
BOTH = {"maker": RANDOM, "seller": RANDOM}
SAMPLING = Sampling()


class Scores(ToyWorkplace):
    """Pays given rewards on given turns, to anyone, whichever role is asked: turn i pays `table[i]`, and asks `order[i]`."""

    def __init__(self, order: Sequence[str], table: Sequence[Mapping[str, float]]) -> None:
        super().__init__()
        self._order, self._table, self._at = order, table, 0

    def reset(self, task: Task) -> Observation:
        self._at = 0
        return self._ask()

    def _ask(self) -> Observation:
        return TextObservation(actor=self._order[self._at], messages=(Message("user", "Play."),))

    def step(self, reply: str) -> Step:
        rewards = self._table[self._at]
        self._at += 1
        over = self._at == len(self._order)
        return Step(rewards=rewards, observation=None if over else self._ask(), stop=StopReason.HORIZON if over else None)

    def state(self) -> Mapping[str, Any]:
        return {"metrics": {"turns": float(self._at)}}


ACTOR = st.sampled_from(["a", "b", "c"])
AMOUNT = st.integers(-8, 8).map(lambda eighths: eighths / 8)


@given(data=st.data(), order=st.lists(ACTOR, min_size=1, max_size=8))
@settings(max_examples=60)
def test_rewards_are_conserved(data: st.DataObject, order: list[str]):
    paid = st.dictionaries(st.sampled_from(["a", "b", "c", "customer"]), AMOUNT)
    table = [data.draw(paid) for _ in order]
    quiet = ScriptedPolicy(lambda observation, seed: "x", version="quiet")
    (episode,) = play([Scores(order, table)], toy_tasks(1), dict.fromkeys("abc", quiet), SAMPLING, seed=0, max_turns=99)
    for actor in ("a", "b", "c", "customer"):
        total = sum(row.get(actor, 0.0) for row in table)
        trajectory = episode.trajectories.get(actor)
        assert (trajectory.ret if trajectory else episode.unseated.get(actor, 0.0)) == total
    for actor, trajectory in episode.trajectories.items():
        assert len(trajectory.rewards) == len(trajectory.turns) == order.count(actor)


def test_early_rewards_go_to_the_first_turn_and_late_ones_to_the_last():
    table = [{"b": 1.0}, {"b": 2.0}, {"b": 4.0, "a": 8.0}, {"b": 16.0}]
    quiet = ScriptedPolicy(lambda observation, seed: "x", version="quiet")
    env = Scores(["a", "b", "b", "a"], table)
    (episode,) = play([env], toy_tasks(1), {"a": quiet, "b": quiet}, SAMPLING, seed=0, max_turns=99)
    assert episode.trajectories["b"].rewards == (3.0, 20.0)
    assert episode.trajectories["a"].rewards == (8.0, 0.0)


def _digest(episode: Episode) -> Any:
    return episode.stop, episode.metrics, [(turn.actor, turn.text, turn.rewards) for turn in episode.transcript]


def test_an_episode_does_not_depend_on_its_batch():
    tasks = toy_tasks(5)
    together = play([ToyWorkplace() for _ in tasks], tasks, BOTH, SAMPLING, seed=7, max_turns=50)
    backwards = play([ToyWorkplace() for _ in tasks], tasks[::-1], BOTH, SAMPLING, seed=7, max_turns=50)[::-1]
    alone = [play([ToyWorkplace()], [task], BOTH, SAMPLING, seed=7, max_turns=50)[0] for task in tasks]
    assert list(map(_digest, together)) == list(map(_digest, backwards)) == list(map(_digest, alone))
    other = play([ToyWorkplace() for _ in tasks], tasks, BOTH, SAMPLING, seed=8, max_turns=50)
    assert list(map(_digest, together)) != list(map(_digest, other))


def test_copies_of_one_task_differ_and_become_one_group_per_actor():
    tasks = toy_tasks(2)
    repeated = [task for task in tasks for _ in range(4)]
    episodes = play([ToyWorkplace() for _ in repeated], repeated, BOTH, SAMPLING, seed=1, max_turns=50)
    assert len({str(_digest(episode)) for episode in episodes[:4]}) > 1
    groups = episode_groups(episodes, prefix="it0000", actors=["maker", "seller"])
    assert [(group.actor, len(group)) for group in groups] == [("maker", 4), ("seller", 4)] * 2
    assert len({group.key for group in groups}) == 4


class Slow(ToyWorkplace):
    """An environment that waits, as a sandbox does."""

    def step(self, reply: str) -> Step:
        time.sleep(0.02)
        return super().step(reply)


def test_threads_step_environments_at_the_same_time_and_change_nothing():
    tasks = toy_tasks(8, days=2)
    played, seconds = [], []
    for workers in (1, 8):
        started = time.perf_counter()
        played.append(play([Slow() for _ in tasks], tasks, BOTH, SAMPLING, seed=7, max_turns=50, workers=workers))
        seconds.append(time.perf_counter() - started)
    assert list(map(_digest, played[0])) == list(map(_digest, played[1]))
    assert seconds[0] >= 8 * 4 * 0.02
    assert seconds[1] < seconds[0]
    assert all(episode.seconds >= 4 * 0.02 for episode in played[1])
    with pytest.raises(ConfigError, match="workers must be >= 1"):
        play([], [], BOTH, SAMPLING, seed=0, max_turns=5, workers=0)


class Recorder(ScriptedPolicy):
    """Counts the batch sizes it was given."""

    def __init__(self, reply, *, version: str) -> None:
        super().__init__(reply, version=version)
        self.batches: list[int] = []

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        self.batches.append(len(contexts))
        return super().act(contexts, sampling)


def test_episodes_are_batched_by_policy():
    maker, seller = Recorder(heuristic_reply, version="m"), Recorder(heuristic_reply, version="s")
    tasks = toy_tasks(6, days=3)
    play([ToyWorkplace() for _ in tasks], tasks, {"maker": maker, "seller": seller}, SAMPLING, seed=0, max_turns=50)
    assert maker.batches == seller.batches == [6, 6, 6]


class Asked(Recorder):
    """A model: it reads messages."""

    @property
    def reads(self) -> str:
        return "messages"


def test_a_model_is_asked_seldom_and_much_at_a_time_and_episodes_are_as_alone():
    orders = [list("abcabcabc"), list("bcabcabca"), list("cabcabcab"), list("abcabcabc")]
    tasks = toy_tasks(len(orders))

    def teams() -> dict[str, Recorder]:
        models = {name: Asked(lambda observation, seed: f"{seed}", version=name) for name in "ab"}
        return models | {"c": Recorder(lambda observation, seed: f"{seed}", version="c")}

    def scored(order: list[str]) -> Scores:
        return Scores(order, [{"a": turn / 4} for turn in range(len(order))])

    together = teams()
    episodes = play(list(map(scored, orders)), tasks, together, SAMPLING, seed=0, max_turns=99)
    alone = [
        play([scored(order)], [task], teams(), SAMPLING, seed=0, max_turns=99)[0]
        for order, task in zip(orders, tasks, strict=True)
    ]
    assert list(map(_digest, episodes)) == list(map(_digest, alone))
    # Turn by turn it would be [2, 1, 1] three times, as only the first and the last episode ask alike.
    assert sum(together["a"].batches) == sum(together["b"].batches) == 12
    assert len(together["a"].batches) <= 5
    assert len(together["b"].batches) <= 5


def test_an_append_only_conversation_keeps_what_was_sampled():
    tokenizer = tiny_tokenizer()
    replies = ["w\u00e9ird  \u0501", "write red", "ls", "done"]
    policy = ScriptedTokens(tokenizer, lambda observation, seed: replies.pop(0))
    (episode,) = play(
        [ToyShell()], shell_tasks(1), {"agent": policy}, SAMPLING, seed=0, encoder=ChatEncoder(tokenizer), max_turns=9
    )
    turns = episode.trajectories["agent"].turns
    assert len(turns) == 4
    assert [turn.valid for turn in turns] == [False, True, True, True]
    for before, after in itertools.pairwise(turns):
        kept = before.prompt_ids + before.completion.token_ids
        assert after.prompt_ids[: len(kept)] == kept
        assert len(after.prompt_ids) > len(kept)


def test_retries_extend_the_context_and_are_counted():
    tokenizer = tiny_tokenizer()
    policy = ScriptedTokens(tokenizer, lambda observation, seed: "??" if observation.kind is Kind.ACT else "WAIT")
    seller = ScriptedPolicy(heuristic_reply, version="heuristic")
    (episode,) = play(
        [ToyWorkplace()], toy_tasks(1, retries=1), {"maker": policy, "seller": seller}, SAMPLING, seed=0,
        encoder=ChatEncoder(tokenizer), max_turns=99,
    )  # fmt: skip
    counts = episode.actors["maker"]
    assert (counts.turns, counts.valid, counts.retries) == (10, 5, 5)
    turns = episode.trajectories["maker"].turns
    kept = turns[0].prompt_ids + turns[0].completion.token_ids
    assert turns[1].kind is Kind.RETRY
    assert turns[1].prompt_ids[: len(kept)] == kept
    assert turns[2].prompt_ids[: len(kept)] != kept
    assert episode.metrics["invalid"] == 5.0


def test_message_policies_see_the_whole_conversation():
    seen: list[tuple[str, ...]] = []

    class Texts(ScriptedPolicy):
        @property
        def reads(self) -> str:
            return "messages"

        def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
            seen.extend(tuple(message.role for message in context.messages) for context in contexts)
            return super().act(contexts, sampling)

    policy = Texts(lambda observation, seed: "ls", version="t")
    play([ToyShell()], shell_tasks(1, max_turns=3), {"agent": policy}, SAMPLING, seed=0, max_turns=9)
    assert seen == [
        ("system", "user"),
        ("system", "user", "assistant", "user"),
        ("system", "user", "assistant", "user", "assistant", "user"),
    ]


class Crashing(ToyWorkplace):
    def step(self, reply: str) -> Step:
        if self._live().turn == 3:
            raise RuntimeError("disk on fire")
        return super().step(reply)


def test_a_failing_environment_ends_only_its_own_episode():
    tasks = toy_tasks(3)
    good, bad, fine = play([ToyWorkplace(), Crashing(), ToyWorkplace()], tasks, BOTH, SAMPLING, seed=0, max_turns=50)
    assert bad.stop is StopReason.ERROR
    assert bad.error == "RuntimeError: disk on fire"
    assert bad.turns == 3
    assert good.stop is fine.stop is StopReason.HORIZON
    repeated = play([ToyWorkplace(), Crashing()], [tasks[0]] * 2, BOTH, SAMPLING, seed=0, max_turns=50)
    assert episode_groups(repeated, prefix="p", actors=["maker"]) == []


def test_a_failing_policy_ends_only_its_own_episode():
    def reply(observation: Observation, seed: int) -> str:
        if observation.view["demand"] == "low" and observation.view["day"] == 2:
            raise OSError("connection lost")
        return heuristic_reply(observation, seed)

    tasks = toy_tasks(8)
    policy = ScriptedPolicy(reply, version="shaky")
    episodes = play([ToyWorkplace() for _ in tasks], tasks, dict.fromkeys(BOTH, policy), SAMPLING, seed=0, max_turns=50)
    stops = {episode.stop for episode in episodes}
    assert stops == {StopReason.ERROR, StopReason.HORIZON}
    assert all(episode.turns == 2 for episode in episodes if episode.stop is StopReason.ERROR)


def test_the_turn_limit_cuts():
    (episode,) = play([ToyWorkplace()], toy_tasks(1), BOTH, SAMPLING, seed=0, max_turns=3)
    assert episode.stop is StopReason.MAX_TURNS
    assert episode.stop.truncated
    assert episode.turns == 3


def test_operator_mistakes_raise_at_once():
    with pytest.raises(ConfigError, match="no policy for actor 'seller'"):
        play([ToyWorkplace()], toy_tasks(1), {"maker": RANDOM}, SAMPLING, seed=0, max_turns=5)
    with pytest.raises(ConfigError, match="one environment per task"):
        play([], toy_tasks(1), BOTH, SAMPLING, seed=0, max_turns=5)
    tokens = ScriptedTokens(tiny_tokenizer(), heuristic_reply)
    with pytest.raises(ConfigError, match="encoder"):
        play([ToyWorkplace()], toy_tasks(1), {"maker": tokens, "seller": tokens}, SAMPLING, seed=0, max_turns=5)


def test_progress_of_several_episodes_is_logged(monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    monkeypatch.setattr(progress.log, "info", lambda text, *values: said.append(text % values))

    def played(what: str) -> list[Episode]:
        said.clear()
        return play([ToyWorkplace(), ToyWorkplace()], toy_tasks(2), BOTH, SAMPLING, seed=0, max_turns=3, what=what)

    quick = played("base")
    assert said == []
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    assert played("base") == quick
    # Not of their last turn, after which no one waits.
    told = "base: 2 of 2 episodes under way, at turn {} of 3, at most about 0 s left"
    assert said == [told.format(1), told.format(2)]
    played("")
    assert said == []
