"""How the office presents itself to who plays it, and its figures. The rules of the company are in the scenario."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Interval

from onthejob.envs.office import prompt
from onthejob.envs.office.actions import Action, Invalid
from onthejob.envs.office.company_state import CompanyState
from onthejob.envs.office.market import company_value, pipeline_value
from onthejob.envs.office.reward_parts import TurnLog, team_reward
from onthejob.envs.office.tasks import MAX_DAYS
from onthejob.errors import ConfigError
from onthejob.setting_ranges import check_ranges

INVALID_KEY = "invalid"
"""Canonical key of every reply that does nothing because it is not usable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfficeConfig:
    """How the office presents itself. The rules of the company are in the scenario."""

    profile: str = "compact"
    """`compact` (about 250 prompt tokens, for small models) or `full` (adds team status, board, memories and reasoning)."""
    budget: Annotated[int | None, Ge(1)] = None
    """Tokens of the user message; sections of lower priority are dropped to fit. Needs a token counter. None leaves the limit to
    who reads (`OfficeObservation.within`)."""
    retries: Annotated[int, Interval(ge=0, le=8)] = 0
    """Times an unusable reply may be corrected with growing feedback, 0 to 8. Keep 0 in training, so that the policy feels it.
    The feedback appends to the actor's context and is not part of `budget`."""
    days: Annotated[int, Interval(ge=1, le=MAX_DAYS)] = 30
    """Length of an episode in days of 14 turns, 1 to 90."""
    crisis_bonus: bool = True
    """Pay the extra for churn prevention while satisfaction is low."""
    reflect: bool = False
    """Ask the actor itself to reflect every 70 turns (an extra request); otherwise reflections are deterministic."""
    reader: str = ""
    """Folder of a trained reader of claims (`onthejob.models.claims`) that judges what texts promise; empty for the linear
    weights, which cost nothing and are wrong more often. The environment must be given that reader."""
    customer_asked: bool = False
    """Ask for the customer's turns as for those of the other roles; by default its script plays them inside `step`. Branches
    continue with the script all the same. For `play` and the viewer: training and evaluation keep the script."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.profile not in prompt.PROFILES:
            raise ConfigError(f"profile must be one of {', '.join(prompt.PROFILES)}, got {self.profile!r}.")
        if self.reflect and self.profile != "full":
            raise ConfigError("reflect needs the memories of the full profile. Set profile to 'full'.")

    def check(self, *, counts: bool, reads: bool) -> None:
        """Refuse these options for an environment with (`counts`) or without a token counter, with or without a reader.

        Raises:
            ConfigError: a budget without a token counter, or a reader's folder without the reader or the other way round.
        """
        if self.budget is not None and not counts:
            raise ConfigError(f"budget {self.budget} needs a token counter. Pass count_tokens.")
        if bool(self.reader) != reads:
            raise ConfigError(
                f"the configuration names the reader {self.reader!r}, and {'one' if reads else 'none'} is given. "
                "Pass both: reader=claim_reader(config.reader) of onthejob.models.claims."
            )


def summary(s: CompanyState, task: str) -> dict[str, Any]:
    """Where the company stands in the episode of `task`; `metrics` are in dollars, rates and counts."""
    total = s.reward_total
    return {
        "task": task,
        "scenario": s.scenario,
        "day": s.day + 1,
        "turn": s.turn,
        "done": s.done,
        "ledger": dict(s.ledger),
        "metrics": {
            "company_value": company_value(s) / 100.0,
            "value_less_luck": (company_value(s) - s.luck) / 100.0,
            "team_reward": team_reward(total) if total else 0.0,
            "cash": s.cash / 100.0,
            "mrr": s.mrr() / 100.0,
            "pipeline": pipeline_value(s) / 100.0,
            "deals_won": float(s.won),
            "deals_lost": float(s.lost),
            "churned": float(s.churned),
            "customers": float(len(s.customers())),
            "nps": s.nps(),
            "satisfaction": s.satisfaction(),
            "stability": s.stability,
            "features": float(sum(1 for day in s.feature_shipped if day >= 0)),
            "invalid": float(s.invalid),
            **{f"reward_{role}": value for role, value in total.items()},
        },
    }


def facts_of(parsed: Action | Invalid, log: TurnLog) -> dict[str, Any]:
    """What a record keeps of one turn."""
    facts: dict[str, Any] = {"notes": list(log.notes)}
    if isinstance(parsed, Invalid):
        return facts | {"action": INVALID_KEY, "why": parsed.feedback}
    facts |= {"action": parsed.action_type, "target": parsed.target, "changed": log.changed}
    return facts | ({"message": f"{parsed.message_to}: {parsed.message}"} if parsed.message_to else {})
