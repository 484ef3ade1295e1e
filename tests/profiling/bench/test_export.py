"""Reports as tables and files."""

from __future__ import annotations

import json

import pytest

from mileage.measure import Cause, Caveat, Sample
from mileage.measure.surroundings import Reading
from mileage.measure.timing import Measurement, TimingComparison
from mileage.profiling.bench import ExportFormat
from mileage.profiling.bench.cases import CASES
from mileage.profiling.bench.peers import duration, rate, times, to_text, warning_lines
from mileage.profiling.bench.suite import CaseResult, PrimitivesReport

READING = Reading(0.3, 0.0, None, None, None, 1e-3, 0.0)
GROUPS = next(case for case in CASES if case.primitive == "groups")


def measurement(name: str, *walls: float) -> Measurement:
    return Measurement(name, 1, (), tuple(Sample(name, wall, wall) for wall in walls))


def report() -> PrimitivesReport:
    arms = (
        measurement("mileage", 2e-6, 2e-6, 2e-6, 2e-6, 2e-6),
        measurement("torch, 1 thread", 2e-5, 2e-5, 2e-5, 2e-5, 2e-5),
        measurement("rlox", 3e-6, 3e-6, 3e-6, 3e-6, 9e-6),
    )
    machine = {"cpu": "Abacus", "cores": 2, "python": "3.11", "versions": {"numpy": "2.0"}}
    return PrimitivesReport(
        (CaseResult(GROUPS, TimingComparison(GROUPS.title, arms)),), machine, "here", (READING, READING),
        (Caveat(Cause.BUSY, "half was in use"),), {"rlox": "1.2"}, {(GROUPS.title, "JAX"): "ImportError: x"},
        "mileage bench groups", "2026-09-01 12:00 UTC",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.5e-9, "1.50 ns"),
        (0.9999e-6, "1.00 µs"),
        (8.3e-6, "8.30 µs"),
        (0.0391, "39.1 ms"),
        (0.25, "250 ms"),
        (12.0, "12.0 s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_rates_and_ratios() -> None:
    assert rate(1024, "steps", 8.3e-6) == "123 M steps/s"
    assert rate(2.0 * 1024**3, "FLOP", 0.0115) == "187 GFLOP/s"
    assert rate(1, "events", 2.0) == "0.50 events/s"
    assert (times(1.234), times(12.3), times(1234.5)) == ("1.23×", "12×", "1,234×")


def test_markdown_names_the_command_the_fastest_and_the_doubts() -> None:
    text = to_text(report(), ExportFormat.MD)
    assert "`mileage bench groups`" in text
    assert "2026-09-01 12:00 UTC, 2 cores of Abacus, load 0.3, Python 3.11, numpy 2.0, rlox 1.2." in text
    assert "| group advantages 64×8 | **2.00 µs** | 0% | 256 M answers/s | rlox: 3.00 µs (1.50×) | torch 10× |" in text
    assert "- half was in use: other work uses the cores: stop it, or wait" in text


def test_warnings_are_gathered_by_kind() -> None:
    lines = warning_lines(report().record())
    assert lines[1] == (
        "outliers in 1 arm (group advantages 64×8: rlox): "
        "quit other programs or pin the process, and repeat with more runs"
    )
    assert lines[-1] == "group advantages 64×8: JAX is left out (ImportError: x)"


def test_csv_has_a_line_per_arm() -> None:
    lines = to_text(report(), ExportFormat.CSV).splitlines()
    assert lines[0] == "primitive,case,arm,median_s,best_s,spread,cpu_s,rounds,times_mileage"
    assert lines[1:] == [
        "groups,group advantages 64×8,mileage,2e-06,2e-06,0,2e-06,5,1",
        'groups,group advantages 64×8,"torch, 1 thread",2e-05,2e-05,0,2e-05,5,10',
        "groups,group advantages 64×8,rlox,3e-06,3e-06,0,3e-06,5,1.5",
    ]


def test_json_keeps_everything() -> None:
    record = json.loads(to_text(report(), ExportFormat.JSON))
    assert record["cases"][0]["arms"][2]["samples"][4] == {"wall": 9e-6, "cpu": 9e-6}
    assert record["hardware_id"] == "here"
    assert record["absent"] == [{"case": GROUPS.title, "library": "JAX", "why": "ImportError: x"}]
