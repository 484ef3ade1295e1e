"""The arms of a comparison: their sides, settings and answers."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mileage.errors import UsageError
from mileage.ledger.matching import RULES
from mileage.ledger.prices import NO_PRICE
from mileage.ledger.rows import EndState, Run
from mileage.ledger.runs import RecordedRun
from mileage.ledger.targets import Target
from mileage.measure import (
    Arm,
    Estimate,
    ExpectedCost,
    RunCosts,
    expected_cost,
    failure_rate,
    iqm_estimate,
    typical_cost,
)
from mileage.measure.machine import OTHERS
from mileage.metrics import BY_NAME, Shown, dollars, duration, shown, startup_seconds
from mileage.records import ReadRecord
from mileage.tables import plain

# --- What the runs of an arm ran with, for a reader who has to judge whether two arms are alike ---
NOT_STATED = "not stated"
MOST_DIFFERENCES = 20
"""More settings than this are counted and not listed."""
_LONGEST = 60
_FACTS = ("framework", "algorithm", "training env", "settings on record")


def setting(runs: Sequence[RecordedRun]) -> dict[str, str]:
    """Price, machine, threads, unbilled work and step budget of the runs; all values where they differ."""
    rows = [run.run for run in runs]
    found: dict[str, Callable[[Run], str]] = {
        "price": _price,
        "machine": _machine,
        "threads": lambda run: _spelled(machine_record(run).get("threads")),
        "work before the clock": _before_the_clock,
        "step budget": lambda run: NOT_STATED if run.step_budget is None else f"{run.step_budget:,} {run.step_rule}",
    }
    return {name: _all(read(row) for row in rows) for name, read in found.items()}


def config_differences(a: Sequence[RecordedRun], b: Sequence[RecordedRun]) -> Mapping[str, tuple[str, str]]:
    """Hyperparameters, environment settings and code that are not the same on both sides, with both values."""
    sides = [[_configured(run) for run in side] for side in (a, b)]
    keys = dict.fromkeys(key for side in sides for values in side for key in values)
    if not all(any(run.config for run in side) for side in (a, b)):  # nothing to hold one side's settings against
        keys = dict.fromkeys(_FACTS)
    both = {key: tuple(_all(_spelled(values.get(key)) for values in side) for side in sides) for key in sorted(keys)}
    return {key: (first, second) for key, (first, second) in both.items() if first != second}


def _configured(run: RecordedRun) -> ReadRecord:
    """The config of a run, flat, and what else decides what it learns from."""
    row = run.run
    facts = dict(zip(_FACTS, (row.framework, row.algorithm, row.env_id, len(run.config)), strict=True))
    return {**facts, **dict(_flat("", run.config))}


def _flat(prefix: str, values: ReadRecord) -> Iterable[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value


def _price(run: Run) -> str:
    if run.price_usd_per_hour <= 0:
        return NO_PRICE
    instance = f" ({plain(run.instance, 40)})" if run.instance else ""
    return f"{dollars(run.price_usd_per_hour)}/h × {run.instances}{instance}"


def machine_record(run: Run) -> ReadRecord:
    """What a run knows of its machine."""
    found = json.loads(run.machine)
    return found if isinstance(found, dict) else {}


def _machine(run: Run) -> str:
    record = machine_record(run)
    if not record.get("cpu"):
        return plain(run.machine_id, 40) or NOT_STATED
    gpus = "".join(f" + {name}" for name in record.get("gpus") or ())
    return plain(f"{record.get('cores')} × {record['cpu']}{gpus}", _LONGEST)


def worked_before(run: Run) -> float | None:
    """CPU seconds that a run's process had worked before its clock started, outside other runs; None if unknown."""
    found = machine_record(run).get("cpu_seconds_before_clock")
    return float(found) if isinstance(found, int | float) else None


def _before_the_clock(run: Run) -> str:
    seconds = worked_before(run)
    return NOT_STATED if seconds is None else f"{duration(seconds)} of CPU" if seconds > 0 else "none"


def _spelled(value: object) -> str:
    if value is None or value == "":
        return NOT_STATED
    return plain(value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str), _LONGEST)


def _all(values: Iterable[str]) -> str:
    different = list(dict.fromkeys(values))
    return " | ".join(different[:3]) + (f" | … ({len(different)} values)" if len(different) > 3 else "")


# --- The two sides of a comparison: runs that have ended, and what they add up to ---
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
class ReportSide:
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


def summarise(arm: Arm[Selection], unit: str) -> ReportSide:
    """What the runs of an arm add up to, with costs in `unit`."""
    runs = arm.subject.runs
    costs = run_costs(runs, unit)
    returns = tuple(value for run in runs if (value := run.metric("mean_return")) is not None)
    per = costs.successes or len(runs)
    phases: dict[str, float] = {}
    for phase, seconds in ((phase, seconds) for run in runs for phase, seconds in _phases(run)):
        phases[phase] = phases.get(phase, 0.0) + seconds / per
    return ReportSide(
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


_EXAM = tuple(name for name in RULES if name != "machine")


@dataclass(frozen=True)
class ReportArm:
    """Runs that differ in nothing but their seed, in launch order."""

    label: str
    runs: tuple[RecordedRun, ...]

    @property
    def first(self) -> RecordedRun:
        """Of which everything but the seed holds for all."""
        return self.runs[0]

    @cached_property
    def ended(self) -> tuple[RecordedRun, ...]:
        """Those that count: ended, and not said to be void."""
        return tuple(run for run in self.runs if run.end is not None and not run.voided)

    @property
    def reached(self) -> int:
        """How many reached the target."""
        return sum(run.reached for run in self.ended)

    @property
    def failed(self) -> int:
        """How many ended without reaching it."""
        return len(self.ended) - self.reached

    @property
    def running(self) -> int:
        """How many go on."""
        return sum(run.end is None for run in self.runs)

    @property
    def voided(self) -> int:
        """How many do not count."""
        return sum(run.voided for run in self.runs)

    @property
    def priced(self) -> bool:
        """Whether every run has a price."""
        return all(run.priced for run in self.runs)

    @property
    def seeds(self) -> str:
        """How many seeds there are and what became of them, in words."""
        n = len(self.runs)
        said = [f"{n} seed{'' if n == 1 else 's'}"]
        if self.first.target is not None:
            said += [f"{self.reached} reached", f"{self.failed} failed"]
        said += [f"{count} {what}" for count, what in ((self.running, "running"), (self.voided, "void")) if count]
        return ", ".join(said)

    def expected(self, unit: str) -> ExpectedCost | None:
        """Expected cost to target in `unit`, failed runs counted; None without a target or an end."""
        if self.first.target is None or not self.ended:
            return None
        return expected_cost(run_costs(self.ended, unit))

    @cached_property
    def iqm_return(self) -> Estimate | None:
        """Interquartile mean of the runs' held-out returns."""
        found = [value for run in self.ended if (value := run.metric("mean_return")) is not None]
        return iqm_estimate(found) if found else None


@dataclass(frozen=True)
class Exam:
    """Arms that may share a picture: they agree in everything that the matching rules name but the machine."""

    arms: tuple[ReportArm, ...]

    @property
    def first(self) -> RecordedRun:
        """A run of which the exam holds for all."""
        return self.arms[0].first

    @property
    def runs(self) -> tuple[RecordedRun, ...]:
        """All runs."""
        return tuple(run for arm in self.arms for run in arm.runs)

    @property
    def unit(self) -> str:
        """What costs are counted in: dollars where every run has a price, seconds otherwise."""
        return "USD" if all(arm.priced for arm in self.arms) else "s"

    @property
    def title(self) -> str:
        """Environment and target."""
        target = self.first.target
        return plain(self.first.env or self.first.run.name, 80) + (f", target {plain(target, 80)}" if target else "")

    @property
    def target(self) -> Target | None:
        """What is to be reached; None where nothing is, or what an import says cannot be read."""
        try:
            return None if self.first.target is None else Target.parse(self.first.target)
        except UsageError:
            return None

    @property
    def threshold(self) -> float | None:
        """What the target asks for, as a number."""
        return None if self.target is None else self.target.threshold

    @property
    def measure(self) -> str:
        """What the learning curve shows: the number that the target looks at, otherwise the mean return."""
        if self.target is None:
            return "mean return, held out"
        return f"{str(self.target.aggregate).replace('_', ' ')}, held out"


def exams(runs: Iterable[RecordedRun]) -> list[Exam]:
    """Runs as exams of arms, in the order in which they come."""
    from mileage.ledger.listing import RECIPE  # needs the database library, which a run of seeds does without

    found: dict[tuple[object, ...], dict[tuple[object, ...], list[RecordedRun]]] = {}
    for run in runs:
        exam = (*(RULES[name](run.run) for name in _EXAM), None if run.panel_id else run.env)
        recipe = tuple(getattr(run.run, name) for name in RECIPE)
        found.setdefault(exam, {}).setdefault(recipe, []).append(run)
    return [Exam(tuple(_labelled(list(arms.values())))) for arms in found.values()]


def _labelled(sets: Sequence[Sequence[RecordedRun]]) -> list[ReportArm]:
    """Arms with names that tell them apart: where two share one, what else differs is added."""
    names = [plain(runs[0].run.name or runs[0].algorithm or "run", 60) for runs in sets]
    arms = []
    for index, (name, runs) in enumerate(zip(names, sets, strict=True)):
        if names.count(name) > 1:
            alike = [runs_[0] for each, runs_ in zip(names, sets, strict=True) if each == name]
            name = f"{name} ({_difference(runs[0], alike) or index + 1})"
        arms.append(ReportArm(name, tuple(runs)))
    return arms


def _difference(run: RecordedRun, alike: Sequence[RecordedRun]) -> str:
    for field in ("algorithm", "framework", "env_id"):
        if len({getattr(each.run, field) for each in alike}) > 1:
            return plain(str(getattr(run.run, field)), 40)
    keys = [key for key in run.config if len({str(each.config.get(key)) for each in alike}) > 1]
    return ", ".join(f"{plain(key, 20)} {plain(str(run.config[key]), 20)}" for key in keys[:2])
