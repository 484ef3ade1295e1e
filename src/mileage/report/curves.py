"""Learning curves of recorded runs: what single seeds did, and the line and band that they make together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mileage.ledger.rows import Checkpoint
from mileage.ledger.runs import RecordedRun
from mileage.measure import FEWEST_RUNS, iqm_band
from mileage.metrics import duration, highest, startup_seconds
from mileage.report.arms import Exam, ReportArm
from mileage.report.axes import Point, compact, seconds, usd
from mileage.report.bars import Axis, Curve, Steps
from mileage.report.notebook import evaluated as checkpoints_evaluated

RESAMPLES = 1_000
GRID = 40
"""Most points of a line that several runs make together."""
MOST_SEEDS = 12
"""More runs than this are shown by their line and band alone."""
BAND = (
    f"line: interquartile mean over seeds; band: 95 % interval by bootstrap over seeds ({RESAMPLES:,} resamples), from "
    "the point on at which every seed has been evaluated; a seed between two evaluations is on the straight line "
    "between them, and one that has ended keeps its last value"
)


@dataclass(frozen=True)
class CurveAxis:
    """A way to count how far a run is."""

    key: str
    axis: Axis
    field: str
    """Of a checkpoint."""
    carried: str
    """What the runs before a resumed one add to it."""


WAYS: dict[str, CurveAxis] = {
    way.key: way
    for way in (
        CurveAxis("steps", Axis("environment steps", compact), "step", "env_steps"),
        CurveAxis(
            "seconds", Axis("wall-clock after start-up, evaluation included", seconds), "wall_seconds", "wall_seconds"
        ),
        CurveAxis("dollars", Axis("dollars billed after start-up", usd), "cost_usd", "cost_usd"),
    )
}


def ways(exam: Exam) -> list[CurveAxis]:
    """The ways that make sense for the runs of an exam: dollars need a price."""
    return [way for way in WAYS.values() if way.key != "dollars" or exam.unit == "USD"]


def evaluated(run: RecordedRun) -> list[tuple[Checkpoint, float]]:
    """The evaluated checkpoints of a run with the number that its target looks at, else the mean return."""
    return checkpoints_evaluated(run.checkpoints)


def _before(run: RecordedRun, way: CurveAxis) -> float:
    """Where the curve of a run begins: behind the runs that it resumes, and before its own start-up."""
    carried = 0.0 if run.before is None else float(run.before.used[way.carried])
    if way.key == "steps":
        return carried
    per_second = 1.0 if way.key == "seconds" else run.run.price_usd_per_hour * run.run.instances / 3600.0
    return carried - startup_seconds(run.totals) * per_second


def startup_words(exam: Exam) -> str:
    """How long the runs of an exam took to start, which curves against time leave out."""
    found = [startup_seconds(run.totals) for run in exam.runs]
    return f"Start-up (imports, compiling) is left out: {duration(min(found))} to {duration(max(found))} a seed. "


def points(run: RecordedRun, way: CurveAxis) -> tuple[Point, ...]:
    """A run's curve."""
    before = _before(run, way)
    return tuple((max(before + float(getattr(row, way.field)), 0.0), value) for row, value in evaluated(run))


def first_reached(run: RecordedRun, way: CurveAxis) -> Point | None:
    """The first evaluation that met the target."""
    before = _before(run, way)
    for row, value in evaluated(run):
        if row.target_met:
            return max(before + float(getattr(row, way.field)), 0.0), value
    return None


def curve(arm: ReportArm, way: CurveAxis) -> Curve:
    """The curve of a recipe: its seeds, and the line and band they make where each has been evaluated."""
    lines = [line for run in arm.runs if not run.voided and (line := points(run, way))]
    reached = tuple(point for run in arm.runs if (point := first_reached(run, way)) is not None)
    name = f"{arm.label} ({arm.seeds})"
    if len(lines) == 1:
        return Curve(name, lines[0], reached=reached)
    seeds = tuple(lines) if len(lines) <= MOST_SEEDS else ()
    if not lines:
        return Curve(name, ())
    grid = common_grid(lines)
    values = np.array([np.interp(grid, [x for x, _ in line], [y for _, y in line]) for line in lines])
    estimates = iqm_band(values, resamples=RESAMPLES)
    middle = tuple((float(x), float(each.value or 0.0)) for x, each in zip(grid, estimates, strict=True))
    if len(lines) < FEWEST_RUNS:
        return Curve(name, middle, seeds=seeds, reached=reached)
    ends = [(each.interval.low, each.interval.high) for each in estimates if each.interval is not None]
    return Curve(name, middle, tuple(low for low, _ in ends), tuple(high for _, high in ends), seeds, reached)


def common_grid(lines: Sequence[Sequence[Point]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Where all `lines` have begun: their points from there on, thinned to at most `GRID`; (m,) float64."""
    start = max(line[0][0] for line in lines)
    places = sorted({x for line in lines for x, _ in line if x >= start})
    if len(places) > GRID:
        places = [places[round(i * (len(places) - 1) / (GRID - 1))] for i in range(GRID)]
    return np.array(places, np.float64)


def final_returns(run: RecordedRun) -> tuple[float, ...]:
    """What the held-out episodes returned at the first evaluation that met the target, otherwise at the last one."""
    there = {episode.seq for episode in run.episodes}
    met = next((row.seq for row, _ in evaluated(run) if row.target_met and row.seq in there), None)
    seq = met if met is not None else max(there, default=None)
    return tuple(e.episode_return for e in run.episodes if e.seq == seq and e.episode_return is not None)


def profile(arm: ReportArm) -> Steps:
    """Of the held-out episodes of all seeds, the share that returned at least so much; nothing without episodes."""
    runs = [returns for run in arm.runs if not run.voided and (returns := final_returns(run))]
    if not runs:
        return Steps(arm.label, (), ())
    scores = np.quantile(np.concatenate([np.array(each) for each in runs]), np.linspace(0.0, 1.0, GRID))
    scores = np.unique(scores)
    shares = np.array([[float(np.mean(np.array(each) >= score)) for score in scores] for each in runs])
    name = f"{arm.label} ({len(runs)} seeds)"
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    if len(runs) >= FEWEST_RUNS:
        drawn = np.random.default_rng(0).integers(0, len(runs), (RESAMPLES, len(runs)))
        ends = np.quantile(shares[drawn].mean(axis=1), [0.025, 0.975], axis=0)
        low, high = tuple(ends[0].tolist()), tuple(ends[1].tolist())
    middle = tuple(shares.mean(axis=0).tolist())
    # Everybody returned at least a little less than the lowest, and nobody more than the highest.
    below, above = float(scores[0]) - 0.04 * (float(np.ptp(scores)) or abs(float(scores[0])) or 1.0), float(scores[-1])
    ends_low, ends_high = ((1.0, *low, 0.0), (1.0, *high, 0.0)) if low else ((), ())
    return Steps(name, (below, *scores.tolist(), above), (1.0, *middle, 0.0), ends_low, ends_high)


def memory(arm: ReportArm) -> Curve:
    """Peak memory over time: the seed that used most of it; nothing where there is no line to draw."""
    runs = [run for run in arm.runs if any(row.peak_rss_gb is not None for row in run.checkpoints)]
    if not runs:
        return Curve(arm.label, ())
    run = max(runs, key=lambda each: highest(row.peak_rss_gb for row in each.checkpoints) or 0.0)
    line = tuple((row.wall_seconds, row.peak_rss_gb) for row in run.checkpoints if row.peak_rss_gb is not None)
    return Curve(arm.label, line if len(line) > 1 else ())


def phase_readings(run: RecordedRun) -> list[tuple[float, dict[str, float]]]:
    """What a run's clock said each time that it was written down."""
    found: dict[int, tuple[float, dict[str, float]]] = {}
    for row in run.phase_history or run.phase_rows:
        if not row.beside:
            found.setdefault(row.seq, (row.wall_seconds, {}))[1][row.phase] = row.seconds
    return sorted(found.values(), key=lambda reading: reading[0])
