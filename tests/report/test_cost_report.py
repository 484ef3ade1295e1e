from __future__ import annotations

import json

from sample_rows import make_end, make_phases, make_run

from mileage.ledger.runs import RecordedRun
from mileage.metrics import dollars, duration
from mileage.report.cost import CostReport


def test_throughput_is_always_a_pair_with_different_denominators() -> None:
    run = make_run()
    end = make_end(run, env_steps=5000, train_seconds=50.0, init_seconds=1.0, compile_seconds=9.0)
    report = CostReport(RecordedRun(run, end))
    assert report.recorded.steps_per_second == 100.0
    assert report.recorded.steady_steps_per_second == 125.0
    assert report.headline()[0] == "train throughput: 100 env steps/s (steady 125)"
    assert report.recorded.metric("eval_overhead") == 10.0 / 60.0


def test_not_reached_is_neither_infinity_nor_zero() -> None:
    run = make_run()
    end = make_end(run, state="not_reached", wall_to_target=None, cost_to_target=None, steps_to_target=None)
    report = CostReport(RecordedRun(run, end))
    assert report.headline()[3] == "target reached: False"
    assert "wall-clock to target: not reached" in report.details()
    assert "cost to target: not reached" in report.details()
    assert json.loads(json.dumps(report.as_dict()))["wall_to_target"] is None


def test_no_price_and_no_target_and_no_evaluation_are_said() -> None:
    run = make_run(price_usd_per_hour=0.0, target=None)
    end = make_end(run, wall_to_target=None, success_rate=None, mean_return=None, env_steps=0)
    end = end._replace(wall_seconds=0.0, train_seconds=0.0, eval_seconds=0.0, init_seconds=0.0, compile_seconds=0.0)
    lines = CostReport(RecordedRun(run, end)).headline()
    assert lines[0] == "train throughput: no training time"
    assert lines[2:] == [
        "held-out success: not evaluated",
        "target reached: no target set",
        "total compute cost: no price set",
        "cost per billion steps: no price set",
    ]
    without_success = CostReport(RecordedRun(make_run(), make_end(run, success_rate=None, mean_return=487.25)))
    assert without_success.headline()[2] == "held-out success: not defined (mean return 487.2)"


def test_phases_are_sorted_shared_out_and_unexplained_time_is_a_finding() -> None:
    run = make_run(framework="custom")
    phases = make_phases(run, 1, other=6.0, learn=14.0, rollout=40.0)
    report = CostReport(RecordedRun(run, make_end(run), phase_rows=tuple(phases)))
    assert [(p.phase, p.share) for p in report.phases] == [("rollout", 40 / 60), ("learn", 14 / 60), ("other", 0.1)]
    assert report.warnings() == ["10.0 % of the wall-clock is in no phase: wrap it in run.phase(...)"]
    assert CostReport(RecordedRun(run, make_end(run), phase_rows=tuple(phases[1:]))).warnings() == []
    ours = CostReport(RecordedRun(run._replace(framework="mileage"), make_end(run), phase_rows=tuple(phases)))
    assert ours.warnings() == ["10.0 % of the wall-clock is in no phase"]  # nobody but us can wrap our loop
    seen = CostReport(RecordedRun(run._replace(framework="recorded"), make_end(run), phase_rows=tuple(phases)))
    assert seen.warnings() == []


def test_amounts_keep_their_digits_when_they_are_small() -> None:
    assert [dollars(x) for x in (0.0, 1234.5, 1.764, 0.01, 0.0055, 0.00034, 0.0000012)] == [
        "$0.00", "$1,234.50", "$1.76", "$0.01", "$0.0055", "$0.00034", "$0.0000012",
    ]  # fmt: skip
    assert [duration(x) for x in (0.513, 119.0, 2880.0)] == ["0.51 s", "119.00 s", "48.0 min"]
