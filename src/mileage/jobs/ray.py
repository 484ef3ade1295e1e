"""Attempts as tasks of a Ray cluster: one that is named, or one that is started here for them alone.

A cluster of somebody else's on this machine is never joined by accident: without an address, neither `RAY_ADDRESS` nor
the latest cluster that Ray remembers counts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mileage.errors import MissingExtraError, UsageError
from mileage.jobs.attempt import RunningAttempt
from mileage.jobs.job import Job, JobEnd, JobOutcome, Needs, Ticket, ended

_CANNOT_CONNECT_SECONDS = "10"


def run_on_node(
    command: Sequence[str], directory: str, variables: Mapping[str, str], started: str
) -> tuple[int | None, str]:
    """What a worker does: the attempt to its end. Exit code, None if this node does not see the job's directory."""
    place, node = Path(directory), socket.gethostname()
    if not place.is_dir():
        return None, node
    (place / started).write_text(node)
    attempt = RunningAttempt(command, place, variables)
    try:
        return attempt.wait(), node
    finally:
        attempt.end()


class OnRay:
    """A Ray cluster."""

    def __init__(self, address: str | None = None) -> None:
        """Join the cluster at `address`, `ray://host:port` or `host:port`; None starts one for this process."""
        try:
            import ray
        except ImportError:
            raise MissingExtraError("--on ray", "ray") from None
        self._ray: Any = ray
        if ray.is_initialized():
            raise UsageError("this process has joined a Ray cluster already: end it with ray.shutdown() first")
        # The reason for not connecting is said in a sentence of ours, not in a page of log lines.
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", _CANNOT_CONNECT_SECONDS)
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        given: dict[str, Any] = {"address": address or "local"}
        if address is None:
            # Workers of a cluster that starts here use the same source as this process.
            given |= {
                "include_dashboard": False,
                "runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}},
            }
        try:
            with _quiet():
                ray.init(log_to_driver=False, logging_level=logging.ERROR, configure_logging=False, **given)
        except Exception as error:  # Ray raises whatever its transport does
            text = " ".join(str(error).split())[:200]
            raise UsageError(f"the Ray cluster at {address or 'local'} cannot be joined: {text}") from None
        self._task = ray.remote(run_on_node)

    def check(self, needs: Needs) -> None:
        """UsageError if no node could ever run an attempt with these needs."""
        for node in self._ray.nodes():
            has = node["Resources"] if node["Alive"] else {}
            memory = (needs.memory_gb or 0.0) * 1e9
            if has.get("CPU", 0) >= needs.cores and has.get("GPU", 0) >= needs.gpus and has.get("memory", 0) >= memory:
                return
        raise UsageError(
            f"no node of the Ray cluster has {needs.cores} cores, {needs.gpus} GPUs and {needs.memory_gb or 0:g} GB: "
            "ask for less, or add nodes"
        )

    def submit(self, job: Job) -> Ticket:
        """Place one attempt."""
        return RayTicket(self._ray, self._task, job)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        with _quiet():
            self._ray.shutdown()


class RayTicket:
    """An attempt that Ray has been given."""

    def __init__(self, ray: Any, task: Any, job: Job) -> None:
        self._ray, self._job = ray, job
        job.directory.mkdir(parents=True, exist_ok=True)
        self._started = job.directory / f"started-{len(list(job.directory.glob('started-*')))}"
        asked: dict[str, Any] = {"num_cpus": job.needs.cores, "num_gpus": job.needs.gpus, "max_retries": 0}
        if job.needs.memory_gb is not None:
            asked["memory"] = int(job.needs.memory_gb * 1e9)
        self._answer = task.options(name=job.name, **asked).remote(
            job.command(), str(job.directory), dict(job.variables), self._started.name
        )
        self._ended: JobEnd | None = None

    def ended(self) -> JobEnd | None:
        """How it ended; None while it waits or runs."""
        if self._ended is None and self._ray.wait([self._answer], timeout=0)[0]:
            self._ended = self._found()
        return self._ended

    def _found(self) -> JobEnd:
        try:
            code, node = self._ray.get(self._answer)
        except self._ray.exceptions.RayError as error:
            return JobEnd(JobOutcome.LOST, f"its node or worker is gone: {type(error).__name__}")
        if code is None:
            return JobEnd(
                JobOutcome.FAILED,
                f"node {node} does not see {self._job.directory}: put --out on a file system that all nodes share",
            )
        return ended(self._job.directory, code)

    def cancel(self) -> None:
        """End it."""
        with _quiet(), contextlib.suppress(self._ray.exceptions.RayError, TypeError, ValueError):
            self._ray.cancel(self._answer, force=False)
            self._ray.wait([self._answer], timeout=20.0)
            self._ray.cancel(self._answer, force=True)

    def where(self) -> str:
        """The node that runs it."""
        with contextlib.suppress(OSError):
            return f"on node {self._started.read_text()}"
        return "waiting for resources of the Ray cluster"

    def waits(self) -> bool:
        """Whether it has not started yet."""
        return not self._started.exists()


@contextlib.contextmanager
def _quiet() -> Any:
    """Without Ray's log lines on this process's standard error."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
