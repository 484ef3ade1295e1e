from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mileage.ledger import queries
from mileage.ledger.panels import Panel
from mileage.ledger.store import Store
from mileage.ledger.targets import Evaluation
from mileage.meter import clock as clock_module
from mileage.meter.clock import PhaseClock
from mileage.report.cost import CostReport
from mileage.training.recorder import Ledger, RunRecorder


class Hand:
    """A clock moved by hand, in place of the system's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000
        monkeypatch.setattr(clock_module, "_now", lambda: self.now)

    def minutes(self, amount: float) -> None:
        self.now += round(amount * 60e9)


def evaluation(panel: Panel, successes: int, value: float = 1.0) -> Evaluation:
    n = len(panel.seeds)
    return Evaluation.of(panel.seeds, [value] * n, [10] * n, np.arange(n) < successes)


@pytest.fixture
def panel() -> Panel:
    return Panel.default("CartPole-v1", 100, success="return>=475")


def launch(tmp_path: Path, **arguments: object) -> RunRecorder:
    given = {"clock": PhaseClock(), "resources": False, **arguments}
    return Ledger(tmp_path / "mileage.db").run(str(given.pop("name", "arm")), **given)  # type: ignore[arg-type]


def test_worked_example_comes_out_of_a_recorded_run_to_the_printed_digit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, panel: Panel
) -> None:
    hand = Hand(monkeypatch)
    with launch(tmp_path, panel=panel, target="success_rate>=0.90", price=2.20) as run:
        with run.phase("rollout"):
            hand.minutes(30.0)
        with run.phase("learn"):
            hand.minutes(12.0)
        with run.phase("eval"):
            hand.minutes(6.0)
        row = run.checkpoint(1_200_000_000, evaluation(panel, 92))
    assert (row.train_seconds, row.eval_seconds) == (42 * 60, 6 * 60)
    assert row.success_rate == 0.92
    assert round(row.cost_usd, 2) == 1.76

    with Store(tmp_path / "mileage.db") as store:
        record = store.read(queries.only_record, run.run_id)
        report = CostReport.of(record.run, record.end, store.read(queries.latest_phases, run.run_id))
    assert report.headline() == [
        "train throughput: 476,190 env steps/s (steady 476,190)",
        "total wall-clock: 48.0 min",
        "held-out success: 0.92",
        "target reached: True",
        "total compute cost: $1.76",
        "cost per billion steps: $1.47",
    ]
    assert report.phase_table() == [
        ("rollout", "1800.000", "62.5 %", "1"),
        ("learn", "720.000", "25.0 %", "1"),
        ("eval", "360.000", "12.5 %", "1"),
        ("log", "0.000", "0.0 %", "1"),
        ("other", "0.000", "0.0 %", "0"),
    ] or report.phase_table()[:3] == [
        ("rollout", "1800.000", "62.5 %", "1"),
        ("learn", "720.000", "25.0 %", "1"),
        ("eval", "360.000", "12.5 %", "1"),
    ]
    assert report.eval_overhead == 0.125
