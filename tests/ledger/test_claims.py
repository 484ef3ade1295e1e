"""An imported run is what its episodes show; everything else is a claim."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sample_rows import make_checkpoint, make_end, make_run

from mileage.errors import UsageError
from mileage.ledger import exporting
from mileage.ledger.admission import CLAIMED_TIME
from mileage.ledger.panels import Panel
from mileage.ledger.rows import Checkpoint, End, Row
from mileage.ledger.runs import RecordedRun, episode_rows
from mileage.ledger.summary import cost_usd
from mileage.ledger.targets import Evaluation

PANEL = Panel.default("CartPole-v1", 4, success="return>=475")
RETURNS = [500.0, 480.0, 470.0, 490.0]  # mean 485, three successes


@pytest.fixture
def document() -> dict[str, Any]:
    """An export of a run that reached 475 at its second checkpoint."""
    run = make_run(panel=PANEL.to_json(), panel_id=PANEL.panel_id, success=PANEL.success)
    low, high = (Evaluation.of(PANEL.seeds, returns, [500] * 4) for returns in ([9.0] * 4, RETURNS))
    first = make_checkpoint(run, 1, success_rate=0.0, mean_return=9.0, target_value=9.0, target_met=False)
    second = make_checkpoint(run, 2, success_rate=0.75, mean_return=485.0, target_value=485.0, target_met=True)
    rows = [row._replace(cost_usd=cost_usd(row.wall_seconds, run)) for row in (first, second)]
    end = make_end(
        run, wall_seconds=30.0, billable_seconds=30.0, cost_usd=cost_usd(30.0, run), success_rate=0.75,
        mean_return=485.0, steps_to_target=2000, wall_to_target=20.0, cost_to_target=rows[1].cost_usd, target_seq=2,
        checkpoints=2, env_steps=2000, train_seconds=20.0,
    )  # fmt: skip
    judged = [
        episode._replace(success=bool(episode.episode_return and episode.episode_return >= 475))
        for seq, played in ((1, low), (2, high))
        for episode in episode_rows(run.run_id, seq, played)
    ]
    text = exporting.dumps([RecordedRun(run, end, tuple(rows), (), tuple(judged))])
    found: dict[str, Any] = json.loads(text)
    return found


def taken_in(document: dict[str, Any]) -> tuple[list[Checkpoint], End]:
    rows: list[Row] = exporting.loads(document)
    (end,) = [row for row in rows if isinstance(row, End)]
    return [row for row in rows if isinstance(row, Checkpoint)], end


def test_an_honest_file_comes_back_as_it_was(document: dict[str, Any]) -> None:
    checkpoints, end = taken_in(document)
    assert [row.target_met for row in checkpoints] == [False, True]
    assert (end.state, end.wall_to_target, end.target_seq) == ("reached", 20.0, 2)
    assert end._asdict() == {**document["runs"][0]["end"]}


def cheaper(run: dict[str, Any]) -> None:
    """A hundredth of its time, everywhere but in the moment of its end."""
    run["run"]["started_at"] -= 3000.0
    run["run"]["launched_at"] -= 3000.0


def test_seconds_that_are_not_those_until_its_end_reach_nothing(document: dict[str, Any]) -> None:
    cheaper(document["runs"][0])
    _, end = taken_in(document)
    assert (end.state, end.reason, end.wall_to_target) == ("claimed", CLAIMED_TIME, None)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"phases": [("learn", 29.0, 31.0)]}, "the time of phase rows of run .* is 31 of 30 s"),
        ({"phases": [("learn", 29.0, 30.0), ("eval", 2.0, 30.0)]}, "the sum of phase rows of run .* is 31 of 30 s"),
        ({"end": {"init_seconds": 31.0}}, "init_seconds of an end row .* is 31 of 30 s"),
        ({"end": {"wall_seconds": 1e308}}, "wall_seconds of an end row .* is no time that a run can take"),
        ({"run": {"instances": 10**30}}, "instances of a run row is too large"),
        ({"run": {"price_usd_per_hour": 1e300}}, "below 1,000,000,000,000 for all instances, not 1e.300 for 1"),
        ({"run": {"batch_size": "many"}}, "batch_size of a run row cannot be 'many'"),
        ({"run": {"step_budget": -1}}, "step_budget of a run must be 0 or more, not -1"),
    ],
)
def test_what_contradicts_itself_is_not_taken(document: dict[str, Any], changes: Any, sentence: str) -> None:
    (run,) = document["runs"]
    for part in ("run", "end"):
        run[part] |= changes.get(part, {})
    own = {"run_id": run["run"]["run_id"], "seq": 3, "entries": 1, "beside": False}
    run["phases"] += [
        own | {"phase": phase, "seconds": seconds, "wall_seconds": wall}
        for phase, seconds, wall in changes.get("phases", ())
    ]
    with pytest.raises(UsageError, match=sentence):
        exporting.loads(document)


def forge_success(run: dict[str, Any]) -> None:
    run["checkpoints"][0] |= {"success_rate": 1.0, "mean_return": 500.0, "target_value": 500.0, "target_met": True}


def drop_episodes(run: dict[str, Any]) -> None:
    run["episodes"] = [episode for episode in run["episodes"] if episode["seq"] != 2]


def one_episode(run: dict[str, Any]) -> None:
    run["episodes"] = [episode for episode in run["episodes"] if episode["episode"] == 0]


def training_seeds(run: dict[str, Any]) -> None:
    for episode in run["episodes"]:
        episode["seed"] = episode["episode"]


def flipped_flags(run: dict[str, Any]) -> None:
    for episode in run["episodes"]:
        episode["success"] = True


@pytest.mark.parametrize("forge", [drop_episodes, one_episode, training_seeds, flipped_flags])
def test_without_its_episodes_a_success_is_a_claim(document: dict[str, Any], forge: Any) -> None:
    forge(document["runs"][0])
    checkpoints, end = taken_in(document)
    assert checkpoints[1].target_met is None
    assert checkpoints[1].success_rate is None
    assert json.loads(checkpoints[1].claimed or "")["target_met"] is True
    assert (end.state, end.wall_to_target, end.cost_to_target, end.target_seq) == ("claimed", None, None, None)
    assert end.reason.startswith("claimed")


def test_a_forged_figure_is_a_claim_and_the_true_one_counts(document: dict[str, Any]) -> None:
    forge_success(document["runs"][0])
    document["runs"][0]["end"] |= {"wall_to_target": 10.0, "cost_to_target": 0.001, "target_seq": 1, "cost_usd": 0.0}
    checkpoints, end = taken_in(document)
    assert [row.target_met for row in checkpoints] == [None, True]
    assert (end.state, end.wall_to_target, end.target_seq) == ("reached", 20.0, 2)
    assert end.cost_usd == pytest.approx(30.0 / 3600 * 3.6)
    assert end.cost_to_target == pytest.approx(20.0 / 3600 * 3.6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"panel_id": "0" * 64}, "panel_id of run .* but its panel gives"),
        ({"success": "return>=1.0"}, "success of run .* but its panel gives 'return>=475.0'"),
        ({"panel": None}, "names panel .* and does not have it"),
    ],
)
def test_a_panel_that_is_not_what_it_says_is_refused(
    document: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    document["runs"][0]["run"] |= change
    with pytest.raises(UsageError, match=message):
        exporting.loads(document)


@pytest.mark.parametrize(
    ("part", "forged", "sentence"),
    [
        ("end", {"wall_seconds": 0.001}, "wall_seconds of an end row of run .* is 0.001 after 20"),
        ("end", {"eval_seconds": 99.0}, "eval_seconds of an end row of run .* is 99 of 30 s"),
        ("end", {"closed_by": "opener"}, "state of an end row of run .* must be crashed if another closed it"),
        ("checkpoint", {"wall_seconds": 1.0}, "wall_seconds of a checkpoint row of run .* is 1 after 10"),
        ("checkpoint", {"train_seconds": 1e6}, r"train_seconds of a checkpoint row of run .* is 1e\+06 of 20 s"),
        ("checkpoint", {"step": -5}, "step of a checkpoint row of run .* must be 0 or more, not -5"),
        ("run", {"price": {"parts": {"instance": 7.0}}}, "price_usd_per_hour of run .*, but its parts make 7"),
        ("run", {"price": "cheap"}, "price of run .* is not one: 'cheap'"),
        ("run", {"launched_at": 1e18}, "must be seconds since 1970"),
    ],
)
def test_rows_that_cannot_all_be_true_are_refused(
    document: dict[str, Any], part: str, forged: dict[str, Any], sentence: str
) -> None:
    entry = document["runs"][0]
    (entry["checkpoints"][1] if part == "checkpoint" else entry[part]).update(forged)
    with pytest.raises(UsageError, match=sentence):
        exporting.loads(document)


def test_steps_and_training_time_of_the_end_are_made_again(document: dict[str, Any]) -> None:
    document["runs"][0]["end"] |= {"env_steps": 10**12, "train_seconds": 1e-9, "checkpoints": 9}
    _, end = taken_in(document)
    assert (end.env_steps, end.checkpoints, end.train_seconds) == (2000, 2, 30.0 - end.eval_seconds)
