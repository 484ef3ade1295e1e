"""A run that is starved in a known way gets the right finding first, by what was measured of it once.

The runs are those of `benchmarks/profile_planted.py`, which makes them again, quiet and beside a busy neighbour.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mileage.ledger.recorder import Ledger
from mileage.measure import PhaseClock
from mileage.profiling import Profile, profile_run
from mileage.profiling.findings import diagnose
from mileage.profiling.model import Bottleneck
from recorded_profiles import RECORDED, measured

PLANTED = {
    "slow step": Bottleneck.ENV_BOUND,
    "tiny minibatches": Bottleneck.UNDERSIZED_BATCH,
    "evaluation every update": Bottleneck.EVALUATION_BOUND,
    "huge checkpoints every update": Bottleneck.CHECKPOINT_BOUND,
    "callback that waits": Bottleneck.LOGGING_BOUND,
    "one thread": Bottleneck.IDLE_CORES,
    "too many threads": Bottleneck.OVERSUBSCRIBED_THREADS,
    "torch for one environment": Bottleneck.INFERENCE_DISPATCH_BOUND,
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_bottleneck_comes_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, wanted = json.loads(RECORDED.read_text())[name], PLANTED[name]
    for module in ("findings.collecting", "findings"):
        monkeypatch.setattr(f"mileage.profiling.{module}.usable_cores", lambda: data["workload"]["machine"]["cores"])
    run, calibration = measured(data)
    found = Profile(data["workload"], run, diagnose(run, data["workload"], calibration), calibration)
    # What else ran on the machine is named before everything, and rightly so.
    own = [each for each in found.findings if each.bottleneck is not Bottleneck.SHARED_MACHINE]
    assert own[0].bottleneck is wanted, "\n".join(each.line for each in found.findings)
    assert wanted.label in found.verdict


def test_failed_runs_come_first(tmp_path: Path) -> None:
    db = str(tmp_path / "ledger.db")
    # Two runs that worked for an hour each, and crashed: whatever compiling takes, the third run is short beside them.
    for _ in range(2):
        clock = PhaseClock(start_ns=time.perf_counter_ns() - 3600 * 10**9)
        run = Ledger(db).run("ppo-CartPole-v1", algorithm="ppo", env_id="CartPole-v1", clock=clock, resources=False)
        with pytest.raises(RuntimeError), run:
            raise RuntimeError("planted")
    found = profile_run("ppo", "CartPole-v1", steps=512, episodes=4, replay=0.0, db=db, n_envs=8, n_steps=64)
    own = [each for each in found.findings if each.bottleneck is not Bottleneck.SHARED_MACHINE]
    assert own[0].bottleneck is Bottleneck.FAILED_RUN_BOUND
    assert own[0].share > 0.9


@pytest.mark.slow
def test_a_cold_cache_comes_first(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mileage", "profile", "dqn", "CartPole-v1", "--steps", "2000", "--no-ledger"]
    environment = os.environ | {"MILEAGE_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([*command, "--quiet"], env=environment, capture_output=True, text=True, check=True)
    # On a busy machine, that comes before.
    assert done.stdout.rpartition("Of the run, ")[2].startswith("COMPILE-BOUND")
    again = subprocess.run([*command, "--quiet"], env=environment, capture_output=True, text=True, check=True)
    assert "empty cache" not in again.stdout
