"""Findings about collecting: environments that step or start slowly, storing, the fused rollout, choosing actions."""

from __future__ import annotations

import math

from mileage.profiling.calibration import Calibration
from mileage.profiling.findings.machine import LEAST_TRAINING_SHARE, best_change, of_change, of_training, percent
from mileage.profiling.model import Bottleneck, Finding
from mileage.profiling.run import EndToEnd
from mileage.records import ReadRecord
from mileage.system import usable_cores

_MIB = 2**20
# An environment in a process of its own answers after about this long, whatever it does.
_PROCESS_SECONDS = 1.5e-4


def _env_share(run: EndToEnd, found: Calibration | None) -> tuple[float, str]:
    """Share of the wall-clock in which environments step, and how it was found."""
    share = run.share("env_step")
    parts = found.rollout_parts if found else None
    if parts is not None and parts.total > 0.0:
        return share + run.share("rollout") * parts.environments / parts.total, "of the fused rollout by replay"
    return share, "in env_step"


def environment(run: EndToEnd, workload: ReadRecord, found: Calibration | None) -> Finding | None:
    """Environments that step slowly."""
    share, how = _env_share(run, found)
    if of_training(run, share) < LEAST_TRAINING_SHARE:
        return None
    n_envs = int(workload.get("config", {}).get("n_envs", 1))
    each = run.mean_seconds("env_step") / max(1, n_envs)
    evidence = f"{percent(share)} stepping environments ({how})"
    if workload.get("native_env") or not run.entries.get("env_step"):
        # Native environments step in well under a microsecond: what costs there is the call, or the rollout as such.
        return Finding(
            Bottleneck.ENV_BOUND, share, evidence, 0.0, f"--set n_envs={4 * n_envs}", "n_envs", phase="env_step"
        )
    evidence += f", {1e3 * each:.2g} ms each"
    waiting = _waiting_share(run, found)
    if waiting > 0.5:
        evidence += f", {percent(waiting)} of it off the CPU"
    gain = _by_processes(share, each, n_envs, waiting)
    if workload.get("processes") or gain <= 0.0:
        return Finding(
            Bottleneck.ENV_BOUND, share, evidence, share, "a native environment (@mileage.env)", at_most=True,
            phase="env_step",
        )  # fmt: skip
    return Finding(Bottleneck.ENV_BOUND, share, evidence, gain, "--processes", "processes", phase="env_step")


def _by_processes(share: float, each: float, n_envs: int, waiting: float) -> float:
    """Share of the wall-clock that is saved where what takes `each` in every environment goes on side by side."""
    side_by_side = n_envs if waiting > 0.5 else min(n_envs, usable_cores())
    spread = each * math.ceil(n_envs / max(1, side_by_side)) + _PROCESS_SECONDS
    return share * max(0.0, 1.0 - spread / (each * n_envs)) if each > 0.0 else 0.0


def resets(run: EndToEnd, workload: ReadRecord) -> Finding | None:
    """Episodes that start anew slowly, apart from steps."""
    share, count = run.share("env_reset"), run.entries.get("env_reset", 0)
    if of_training(run, share) < LEAST_TRAINING_SHARE or not count:
        return None
    each, step = run.mean_seconds("env_reset"), run.mean_seconds("env_step")
    n_envs = int(workload.get("config", {}).get("n_envs", 1))
    steps = run.env_steps / count
    evidence = (
        f"{percent(share)} in reset, {1e3 * each:.2g} ms each of {count:,}, one in {steps:.0f} steps; "
        f"a step takes {1e3 * step / max(1, n_envs):.2g} ms"
    )
    suggestion = "a cheaper reset: keep what it builds, or make it ahead"
    return Finding(Bottleneck.RESET_BOUND, share, evidence, share, suggestion, at_most=True, phase="env_reset")


def storing(run: EndToEnd, found: Calibration | None) -> Finding | None:
    """Transitions that go into a buffer which no cache can hold."""
    share = run.share("store")
    if of_training(run, share) < LEAST_TRAINING_SHARE:
        return None
    evidence = f"{percent(share)} storing transitions, {1e6 * run.mean_seconds('store'):.2g} µs each time"
    buffer = next((each for each in (found.buffers if found else ()) if each.name == "replay"), None)
    if buffer is not None and found is not None:
        cache = found.limits.cache_bytes / _MIB
        evidence += f"; the replay buffer has {buffer.seen_bytes / _MIB:,.0f} MiB, the cache {cache:,.0f}"
    change = best_change(run, found, "capacity")
    if change is not None:
        return of_change(Bottleneck.STORE_BOUND, share, evidence, change, "store")
    suggestion = "smaller observations (float16, uint8), or a smaller capacity"
    return Finding(Bottleneck.STORE_BOUND, share, evidence, share, suggestion, at_most=True, phase="store")


def _waiting_share(run: EndToEnd, found: Calibration | None) -> float:
    """Share of the environments' time in which the thread was off the CPU: in the replay, or in the run as a whole."""
    costs = (cost for cost in (found.costs if found else ()) if cost.phase == "env_step" and cost.seconds > 0.0)
    replayed = next((cost.waiting / cost.seconds for cost in costs), None)
    if replayed is not None:
        return replayed
    share = run.share("env_step")
    return min(1.0, (run.off_cpu or 0.0) / share) if share > 0.5 else 0.0


def rollout(run: EndToEnd, found: Calibration | None) -> Finding | None:
    """A fused rollout that takes the time."""
    share = run.share("rollout")
    if of_training(run, share) < LEAST_TRAINING_SHARE:
        return None
    evidence = f"{percent(share)} in the fused rollout"
    roof = found.roof("rollout") if found else None
    if roof is not None:
        evidence += f", {percent(roof.of_limit)} of the {'memory' if roof.memory_bound else 'GEMM'} limit"
    change = best_change(run, found, "n_envs")
    if change is None:
        return Finding(Bottleneck.ROLLOUT_BOUND, share, evidence, 0.0, "a machine with more cores", phase="rollout")
    return of_change(Bottleneck.ROLLOUT_BOUND, share, evidence, change, "rollout")


def dispatch(run: EndToEnd, workload: ReadRecord, found: Calibration | None) -> Finding | None:
    """Choosing actions."""
    share = run.share("inference")
    if of_training(run, share) < LEAST_TRAINING_SHARE:
        return None
    roof = found.roof("inference") if found else None
    evidence = f"{percent(share)} in inference, {1e6 * run.mean_seconds('inference'):.0f} µs a call"
    if roof is not None:
        evidence += f" at {percent(roof.of_limit)} of the machine's rate"
    operations = found.torch_operations.get("inference", 0.0) if found else 0.0
    if operations:
        evidence += f", {operations:.0f} torch operations an iteration"
    change, bottleneck = best_change(run, found, "backend_native"), Bottleneck.INFERENCE_DISPATCH_BOUND
    if change is not None:
        return of_change(bottleneck, share, evidence, change, "inference")
    # A call's own cost is shared by four times as many environments; what computes is not.
    gain = 0.75 * share * (1.0 - (roof.of_limit if roof else 0.0))
    n_envs = int(workload.get("config", {}).get("n_envs", 1))
    return Finding(
        bottleneck, share, evidence, gain, f"--set n_envs={4 * n_envs}", "n_envs", at_most=True, phase="inference"
    )
