"""From measurements to findings. Every rule reads shares that were measured, and says what to try next."""

from __future__ import annotations

import math

from mileage._cores import usable_cores
from mileage._records import ReadRecord
from mileage.meter import OTHER_SHARE_LIMIT
from mileage.profiling.calibration import Calibration
from mileage.profiling.end_to_end import EndToEnd
from mileage.profiling.findings import Bottleneck, Finding, ranked
from mileage.profiling.what_if import WhatIf

# Shares of the training time that looking, saving and talking may take without being in the way.
_EVAL_BUDGET, _CHECKPOINT_BUDGET, _LOG_BUDGET = 0.05, 0.01, 0.01
# Below these shares of the wall-clock a phase is not worth a finding.
_LEAST_SHARE = 0.03
_LEAST_TRAINING_SHARE = 0.10
# Ratios within this of each other are noise on a busy machine.
_LEAST_RATIO_GAIN = 0.10
# An environment in a process of its own answers after about this long, whatever it does.
_PROCESS_SECONDS = 1.5e-4


def diagnose(
    run: EndToEnd, workload: ReadRecord, found: Calibration | None = None, failed_share: float = 0.0
) -> tuple[Finding, ...]:
    """All findings of a run, the one to act on first.

    Args:
        run: the phases.
        workload: what was run; see `Profile.workload`.
        found: measurements by replay; without them only phases are judged.
        failed_share: of the wall-clock of all runs of this workload in the ledger, the share of those that failed.
    """
    findings: list[Finding | None] = [
        _too_often(run, "eval", _EVAL_BUDGET, Bottleneck.EVALUATION_BOUND, "in {} held-out evaluations"),
        _too_often(run, "checkpoint", _CHECKPOINT_BUDGET, Bottleneck.CHECKPOINT_BOUND, "writing {} checkpoints"),
        _logging(run),
        _compilation(run, workload, found),
        _startup(run),
        _share_only(run, "transfer", Bottleneck.TRANSFER_BOUND, "--device cpu, or larger batches"),
        _share_only(run, "sync", Bottleneck.SYNC_BOUND, _less_waiting(workload)),
        _unaccounted(run),
        _failed_runs(failed_share),
        _environment(run, workload, found),
        _rollout(run, found),
        _dispatch(run, workload, found),
        _learner(run, workload, found),
        _advantage(run),
        _batch(run, found),
        _threads(run, workload, found),
    ]
    return ranked(finding for finding in findings if finding is not None)


def _of_training(run: EndToEnd, share: float) -> float:
    """A share of the wall-clock as a share of what is left of it without start-up and compilation."""
    rest = 1.0 - run.share("init") - run.share("compile")
    return share / rest if rest > 0.0 else 0.0


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f} %"


def _cadence(run: EndToEnd, phase: str, budget: float) -> tuple[int, float] | None:
    """Steps between entries of `phase` that keep it within `budget` of the rest, and the share that this saves."""
    seconds, entries = run.phases.get(phase, 0.0), run.entries.get(phase, 0)
    rest = run.wall_seconds - seconds
    if not entries or not run.env_steps or rest <= 0.0 or seconds <= budget * rest:
        return None
    each = seconds / entries
    every = math.ceil(each / (budget * rest / run.env_steps))
    # Two digits are enough for a cadence; one entry at the end remains in any case.
    digits = 10 ** max(0, len(str(every)) - 2)
    every = min(-(-every // digits) * digits, run.env_steps)
    remaining = max(1, run.env_steps // every)
    if remaining >= entries:
        return None
    return every, (seconds - remaining * each) / run.wall_seconds


def _finding(
    share: float, bottleneck: Bottleneck, said: str, gain: float, suggestion: str, *, least: float = _LEAST_SHARE
) -> Finding | None:
    """A finding whose evidence is its share and what is `said` of it; None below the `least` share."""
    return None if share < least else Finding(bottleneck, share, f"{_percent(share)} {said}", gain, suggestion)


def _of_change(bottleneck: Bottleneck, share: float, evidence: str, best: tuple[WhatIf, float]) -> Finding:
    """The finding that a measured change, given with its gain, would help."""
    return Finding(bottleneck, share, evidence, best[1], best[0].suggestion, best[0].fix)


def _too_often(run: EndToEnd, phase: str, budget: float, bottleneck: Bottleneck, said: str) -> Finding | None:
    """What is done so often that it takes more than its budget; `said` has a place for how often."""
    plan, share, fix = _cadence(run, phase, budget), run.share(phase), f"{phase}_every"
    if plan is None or share < _LEAST_SHARE:
        return None
    evidence = f"{_percent(share)} {said.format(run.entries[phase])}"
    return Finding(bottleneck, share, evidence, plan[1], f"--{phase}-every {plan[0]}", fix)


def _logging(run: EndToEnd) -> Finding | None:
    share, entries = run.share("log"), run.entries.get("log", 1)
    said = f"in callbacks and logging, {1e3 * run.mean_seconds('log'):.2g} ms each of {entries}"
    suggestion = "a callback that writes in the background, or less often"
    return _finding(share, Bottleneck.LOGGING_BOUND, said, max(0.0, share - _LOG_BUDGET), suggestion)


def _compilation(run: EndToEnd, workload: ReadRecord, found: Calibration | None) -> Finding | None:
    share, bottleneck = run.share("compile"), Bottleneck.COMPILATION_BOUND
    if share >= _LEAST_SHARE and run.compiled:
        warm = (found.warm_load_seconds if found else None) or 0.0
        gain = max(0.0, run.phases["compile"] - warm) / run.wall_seconds
        evidence = f"{_percent(share)} compiling {', '.join(run.compiled)} for an empty cache"
        return Finding(bottleneck, share, evidence, gain, "`mileage warmup` once", "warmup")
    if workload.get("compile"):
        return _finding(share, bottleneck, "in torch.compile", share, "more steps per run, or without --compile")
    return _finding(share, bottleneck, "loading compiled kernels", 0.0, "several seeds in one process: --seeds")


def _startup(run: EndToEnd) -> Finding | None:
    said = f"starting up ({run.phases.get('init', 0.0):.2g} s of imports and building)"
    suggestion, least = "several seeds in one process: --seeds", _LEAST_TRAINING_SHARE
    return _finding(run.share("init"), Bottleneck.STARTUP_BOUND, said, 0.0, suggestion, least=least)


def _share_only(run: EndToEnd, phase: str, bottleneck: Bottleneck, suggestion: str) -> Finding | None:
    said = f"in {phase}, {1e3 * run.mean_seconds(phase):.2g} ms each time"
    return _finding(run.share(phase), bottleneck, said, run.share(phase), suggestion)


def _less_waiting(workload: ReadRecord) -> str:
    """What keeps a learner from waiting: for collectors of its own, or for other workers."""
    config = workload.get("config", {})
    if "collectors" not in config:
        return "fewer workers, or more steps between exchanges"
    # A core is the learner's; environments are shared out evenly.
    more = 2 * int(config["collectors"])
    if more < usable_cores() and int(config.get("n_envs", 1)) % more == 0:
        return f"--set collectors={more}"
    return "more cores for collectors: the learner waits for rollouts"


def _unaccounted(run: EndToEnd) -> Finding | None:
    said, suggestion = "of the wall-clock belongs to no phase", "phases around what your own loop does: run.phase(NAME)"
    return _finding(run.share("other"), Bottleneck.UNACCOUNTED, said, 0.0, suggestion, least=OTHER_SHARE_LIMIT)


def _failed_runs(share: float) -> Finding | None:
    said = "of all the time spent on this workload went to runs that failed or crashed"
    suggestion = "`mileage ledger list --state failed` for their reasons"
    return _finding(share, Bottleneck.FAILED_RUN_BOUND, said, share, suggestion)


def _env_share(run: EndToEnd, found: Calibration | None) -> tuple[float, str]:
    """Share of the wall-clock in which environments step, and how it was found."""
    share = run.share("env_step")
    parts = found.rollout_parts if found else None
    if parts is not None and parts.total > 0.0:
        return share + run.share("rollout") * parts.environments / parts.total, "of the fused rollout by replay"
    return share, "in env_step"


def _environment(run: EndToEnd, workload: ReadRecord, found: Calibration | None) -> Finding | None:
    share, how = _env_share(run, found)
    if _of_training(run, share) < _LEAST_TRAINING_SHARE:
        return None
    n_envs = int(workload.get("config", {}).get("n_envs", 1))
    each = run.mean_seconds("env_step") / max(1, n_envs)
    evidence = f"{_percent(share)} stepping environments ({how})"
    if workload.get("native_env") or not run.entries.get("env_step"):
        # Native environments step in well under a microsecond: what costs there is the call, or the rollout as such.
        return Finding(Bottleneck.ENV_BOUND, share, evidence, 0.0, f"--set n_envs={4 * n_envs}", "n_envs")
    evidence += f", {1e3 * each:.2g} ms each"
    waiting = _waiting_share(found)
    if waiting > 0.5:
        evidence += f", {_percent(waiting)} of it off the CPU"
    side_by_side = n_envs if waiting > 0.5 else min(n_envs, usable_cores())
    spread = each * math.ceil(n_envs / max(1, side_by_side)) + _PROCESS_SECONDS
    gain = share * max(0.0, 1.0 - spread / (each * n_envs)) if each > 0.0 else 0.0
    if workload.get("processes") or gain <= 0.0:
        return Finding(Bottleneck.ENV_BOUND, share, evidence, share, "a native environment (@mileage.env): at most")
    return Finding(Bottleneck.ENV_BOUND, share, evidence, gain, "--processes", "processes")


def _waiting_share(found: Calibration | None) -> float:
    """Share of the environments' time in the replay in which the thread was off the CPU."""
    costs = (cost for cost in (found.costs if found else ()) if cost.phase == "env_step" and cost.seconds > 0.0)
    return next((cost.waiting / cost.seconds for cost in costs), 0.0)


def _best(run: EndToEnd, found: Calibration | None, *fixes: str) -> tuple[WhatIf, float] | None:
    """The measured change with the largest gain among `fixes`, if it is more than noise."""
    changes = [change for change in (found.what_ifs if found else ()) if change.fix in fixes]
    worth = [change for change in changes if min(change.ratios.values(), default=1.0) < 1.0 - _LEAST_RATIO_GAIN]
    shares = {phase: run.share(phase) for phase in run.phases}
    gains = [(change, gain) for change in worth if (gain := change.gain(shares)) > 0.0]
    return max(gains, key=lambda pair: pair[1], default=None)


def _rollout(run: EndToEnd, found: Calibration | None) -> Finding | None:
    share = run.share("rollout")
    if _of_training(run, share) < _LEAST_TRAINING_SHARE:
        return None
    evidence = f"{_percent(share)} in the fused rollout"
    roof = found.roof("rollout") if found else None
    if roof is not None:
        evidence += f", {_percent(roof.of_limit)} of the {'memory' if roof.memory_bound else 'GEMM'} limit"
    change = _best(run, found, "n_envs")
    if change is None:
        return Finding(Bottleneck.ROLLOUT_BOUND, share, evidence, 0.0, "a machine with more cores")
    return _of_change(Bottleneck.ROLLOUT_BOUND, share, evidence, change)


def _dispatch(run: EndToEnd, workload: ReadRecord, found: Calibration | None) -> Finding | None:
    share = run.share("inference")
    if _of_training(run, share) < _LEAST_TRAINING_SHARE:
        return None
    roof = found.roof("inference") if found else None
    evidence = f"{_percent(share)} in inference, {1e6 * run.mean_seconds('inference'):.0f} µs a call"
    if roof is not None:
        evidence += f" at {_percent(roof.of_limit)} of the machine's rate"
    operations = found.torch_operations.get("inference", 0.0) if found else 0.0
    if operations:
        evidence += f", {operations:.0f} torch operations an iteration"
    change, bottleneck = _best(run, found, "backend_native"), Bottleneck.INFERENCE_DISPATCH_BOUND
    if change is not None:
        return _of_change(bottleneck, share, evidence, change)
    # A call's own cost is shared by four times as many environments; what computes is not.
    gain = 0.75 * share * (1.0 - (roof.of_limit if roof else 0.0))
    n_envs = int(workload.get("config", {}).get("n_envs", 1))
    return Finding(bottleneck, share, evidence, gain, f"--set n_envs={4 * n_envs}", "n_envs")


def _learner(run: EndToEnd, workload: ReadRecord, found: Calibration | None) -> Finding | None:
    share = run.share("learn")
    if _of_training(run, share) < _LEAST_TRAINING_SHARE:
        return None
    evidence = f"{_percent(share)} in learn"
    roof = found.roof("learn") if found else None
    bottleneck = Bottleneck.LEARNER_BOUND
    if roof is not None:
        evidence += f", {_percent(roof.of_limit)} of {'memory bandwidth' if roof.memory_bound else 'GEMM peak'}"
        if roof.memory_bound and roof.of_limit > 0.5:
            bottleneck = Bottleneck.MEMORY_BOUND
    change = _best(run, found, "backend_native")
    if change is None:
        nearly = roof is not None and roof.of_limit > 0.5
        suggestion = "faster cores: this is near the machine's limit" if nearly else _less_learning(workload)
        return Finding(bottleneck, share, evidence, 0.0, suggestion)
    return _of_change(bottleneck, share, evidence, (change[0], change[0].gain({"learn": share})))


def _less_learning(workload: ReadRecord) -> str:
    """A setting that learns less often from the same steps; what it does to the target only a run can say."""
    config = workload.get("config", {})
    if int(config.get("epochs", 1)) > 1:
        return f"--set epochs={int(config['epochs']) // 2}"
    if "train_every" in config:
        return f"--set train_every={2 * int(config['train_every'])}"
    return "smaller networks, or fewer updates per step"


def _advantage(run: EndToEnd) -> Finding | None:
    share, said = run.share("advantage"), "estimating advantages and statistics"
    suggestion = "--set normalise_observations=false where observations are of size 1"
    return _finding(share, Bottleneck.ADVANTAGE_BOUND, said, 0.0, suggestion, least=_LEAST_TRAINING_SHARE)


def _batch(run: EndToEnd, found: Calibration | None) -> Finding | None:
    change, share = _best(run, found, "minibatch", "batch"), run.share("learn")
    if change is None:
        return None
    ratio = _percent(change[0].ratios["learn"])
    evidence = f"{_percent(share)} in learn, where larger batches take {ratio} of the time per sample"
    return _of_change(Bottleneck.UNDERSIZED_BATCH, share, evidence, change)


def _threads(run: EndToEnd, workload: ReadRecord, found: Calibration | None) -> Finding | None:
    change, threads, cores = _best(run, found, "threads"), int(workload.get("threads", 1)), usable_cores()
    if change is None:
        return None
    share = sum(run.share(phase) for phase in change[0].ratios)
    if (change[0].threads or 0) > threads:
        evidence = f"{threads} of {cores} cores used, {_percent(share)} in kernels that scale"
        return _of_change(Bottleneck.IDLE_CORES, share, evidence, change)
    evidence = f"{threads} threads on {cores} cores, {_percent(share)} in kernels that wait for each other"
    return _of_change(Bottleneck.OVERSUBSCRIBED_THREADS, share, evidence, change)
