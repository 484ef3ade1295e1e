"""From measurements to findings. Every rule reads shares that were measured, and says what to try next."""

from __future__ import annotations

import dataclasses
import math

from mileage.measure import OTHER_SHARE_LIMIT
from mileage.profiling.calibration import Calibration
from mileage.profiling.drift import MemoryGrowth
from mileage.profiling.findings.collecting import dispatch, environment, resets, rollout, storing
from mileage.profiling.findings.machine import (
    LEAST_SHARE,
    LEAST_TRAINING_SHARE,
    Measured,
    best_change,
    drifting,
    finding,
    is_shared,
    memory_growth,
    of_change,
    of_training,
    percent,
    shared_machine,
)
from mileage.profiling.model import Bottleneck, Finding, ranked
from mileage.profiling.run import THE_ENV, EndToEnd
from mileage.records import ReadRecord
from mileage.system import usable_cores

# Shares of the training time that looking, saving and talking may take without being in the way.
_EVAL_BUDGET, _CHECKPOINT_BUDGET, _LOG_BUDGET = 0.05, 0.01, 0.01
# A panel that nobody asked for has so many episodes; fewer than the first hardly tell policies apart.
_FEWEST_EPISODES, _USUAL_EPISODES = 20, 100
# What is no part of an iteration.
_BESIDE_TRAINING = ("init", "compile", "eval", "checkpoint", "log")
# Share of the memory bandwidth from which on it is what a phase waits for.
_NEAR = 0.8


def diagnose(
    run: EndToEnd, workload: ReadRecord, found: Calibration | None = None, failed_share: float = 0.0,
    grown: MemoryGrowth | None = None,
) -> tuple[Finding, ...]:  # fmt: skip
    """All findings of a run, the one to act on first.

    Args:
        run: the phases.
        workload: what was run; see `Profile.workload`.
        found: measurements by replay; without them only phases are judged.
        failed_share: of the wall-clock of all runs of this workload in the ledger, the share of those that failed.
        grown: memory that grows while the run goes on.
    """
    findings: list[Finding | None] = [
        shared_machine(run.load),
        memory_growth(run, grown),
        drifting(run),
        _evaluation(run),
        _too_often(run, "checkpoint", _CHECKPOINT_BUDGET, Bottleneck.CHECKPOINT_BOUND, "writing {} checkpoints"),
        _logging(run),
        _compilation(run, workload, found),
        _startup(run),
        _share_only(run, "transfer", Bottleneck.TRANSFER_BOUND, "--device cpu, or larger batches"),
        _share_only(run, "sync", Bottleneck.SYNC_BOUND, _less_waiting(workload)),
        _unaccounted(run),
        _failed_runs(failed_share),
        environment(run, workload, found),
        resets(run, workload),
        storing(run, found),
        _network(run, workload, found),
        _python_loop(run, found),
        rollout(run, found),
        dispatch(run, workload, found),
        _learner(run, workload, found),
        _advantage(run),
        _batch(run, found),
        _threads(run, workload, found),
    ]
    made = [each for each in findings if each is not None and (each.share >= LEAST_SHARE or not each.bottleneck.bound)]
    # What is measured beside others is marked, whether the run or only the replays met them.
    loaded = is_shared(run.load) or (found is not None and is_shared(found.load))
    if loaded:
        made = [dataclasses.replace(each, under_load=each.bottleneck is not Bottleneck.SHARED_MACHINE) for each in made]
    return ranked(made)


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


def _evaluation(run: EndToEnd) -> Finding | None:
    """Evaluations that take more than their budget: of too many episodes, or too often."""
    share, each, entries = run.share("eval"), run.mean_seconds("eval"), run.entries.get("eval", 0)
    rest = run.wall_seconds - run.phases.get("eval", 0.0)
    if share < LEAST_SHARE or not entries or run.phases["eval"] <= _EVAL_BUDGET * rest:
        return None
    episodes, plan = run.episodes or 0, _cadence(run, "eval", _EVAL_BUDGET)
    of = f" of {episodes:,} episodes each" if episodes else ""
    evidence = f"{percent(share)} in {entries} held-out evaluations{of}, {1e3 * each:.3g} ms each"
    often = None if plan is None else f"--eval-every {plan[0]}"
    # As many as keep evaluations as frequent as they are within their budget, and no fewer than tell policies apart.
    fewer = int(episodes * _EVAL_BUDGET * rest / run.phases["eval"]) if episodes else 0
    fewer = min(max(fewer, _FEWEST_EPISODES), _USUAL_EPISODES)
    smaller = episodes >= 2 * fewer
    gain = share * (1.0 - fewer / episodes) if smaller else 0.0
    if smaller and (episodes > 2 * _USUAL_EPISODES or often is None):
        suggestion = f"--episodes {fewer}" + ("" if often is None else f", or {often}")
        return Finding(Bottleneck.EVALUATION_BOUND, share, evidence, gain, suggestion, "episodes", phase="eval")
    if plan is None or often is None:
        return None
    suggestion = often + (f", or --episodes {fewer}" if smaller else "")
    return Finding(Bottleneck.EVALUATION_BOUND, share, evidence, plan[1], suggestion, "eval_every", phase="eval")


def _too_often(run: EndToEnd, phase: str, budget: float, bottleneck: Bottleneck, said: str) -> Finding | None:
    """What is done so often that it takes more than its budget; `said` has a place for how often."""
    plan, share, fix = _cadence(run, phase, budget), run.share(phase), f"{phase}_every"
    if plan is None or share < LEAST_SHARE:
        return None
    evidence = f"{percent(share)} {said.format(run.entries[phase])}"
    return Finding(bottleneck, share, evidence, plan[1], f"--{phase}-every {plan[0]}", fix, phase=phase)


def _logging(run: EndToEnd) -> Finding | None:
    share, entries = run.share("log"), run.entries.get("log", 1)
    said = f"in callbacks and logging, {1e3 * run.mean_seconds('log'):.2g} ms each of {entries}"
    suggestion = "a callback that writes in the background, or less often"
    said += f" ({run.callback})" if run.callback else ""
    gain = max(0.0, share - _LOG_BUDGET)
    return finding(share, Bottleneck.LOGGING_BOUND, said, gain, suggestion, phase="log")


def _compilation(run: EndToEnd, workload: ReadRecord, found: Calibration | None) -> Finding | None:
    share, bottleneck = run.share("compile"), Bottleneck.COMPILATION_BOUND
    if share < LEAST_SHARE:
        return None
    if run.compiled:
        warm = (found.warm_load_seconds if found else None) or 0.0
        gain = max(0.0, run.phases["compile"] - warm) / run.wall_seconds
        evidence = f"{percent(share)} compiling {', '.join(run.compiled)} for an empty cache"
        which = f" --algorithm {workload['algorithm']}" if workload.get("algorithm") else ""
        which += f" {workload.get('env', '')}" if THE_ENV in run.compiled else ""
        suggestion = f"`mileage warmup{which}` once; later runs load what is compiled"
        return Finding(bottleneck, share, evidence, gain, suggestion, "warmup")
    if workload.get("compile"):
        said, suggestion = "in torch.compile", "more steps per run, or without --compile"
        return finding(share, bottleneck, said, share, suggestion, at_most=True)
    return finding(share, bottleneck, "loading compiled kernels", 0.0, "several seeds in one process: --seeds")


def _startup(run: EndToEnd) -> Finding | None:
    said = f"starting up ({run.phases.get('init', 0.0):.2g} s of imports and building)"
    suggestion, least = "several seeds in one process: --seeds", LEAST_TRAINING_SHARE
    return finding(run.share("init"), Bottleneck.STARTUP_BOUND, said, 0.0, suggestion, least=least)


def _share_only(run: EndToEnd, phase: str, bottleneck: Bottleneck, suggestion: str) -> Finding | None:
    said = f"in {phase}, {1e3 * run.mean_seconds(phase):.2g} ms each time"
    return finding(run.share(phase), bottleneck, said, run.share(phase), suggestion, phase=phase, at_most=True)


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
    if run.recorded.run.framework == "mileage":
        suggestion = "more environments (--set n_envs=N): it is Python between the phases of a step"
    return finding(run.share("other"), Bottleneck.UNACCOUNTED, said, 0.0, suggestion, least=OTHER_SHARE_LIMIT)


def _failed_runs(share: float) -> Finding | None:
    said = "of all the time spent on this workload went to runs that failed or crashed"
    suggestion = "`mileage ledger list --state failed` for their reasons"
    return finding(share, Bottleneck.FAILED_RUN_BOUND, said, share, suggestion)


def _network(run: EndToEnd, workload: ReadRecord, found: Calibration | None) -> Finding | None:
    """Networks far wider than they need be, by how much less time the usual ones take."""
    change = best_change(run, found, "hidden")
    if change is None:
        return None
    share = sum(run.share(phase) for phase in change.change.ratios)
    widths = "×".join(str(width) for width in workload.get("config", {}).get("hidden", ()))
    ratios = ", ".join(f"{phase} ×{ratio:.2f}" for phase, ratio in change.change.ratios.items())
    evidence = f"{percent(share)} in networks of {widths}; usual ones take {ratios}, measured"
    return of_change(Bottleneck.NETWORK_BOUND, share, evidence, change)


def _python_loop(run: EndToEnd, found: Calibration | None) -> Finding | None:
    """A loop that Python goes through within a network's forward pass."""
    lines = found.lines if found else ()
    together = [line.share for line in lines if (line.function, line.file) == (lines[0].function, lines[0].file)]
    share = sum(together) * (1.0 - sum(run.share(phase) for phase in _BESIDE_TRAINING))
    if of_training(run, share) < LEAST_TRAINING_SHARE:
        return None
    evidence = f"{percent(share)} in a Python loop of {lines[0].place} and its gradient"
    suggestion = "one operation on whole tensors in place of the loop"
    phase = max(("learn", "inference"), key=run.share)
    return Finding(Bottleneck.PYTHON_LOOP, share, evidence, share, suggestion, at_most=True, phase=phase)


def _learner(run: EndToEnd, workload: ReadRecord, found: Calibration | None) -> Finding | None:
    share = run.share("learn")
    if of_training(run, share) < LEAST_TRAINING_SHARE:
        return None
    evidence = f"{percent(share)} in learn"
    roof = found.roof("learn") if found else None
    bottleneck = Bottleneck.LEARNER_BOUND
    if roof is not None:
        evidence += f", {percent(roof.of_limit)} of {'memory bandwidth' if roof.memory_bound else 'GEMM peak'}"
        if roof.memory_bound and roof.of_limit >= _NEAR:
            bottleneck = Bottleneck.MEMORY_BOUND
    change = best_change(run, found, "backend_native")
    if change is None:
        suggestion, left = _less_learning(workload)
        return Finding(bottleneck, share, evidence, share * (1.0 - left), suggestion, at_most=True, phase="learn")
    learn = {"learn": share}
    part = Measured(change.change, change.change.gain(learn), change.change.gain_interval(learn))
    return of_change(bottleneck, share, evidence, part, "learn")


def _less_learning(workload: ReadRecord) -> tuple[str, float]:
    """A setting that learns less often from the same steps, and the share of updates that it leaves.

    What it does to the target only a run can say.
    """
    config = workload.get("config", {})
    epochs = int(config.get("epochs", 1))
    if epochs > 1:
        return f"--set epochs={epochs // 2}", epochs // 2 / epochs
    if "train_every" in config:
        return f"--set train_every={2 * int(config['train_every'])}", 0.5
    return "smaller networks, or fewer updates per step", 1.0


def _advantage(run: EndToEnd) -> Finding | None:
    share, said = run.share("advantage"), "estimating advantages and statistics"
    suggestion = "--set normalise_observations=false where observations are of size 1"
    return finding(
        share, Bottleneck.ADVANTAGE_BOUND, said, 0.0, suggestion, least=LEAST_TRAINING_SHARE, phase="advantage"
    )


def _batch(run: EndToEnd, found: Calibration | None) -> Finding | None:
    change, share = best_change(run, found, "minibatch", "batch"), run.share("learn")
    if change is None:
        return None
    ratio = percent(change.change.ratios["learn"])
    evidence = f"{percent(share)} in learn, where larger batches take {ratio} of the time per sample"
    return of_change(Bottleneck.UNDERSIZED_BATCH, share, evidence, change, "learn")


def _threads(run: EndToEnd, workload: ReadRecord, found: Calibration | None) -> Finding | None:
    change, threads, cores = best_change(run, found, "threads"), int(workload.get("threads", 1)), usable_cores()
    if change is None:
        return None
    share = sum(run.share(phase) for phase in change.change.ratios)
    if (change.change.threads or 0) > threads:
        evidence = f"{threads} of {cores} cores used, {percent(share)} in kernels that scale"
        return of_change(Bottleneck.IDLE_CORES, share, evidence, change)
    evidence = f"{threads} threads on {cores} cores, {percent(share)} in kernels that wait for each other"
    return of_change(Bottleneck.OVERSUBSCRIBED_THREADS, share, evidence, change)
