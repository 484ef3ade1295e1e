"""Memory by phase, from readings that a test makes itself."""

from __future__ import annotations

from mileage.measure import PhaseClock
from mileage.profiling.drift import PhaseMemory

MIB = 2**20


def test_the_highest_reading_of_every_phase_is_kept() -> None:
    clock = PhaseClock()
    memory = PhaseMemory(clock)
    with clock.phase("learn"):
        memory._note(30 * MIB)
        memory._note(50 * MIB)
        memory._note(40 * MIB)
    memory._note(20 * MIB)
    assert memory.peaks_mib == {"learn": 50.0, "other": 20.0}
    assert [times.entries.get("learn", 0) for times in (each.times for each in memory.moments)] == [0, 0, 0, 1]


def test_history_is_thinned_out_and_stays_in_order() -> None:
    memory = PhaseMemory(PhaseClock())
    for _ in range(1_000):
        memory._note(MIB)
    walls = [times.wall_ns for times in (each.times for each in memory.moments)]
    assert 100 <= len(walls) < 200
    assert walls == sorted(walls)


def test_a_short_phase_can_be_looked_at() -> None:
    memory = PhaseMemory(PhaseClock())
    memory.look("eval")
    assert memory.peaks_mib == {}  # nobody samples yet
    with memory.sampler:
        memory.look("eval")
    assert memory.peaks_mib["eval"] > 1.0
