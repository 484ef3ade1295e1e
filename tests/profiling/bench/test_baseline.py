"""Regression checks between runs whose times are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mileage.errors import UsageError
from mileage.measure import Sample
from mileage.measure.surroundings import Reading
from mileage.measure.timing import Measurement, TimingComparison
from mileage.profiling.bench import baseline as bench_baseline
from mileage.profiling.bench.baseline import Change
from mileage.profiling.bench.cases import CASES
from mileage.profiling.bench.suite import CaseResult, PrimitivesReport

READING = Reading(0.1, 0.0, None, None, None, 1e-3, 0.0)


def report(hardware: str = "here", numpy: str = "2.0", **walls: tuple[float, ...]) -> PrimitivesReport:
    """A run with the given samples of cases by primitive."""
    results = []
    for primitive, times in walls.items():
        case = next(case for case in CASES if case.primitive == primitive)
        samples = tuple(Sample("mileage", wall, wall) for wall in times)
        results.append(CaseResult(case, TimingComparison(case.title, (Measurement("mileage", 1, (), samples),))))
    machine = {"cpu": "Abacus", "cores": 2, "python": "3.11", "versions": {"numpy": numpy}}
    return PrimitivesReport(tuple(results), machine, hardware, (READING, READING), (), {})


def saved(directory: Path, run: PrimitivesReport) -> Any:
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


def controlled(title: str, own: list[float], control: list[float], cpu: list[float] | None = None) -> dict[str, Any]:
    """A record of one case beside its control, on one thread."""

    def arm(name: str, walls: list[float], cpus: list[float]) -> dict[str, Any]:
        samples = [{"wall": wall, "cpu": cpu} for wall, cpu in zip(walls, cpus, strict=True)]
        return {"arm": name, "samples": samples, "median": sorted(walls)[len(walls) // 2], "best": min(walls)}

    case = {"title": title, "primitive": "gae", "arms": [arm("mileage", own, cpu or own)]}
    return {"cases": [case | {"controls": [arm("control, one thread", control, control)]}], "conditions": []}


def least(now: dict[str, Any], then: dict[str, Any], *, busy: bool = False) -> float:
    new, old = bench_baseline._by_title(now)["x"], bench_baseline._by_title(then)["x"]
    return bench_baseline._least_ratio(new, [old], busy)


def test_a_machine_that_got_slower_is_no_regression_and_code_that_did_is_one() -> None:
    then = controlled("x", [1.0, 1.1, 1.0], [2.0, 2.2, 2.0])
    assert least(controlled("x", [1.5, 1.6, 1.5], [3.0, 3.2, 3.0]), then) == pytest.approx(1.0)
    assert least(controlled("x", [1.3, 1.43, 1.3], [2.0, 2.2, 2.0]), then) == pytest.approx(1.3)


def test_beside_neighbours_cpu_time_must_agree() -> None:
    then = controlled("x", [1.0] * 3, [2.0] * 3)
    now = controlled("x", [1.5] * 3, [2.0] * 3, cpu=[1.0] * 3)
    assert least(now, then) == pytest.approx(1.5)
    assert least(now, then, busy=True) == pytest.approx(1.0)


def test_a_suspect_is_measured_again_and_must_look_slower_each_time(tmp_path: Path) -> None:
    before = saved(tmp_path, report(gae=(1.0, 1.0, 1.0)))
    now, asked = report(gae=(1.4, 1.4, 1.4)), []

    def again(wall: float) -> Any:
        def measured(names: Any) -> Any:
            asked.append(list(names))
            return report(gae=(wall, wall, wall)).record()

        return measured

    assert bench_baseline.check(now, before, again=again(1.0)).regressions == ()
    assert asked == [["gae"]]
    (found,) = bench_baseline.check(now, before, again=again(1.35)).regressions
    assert (found.least, found.measured) == (pytest.approx(1.35), 3)
    assert bench_baseline.check(report(gae=(1.0, 1.0)), before, again=again(9.0)).regressions == ()


def test_slower_means_slower_than_every_pass_of_the_baseline(tmp_path: Path) -> None:
    passes = [report(gae=(1.2, 1.2, 1.2)).record()]
    bench_baseline.save(report(gae=(1.0, 1.0, 1.0)), tmp_path / "b.json", passes)
    before = bench_baseline.load(tmp_path / "b.json", "here")
    assert bench_baseline.check(report(gae=(1.3, 1.3, 1.3)), before).regressions == ()
    assert len(bench_baseline.check(report(gae=(1.5, 1.5, 1.5)), before).regressions) == 1
