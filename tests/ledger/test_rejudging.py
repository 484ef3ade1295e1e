from __future__ import annotations

import dataclasses

import pytest
from sample_rows import make_checkpoint, make_end, make_run

from mileage.errors import UsageError
from mileage.ledger.matching import rejudged, stopped_short
from mileage.ledger.panels import Panel
from mileage.ledger.runs import RecordedRun, episode_rows
from mileage.ledger.targets import Evaluation, Target

PANEL = Panel.default("CartPole-v1", 4)


def recorded() -> RecordedRun:
    """A run whose mean return was 100, 300 and 480; its own target was 475."""
    run = make_run(panel=PANEL.to_json(), panel_id=PANEL.panel_id, success=None)
    returns = (100.0, 300.0, 480.0)
    rows = [make_checkpoint(run, seq, mean_return=value, success_rate=None) for seq, value in enumerate(returns, 1)]
    played = [
        episode
        for seq, value in enumerate(returns, 1)
        for episode in episode_rows(run.run_id, seq, Evaluation.of(PANEL.seeds, [value] * 4, [10] * 4))
    ]
    end = make_end(run, wall_seconds=31.0, wall_to_target=30.0, steps_to_target=3000, target_seq=3)
    return RecordedRun(run, end, tuple(rows), (), tuple(played))


def test_an_easier_target_was_reached_earlier_and_for_less() -> None:
    found = rejudged(recorded(), Target.parse("mean_return>=250"))
    assert found.run.target == "mean_return>=250.0"
    assert (found.state, found.wall_to_target, found.steps_to_target) == ("reached", 20.0, 2000)
    assert found.metric("cost_to_target") == pytest.approx(0.02)
    assert found.metric("mean_return") == 300.0
    assert [row.target_met for row in found.checkpoints] == [False, True, True]


def test_a_harder_target_was_not_reached_because_the_run_had_stopped() -> None:
    target = Target.parse("mean_return>=490")
    found = rejudged(recorded(), target)
    assert (found.state, found.wall_to_target, found.cost("s")) == ("not_reached", None, 31.0)
    assert stopped_short(recorded(), target)
    assert not stopped_short(recorded(), Target.parse("mean_return>=475"))


def test_a_run_that_had_no_target_is_judged_by_one() -> None:
    run = recorded()
    assert run.end is not None
    bare = dataclasses.replace(run, run=run.run._replace(target=None), end=run.end._replace(state="finished"))
    assert rejudged(bare, Target.parse("mean_return>=250")).state == "reached"
    assert rejudged(bare, Target.parse("mean_return>=490")).state == "not_reached"


def test_other_aggregates_come_from_the_same_episodes() -> None:
    assert rejudged(recorded(), Target.parse("median_return>=300")).wall_to_target == 20.0
    with pytest.raises(UsageError, match="its panel defines no success"):
        rejudged(recorded(), Target.parse("success_rate>=0.5"))


def test_without_episodes_no_target_is_met() -> None:
    run = recorded()
    bare = RecordedRun(run.run, run.end, run.checkpoints)
    assert rejudged(bare, Target.parse("mean_return>=1")).wall_to_target is None
