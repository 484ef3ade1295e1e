"""Spans and the clock that keeps phases as spans."""

from __future__ import annotations

import threading

import pytest

from mileage.description import Layer
from mileage.measure import PhaseClock
from mileage.profiling.traces import PackedSpans, Span, TraceClock


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
        ("update", "call", 5, 9, 0, Layer.NATIVE),
        ("learn", "phase", 4, 10, 3, ""),
        ("update", "call", 11, 12, 0, Layer.NATIVE),
    ]
    assert list(PackedSpans(spans).spans()) == [Span(*span) for span in spans]
    assert list(PackedSpans([]).spans()) == []
