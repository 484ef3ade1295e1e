"""Profiles a training run: what it did from start to end, what it is made of, and what to change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from mileage.description import Buffer
from mileage.measure import Phase, PhaseClock
from mileage.metrics import percent
from mileage.profiling import drift as trends
from mileage.profiling.drift import MemoryGrowth
from mileage.profiling.model import OF_TRAINING, Bottleneck, Finding
from mileage.profiling.run import EndToEnd, RunOptions, train, with_clock_cost, workload_of
from mileage.records import ReadRecord, Record
from mileage.report.bars import phase_bars
from mileage.report.markup import Html, tag
from mileage.report.notebook import draw_phases, frame, new_axes, shown
from mileage.tables import Table
from mileage.training.agents import agent_class
from mileage.training.runner import INTERRUPTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

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
    grown: MemoryGrowth | None = None
    """Memory that grew as long as the run went on."""

    @property
    def interrupted(self) -> bool:
        """Whether somebody ended it early: what was known by then is here."""
        return self.run.recorded.reason == INTERRUPTED or (
            self.calibration is not None and self.calibration.interrupted
        )

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

    def _repr_html_(self) -> str:
        rows = [(f.bottleneck.label, percent(f.share), f.evidence, f.suggestion) for f in self.findings]
        table = Table.of(("finding", "share", "evidence", "try"), rows, left=("finding", "evidence", "try"))
        bars = phase_bars([(str(self.workload["algorithm"] or "run"), self.run.phases)])
        return shown(tag("p", self.verdict, class_="verdict"), bars, Html(table.html()))

    def to_frame(self) -> DataFrame:
        """The phases as a data frame of pandas, one row each."""
        return frame(
            {"phase": name, "seconds": spent, "share": self.run.share(name)} for name, spent in self.run.phases.items()
        )

    def plot(self, axes: Axes | None = None) -> Axes:
        """Seconds per phase as a plot of matplotlib."""
        return draw_phases(new_axes(axes), [(str(self.workload["algorithm"] or "run"), self.run.phases)])

    def as_dict(self) -> Record:
        """Plain data."""
        found = {
            "format": FORMAT,
            "verdict": self.verdict,
            "workload": dict(self.workload),
            "run": run_dict(self.run),
            "findings": [finding.as_dict() for finding in self.findings],
            "memory_growth": None if self.grown is None else self.grown.as_dict(),
        }
        if self.calibration is not None:
            from mileage.profiling.recommended import recommended

            usual = recommended(self.run, self.workload, self.calibration)
            found |= {"recommended": [each.as_dict() | {"rank": each.rank} for each in usual]}
            found |= calibration_dict(self.calibration)
        return found


def run_dict(run: EndToEnd) -> Record:
    """A run as plain data, with the quantities that follow from it."""
    own = {name: value for name, value in vars(run).items() if name not in ("recorded", "moments", "load")}
    named = ("run_id", "wall_seconds", "phases", "entries", "env_steps", "state", "evaluations", "peak_rss_gb")
    return (
        {name: getattr(run, name) for name in named}
        | own
        | {
            "train_seconds": run.train_seconds,
            "steps_per_second": run.steps_per_second,
            "steady_steps_per_second": run.steady_steps_per_second,
            "shares": {phase: run.share(phase) for phase in run.phases},
            "load": None if run.load is None else run.load.as_dict(),
            "over_time": [moment.as_dict() for moment in run.moments],
            "drift": [drift.as_dict() for drift in trends.drifts(run.moments)],
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
        "calibration_budget": found.budget_seconds,
        "calibration_load": None if found.load is None else found.load.as_dict(),
        "skipped": list(found.skipped),
        "lines": [line.as_dict() for line in found.lines],
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
    replay: float | None = None,
    on_progress: Callable[[str], None] | None = None,
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
        effort: scales how long single measurements of the replays after the run take.
        replay: seconds that replays may take in all, 0 for none; by default as long as the run, and at least two.
        on_progress: told which replay is on.
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
        from mileage.profiling.findings import diagnose
        from mileage.profiling.probes import Allowance
        from mileage.profiling.run import failed_share, save

        workload = workload_of(agent) | {
            "processes": bool(agent_arguments.get("processes", False)),
            "compile": agent_arguments.get("compile", False),
        }
        allowance = Allowance.of_run(run.wall_seconds, on_progress, effort)
        if replay is not None:
            allowance = Allowance(replay, on_progress, effort)
        described, calibration = allowance.attempt("description", agent.learner.describe, None), None
        if described is not None and allowance.seconds > 0.0 and run.recorded.reason != INTERRUPTED:
            calibration = allowance.attempt("replays", lambda: calibrate(agent, described, run, allowance), None)
        grown = memory_grown(run, agent.config.n_envs, () if described is None else described.buffers, workload)
    failed = 0.0 if db is False else allowance.attempt("earlier runs", lambda: failed_share(db, workload, name), 0.0)
    found = Profile(workload, run, diagnose(run, workload, calibration, failed, grown), calibration, grown)
    if run.run_id is not None:
        rows = run.run_id, found.as_dict(), run.wall_seconds
        allowance.attempt("keeping it in the ledger", lambda: save(db or None, *rows), None)
    return found


def memory_grown(run: EndToEnd, n_envs: int, buffers: Sequence[Buffer], workload: ReadRecord) -> MemoryGrowth | None:
    """Memory that grew beyond what a replay buffer takes as it fills, and where, if that is known."""
    capacity = int(workload["config"].get("capacity", 0))
    filling = {
        str(Phase.STORE): (each.seen_bytes * n_envs / capacity / 2**20, capacity // n_envs)
        for each in buffers
        if each.name == "replay" and capacity
    }
    grown = trends.growth(run.moments, run.left_mib, filling)
    if grown is None or run.callback_mib < 0.5 * (grown.to_mib - grown.from_mib):
        return grown
    return dataclasses.replace(grown, where=f"callback {run.callback} keeps it")


def profile_recorded(selection: str, *, db: str | None = None) -> Profile:
    """Diagnose a run of anyone's by the phases in the ledger, and keep the summary under its id.

    Args:
        selection: run id or its beginning, or a name that only one run has.
        db: the ledger; None is the default one.
    """
    from mileage.profiling.findings import diagnose
    from mileage.profiling.run import read_run, save

    run, workload, failed = read_run(db, selection)
    found = Profile(workload, run, diagnose(run, workload, None, failed))
    assert run.run_id is not None
    save(db, run.run_id, found.as_dict(), run.wall_seconds)
    return found
