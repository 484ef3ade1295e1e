"""What speaks against numbers taken on a machine, from readings made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mileage.measure import Cause, Caveat
from mileage.measure import surroundings as bench_machine
from mileage.measure.surroundings import Reading, conditions

QUIET = Reading(0.1, 0.02, 3000.0, "performance", 100.0, 1e-3, 1000.0)
LATER = replace(QUIET, at=1060.0)


def kinds(before: Reading, after: Reading) -> list[Cause]:
    return [each.cause for each in conditions(before, after, cores=2)]


def test_a_quiet_machine_is_not_complained_about() -> None:
    assert kinds(QUIET, LATER) == []
    unknown = replace(QUIET, busy=None, mhz=None, governor=None, stolen=None)
    assert kinds(unknown, replace(unknown, at=1060.0)) == []


@pytest.mark.parametrize(
    ("before", "after", "kind", "evidence"),
    [
        ({"busy": 0.5}, {}, Cause.BUSY, "50% of 2 cores were in use before the start"),
        ({"governor": "powersave"}, {}, Cause.GOVERNOR, "the governor is powersave"),
        ({}, {"mhz": 2400.0}, Cause.FREQUENCY, "3000 MHz at the start, 2400 MHz at the end"),
        # Six seconds of the 120 that two cores have in a minute.
        ({}, {"stolen": 106.0}, Cause.STOLEN, "5.0% of the time was stolen"),
        ({}, {"loop_seconds": 1.5e-3}, Cause.LOOP, "a fixed loop took +50% at the end"),
    ],
)
def test_each_condition_has_its_evidence(
    before: dict[str, float], after: dict[str, float], kind: Cause, evidence: str
) -> None:
    found = conditions(replace(QUIET, **before), replace(LATER, **after), cores=2)  # type: ignore[arg-type]
    assert found == (Caveat(kind, evidence),)


def test_a_real_reading_makes_sense() -> None:
    reading = bench_machine.read()
    assert reading.loop_seconds > 0.0
    assert reading.busy is None or 0.0 <= reading.busy <= 1.0
    assert set(reading.as_dict()) == {"load", "busy", "mhz", "governor", "stolen", "loop_seconds", "at"}
