"""The two sides of a comparison: runs that have ended, and what they add up to."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mileage.experiments import Arm
from mileage.ledger.rows import EndState
from mileage.ledger.runs import RecordedRun
from mileage.meter.load import OTHERS
from mileage.metrics import BY_NAME, Shown, shown, startup_seconds
from mileage.report.setting import machine_record, setting, worked_before
from mileage.stats import Estimate, ExpectedCost, RunCosts, expected_cost, failure_rate, iqm_estimate, typical_cost

# What a process works before the clock starts is worth a word from this share of the run's time and so many seconds on.
_LONG_BEFORE = 0.05
_LONG_BEFORE_SECONDS = 5.0
EARLIER = "earlier runs"
"""What the time of runs is called that a run resumes."""


@dataclass(frozen=True)
class Selection:
    """What an arm of a comparison is made of: runs that have ended, in launch order."""

    runs: Sequence[RecordedRun]
    running: int = 0
    """How many more are still running."""
    stopped_short: int = 0
    """How many ended at a target of their own before they reached the one they are judged by."""


@dataclass(frozen=True)
class Side:
    """An arm of a comparison, summarised. Absent numbers are None."""

    label: str
    runs: int
    reached: int
    states: Mapping[str, int]
    left_out: int
    """Runs that are still running and therefore not counted."""
    stopped_short: int
    resumed: int
    """Runs that go on from others, whose cost and steps they carry."""
    unknown_parents: tuple[str, ...]
    """Runs that others resume and of which the ledger does not know the cost."""
    unclocked: int
    """Runs whose process had worked for a good part of their time before their clock started."""
    typical: Estimate
    """Geometric mean of what a run costs that reaches the target."""
    failure_rate: Estimate
    expected: ExpectedCost
    costs: RunCosts
    """What each run cost up to its target, or up to its stop without one."""
    spent: float
    """What all runs cost from their start to their end, whatever came after the target."""
    setting: Mapping[str, str]
    """Price, machine, threads and step budget."""
    returns: tuple[float, ...]
    iqm_return: Estimate | None
    metrics: Mapping[str, float | None]
    """What a comparison shows of the runs, by name: the median, of a peak the highest."""
    seconds_per_success: float | None
    steps_per_success: float | None
    cut_short: tuple[int, ...]
    """Steps of the runs that ended without the target, and not because anything failed."""
    needed: tuple[int, ...]
    """Steps of those that reached it."""
    others: float
    """Share of the cores that others kept busy while the runs went on."""
    phase_seconds: Mapping[str, float]
    """Seconds of each phase up to the target or the stop, per run that reached the target (per run where none did)."""

    @property
    def failed(self) -> int:
        """Runs that did not reach the target: not reached, failed, crashed or stopped."""
        return self.runs - self.reached


def run_costs(runs: Sequence[RecordedRun], unit: str) -> RunCosts:
    """What the runs cost in `unit`, with the price of using up the step budget where there is one."""
    costs = [run.cost(unit) for run in runs]
    startup = [cost * _startup_share(run, run.cost("s")) for cost, run in zip(costs, runs, strict=True)]
    return RunCosts.of(costs, [run.reached for run in runs], _budget(runs, unit), startup)


def _startup_share(run: RecordedRun, seconds: float) -> float:
    """Share of `seconds` of a run that went into starting and compiling."""
    return min(startup_seconds(run.totals) / seconds, 1.0) if seconds > 0 else 0.0


def _budget(runs: Sequence[RecordedRun], unit: str) -> float | None:
    """What a started run costs that uses up its step budget without reaching the target, at the usual step cost."""
    budgets = {run.run.step_budget for run in runs}
    per_step = [_training_cost(run, unit) / run.totals.env_steps for run in runs if run.totals.env_steps > 0]
    if len(budgets) != 1 or None in budgets or not per_step:
        return None
    return float(budgets.pop() or 0) * statistics.median(per_step) or None


def _training_cost(run: RecordedRun, unit: str) -> float:
    """Dollars or seconds of all of a run but its start-up."""
    whole = BY_NAME["cost_usd" if unit == "USD" else "wall_seconds"].of(run.totals) or 0.0
    return whole * (1.0 - _startup_share(run, run.wall_seconds))


def summarise(arm: Arm[Selection], unit: str) -> Side:
    """What the runs of an arm add up to, with costs in `unit`."""
    runs = arm.subject.runs
    costs = run_costs(runs, unit)
    returns = tuple(value for run in runs if (value := run.metric("mean_return")) is not None)
    per = costs.successes or len(runs)
    phases: dict[str, float] = {}
    for phase, seconds in ((phase, seconds) for run in runs for phase, seconds in _phases(run)):
        phases[phase] = phases.get(phase, 0.0) + seconds / per
    return Side(
        label=arm.name,
        runs=len(runs),
        reached=costs.successes,
        states=dict(Counter(str(run.state) for run in runs)),
        left_out=arm.subject.running,
        stopped_short=arm.subject.stopped_short,
        resumed=sum(run.run.parent_run_id is not None for run in runs),
        unknown_parents=tuple(run.before.missing for run in runs if run.before is not None and run.before.missing),
        unclocked=sum(_worked_long_before(run) for run in runs),
        typical=typical_cost(costs),
        failure_rate=failure_rate(costs),
        expected=expected_cost(costs),
        costs=costs,
        spent=sum(run.metric("cost_usd" if unit == "USD" else "wall_seconds") or 0.0 for run in runs),
        setting=setting(runs),
        returns=returns,
        iqm_return=iqm_estimate(list(returns)) if returns else None,
        metrics={metric.name: metric.over(run.metric(metric.name) for run in runs) for metric in shown(Shown.COMPARE)},
        seconds_per_success=_ratio(sum(run.cost("s") for run in runs), costs.successes),
        steps_per_success=_ratio(sum(_steps(run) for run in runs), costs.successes),
        cut_short=tuple(int(_steps(run)) for run in runs if run.state == EndState.NOT_REACHED),
        needed=tuple(int(_steps(run)) for run in runs if run.reached),
        others=_share_of_others(runs),
        phase_seconds=phases,
    )


def _worked_long_before(run: RecordedRun) -> bool:
    return (worked_before(run.run) or 0.0) > max(_LONG_BEFORE * run.wall_seconds, _LONG_BEFORE_SECONDS)


def _share_of_others(runs: Sequence[RecordedRun]) -> float:
    spent = sum(row.seconds for run in runs for row in run.phase_rows if row.phase == OTHERS)
    there = sum(run.wall_seconds * (machine_record(run.run).get("cores") or 1) for run in runs)
    return spent / there if there > 0 else 0.0


def _phases(run: RecordedRun) -> list[tuple[str, float]]:
    """Seconds of each phase up to the target or the stop; runs before it, where it resumes one, are one phase."""
    found = list(run.phases_to_target().items())
    return found if run.before is None or not found else [*found, (EARLIER, run.before.used["wall_seconds"])]


def _steps(run: RecordedRun) -> float:
    """Steps up to the first target-reaching checkpoint, or up to the stop."""
    reached = run.metric("steps_to_target")
    return (run.metric("env_steps") or 0.0) if reached is None else reached


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator > 0 else None
