"""What the agent reads: a constant system message, the request with the file listing, then one message per turn.

The system message is the same for all tasks, so that a sampler can cache it.
"""

from __future__ import annotations

from collections.abc import Mapping

from onthejob.envs.claw.protocol import ProtocolConfig
from onthejob.envs.claw.skills import HANDBOOK
from onthejob.types import Message

DONE = "TASK_COMPLETE"
"""The plainest way to say that the task is done."""


def system_text(config: ProtocolConfig, place: str = "the workspace folder") -> str:
    """Who you are, how to answer, what persists, and with `config.handbook` which commands there are. Commands run in `place`."""
    runs = f"It runs in {place}, and you are shown its exit code and output. Files persist; cd and variables do not. "
    if config.persistent_shell:
        runs = (
            f"All blocks run in one shell, which begins in {place}, and you are shown the exit code and output of each. Files, "
            "cd, variables and background jobs persist; jobs stand still between blocks. "
        )
    rules = (
        "You work on files in a bash shell. Each turn, write one block:\n```bash\nCOMMAND\n```\n"
        f"{runs}A block may run {config.command_s:g} seconds, and there are {config.max_turns} turns. "
        f"When the task is done, write {DONE}."
    )
    if not config.handbook:
        return rules
    return "\n".join([rules, "", "Commands:", *(f"- {aim}: {command}" for aim, command in HANDBOOK.items())])


def request_text(intent: str, sizes: Mapping[str, int]) -> str:
    """The request and what is in the workspace: path -> size in bytes."""
    listing = [f"{path} ({size} bytes)" for path, size in sorted(sizes.items())]
    return "\n".join([intent, "", "Files:", *(listing or ["(none)"])])


def first_messages(
    intent: str, sizes: Mapping[str, int], config: ProtocolConfig, place: str = "the workspace folder"
) -> tuple[Message, ...]:
    """The fresh context of an episode."""
    return Message("system", system_text(config, place)), Message("user", request_text(intent, sizes))


def block(command: str) -> str:
    """A reply that runs `command`, fenced with as many backticks as it takes."""
    ticks = "```"
    for line in map(str.strip, command.split("\n")):
        if len(line) >= len(ticks) and not line.strip("`"):
            ticks = line + "`"
    return f"{ticks}bash\n{command}\n{ticks}"
