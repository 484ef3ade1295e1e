"""The two sides of a comparison: runs that have ended, and what they add up to."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mileage.ledger.rows import End, Phase, Run
from mileage.stats import Estimate, ExpectedCost, RunCosts, expected_cost, iqm_estimate


@dataclass(frozen=True)
class FinishedRun:
    """One run that has ended, with its last phase totals."""

    run: Run
    end: End
    phases: tuple[Phase, ...] = ()

    @property
    def reached(self) -> bool:
        """Whether a checkpoint met the target, however the run ended."""
        return self.end.wall_to_target is not None

    def cost(self, unit: str) -> float:
        """Dollars or seconds up to the first target-reaching checkpoint, or up to the stop."""
        if unit == "USD":
            return self.end.cost_usd if self.end.cost_to_target is None else self.end.cost_to_target
        return self.end.wall_seconds if self.end.wall_to_target is None else self.end.wall_to_target

    def startup(self, unit: str) -> float:
        """Dollars or seconds of `cost` that went into starting and compiling."""
        seconds = self.cost("s")
        share = (self.end.init_seconds + self.end.compile_seconds) / seconds if seconds > 0 else 0.0
        return self.cost(unit) * min(share, 1.0)


@dataclass(frozen=True)
class Arm:
    """One side of a comparison, summarised. Absent numbers are None."""

    label: str
    runs: int
    reached: int
    states: Mapping[str, int]
    left_out: int
    """Runs that are still running and therefore not counted."""
    expected: ExpectedCost
    costs: RunCosts
    returns: tuple[float, ...]
    iqm_return: Estimate | None
    success_rate: float | None
    """Median over runs."""
    steps_per_second: float | None
    """Median over runs, of training seconds."""
    steady_steps_per_second: float | None
    eval_overhead: float | None
    peak_rss_gb: float | None
    peak_gpu_gb: float | None
    seconds_per_success: float | None
    steps_per_success: float | None
    phase_seconds: Mapping[str, float]
    """Seconds of each phase in all runs, per run that reached the target (per run where none did)."""

    @property
    def failed(self) -> int:
        """Runs that did not reach the target: not reached, failed, crashed or stopped."""
        return self.runs - self.reached


def run_costs(runs: Sequence[FinishedRun], unit: str) -> RunCosts:
    """Return what the runs cost in `unit`, with the price of using up the step budget where there is one."""
    costs = [run.cost(unit) for run in runs]
    startup = [run.startup(unit) for run in runs]
    return RunCosts.of(costs, [run.reached for run in runs], _budget(runs, unit), startup)


def _budget(runs: Sequence[FinishedRun], unit: str) -> float | None:
    """What a started run costs that uses up its step budget without reaching the target, at the usual step cost."""
    budgets = {run.run.step_budget for run in runs}
    per_step = [_training_cost(run.end, unit) / run.end.env_steps for run in runs if run.end.env_steps > 0]
    if len(budgets) != 1 or None in budgets or not per_step:
        return None
    return float(budgets.pop() or 0) * statistics.median(per_step) or None


def _training_cost(end: End, unit: str) -> float:
    """Dollars or seconds of all of a run but its start-up."""
    seconds = max(end.wall_seconds - end.init_seconds - end.compile_seconds, 0.0)
    return seconds if unit == "s" or end.wall_seconds <= 0 else seconds * end.cost_usd / end.wall_seconds


def summarise(label: str, runs: Sequence[FinishedRun], left_out: int, unit: str) -> Arm:
    """Return what `runs` add up to, with costs in `unit`; `left_out` more are still running."""
    costs = run_costs(runs, unit)
    ends = [run.end for run in runs]
    returns = tuple(end.mean_return for end in ends if end.mean_return is not None)
    per = costs.successes or len(runs)
    phases: dict[str, float] = {}
    for phase in (phase for run in runs for phase in run.phases if not phase.beside):
        phases[phase.phase] = phases.get(phase.phase, 0.0) + phase.seconds / per
    return Arm(
        label=label,
        runs=len(runs),
        reached=costs.successes,
        states=dict(Counter(end.state for end in ends)),
        left_out=left_out,
        expected=expected_cost(costs),
        costs=costs,
        returns=returns,
        iqm_return=iqm_estimate(list(returns)) if returns else None,
        success_rate=_median(end.success_rate for end in ends),
        steps_per_second=_median(_ratio(end.env_steps, end.train_seconds) for end in ends),
        steady_steps_per_second=_median(
            _ratio(end.env_steps, end.train_seconds - end.init_seconds - end.compile_seconds) for end in ends
        ),
        eval_overhead=_median(_ratio(end.eval_seconds, end.wall_seconds) for end in ends),
        peak_rss_gb=max((end.peak_rss_gb for end in ends if end.peak_rss_gb is not None), default=None),
        peak_gpu_gb=max((end.peak_gpu_gb for end in ends if end.peak_gpu_gb is not None), default=None),
        seconds_per_success=_ratio(sum(run.cost("s") for run in runs), costs.successes),
        steps_per_success=_ratio(
            sum(end.env_steps if end.steps_to_target is None else end.steps_to_target for end in ends), costs.successes
        ),
        phase_seconds=phases,
    )


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator > 0 else None


def _median(values: Any) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None
