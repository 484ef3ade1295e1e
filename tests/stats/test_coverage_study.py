"""The committed study of the cost interval keeps its promise, and can be repeated."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
LOWEST_COVERAGE = 0.90
HIGHEST_ERROR = 0.05


def study() -> ModuleType:
    path = ROOT / "benchmarks" / "cost_interval_coverage.py"
    spec = importlib.util.spec_from_file_location("cost_interval_coverage", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_committed_study_covers_and_keeps_its_error_rate() -> None:
    result = json.loads((ROOT / "benchmarks" / "results" / "cost_interval_coverage.json").read_text())
    known = [row for row in result["coverage"] if row["budget"] == "known"]
    assert {row["times"] for row in known} == set(study().TIMES)
    assert {row["n"] for row in known} == {5, 10, 20}
    assert min(row["coverage"] for row in known) >= LOWEST_COVERAGE
    assert max(row["planned_looks"] for row in result["false_verdicts"]) <= HIGHEST_ERROR
    assert all(row["panels"] >= 900 for row in known)


@pytest.mark.slow
@pytest.mark.parametrize("times", ["log-normal 0.5", "log-student 3", "pareto 1.5", "weibull 0.5"])
@pytest.mark.parametrize("failures", ["no failures", "20 % stuck"])
def test_five_runs_cover_again(times: str, failures: str) -> None:
    module = study()
    row = module.coverage(module.TIMES[times], module.FAILURES[failures], 5, 500, module.BUDGET)
    assert row["coverage"] >= LOWEST_COVERAGE
