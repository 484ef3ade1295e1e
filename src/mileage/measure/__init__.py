"""Measuring: the phase clock, memory and the machine; costs, intervals and verdicts; arms that take turns.

Arm        one of the things that are compared: a name, and what an executor makes of it
Turn       whose attempt it is, of what, in which round, how often and how long at most
Executor   makes an attempt and tells the time; `MockExecutor` plays attempts back
Sample     what an attempt took and how it ended, kept as it was measured
run        takes the turns that no sample stands for yet, within a `Budget`
Caveat     why a number is to be read with care: cause, evidence, what to do
Verdict    how a comparison ends; with `Estimate` and the intervals it is a matter of `mileage.measure`
"""

from __future__ import annotations

from mileage.measure.caveats import Cause, Caveat, find_caveats, instabilities
from mileage.measure.clock import PhaseClock, PhaseTimes
from mileage.measure.compilers import compile_phase
from mileage.measure.cost import (
    ExpectedCost,
    FailureComparison,
    Reliability,
    RunCosts,
    compare_failures,
    expected_cost,
    failure_rate,
    point_cost,
    typical_cost,
)
from mileage.measure.experiment import Arm, Budget, Executor, MockExecutor, Outcome, Sample, Turn, run, schedule
from mileage.measure.intervals import FEWEST_RUNS, Estimate, Interval, median_estimate, median_ratio_estimate
from mileage.measure.machine import Machine, fingerprint
from mileage.measure.returns import (
    bootstrap_draws,
    improvement_estimate,
    iqm,
    iqm_band,
    iqm_estimate,
    probability_of_improvement,
)
from mileage.measure.sampler import ResourcePeaks, ResourceSampler
from mileage.measure.verdict import (
    LOOK_ALPHAS,
    LOOKS,
    CostAnswer,
    CostComparison,
    Question,
    Verdict,
    compare_at_looks,
    compare_costs,
    modified_z_scores,
    outliers,
    spread,
    trend,
    verdict_of_ratio,
)
from mileage.metrics import (
    OTHER_SHARE_LIMIT,
    Phase,
    Totals,
    billable_seconds,
    cost_per_billion_steps,
    cost_to_target,
    cost_usd,
    eval_overhead,
    eval_seconds,
    other_share,
    steady_steps_per_second,
    steps_per_second,
    train_seconds,
    wall_to_target,
)

__all__ = [
    "OTHER_SHARE_LIMIT",
    "Machine",
    "Phase",
    "PhaseClock",
    "PhaseTimes",
    "ResourcePeaks",
    "ResourceSampler",
    "Totals",
    "billable_seconds",
    "compile_phase",
    "cost_per_billion_steps",
    "cost_to_target",
    "cost_usd",
    "eval_overhead",
    "eval_seconds",
    "fingerprint",
    "other_share",
    "steady_steps_per_second",
    "steps_per_second",
    "train_seconds",
    "wall_to_target",
]


# --- Statistics that hold with few runs: IQM, bootstrap, expected cost to target, verdicts, medians of timings ---
__all__ = [
    "FEWEST_RUNS", "LOOKS", "LOOK_ALPHAS", "CostAnswer", "CostComparison", "Estimate", "ExpectedCost",
    "FailureComparison", "Interval", "Question", "Reliability", "RunCosts", "Verdict", "bootstrap_draws",
    "compare_at_looks", "compare_costs", "compare_failures", "expected_cost", "failure_rate", "improvement_estimate",
    "iqm", "iqm_band", "iqm_estimate", "median_estimate", "median_ratio_estimate", "modified_z_scores", "outliers",
    "point_cost",
    "probability_of_improvement", "spread", "trend", "typical_cost", "verdict_of_ratio",
]  # fmt: skip


# --- The one vocabulary of experiments: arms that take turns, raw samples, caveats with their remedy, verdicts ---
__all__ = [
    "Arm",
    "Budget",
    "Cause",
    "Caveat",
    "Estimate",
    "Executor",
    "MockExecutor",
    "Outcome",
    "Sample",
    "Turn",
    "Verdict",
    "find_caveats",
    "instabilities",
    "run",
    "schedule",
]
