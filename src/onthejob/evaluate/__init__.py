"""Comparisons of policies, with their intervals. See docs/evaluation.md."""

from onthejob.evaluate.behaviours import Shift, shifts
from onthejob.evaluate.cache import EvaluationCache, source_fingerprint
from onthejob.evaluate.comparison import Comparison, compare
from onthejob.evaluate.held_out import collect_states
from onthejob.evaluate.pass_fail import McNemar, Sheet, joined, kind_difference, kind_rate, mcnemar, read_comparison, stop_shares
from onthejob.evaluate.quality import decision_quality
from onthejob.evaluate.recorded import recorded_scales
from onthejob.evaluate.scores import Cell, QualityConfig, QualityResult
from onthejob.evaluate.sheets import matched_sheets
from onthejob.evaluate.states import HeldOutState, load_states, save_states
from onthejob.evaluate.statistics import Estimate, mean_interval, paired_difference, ratio_interval, spearman
from onthejob.evaluate.teams import Team, adapter_fingerprint, one_seat, scripted_team
from onthejob.evaluate.validation import validator

__all__ = [
    "Cell",
    "Comparison",
    "Estimate",
    "EvaluationCache",
    "HeldOutState",
    "McNemar",
    "QualityConfig",
    "QualityResult",
    "Sheet",
    "Shift",
    "Team",
    "adapter_fingerprint",
    "collect_states",
    "compare",
    "decision_quality",
    "joined",
    "kind_difference",
    "kind_rate",
    "load_states",
    "matched_sheets",
    "mcnemar",
    "mean_interval",
    "one_seat",
    "paired_difference",
    "ratio_interval",
    "read_comparison",
    "recorded_scales",
    "save_states",
    "scripted_team",
    "shifts",
    "source_fingerprint",
    "spearman",
    "stop_shares",
    "validator",
]
