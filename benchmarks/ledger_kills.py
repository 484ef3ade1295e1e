"""Kill `mileage train` at random moments and hold its ledger against what was seen from outside.

    python benchmarks/ledger_kills.py --kills 100 --within 10 --out benchmarks/results/ledger_kills.json

Every process is started, left alone for a time drawn from 0 to `--within` seconds, and killed with SIGKILL. Its ledger
must then have the run, closed as crashed, and bill it for the seconds from the start of the process to its death. A
process that is killed before the interpreter has run a line of the command cannot have said anything: how long an
interpreter takes that does nothing, and how long until the first row is on disk, is measured first, and kills that came
earlier than the quickest of the former are counted apart. With `--most`, a few kills are made at a time: the same
command again goes on with those that are missing in `--out`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import mileage
from mileage.ledger import queries, spool
from mileage.ledger.store import Store
from mileage.measure import fingerprint

TRAIN = ("ppo", "CartPole-v1", "--steps", "2000000000", "--threads", "1", "--price", "3600", "-q")
"""More steps than ten seconds hold, at a dollar a second."""
ALLOWED_SECONDS = 0.3


def start(directory: Path) -> subprocess.Popen[bytes]:
    """Start a training whose ledger is in `directory`."""
    return subprocess.Popen(
        [sys.executable, "-m", "mileage", "train", *TRAIN, "--db", str(directory / "mileage.db")],
        env={**os.environ, "PYTHONPATH": str(Path(mileage.__file__).parent.parent)},
        cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def seconds_to_first_row(directory: Path) -> float:
    """From the start of a process to the moment its run is on disk."""
    began = time.monotonic()
    process = start(directory)
    while not any(path.stat().st_size for path in spool.waiting(directory / "mileage.db.spool")):
        time.sleep(0.001)
    took = time.monotonic() - began
    process.kill()
    process.wait()
    return took


def seconds_of_an_empty_program() -> float:
    """What the interpreter takes by itself, before anybody's code."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.monotonic() - began


def kill_after(directory: Path, seconds: float) -> dict[str, Any]:
    """Kill a training after `seconds`, and say what its ledger says."""
    began = time.monotonic()
    process = start(directory)
    time.sleep(max(0.0, seconds - (time.monotonic() - began)))
    process.send_signal(signal.SIGKILL)
    lived = time.monotonic() - began
    process.wait()
    found: dict[str, Any] = {"killed_after_seconds": lived, "runs": 0}
    if not (directory / "mileage.db").exists() and not spool.waiting(directory / "mileage.db.spool"):
        return found
    with Store(directory / "mileage.db") as store:
        records = store.read(queries.records)
    found["runs"] = len(records)
    if records and records[0].end is not None:
        end = records[0].end
        found |= {
            "state": end.state, "billed_seconds": end.wall_seconds, "cost_usd": end.cost_usd, "env_steps": end.env_steps
        }  # fmt: skip
        found["off_seconds"] = end.wall_seconds - lived
    return found


def main() -> None:
    """Kill, look, and write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--within", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, help="Kills to make now; the others are left to the next call.")
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    moments = random.Random(wanted.seed)
    planned = [moments.uniform(0.0, wanted.within) for _ in range(wanted.kills)]
    found, first, empty = _so_far(wanted.out if wanted.most is not None else None)
    with tempfile.TemporaryDirectory(prefix="mileage-kills-") as place:
        empty += [seconds_of_an_empty_program() for _ in range(5)]
        first += [seconds_to_first_row(_made(Path(place) / f"first{i}")) for i in range(5)]
        for i, moment in list(enumerate(planned))[len(found) :][: wanted.most]:
            found.append({"load": os.getloadavg()[0], **kill_after(_made(Path(place) / str(i)), moment)})
            print(json.dumps(found[-1]), flush=True)
            _write(found, first, empty, wanted.out)
    print(json.dumps(summarised(found, first, empty), indent=1))


def _write(found: list[dict[str, Any]], first: list[float], empty: list[float], out: Path | None) -> None:
    if out is not None:
        result = {"machine": fingerprint().as_dict(), "summary": summarised(found, first, empty), "kills": found}
        out.write_text(json.dumps(result, indent=1) + "\n")


def _so_far(out: Path | None) -> tuple[list[dict[str, Any]], list[float], list[float]]:
    """The kills that were made before, and how long first rows and empty programs took."""
    if out is None or not out.exists():
        return [], [], []
    result = json.loads(out.read_text())
    summary = result["summary"]
    return result["kills"], summary["seconds_to_first_row"], summary["seconds_of_an_empty_program"]


def summarised(found: list[dict[str, Any]], first: list[float], empty: list[float]) -> dict[str, Any]:
    """What the kills add up to."""
    there = [kill for kill in found if kill["runs"] == 1 and kill.get("state") == "crashed"]
    missing = sorted(kill["killed_after_seconds"] for kill in found if kill not in there)
    off = sorted(abs(kill["off_seconds"]) for kill in there)
    return {
        "kills": len(found),
        "in_the_ledger_as_crashed": len(there),
        "missing_killed_after_seconds": missing,
        "missing_killed_before_an_empty_program_ends": sum(each < min(empty) for each in missing),
        "seconds_of_an_empty_program": sorted(empty),
        "seconds_to_first_row": sorted(first),
        "median_off_seconds": statistics.median(off) if off else None,
        "largest_off_seconds": off[-1] if off else None,
        "billed_within_0.3_s": sum(each <= ALLOWED_SECONDS for each in off),
    }


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


if __name__ == "__main__":
    main()
