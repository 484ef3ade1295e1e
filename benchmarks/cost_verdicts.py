"""Do intervals of costs cover what they claim, and how often are equal arms told apart?

Runs are simulated from known distributions, so that the truth is known. A share of the runs is stuck and costs the
budget; a run that would take longer than its budget is either stopped there and has failed ("stopped"), or counts as a
late success ("counted"), which a budget that was declared wrongly looks like. Budgets are multiples of the median cost;
"unknown" runs stop at ten times the median and nobody is told. For comparison the percentile bootstrap is measured.

    python benchmarks/cost_verdicts.py --out benchmarks/results/cost_verdicts.json --plot docs/images/cost-verdicts.svg
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from cost_verdicts_plot import dots
from mileage.measure import LOOK_ALPHAS, LOOKS, RunCosts, expected_cost, fingerprint
from mileage.measure.cost import ENOUGH_RUNS, LEAST_HALF_WIDTH, typical_quantile
from mileage.measure.verdict import ERROR_SHARE, gap, labellings, tails

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Sampler = Callable[[np.random.Generator, tuple[int, ...]], Floats]

SEED = 12
"""Of every draw. Tests and intervals were chosen on other draws, so that the committed result is a confirmation."""
TRUTH_RUNS = 2_000_000
DRAWS = 500
MOST_LABELLINGS = 1_000
SIZES = (3, 5, 10)
SUCCESS = (0.4, 0.8, 1.0)
BUDGETS: dict[str, tuple[float, float]] = {
    "unknown": (10.0, 10.0),
    "2×": (2.0, 2.0),
    "10×": (10.0, 10.0),
    "1000×": (1000.0, 1000.0),
    "different": (2.0, 1000.0),
}
"""What the stuck runs of both arms cost, in medians of the cost of a success."""
LATE = {"counted": tuple(BUDGETS), "stopped": ("2×", "10×", "different")}
"""What becomes of a run that takes longer than its budget, and the budgets at which that matters."""


def _two_modes(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return np.where(rng.random(shape) < 0.5, 0.5, 5.0)


TIMES: dict[str, tuple[Sampler, float]] = {
    "log-normal 0.3": (lambda rng, shape: np.exp(0.3 * rng.standard_normal(shape)), math.exp(0.3**2 / 2)),
    "log-normal 1": (lambda rng, shape: np.exp(rng.standard_normal(shape)), math.exp(0.5)),
    "log-normal 1.5": (lambda rng, shape: np.exp(1.5 * rng.standard_normal(shape)), math.exp(1.5**2 / 2)),
    "gamma 2": (lambda rng, shape: rng.gamma(2.0, 1 / 1.678, shape), 2 / 1.678),
    "gamma 0.5": (lambda rng, shape: rng.gamma(0.5, 1 / 0.2275, shape), 0.5 / 0.2275),
    "Pareto 1.5": (lambda rng, shape: (2 * (1.0 - rng.random(shape))) ** (-1 / 1.5), 3 * 2 ** (-1 / 1.5)),
    "two modes": (_two_modes, 2.75),
    "Weibull 0.5": (lambda rng, shape: rng.weibull(0.5, shape) / 0.4805, 2 / 0.4805),
    "log-Student 3": (lambda rng, shape: np.exp(0.7 * rng.standard_t(3, shape)), math.inf),
}
"""Costs of a success, with median 1 (two modes: 0.5 and 5, equally often), and their mean."""


def simulate(
    times: Sampler, success: float, budget: float, late: str, rng: np.random.Generator, shape: tuple[int, ...]
) -> tuple[Floats, Bools]:
    """Cost and success of runs."""
    seconds = times(rng, shape)
    reached = rng.random(shape) < success
    if late == "stopped":
        reached &= seconds <= budget
    return np.where(reached, seconds, budget), reached


@functools.cache
def truth(name: str, success: float, budget: float, late: str) -> tuple[float, float]:
    """Expected cost to target, and geometric mean of the cost of a success."""
    times, mean = TIMES[name]
    seconds = times(np.random.default_rng(1), (TRUTH_RUNS,))
    if late == "counted":
        return mean + (1 - success) / success * budget, float(np.exp(np.log(seconds).mean()))
    within = seconds[seconds <= budget]
    rate = success * len(within) / TRUTH_RUNS
    return float(within.mean()) + (1 - rate) / rate * budget, float(np.exp(np.log(within).mean()))


def cells() -> Iterator[tuple[str, int, float, str, str]]:
    """Every cell of the grid; a cost without a mean has no expected cost unless runs are stopped."""
    for name, (_, mean) in TIMES.items():
        for n in SIZES:
            for success in SUCCESS:
                for budget in BUDGETS:
                    late = [each for each in LATE if budget in LATE[each]]
                    for each in late if math.isfinite(mean) else ["stopped"]:
                        yield name, n, success, budget, each


def _random(name: str, n: int, success: float, budget: str, late: str, *more: int) -> np.random.Generator:
    """A stream of its own for every cell, so that one unlucky draw is not seen in many."""
    place = (list(TIMES).index(name), n, round(10 * success), list(BUDGETS).index(budget), list(LATE).index(late))
    return np.random.default_rng([SEED, *place, *more])


# Intervals of one arm


def coverage(name: str, n: int, success: float, budget: str, late: str, panels: int) -> dict[str, Any]:
    """How often the interval of the expected cost holds the truth, where it is shown."""
    stop = BUDGETS[budget][0]
    cost, reached = simulate(TIMES[name][0], success, stop, late, _random(name, n, success, budget, late), (panels, n))
    expected, _ = truth(name, success, stop, late)
    told = None if budget == "unknown" else stop
    shown = np.flatnonzero(reached.any(axis=1))
    hits, bounded, widths, bootstrap = 0, 0, [], 0
    for panel in shown:
        interval = expected_cost(RunCosts.of(cost[panel], reached[panel], told), draws=DRAWS, seed=int(panel)).interval
        assert interval is not None
        hits += expected in interval
        if math.isfinite(interval.high):
            bounded += 1
            widths.append(interval.high / interval.low)
        bootstrap += n == 5 and bootstrap_covers(cost[panel], reached[panel], expected, int(panel))
    return {
        "panels": len(shown),
        "true_cost": expected,
        "coverage": hits / len(shown),
        "bounded": bounded / len(shown),
        "median_high_over_low": float(np.median(widths)) if widths else None,
        "bootstrap_coverage": bootstrap / len(shown) if n == 5 else None,
    }


def bootstrap_covers(cost: Floats, reached: Bools, value: float, seed: int) -> bool:
    """Whether the percentile bootstrap of one panel holds `value`."""
    index = np.random.default_rng(seed).integers(0, len(cost), (200, len(cost)))
    with np.errstate(divide="ignore"):
        resampled = cost[index].sum(axis=1) / reached[index].sum(axis=1)
    low, high = np.quantile(resampled, [0.025, 0.975], method="nearest")
    return bool(low <= value <= high)


def typical(name: str, n: int, success: float, budget: str, late: str, panels: int) -> dict[str, Any]:
    """How often the interval of the typical cost holds the truth, where it is shown."""
    stop = BUDGETS[budget][0]
    rng = _random(name, n, success, budget, late, 2)
    cost, reached = simulate(TIMES[name][0], success, stop, late, rng, (panels, n))
    _, value = truth(name, success, stop, late)
    return {
        "typical_panels": int((reached.sum(axis=1) >= 3).sum()),
        "typical_coverage": typical_coverage(cost, reached, value),
    }


def typical_coverage(cost: Floats, reached: Bools, value: float) -> float | None:
    """How often the interval of the typical cost holds `value`, among panels with at least three successes."""
    count = reached.sum(axis=1)
    chosen = count >= 3
    if not chosen.any():
        return None
    logs = np.where(reached, np.log(cost), 0.0)[chosen]
    n = count[chosen]
    middle = logs.sum(axis=1) / n
    scatter = (np.where(reached[chosen], logs - middle[:, None], 0.0) ** 2).sum(axis=1)
    half = stdtrit(n - 1, typical_quantile(0.95)) * np.sqrt(scatter / (n - 1) / n)
    half = np.where(n >= ENOUGH_RUNS, half, np.maximum(half, LEAST_HALF_WIDTH))
    return float((np.abs(middle - math.log(value)) <= half).mean())


# Verdicts between two arms


def verdicts(cost: Floats, reached: Bools, alpha: float) -> NDArray[np.int64]:
    """What `compare_costs` says of pairs of arms, (pairs, 2, n): -1 A cheaper, 1 B cheaper, 0 undecided."""
    found = np.zeros(len(cost), np.int64)
    strict = ERROR_SHARE * alpha
    clean = reached.all(axis=(1, 2))
    never = (reached.sum(axis=2) == 0).any(axis=1)
    found[clean] = _welch(np.log(cost[clean]), strict)
    mixed = ~clean & reached.any(axis=(1, 2))
    runs = cost.shape[1] * cost.shape[2]
    sign = _relabelled(cost[mixed].reshape(-1, runs), reached[mixed].reshape(-1, runs), strict)
    # An arm that never reached the target loses only if it had the money for one success of the other.
    spent, successes = cost.sum(axis=2), reached.sum(axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        price = spent / successes
    poor = never & (np.where(successes == 0, spent, np.inf).min(axis=1) < price.min(axis=1))
    found[mixed] = sign
    return np.where(poor, 0, found)


def _welch(logs: Floats, alpha: float) -> NDArray[np.int64]:
    """Welch's test of logarithms, (pairs, 2, n) float64."""
    n = logs.shape[2]
    difference = logs[:, 0].mean(axis=1) - logs[:, 1].mean(axis=1)
    errors = logs.var(axis=2, ddof=1) / n
    total = errors.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = total**2 / ((errors**2).sum(axis=1) / (n - 1))
        p = 2 * stdtr(np.where(total > 0, freedom, 1.0), -np.abs(difference) / np.sqrt(total))
    p = np.where(total > 0, p, np.where(difference == 0, 1.0, 0.0))
    return np.where(p < alpha, np.sign(difference), 0).astype(np.int64)


@functools.cache
def _marks(n: int) -> Floats:
    return labellings(n, n, MOST_LABELLINGS)


def _relabelled(cost: Floats, reached: Bools, alpha: float) -> NDArray[np.int64]:
    """The test of expected costs, (pairs, 2 n): A's runs first."""
    found = np.zeros(len(cost), np.int64)
    marks = _marks(cost.shape[1] // 2).T
    for start in range(0, len(cost), 500):
        part = slice(start, start + 500)
        named, hits = cost[part] @ marks, reached[part].astype(np.float64) @ marks
        whole, all_hits = cost[part].sum(axis=1, keepdims=True), reached[part].sum(axis=1, keepdims=True)
        low, high = tails(gap(named, whole - named, hits, all_hits - hits))
        decided = 2 * np.minimum(low, high) <= alpha
        found[part] = np.where(decided, np.where(low < high, -1, 1), 0)
    return found


def pairs_of(name: str, n: int, success: float, budget: str, late: str, pairs: int) -> tuple[Floats, Bools]:
    """Cost and success of pairs of arms that are alike but for their budgets, (pairs, 2, n)."""
    rng = _random(name, n, success, budget, late, 1)
    arms = [simulate(TIMES[name][0], success, stop, late, rng, (pairs, n)) for stop in BUDGETS[budget]]
    return np.stack([cost for cost, _ in arms], axis=1), np.stack([reached for _, reached in arms], axis=1)


def false_verdicts(name: str, n: int, success: float, budget: str, late: str, pairs: int) -> float:
    """Share of pairs with a verdict that the truth does not bear out; `n` above the first look means planned looks."""
    cost, reached = pairs_of(name, n, success, budget, late, pairs)
    if n == LOOKS[-1]:
        found = np.zeros(pairs, np.int64)
        for look, alpha in zip(LOOKS, LOOK_ALPHAS, strict=True):
            found = np.where(found == 0, verdicts(cost[:, :, :look], reached[:, :, :look], alpha), found)
    else:
        found = verdicts(cost, reached, 0.05)
    a, b = (truth(name, success, stop, late)[0] for stop in BUDGETS[budget])
    return float((found != 0).mean() if math.isclose(a, b) else (found == np.sign(b - a)).mean())


def power(name: str, n: int, pairs: int) -> float:
    """How often an arm that costs half is found out, if no run fails."""
    cost, reached = pairs_of(name, n, 1.0, "1000×", "counted", pairs)
    cost[:, 1] *= 2.0
    return float((verdicts(cost, reached, 0.05) == -1).mean())


def powers(pairs: int) -> list[dict[str, Any]]:
    """How often twice the cost is found out."""
    return [{"times": name, "n": n, "power": power(name, n, pairs)} for name in TIMES for n in SIZES]


def planned_looks(pairs: int) -> list[dict[str, Any]]:
    """False verdicts if equal arms are looked at as often as planned."""
    return [
        {"times": name, "success": success, "budget": budget, "late": late}
        | {"false_verdicts": false_verdicts(name, LOOKS[-1], success, budget, late, pairs)}
        for name, n, success, budget, late in cells()
        if n == SIZES[0] and budget != "unknown"
    ]


def every_cell(panels: int, pairs: int) -> list[dict[str, Any]]:
    """Coverage and false verdicts of single comparisons."""
    grid = []
    for name, n, success, budget, late in cells():
        where = {"times": name, "n": n, "success": success, "budget": budget, "late": late}
        row = {"false_verdicts": false_verdicts(name, n, success, budget, late, pairs)}
        if budget != "different":
            row |= coverage(name, n, success, budget, late, panels) | typical(name, n, success, budget, late, pairs)
        grid.append(where | row)
        print(grid[-1], flush=True)
    return grid


def summary(result: dict[str, Any]) -> dict[str, float]:
    """The worst of everything; of typical costs, among cells where at least half of the panels have an interval."""
    often = result["pairs"] / 2
    grid = [row for row in result["grid"] if "coverage" in row]
    return {
        "lowest_coverage": min(row["coverage"] for row in grid),
        "lowest_typical_coverage": min(row["typical_coverage"] for row in grid if row["typical_panels"] >= often),
        "highest_false_verdicts": max(row["false_verdicts"] for row in result["grid"]),
        "highest_false_verdicts_at_planned_looks": max(row["false_verdicts"] for row in result["planned_looks"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--panels", type=int, default=600, help="panels per cell")
    parser.add_argument("--pairs", type=int, default=4000, help="pairs of arms per cell")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path, help="SVG file")
    args = parser.parse_args()
    start = time.process_time()
    result: dict[str, Any] = {"panels": args.panels, "pairs": args.pairs, "seed": SEED}
    result["machine"] = fingerprint().as_dict()
    # The longest part last: what is done is written, whatever becomes of the rest.
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "power_at_twice_the_cost": lambda: powers(args.pairs),
        "planned_looks": lambda: planned_looks(args.pairs),
        "grid": lambda: every_cell(args.panels, args.pairs),
    }
    for name, part in parts.items():
        result[name] = part()
        result["cpu_seconds"] = time.process_time() - start
        _write(result, args.out)
    result["summary"] = summary(result)
    print(json.dumps(result["summary"], indent=1))
    _write(result, args.out)
    if args.plot:
        args.plot.write_text(dots(result))


def _write(result: dict[str, Any], path: Path | None) -> None:
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
