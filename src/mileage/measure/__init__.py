"""Measuring: the phase clock, memory and the machine; costs, intervals and verdicts; arms that take turns.

Arm        one of the things that are compared: a name, and what an executor makes of it
Turn       whose attempt it is, of what, in which round, how often and how long at most
Executor   makes an attempt and tells the time; `MockExecutor` plays attempts back
Sample     what an attempt took and how it ended, kept as it was measured
run        takes the turns that no sample stands for yet, within a `Budget`
Caveat     why a number is to be read with care: cause, evidence, what to do
Verdict    how a comparison ends; with `Estimate` and the intervals it is a matter of statistics
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    "FEWEST_RUNS", "LOOKS", "LOOK_ALPHAS", "OTHER_SHARE_LIMIT", "Arm", "Budget", "Cause", "Caveat", "CostAnswer",
    "CostComparison", "Estimate", "Executor", "ExpectedCost", "FailureComparison", "Interval", "Machine",
    "MockExecutor", "Outcome", "Phase", "PhaseClock", "PhaseTimes", "Question", "Reliability", "ResourcePeaks",
    "ResourceSampler", "RunCosts", "Sample", "Totals", "Turn", "Verdict", "billable_seconds", "bootstrap_draws",
    "compare_at_looks", "compare_costs", "compare_failures", "compile_phase", "cost_per_billion_steps",
    "cost_to_target", "cost_usd", "eval_overhead", "eval_seconds", "expected_cost", "failure_rate", "find_caveats",
    "fingerprint", "improvement_estimate", "instabilities", "iqm", "iqm_band", "iqm_estimate", "median_estimate",
    "median_ratio_estimate", "modified_z_scores", "other_share", "outliers", "point_cost",
    "probability_of_improvement", "run", "schedule", "spread", "steady_steps_per_second", "steps_per_second",
    "train_seconds", "trend", "typical_cost", "verdict_of_ratio", "wall_to_target",
]  # fmt: skip

# Loaded on first use: clocks and names of machines are asked for before NumPy is there.
_MODULES = {
    "caveats": "Cause Caveat find_caveats instabilities",
    "clock": "PhaseClock PhaseTimes",
    "compilers": "compile_phase",
    "cost": (
        "ExpectedCost FailureComparison Reliability RunCosts compare_failures expected_cost failure_rate"
        " point_cost typical_cost"
    ),
    "experiment": "Arm Budget Executor MockExecutor Outcome Sample Turn run schedule",
    "intervals": "Estimate FEWEST_RUNS Interval median_estimate median_ratio_estimate",
    "machine": "Machine fingerprint",
    "returns": "bootstrap_draws improvement_estimate iqm iqm_band iqm_estimate probability_of_improvement",
    "sampler": "ResourcePeaks ResourceSampler",
    "verdict": (
        "CostAnswer CostComparison LOOKS LOOK_ALPHAS Question Verdict compare_at_looks compare_costs"
        " modified_z_scores outliers spread trend verdict_of_ratio"
    ),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names.split():
            return vars(importlib.import_module(f"{__name__}.{module}"))[name]
    if name in __all__:
        return vars(importlib.import_module("mileage.metrics"))[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
