"""Which of two sets of runs reaches the target more cheaply, and why.

Failed runs count: the expected cost of an arm is what all its runs cost, over the number that reached the target. A run
that reached it counts up to its first target-reaching checkpoint, any other up to its stop; one that resumes another
counts with what the other cost. What differs between the arms and is no matter of the rules is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mileage.errors import UsageError
from mileage.ledger.address import DbAddress
from mileage.ledger.matching import Matching, check_matched, rejudged, stopped_short
from mileage.ledger.rows import EndState
from mileage.ledger.runs import RecordedRun
from mileage.ledger.targets import Target
from mileage.measure import (
    Arm,
    Cause,
    Caveat,
    CostAnswer,
    CostComparison,
    Estimate,
    FailureComparison,
    Verdict,
    compare_at_looks,
    compare_costs,
    improvement_estimate,
)
from mileage.measure.machine import BUSY_SHARE
from mileage.metrics import Phase, RunMetric, Shown, dollars, duration, percent, shown
from mileage.records import Record
from mileage.report.arms import MOST_DIFFERENCES, ReportSide, Selection, config_differences, summarise
from mileage.report.markup import Html, tag
from mileage.report.notebook import draw_intervals, frame, new_axes
from mileage.report.notebook import shown as shown_html
from mileage.tables import Table, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from mileage.ledger.store import Store

FASTER = 0.05
"""Below this relative difference of time to target, nothing is said about its causes."""


@dataclass(frozen=True)
class Comparison:
    """The outcome of a comparison."""

    a: ReportSide
    b: ReportSide
    unit: str
    """`USD`, or `s` where not every run has a price."""
    matching: Matching
    costs: CostComparison
    improvement: Estimate | None
    """Probability that a run of B ends with a higher return than one of A."""
    sequential: bool
    reasons: tuple[str, ...]
    warnings: tuple[Caveat, ...]
    config: Mapping[str, tuple[str, str]]
    """Hyperparameters and other settings that differ, with both values."""

    @property
    def verdict(self) -> str:
        """A cheaper, B cheaper or undecided, with how many more runs it would take."""
        return str(self.costs)

    def spell(self, amount: float) -> str:
        """An amount in the unit of the comparison."""
        return dollars(amount) if self.unit == "USD" else duration(amount)

    def table(self) -> Table:
        """What there is to compare, row by row: what, A, B."""
        rows = [(name, read(self, self.a), read(self, self.b)) for name, read in _ROWS]
        rows += [(name, self.a.setting[name], self.b.setting[name]) for name in self.a.setting]
        listed = list(self.config.items())[:MOST_DIFFERENCES]
        rows += [(f"config: {plain(name, 40)}", first, second) for name, (first, second) in listed]
        if len(self.config) > len(listed):
            more = f"{len(self.config) - len(listed)}"
            rows.append(("config: more settings that differ", more, more))
        header = ("", "A", "B")
        return Table.of(header, [row for row in rows if row[1:] != ("–", "–")], left=header)

    def lines(self) -> list[str]:
        """Everything that is to be said below the table; a label that runs are unmatched comes first."""
        said = [] if self.matching.label is None else [self.matching.label]
        if self.improvement is not None:
            said.append(f"probability that B returns more than A: {_estimate(self.improvement, '{:.2f}')}")
        warnings = (f"warning: {each.evidence}" for each in self.warnings)
        return [*said, *self.reasons, *warnings, f"verdict: {self.verdict}"]

    def _repr_html_(self) -> str:
        return shown_html(tag("p", f"verdict: {self.verdict}", class_="verdict"), Html(self.table().html()))

    def to_frame(self) -> DataFrame:
        """What is compared as a data frame of pandas, one row each."""
        return frame(self.table().records())

    def plot(self, axes: Axes | None = None) -> Axes:
        """Expected cost to target of both sides with their intervals, as a plot of matplotlib."""
        rows = []
        for side in (self.a, self.b):
            ends = (None, None) if side.expected.interval is None else side.expected.interval.as_list()
            rows.append((side.label, side.expected.value, ends[0], ends[1]))
        return draw_intervals(new_axes(axes), rows, f"expected cost to target, {self.unit}, 95 % interval")

    def as_dict(self) -> Record:
        """The comparison as plain JSON values."""
        costs = self.costs
        return {
            "label": self.matching.label,
            "unit": self.unit,
            "sequential": self.sequential,
            "a": _arm_dict(self.a),
            "b": _arm_dict(self.b),
            "verdict": costs.verdict.value,
            "statement": costs.statement,
            "more_runs_per_arm": costs.more_runs,
            "alpha": costs.alpha,
            "runs_used": list(costs.runs_used),
            "ratio_a_over_b": costs.ratio,
            "ratio_interval": None if costs.interval is None else costs.interval.as_list(),
            "probability_a_cheaper": costs.probability_a_cheaper,
            "question": costs.question.value,
            "cost_when_reached": _answer_dict(costs.reached),
            "failures": _failures_dict(costs.failures),
            "expected_cost": _answer_dict(costs.expected),
            "config_differences": {name: list(values) for name, values in self.config.items()},
            "probability_b_returns_more": _estimate_dict(self.improvement),
            "reasons": list(self.reasons),
            "warnings": [each.evidence for each in self.warnings],
        }


def compare_selections(
    store: Store, a: str, b: str, *, allow: Collection[str] = (), sequential: bool = False, target: str | None = None
) -> Comparison:
    """Compare the runs that two selections name; see `mileage.ledger.queries`.

    With a `target`, all runs are judged by it and not by their own, from the episodes that were played.
    """
    from mileage.ledger import queries

    sides = []
    for text in (a, b):
        records = _that_count(store.read(queries.select_records, text), text)
        ended = [record for record in records if record.end is not None]
        if not ended:
            raise UsageError(f"no run of {plain(text, 100)!r} has ended yet: wait for the first")
        short = 0
        if target is not None:
            evaluated = store.read(queries.with_evaluations, ended)
            ended = [rejudged(run, Target.parse(target)) for run in evaluated]
            short = sum(stopped_short(run, Target.parse(target)) for run in evaluated)
        ended = store.read(queries.with_parents, store.read(queries.with_phases, ended))
        sides.append(Arm(plain(text, 60), Selection(ended, len(records) - len(ended), short)))
    shared = set.intersection(*({run.run.run_id for run in side.subject.runs} for side in sides))
    if shared:
        raise UsageError(f"{len(shared)} runs are on both sides, {min(shared)} for one: name two different sets")
    return compare_arms(*sides, allow=allow, sequential=sequential)


def compare(
    a: str | Sequence[RecordedRun],
    b: str | Sequence[RecordedRun],
    *,
    db: DbAddress = None,
    allow: Collection[str] = (),
    sequential: bool = False,
    target: str | None = None,
) -> Comparison:
    """Compare two sets of runs of a ledger, as `mileage ledger compare` does.

    Args:
        a: runs, or what selects them: ids, a name, or `field=value` with commas.
        b: those of the other side.
        db: path or address of their ledger; None takes `MILEAGE_DB` or `runs/mileage.db`.
        allow: fields of the matching rules that may differ; the output is then labelled.
        sequential: judge by the planned looks, so that looking again after every run keeps the error at 5 %.
        target: judge by this target and not by the runs' own.
    """
    from mileage.ledger.store import Store

    first, second = (side if isinstance(side, str) else ",".join(run.run_id for run in side) for side in (a, b))
    with Store.reader(db) as store:
        return compare_selections(store, first, second, allow=allow, sequential=sequential, target=target)


def _that_count(records: Sequence[RecordedRun], text: str) -> list[RecordedRun]:
    """`records` without those that somebody has voided."""
    found = [record for record in records if not record.voided]
    if not found:
        raise UsageError(f"all {len(records)} runs of {plain(text, 100)!r} are void: name others")
    return found


def compare_arms(
    a: Arm[Selection], b: Arm[Selection], *, allow: Collection[str] = (), sequential: bool = False
) -> Comparison:
    """Compare two sets of finished runs.

    Args:
        a: the runs of one side.
        b: those of the other.
        allow: fields of the matching rules that may differ; the output is then labelled.
        sequential: judge by the planned looks, so that looking again after every run keeps the error at 5 %.
    """
    matching = check_matched([run.run for run in a.subject.runs], [run.run for run in b.subject.runs], allow)
    everyone = [*a.subject.runs, *b.subject.runs]
    unit = "USD" if all(run.run.price_usd_per_hour > 0 for run in everyone) else "s"
    arm_a, arm_b = summarise(a, unit), summarise(b, unit)
    judge = compare_at_looks if sequential else compare_costs
    returns = list(arm_b.returns), list(arm_a.returns)
    improvement = improvement_estimate(*returns) if all(returns) else None
    costs, reasons = _known(judge(arm_a.costs, arm_b.costs), arm_a, arm_b), tuple(_reasons(arm_a, arm_b))
    notes = [Caveat(Cause.ON_TRUST, note) for note in matching.notes]
    warnings = (*notes, *_warnings(arm_a, arm_b, unit))
    config = config_differences(a.subject.runs, b.subject.runs)
    return Comparison(arm_a, arm_b, unit, matching, costs, improvement, sequential, reasons, warnings, config)


def _reasons(a: ReportSide, b: ReportSide) -> list[str]:
    """Say whether the machine was busy, and in which phase the difference between arms lies that reached the target."""
    busy = a.others > BUSY_SHARE or b.others > BUSY_SHARE
    kept = f"others kept {percent(a.others)} of the cores while A ran and {percent(b.others)} while B did"
    found = [f"the machine was busy: {kept}, so seconds are no measure of the recipes"] if busy else []
    if not (a.reached and b.reached and a.phase_seconds and b.phase_seconds):
        return found
    total_a, total_b = sum(a.phase_seconds.values()), sum(b.phase_seconds.values())
    if total_a <= 0 or abs(total_b - total_a) < FASTER * total_a:
        return found
    phases_a, phases_b = _alike(a.phase_seconds, b.phase_seconds)
    change = {name: phases_b.get(name, 0.0) - phases_a.get(name, 0.0) for name in {*phases_a, *phases_b}}
    saves = total_b < total_a
    cause = min(change, key=lambda name: change[name]) if saves else max(change, key=lambda name: change[name])
    before, after = (duration(phases.get(cause, 0.0)) for phases in (phases_a, phases_b))
    verb = f"saves {percent(1 - total_b / total_a)} of the" if saves else f"takes {percent(total_b / total_a - 1)} more"
    alike = [abs(seconds) for seconds in change.values() if (seconds < 0) == saves]
    went = "shrank" if saves else "grew"
    return [
        *found,
        f"B {verb} time ({duration(total_a)} → {duration(total_b)} per run that reached the target)"
        f"{';' if busy else ' because'} `{plain(cause, 40)}` {went} from {before} to {after} "
        f"({percent(abs(change[cause]) / sum(alike))} of what {went})",
    ]


def _alike(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Phases of both sides under the same names: where one collects in one piece, the other's parts are added up."""
    same = (Phase.ROLLOUT in a) == (Phase.ROLLOUT in b)
    return (dict(a), dict(b)) if same else (_collected(a), _collected(b))


def _collected(phases: Mapping[str, float]) -> dict[str, float]:
    parts = (Phase.ROLLOUT, Phase.ENV_STEP, Phase.ENV_RESET, Phase.STORE, Phase.INFERENCE)
    whole = sum(phases.get(name, 0.0) for name in parts)
    return {name: seconds for name, seconds in phases.items() if name not in parts} | {Phase.ROLLOUT: whole}


def _warnings(a: ReportSide, b: ReportSide, unit: str) -> list[Caveat]:
    found = []
    for name, side in (("A", a), ("B", b)):
        if side.left_out:
            evidence = f"{side.left_out} runs of {name} are still running and not counted"
            found.append(Caveat(Cause.STILL_RUNNING, evidence, side.label))
        found += _histories(name, side)
        unknown = side.runs - len(side.returns)
        if unknown and side.returns:
            evidence = f"{unknown} runs of {name} were never evaluated and have no return"
            found.append(Caveat(Cause.UNEVALUATED, evidence, side.label))
    found += _algorithmic(a, b)
    if unit == "s":
        found.append(Caveat(Cause.NO_PRICE, "not every run has a price, so seconds are compared and not dollars"))
    return found


def _known(costs: CostComparison, a: ReportSide, b: ReportSide) -> CostComparison:
    """The outcome, unless a side was stopped too early to lose, or won with costs behind it that nobody knows."""
    for name, side, rival, other, won in (("A", a, "B", b, Verdict.A_CHEAPER), ("B", b, "A", a, Verdict.B_CHEAPER)):
        short = [steps for steps in side.cut_short if other.needed and steps < max(other.needed)]
        if short and costs.verdict is not won:
            why = f"{name} was stopped at {_steps(short)} steps, {rival}'s runs needed {_steps(other.needed)}"
            return replace(costs, verdict=Verdict.UNDECIDED, more_runs=None, statement=f"undecided: {why}")
    named = {Verdict.A_CHEAPER: ("A", a), Verdict.B_CHEAPER: ("B", b)}
    name, cheaper = named.get(costs.verdict, ("", a))
    if not name or not cheaper.unknown_parents:
        return costs
    why = f"what run {cheaper.unknown_parents[0]} cost, which a run of {name} resumes, is unknown"
    return replace(costs, verdict=Verdict.UNDECIDED, more_runs=None, statement=f"undecided: {why}")


def _steps(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _histories(name: str, side: ReportSide) -> list[Caveat]:
    """What runs of an arm have behind them, or only say."""
    found = []
    if side.resumed:
        evidence = f"{side.resumed} runs of {name} resume others, whose cost and steps are counted"
        found.append(Caveat(Cause.RESUMED, evidence, side.label))
    if side.unknown_parents:
        evidence = f"the cost of {side.unknown_parents[0]}, which a run of {name} resumes, is unknown and not counted"
        found.append(Caveat(Cause.UNKNOWN_PARENT, evidence, side.label))
    if side.unclocked:
        evidence = f"{side.unclocked} runs of {name} worked long before their clock started: that is not counted"
        found.append(Caveat(Cause.UNCLOCKED, evidence, side.label))
    if side.states.get(EndState.CLAIMED):
        count = side.states[EndState.CLAIMED]
        evidence = f"{count} runs of {name} only claim to have reached the target, and count as failed"
        found.append(Caveat(Cause.CLAIMED, evidence, side.label))
    if side.stopped_short:
        evidence = (
            f"{side.stopped_short} runs of {name} ended at a target of their own before they reached this one, "
            "and count as failed"
        )
        found.append(Caveat(Cause.STOPPED_SHORT, evidence, side.label))
    return found


def _algorithmic(a: ReportSide, b: ReportSide) -> list[Caveat]:
    """A speed-up that comes from needing fewer steps is a claim about learning, not about speed."""
    if not (a.seconds_per_success and b.seconds_per_success and a.steps_per_success and b.steps_per_success):
        return []
    gain = math.log(a.seconds_per_success / b.seconds_per_success)
    if abs(gain) < FASTER:
        return []
    steps_gain = math.log(a.steps_per_success / b.steps_per_success)
    if steps_gain / gain <= 0.5:
        return []
    name, sign = ("B", 1.0) if gain > 0 else ("A", -1.0)
    fewer = 1 - math.exp(-sign * steps_gain)
    per_step = math.exp(-sign * (gain - steps_gain)) - 1
    evidence = (
        f"{name} is faster mostly because it needs {percent(fewer)} fewer steps (algorithmic), while its time per step "
        f"changed by {100 * per_step:+.1f} % (systems): this is not a speed-up of the system"
    )
    return [Caveat(Cause.FEWER_STEPS, evidence, (b if gain > 0 else a).label)]


def _estimate(estimate: Estimate, form: str) -> str:
    value = form.format(estimate.value)
    if estimate.interval is None:
        return f"{value} ({estimate.statement})"
    return f"{value} [{estimate.interval.spelled(form.format, ', ')}]"


def _expected(comparison: Comparison, arm: ReportSide) -> str:
    expected, spell = arm.expected, comparison.spell
    if expected.value is None:
        return f"not reached ({spell(expected.spent)} spent)"
    if expected.interval is None:
        return f"{spell(expected.value)} ({expected.statement})"
    return f"{spell(expected.value)} [{expected.interval.spelled(spell, ', ')}]"


def _typical(comparison: Comparison, arm: ReportSide) -> str:
    if arm.typical.value is None:
        return "not reached"
    if arm.typical.interval is None:
        return f"{comparison.spell(arm.typical.value)} ({arm.typical.statement})"
    return f"{comparison.spell(arm.typical.value)} [{arm.typical.interval.spelled(comparison.spell, ', ')}]"


def _failure_rate(_: Comparison, arm: ReportSide) -> str:
    rate = arm.failure_rate
    assert rate.value is not None
    assert rate.interval is not None
    return f"{percent(rate.value)} [{rate.interval.spelled(percent, ', ')}]"


def _states(arm: ReportSide) -> str:
    order = [state.value for state in EndState if arm.states.get(state.value)]
    return ", ".join(f"{arm.states[state]} {state.replace('_', ' ')}" for state in order)


def _or_dash(value: float | None, spell: Callable[[float], str]) -> str:
    return "–" if value is None else spell(value)


def _reader(metric: RunMetric) -> Callable[[Comparison, ReportSide], str]:
    return lambda _, arm: metric.spelled(arm.metrics[metric.name], absent="–")


_ROWS: tuple[tuple[str, Any], ...] = (
    ("runs", lambda _, arm: arm.label),
    ("reached", lambda _, arm: f"{arm.reached} of {arm.runs}"),
    ("failed runs", lambda _, arm: f"{arm.failed}"),
    ("ends", lambda _, arm: _states(arm)),
    ("cost when reached, geometric mean", _typical),
    ("failure rate", _failure_rate),
    ("expected cost to target", _expected),
    ("expected wall-clock to target", lambda _, arm: _or_dash(arm.seconds_per_success, duration)),
    ("expected steps to target", lambda _, arm: _or_dash(arm.steps_per_success, "{:,.0f}".format)),
    ("spent in all", lambda c, arm: c.spell(arm.spent)),
    ("IQM return", lambda _, arm: "–" if arm.iqm_return is None else _estimate(arm.iqm_return, "{:,.1f}")),
    *((metric.title, _reader(metric)) for metric in shown(Shown.COMPARE)),
)  # fmt: skip


def _estimate_dict(estimate: Estimate | None) -> Record | None:
    if estimate is None:
        return None
    interval = None if estimate.interval is None else estimate.interval.as_list()
    return {"value": estimate.value, "interval": interval, "statement": estimate.statement}


def _answer_dict(answer: CostAnswer | None) -> Record | None:
    if answer is None:
        return None
    return {"verdict": answer.verdict.value, "ratio_a_over_b": answer.ratio, "interval": answer.interval.as_list()}


def _failures_dict(failures: FailureComparison | None) -> Record | None:
    if failures is None:
        return None
    rates = {"a": _estimate_dict(failures.a), "b": _estimate_dict(failures.b)}
    return {"verdict": failures.verdict.value, "p_value": failures.p_value, **rates}


def _arm_dict(arm: ReportSide) -> Record:
    expected = arm.expected
    return {
        **{name: getattr(arm, name) for name in ("label", "runs", "reached", "failed")},
        "states": dict(arm.states),
        "still_running": arm.left_out,
        "expected_cost_to_target": expected.value,
        "interval": None if expected.interval is None else expected.interval.as_list(),
        "statement": expected.statement,
        "cost_when_reached": _estimate_dict(arm.typical),
        "failure_rate": _estimate_dict(arm.failure_rate),
        "resumed": arm.resumed,
        "setting": dict(arm.setting),
        "spent": arm.spent,
        "spent_to_target": arm.costs.spent,
        "iqm_return": _estimate_dict(arm.iqm_return),
        **arm.metrics,
        "seconds_per_success": arm.seconds_per_success,
        "steps_per_success": arm.steps_per_success,
        "phase_seconds": dict(arm.phase_seconds),
    }
