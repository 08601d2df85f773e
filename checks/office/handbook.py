"""The tables of docs/office.md, generated from the rules themselves, so that the page cannot say something else than the code.

`python -m checks.office.handbook docs/office.md` rewrites what is between `<!-- NAME:begin -->` and `<!-- NAME:end -->`
for every table of this module and leaves the rest of the page alone.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from checks.office.behaviours import METRICS
from checks.office.players.exploiters import ALL, EXPLOITS
from checks.office.recall import RECALLED
from onthejob.envs.office import reward_parts
from onthejob.envs.office.company_state import CATALOGUE, FOCI, HELD_OUT, PAINS, SIZES, TIERS
from onthejob.envs.office.events import EVENTS, HELD_OUT_EVENTS, RANDOM_EVENTS
from onthejob.envs.office.handlers import all_handlers
from onthejob.envs.office.market import PRICES, TIER_DISCOUNT, TIER_MONTHS, TIER_MULTIPLIER, VESTING_DAYS
from onthejob.envs.office.new_company import SIZE_WEIGHTS
from onthejob.envs.office.overnight import STALE_DAYS
from onthejob.envs.office.policies.partners import HELD_OUT_PARTNERS
from onthejob.envs.office.roles import ROLES
from onthejob.envs.office.scenarios import SHIPPED, Scenario, load
from onthejob.errors import ConfigError


def roles() -> str:
    """Who sits in the office."""
    rows = [(str(role), spec.person, spec.duty, "yes" if spec.trained else "no") for role, spec in ROLES.items()]
    return table(("role", "person", "duty", "trained"), rows)


def actions() -> str:
    """What each action does, in the words of its handler."""
    rows = []
    for (role, name), handler in all_handlers().items():
        serves = FOCI[handler.tag] if handler.tag >= 0 else ""
        rows.append((role, f"`{name}`", first_paragraph(handler.run), serves))
    return table(("role", "action", "effect", "focus it serves"), rows)


def product() -> str:
    """The catalogue of features."""
    rows = [(spec.name, PAINS[spec.pain], spec.fit, spec.effort) for spec in CATALOGUE]
    return table(("feature", "cures", "share of the pain", "Dev turns at velocity 1"), rows)


def sizes() -> str:
    """Accounts by size."""
    rows = [
        (size, f"{price / 100:,.0f}", f"{100 * weight:.0f} %")
        for size, price, weight in zip(SIZES, PRICES, SIZE_WEIGHTS, strict=True)
    ]
    return table(("size", "list price, dollars a month", "share of arriving leads"), rows)


def tiers() -> str:
    """Contracts."""
    rows = [
        (name, months, f"{100 * (1 - discount):.0f} %", f"{multiplier:.0f}x", days)
        for name, months, discount, multiplier, days in zip(
            TIERS, TIER_MONTHS, TIER_DISCOUNT, TIER_MULTIPLIER, VESTING_DAYS, strict=True
        )
    ]
    return table(("tier", "months paid at signing", "discount", "closing reward", "days in which it is paid"), rows)


def stage_rewards() -> str:
    """Reward of a pipeline transition, per role."""
    return table(("transition", *reward_parts.ORDER), [(name, *row) for name, row in reward_parts.STAGE_TABLE.items()])


def kpi_rewards() -> str:
    """Weight of a KPI's change, per role."""
    return table(("KPI", *reward_parts.ORDER), [(name, *row) for name, row in reward_parts.KPI_WEIGHTS.items()])


def other_rewards() -> str:
    """The remaining numbers of the reward."""
    crisis = ", ".join(f"{role} `{name}` {value:g}" for (role, name), value in reward_parts.CRISIS_TABLE.items())
    rows = [
        (
            "base, for an action that changed something: first, second, later identical of a day",
            ", ".join(map(str, reward_parts.BASE)),
        ),
        (f"crisis (satisfaction below {reward_parts.CRISIS_SATISFACTION:g}), scaled by the gap", crisis),
        *((f"action: {kind}", _per_role(line)) for kind, line in reward_parts.EFFECTS.items()),
        *((f"collaboration, to both sides: {use}", value) for use, value in reward_parts.USES.items()),
        ("paid collaborations per role and day", reward_parts.COLLAB_CAP),
        ("penalty: unusable reply", -reward_parts.INVALID),
        ("penalty, Sales: a day without work on the pipeline", -reward_parts.NO_PIPELINE_WORK),
        (f"penalty, Sales: a night of a lead left alone for {STALE_DAYS} days; losing an unworked one", -reward_parts.STALE_LEAD),
        ("penalty: promising what has not shipped, once per piece", -reward_parts.VAPORWARE),
    ]  # fmt: skip
    return table(("what", "reward"), rows)


def _per_role(line: Sequence[float]) -> str:
    return ", ".join(f"{role} {value:g}" for role, value in zip(reward_parts.ORDER, line, strict=True) if value)


def scenario_stocks(names: Sequence[str] = SHIPPED) -> str:
    """Where each scenario starts."""
    loaded = [load(name) for name in names]
    plain = [
        field.name
        for field in dataclasses.fields(Scenario)
        if field.name not in ("name", "title", "segment_mix", "bugs", "schedule", "goal")
    ]
    rows: list[Sequence[Any]] = [(name, *(getattr(scenario, name) for scenario in loaded)) for name in plain]
    rows.append(("segments", *("/".join(f"{share:g}" for share in scenario.segment_mix) for scenario in loaded)))
    rows.append(("bugs", *("/".join(str(n) for n in scenario.bugs.values()) for scenario in loaded)))
    rows.append(("goal at the end", *(", ".join(f"{k} >= {v:,g}" for k, v in scenario.goal.items()) for scenario in loaded)))
    rows.append(("calendar", *("; ".join(f"day {event.day} {event.kind}" for event in scenario.schedule) for scenario in loaded)))
    return table(("start", *(f"`{name}`" for name in names)), rows)


def held_out_stocks() -> str:
    """Where the scenarios start that no training may see."""
    return scenario_stocks(HELD_OUT)


def partners() -> str:
    """Colleagues that no training may seat."""
    return table(("partner", "how it works"), [(f"`{name}`", _told(player)) for name, player in HELD_OUT_PARTNERS.items()])


def behaviours() -> str:
    """What is said to emerge, and what is counted."""
    return table(
        ("behaviour", "number"), [*((name, first_paragraph(metric)) for name, metric in METRICS.items()), *RECALLED.items()]
    )


def events() -> str:
    """What happens to the company."""
    kinds = {name: "random" if name in RANDOM_EVENTS else "scheduled" for name in EVENTS}
    kinds |= dict.fromkeys(HELD_OUT_EVENTS, "held out")
    return table(
        ("event", "kind", "effect"), [(f"`{name}`", kinds[name], first_paragraph(effect)) for name, effect in EVENTS.items()]
    )


def exploiters() -> str:
    """Players that try to earn without working."""
    rows = [
        (exploit.number or "", f"`{name}`", _told(exploit.player), "all" if exploit.seats == ALL else ", ".join(exploit.seats))
        for name, exploit in EXPLOITS.items()
    ]
    return table(("no.", "player", "what it tries", "alone in the seats"), rows)


def _told(player: Callable[..., Any]) -> str:
    """What a player tries, without the number that has a column of its own."""
    return re.sub(r" \(\d+\)", "", first_paragraph(player))


TABLES: MappingProxyType[str, Callable[[], str]] = MappingProxyType({
    "roles": roles,
    "actions": actions,
    "product": product,
    "sizes": sizes,
    "tiers": tiers,
    "stage-rewards": stage_rewards,
    "kpi-rewards": kpi_rewards,
    "other-rewards": other_rewards,
    "scenarios": scenario_stocks,
    "held-out": held_out_stocks,
    "partners": partners,
    "behaviours": behaviours,
    "events": events,
    "exploiters": exploiters,
})  # fmt: skip


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(cell(item) for item in row) + " |" for row in rows)])


def cell(value: Any) -> str:
    """One value as text."""
    if isinstance(value, float | int) and not isinstance(value, bool):
        return f"{value:,g}" if abs(value) < 10_000 else f"{value:,}"
    return str(value)


def first_paragraph(function: Callable[..., Any]) -> str:
    """A docstring up to the first blank line, in one line."""
    return " ".join((function.__doc__ or "").strip().split("\n\n")[0].split())


def replace_section(text: str, name: str, body: str) -> str:
    """`text` with `body` between the markers of `name`.

    Raises:
        ConfigError: the page does not have these two markers, in this order, once.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ConfigError(f"the page needs one {begin} and one {end} after it: the table is written between them. Add them.")
    pattern = re.escape(begin) + r".*" + re.escape(end)
    return re.sub(pattern, lambda _: f"{begin}\n{body}\n{end}", text, flags=re.DOTALL)


def refresh(text: str, tables: Mapping[str, Callable[[], str]] = TABLES) -> str:
    """The page with all tables as the code has them now."""
    for name, make in tables.items():
        text = replace_section(text, name, make())
    return text


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(refresh(page.read_text(encoding="utf-8")), encoding="utf-8")
