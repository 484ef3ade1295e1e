"""The PPO benchmark's bookkeeping, with arms that do not train."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ppo_cartpole import ArmCommand, alternate, better_threads, matched_table, run_process, target_table


def arm(name: str) -> ArmCommand:
    return ArmCommand(name, ("python", f"{name}.py"))


def record(name: str, seed: int, **values: Any) -> dict[str, Any]:
    phases = {f"{phase}_s": 1.0 for phase in ("import", "init", "compile", "train", "eval", "process")}
    return {"arm": name, "seed": seed} | phases | values


def matched(name: str, seed: int, speed: float, held_out: float) -> dict[str, Any]:
    return record(name, seed, mode="matched", steps_per_second=speed, held_out_mean_return=held_out)


def to_target(name: str, seed: int, seconds: float | None) -> dict[str, Any]:
    reached = seconds is not None
    return record(name, seed, mode="target", reached=reached, wall_to_target_s=seconds, steps=1000)


def test_arms_take_turns_and_share_seeds() -> None:
    calls: list[tuple[str, int]] = []

    def runner(each: ArmCommand, mode: str, seed: int) -> dict[str, Any]:
        calls.append((each.name, seed))
        return matched(each.name, seed, 1.0, 1.0)

    alternate([arm("a"), arm("b")], "matched", 3, runner)
    assert calls == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]


def test_command_line_puts_the_mode_before_extra_options() -> None:
    threaded = ArmCommand("a", ("python", "a.py", "--threads", "2"))
    assert threaded.line("target", 7) == ["python", "a.py", "target", "--seed", "7", "--threads", "2"]


def test_faster_thread_count_wins() -> None:
    speeds = {"1": 50.0, "4": 40.0}

    def runner(each: ArmCommand, mode: str, seed: int) -> dict[str, Any]:
        return {"steps_per_second": speeds[each.command[each.command.index("--threads") + 1]]}

    assert better_threads(arm("a"), 4, runner).command == ("python", "a.py", "--threads", "1")
    speeds["4"] = 60.0
    assert better_threads(arm("a"), 4, runner).command == ("python", "a.py", "--threads", "4")


def test_matched_table_takes_ratios_within_rounds() -> None:
    # Ours is 10, 20 and 10 times as fast as theirs in the three rounds.
    ours = [matched("mileage", seed, speed, 400.0 + seed) for seed, speed in enumerate((100.0, 400.0, 100.0))]
    theirs = [matched("theirs", seed, speed, 300.0) for seed, speed in enumerate((10.0, 20.0, 10.0))]
    rows = matched_table([*ours, *theirs]).splitlines()[2:]
    assert rows[0].startswith("| mileage | 100 | 1.0× |")
    assert rows[0].endswith("| 401 | 400 401 402 |")
    assert rows[1].startswith("| theirs | 10 | 10.0× |")


def test_target_table_counts_failures_instead_of_averaging_them() -> None:
    ours = [to_target("mileage", seed, 1.0) for seed in range(3)]
    theirs = [to_target("theirs", 0, 6.0), to_target("theirs", 1, None), to_target("theirs", 2, 8.0)]
    never = [to_target("never", seed, None) for seed in range(3)]
    rows = target_table([*ours, *theirs, *never]).splitlines()[2:]
    assert rows[0].startswith("| mileage | 3 of 3 | 1.00 | 1.0× |")
    assert rows[1].startswith("| theirs | 2 of 3 | 7.00 | 7.0× |")
    assert rows[2].startswith("| never | 0 of 3 | – | – |")


def test_processes_are_run_and_timed(tmp_path: Path) -> None:
    script = tmp_path / "arm.py"
    script.write_text(
        "import json, os, sys\n"
        "print('noise')\n"
        "print(json.dumps({'arguments': sys.argv[1:], 'cache': os.environ.get('MILEAGE_CACHE_DIR')}))\n"
    )
    got = run_process(ArmCommand("a", (sys.executable, str(script)), cold=True), "target", 3)
    assert got["arguments"] == ["target", "--seed", "3"]
    assert got["arm"] == "a"
    assert got["process_s"] > 0.0
    # The empty cache was there for this run alone.
    assert got["cache"]
    assert not Path(got["cache"]).exists()


def test_failing_arm_stops_the_benchmark_with_its_error(tmp_path: Path) -> None:
    script = tmp_path / "arm.py"
    script.write_text("raise SystemExit('no such option')")
    with pytest.raises(SystemExit, match="no such option"):
        run_process(ArmCommand("a", (sys.executable, str(script))), "matched", 0)
