"""Conversations out of a recorded run, for whatever eats chat messages: another trainer, a judge, a data set.

    python recipes/library_record.py runs/grpo --model DIR > chats.jsonl     # DIR: what `onthejob model fetch` printed
    python recipes/library_record.py runs/grpo --model DIR --actor sales

A record holds token ids exactly as they were sampled. Per conversation one JSON line: all of its messages, up to the last reply,
and the value that its trajectory got; lines with one key are of one group. Nothing is tokenised again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from onthejob.models.chat import ChatEncoder
from onthejob.models.replaying import replay_messages
from onthejob.record import Run


def conversations(run: Run, chat: ChatEncoder, actor: str | None = None) -> Iterator[dict[str, Any]]:
    """Every conversation of a run's groups as `messages`, with its group's key and its value; `actor`: only this role's."""
    for iteration in run.iterations():
        for group in run.read_groups(iteration, actor):
            for trajectory in group.trajectories:
                for turns in trajectory.conversations:
                    yield {
                        "key": group.key,
                        "actor": group.actor,
                        "value": trajectory.ret,
                        "messages": [message._asdict() for message in replay_messages(turns, chat)],
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
