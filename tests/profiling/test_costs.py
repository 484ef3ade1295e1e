"""Splitting a trace by phase and layer, by hand."""

from __future__ import annotations

import pytest

from mileage.description import Layer
from mileage.profiling.costs import all_calls, layer_table, phase_costs
from mileage.profiling.probes import ProbeCost, Trace
from mileage.profiling.traces import Span

FREE = ProbeCost(0.0, 0.0, 0.0)
MS = 1_000_000


def trace(cost: ProbeCost = FREE) -> Trace:
    """Two iterations of 10 ms: 4 ms env_step (3 ms in the env), 5 ms learn (4 ms in a kernel), 1 ms between."""
    spans = []
    for first in (0, 100 * MS):
        spans += [
            Span("iteration", "iteration", first, first + 10 * MS),
            Span("env_step", "phase", first, first + 4 * MS, 4 * MS),
            Span("env.step", "call", first + MS, first + 4 * MS, 0, Layer.ENVIRONMENT),
            Span("learn", "phase", first + 5 * MS, first + 10 * MS, 3 * MS),
            Span("update", "call", first + 5 * MS, first + 9 * MS, 0, Layer.NATIVE),
        ]
    return Trace(tuple(spans), 2, cost, watched=tuple(spans))


def test_phases_are_exclusive_and_add_up() -> None:
    costs = {cost.phase: cost for cost in phase_costs(trace())}
    assert {name: cost.seconds for name, cost in costs.items()} == pytest.approx(
        {"env_step": 4e-3, "learn": 5e-3, "other": 1e-3}
    )
    assert costs["env_step"].python == pytest.approx(1e-3)
    assert costs["learn"].waiting == pytest.approx(2e-3)


def test_layers_add_up_to_the_iteration() -> None:
    table = layer_table(phase_costs(trace()), {"update": {Layer.BLAS: 0.75, Layer.NATIVE: 0.25}}, 5e-3, 5e-3, 10e-3)
    assert table.total == pytest.approx(10e-3)
    assert table.difference == pytest.approx(0.0)
    assert table.rollout[Layer.ENVIRONMENT] == pytest.approx(3e-3)
    assert table.rollout[Layer.PYTHON] == pytest.approx(2e-3)
    # 2 of the 5 ms were spent off the CPU, in all layers alike.
    assert table.update[Layer.WAITING] == pytest.approx(2e-3)
    assert table.update[Layer.BLAS] == pytest.approx(0.6 * 3e-3)
    assert table.update[Layer.NATIVE] == pytest.approx(0.6 * 1e-3)
    assert table.update[Layer.PYTHON] == pytest.approx(0.6 * 1e-3)


def test_calls_are_counted_per_iteration() -> None:
    calls = all_calls(phase_costs(trace()))
    assert [(call.label, call.part, call.per_iteration) for call in calls] == [
        ("env.step", "rollout", 1.0),
        ("update", "update", 1.0),
    ]
    assert calls[0].seconds_each == pytest.approx(3e-3)


def test_what_probes_cost_is_taken_off() -> None:
    costs = {cost.phase: cost for cost in phase_costs(trace(ProbeCost(1e-4, 2e-4, 5e-4)))}
    assert costs["env_step"].calls[0].seconds_each == pytest.approx(2.9e-3)
    assert costs["env_step"].seconds == pytest.approx(4e-3 - 3e-4)
    assert costs["other"].seconds == pytest.approx(1e-3 - 2 * 5e-4)


def test_what_a_phase_costs_within_itself_is_taken_off_it_and_not_off_the_iteration() -> None:
    costs = {cost.phase: cost for cost in phase_costs(trace(ProbeCost(0.0, 0.0, 0.0, 2e-4)))}
    assert costs["env_step"].seconds == pytest.approx(4e-3 - 2e-4)
    assert costs["env_step"].python == pytest.approx(1e-3 - 2e-4)
    assert costs["other"].seconds == pytest.approx(1e-3)


def test_a_nested_phase_suspends_its_parent() -> None:
    spans = (
        Span("iteration", "iteration", 0, 10 * MS),
        Span("learn", "phase", 0, 10 * MS, 10 * MS),
        Span("transfer", "phase", 2 * MS, 5 * MS, 3 * MS),
    )
    costs = {cost.phase: cost.seconds for cost in phase_costs(Trace(spans, 1, FREE))}
    assert costs == pytest.approx({"learn": 7e-3, "transfer": 3e-3, "other": 0.0})
