"""Regression checks between runs whose times are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mileage._errors import UsageError
from mileage.bench import baseline as bench_baseline
from mileage.bench.baseline import Change
from mileage.bench.cases import CASES
from mileage.bench.machine import Reading
from mileage.bench.suite import BenchReport, CaseResult
from mileage.experiments import Sample
from mileage.experiments.timing import Comparison, Measurement

READING = Reading(0.1, 0.0, None, None, None, 1e-3, 0.0)


def report(hardware: str = "here", numpy: str = "2.0", **walls: tuple[float, ...]) -> BenchReport:
    """A run with the given samples of cases by primitive."""
    results = []
    for primitive, times in walls.items():
        case = next(case for case in CASES if case.primitive == primitive)
        samples = tuple(Sample("mileage", wall, wall) for wall in times)
        results.append(CaseResult(case, Comparison(case.title, (Measurement("mileage", 1, (), samples),))))
    machine = {"cpu": "Abacus", "cores": 2, "python": "3.11", "versions": {"numpy": numpy}}
    return BenchReport(tuple(results), machine, hardware, (READING, READING), (), {})


def saved(directory: Path, run: BenchReport) -> Any:
    bench_baseline.save(run, directory / "new" / "baseline.json")
    return bench_baseline.load(directory / "new" / "baseline.json", "here")


def test_slower_needs_both_the_median_and_the_best(tmp_path: Path) -> None:
    before = saved(tmp_path, report(gae=(1.0, 1.0, 1.0), groups=(1.0, 1.0, 1.0), mlp=(1.0, 1.0), moments=(1.0, 1.2)))
    now = report(gae=(1.3, 1.4, 1.5), groups=(1.0, 1.4, 1.5), mlp=(0.5, 0.6), moments=(1.1, 1.1))
    check = bench_baseline.check(now, before)
    assert [each.change for each in check.changes] == [Change.REGRESSION, Change.SAME, Change.IMPROVEMENT, Change.SAME]
    assert [each.title for each in check.regressions] == ["GAE 8×128"]
    assert check.regressions[0].ratio == pytest.approx(1.4)
    assert bench_baseline.check(now, before, tolerance=0.5).regressions == ()


def test_what_is_new_or_not_the_same_is_said(tmp_path: Path) -> None:
    before = saved(tmp_path, report(gae=(1.0, 1.0)))
    check = bench_baseline.check(report(gae=(1.0, 1.0), groups=(1.0, 1.0), numpy="2.1"), before)
    assert check.new == ("group advantages 64×8",)
    assert check.versions == ("numpy 2.0 → 2.1",)


def test_another_machine_is_refused(tmp_path: Path) -> None:
    bench_baseline.save(report("there", gae=(1.0, 1.0)), tmp_path / "b.json")
    with pytest.raises(UsageError, match=r"b.json' was measured on another machine \(there, this is here\): save one"):
        bench_baseline.load(tmp_path / "b.json", "here")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1, "hardware_id": "here", "cases": 3}', "null"])
def test_what_is_no_baseline_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "b.json").write_text(content)
    with pytest.raises(UsageError, match="is not a baseline"):
        bench_baseline.load(tmp_path / "b.json", "here")


def test_other_formats_and_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    record = report(gae=(1.0, 1.0)).record() | {"format": 99}
    (tmp_path / "b.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match="format 99"):
        bench_baseline.load(tmp_path / "b.json", "here")
    with pytest.raises(UsageError, match="cannot read the baseline"):
        bench_baseline.load(tmp_path / "none.json", "here")
    with pytest.raises(UsageError, match="cannot write the baseline"):
        bench_baseline.save(report(), Path("/proc/none/b.json"))
    with pytest.raises(UsageError, match="tolerance must be above 0"):
        bench_baseline.check(report(), {"cases": [], "machine": {}}, tolerance=0.0)
