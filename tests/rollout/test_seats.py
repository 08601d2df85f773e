"""Seats change hands while an episode runs, and what is trained stays trainable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from onthejob.envs.office.env import OfficeConfig, OfficeEnvironment
from onthejob.envs.office.tasks import office_tasks
from onthejob.errors import ConfigError
from onthejob.models.scripted import ScriptedPolicy
from onthejob.office_players import scripted
from onthejob.rollout.collect_episodes import collect_episodes
from onthejob.rollout.play import play
from onthejob.rollout.seats import Mode, Orders, Seats, give_order
from onthejob.testing import ScriptedTokens, ToyWorkplace, heuristic_reply, random_legal_reply, tiny_tokenizer, toy_tasks
from onthejob.types import Completion, Context, Kind, Sampling, Split

FIRST = ScriptedPolicy(heuristic_reply, version="first")
SECOND = ScriptedPolicy(random_legal_reply, version="second")


class Texts:
    """A hosted model as far as a loop can see: reads messages, returns no ids."""

    reads = "messages"

    def __init__(self, version: str = "hosted", reply: str = "WAIT") -> None:
        self.version, self._reply = version, reply

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        return [Completion(text=self._reply) for _ in contexts]


def test_a_swap_counts_from_that_roles_next_turn():
    seats = Seats({"maker": FIRST, "seller": FIRST})

    def on_turn(episode, completion, step) -> None:
        if episode.turn == 3:
            seats.swap("seller", SECOND)

    (episode,) = play([ToyWorkplace()], toy_tasks(1), seats, Sampling(), seed=0, max_turns=8, on_turn=on_turn)
    assert {turn.policy for turn in episode.transcript if turn.actor == "maker"} == {"first"}
    by_turn = {turn.index: turn.policy for turn in episode.transcript if turn.actor == "seller"}
    assert by_turn
    assert all(policy == ("first" if index < 3 else "second") for index, policy in by_turn.items())
    assert set(by_turn.values()) == {"first", "second"}


def test_a_seat_given_away_while_a_reply_is_awaited_is_recorded_under_who_replied():
    class Generous:
        version, reads = "generous", "view"

        def act(self, contexts, sampling):
            seats.swap("maker", SECOND)
            return FIRST.act(contexts, sampling)

    seats = Seats({"maker": Generous(), "seller": FIRST})
    (episode,) = play([ToyWorkplace()], toy_tasks(1), seats, Sampling(), seed=0, max_turns=6)
    makers = [turn.policy for turn in episode.transcript if turn.actor == "maker"]
    assert makers[0] == "generous"
    assert set(makers[1:]) == {"second"}


def test_a_conversation_that_goes_on_keeps_who_began_it():
    """A retry appends to what the actor was shown as messages; a player that reads tokens joins at the next request."""
    seats = Seats(dict.fromkeys(("ceo", "dev", "marketing", "sales", "content", "hr"), Texts(reply="nonsense")))
    env = OfficeEnvironment(OfficeConfig(retries=2))
    tokens = ScriptedTokens(tiny_tokenizer(), lambda observation, seed: "{}", version="tokens")

    def on_turn(episode, completion, step) -> None:
        if episode.turn == 1:
            seats.swap("ceo", tokens)
            seats.swap("dev", tokens)

    (task,) = office_tasks(Split.DEV, seeds=1, scenarios=["baseline"])
    with pytest.raises(ConfigError, match="encoder"):
        # The CEO's two retries are still the first one's; at dev's turn the new one is asked, and needs an encoder.
        play([env], [task], seats, Sampling(), seed=0, max_turns=60, on_turn=on_turn)
    assert env.state()["turn"] == 1
    assert env.observe().actor != "ceo"
    assert env.observe().kind is Kind.ACT


def test_modes_follow_what_a_policy_reads():
    tokens = ScriptedTokens(tiny_tokenizer(), lambda observation, seed: "WAIT")
    seats = Seats({"maker": FIRST, "seller": tokens, "boss": Texts()}, trained=("seller",))
    assert [seats.mode(actor) for actor in seats] == [Mode.SCRIPTED, Mode.TRAINING, Mode.LLM]
    assert seats.trained == ("seller",)
    assert seats.swap("seller", tokens) is tokens
    assert seats.mode("seller") is Mode.INFERENCE
    assert len(seats) == 3
    with pytest.raises(ConfigError, match="cannot be trained"):
        seats.swap("seller", Texts(), Mode.TRAINING)
    with pytest.raises(ConfigError, match="not llm"):
        seats.swap("seller", tokens, Mode.LLM)
    with pytest.raises(ConfigError, match="unknown role"):
        seats.swap("nobody", FIRST)
    with pytest.raises(ConfigError, match="cannot be trained"):
        Seats({"maker": Texts()}, trained=("maker",))


def test_text_only_models_cannot_be_trained():
    with pytest.raises(ConfigError, match="text without token ids"):
        collect_episodes(
            ToyWorkplace,
            toy_tasks(1),
            {"maker": Texts(), "seller": FIRST},
            Sampling(),
            group_size=2,
            trained=["maker"],
            encoder=None,
            max_turns=4,
            seed=0,
            prefix="p",
        )


def test_orders_are_seen_once_and_only_what_changed(tmp_path: Path):
    path = tmp_path / "orders.json"
    orders = Orders(path)
    assert orders.new() == {}
    give_order(path, "sales", "expert")
    assert orders.new() == {"sales": "expert"}
    assert orders.new() == {}
    assert give_order(path, "dev", "random") == {"sales": "expert", "dev": "random"}
    assert orders.new() == {"dev": "random"}
    path.write_text("[]")
    with pytest.raises(ConfigError, match="must map roles"):
        orders.new()
    path.write_text("{")
    with pytest.raises(ConfigError, match="JSON"):
        orders.new()


def test_old_orders_are_not_for_a_new_episode(tmp_path: Path):
    give_order(tmp_path / "orders.json", "sales", "expert")
    orders = Orders(tmp_path / "orders.json")
    assert orders.new() == {}
    assert scripted("expert").version == "expert"
    give_order(tmp_path / "orders.json", "dev", "random")
    assert orders.new() == {"dev": "random"}
