"""A run as it was recorded: its rows, and what they say. The one type of a run outside the database."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mileage.ledger import liveness
from mileage.ledger.panels import Panel
from mileage.ledger.prices import Price
from mileage.ledger.rows import (
    FORMAT_VERSION,
    BuildKpi,
    BuildSample,
    Checkpoint,
    End,
    EndState,
    Episode,
    Note,
    NoteKind,
    Phase,
    Profile,
    Run,
    new_run_id,
)
from mileage.ledger.targets import Evaluation, Target
from mileage.metrics import BY_NAME, METRICS, PEAKS, Totals, duration
from mileage.metrics import Phase as PhaseName
from mileage.records import ReadRecord, Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

RUNNING = "running"
STATES = (*(state.value for state in EndState), RUNNING)


@dataclasses.dataclass(frozen=True)
class EvalPoint:
    """One held-out evaluation."""

    steps: int
    """Environment steps taken before it."""
    wall_seconds: float
    """Seconds from the start of the run to the end of this evaluation."""
    evaluation: Evaluation
    """The episodes."""
    resets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Why training episodes ended since the evaluation before: `terminated`, or `truncated` by a time limit."""


@dataclasses.dataclass(frozen=True)
class Before:
    """What the runs have used that a run resumes, parents of parents included; all of it, as all of it was paid."""

    run_ids: tuple[str, ...] = ()
    """The parent first."""
    used: Mapping[str, float] = dataclasses.field(default_factory=lambda: dict(_NOTHING))
    """Their metrics in sum, by name."""
    missing: str | None = None
    """The run that comes before all these and is not in the ledger, or has not ended: its cost is unknown."""

    def after(self, parent: RecordedRun) -> Before:
        """With one run more, that comes before all the others."""
        used = {name: value + (parent.metric(name) or 0) for name, value in self.used.items()}
        return Before((*self.run_ids, parent.run_id), used)

    def as_dict(self) -> Record:
        """As plain JSON values."""
        return {"run_ids": self.run_ids, **self.used, "missing": self.missing}

    def __str__(self) -> str:
        steps, seconds = self.used["env_steps"], self.used["wall_seconds"]
        known = f"{', '.join(self.run_ids)}: {steps:,} steps in {duration(seconds)} before"
        missing = f"{self.missing}, whose cost is unknown"
        return known if self.missing is None else f"{known}; {missing}" if self.run_ids else missing


_SECONDS = ("wall_seconds", "train_seconds", "eval_seconds", "billable_seconds")
_NOTHING: ReadRecord = {"env_steps": 0, **dict.fromkeys(_SECONDS, 0.0), "cost_usd": 0.0}
_CARRIED = {name: name for name in _NOTHING} | {
    "steps_to_target": "env_steps", "wall_to_target": "wall_seconds", "cost_to_target": "cost_usd",
}  # fmt: skip
"""Metrics of a resumed run to which the runs before it contribute, and what."""


@dataclasses.dataclass(frozen=True)
class Sighting:
    """How far a run that goes on was at its last sign of life."""

    wall_seconds: float
    env_steps: int = 0
    success_rate: float | None = None
    mean_return: float | None = None


def _read_later() -> tuple[Any, ...]:
    """Rows that no class attribute stands for, so that an instance may do without them until they are asked for."""
    found: tuple[Any, ...] = dataclasses.field(default_factory=tuple, metadata={"rows": True})
    return found


@dataclasses.dataclass(frozen=True)
class RecordedRun:
    """One run, from launch to end; rows that were not read are absent."""

    run: Run
    """What was launched."""
    end: End | None = None
    """How it ended; None while it runs."""
    checkpoints: tuple[Checkpoint, ...] = _read_later()
    phase_rows: tuple[Phase, ...] = _read_later()
    """The last totals of every phase, busy time beside the wall-clock included."""
    episodes: tuple[Episode, ...] = _read_later()
    """Of the held-out evaluations."""
    profiles: tuple[Profile, ...] = _read_later()
    samples: tuple[BuildSample, ...] = _read_later()
    """Timed builds, of a build benchmark."""
    kpis: tuple[BuildKpi, ...] = _read_later()
    """What a build benchmark found."""
    notes: tuple[Note, ...] = ()
    """What was said about it afterwards."""
    last_seen: Sighting | None = None
    """Of a run that goes on: how far it was when it last gave a sign of life."""
    steps_before: int = 0
    """Environment steps of earlier runs that this one continues, where it was trained in this process."""
    before: Before | None = None
    """What the runs have used that this one resumes; its metrics include it. None where it was not asked for."""
    phase_history: tuple[Phase, ...] = _read_later()
    """All phase totals of a run that went on after its target, if they were read."""
    in_ledger: bool = True
    """Whether a ledger has it; False for a run that was measured and not written."""

    def __repr__(self) -> str:
        final, when = self.final, "" if self.wall_to_target is None else f" in {self.wall_to_target:.2f} s"
        count = len(self.evaluations)
        score = "not evaluated" if final is None else f"mean return {final.mean_return:.6g} at the end of {count} "
        score += "" if final is None else f"evaluation{'' if count == 1 else 's'}"
        before = f" after {self.steps_before:,} before" if self.steps_before else ""
        return (
            f"<{type(self).__name__} {self.run_id}: {self.algorithm or self.run.name} on {self.env}{self.seed_words}\n"
            f"  {self.state.replace('_', ' ')}{when}{f' ({self.reason})' if self.reason else ''}"
            f"{self.target_words}\n"
            f"  {self.totals.env_steps:,} steps{before}, {self.wall_seconds:.2f} s, {score}>"
        )

    def reading(self, complete: Callable[[RecordedRun], RecordedRun]) -> RecordedRun:
        """The same run, whose rows `complete` reads when they are first asked for."""
        found = dataclasses.replace(self)
        for name in _ROWS:
            del vars(found)[name]
        vars(found)["_complete"] = complete
        return found

    if not TYPE_CHECKING:  # a misspelt attribute stays one

        def __getattr__(self, name: str) -> object:
            complete = vars(self).get("_complete") if name in _ROWS else None
            if complete is None:
                agents = name in ("learn", "predict", "evaluate", "save", "policy", "learner", "set_env")
                hint = f": `learn` returns the run; ask the agent for {name}" if agents else ""
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")
            vars(self).update(dict.fromkeys(_ROWS, ()))
            whole = complete(self)
            vars(self).update({row: getattr(whole, row) for row in _ROWS})
            return vars(self)[name]

    # In a notebook

    def _repr_html_(self) -> str:
        html: str = _notebook().run_html(self)
        return html

    def to_frame(self) -> DataFrame:
        """The checkpoints as a data frame of pandas, one row each."""
        frame: DataFrame = _notebook().run_frame(self)
        return frame

    def plot(self, axes: Axes | None = None, *, against: str = "steps") -> Axes:
        """The learning curve with its target as a plot of matplotlib, against `steps`, `seconds` or `dollars`."""
        drawn: Axes = _notebook().run_plot(self, axes, against)
        return drawn

    # What was launched

    @property
    def run_id(self) -> str:
        """Unique; begins with the launch time."""
        return self.run.run_id

    @property
    def algorithm(self) -> str:
        """`ppo`, `sac`, …"""
        return self.run.algorithm

    @property
    def env(self) -> str:
        """What was trained on."""
        return self.run.env_id

    @property
    def seed(self) -> int | None:
        """Training seed."""
        return self.run.seed

    @property
    def seed_words(self) -> str:
        """The seed as the end of a phrase; nothing of a run without one."""
        return "" if self.seed is None else f", seed {self.seed}"

    @property
    def target_words(self) -> str:
        """The target as the end of a phrase; nothing of a run without one."""
        return f", target {self.target}" if self.target else ""

    @property
    def target(self) -> str | None:
        """What was to be reached on the panel."""
        return self.run.target

    @property
    def panel_id(self) -> str | None:
        """Hash of the held-out panel."""
        return self.run.panel_id

    @property
    def priced(self) -> bool:
        """Whether a price was set; otherwise dollars mean nothing."""
        return self.run.price_usd_per_hour > 0

    @cached_property
    def config(self) -> ReadRecord:
        """All hyperparameters."""
        return {name: _frozen(value) for name, value in json.loads(self.run.config).items()}

    @property
    def voided(self) -> bool:
        """Whether somebody has said that it does not count."""
        return any(note.kind == NoteKind.VOID for note in self.notes)

    # How it went

    @property
    def state(self) -> str:
        """How it ended, an `EndState`; or `running`."""
        return EndState(self.end.state) if self.end else RUNNING

    @property
    def reason(self) -> str:
        """Why it ended, in a few words."""
        return self.end.reason if self.end else ""

    @property
    def steps(self) -> int:
        """Environment steps taken, `steps_before` included."""
        return self.steps_before + self.totals.env_steps

    @property
    def wall_seconds(self) -> float:
        """Seconds from start to end, or to the last sign of a run that goes on."""
        return self.totals.wall_seconds

    @cached_property
    def phases(self) -> Mapping[str, float]:
        """Seconds per exclusive phase; of a run that has ended they add up to `wall_seconds`."""
        return {row.phase: row.seconds for row in self.phase_rows if not row.beside}

    @property
    def entries(self) -> Mapping[str, int]:
        """How often each phase was entered."""
        return {row.phase: row.entries for row in self.phase_rows if not row.beside}

    @cached_property
    def evaluations(self) -> tuple[EvalPoint, ...]:
        """The held-out evaluations whose episodes were read."""
        played: dict[int, list[Episode]] = {}
        for episode in self.episodes:
            played.setdefault(episode.seq, []).append(episode)
        return tuple(
            EvalPoint(
                self.steps_before + row.step,
                row.wall_seconds,
                evaluation_of(played[row.seq]),
                json.loads(row.reset_reasons) if row.reset_reasons else {},
            )
            for row in self.checkpoints
            if row.seq in played
        )

    @property
    def final(self) -> Evaluation | None:
        """The last evaluation."""
        return self.evaluations[-1].evaluation if self.evaluations else None

    @property
    def checkpoint(self) -> str | None:
        """Path of the last checkpoint file."""
        return next((row.path for row in reversed(self.checkpoints) if row.path is not None), None)

    @property
    def summary(self) -> ReadRecord:
        """What the algorithm counted beyond phases, such as the policy lag of its updates."""
        return json.loads(self.profiles[-1].summary) if self.profiles else {}

    # Metrics

    @cached_property
    def totals(self) -> Totals:
        """What metrics are derived from."""
        end, last = self.end, self.checkpoints[-1] if self.checkpoints else None
        if end is None:
            return self._totals_so_far(last)
        names = (PhaseName.EVAL, PhaseName.INIT, PhaseName.COMPILE)
        known: dict[str, float] = {name: getattr(end, f"{name}_seconds") for name in names}
        # Phases may have been written before a crash: the end row is what counts, and the rest is nobody's.
        return Totals(
            end.wall_seconds, {**known, PhaseName.OTHER: end.wall_seconds - sum(known.values())}, end.env_steps,
            self.run.instances, self.run.price_usd_per_hour, end.wall_to_target, end.steps_to_target,
            end.success_rate, end.mean_return, {name: getattr(end, name) for name in PEAKS},
        )  # fmt: skip

    def _totals_so_far(self, last: Checkpoint | None) -> Totals:
        """What a run that goes on had used at its last sign of life."""
        seen = self.last_seen or Sighting(0.0)
        known = sum(self.phases.values())
        wall = max(known, seen.wall_seconds)
        other = self.phases.get(PhaseName.OTHER, 0.0) + wall - known
        return Totals(
            wall,
            {**self.phases, PhaseName.OTHER: other},
            last.step if last else seen.env_steps,
            self.run.instances,
            self.run.price_usd_per_hour,
            success_rate=seen.success_rate,
            mean_return=seen.mean_return,
            peaks={name: getattr(last, name) if last else None for name in PEAKS},
        )

    def metric(self, name: str) -> float | None:
        """One of `mileage.metrics.METRICS`: what the end row says, otherwise what the formula gives."""
        if self.end is not None and name in End._fields:
            value: float | None = getattr(self.end, name)
        else:
            value = BY_NAME[name].of(self.totals)
        if self.before is None or value is None or name not in _CARRIED:
            return value
        return value + self.before.used[_CARRIED[name]]

    def phases_to_target(self) -> Mapping[str, float]:
        """Seconds per phase up to the target, or to the stop without one; between two readings, in proportion."""
        stop = None if self.end is None else self.end.wall_to_target
        if stop is None or not self.phase_history:
            return self.phases
        readings: dict[int, tuple[float, dict[str, float]]] = {0: (0.0, {})}
        for row in self.phase_history:
            if not row.beside:
                readings.setdefault(row.seq, (row.wall_seconds, {}))[1][row.phase] = row.seconds
        ordered = sorted(readings.values(), key=lambda reading: reading[0])
        later = next((i for i, (wall, _) in enumerate(ordered) if wall >= stop), len(ordered) - 1)
        (wall_a, before), (wall_b, after) = ordered[max(later - 1, 0)], ordered[later]
        share = (stop - wall_a) / (wall_b - wall_a) if wall_b > wall_a else 1.0
        return {name: before.get(name, 0.0) + share * (s - before.get(name, 0.0)) for name, s in after.items()}

    @property
    def metrics(self) -> dict[str, float | None]:
        """All metrics by name."""
        return {metric.name: self.metric(metric.name) for metric in METRICS}

    @property
    def reached(self) -> bool:
        """Whether a checkpoint met the target, however the run ended."""
        return self.wall_to_target is not None

    @property
    def wall_to_target(self) -> float | None:
        """Seconds to the end of the evaluation that first met the target; None if none did."""
        return self.end.wall_to_target if self.end else None

    @property
    def steps_to_target(self) -> int | None:
        """Environment steps to there, `steps_before` included."""
        reached = self.end.steps_to_target if self.end else None
        return None if reached is None else self.steps_before + reached

    @property
    def cost_usd(self) -> float | None:
        """Dollars for all billable time; 0 where no price is set."""
        return self.metric("cost_usd")

    @property
    def steps_per_second(self) -> float | None:
        """Environment steps per training second."""
        return self.metric("steps_per_second")

    @property
    def steady_steps_per_second(self) -> float | None:
        """The same without start-up and compilation."""
        return self.metric("steady_steps_per_second")

    def cost(self, unit: str) -> float:
        """Dollars (`USD`) or seconds (`s`) up to the first target-reaching checkpoint, or up to the stop."""
        to_target, whole = ("cost_to_target", "cost_usd") if unit == "USD" else ("wall_to_target", "wall_seconds")
        reached = self.metric(to_target)
        return (self.metric(whole) or 0.0) if reached is None else reached


_ROWS = tuple(field.name for field in dataclasses.fields(RecordedRun) if "rows" in field.metadata)
RunRecord = RecordedRun
"""The former name of what `learn` returns."""


def new_run(name: str, now: float, panel: Panel | None, target: Target | None, price: Price, **facts: Any) -> Run:
    """The row of a run that is launched `now` by this process; `facts` are the fields that follow from nothing else."""
    return Run(
        run_id=new_run_id(now), name=name, launched_at=now, host=liveness.host_name(), pid=os.getpid(),
        panel=panel.to_json() if panel else None, panel_id=panel.panel_id if panel else None,
        success=panel.success if panel else None, target=str(target) if target else None, instance=price.instance,
        price_usd_per_hour=price.usd_per_hour, price=price.to_json(), format_version=FORMAT_VERSION, **facts,
    )  # fmt: skip


def episode_rows(run_id: str, seq: int, evaluation: Evaluation) -> list[Episode]:
    """The rows of the episodes that checkpoint `seq` was evaluated by."""
    successes = [None] * len(evaluation) if evaluation.successes is None else evaluation.successes.tolist()
    columns = (evaluation.seeds.tolist(), evaluation.returns.tolist(), evaluation.lengths.tolist(), successes)
    return [
        Episode(run_id, seq, i, seed, finite(value), length, success)
        for i, (seed, value, length, success) in enumerate(zip(*columns, strict=True))
    ]


def finite(value: float) -> float | None:
    """Databases disagree about NaN and infinity: a return that is no number is absent."""
    return value if float("-inf") < value < float("inf") else None


def evaluation_of(rows: list[Episode]) -> Evaluation:
    """The evaluation that the rows of one checkpoint's episodes, in their order, were made from."""
    judged = [row.success for row in rows]
    return Evaluation.of(
        [row.seed for row in rows],
        [float("nan") if row.episode_return is None else row.episode_return for row in rows],
        [row.length for row in rows],
        None if None in judged else [bool(each) for each in judged],
    )


def _frozen(value: Any) -> Any:
    """Lists as tuples: a run does not change any more."""
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value


def _notebook() -> Any:
    """What shows a run in a notebook: it stands above the ledger, and is looked for when a run is shown."""
    from mileage.user_code import load

    return load("mileage.report.notebook", "notebook")
