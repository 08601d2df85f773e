"""A person in one seat: shows the view, the legal actions and what each turn paid; reads commands from the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from onthejob.commands.office_lines import OfficeLines
from onthejob.commands.terminal import Terminal, table
from onthejob.envs.office.env import OfficeConfig
from onthejob.office import make_office, office_of
from onthejob.rollout.by_hand import Game, Move
from onthejob.types import Observation, Policy, Task

HELP = (
    "Type a number to take that action, or raw JSON as a model would write it. undo takes the last move back, quit ends the game."
)


def play_by_hand(
    terminal: Terminal, task: Task, role: str, others: Mapping[str, Policy], out: Path, *, ask: Callable[[str], str] = input
) -> int:
    """Play `task` in the seat of `role`, then write the replay to `out`.

    Args:
        terminal: where everything is shown.
        task: which episode.
        role: the person's seat.
        others: who plays the other seats.
        out: the replay's file.
        ask: prints its argument and returns a line; EOFError ends the game like `quit`.

    Returns:
        The exit code, 0.
    """
    lines = OfficeLines(role=role, width=terminal.out.width)
    game = Game(office_of(OfficeConfig(), on_turn=lines), task, role, others)
    terminal.say(HELP)
    show_move(terminal, game.before, role, lines.take())
    while (request := game.request) is not None:
        legal = show_request(terminal, request, game.total)
        try:
            line = ask(f"{role}> ").strip()
        except EOFError:
            break
        if line in ("quit", "q", "exit"):
            break
        if line in ("undo", "u"):
            terminal.say("Taken back." if game.undo() else "There is nothing to take back.")
        elif line.isdecimal() and 1 <= int(line) <= len(legal):
            show_move(terminal, game.reply(legal[int(line) - 1]), role, lines.take())
        elif line.startswith("{"):
            show_move(terminal, game.reply(line), role, lines.take())
        else:
            terminal.say(f"Not understood: {line!r}. Type 1 to {len(legal)}, or: {HELP}")
    replay = game.replay(make_office()())
    replay.write(out)
    data = {"task": task.id, "role": role, "moves": game.moves, "return": game.total, "replay": out, "hash": replay.hash}
    terminal.result(data, "", table(("game", "value"), list(data.items())), f"Play it again: onthejob runs replay {out}")
    return 0


def show_request(terminal: Terminal, request: Observation, total: float) -> list[str]:
    """Print what the role sees and may do; returns the legal replies in the order of their numbers."""
    legal = list(request.view["legal"])
    terminal.say(f"\n{request.messages[-1].content.removesuffix('JSON:').rstrip()}")
    terminal.out.print(table(("no.", "action"), [(number, text) for number, text in enumerate(legal, start=1)]))
    terminal.say(f"Paid so far: {total:+.2f}")
    return legal


def show_move(terminal: Terminal, move: Move, role: str, lines: Sequence[str]) -> None:
    """Print what all roles did, why the person's replies could not be used, and what the role was paid for what happened."""
    for line in lines:
        terminal.say(line)
    for said, step in move.steps:
        if said.actor == role and not step.valid:
            terminal.say(f"Your reply {said.text!r} could not be used: {step.facts.get('why', '')}")
    if move.parts:
        terminal.out.print(table(("part of your reward", "paid"), [*move.parts.items(), ("sum", move.reward)]))
