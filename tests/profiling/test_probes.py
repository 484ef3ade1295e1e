"""Probes: what they keep, and what they cost."""

from __future__ import annotations

from typing import Any

import pytest

from mileage.description import Boundary, Layer
from mileage.profiling.probes import ProbeCost, probed


class Machine:
    """Something with a method to probe."""

    def work(self, amount: int) -> int:
        return 2 * amount


def test_a_probe_keeps_the_call_and_goes_away() -> None:
    machine, spans = Machine(), []  # type: ignore[var-annotated]
    with probed([Boundary(machine, "work", "work", Layer.NATIVE)], spans):
        assert machine.work(21) == 42
    assert machine.work(1) == 2
    assert [(span[0], span[1], span[5]) for span in spans] == [("work", "call", Layer.NATIVE)]
    assert "work" not in vars(machine)


def test_two_probes_keep_two_calls() -> None:
    machine, spans = Machine(), []  # type: ignore[var-annotated]
    boundary = [Boundary(machine, "work", "work", Layer.NATIVE)]
    with probed(boundary, spans), probed(boundary, spans):
        assert machine.work(21) == 42
    assert len(spans) == 2
    assert machine.work(1) == 2
    assert "work" not in vars(machine)


def test_cost_of_spans_adds_up() -> None:
    spans: list[Any] = [("a", "call"), ("b", "call"), ("learn", "phase"), ("iteration", "iteration")]
    cost = ProbeCost(1.0, 2.0, 10.0, 20.0)
    assert cost.of(spans) == pytest.approx(2 * 3.0 + 30.0)
    assert cost.times(2.0).of(spans) == pytest.approx(72.0)
