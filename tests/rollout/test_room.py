"""What does not fit a model's context is refused before play, or ends its own episode; nothing is asked beyond it."""

from __future__ import annotations

import pytest

from onthejob.errors import ConfigError
from onthejob.models.chat import ChatEncoder
from onthejob.models.scripted import ScriptedPolicy
from onthejob.rollout.branch import BranchConfig, BranchScorer, Scales
from onthejob.rollout.collect import CollectConfig, Collector
from onthejob.rollout.library import SnapshotLibrary
from onthejob.rollout.play import play
from onthejob.rollout.room import check_room
from onthejob.testing import (
    ScriptedTokens,
    ToyShell,
    ToyWorkplace,
    heuristic_reply,
    shell_tasks,
    tiny_tokenizer,
    toy_tasks,
)
from onthejob.types import Sampling, StopReason

SAMPLING = Sampling(max_new_tokens=8)
TOKENIZER = tiny_tokenizer()
HEURISTIC = ScriptedPolicy(heuristic_reply, version="heuristic")


def shell(window: int | None, *, count: int = 1):
    policy = ScriptedTokens(TOKENIZER, lambda observation, seed: "ls")
    return play(
        [ToyShell() for _ in range(count)], shell_tasks(count, max_turns=6), {"agent": policy}, SAMPLING, seed=0,
        encoder=ChatEncoder(TOKENIZER, window=window), max_turns=9,
    )  # fmt: skip


def test_a_conversation_that_outgrows_the_context_ends_before_it_is_asked_beyond_it():
    (whole,) = shell(None)
    lengths = [len(turn.prompt_ids) for turn in whole.trajectories["agent"].turns]
    # The third prompt fits to the token, the fourth does not.
    (cut,) = shell(lengths[2] + SAMPLING.max_new_tokens)
    assert (cut.stop, cut.turns, cut.error) == (StopReason.CONTEXT, 3, None)
    assert cut.trajectories["agent"].turns == whole.trajectories["agent"].turns[:3]
    assert cut.stop.truncated
    # It costs its own episode only.
    assert whole.stop is StopReason.MAX_TURNS


def test_play_is_refused_when_no_episode_can_begin():
    with pytest.raises(ConfigError, match=r"no episode can begin: .* up to 8 tokens, exceeds the model's context of 20"):
        shell(20, count=2)


def test_the_first_prompt_of_every_actor_is_checked_before_play():
    chat = ChatEncoder(TOKENIZER)
    task, partners = toy_tasks(1)[0], dict.fromkeys(("maker", "seller"), HEURISTIC)
    env = ToyWorkplace()
    made = env.reset(task)
    lengths = {made.actor: len(chat.encode(made.messages))}
    while len(lengths) < 2:
        following = env.step(heuristic_reply(env.observe(), 0)).observation  # type: ignore[arg-type]
        assert following is not None
        lengths.setdefault(following.actor, len(chat.encode(following.messages)))
    most = max(lengths, key=lambda actor: lengths[actor])

    def check(window: int, *actors: str) -> None:
        encoder = ChatEncoder(TOKENIZER, window=window)
        check_room(encoder, ToyWorkplace, task, actors=actors, partners=partners, sampling=SAMPLING)

    check(lengths[most] + 8, "maker", "seller")
    with pytest.raises(ConfigError, match=f"the first prompt of {most} has {lengths[most]} tokens; with a reply of up to 8 it"):
        check(lengths[most] + 7, "maker", "seller")
    check(lengths[most] + 7, *(actor for actor in lengths if actor != most and lengths[actor] < lengths[most]))


def test_segments_end_where_their_prompts_exceed_the_context():
    def collected(window: int | None):
        policies = {actor: ScriptedTokens(TOKENIZER, heuristic_reply, version=f"{actor}@0001") for actor in ("maker", "seller")}
        with BranchScorer(ToyWorkplace) as scorer:
            collector = Collector(
                ToyWorkplace, scorer, config=CollectConfig(episodes=2, segment_turns=6, partner_share=0.0),
                branch=BranchConfig(group_size=2, turns=4, worlds=2), scales={"maker": Scales(), "seller": Scales()},
                trained=("maker", "seller"), partners=dict.fromkeys(("maker", "seller"), HEURISTIC),
                encoder=ChatEncoder(TOKENIZER, window=window),
            )  # fmt: skip
            return collector.collect(toy_tasks(2), policies, SAMPLING, library=SnapshotLibrary(), seed=5, prefix="it0001")

    whole = collected(None)
    lengths = [len(group.trajectories[0].turns[0].prompt_ids) for group in whole.groups]
    room = max(lengths) - 1 + SAMPLING.max_new_tokens
    cut = collected(room)
    assert {episode.stop for episode in cut.episodes} == {StopReason.CONTEXT}
    assert 0 < len(cut.groups) < len(whole.groups)
    assert all(len(group.trajectories[0].turns[0].prompt_ids) < max(lengths) for group in cut.groups)
    assert cut.dropped == 0
