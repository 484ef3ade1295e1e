"""Run the benchmarks whose results the README shows, one after the other, and write the README anew.

    PYTHONPATH=src python benchmarks/run_all.py --peer-python peers/bin/python

Without `--peer-python` only what this interpreter has is compared with, and results that need peers are left as they
are. A script that fails is named at the end, and the others run all the same.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


def commands(python: str, peer_python: str | None) -> dict[str, list[str]]:
    """What to run, by name, in order."""
    peers = ["--peer-python", peer_python] if peer_python else []

    def script(name: str, *options: str) -> list[str]:
        return [python, str(HERE / f"{name}.py"), *options]

    exports = ["--export", "json", "--export", "md", "--output", str(RESULTS / "bench.json")]
    found = {
        "bench": [python, "-m", "mileage", "bench", "--peers", *peers, *exports],
        "kernels": script("kernels", *peers),
        "env_step": script("env_step", *peers),
        "learner_efficiency": script("learner_efficiency"),
        "meter_cost": script("meter_cost"),
    }
    if peer_python:
        found["ppo_cartpole"] = script("ppo_cartpole", "--peers", *peers, "--cold")
    return found | {"README": script("readme_table")}


def run_all(chosen: dict[str, list[str]], call: Callable[[Sequence[str]], int]) -> list[str]:
    """Run everything and return the names of what failed."""
    failed = []
    for name, command in chosen.items():
        print(f"== {name}", flush=True)
        if call(command):
            failed.append(name)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="a Python that has the other libraries")
    parser.add_argument("--only", action="append", help="run this one alone; may be repeated")
    options = parser.parse_args()
    found = commands(sys.executable, options.peer_python)
    unknown = set(options.only or ()) - set(found)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    source = str(HERE.parent / "src")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))}
    chosen = {name: command for name, command in found.items() if not options.only or name in options.only}
    failed = run_all(chosen, lambda command: subprocess.run(command, env=environment).returncode)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
