"""Demonstrations to imitate: read from files, bundles of groups and collected turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from onthejob.commands.bundle_groups import bundled_groups, check_tokens
from onthejob.commands.collected_runs import load_collected
from onthejob.errors import ConfigError, ContractError
from onthejob.files import json_lines
from onthejob.learn.sft import Example
from onthejob.models.message_json import read_messages, read_tool, text_of
from onthejob.types import Message, StopReason, ToolSpec, Turn

if TYPE_CHECKING:
    from onthejob.models.chat import ChatEncoder

Mark = Literal["expert", "random", "near-miss", "negative"]
MARKS: tuple[Mark, ...] = ("expert", "random", "near-miss", "negative")
Kept = TypeVar("Kept")


def demonstration_files(folder: Path, roles: Sequence[str]) -> dict[str, Path]:
    """Role -> its file."""
    found = {path.stem: path for path in sorted(folder.glob("[a-z]*.jsonl"))}
    if not found:
        raise ConfigError(f"{folder} holds no demonstrations (ROLE.jsonl). `onthejob collect --out {folder}` makes them.")
    unknown = [role for role in roles if role not in found]
    if unknown:
        raise ConfigError(f"{folder} has no demonstrations of {', '.join(unknown)}; it has {', '.join(found)}.")
    return {role: path for role, path in found.items() if not roles or role in roles}


class Demonstration(NamedTuple):
    """One line of a demonstrations file."""

    messages: tuple[Message, ...]
    """The request; of a conversation, the replies too."""
    reply: str | None
    """The reply of a decision; None for a conversation, whose replies are the assistant's messages."""
    marked: Mark
    weight: float
    name: str
    """Name of the conversation, unique among all files; empty for a decision."""
    line: int
    """In the file, from 1; of a collected turn its number in the run."""
    tools: tuple[ToolSpec, ...] = ()
    """Those that may be called."""
    sampled: tuple[Turn, ...] = ()
    """With a bundle or a collected turn: the turns of one conversation, whose tokens are imitated as they are; `messages` is
    empty then."""


def encoded(chat: ChatEncoder, file: Path, demonstrations: Sequence[Demonstration]) -> list[Example]:
    """What is imitated of a file's demonstrations, as token ids."""
    examples: list[Example] = []
    longer: dict[int, int] = {}
    for shown in demonstrations:
        try:
            own = examples_of(chat, shown)
        except ContractError as error:
            raise ConfigError(f"line {shown.line} of {file} cannot be imitated: {error}") from error
        size = max(len(example.prompt_ids) + len(example.completion_ids) for example in own)
        if chat.window is not None and size > chat.window:
            longer[shown.line] = size
        examples += own
    if longer:
        line = max(longer, key=lambda number: longer[number])
        raise ConfigError(
            f"{len(longer)} of {len(demonstrations)} demonstrations in {file} exceed the model's context of {chat.window} "
            f"tokens; the longest is line {line} with {longer[line]}. Shorten or remove them, or take a longer context."
        )
    return examples


def examples_of(chat: ChatEncoder, shown: Demonstration) -> list[Example]:
    """What is imitated of one demonstration, as token ids."""
    if shown.sampled:
        check_tokens(chat, shown.sampled)
        pairs = [(turn.prompt_ids, turn.completion.token_ids) for turn in shown.sampled]
        return [
            Example(prompt_ids=prompt, completion_ids=reply, marked=shown.marked, weight=shown.weight, conversation=shown.name)
            for prompt, reply in pairs
        ]
    if shown.reply is not None:
        prompt, reply = chat.encode(shown.messages, shown.tools), chat.shown_ids(shown.reply, shown.tools)
        return [Example(prompt_ids=prompt, completion_ids=reply, marked=shown.marked, weight=shown.weight)]
    return [
        Example(prompt_ids=prompt, completion_ids=reply, marked=shown.marked, weight=shown.weight, conversation=shown.name)
        for prompt, reply in chat.replies(shown.messages, shown.tools)
    ]


def read_demonstrations(file: Path, limit: int, marks: Sequence[Mark] = MARKS) -> list[Demonstration]:
    """Every line with one of `marks`, or such lines of `limit` decisions (or conversations) spread over the file."""
    decisions: dict[object, list[Demonstration]] = {}
    try:
        lines = json_lines(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}. Give a UTF-8 JSONL file with one demonstration per line.") from error
    for number, line in lines:
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or not isinstance(row.get("messages"), list):
                raise ValueError("it is no object with a list of messages")
            messages = read_messages(row["messages"])
            marked: Mark = row.get("marked", "expert")
            weight = float(row.get("weight", 1.0))
            reply = text_of(row["reply"]) if row.get("reply") is not None else None
            decision = repr((row["task"], row["turn"])) if "task" in row and "turn" in row else number
            if row.get("chat_template_kwargs"):
                raise ValueError("it has chat_template_kwargs, which would be lost")
            tools = tuple(read_tool(tool) for tool in row.get("tools") or ())
            if not messages or marked not in MARKS or not 0 < weight < float("inf"):
                raise ValueError("empty messages, an unknown mark, or a weight that is not positive")
            if reply is None and messages[-1].role != "assistant":
                raise ValueError("neither a reply nor a conversation that ends with one")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(
                f"line {number} of {file} is not a demonstration: {error}. Correct the line, or collect the file again."
            ) from error
        name = f"{file.name}, line {number}" if reply is None else ""
        if marked in marks:
            decisions.setdefault(decision, []).append(Demonstration(messages, reply, marked, weight, name, number, tools))
    if not decisions:
        raise ConfigError(f"{file} has no demonstration marked {', '.join(marks)}. Collect more, or name other marks.")
    return [row for rows in _evenly(list(decisions.values()), limit) for row in rows]


def bundled_demonstrations(
    file: Path, roles: Sequence[str], *, min_reward: float | None, limit: int
) -> dict[str, list[Demonstration]]:
    """Role -> the conversations of the better trajectories of a file of bundles, at most `limit` of a role (0: all).

    Args:
        file: of bundles.
        roles: which; none means every role that has groups.
        min_reward: trajectories of at least this return; None: those above their group's mean.
        limit: conversations of a role, taken evenly from the file.

    Raises:
        ConfigError: a role without such a trajectory.
        RecordError: the file cannot be read.
    """
    found: dict[str, list[Demonstration]] = {}
    for one in bundled_groups(file, roles):
        rows = [row for row in one.group.trajectories if row.stop is not StopReason.ERROR]
        mean = sum(row.ret for row in rows) / max(1, len(rows))
        kept = found.setdefault(one.group.actor, [])
        for index, row in enumerate(rows):
            if row.ret < min_reward if min_reward is not None else not row.ret > mean + 1e-9 * abs(mean):
                continue
            for number, turns in enumerate(row.conversations):
                name = f"{file.name}, line {one.line}, {index}.{number}"
                kept.append(Demonstration((), None, "expert", 1.0, name, one.line, sampled=turns))
    if empty := [role for role, kept in found.items() if not kept]:
        wanted = "above the mean of its group" if min_reward is None else f"of at least {min_reward:g}"
        raise ConfigError(f"{file} has no trajectory of {', '.join(empty)} with a return {wanted}. Set a lower --min-reward.")
    return {role: _evenly(kept, limit) for role, kept in found.items()}


def collected_demonstrations(
    named: str, roles: Sequence[str], *, keep_share: float, window: int, limit: int
) -> dict[str, list[Demonstration]]:
    """Role -> its better-paid turns in a run of collected turns, at most `limit` of a role (0: all).

    Args:
        named: the run's folder, or its name in `runs/`.
        roles: which; none means every role that has turns.
        keep_share: of each role's turns, in (0, 1].
        window: turns over which a role's rewards are added up.
        limit: turns of a role, taken evenly from the run.

    Raises:
        ConfigError: no such run, or a role without such a turn.
        RecordError: it is damaged.
    """
    from onthejob.train.collected import better_paid

    collected = load_collected(named, roles)
    found: dict[str, list[Demonstration]] = {turn.actor: [] for turn in collected.turns}
    for turn in better_paid(collected.returns(window), keep_share):
        found[turn.actor].append(Demonstration((), None, "expert", 1.0, "", turn.number, sampled=(turn.turn,)))
    if empty := [role for role, kept in found.items() if not kept]:
        raise ConfigError(
            f"{named} has no usable turn of {', '.join(empty)} that was paid above the mean and followed by {window} turns. "
            "Collect more, set a lower --return-turns, or name other --roles."
        )
    return {role: _evenly(kept, limit) for role, kept in found.items()}


def _evenly(rows: list[Kept], limit: int) -> list[Kept]:
    """`limit` of the rows, spread over all of them; 0 takes all."""
    return [rows[index * len(rows) // limit] for index in range(limit)] if 0 < limit < len(rows) else rows
