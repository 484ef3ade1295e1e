"""A user's environment with a bug: how long until `mileage train` says so, in what words, and what the ledger keeps.

    PYTHONPATH=src python benchmarks/user_bugs.py

Every kind of bug of tests/broken_envs.py is trained on with the commands a user types, each in a new process and with
its kernels not yet compiled for that environment (those of the engine are). Seconds are those of the whole command.
A loop that does not end is interrupted twice, as soon as its run is in the ledger and has begun to play; seconds are
counted from the second interrupt.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _harness import Report, markdown_table

PLANTED = Path(__file__).parent.parent / "tests" / "broken_envs.py"
KINDS = {
    "raise in step": "Raising",
    "assert in step": "Asserting",
    "raise in reset": "RaisingReset",
    "raise in observe": "RaisingObserve",
    "raise in mask": "RaisingMask",
    "raise in every step": "RaisingAtOnce",
    "print in step": "Printing",
    "write beyond the state": "Wide",
    "read beyond it, late": "LateWide",
    "write beyond the observation": "WideObserve",
    "NaN observation": "NanObserve",
    "NaN observation, late": "LateNan",
    "reward None": "Nothing",
    "infinite reward": "Infinite",
    "infinite reward, late": "LateInfinite",
    "np.random in reset": "NumpyDraws",
    "cannot be compiled": "Wordy",
    "a loop that does not end": "LateEndless",
}
ENDLESS = "LateEndless"


def train(algorithm: str, env: str, folder: Path) -> dict[str, Any]:
    """One command typed in `folder`, and what it left there."""
    db = folder / f"{algorithm}-{env}.db"
    line = [sys.executable, "-m", "mileage", "train", algorithm, f"{PLANTED}:{env}", "--steps", "20000"]
    started = time.perf_counter()
    process = subprocess.Popen(
        [*line, "--db", str(db)], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if env == ENDLESS:
        time.sleep(6.0)  # long in the loop by then
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        started = time.perf_counter()
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    seconds = time.perf_counter() - started
    rows = subprocess.run(
        [sys.executable, "-m", "mileage", "ledger", "list", "--json", "--db", str(db)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [each for each in errors.splitlines() if each.strip()]
    return {
        "algorithm": algorithm,
        "env": env,
        "seconds": seconds,
        "exit": process.returncode,
        "said": lines[-1] if lines else "",
        "traceback": "Traceback" in errors,
        "states": [row["state"] for row in json.loads(rows.stdout)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", default=["ppo", "impala", "dqn"])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS.values()), default=list(KINDS.values()))
    arguments = parser.parse_args()
    kinds = {kind: env for kind, env in KINDS.items() if env in arguments.kinds}
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for algorithm in arguments.algorithms:
            # The engine's own kernels, compiled once: what is measured is what the environment adds.
            train(algorithm, "Sound", Path(folder))
            for kind, env in kinds.items():
                found.append({"kind": kind} | train(algorithm, env, Path(folder)))
                print(found[-1], file=sys.stderr)
    rows = [
        [
            each["kind"],
            each["algorithm"],
            f"{each['seconds']:.2f}",
            str(each["exit"]),
            ", ".join(each["states"]) or "none",
            each["said"].replace(str(PLANTED.parent) + os.sep, ""),
        ]
        for each in found
    ]
    slowest = max(found, key=lambda each: each["seconds"])
    tables = [
        markdown_table(["bug", "algorithm", "seconds", "exit code", "ledger", "last line on standard error"], rows),
        f"Slowest: {slowest['kind']} with {slowest['algorithm']}, {slowest['seconds']:.2f} s. "
        f"Tracebacks: {sum(each['traceback'] for each in found)}.",
    ]
    Report("user_bugs", "Environments with a bug", tables, found).write()


if __name__ == "__main__":
    main()
