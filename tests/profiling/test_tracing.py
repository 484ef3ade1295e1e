"""Probes: what they keep, what they cost, and which blocks count."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from mileage.meter import PhaseClock
from mileage.profiling.tracing import (
    NATIVE,
    Boundary,
    ProbeCost,
    Span,
    Trace,
    TraceClock,
    _Blocks,
    _in_place,
    _Packed,
    probed,
)


class Machine:
    """Something with a method to probe."""

    def work(self, amount: int) -> int:
        return 2 * amount


def test_a_probe_keeps_the_call_and_goes_away() -> None:
    machine, spans = Machine(), []  # type: ignore[var-annotated]
    with probed([Boundary(machine, "work", "work", NATIVE)], spans):
        assert machine.work(21) == 42
    assert machine.work(1) == 2
    assert [(span[0], span[1], span[5]) for span in spans] == [("work", "call", NATIVE)]
    assert "work" not in vars(machine)


def test_two_probes_keep_two_calls() -> None:
    machine, spans = Machine(), []  # type: ignore[var-annotated]
    boundary = [Boundary(machine, "work", "work", NATIVE)]
    with probed(boundary, spans), probed(boundary, spans):
        assert machine.work(21) == 42
    assert len(spans) == 2
    assert machine.work(1) == 2
    assert "work" not in vars(machine)


@pytest.mark.parametrize("watch_cpu", [False, True])
def test_traced_phases_also_run_on_the_clock_below(watch_cpu: bool) -> None:
    clock, spans = PhaseClock(), []  # type: ignore[var-annotated]
    traced = TraceClock(spans, clock.phase, watch_cpu=watch_cpu)
    for _ in range(2):
        with traced.phase("learn"), traced.phase("transfer"):
            sum(range(10_000))
    assert clock.times().entries == {"learn": 2, "transfer": 2}
    assert [span[0] for span in spans] == ["transfer", "learn"] * 2
    for inner, outer in zip(spans[::2], spans[1::2], strict=True):
        assert outer[2] <= inner[2] <= inner[3] <= outer[3]
        assert (inner[4] > 0) is watch_cpu


def test_phases_of_another_thread_are_no_part_of_the_trace() -> None:
    clock, spans = PhaseClock(), []  # type: ignore[var-annotated]
    traced = TraceClock(spans, clock.phase, threads=True)

    def collect() -> None:
        with traced.phase("rollout"):
            pass

    thread = threading.Thread(target=collect, name="collector")
    thread.start()
    thread.join()
    assert spans == []
    assert "rollout" in clock.times().beside_ns["collector"]


def test_packed_spans_come_back_as_they_were() -> None:
    spans = [
        ("update", "call", 5, 9, 0, NATIVE),
        ("learn", "phase", 4, 10, 3, ""),
        ("update", "call", 11, 12, 0, NATIVE),
    ]
    assert list(_Packed(spans).spans()) == [Span(*span) for span in spans]
    assert list(_Packed([]).spans()) == []


def test_blocks_around_the_lower_quartile_count() -> None:
    blocks = _Blocks(1, seconds=[10.0, 1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0, 5.0])
    # The fastest tenth is left out, then come 2, 3 and 4.
    assert blocks.counted() == [3, 5, 7]
    assert blocks.mean == pytest.approx(3.0)
    assert _Blocks(1, seconds=[3.0, 1.0, 2.0, 4.0]).counted() == [1, 2]


@pytest.mark.parametrize(
    ("plain", "once", "twice", "expected", "factor"),
    [
        (100.0, 106.0, 112.0, 3.0, 2.0),  # the second set of probes added twice what a loop says
        (100.0, 103.0, 104.0, 3.0, 1.0),  # never less than that
        (1000.0, 1006.0, 1100.0, 3.0, 1.0),  # hardly there: noise says nothing
        (100.0, 103.0, 150.0, 3.0, 5.0),  # something else happened
    ],
)
def test_what_probes_cost_in_place(plain: float, once: float, twice: float, expected: float, factor: float) -> None:
    assert _in_place(plain, once, twice, expected) == pytest.approx(factor)


def test_cost_of_spans_adds_up() -> None:
    spans: list[Any] = [("a", "call"), ("b", "call"), ("learn", "phase"), ("iteration", "iteration")]
    cost = ProbeCost(1.0, 2.0, 10.0, 20.0)
    assert cost.of(spans) == pytest.approx(2 * 3.0 + 30.0)
    assert cost.times(2.0).of(spans) == pytest.approx(72.0)


def test_a_trace_shows_whole_iterations() -> None:
    spans = []
    for number in range(300):
        spans += [Span("learn", "phase", number, number + 1), Span("iteration", "iteration", number, number + 1)]
    shown = Trace(tuple(spans), 300, ProbeCost(0.0, 0.0, 0.0)).shown
    assert len(shown) == 400
    assert shown[-1].kind == "iteration"
