"""Makes an environment for every framework and runs its driver there: `python benchmarks/adapters/environments.py`.

An environment is a virtual one under the cache directory that shares the packages of the one that runs this (mileage's
own, torch) and holds what the framework wants besides. Results go to `benchmarks/results/adapters.json`, and as a table
to standard output; a framework that cannot be installed or run is listed with its last error.

CleanRL and LeanRL are scripts: give their places in CLEANRL_PPO and LEANRL_PPO.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import site
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "adapters.json"
ENVIRONMENTS: dict[str, tuple[list[str], list[str]]] = {
    "sb3": (["stable-baselines3", "sb3-contrib"], ["stable_baselines3", "sb3_contrib"]),
    "sbx": (["sbx-rl"], ["sbx"]),
    "cleanrl": (["tyro", "wandb", "tqdm"], ["cleanrl", "leanrl"]),
    "rsl_rl": (["rsl-rl-lib"], ["rsl_rl"]),
    "rl_games": (["rl-games"], ["rl_games", "rl_games_continuous"]),
    "skrl": (["skrl"], ["skrl"]),
    "brax": (["brax", "jax==0.7.2", "jaxlib==0.7.2", "flax==0.11.2"], ["brax", "brax_sac"]),
    "rllib": (["ray[rllib]"], ["rllib"]),
    "torchrl": (["torchrl"], ["torchrl"]),
    "tianshou": (["tianshou"], ["tianshou"]),
    "trl": (["trl"], ["trl"]),
    "pufferlib": (["pufferlib"], ["pufferlib"]),
    "rltools": (["rltools"], ["rltools"]),
}
"""By name: what pip installs, and the drivers that run there."""


def made(name: str, cache: Path, constraints: Path) -> tuple[Path, str]:
    """The interpreter of an environment, and what went wrong in making it."""
    place = cache / name
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
        inside = next(place.glob("lib/python*/site-packages"))
        (inside / "zz_shared.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    command = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraints), *ENVIRONMENTS[name][0]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return python, "" if done.returncode == 0 else last_line(done.stderr)


def last_line(text: str) -> str:
    """The last line that says something, short enough for a table."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else "")[:200]


def run(python: Path, driver: str) -> dict[str, Any]:
    """What a driver saw, with the time of its whole process; or the error."""
    own = {"PYTHONPATH": str(HERE.parents[1] / "src"), "WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"}
    environment = os.environ | own
    began = time.perf_counter()
    command = [str(python), str(HERE / "drivers.py"), driver]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=900)
    took = time.perf_counter() - began
    if done.returncode:
        return {"framework": driver, "error": last_line(done.stderr)}
    return json.loads(done.stdout.strip().splitlines()[-1]) | {"process_seconds": round(took, 3)}


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = ["| framework | version | steps: ours / its own | seconds: run / clock | phases | exams | differences |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['framework']} | | | | | | not run: {row['error'].replace('|', '/')} |")
            continue
        spent = ", ".join(f"{name} {value:.2f}" for name, value in row["phases"].items() if value >= 0.01) or "not kept"
        exams = row["evaluations"] if row["phases"] else "not kept"
        told = "; ".join(row["differences"]).replace("|", "/") or "none"
        exams = row["evaluations"] if row["phases"] else "not kept"
        lines.append(
            f"| {row['framework']} | {row['version']} | {row['ours_steps']:,} / {row['steps']:,} | "
            f"{row['wall_seconds']:.1f} / {row['driver_seconds']:.1f} | {spent} | {exams} | {told} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Make, run, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "mileage" / "adapters")
    parser.add_argument("--only", nargs="*", help="names of environments")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    constraints = options.cache / "constraints.txt"
    options.cache.mkdir(parents=True, exist_ok=True)
    constraints.write_text("torch==2.13.0\n")
    before = json.loads(options.out.read_text())["rows"] if options.out.exists() and options.only else []
    rows = {row["framework"]: row for row in before}
    for name in options.only or ENVIRONMENTS:
        python, error = made(name, options.cache, constraints)
        for driver in ENVIRONMENTS[name][1]:
            rows[driver] = {"framework": driver, "error": error} if error else run(python, driver)
            print(json.dumps(rows[driver]), file=sys.stderr, flush=True)
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    result = {"command": "python benchmarks/adapters/environments.py", "machine": machine, "rows": list(rows.values())}
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(list(rows.values())))


if __name__ == "__main__":
    main()
