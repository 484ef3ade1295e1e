from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from sample_rows import make_end, make_phases, make_run

import extras
import mileage
from mileage.errors import UnmatchedError, UsageError
from mileage.ledger.runs import RecordedRun
from mileage.ledger.store import Store
from mileage.measure import Arm
from mileage.measure.machine import OTHERS
from mileage.report.arms import Selection, run_costs
from mileage.report.compare import Comparison, compare_arms, compare_selections


def finished(
    wall: float, *, reached: bool = True, steps: int = 1000, run: dict[str, Any] | None = None, **phases: float
) -> RecordedRun:
    """A run at one dollar a second that took `wall` seconds."""
    row = make_run(**{"price_usd_per_hour": 3600.0, "step_budget": None, **(run or {})})
    end = make_end(
        row,
        state="reached" if reached else "not_reached",
        wall_seconds=wall,
        train_seconds=wall * 0.9,
        eval_seconds=wall * 0.1,
        init_seconds=0.0,
        compile_seconds=0.0,
        cost_usd=wall * row.price_usd_per_hour / 3600,
        cost_to_target=wall * row.price_usd_per_hour / 3600 if reached else None,
        wall_to_target=wall if reached else None,
        steps_to_target=steps if reached else None,
        env_steps=steps,
        mean_return=500.0 if reached else 100.0,
    )
    return RecordedRun(row, end, phase_rows=tuple(make_phases(row, 9, **phases)))


def compared(a: list[RecordedRun], b: list[RecordedRun], **options: Any) -> Comparison:
    return compare_arms(Arm("A", Selection(a)), Arm("B", Selection(b)), **options)


@extras.NOTEBOOK
def test_from_python_runs_are_found_by_the_words_of_the_shell_and_read_when_they_are_asked_for(tmp_path: Path) -> None:
    ledger = mileage.Ledger(tmp_path / "l.db")
    for name in ("small", "large"):
        for seed in range(3):
            agent = mileage.PPO("CartPole-v1", seed=seed, n_envs=4, n_steps=64)
            agent.learn(512, target="mean_return>=5", ledger=ledger, name=name, checkpoint=tmp_path / f"{name}{seed}")
    runs = ledger.records("small")
    assert [run.seed for run in runs] == [2, 1, 0]
    assert ledger.records("name=small") == runs
    assert ledger.records("nothing of that name") == []
    assert ledger.records("large", limit=1)[0].seed == 2
    assert len(runs[0].evaluations) >= 1
    assert "mean return" in repr(runs[0])
    assert len(runs[0].to_frame()) == len(runs[0].checkpoints) > 0
    assert len(runs[0].plot().lines[0].get_xdata()) == len(runs[0].evaluations)
    assert sum(runs[0].phases.values()) == pytest.approx(runs[0].wall_seconds)
    assert copy.deepcopy(runs[0]).checkpoints == runs[0].checkpoints
    with pytest.raises(AttributeError, match="'RecordedRun' object has no attribute 'epsiodes'"):
        _ = runs[0].epsiodes  # type: ignore[attr-defined]
    comparison = mileage.compare("small", ledger.records("large"), db=tmp_path / "l.db")
    assert (comparison.a.runs, comparison.b.runs) == (3, 3)
    assert comparison.verdict.startswith("undecided")


def test_expected_cost_counts_failed_runs_by_hand() -> None:
    a = [finished(10.0), finished(20.0), finished(60.0, reached=False)]
    b = [finished(30.0), finished(31.0), finished(29.0)]
    comparison = compared(a, b)
    assert comparison.unit == "USD"
    assert (comparison.a.runs, comparison.a.reached, comparison.a.failed) == (3, 2, 1)
    assert comparison.a.expected.value == (10 + 20 + 60) / 2
    assert comparison.b.expected.value == 30.0
    table = {name: (left, right) for name, left, right in comparison.table().rows}
    assert table["reached"] == ("2 of 3", "3 of 3")
    assert table["failed runs"] == ("1", "0")
    assert table["ends"] == ("2 reached, 1 not reached", "3 reached")
    assert table["expected cost to target"][0].startswith("$45.00 [$")
    assert table["spent in all"] == ("$90.00", "$90.00")


def test_a_run_that_went_on_after_the_target_costs_up_to_the_target() -> None:
    run = finished(100.0)
    longer = RecordedRun(run.run, run.end._replace(wall_to_target=40.0, cost_to_target=40.0))
    assert longer.cost("USD") == 40.0
    assert longer.cost("s") == 40.0
    assert finished(100.0, reached=False).cost("USD") == 100.0


def test_the_step_budget_prices_a_failure_nobody_has_seen() -> None:
    # 2 dollars per 1000 steps, a budget of 5000 steps: 10 dollars.
    runs = [finished(2.0, run={"step_budget": 5000}) for _ in range(3)]
    assert run_costs(runs, "USD").budget == pytest.approx(10.0)
    assert run_costs([*runs, finished(2.0)], "USD").budget is None


def test_far_apart_arms_are_decided_and_equal_ones_are_not() -> None:
    cheap = [finished(10.0 + 0.1 * i) for i in range(8)]
    dear = [finished(30.0 + 0.1 * i) for i in range(8)]
    equal = [finished(10.05 + 0.1 * i) for i in range(8)]
    assert compared(cheap, dear).costs.verdict == "A cheaper"
    assert compared(dear, cheap).costs.verdict == "B cheaper"
    undecided = compared(cheap, equal)
    assert undecided.verdict.startswith("undecided")
    assert "more run" in undecided.verdict


def test_planned_looks_wait_for_the_first_look() -> None:
    cheap = [finished(10.0 + 0.1 * i) for i in range(4)]
    dear = [finished(30.0 + 0.1 * i) for i in range(4)]
    waiting = compared(cheap, dear, sequential=True)
    assert waiting.sequential
    assert "first planned look is at 5 runs" in waiting.verdict


def test_nobody_reached_shows_the_money_spent() -> None:
    failed = [finished(10.0, reached=False) for _ in range(3)]
    comparison = compared(failed, failed[:])
    assert comparison.a.expected.value is None
    assert {name: left for name, left, _ in comparison.table().rows}["expected cost to target"] == (
        "not reached ($30.00 spent)"
    )
    assert "neither A nor B reached" in comparison.verdict


def test_the_phase_that_made_the_difference_is_named() -> None:
    a = [finished(20.0, rollout=8.0, learn=12.0) for _ in range(3)]
    b = [finished(13.8, rollout=9.7, learn=4.1) for _ in range(3)]
    (sentence,) = compared(a, b).reasons
    assert sentence == (
        "B saves 31.0 % of the time (20.00 s → 13.80 s per run that reached the target) because `learn` shrank from "
        "12.00 s to 4.10 s (100.0 % of what shrank)"
    )
    (sentence,) = compared(b, a).reasons
    assert sentence.startswith("B takes 44.9 % more time (13.80 s → 20.00 s")
    assert "`learn` grew from 4.10 s to 12.00 s" in sentence
    assert compared(a, a[:]).reasons == ()


def test_an_arm_whose_budget_ended_before_what_the_other_needed_is_undecided() -> None:
    """The recipe is the same: only the budget is smaller."""
    long = [finished(2.0, steps=steps, learn=2.0) for steps in (4096, 8192, 4096, 8192, 4096)]
    short = [finished(1.5, reached=False, steps=1024, learn=0.5) for _ in range(5)]
    for comparison, name, other in ((compared(long, short), "B", "A"), (compared(short, long), "A", "B")):
        wanted = f"undecided: {name} was stopped at 1,024 steps, {other}'s runs needed 4,096 to 8,192"
        assert comparison.verdict == wanted
        assert comparison.costs.verdict == "undecided"
        assert comparison.reasons == ()  # nothing is saved by a run that does not get there
    enough = [finished(20.0, reached=False, steps=8192) for _ in range(5)]
    assert compared(long, enough).costs.verdict == "A cheaper"
    crashed = [RecordedRun(run.run, run.end and run.end._replace(state="crashed")) for run in short]
    assert compared(long, crashed).verdict.startswith("A cheaper: B did not reach")
    some = [*[finished(40.0, steps=900) for _ in range(2)], *short, *short]
    assert compared(long, some).verdict.startswith("undecided: B was stopped at 1,024 steps")
    lucky = [*[finished(0.1, steps=900) for _ in range(9)], finished(0.1, reached=False, steps=1024)]
    assert compared(long, lucky).costs.verdict == "B cheaper"  # giving up early may be the cheaper recipe


def test_a_busy_machine_is_named_and_nothing_is_because_of_a_recipe() -> None:
    quiet = [finished(10.0, learn=10.0) for _ in range(3)]
    busy = [finished(20.0, learn=20.0) for _ in range(3)]
    others = make_phases(busy[0].run, 9, others=24.0)[0]._replace(phase=OTHERS, beside=True)
    cores = busy[0].run._replace(machine=json.dumps({**json.loads(busy[0].run.machine), "cores": 2}))
    busy = [RecordedRun(cores, run.end, phase_rows=(*run.phase_rows, others)) for run in busy]
    said, sentence = compared(busy, quiet, allow=["machine"]).reasons
    assert said.startswith("the machine was busy: others kept 60.0 % of the cores while A ran and 0.0 % while B did")
    assert "because" not in sentence


def test_collecting_in_one_piece_is_compared_with_the_sum_of_its_parts() -> None:
    parts = [finished(10.0, env_step=5.0, inference=2.0, learn=3.0) for _ in range(3)]
    whole = [finished(30.0, rollout=22.0, learn=8.0) for _ in range(3)]
    (sentence,) = compared(parts, whole).reasons
    assert "`rollout` grew from 7.00 s to 22.00 s (75.0 % of what grew)" in sentence
    slower = [finished(30.0, env_step=24.0, inference=3.0, learn=3.0) for _ in range(3)]
    (sentence,) = compared(parts, slower).reasons
    assert "`env_step` grew from 5.00 s to 24.00 s" in sentence


def test_fewer_steps_are_not_a_faster_system() -> None:
    a = [finished(20.0, steps=2000) for _ in range(3)]
    fewer = [finished(10.0, steps=1000) for _ in range(3)]
    quicker = [finished(10.0, steps=2000) for _ in range(3)]
    (warning,) = compared(a, fewer).warnings
    assert warning.evidence.startswith("B is faster mostly because it needs 50.0 % fewer steps (algorithmic)")
    assert "time per step changed by +0.0 % (systems)" in warning.evidence
    (warning,) = compared(fewer, a).warnings
    assert warning.evidence.startswith("A is faster mostly")
    assert compared(a, quicker).warnings == ()


def test_without_a_price_seconds_are_compared_and_it_is_said() -> None:
    free = {"price_usd_per_hour": 0.0}
    comparison = compared([finished(10.0, run=free)] * 3, [finished(20.0, run=free)] * 3)
    assert comparison.unit == "s"
    assert any("seconds are compared" in each.evidence for each in comparison.warnings)
    assert {n: left for n, left, _ in comparison.table().rows}["expected cost to target"].startswith("10.00 s [")


def test_other_exams_are_refused_and_the_override_is_labelled_in_every_format() -> None:
    a = [finished(10.0)] * 3
    b = [finished(20.0, run={"panel_id": "other"})] * 3
    with pytest.raises(UnmatchedError, match="panel_id"):
        compared(a, b)
    comparison = compared(a, b, allow=["panel_id"])
    assert comparison.lines()[0] == "UNMATCHED: panel_id"
    assert json.loads(json.dumps(comparison.as_dict()))["label"] == "UNMATCHED: panel_id"


def test_fewer_than_three_runs_say_so_instead_of_an_interval() -> None:
    comparison = compared([finished(10.0)] * 2, [finished(20.0)] * 2)
    assert "too few" in {n: left for n, left, _ in comparison.table().rows}["expected cost to target"]
    assert comparison.verdict.startswith("undecided")


def test_probability_of_improvement_is_about_returns_of_b_over_a() -> None:
    a = [finished(10.0, reached=False)] * 3  # each returns 100
    b = [finished(10.0)] * 3  # each returns 500
    comparison = compared(a, b)
    assert comparison.improvement is not None
    assert comparison.improvement.value == 1.0
    assert comparison.a.iqm_return is not None
    assert comparison.a.iqm_return.value == 100.0


def test_selections_leave_out_what_still_runs_and_refuse_overlap(tmp_path: Path) -> None:
    with Store(tmp_path / "mileage.db") as store:
        for name, wall in (("one", 10.0), ("two", 20.0)):
            for _ in range(3):
                run = finished(wall, run={"name": name}, learn=wall)
                store.deliver([run.run, run.end, *run.phase_rows])
        store.deliver([make_run(name="two", price_usd_per_hour=3600.0)])
        store.deliver([make_run(name="three")])
        comparison = compare_selections(store, "one", "name=two")
        assert (comparison.b.runs, comparison.b.left_out) == (3, 1)
        assert "1 runs of B are still running and not counted" in [each.evidence for each in comparison.warnings]
        assert comparison.a.phase_seconds == {"learn": 10.0}
        with pytest.raises(UsageError, match="on both sides"):
            compare_selections(store, "one", "algorithm=ppo,name=one")
        with pytest.raises(UsageError, match="has ended yet"):
            compare_selections(store, "one", "three")


def test_what_the_arms_ran_with_is_always_shown() -> None:
    fast = {"machine": '{"cpu":"new","cores":8,"gpus":[],"threads":4}', "step_budget": 9000, "config": '{"lr":0.1}'}
    slow = {"machine": '{"cpu":"old","cores":2,"gpus":["T4"]}', "price_usd_per_hour": 7200.0, "config": '{"lr":0.2}'}
    comparison = compared([finished(10.0, run=fast)] * 3, [finished(20.0, run=slow)] * 3)
    table = {name: (left, right) for name, left, right in comparison.table().rows}
    assert table["price"] == ("$3,600.00/h × 1", "$7,200.00/h × 1")
    assert table["machine"] == ("8 × new", "2 × old + T4")
    assert table["threads"] == ("4", "not stated")
    assert table["step budget"] == ("9,000 env_steps", "not stated")
    assert table["training time"] == ("9.00 s", "18.00 s")
    assert table["evaluation time"] == ("1.00 s", "2.00 s")
    assert table["config: lr"] == ("0.1", "0.2")
    content = comparison.as_dict()
    assert content["config_differences"] == {"lr": ["0.1", "0.2"]}
    assert content["a"]["setting"]["threads"] == "4"


def test_frame_skip_and_reward_normalisation_in_the_config_are_shown() -> None:
    a = [finished(10.0, run={"config": '{"env":{"frame_skip":4},"normalise_rewards":true}'})] * 3
    b = [finished(10.0, run={"config": '{"env":{"frame_skip":1},"normalise_rewards":false}'})] * 3
    assert compared(a, b).config == {"env.frame_skip": ("4", "1"), "normalise_rewards": ("true", "false")}


def test_one_name_has_one_meaning() -> None:
    def went_on(wall: float, target: float) -> RecordedRun:
        run = finished(wall)
        assert run.end is not None
        end = run.end._replace(wall_to_target=target, cost_to_target=target, steps_to_target=int(10 * target))
        return RecordedRun(run.run, end)

    a = [went_on(100.0, 10.0), went_on(100.0, 20.0), went_on(100.0, 60.0), finished(90.0, reached=False)]
    comparison = compared(a, [finished(30.0)] * 4)
    table = {name: left for name, left, _ in comparison.table().rows}
    assert table["wall-clock to target"] == "20.00 s"  # the median of runs that reached it, as `train` says
    assert table["steps to target"] == "200"
    assert table["expected wall-clock to target"] == "60.00 s"  # (10 + 20 + 60 + 90) / 3
    assert table["spent in all"] == "$390.00"  # to the end of every run
    assert comparison.as_dict()["a"]["spent_to_target"] == 180.0


def test_the_cause_is_about_the_time_up_to_the_target() -> None:
    run = finished(100.0, rollout=30.0, learn=70.0)
    assert run.end is not None
    early = [*make_phases(run.run, 1, rollout=4.0, learn=4.0), *make_phases(run.run, 2, rollout=10.0, learn=10.0)]
    end = run.end._replace(wall_to_target=14.0, cost_to_target=14.0)
    on = RecordedRun(run.run, end, phase_rows=run.phase_rows, phase_history=(*early, *run.phase_rows))
    assert on.phases_to_target() == {"rollout": 7.0, "learn": 7.0}
    comparison = compared([on] * 3, [finished(7.0, rollout=3.0, learn=4.0)] * 3)
    assert sum(comparison.a.phase_seconds.values()) == comparison.a.seconds_per_success == 14.0
    assert "14.00 s → 7.00 s" in comparison.reasons[0]


def test_a_resumed_run_costs_what_it_and_its_parents_cost(tmp_path: Path) -> None:
    with Store(tmp_path / "mileage.db") as store:
        first = finished(100.0, reached=False, steps=5000, run={"name": "first"})
        second = finished(50.0, reached=False, run={"name": "second", "parent_run_id": first.run_id})
        third = finished(10.0, run={"name": "third", "parent_run_id": second.run_id})
        orphan = finished(10.0, run={"name": "orphan", "parent_run_id": "20200101-000000-00000000"})
        plain = finished(20.0, run={"name": "plain"})
        for run in (first, second, third, orphan, plain):
            store.deliver([run.run, run.end])
        comparison = compare_selections(store, "third", "plain")
        assert comparison.a.expected.value == 160.0
        assert comparison.a.seconds_per_success == 160.0
        assert comparison.a.steps_per_success == 7000
        assert comparison.a.spent == 160.0
        said = [each.evidence for each in comparison.warnings]
        assert "1 runs of A resume others, whose cost and steps are counted" in said
        unknown = " ".join(each.evidence for each in compare_selections(store, "orphan", "plain").warnings)
        assert "the cost of 20200101-000000-00000000, which a run of A resumes, is unknown" in unknown


def test_a_side_whose_past_nobody_knows_is_not_called_cheaper(tmp_path: Path) -> None:
    unknown = "20200101-000000-00000000"
    with Store(tmp_path / "mileage.db") as store:
        for name, seconds, parent in (("orphan", 1.0, unknown), ("plain", 20.0, None), ("dear", 400.0, unknown)):
            for seed in range(5):
                run = finished(seconds + 0.1 * seed, run={"name": name, "seed": seed, "parent_run_id": parent})
                store.deliver([run.run, run.end])
        found = compare_selections(store, "orphan", "plain")
        assert found.verdict == f"undecided: what run {unknown} cost, which a run of A resumes, is unknown"
        assert found.as_dict()["verdict"] == "undecided"
        assert compare_selections(store, "dear", "plain").costs.verdict == "B cheaper"  # whatever there is to add to A


def test_claimed_runs_never_reach_a_target() -> None:
    run = finished(10.0, reached=False)
    assert run.end is not None
    claimed = RecordedRun(run.run, run.end._replace(state="claimed"))
    comparison = compared([claimed] * 3, [finished(20.0)] * 3)
    assert comparison.a.reached == 0
    assert "3 runs of A only claim to have reached the target, and count as failed" in [
        each.evidence for each in comparison.warnings
    ]


def test_no_infinity_leaves_a_comparison_as_json() -> None:
    text = json.dumps(compared([finished(10.0)] * 3, [finished(20.0)] * 3).as_dict(), allow_nan=False)
    assert json.loads(text)["a"]["interval"][1] is None
