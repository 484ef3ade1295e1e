from __future__ import annotations

import pytest

from mileage.coderl.kpi import (
    ArmFigures,
    KpiSettings,
    arm_kpis,
    per_hour,
    rollout_bound,
    seconds_per_valid_sample,
    training_loop,
)
from mileage.errors import UsageError


def test_a_build_of_a_hundred_seconds_fits_thirty_six_times_in_an_hour() -> None:
    assert per_hour(100.0) == 36.0


def test_half_of_the_samples_passing_doubles_the_cost_of_a_valid_one() -> None:
    assert seconds_per_valid_sample(40.0, 0.5) == 80.0


def test_no_passing_sample_has_no_cost_rather_than_an_infinite_one() -> None:
    assert seconds_per_valid_sample(40.0, 0.0) is None


def test_rollout_bound_is_throughput_times_gpus() -> None:
    assert rollout_bound(90.0, 4) == 4 * 40.0


def test_only_the_build_part_of_the_loop_shrinks() -> None:
    # At f = 0.5 a 60 s build comes with 60 s of other work; halving the build leaves 90 s of 120 s.
    before = training_loop(60.0, 60.0, 1, 0.5)
    after = training_loop(60.0, 30.0, 1, 0.5)
    assert before == 30.0
    assert after == 40.0


def test_with_nothing_but_rollouts_both_cluster_lines_agree() -> None:
    assert training_loop(50.0, 20.0, 8, 1.0) == rollout_bound(20.0, 8)


def test_dollars_are_seconds_at_the_hourly_price() -> None:
    arm = ArmFigures(cold_seconds=36.0, incremental_seconds=None, pass_rate=0.5)
    kpis = arm_kpis(arm, arm, KpiSettings(price_usd_per_hour=2.0))
    assert kpis.seconds_per_valid_sample == 72.0
    assert kpis.usd_per_valid_sample == pytest.approx(0.04)
    assert kpis.feedback_loops_per_hour is None


def test_without_a_price_there_are_no_dollars() -> None:
    arm = ArmFigures(cold_seconds=36.0, incremental_seconds=1.0, pass_rate=1.0)
    assert arm_kpis(arm, arm, KpiSettings()).usd_per_valid_sample is None


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"rollout_fraction": 0.0}, "rollout_fraction"), ({"gpus": 0}, "gpus"), ({"price_usd_per_hour": -1.0}, "price")],
)
def test_impossible_settings_are_refused_by_name(settings: dict[str, float], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        KpiSettings(**settings)  # type: ignore[arg-type]
