"""Rules on runs whose phases are given, by hand."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from sample_rows import make_end, make_phases, make_run

from mileage.ledger.runs import RecordedRun
from mileage.profiling.calibration import Calibration, Roofline
from mileage.profiling.findings import diagnose
from mileage.profiling.lines import HotLine
from mileage.profiling.model import Bottleneck
from mileage.profiling.profile import Profile
from mileage.profiling.run import EndToEnd
from recorded_profiles import RECORDED, measured

WORKLOAD: dict[str, Any] = {"algorithm": "ppo", "env": "X", "threads": 1, "config": {"n_envs": 8}, "native_env": True}


def run(phases: dict[str, float], entries: dict[str, int] | None = None, **options: Any) -> EndToEnd:
    row = make_run()
    end = make_end(row, state="not_reached", env_steps=10_000, wall_seconds=sum(phases.values()))
    rows = [each._replace(entries=(entries or {}).get(each.phase, 0)) for each in make_phases(row, 1, **phases)]
    return EndToEnd(RecordedRun(row, end, phase_rows=tuple(rows), in_ledger=False), **options)


def test_evaluation_is_thinned_to_a_twentieth_of_the_rest() -> None:
    # 50 evaluations of 0.1 s beside 5 s: one per 0.1 / 0.05 = 2 s, that is every 4,000 of the 10,000 steps.
    found = diagnose(run({"learn": 5.0, "eval": 5.0}, {"learn": 10, "eval": 50}), WORKLOAD)[0]
    assert found.bottleneck is Bottleneck.EVALUATION_BOUND
    assert found.suggestion == "--eval-every 4000"
    assert found.share == pytest.approx(0.5)
    assert found.estimated_gain == pytest.approx((5.0 - 2 * 0.1) / 10.0)


def test_nothing_waits_for_what_takes_next_to_nothing() -> None:
    phases = {"learn": 0.4, "init": 9.2, "log": 0.4}
    found = diagnose(run(phases, {"learn": 10, "log": 10}), WORKLOAD)
    assert [each.bottleneck for each in found] == [Bottleneck.STARTUP_BOUND]


def test_one_evaluation_cannot_be_thinned() -> None:
    found = diagnose(run({"learn": 5.0, "eval": 5.0}, {"learn": 10, "eval": 1}), WORKLOAD)
    assert Bottleneck.EVALUATION_BOUND not in [each.bottleneck for each in found]


def test_warm_kernels_are_no_reason_to_warm_up() -> None:
    phases = {"learn": 1.0, "compile": 9.0}
    cold = diagnose(run(phases, compiled=("update",)), WORKLOAD)[0]
    assert (cold.bottleneck, cold.fix) == (Bottleneck.COMPILATION_BOUND, "warmup")
    assert "`mileage warmup --algorithm ppo` once" in cold.suggestion
    assert cold.estimated_gain == pytest.approx(0.9)
    warm = diagnose(run(phases), WORKLOAD)[0]
    assert (warm.bottleneck, warm.fix, warm.estimated_gain) == (Bottleneck.COMPILATION_BOUND, None, 0.0)


@pytest.mark.parametrize(
    ("phase", "bottleneck"),
    [("transfer", Bottleneck.TRANSFER_BOUND), ("sync", Bottleneck.SYNC_BOUND), ("log", Bottleneck.LOGGING_BOUND)],
)
def test_phases_that_only_wait(phase: str, bottleneck: Bottleneck) -> None:
    found = diagnose(run({"learn": 2.0, phase: 8.0}, {phase: 4}), WORKLOAD)[0]
    assert found.bottleneck is bottleneck
    assert found.share == pytest.approx(0.8)


def test_what_no_phase_claims_is_said() -> None:
    found = diagnose(run({"learn": 0.5, "other": 9.5}), WORKLOAD)[0]
    assert found.bottleneck is Bottleneck.UNACCOUNTED
    assert "n_envs" in found.suggestion  # the loop is not the user's


def test_failed_runs_lead_when_they_took_most() -> None:
    found = diagnose(run({"learn": 10.0}), WORKLOAD, failed_share=0.9)
    assert [each.bottleneck for each in found][:2] == [Bottleneck.FAILED_RUN_BOUND, Bottleneck.LEARNER_BOUND]


def test_python_environments_go_to_processes_when_a_step_is_long() -> None:
    bridged = WORKLOAD | {"native_env": False}
    slow = diagnose(run({"env_step": 8.0, "learn": 2.0}, {"env_step": 100}), bridged)[0]
    assert (slow.bottleneck, slow.fix) == (Bottleneck.ENV_BOUND, "processes")
    fast = diagnose(run({"env_step": 8.0, "learn": 2.0}, {"env_step": 1_000_000}), bridged)[0]
    assert (fast.bottleneck, fast.fix) == (Bottleneck.ENV_BOUND, None)
    assert diagnose(run({"env_step": 8.0}, {"env_step": 100}), bridged | {"processes": True})[0].fix is None


def test_a_short_run_starts_up_and_says_what_its_training_waits_for() -> None:
    phases = {"init": 0.6, "compile": 0.2, "learn": 0.15, "rollout": 0.05}
    found = Profile(WORKLOAD, run(phases), diagnose(run(phases), WORKLOAD))
    first, second = found.verdict.split(". Of the training, ")
    assert first.startswith("STARTUP-BOUND: 60 % starting up")
    assert second.startswith("LEARN-BOUND: 15 % in learn")
    only = {"init": 0.9, "compile": 0.1}
    assert "Of the training" not in Profile(WORKLOAD, run(only), diagnose(run(only), WORKLOAD)).verdict


@pytest.mark.parametrize(
    ("config", "cores", "suggestion"),
    [
        ({"n_envs": 16}, 8, "fewer workers, or more steps between exchanges"),
        ({"n_envs": 16, "collectors": 2}, 8, "--set collectors=4"),
        ({"n_envs": 16, "collectors": 2}, 4, "more cores for collectors: the learner waits for rollouts"),
    ],
)
def test_a_learner_that_waits_gets_more_collectors(
    config: dict[str, int], cores: int, suggestion: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mileage.profiling.findings.usable_cores", lambda: cores)
    found = diagnose(run({"sync": 8.0, "learn": 2.0}, {"sync": 10, "learn": 10}), WORKLOAD | {"config": config})[0]
    assert (found.bottleneck, found.suggestion) == (Bottleneck.SYNC_BOUND, suggestion)


def calibrated(**found: Any) -> Calibration:
    """What was measured once, without any change that would help, but with `found`."""
    _, kept = measured(json.loads(RECORDED.read_text())["tiny minibatches"])
    return dataclasses.replace(kept, **{"what_ifs": (), "lines": (), "roofline": (), "load": None} | found)


# GFLOP/s of an update beside the machine's, as measured for SAC: 22 to 68 % on machines of two makers, and more.
@pytest.mark.parametrize("reached", [0.22, 0.53, 0.62, 0.68, 0.9])
@pytest.mark.parametrize(
    ("config", "suggestion", "gain"),
    [
        ({"train_every": 1}, "--set train_every=2", 0.45),
        ({"epochs": 4}, "--set epochs=2", 0.45),
        ({"epochs": 3}, "--set epochs=1", 0.6),
        ({}, "smaller networks, or fewer updates per step", 0.0),
    ],
)
def test_a_learner_is_told_a_setting_and_not_to_buy(
    reached: float, config: dict[str, int], suggestion: str, gain: float
) -> None:
    found = calibrated(roofline=(Roofline("learn", 546e6, 31e6, 546e6 / (reached * 218e9), 218.0, False),))
    (learn,) = diagnose(run({"learn": 9.0, "env_step": 0.7, "init": 0.3}), WORKLOAD | {"config": config}, found)
    assert (learn.bottleneck, learn.suggestion) == (Bottleneck.LEARNER_BOUND, suggestion)
    assert f"{100 * reached:.0f} % of GEMM peak" in learn.evidence
    assert (learn.at_most, learn.estimated_gain) == (True, pytest.approx(gain))


@pytest.mark.parametrize(("reached", "bound"), [(0.6, Bottleneck.LEARNER_BOUND), (0.85, Bottleneck.MEMORY_BOUND)])
def test_memory_is_what_an_update_waits_for_only_near_its_bandwidth(reached: float, bound: Bottleneck) -> None:
    found = calibrated(roofline=(Roofline("learn", 1e6, 31e6, 1e6 / (reached * 1e9), 1.0, True),))
    assert diagnose(run({"learn": 9.0, "env_step": 1.0}), WORKLOAD, found)[0].bottleneck is bound


@pytest.mark.parametrize("phases", [{"learn": 6.0, "inference": 3.0}, {"inference": 6.0, "learn": 3.0}])
def test_a_loop_of_python_stands_for_the_phase_that_it_is_in(phases: dict[str, float]) -> None:
    # As measured of a network that goes through samples one by one: two lines of one function.
    lines = (HotLine("Net.forward", "/x/net.py", 12, 0.5), HotLine("Net.forward", "/x/net.py", 13, 0.2))
    short = diagnose(run(phases | {"init": 30.0, "env_step": 1.0}), WORKLOAD, calibrated(lines=lines))
    found = next(each for each in short if each.bottleneck is Bottleneck.PYTHON_LOOP)
    assert found.evidence == "18 % in a Python loop of Net.forward (net.py:12) and its gradient"
    long = diagnose(run(phases | {"env_step": 1.0}), WORKLOAD, calibrated(lines=lines))[0]
    assert (long.bottleneck, long.at_most) == (Bottleneck.PYTHON_LOOP, True)
    assert long.share == pytest.approx(0.7)
