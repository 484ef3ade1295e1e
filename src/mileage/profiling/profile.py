"""Profiles a training run: what it did from start to end, what it is made of, and what to change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from mileage._records import ReadRecord, Record
from mileage.meter import Phase, PhaseClock
from mileage.profiling.end_to_end import EndToEnd, RunOptions, train, with_clock_cost, workload_of
from mileage.profiling.findings import OF_TRAINING, Bottleneck, Finding
from mileage.training.agents import agent_class

if TYPE_CHECKING:
    from mileage.profiling.calibration import Calibration

# What replaying needs is imported after the run: it must not count as the run's start-up.
# 1: first format.
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Profile:
    """What a profile found. Immutable; `as_dict` is what the ledger and `--json` get."""

    workload: ReadRecord
    """Algorithm, environment, back end, threads, configuration, machine."""
    run: EndToEnd
    """The profiled run."""
    findings: tuple[Finding, ...] = ()
    """Diagnoses, the one to act on first."""
    calibration: Calibration | None = None
    """What replaying the run's parts found; None for a run that is only known from the ledger."""

    @property
    def verdict(self) -> str:
        """The profile in one line."""
        if not self.findings:
            return "NO BOTTLENECK: nothing stands out"
        first, *rest = self.findings
        said = [first.line]
        if first.bottleneck is Bottleneck.SHARED_MACHINE and rest:
            # Whatever else is wrong was seen under load, and is still worth knowing.
            first, *rest = rest
            said.append(f"Of the run, {first.line}")
        # A short run mostly starts up, which a longer one does not: what the training itself waits for is said as well.
        of_training = next((each for each in rest if each.bottleneck in OF_TRAINING), None)
        if first.bottleneck is Bottleneck.STARTUP_BOUND and of_training is not None:
            said.append(f"Of the training, {of_training.line}")
        return ". ".join(said)

    def as_dict(self) -> Record:
        """Plain data."""
        found = {
            "format": FORMAT,
            "verdict": self.verdict,
            "workload": dict(self.workload),
            "run": run_dict(self.run),
            "findings": [finding.as_dict() for finding in self.findings],
        }
        if self.calibration is not None:
            found |= calibration_dict(self.calibration)
        return found


def run_dict(run: EndToEnd) -> Record:
    """A run as plain data, with the quantities that follow from it."""
    own = {name: value for name, value in vars(run).items() if name != "recorded"}
    named = ("run_id", "wall_seconds", "phases", "entries", "env_steps", "state", "evaluations", "peak_rss_gb")
    return (
        {name: getattr(run, name) for name in named}
        | own
        | {
            "train_seconds": run.train_seconds,
            "steps_per_second": run.steps_per_second,
            "steady_steps_per_second": run.steady_steps_per_second,
            "shares": {phase: run.share(phase) for phase in run.phases},
        }
    )


def calibration_dict(found: Calibration) -> Record:
    """A calibration as plain data, without its trace."""
    parts, stages = found.rollout_parts, found.update_stages
    return {
        "limits": dataclasses.asdict(found.limits),
        "layers": dataclasses.asdict(found.layers) | {"difference": found.layers.difference},
        "crossings": [dataclasses.asdict(call) for cost in found.costs for call in cost.calls],
        "roofline": [
            dataclasses.asdict(roof) | {"gflops": roof.gflops, "of_limit": roof.of_limit} for roof in found.roofline
        ],
        "rollout_parts": None if parts is None else dataclasses.asdict(parts) | {"difference": parts.difference},
        "update_stages": None if stages is None else dataclasses.asdict(stages) | {"difference": stages.difference},
        "scaling": {str(count): dict(seconds) for count, seconds in found.scaling.items()},
        "what_ifs": [change.as_dict() for change in found.what_ifs],
        "buffers": [dataclasses.asdict(buffer) for buffer in found.buffers],
        "torch_operations": dict(found.torch_operations),
        "primitives": dict(found.primitives),
        "probe": dataclasses.asdict(found.trace.cost) | {"iterations": found.trace.iterations},
        "calibration_seconds": found.seconds,
    }


def profile_run(
    algorithm: str,
    env: Any,
    *,
    steps: int | None = None,
    target: str | None = None,
    eval_every: int | None = None,
    episodes: int = 100,
    checkpoint: str | None = None,
    checkpoint_every: int = 0,
    callback: Callable[..., bool | None] | None = None,
    on_compile: Callable[[list[str]], None] | None = None,
    db: str | Literal[False] | None = False,
    name: str | None = None,
    price: float | str | None = None,
    clock: PhaseClock | None = None,
    effort: float = 1.0,
    **agent_arguments: Any,
) -> Profile:
    """Train once and say where the time went.

    Args:
        algorithm: its name, or "package.module:Class" of a learner of your own.
        env: as for `mileage.PPO`.
        steps, target, eval_every, episodes, checkpoint, checkpoint_every, callback, on_compile: as for `Agent.learn`.
        db: the ledger to record the run and its profile in; None is the default one, False none.
        name: of the run in the ledger.
        price: dollars an hour, for the ledger.
        clock: of the run, if it began earlier.
        effort: scales how long the replays after the run take; 1 is a few seconds.
        agent_arguments: as for `mileage.PPO`: seed, preset, threads, backend, hyperparameters, …
    """
    clock = clock or PhaseClock()
    options = RunOptions(
        steps, target, eval_every, episodes, checkpoint, checkpoint_every, callback, on_compile, db, name, price
    )
    with clock.phase(Phase.INIT):
        agent = agent_class(algorithm)(env, **agent_arguments)
    with agent:
        run = with_clock_cost(train(agent, clock, options))
        from mileage.profiling.calibration import calibrate
        from mileage.profiling.diagnosis import diagnose
        from mileage.profiling.ledger_runs import failed_share, save

        workload = workload_of(agent) | {
            "processes": bool(agent_arguments.get("processes", False)),
            "compile": agent_arguments.get("compile", False),
        }
        described = agent.learner.describe()
        calibration = None if described is None else calibrate(agent, described, run, effort)
    failed = 0.0 if db is False else failed_share(db, workload, name)
    found = Profile(workload, run, diagnose(run, workload, calibration, failed), calibration)
    if run.run_id is not None:
        save(db or None, run.run_id, found.as_dict(), run.wall_seconds)
    return found


def profile_recorded(selection: str, *, db: str | None = None) -> Profile:
    """Diagnose a run of anyone's by the phases in the ledger, and keep the summary under its id.

    Args:
        selection: run id or its beginning, or a name that only one run has.
        db: the ledger; None is the default one.
    """
    from mileage.profiling.diagnosis import diagnose
    from mileage.profiling.ledger_runs import read_run, save

    run, workload, failed = read_run(db, selection)
    found = Profile(workload, run, diagnose(run, workload, None, failed))
    assert run.run_id is not None
    save(db, run.run_id, found.as_dict(), run.wall_seconds)
    return found
