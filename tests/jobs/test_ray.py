"""Seeds on a Ray cluster of several nodes, one of which is lost on the way."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mileage.errors import UsageError
from mileage.jobs.driver import DriverSettings, drive
from mileage.jobs.job import Job, JobOutcome, Needs
from mileage.jobs.ray import OnRay
from placed_jobs import pids_of, recorded

ray = pytest.importorskip("ray", reason="the ray extra is not installed")
pytestmark = pytest.mark.slow

WORDS = (
    "ppo",
    "CartPole-v1",
    "--threads",
    "1",
    "--steps",
    "600000",
    "--eval-every",
    "0",
    "--checkpoint-every",
    "50000",
)


@pytest.fixture
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield found
    ray.shutdown()
    found.shutdown()


def job_in(folder: Path, seed: int) -> Job:
    variables = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    again = ("--eval-every", "0", "--checkpoint-every", "50000")
    return Job(f"seed {seed}", (*WORDS, "--seed", str(seed)), again, folder / f"seed-{seed}", variables=variables)


def test_every_seed_finishes_though_a_node_is_lost(cluster: Any, tmp_path: Path) -> None:
    lost = cluster.add_node(num_cpus=1, resources={"second": 1})
    cluster.add_node(num_cpus=1, resources={"third": 1})
    cluster.wait_for_nodes()
    seeds, told = 20, list[str]()

    def lose_a_node() -> None:
        while sum(": done" in text for text in told) < 4:
            time.sleep(0.1)
        cluster.remove_node(lost, allow_graceful=False)

    threading.Thread(target=lose_a_node, daemon=True).start()
    jobs = [job_in(tmp_path, seed) for seed in range(seeds)]
    results = drive(jobs, OnRay(cluster.address), str(tmp_path / "all.db"), DriverSettings(), told.append)
    assert [result.ended.outcome for result in results] == [JobOutcome.DONE] * seeds
    assert any(": lost" in text for text in told)
    runs = recorded(tmp_path / "all.db")
    finished = [run for run in runs if run.state == "finished"]
    assert sorted(run.seed or 0 for run in finished) == list(range(seeds))
    assert {run.state for run in runs} == {"finished", "crashed"}
    assert len({run.run_id for run in runs}) == len(runs) == sum(result.attempts for result in results)
    assert all(run.wall_seconds > 0.0 for run in runs)
    assert not pids_of(tmp_path)


def test_a_cluster_of_somebody_else_s_is_not_joined(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    place = OnRay()
    try:
        assert ray.get_runtime_context().gcs_address != cluster.address
        with pytest.raises(UsageError, match="no node of the Ray cluster has 4096 cores"):
            place.check(Needs(cores=4096))
    finally:
        place.close()


def test_an_address_where_nobody_is_is_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"^the Ray cluster at ray://127\.0\.0\.1:1 cannot be joined"):
        OnRay("ray://127.0.0.1:1")
