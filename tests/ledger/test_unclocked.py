"""Work that no run is billed for is on record."""

from __future__ import annotations

import json

import pytest

from mileage.ledger import launch


class Process:
    """A process whose age and CPU time are set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.age = self.used = 0.0
        for name, value in (("_open", 0), ("_told", 0.0)):
            monkeypatch.setattr(launch, name, value)
        monkeypatch.setattr(launch, "process_age_seconds", lambda: self.age)
        monkeypatch.setattr(launch.time, "process_time", lambda: self.used)

    def works(self, seconds: float) -> None:
        self.age += seconds
        self.used += seconds


def test_training_before_the_clock_is_counted_and_what_runs_are_billed_for_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = Process(monkeypatch)
    process.works(60.0)
    assert launch.begin(60.0) == 0.0  # the clock counts from the start of the process
    process.works(30.0)
    launch.end()
    assert launch.begin(0.0) == 0.0
    process.works(5.0)
    launch.end()
    process.works(100.0)
    assert launch.begin(0.0) == 100.0  # between two runs
    launch.end()


def test_a_session_in_which_somebody_thinks_works_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch)
    process.age = 3600.0
    process.used = 1.5
    assert launch.begin(0.0) == 1.5


def test_runs_beside_each_other_are_billed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch)
    process.works(1.0)
    assert launch.begin(1.0) == 0.0
    process.works(10.0)
    launch.begin(0.0)
    process.works(10.0)
    launch.end()
    process.works(10.0)
    launch.end()
    process.works(7.0)
    assert launch.begin(0.0) == 7.0


def test_a_comparison_shows_it_and_warns() -> None:
    from sample_rows import make_end, make_run

    from mileage.ledger.runs import RecordedRun
    from mileage.measure import Arm
    from mileage.report.arms import Selection
    from mileage.report.compare import compare_arms

    def arm(name: str, before: float) -> Arm[Selection]:
        rows = [make_run(name=name) for _ in range(3)]
        rows = [
            row._replace(machine=json.dumps(json.loads(row.machine) | {"cpu_seconds_before_clock": before}))
            for row in rows
        ]
        return Arm(name, Selection([RecordedRun(row, make_end(row)) for row in rows]))

    found = compare_arms(arm("honest", 0.0), arm("early", 400.0))
    assert (found.a.setting["work before the clock"], found.b.setting["work before the clock"]) == (
        "none",
        "6.7 min of CPU",
    )
    assert [each.evidence for each in found.warnings if "clock" in each.evidence] == [
        "3 runs of B worked long before their clock started: that is not counted"
    ]
