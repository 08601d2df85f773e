"""A company in the terminal: a line per turn and night, and below it what it was paid for, in the words that the viewer shows."""

from __future__ import annotations

import textwrap

from onthejob.envs.office.actions import Action
from onthejob.envs.office.company_state import TURNS_PER_DAY, CompanyState
from onthejob.envs.office.fast_play import NIGHT
from onthejob.envs.office.reward_parts import TurnLog, team_reward
from onthejob.envs.office.reward_reasons import RewardReason, reasons
from onthejob.envs.office.simulator import phase_of

MENTIONED = 0.2
"""Smallest amount for which a reason has a line."""
PLACE = 26
"""Column in which texts begin."""


class OfficeLines:
    """Spectator of a company that keeps lines until they are taken."""

    def __init__(self, *, role: str = "", width: int = 80) -> None:
        """Take what to tell.

        Args:
            role: whose rewards the reasons are about; empty for those of each turn's actor, and of the team for a night.
            width: columns, at least 60; longer texts continue on the next line.
        """
        self._role, self._width = role, max(width, 60)
        self._lines: list[str] = []
        self._phase = ""

    def __call__(self, s: CompanyState, role: str, action: Action | None, log: TurnLog) -> None:
        phase, paid = phase_of(log.turn), log.rewards()
        if role == NIGHT:
            self._phase = ""
            self._add("night", "team", team_reward(paid), f"after day {log.turn // TURNS_PER_DAY + 1}")
        else:
            if phase != self._phase:
                self._lines.append(f"Day {log.turn // TURNS_PER_DAY + 1}, {phase}")
                self._phase = phase
            self._add(str(log.turn), role, paid[role], did(action))
        whose = self._role or role
        for reason in reasons(s, log):
            amount = reason.team if whose == NIGHT else reason.of(whose)
            if abs(amount) >= MENTIONED:
                self._reason(amount, reason)

    def take(self) -> list[str]:
        """The lines since the last call."""
        taken, self._lines = self._lines, []
        return taken

    def _add(self, place: str, who: str, paid: float, what: str) -> None:
        # Adding 0 takes the sign from a negative zero.
        self._wrap(f"{place:>5} {who:<10} {round(paid, 2) + 0.0:+7.2f}  ", what)

    def _reason(self, amount: float, reason: RewardReason) -> None:
        whose = f"{self._role} " if self._role else ""
        self._wrap(f"{whose}{amount:+.2f}".rjust(PLACE - 2) + "    ", reason.text)

    def _wrap(self, first: str, text: str) -> None:
        """Add `text` after `first`, in as many lines as it takes."""
        rest = " " * len(first)
        self._lines += textwrap.wrap(text, self._width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def did(action: Action | None) -> str:
    """An action in one line."""
    if action is None:
        return "invalid reply"
    words = [action.action_type, action.target, *map(str, action.parameters.values())]
    said = f'to {action.message_to}: "{action.message}"' if action.message_to else ""
    return " ".join(word for word in (*words, said) if word)
