from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sample_rows import make_checkpoint, make_end, make_run
from shown_runs import CURVE, fill

from mileage.ledger import queries
from mileage.ledger.runs import Before, RecordedRun
from mileage.ledger.store import Store
from mileage.measure import iqm_estimate
from mileage.report import curves, report
from mileage.report.arms import ReportArm, exams


@pytest.fixture
def runs(tmp_path: Path) -> list[RecordedRun]:
    fill(tmp_path / "l.db")
    with Store(tmp_path / "l.db") as store:
        return report.loaded(store, report.select(store, ["fast", "slow"]))


def test_a_recipe_is_a_line_and_its_band_is_the_named_interval(runs: list[RecordedRun]) -> None:
    (exam,) = exams(runs)
    assert [arm.label for arm in exam.arms] == ["fast", "slow"]
    curve = curves.curve(exam.arms[0], curves.WAYS["steps"])
    # All seeds are evaluated at the same steps: the line is the interquartile mean of their values there.
    values = np.array([[value + 2.0 * seed for value in CURVE] for seed in range(5)])
    assert [x for x, _ in curve.points] == [1000.0, 2000.0, 3000.0, 4000.0, 5000.0]
    for (_, y), low, high, column in zip(curve.points, curve.low, curve.high, values.T, strict=True):
        estimate = iqm_estimate(column, resamples=curves.RESAMPLES)
        assert estimate.interval is not None
        assert (y, low, high) == (estimate.value, estimate.interval.low, estimate.interval.high)
    assert curve.name == "fast (5 seeds, 5 reached, 0 failed)"
    assert len(curve.reached) == 5


def test_numbers_do_not_change_because_something_else_is_shown(runs: list[RecordedRun]) -> None:
    (both,) = exams(runs)
    (alone,) = exams([run for run in runs if run.run.name == "slow"])
    for way in curves.WAYS.values():
        assert curves.curve(both.arms[1], way) == curves.curve(alone.arms[0], way)
    assert curves.profile(both.arms[1]) == curves.profile(alone.arms[0])
    assert both.arms[1].expected("USD") == alone.arms[0].expected("USD")


def test_failed_seeds_are_counted_beside_the_line(runs: list[RecordedRun]) -> None:
    (exam,) = exams(runs)
    assert exam.arms[1].seeds == "5 seeds, 4 reached, 1 failed"
    expected = exam.arms[1].expected("s")
    assert expected is not None
    assert expected.value == pytest.approx(5 * 20.0 / 4)  # what all five took, over the four that reached it


def test_a_line_begins_where_every_seed_has_been_evaluated() -> None:
    lines = [[(1.0, 0.0), (3.0, 2.0)], [(2.0, 10.0), (4.0, 20.0)]]
    assert curves.common_grid(lines).tolist() == [2.0, 3.0, 4.0]
    many = [[(float(i), 0.0) for i in range(1000)], [(float(i), 1.0) for i in range(10, 1000)]]
    grid = curves.common_grid(many)
    assert (len(grid), grid[0], grid[-1]) == (curves.GRID, 10.0, 999.0)


def test_between_evaluations_on_the_straight_line_and_after_the_end_at_the_last_value() -> None:
    def recorded(seed: int, *points: tuple[int, float]) -> RecordedRun:
        run = make_run(seed=seed)
        made = [make_checkpoint(run, i, step=x, target_value=y, target_met=False) for i, (x, y) in enumerate(points, 1)]
        return RecordedRun(run, make_end(run), tuple(made))

    arm = ReportArm("a", (recorded(0, (0, 0.0), (10, 10.0)), recorded(1, (0, 0.0), (5, 100.0))))
    curve = curves.curve(arm, curves.WAYS["steps"])
    assert curve.points == ((0.0, 0.0), (5.0, (5.0 + 100.0) / 2), (10.0, (10.0 + 100.0) / 2))
    assert curve.low == ()  # two seeds are too few for an interval


def test_a_resumed_run_carries_what_came_before_it() -> None:
    run = make_run()
    before = Before(("p",), {"env_steps": 500, "wall_seconds": 7.0, "cost_usd": 1.0})
    end = make_end(run, init_seconds=3.0, compile_seconds=1.0)
    recorded = RecordedRun(run, end, (make_checkpoint(run, 1),), before=before)
    assert curves.points(recorded, curves.WAYS["steps"]) == ((1500.0, 100.0),)
    assert curves.points(recorded, curves.WAYS["seconds"]) == ((13.0, 100.0),)  # start-up is drawn apart
    a_second = run.price_usd_per_hour / 3600.0
    ((dollars, _),) = curves.points(recorded, curves.WAYS["dollars"])
    assert dollars == pytest.approx(1.01 - 4.0 * a_second)
    (words,) = {curves.startup_words(exam) for exam in exams([recorded])}
    assert words == "Start-up (imports, compiling) is left out: 4.00 s to 4.00 s a seed. "


def test_a_performance_profile_is_the_share_of_episodes(runs: list[RecordedRun]) -> None:
    (exam,) = exams(runs)
    profile = curves.profile(exam.arms[0])
    assert profile is not None
    episodes = np.concatenate([[498.0 + 2 * seed + 3.0 * (i - 4.5) for i in range(10)] for seed in range(5)])
    for score, share, low, high in list(zip(profile.scores, profile.shares, profile.low, profile.high, strict=True))[
        1:-1
    ]:
        assert share == pytest.approx(np.mean(episodes >= score))
        assert low <= share <= high
    assert (profile.shares[0], profile.shares[-1]) == (1.0, 0.0)


def test_runs_of_other_exams_never_share_a_picture(tmp_path: Path) -> None:
    fill(tmp_path / "l.db")
    with Store(tmp_path / "l.db") as store:
        found = exams(store.read(queries.records, newest_first=False))
    assert [{arm.first.env for arm in exam.arms} for exam in found] == [{"CartPole-v1"}, {"Pendulum-v1"}, {""}]


def test_arms_of_one_name_are_told_apart_by_what_differs() -> None:
    runs = [RecordedRun(make_run(name="x", config=f'{{"lr":{lr},"n":1}}')) for lr in (0.1, 0.2)]
    (exam,) = exams(runs)
    assert [arm.label for arm in exam.arms] == ["x (lr 0.1)", "x (lr 0.2)"]
