"""The committed study of costs and verdicts keeps its promises, says what the product does, and can be repeated."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mileage.measure import RunCosts, Verdict, compare_costs, typical_cost

ROOT = Path(__file__).parents[2]
LOWEST_COVERAGE = 0.90
HIGHEST_ERROR = 0.05
LEAST_POWER = 0.60
SIGNS = {Verdict.A_CHEAPER: -1, Verdict.B_CHEAPER: 1, Verdict.UNDECIDED: 0}


@pytest.fixture(scope="module")
def study() -> ModuleType:
    path = ROOT / "benchmarks" / "cost_verdicts.py"
    sys.path.insert(0, str(path.parent))
    try:
        spec = importlib.util.spec_from_file_location("cost_verdicts", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def test_committed_study_covers_keeps_its_error_rate_and_decides(study: ModuleType) -> None:
    result = json.loads((ROOT / "benchmarks" / "results" / "cost_verdicts.json").read_text())
    where = [tuple(row[name] for name in ("times", "n", "success", "budget", "late")) for row in result["grid"]]
    assert where == list(study.cells())
    told = [row for row in result["grid"] if "coverage" in row]
    assert min(row["coverage"] for row in told) >= LOWEST_COVERAGE
    assert min(row["typical_coverage"] for row in told if row["typical_panels"] >= 2000) >= LOWEST_COVERAGE
    assert max(row["false_verdicts"] for row in result["grid"]) <= HIGHEST_ERROR
    assert max(row["false_verdicts"] for row in result["planned_looks"]) <= HIGHEST_ERROR
    power = {(row["times"], row["n"]): row["power"] for row in result["power_at_twice_the_cost"]}
    assert power["log-normal 0.3", 5] >= LEAST_POWER
    assert (result["panels"], result["pairs"]) == (600, 4000)


@pytest.mark.parametrize(("n", "success"), [(3, 0.8), (3, 1.0), (5, 0.4), (5, 0.8), (5, 1.0), (6, 0.8)])
@pytest.mark.parametrize("times", ["log-normal 0.3", "two modes"])
def test_the_study_judges_as_the_product_does(study: ModuleType, times: str, n: int, success: float) -> None:
    cost, reached = study.pairs_of(times, n, success, "10×", "counted", 40)
    cost[:20, 1] *= 4.0  # some pairs are told apart
    found = study.verdicts(cost, reached, 0.05)
    arms = [[RunCosts.of(cost[i, j], reached[i, j]) for j in range(2)] for i in range(40)]
    assert found.tolist() == [SIGNS[compare_costs(a, b).verdict] for a, b in arms]


def test_the_study_bounds_typical_costs_as_the_product_does(study: ModuleType) -> None:
    cost, reached = study.simulate(study.TIMES["gamma 2"][0], 0.8, 10.0, "counted", np.random.default_rng(5), (200, 5))
    intervals = [typical_cost(RunCosts.of(c, r)).interval for c, r in zip(cost, reached, strict=True)]
    shown = [interval for interval in intervals if interval is not None]
    inside = sum(1.0 in interval for interval in shown) / len(shown)
    assert study.typical_coverage(cost, reached, 1.0) == pytest.approx(inside)


@pytest.mark.slow
@pytest.mark.parametrize("times", ["log-normal 0.3", "log-normal 1.5", "Pareto 1.5", "two modes", "Weibull 0.5"])
@pytest.mark.parametrize("success", [0.8, 1.0])
def test_five_runs_cover_again(study: ModuleType, times: str, success: float) -> None:
    row = study.coverage(times, 5, success, "10×", "stopped", 500)
    assert row["coverage"] >= LOWEST_COVERAGE
