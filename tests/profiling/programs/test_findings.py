"""Findings of runs whose answer is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mileage.profiling.findings import programs
from mileage.profiling.findings.programs import ProgramFinding, Trouble, find, verdict
from mileage.profiling.programs.page import FORMATS, export
from mileage.profiling.programs.resources import Resources
from mileage.profiling.programs.trace import Setting, StackFrame, Stepper
from profiling.programs.made_up import MAIN, STEP, TORCH, calls, evidence, process, watched

IMPORT = StackFrame("<frozen importlib._bootstrap>", "_find_and_load", 1)
RECV = StackFrame("/usr/lib/python3.11/multiprocessing/connection.py", "Connection._recv", 1)


def test_what_recurs_leads_and_what_is_paid_once_follows() -> None:
    found = find(evidence(process([([MAIN, IMPORT], "", 8.0, 8.0), ([MAIN, STEP], "env.step", 3.0, 0.3),
                                   ([MAIN, TORCH], "backward", 1.0, 1.0)])))  # fmt: skip
    assert [each.trouble for each in found] == [Trouble.STEP, Trouble.LEARNING, Trouble.STARTING]
    assert found[0].share == pytest.approx(0.75)
    assert found[0].place is not None
    assert found[0].place.where == "envs.py:7"
    assert "90% of that off the CPU" in found[0].evidence
    assert found[0].remedy.startswith("that line sleeps or waits")


def test_a_program_that_did_nothing_but_import_has_no_bottleneck_that_recurs() -> None:
    made = watched(process([([MAIN, IMPORT], "", 0.02, 0.02)] * 8), others_cores=1.6, cores=2)
    assert [each.trouble for each in made.findings] == [Trouble.STARTING]
    for kind in FORMATS:
        assert export(made, kind)
    assert made.verdict.startswith("STARTUP-BOUND: 100% of the run")


def test_a_shared_machine_comes_first_and_marks_the_rest() -> None:
    made = process([([MAIN, STEP], "env.step", 3.0, 1.0)], delay=0.5)
    found = find(evidence(made, others_cores=1.6, cores=2))
    assert [each.trouble for each in found] == [Trouble.SHARED_MACHINE, Trouble.STEP]
    assert found[1].under_load
    assert verdict(found, evidence(made)).startswith("SHARED MACHINE (other programs used 1.6 of 2 cores")
    # Waiting that the program's own threads cause is not the others' doing.
    assert find(evidence(made, others_cores=0.1, cores=2))[0].trouble is Trouble.STEP


def test_nothing_waits_for_what_takes_next_to_nothing() -> None:
    found = find(evidence(process([([MAIN, STEP], "env.step", 9.6, 9.6), ([MAIN, TORCH], "backward", 0.4, 0.4)])))
    assert [each.trouble for each in found] == [Trouble.STEP]


def test_only_settings_that_the_program_has_are_named() -> None:
    made = process([([MAIN, STEP], "env.step", 1.0, 1.0)])
    assert "[" not in find(evidence(made))[0].remedy
    made.settings = [Setting("args", "n_envs", 2)]
    (found,) = find(evidence(made))
    assert found.remedy.endswith("[n_envs = 2]")
    assert [each.name for each in found.settings] == ["n_envs"]


def test_a_run_that_waits_for_workers_is_explained_by_a_worker() -> None:
    worker = process([([STEP], "env.step", 2.0, 0.1), ([RECV], "", 1.0, 0.0)])
    made = process([([MAIN, RECV], "env.step", 3.0, 0.0)])
    (found,) = find(evidence(made, [worker]))
    assert found.place is not None
    assert found.place.where == "envs.py:7"
    assert "in 1 worker processes" in found.evidence


def small(batch: int, weights: int, seconds: float) -> list[ProgramFinding]:
    made = process([([MAIN, TORCH], "backward", 5.0, 5.0), ([MAIN], "", 1.0, 1.0)])
    made.calls = calls(backward=[seconds] * 50, optimizer_step=[seconds] * 50)
    made.optimizers = [Stepper("Adam", weights, "cpu", 1, True)]
    made.settings = [Setting("args", "batch_size", batch, ("--batch-size",))]
    return list(find(evidence(made)))


def test_updates_without_arithmetic_are_too_small() -> None:
    found = small(4, 100, 1e-3)[0]
    assert found.trouble is Trouble.SMALL_BATCH
    assert "batches of 4" in found.evidence
    assert "batch_size = 4, option --batch-size" in found.remedy
    # Ten million weights and a thousand samples are work for anybody's core.
    assert small(1000, 10_000_000, 1e-3)[0].trouble is Trouble.LEARNING


def test_a_loop_in_forward_is_named_with_its_part_of_the_gradient(tmp_path: Path) -> None:
    net = tmp_path / "net.py"
    net.write_text("def forward(x, cell):\n    for t in range(16):\n        x = cell(x[t])\n    return x.sum()\n")
    within = [MAIN, TORCH, StackFrame(str(net), "Net.forward", 3, 1)]
    cell, beside = (
        StackFrame("/home/me/cell.py", "Cell.forward", 9, 8),
        [*within[:2], StackFrame(str(net), "Net.forward", 4, 1)],
    )
    samples = [([*within, TORCH, cell], "", 3.0, 3.0), (beside, "", 1.0, 1.0), ([MAIN], "backward", 4.0, 4.0),
               ([MAIN], "", 2.0, 2.0)]  # fmt: skip
    found = find(evidence(process(samples)))
    # Of what the network takes, most is the loop: what else there is to say of the network is not said.
    assert [each.trouble for each in found] == [Trouble.LOOP, Trouble.OWN_CODE]
    assert found[0].place is not None
    assert found[0].place.where == f"{net}:3"
    assert found[0].share == pytest.approx((3.0 + 4.0 * 3.0 / 4.0) / 10.0)
    assert found[0].evidence.startswith("75% of the forward pass is a loop of Python")


def test_calls_that_get_slower_are_drift_with_what_it_cost() -> None:
    made = process([([MAIN, STEP], "env.step", 4.0, 4.0)])
    made.calls = calls(env_step=np.linspace(0.001, 0.003, 600).tolist())
    found = {each.trouble: each for each in find(evidence(made))}[Trouble.DRIFT]
    assert found.seconds == pytest.approx(600 * (0.002 - 0.00125), rel=0.1)
    assert found.seconds <= 4.0
    made.calls = calls(env_step=[0.001, 0.003] * 300)
    assert Trouble.DRIFT not in {each.trouble for each in find(evidence(made))}


def readings(sizes: list[float]) -> Resources:
    return Resources(tuple(float(second) for second in range(len(sizes))), tuple(sizes), free_gb=10.0)


def test_memory_that_grows_says_how_fast_and_how_long() -> None:
    growth = readings([1.0 + 0.01 * second for second in range(100)]).growth
    assert growth is not None
    assert growth.gb_per_hour == pytest.approx(36.0)
    assert growth.hours_left == pytest.approx(10 / 36)
    assert readings([1.0] * 60 + [2.0] * 40).growth is None  # one step
    assert readings([1.0] * 100).growth is None
    made = process([([MAIN, STEP], "env.step", 4.0, 4.0)])
    sizes = tuple(1.0 + 0.01 * second for second in range(100))
    found = find(evidence(made, seconds=tuple(map(float, range(100))), rss_gb=sizes, free_gb=10.0))
    assert found[-1].trouble is Trouble.MEMORY
    assert "36.00 GB an hour" in found[-1].evidence


def test_denormal_numbers_are_named_where_they_cost_something(monkeypatch: pytest.MonkeyPatch) -> None:
    made = process([([MAIN, TORCH], "optimizer.step", 5.0, 5.0), ([MAIN, STEP], "env.step", 1.0, 1.0)])
    made.calls = calls(optimizer_step=[1e-3] * 5000)
    made.denormals = {1: (8_000, 10_000), 2: (1_000, 10_000)}
    monkeypatch.setattr(programs, "denormal_seconds", lambda: 50e-9)
    found = {each.trouble: each for each in find(evidence(made))}[Trouble.DENORMALS]
    # 9,000 numbers, touched twice in each of 2,500 steps of two optimizers.
    assert found.seconds == pytest.approx(2 * 9_000 * 2_500 * 50e-9)
    assert found.evidence.startswith("45% of the numbers in the optimizers' state are denormal")
    assert "set_flush_denormal(True)" in found.remedy
    monkeypatch.setattr(programs, "denormal_seconds", lambda: 50e-12)
    assert Trouble.DENORMALS not in {each.trouble for each in find(evidence(made))}
    made.denormals = {}
    monkeypatch.setattr(programs, "denormal_seconds", lambda: 1.0)
    assert Trouble.DENORMALS not in {each.trouble for each in find(evidence(made))}


def test_an_idle_gpu_is_said() -> None:
    made = process([([MAIN, STEP], "env.step", 4.0, 4.0)])
    found = find(evidence(made, gpu_utilisation=(0.12,)))
    assert found[-1].trouble is Trouble.IDLE_GPU
    assert "idle 88% of the time" in found[-1].evidence


def test_a_line_of_no_known_call_is_named_too() -> None:
    made = process(
        [
            ([MAIN, StackFrame("/home/me/train.py", "shape_reward", 55)], "", 1.0, 1.0),
            ([MAIN, STEP], "env.step", 0.2, 0.2),
        ]
    )
    found = find(evidence(made))
    assert found[0].trouble is Trouble.OWN_CODE
    assert found[0].place is not None
    assert found[0].place.where == "train.py:55"
