"""`mileage profile -- PROGRAM` on programs of others: planted slowness named by line, results unchanged, overhead.

    python benchmarks/profile_programs.py plants --python /path/to/venv/bin/python --cleanrl /path/to/cleanrl
    python benchmarks/profile_programs.py overhead --python … --cleanrl … --rounds 12

The interpreter has torch, Stable-Baselines3, rsl-rl-lib, tyro and tensorboard, that of --jax-python jax and gymnasium.
CleanRL is a checkout of its repository and runs as it is. Results are written to benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from _harness import RESULTS, Report
from mileage.tables import Table

PROGRAMS = Path(__file__).resolve().parent / "programs"
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Case:
    """A program, and with which arguments it is planted."""

    name: str
    command: tuple[str, ...]
    plants: tuple[str, ...]
    batch: tuple[str, ...] = ()
    """Arguments that make its batches too small, where the program takes them."""
    setting: str = ""
    """The setting that a finding of small batches must name."""
    marked: str = "planted.py"
    """The file with the marked lines."""


def cases(python: str, jax_python: str, cleanrl: Path | None) -> list[Case]:
    found = [
        Case("sb3 ppo", (python, str(PROGRAMS / "sb3.py"), "ppo", "1024"),
             ("step", "reset", "callback", "logger", "batch"), setting="batch_size"),
        Case("sb3 sac", (python, str(PROGRAMS / "sb3.py"), "sac", "600"),
             ("step", "reset", "callback", "logger", "batch"), setting="batch_size"),
        Case("rsl_rl ppo", (python, str(PROGRAMS / "rsl_rl_ppo.py"), "6"), ("step", "reset", "logger", "batch"),
             setting="num_mini_batches", marked="rsl_rl_ppo.py"),
        Case("jax loop", (jax_python, str(PROGRAMS / "jax_loop.py"), "6"),
             ("step", "reset", "callback", "logger", "batch"), marked="jax_loop.py"),
    ]  # fmt: skip
    if cleanrl is not None:
        common = ("--env-id", "planted:WalkDiscrete-v0", "--no-cuda")
        found += [
            Case("cleanrl ppo.py", (python, str(cleanrl / "cleanrl/ppo.py"), *common, "--total-timesteps", "2048"),
                 ("step", "reset", "logger", "batch"), ("--num-minibatches", "128"), "minibatch_size"),
            Case("cleanrl dqn.py", (python, str(cleanrl / "cleanrl/dqn.py"), *common, "--total-timesteps", "1500",
                                    "--learning-starts", "100"),
                 ("step", "reset", "logger", "batch"), ("--train-frequency", "1", "--batch-size", "4"), "batch_size"),
        ]  # fmt: skip
    return found


def environment(plant: str, cleanrl: Path | None) -> dict[str, str]:
    places = [str(PROGRAMS), *([str(cleanrl)] if cleanrl else [])]
    return os.environ | {"PLANT": plant, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}


def profiled(command: tuple[str, ...], variables: dict[str, str], directory: Path) -> tuple[dict, bytes, int]:
    """The profile of a command, its output and its exit code."""
    out = directory / "profile.json"
    ours = [sys.executable, "-c", "import sys; sys.path[:0] = [sys.argv.pop(1)]; from mileage.cli import main; main()",
            str(ROOT / "src"), "profile", "--no-ledger", "-q", "--json", "--out", str(out), "--", *command]  # fmt: skip
    done = subprocess.run(ours, env=variables, cwd=directory, capture_output=True, check=False)
    if not out.is_file() or not out.read_text():
        raise SystemExit(done.stderr.decode())
    return json.loads(out.read_text()), done.stdout, done.returncode


def marked_line(names: tuple[str, ...], plant: str) -> tuple[str, int] | None:
    for name in names:
        for number, line in enumerate((PROGRAMS / name).read_text().splitlines(), start=1):
            if f"# plant: {plant}" in line and "sleep" in line:
                return name, number
    return None


def named(found: dict, case: Case, plant: str) -> bool:
    """Whether the first finding that is not about the machine names the planted line, or the setting of the batch."""
    lead = next((each for each in found["findings"] if each["trouble"] != "shared machine"), None)
    if lead is None:
        return False
    if plant == "batch":
        learns = lead["trouble"] in ("undersized batch", "learn-bound", "jax-bound")
        if not case.setting:
            return learns and "update" in json.dumps(lead)
        return lead["trouble"] == "undersized batch" and case.setting in json.dumps(lead["settings"])
    own = Path(case.command[1]).name
    files = (own, "planted.py") if (PROGRAMS / own).exists() else ("planted.py",)
    expected = marked_line(files, plant)
    return expected is not None and lead["file"] is not None and (Path(lead["file"]).name, lead["line"]) == expected


def plants(wanted: list[Case], cleanrl: Path | None, repeats: int, out: Path | None) -> None:
    """Every plant in every program; rows that are there already are kept, and each new one is written at once."""
    rows = kept("plants", out)
    for case in wanted:
        for plant in case.plants:
            there = sum((row["program"], row["plant"]) == (case.name, plant) for row in rows)
            for _ in range(repeats - there):
                more = case.batch if plant == "batch" else ()
                with tempfile.TemporaryDirectory() as place:
                    found, _, code = profiled((*case.command, *more), environment(plant, cleanrl), Path(place))
                lead = next((each for each in found["findings"] if each["trouble"] != "shared machine"), {})
                row = {"program": case.name, "plant": plant, "named": named(found, case, plant), "exit_code": code,
                       "verdict": _short(found["verdict"]), "trouble": lead.get("trouble"),
                       "evidence": _short(lead.get("evidence")), "remedy": lead.get("remedy"),
                       "others_cores": found["others_cores"], "waited_share": found["waited_for_a_core_share"],
                       "load": os.getloadavg()[0]}  # fmt: skip
                rows.append(row)
                write("plants", rows, out)
                said = "named" if row["named"] else "MISSED"
                print(f"{case.name:16} {plant:9} {said:7} {row['verdict']}", flush=True)


def kept(what: str, out: Path | None) -> list[dict]:
    path = (out or RESULTS) / f"profile_programs_{what}.json"
    return json.loads(path.read_text())["data"] if path.is_file() else []


def _short(text: str | None) -> str | None:
    """Without the folders of this machine."""
    return None if text is None else text.replace(str(PROGRAMS) + "/", "")


def unchanged(wanted: list[Case], cleanrl: Path | None) -> list[dict]:
    """Output and exit code with and without the profiler; lines that tell the time are left out."""
    rows = []
    for case in wanted:
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            variables = environment("", cleanrl)
            plain = subprocess.run(case.command, env=variables, cwd=first, capture_output=True, check=False)
            _, output, code = profiled(case.command, variables, Path(second))
        same = _timeless(plain.stdout) == _timeless(output) and plain.returncode == code
        rows.append({"program": case.name, "same_output": same, "bytes": len(output), "exit_code": code})
        print(f"{case.name:16} {'same' if same else 'DIFFERENT'} {len(output)} bytes, exit code {code}", flush=True)
    return rows


def _timeless(text: bytes) -> list[bytes]:
    clock = (b"SPS", b"second", b"fps", b"Computation", b"time", b"Time", b"ETA", b"Iteration time")
    return [line for line in text.splitlines() if not any(word in line for word in clock)]


def overhead(wanted: list[Case], cleanrl: Path | None, rounds: int) -> list[dict]:
    """Wall-clock and CPU time of a program with and without being watched, in turn."""
    from mileage.profiling.programs.watch import watched_environment

    rows = []
    for case in wanted:
        samples: list[dict] = []
        variables = environment("", cleanrl)
        for number in range(rounds):
            for arm in ("plain", "watched") if number % 2 else ("watched", "plain"):
                with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as traces:
                    os.environ["PYTHONPATH"] = variables["PYTHONPATH"]
                    more = watched_environment(Path(traces)) if arm == "watched" else {}
                    before, began = os.times(), time.perf_counter()
                    subprocess.run(case.command, env=variables | more, cwd=place, capture_output=True, check=True)
                    wall, after = time.perf_counter() - began, os.times()
                cpu = after.children_user + after.children_system - before.children_user - before.children_system
                samples.append({"arm": arm, "round": number, "wall": wall, "cpu": cpu})
        row: dict = {"program": case.name, "samples": samples}
        for what in ("wall", "cpu"):
            ratios = [
                _of(samples, number, "watched", what) / _of(samples, number, "plain", what) for number in range(rounds)
            ]
            middle = statistics.median(ratios)
            row[what] = {"median_ratio": middle, "interval": _interval(ratios), "ratios": ratios}
        rows.append(row)
        shown = "; ".join(f"{what} {_percent(row[what])}" for what in ("wall", "cpu"))
        print(f"{case.name:16} {shown}", flush=True)
    return rows


def _of(samples: list[dict], number: int, arm: str, what: str) -> float:
    return next(each[what] for each in samples if each["round"] == number and each["arm"] == arm)


def _interval(ratios: list[float]) -> list[float]:
    from mileage.measure import median_estimate

    found = median_estimate(ratios).interval
    return [float("nan")] * 2 if found is None else [found.low, found.high]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["plants", "unchanged", "overhead"])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--jax-python", default=sys.executable)
    parser.add_argument("--cleanrl", type=Path)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="programs whose name contains one of these")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    chosen = [each for each in cases(options.python, options.jax_python, options.cleanrl)
              if not options.only or any(word in each.name for word in options.only)]  # fmt: skip
    if options.what == "plants":
        plants(chosen, options.cleanrl, options.repeats, options.out)
        return
    if options.what == "unchanged":
        rows = unchanged(chosen, options.cleanrl)
    else:
        rows = overhead(chosen, options.cleanrl, options.rounds)
    write(options.what, rows, options.out)


def write(what: str, rows: list[dict], out: Path | None) -> None:
    if what == "plants":
        shown = [(row["program"], row["plant"], "yes" if row["named"] else "no", f"{row['load']:.0f}", row["verdict"])
                 for row in rows]  # fmt: skip
        header = ("program", "planted", "named first", "load", "verdict")
    elif what == "unchanged":
        shown = [
            (row["program"], "yes" if row["same_output"] else "no", row["bytes"], row["exit_code"]) for row in rows
        ]
        header = ("program", "same output", "bytes", "exit code")
    else:
        shown = [(row["program"], len(row["wall"]["ratios"]), *(_percent(row[what]) for what in ("wall", "cpu")))
                 for row in rows]  # fmt: skip
        header = ("program", "pairs", "wall-clock", "CPU time")
    table = Table.of(header, shown, left=set(header))
    titles = {"plants": "Planted slowness in programs of others", "unchanged": "Output with and without the profiler",
              "overhead": "What watching costs a program"}  # fmt: skip
    report = Report(f"profile_programs_{what}", titles[what], [table.markdown()], rows)
    report.write(out or RESULTS, f"python benchmarks/profile_programs.py {what}")


def _percent(found: dict) -> str:
    low, high = found["interval"]
    return f"{found['median_ratio'] - 1:+.1%} [{low - 1:+.1%}, {high - 1:+.1%}]"


if __name__ == "__main__":
    main()
