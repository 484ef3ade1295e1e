from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mileage import measure
from mileage.errors import UsageError
from mileage.measure import PhaseTimes
from mileage.metrics import METRICS, Over, Totals

# 1.2 billion steps in 42 minutes of training and 6 minutes of evaluation, at $2.20 an hour.
WORKED = Totals(
    wall_seconds=48 * 60.0,
    phases={"init": 60.0, "compile": 60.0, "learn": 40 * 60.0, "eval": 6 * 60.0, "other": 0.0},
    env_steps=1_200_000_000,
    price_usd_per_hour=2.20,
    target_reached_seconds=48 * 60.0,
)


def test_worked_example_to_the_printed_digit() -> None:
    assert f"{measure.steps_per_second(WORKED):,.0f}" == "476,190"
    assert f"{WORKED.wall_seconds / 60:.1f}" == "48.0"
    assert f"{measure.train_seconds(WORKED) / 60:.1f}" == "42.0"
    assert f"{measure.cost_usd(WORKED):.2f}" == "1.76"
    assert f"{measure.cost_per_billion_steps(WORKED):.2f}" == "1.47"
    assert measure.wall_to_target(WORKED) == 2880.0
    assert measure.eval_overhead(WORKED) == 0.125


def test_steady_rate_leaves_out_init_and_compile() -> None:
    assert measure.steady_steps_per_second(WORKED) == 1_200_000_000 / (40 * 60)


def test_billable_time_and_cost_count_every_instance() -> None:
    cluster = Totals(1800.0, {"learn": 1800.0}, instances=4, price_usd_per_hour=3.0, target_reached_seconds=600.0)
    assert measure.billable_seconds(cluster) == 7200.0
    assert measure.cost_usd(cluster) == 6.0
    assert measure.cost_to_target(cluster) == 2.0


def test_what_a_run_does_not_have_is_none() -> None:
    empty = Totals(0.0, {})
    assert measure.steps_per_second(empty) is None
    assert measure.steady_steps_per_second(Totals(5.0, {"init": 5.0}, env_steps=10)) is None
    assert measure.eval_overhead(empty) is None
    assert measure.other_share(empty) is None
    assert measure.cost_per_billion_steps(Totals(1.0, {"other": 1.0}, price_usd_per_hour=1.0)) is None
    assert measure.wall_to_target(empty) is None
    assert measure.cost_to_target(empty) is None
    assert measure.cost_usd(Totals(3600.0, {"other": 3600.0})) == 0.0


def test_totals_come_from_a_clock() -> None:
    times = PhaseTimes(4_000_000_000, {"learn": 3_000_000_000, "other": 1_000_000_000}, {"learn": 1})
    totals = Totals.of(times, env_steps=8)
    assert measure.steps_per_second(totals) == 2.0
    assert measure.other_share(totals) == 0.25
    assert measure.other_share(totals) > measure.OTHER_SHARE_LIMIT


def test_phases_that_leave_a_hole_are_refused() -> None:
    with pytest.raises(UsageError, match=r"add up to 9\.999998 s but wall_seconds is 10\.000000"):
        Totals(10.0, {"learn": 9.999998})
    assert Totals(10.0, {"learn": 9.9999995}).wall_seconds == 10.0


@pytest.mark.parametrize("bad", [{"instances": 0}, {"env_steps": -1}, {"price_usd_per_hour": -2.0}])
def test_impossible_numbers_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="instances must be at least 1"):
        Totals(0.0, {}, **bad)


# The table


def test_every_metric_is_documented_and_has_a_name_of_its_own() -> None:
    page = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text()
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert [name for name in names if f"`{name}`" not in page] == []


def test_every_metric_can_be_read_from_totals_and_spelled() -> None:
    totals = dataclasses.replace(
        WORKED, steps_to_target=5, success_rate=0.92, mean_return=480.0, peaks={"peak_rss_gb": 2.5, "peak_gpu_gb": None}
    )
    spelled = {metric.name: metric.spelled(metric.of(totals)) for metric in METRICS}
    assert spelled == {
        "env_steps": "1,200,000,000", "wall_seconds": "48.0 min", "train_seconds": "42.0 min",
        "eval_seconds": "6.0 min", "billable_seconds": "48.0 min", "steps_per_second": "476,190",
        "steady_steps_per_second": "500,000", "eval_overhead": "12.5 % of wall-clock", "success_rate": "0.92",
        "mean_return": "480.0", "steps_to_target": "5", "wall_to_target": "48.0 min", "cost_usd": "$1.76",
        "cost_to_target": "$1.76", "cost_per_billion_steps": "$1.47", "peak_rss_gb": "2.50 GB", "peak_gpu_gb": "none",
    }  # fmt: skip


def test_several_runs_as_one() -> None:
    first = Totals(10.0, {"learn": 8.0, "eval": 2.0}, 100, peaks={"peak_rss_gb": 1.0, "peak_gpu_gb": None})
    second = Totals(30.0, {"learn": 30.0}, 300, peaks={"peak_rss_gb": 3.0, "peak_gpu_gb": None})
    both = Totals.together([first, second])
    assert (both.wall_seconds, both.env_steps, measure.eval_overhead(both)) == (40.0, 400, 2.0 / 40.0)
    assert both.peaks == {"peak_rss_gb": 3.0, "peak_gpu_gb": None}


def test_over_runs_the_median_counts_and_of_a_peak_the_highest() -> None:
    assert Over.MEDIAN([3.0, None, 1.0, 2.0]) == 2.0
    assert Over.HIGHEST([3.0, None, 1.0]) == 3.0
    assert Over.MEDIAN([None]) is Over.HIGHEST([]) is None
