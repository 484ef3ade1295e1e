"""Statistics that hold with few runs: IQM, bootstrap, expected cost to target, verdicts, medians of timings."""

from __future__ import annotations

from mileage.stats.cost import ExpectedCost, RunCosts, expected_cost, point_cost
from mileage.stats.failures import FailureComparison, Reliability, compare_failures, failure_rate
from mileage.stats.intervals import FEWEST_RUNS, Estimate, Interval, median_estimate, median_ratio_estimate
from mileage.stats.returns import (
    bootstrap_draws,
    improvement_estimate,
    iqm,
    iqm_band,
    iqm_estimate,
    probability_of_improvement,
)
from mileage.stats.timing import modified_z_scores, outliers, spread, trend
from mileage.stats.typical import typical_cost
from mileage.stats.verdict import (
    LOOK_ALPHAS,
    LOOKS,
    CostAnswer,
    CostComparison,
    Question,
    Verdict,
    compare_at_looks,
    compare_costs,
    verdict_of_ratio,
)

__all__ = [
    "FEWEST_RUNS", "LOOKS", "LOOK_ALPHAS", "CostAnswer", "CostComparison", "Estimate", "ExpectedCost",
    "FailureComparison", "Interval", "Question", "Reliability", "RunCosts", "Verdict", "bootstrap_draws",
    "compare_at_looks", "compare_costs", "compare_failures", "expected_cost", "failure_rate", "improvement_estimate",
    "iqm", "iqm_band", "iqm_estimate", "median_estimate", "median_ratio_estimate", "modified_z_scores", "outliers",
    "point_cost",
    "probability_of_improvement", "spread", "trend", "typical_cost", "verdict_of_ratio",
]  # fmt: skip
