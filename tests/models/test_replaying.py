"""A recorded trajectory becomes the conversation that it was, whatever was sampled in it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onthejob.errors import ContractError
from onthejob.models.chat import ChatEncoder
from onthejob.models.replaying import replay_messages, replay_messages_from_trajectory
from onthejob.types import Completion, Message, StopReason, Trajectory, Turn

OPENING = (Message("system", "You work in a shell."), Message("user", "Count the rows."))
ANSWER = st.text(st.sampled_from("ab\n<|>é🙂7"), max_size=20)
SAMPLED = st.lists(st.integers(0, 258), min_size=1, max_size=12)
"""Ids of the byte-level tokenizer of these tests; 0 to 2 are its control tokens, so that a reply may spell a message."""


def turn(prompt: Sequence[int], sampled: Sequence[int]) -> Turn:
    completion = Completion(text="", token_ids=tuple(sampled), logprobs=(-1.0,) * len(sampled))
    return Turn(prompt_ids=tuple(prompt), completion=completion, policy_version="agent@0001")


def trajectory(turns: Sequence[Turn]) -> Trajectory:
    return Trajectory(task_id="t", actor="agent", turns=tuple(turns), rewards=(0.0,) * len(turns), stop=StopReason.MAX_TURNS)


@given(replies=st.lists(SAMPLED, min_size=1, max_size=4), answers=st.lists(ANSWER, min_size=3, max_size=3))
def test_the_whole_conversation_comes_back(tokenizer, replies: list[list[int]], answers: list[str]):
    chat = ChatEncoder(tokenizer)
    turns = [turn(chat.encode(OPENING), replies[0])]
    expected = [*OPENING, Message("assistant", chat.decode(replies[0]))]
    for reply, answer in zip(replies[1:], answers, strict=False):
        before = turns[-1]
        prompt = chat.extend(before.prompt_ids, before.completion.token_ids, [Message("user", answer)])
        turns.append(turn(prompt, reply))
        expected += [Message("user", chat.broken(answer)), Message("assistant", chat.decode(reply))]
    assert trajectory(turns).conversations == (tuple(turns),)
    assert replay_messages_from_trajectory(trajectory(turns), chat) == tuple(expected)


def test_several_contexts_and_texts_without_tokens_are_refused(chat: ChatEncoder):
    prompt, said = chat.encode(OPENING), chat.reply_ids("ls")
    apart = trajectory([turn(prompt, said), turn(prompt, said)])
    assert [len(found) for found in apart.conversations] == [1, 1]
    with pytest.raises(ContractError, match=r"several conversations: 2 turns, 2 contexts.*replay_messages"):
        replay_messages_from_trajectory(apart, chat)
    assert [replay_messages(found, chat)[-1].content for found in apart.conversations] == ["ls", "ls"]
    with pytest.raises(ContractError, match="not one conversation"):
        replay_messages(apart.turns, chat)
    with pytest.raises(ContractError, match="no turn: 0 turns"):
        replay_messages_from_trajectory(trajectory([]), chat)
    hosted = Turn(prompt_ids=(), completion=Completion(text="ls"), policy_version="openai:m")
    assert trajectory([hosted, hosted]).conversations == ((hosted,), (hosted,))
    with pytest.raises(ContractError, match="openai:m has no token ids"):
        replay_messages_from_trajectory(trajectory([hosted]), chat)
    with pytest.raises(ContractError, match="at least one turn"):
        replay_messages([], chat)
