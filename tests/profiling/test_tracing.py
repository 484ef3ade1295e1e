"""Which blocks of a trace count, and what probes cost in place."""

from __future__ import annotations

import pytest

from mileage.profiling.probes import Blocks, ProbeCost, Trace, cost_in_place
from mileage.profiling.traces import Span


def test_blocks_around_the_lower_quartile_count() -> None:
    blocks = Blocks(1, seconds=[10.0, 1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0, 5.0])
    # The fastest tenth is left out, then come 2, 3 and 4.
    assert blocks.counted() == [3, 5, 7]
    assert blocks.mean == pytest.approx(3.0)
    assert Blocks(1, seconds=[3.0, 1.0, 2.0, 4.0]).counted() == [1, 2]


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
    assert cost_in_place(plain, once, twice, expected) == pytest.approx(factor)


def test_a_trace_shows_whole_iterations() -> None:
    spans = []
    for number in range(300):
        spans += [Span("learn", "phase", number, number + 1), Span("iteration", "iteration", number, number + 1)]
    shown = Trace(tuple(spans), 300, ProbeCost(0.0, 0.0, 0.0)).shown
    assert len(shown) == 400
    assert shown[-1].kind == "iteration"
