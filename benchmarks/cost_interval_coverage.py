"""Does the interval of the expected cost to target cover what it claims, and how often are equal arms told apart?

Runs are simulated from known distributions, so that the true expected cost is known. Times to target have median near 1
and every run stops at a budget of 10; a share of the runs fails whatever its time, either stuck until the budget or
crashing at a random moment. For comparison the percentile bootstrap is measured on the same panels.

    python benchmarks/cost_interval_coverage.py --out benchmarks/results/cost_interval_coverage.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mileage.meter import fingerprint
from mileage.stats import RunCosts, Verdict, compare_at_looks, compare_costs, expected_cost

BUDGET = 10.0
DRAWS = 4000
TRUTH_RUNS = 4_000_000

Sampler = Callable[[np.random.Generator, int], NDArray[np.float64]]

# Heavy tails: log-Student with 3 degrees of freedom, Pareto 1.5 (infinite variance), Weibull 0.5 (towards 0 as well).
TIMES: dict[str, Sampler] = {
    "log-normal 0.2": lambda rng, n: np.exp(0.2 * rng.standard_normal(n)),
    "log-normal 0.5": lambda rng, n: np.exp(0.5 * rng.standard_normal(n)),
    "log-normal 1.0": lambda rng, n: np.exp(rng.standard_normal(n)),
    "log-student 3": lambda rng, n: np.exp(0.7 * rng.standard_t(3, n)),
    "pareto 1.5": lambda rng, n: (1.0 - rng.random(n)) ** (-1 / 1.5),
    "weibull 0.5": lambda rng, n: rng.weibull(0.5, n),
}
FAILURES: dict[str, tuple[float, str]] = {
    "no failures": (0.0, "stuck"),
    "20 % stuck": (0.2, "stuck"),
    "20 % crash": (0.2, "crash"),
    "50 % stuck": (0.5, "stuck"),
}


def simulate(
    times: Sampler, failures: tuple[float, str], rng: np.random.Generator, n: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Cost and success of `n` runs."""
    share, kind = failures
    seconds = times(rng, n)
    failed = rng.random(n) < share
    reached = ~failed & (seconds <= BUDGET)
    failure_cost = rng.random(n) * BUDGET if kind == "crash" else np.full(n, BUDGET)
    cost = np.where(reached, seconds, np.where(failed, failure_cost, BUDGET))
    return cost, reached


def truth(times: Sampler, failures: tuple[float, str]) -> float:
    cost, reached = simulate(times, failures, np.random.default_rng(1), TRUTH_RUNS)
    return float(cost.sum() / reached.sum())


def bootstrap_covers(cost: NDArray[np.float64], reached: NDArray[np.bool_], value: float, seed: int) -> bool:
    rng = np.random.default_rng(seed)
    index = rng.integers(0, len(cost), (1000, len(cost)))
    successes = reached[index].sum(axis=1)
    with np.errstate(divide="ignore"):
        resampled = cost[index].sum(axis=1) / successes
    low, high = np.quantile(resampled, [0.025, 0.975], method="nearest")
    return bool(low <= value <= high)


def coverage(times: Sampler, failures: tuple[float, str], n: int, panels: int, budget: float | None) -> dict[str, Any]:
    value = truth(times, failures)
    rng = np.random.default_rng(2)
    hits = bootstrap_hits = shown = 0
    widths = []
    for panel in range(panels):
        cost, reached = simulate(times, failures, rng, n)
        if not reached.any():
            continue  # No interval is shown: the answer is "not reached".
        shown += 1
        interval = expected_cost(RunCosts.of(cost, reached, budget), draws=DRAWS, seed=panel).interval
        assert interval is not None
        hits += value in interval
        widths.append(interval.high / interval.low)
        bootstrap_hits += bootstrap_covers(cost, reached, value, panel)
    return {
        "panels": shown,
        "true_cost": value,
        "coverage": hits / shown,
        "bootstrap_coverage": bootstrap_hits / shown,
        "median_high_over_low": float(np.median(widths)),
    }


def false_verdicts(times: Sampler, failures: tuple[float, str], pairs: int) -> dict[str, Any]:
    """Verdicts between equal arms of up to 30 runs: at the planned looks, and peeking after every run from 3 on."""
    rng = np.random.default_rng(3)
    planned = peeking = 0
    for pair in range(pairs):
        arms = [RunCosts.of(*simulate(times, failures, rng, 30), BUDGET) for _ in range(2)]
        planned += compare_at_looks(*arms, draws=DRAWS, seed=pair).verdict is not Verdict.UNDECIDED
        if pair >= pairs // 4:
            continue  # Peeking takes 28 comparisons a pair; a quarter of the pairs shows enough.
        peeking += any(
            compare_costs(arms[0].first(n), arms[1].first(n), draws=1000, seed=pair).verdict is not Verdict.UNDECIDED
            for n in range(3, 31)
        )
    return {"pairs": pairs, "planned_looks": planned / pairs, "peeking_after_every_run": peeking / (pairs // 4)}


def study(panels: int, pairs: int) -> dict[str, Any]:
    covered = []
    for name, times in TIMES.items():
        for failure_name, failures in FAILURES.items():
            for n in (5, 10, 20):
                row = coverage(times, failures, n, panels, BUDGET)
                covered.append({"times": name, "failures": failure_name, "n": n, "budget": "known", **row})
                print(covered[-1], flush=True)
            row = coverage(times, failures, 5, panels // 2, None)
            covered.append({"times": name, "failures": failure_name, "n": 5, "budget": "unknown", **row})
            print(covered[-1], flush=True)
    verdicts = []
    for name, times in TIMES.items():
        for failure_name in ("no failures", "20 % stuck"):
            row = false_verdicts(times, FAILURES[failure_name], pairs)
            verdicts.append({"times": name, "failures": failure_name, **row})
            print(verdicts[-1], flush=True)
    return {"coverage": covered, "false_verdicts": verdicts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--panels", type=int, default=1000, help="panels per distribution and number of runs")
    parser.add_argument("--pairs", type=int, default=1000, help="pairs of equal arms per distribution")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    start = time.perf_counter()
    result = study(args.panels, args.pairs)
    known = [row for row in result["coverage"] if row["budget"] == "known"]
    result["summary"] = {
        "lowest_coverage_n5": min(row["coverage"] for row in known if row["n"] == 5),
        "lowest_coverage": min(row["coverage"] for row in known),
        "highest_false_verdict_rate": max(row["planned_looks"] for row in result["false_verdicts"]),
        "highest_peeking_rate": max(row["peeking_after_every_run"] for row in result["false_verdicts"]),
    }
    result |= {"seconds": time.perf_counter() - start, "machine": fingerprint().as_dict()}
    print(json.dumps(result["summary"], indent=1))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
