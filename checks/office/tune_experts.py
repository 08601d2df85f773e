"""Fits the thresholds of the scenario-tuned experts: one pass of coordinate search per scenario, on calibration seeds.

It begins with the best of all tunings that are known, so that a scenario is at least played as well as by another's expert.

    python -m checks.office.tune_experts --scenarios churn viral --seeds 12

prints one line per scenario that can be pasted into `TUNINGS` of `checks/office/players/tuned.py`. Seeds from 2,000 on are used
by nothing else; what the tuning is worth is measured by `onthejob office gates` on other seeds. A change is kept when it is
better by more than one standard error of the paired difference. 12 seeds take about a minute a scenario on one core.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import fields, replace
from statistics import fmean, stdev

from checks.office.players.tuned import TUNINGS
from onthejob.envs.office import scenarios
from onthejob.envs.office.env import SEATS
from onthejob.envs.office.fast_play import run
from onthejob.envs.office.market import company_value
from onthejob.envs.office.policies.expert import TunedExpert, Tuning
from onthejob.envs.office.simulator import Simulator

FIRST_SEED = 2_000
SPACE: dict[str, tuple] = {
    "tier": ("monthly", "six_month", "annual"), "tier_unserved": ("monthly", "six_month", "annual"),
    "calm": (30, 42, 55, 65), "sound": (35, 45, 60), "products": (0, 1, 2, 3, 4, 6), "product_until": (10, 15, 20),
    "directs": ("sales", "dev", "hr", "content"), "directs_early": ("dev", "sales", "hr"),
    "review_below": (0, 70, 85, 101), "critical_below": (60, 80, 101), "majors": (2, 3, 4, 6), "debt": (10, 25, 35, 50),
    "hosting_from": (1500, 2200, 4000), "docs_below": (20, 40, 60), "docs_first": (0, 20, 40),
    "campaign_leads": (4, 6, 8, 11), "researched": (0, 1, 2, 3),
    "conversion": (30, 40, 50, 60), "rival": (15, 25, 40), "moody": (4, 5, 6, 7), "silent": (2, 3, 4),
    "unserved": (0.2, 0.45, 0.8), "objected": (1, 2, 3), "docs_calm": (45, 55, 65), "proof": (0.6, 1.0, 1.4),
    "mail": (0.8, 1.2, 1.6), "proof_from": (0, 5, 10), "hires": (8, 14, 20, 24, 27), "hire_for": ("dev", "content"),
    "track": (2, 3, 4),
}  # fmt: skip
"""Threshold -> values to try."""


def values(scenario: str, tuning: Tuning, seeds: int) -> list[float]:
    """Company values in dollars, one per calibration seed."""
    simulator = Simulator(scenarios.load(scenario))
    player = TunedExpert(tuning)
    found = []
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        s = simulator.found(seed)
        run(simulator, s, dict.fromkeys(SEATS, player), turns=s.horizon)
        found.append(company_value(s) / 100.0)
    return found


def tune(scenario: str, seeds: int, start: Tuning) -> tuple[Tuning, list[float]]:
    """One pass over all thresholds."""
    best, worth = start, values(scenario, start, seeds)
    for name, choices in SPACE.items():
        for choice in choices:
            if choice == getattr(best, name):
                continue
            tried = replace(best, **{name: choice})
            got = values(scenario, tried, seeds)
            gains = [x - y for x, y in zip(got, worth, strict=True)]
            if fmean(gains) > stdev(gains) / math.sqrt(seeds):
                best, worth = tried, got
    return best, worth


def main() -> None:
    """Tune, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", nargs="+", default=list(scenarios.SHIPPED))
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--fresh", action="store_true", help="begin with the expert's thresholds, not with those found before")
    options = parser.parse_args()
    for scenario in options.scenarios:
        known = [Tuning()] if options.fresh else [*TUNINGS.values(), Tuning()]
        before, start = max(((fmean(values(scenario, t, options.seeds)), t) for t in known), key=lambda pair: pair[0])
        best, worth = tune(scenario, options.seeds, start)
        changed = [(f.name, getattr(best, f.name)) for f in fields(Tuning) if getattr(best, f.name) != getattr(Tuning(), f.name)]
        print(f'"{scenario}": Tuning({", ".join(f"{name}={value!r}" for name, value in changed)}),', flush=True)
        print(f"# {scenario}: {before:,.0f} -> {fmean(worth):,.0f} dollars on {options.seeds} calibration seeds", flush=True)


if __name__ == "__main__":
    main()
