"""Conversations out of a recorded run, for whatever eats chat messages: another trainer, a judge, a data set.

    python recipes/library_record.py runs/grpo --model DIR > chats.jsonl     # DIR: what `onthejob model fetch` printed
    python recipes/library_record.py runs/grpo --model DIR --actor sales

A record holds token ids exactly as they were sampled. Per group one JSON line: the messages that its replies answered, and each
reply with the value that it got. No template is rendered and nothing is tokenised again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from onthejob.models.chat import ChatEncoder
from onthejob.record import Run


def conversations(run: Run, chat: ChatEncoder, actor: str | None = None) -> Iterator[dict[str, Any]]:
    """The groups of a run as `messages`, and `replies` with their values; `actor`: only this role's."""
    for iteration in run.iterations():
        for group in run.read_groups(iteration, actor):
            members = [(trajectory.turns[0], trajectory.ret) for trajectory in group.trajectories if trajectory.turns]
            if members:
                yield {
                    "key": group.key,
                    "actor": group.actor,
                    "messages": [message._asdict() for message in chat.messages(members[0][0].prompt_ids)],
                    "replies": [{"content": chat.decode(turn.completion.token_ids), "value": value} for turn, value in members],
                }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--model", type=Path, required=True, help="folder of the model whose tokenizer sampled it")
    parser.add_argument("--actor", help="only this role")
    arguments = parser.parse_args(argv)
    chat = ChatEncoder(AutoTokenizer.from_pretrained(arguments.model))
    with Run.open(arguments.run, readonly=True) as run:
        empty = True
        for conversation in conversations(run, chat, arguments.actor):
            print(json.dumps(conversation, ensure_ascii=False))
            empty = False
    if empty:
        raise SystemExit(f"{arguments.run} recorded no group{f' of {arguments.actor}' if arguments.actor else ''}.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
