"""The messages of a recorded trajectory, for programs that read chats: another trainer, a judge, a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onthejob.errors import ContractError
from onthejob.types import Message, Trajectory, Turn

if TYPE_CHECKING:
    from onthejob.models.chat import ChatEncoder


def replay_messages_from_trajectory(trajectory: Trajectory, chat: ChatEncoder) -> tuple[Message, ...]:
    """The whole conversation of a trajectory: all that its model was shown, and all that it replied, in order.

    Ends with the last reply; what the environment answered to that is in no prompt. Every reply is the text of its sampled ids,
    without the end-of-turn token, also where that text looks like a message of its own.

    Args:
        trajectory: as recorded, whose turns hold token ids.
        chat: of the tokenizer with which it was sampled.

    Raises:
        ContractError: there are no turns or no token ids, the turns are several conversations (see `Trajectory.conversations`,
            `replay_messages`), or the ids are not of a context of this chat template.
    """
    conversations = trajectory.conversations
    if len(conversations) != 1:
        what = "several conversations" if conversations else "no turn"
        raise ContractError(
            f"a trajectory of {trajectory.actor!r} in {trajectory.task_id} holds {what}: {len(trajectory.turns)} turns, "
            f"{len(conversations)} contexts. Replay each of `trajectory.conversations` with `replay_messages`."
        )
    return replay_messages(conversations[0], chat)


def replay_messages(turns: Sequence[Turn], chat: ChatEncoder) -> tuple[Message, ...]:
    """As `replay_messages_from_trajectory`, of the turns of one conversation.

    Raises:
        ContractError: a turn has no token ids or does not continue the one before, or these are not ids of this chat template.
    """
    if not turns:
        raise ContractError("a conversation needs at least one turn, got none. Pass one of `trajectory.conversations`.")
    for turn in turns:
        if not turn.prompt_ids or not turn.completion.token_ids:
            raise ContractError(
                f"a turn of {turn.policy_version} has no token ids, so the messages that it answered are not recorded with it. "
                "Replay trajectories of policies that read tokens."
            )
    opening = chat.messages(turns[0].prompt_ids)
    messages = list(opening)
    for number, turn in enumerate(turns):
        if number:
            messages += _appended(turns[0], turns[number - 1], turn, chat)[len(opening) + 1 :]
        messages.append(Message("assistant", chat.decode(turn.completion.token_ids)))
    return tuple(messages)


def _appended(first: Turn, before: Turn, turn: Turn, chat: ChatEncoder) -> tuple[Message, ...]:
    """The first prompt, a reply without any control token, and what was appended to the context between two turns.

    What was sampled may look like the beginning of a message, so that nothing is read behind it.
    """
    said = before.prompt_ids + before.completion.token_ids
    if turn.prompt_ids[: len(said)] != said:
        raise ContractError("these turns are not one conversation: a prompt does not begin with the turn before it.")
    plain = chat.reply_ids("-")
    if said[-1] not in chat.end_ids:
        plain = plain[:-1]  # A reply that was cut is closed by what follows it.
    return chat.messages((*first.prompt_ids, *plain, *turn.prompt_ids[len(said) :]))
