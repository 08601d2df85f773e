"""One run on one screen: how it was left, what it was made of, whether training helped, and the newest numbers of its roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onthejob.commands.terminal import bytes_text, cell, duration_text, shown, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from onthejob.evaluate.outcomes import RunOutcome
    from onthejob.record import RunDetails, RunSummary
    from onthejob.record.notes import Notes

NEWEST = ("reward", "valid_rate", "frac_reward_zero_std", "kl", "entropy", "groups")
"""Metrics of a role on the card, where they were recorded; docs/metrics.md explains them."""
MOST_ROLES = 3
"""Roles that a list names; of more it gives the number."""


def outcome_text(outcome: RunOutcome | None) -> str:
    """The verdict on a run in a few words."""
    if outcome is None:
        return "-"
    from onthejob.evaluate.findings import About

    line = outcome.findings.of(About.RESULT)[0]
    return f"{outcome.findings.answer}, {line.text} {line.subject}"


def env_text(ref: str) -> str:
    """An environment's reference as people know it."""
    from onthejob.record.listing import short_ref

    return short_ref(ref) or "-"


def roles_text(roles: Sequence[str]) -> str:
    """Names of a few roles, or the number of many."""
    return ", ".join(roles) if len(roles) <= MOST_ROLES else f"{len(roles)} roles"


def notes_text(notes: Notes) -> str:
    """Star, tags and the first line of the note."""
    first = next(iter(notes.note.splitlines()), "")
    return " ".join(filter(None, ("\u2605" if notes.star else "", ", ".join(notes.tags), first)))


def card(details: RunDetails, outcome: RunOutcome | None, notes: Notes) -> list[RenderableType]:
    """The card of a run, in parts."""
    parts: list[RenderableType] = [Group(_heading(details.summary), _indented(_facts(details, notes)))]
    if outcome is not None:
        from onthejob.evaluate.terminal_tables import findings_block

        where = f"comparison {outcome.comparison}" if outcome.comparison else "its evaluations on dev tasks"
        parts.append(Group(findings_block(outcome.findings), _indented(Text(f"From {where}.", style="dim"))))
    if newest := _newest(details.metrics):
        parts.append(newest)
    return parts


def _heading(summary: RunSummary) -> Text:
    return Text.assemble((shown(summary.name), "bold"), f"  {summary.status}")


def _facts(details: RunDetails, notes: Notes) -> Table:
    summary, config = details.summary, details.config
    loop, learner = _table(config, "train"), _table(config, "learner")
    planned = f" of {loop['iterations']}" if "iterations" in loop else ""
    grouping = str(loop.get("grouping", ""))
    compared = f"groups of {_table(loop, 'branch')['group_size']}" if "group_size" in _table(loop, "branch") else ""
    method = (grouping, compared, f"loss {_table(learner, 'loss').get('loss')}, lr {learner['lr']:g}" if "lr" in learner else "")
    # What is set and fits a line: nested settings are in the viewer's list of the configuration.
    env = {
        name: value
        for name, value in _table(config, "env").items()
        if name not in ("ref", "fingerprint") and value not in (None, "", False) and not isinstance(value, (Mapping, list))
    }
    scores = details.metrics.get("eval", {})
    best = (
        f"{loop.get('best_metric', 'score')} {cell(scores['best_score'])} after iteration {scores['best_iteration']:.0f}"
        if "best_score" in scores
        else ""
    )
    size = bytes_text(summary.size_bytes)
    rows = {
        "progress": f"iteration {cell(summary.last_iteration)}{planned}, {duration_text(summary.seconds)}",
        "started": f"{(summary.created_at or '-')[:16].replace('T', ' ')} UTC",
        "environment": " ".join((env_text(summary.env), *(f"{name}={value}" for name, value in env.items()))),
        "model": summary.model,
        "trained from": str(config.get("init") or "the bare model"),
        "roles": ", ".join(f"{role} ({made[-1].name})" for role, made in details.adapters.items()),
        "method": ", ".join(filter(None, method)),
        "best held out": best,
        "recorded": f"{summary.groups:,} groups, {summary.turns:,} turns, {summary.episodes:,} episodes, {size}",
        "events": ", ".join(f"{count} {kind}" for kind, count in details.events.items()),
        "notes": notes_text(notes),
    }
    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim")
    made.add_column(overflow="fold")
    for name, text in rows.items():
        if text:
            made.add_row(name, shown(text))
    return made


def _newest(metrics: Mapping[str, Mapping[str, float]]) -> RenderableType | None:
    """Newest values of each role; None where nothing was recorded."""
    from onthejob.evaluate.recorded import TRAIN_SCOPE

    roles = {scope.removeprefix(TRAIN_SCOPE): found for scope, found in metrics.items() if scope.startswith(TRAIN_SCOPE)}
    names = [name for name in NEWEST if any(name in found for found in roles.values())]
    if not names:
        return None
    return table(("role, newest", *names), [(role, *(found.get(name) for name in names)) for role, found in roles.items()])


def _table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def _indented(part: RenderableType) -> Padding:
    return Padding(part, (0, 0, 0, 2), expand=False)
