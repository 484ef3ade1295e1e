"""What the cost benchmarks make of their samples, with scripted times instead of a clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

import learner_efficiency
import ledger_overhead
import meter_cost
import profile_overhead
from mileage.measure import Arm, MockExecutor
from mileage.measure.timing import TimingComparison, Work, compare


def scripted(seconds: Mapping[str, Sequence[float]]) -> TimingComparison:
    """A comparison whose arms took these times, after a warm-up of the same length as the first."""
    rounds = len(next(iter(seconds.values())))
    executor = MockExecutor({name: [taken[0], *taken] for name, taken in seconds.items()})
    return compare("job", [Arm(name, Work()) for name in seconds], rounds=rounds, warmups=1, executor=executor)


def test_profiling_costs_something_fixed_and_something_for_every_reading() -> None:
    # 20 ms whatever the length, and 1 ms for each of ten readings a second; one disturbed round each.
    once = scripted({"plain": [0.5, 0.5, 0.9], "profiled": [0.52, 0.52, 2.0]})
    often = scripted({"plain": [0.010, 0.012, 0.010], "profiled": [0.011, 0.013, 0.090]})
    found = profile_overhead.cost(once, often, per_second=10.0)
    assert found == pytest.approx({"fixed": 0.020, "reading": 0.001, "of the run": 0.010 + 0.01})


def test_the_empty_loop_is_taken_off_phases_only() -> None:
    found = scripted({"empty loop": [30e-9] * 3, "phase, looked up": [630e-9] * 3, "reading all phases": [6e-6] * 3})
    assert meter_cost.net_nanoseconds(found) == pytest.approx({"phase, looked up": 600.0, "reading all phases": 6000.0})


def test_recording_slows_down_by_the_median_of_neighbours() -> None:
    found = scripted({"not recorded": [1.0, 2.0, 1.0], "recorded": [1.01, 2.02, 5.0]})
    assert ledger_overhead.slow_down(found, "wall") == pytest.approx(0.01)


def test_efficiency_is_a_share_of_both_limits() -> None:
    found = scripted({learner_efficiency.LARGE: [1.0], learner_efficiency.SMALL: [0.5], "update": [0.1]})
    work = {learner_efficiency.LARGE: 100.0, learner_efficiency.SMALL: 100.0, "update": 5.0}
    lines = learner_efficiency.efficiency_table(found, work, 2).splitlines()
    assert lines[-1] == "| update | 50.0 | 50% | 25% |"
