"""Runs summarised: progress, peaks, costs and how they ended, from their rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mileage import metrics
from mileage.ledger.rows import Checkpoint, ClosedBy, End, EndState, Run
from mileage.metrics import PEAKS, Phase, Totals, highest


def cost_usd(wall_seconds: float, run: Run) -> float:
    """The billable cost of `wall_seconds` of `run`."""
    return metrics.cost_usd(_totals(run, wall_seconds))


def _totals(run: Run, wall_seconds: float, eval_seconds: float = 0.0) -> Totals:
    phases = {str(Phase.EVAL): eval_seconds, str(Phase.OTHER): wall_seconds - eval_seconds}
    return Totals(wall_seconds, phases, instances=run.instances, price_usd_per_hour=run.price_usd_per_hour)


@dataclass(slots=True)
class Progress:
    """What the checkpoints of a run add up to so far; grows in place, because a run may have thousands a second."""

    env_steps: int = 0
    checkpoints: int = 0
    last: Checkpoint | None = None
    last_evaluated: Checkpoint | None = None
    first_reached: Checkpoint | None = None
    peaks: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(PEAKS))
    """The highest readings by the name of their metric."""

    def add(self, checkpoint: Checkpoint) -> None:
        """Count one more checkpoint."""
        self.checkpoints += 1
        self.last = checkpoint
        if checkpoint.step > self.env_steps:
            self.env_steps = checkpoint.step
        if checkpoint.mean_return is not None or checkpoint.success_rate is not None:
            self.last_evaluated = checkpoint
            if checkpoint.target_met and self.first_reached is None:
                self.first_reached = checkpoint
        self.see({name: getattr(checkpoint, name) for name in PEAKS})

    def see(self, readings: Mapping[str, float | None]) -> None:
        """Keep the highest of every reading, by the name of its metric."""
        for name in PEAKS:
            self.peaks[name] = highest((self.peaks[name], readings[name]))

    def judged(self) -> dict[str, Any]:
        """What the end row says of success, return and target: at the first checkpoint that met it, else the last."""
        reached = self.first_reached
        judged = reached or self.last_evaluated
        return {
            "success_rate": judged.success_rate if judged else None,
            "mean_return": judged.mean_return if judged else None,
            "steps_to_target": reached.step if reached else None,
            "wall_to_target": reached.wall_seconds if reached else None,
            "cost_to_target": reached.cost_usd if reached else None,
            "target_seq": reached.seq if reached else None,
        }

    @classmethod
    def of(cls, checkpoints: Iterable[Checkpoint]) -> Progress:
        """The progress that `checkpoints`, in order, add up to."""
        progress = cls()
        for checkpoint in checkpoints:
            progress.add(checkpoint)
        return progress


@dataclass(frozen=True)
class Ending:
    """How and when a run ended."""

    state: EndState
    reason: str
    ended_at: float
    wall_seconds: float
    closed_by: ClosedBy = ClosedBy.SELF
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds per phase."""
    gpus: str | None = None


def end_row(run: Run, progress: Progress, ending: Ending) -> End:
    """The end row of `run`."""
    last = progress.last
    eval_seconds = ending.phases.get(Phase.EVAL, last.eval_seconds if last else 0.0)
    totals = _totals(run, ending.wall_seconds, eval_seconds)
    seen = progress.judged() | progress.peaks
    return End(
        run_id=run.run_id, closed_by=ending.closed_by.value, state=ending.state.value, reason=ending.reason,
        ended_at=ending.ended_at, env_steps=progress.env_steps, wall_seconds=ending.wall_seconds,
        train_seconds=metrics.train_seconds(totals), eval_seconds=eval_seconds,
        init_seconds=ending.phases.get(Phase.INIT, 0.0), compile_seconds=ending.phases.get(Phase.COMPILE, 0.0),
        billable_seconds=metrics.billable_seconds(totals), cost_usd=metrics.cost_usd(totals),
        checkpoints=progress.checkpoints, gpus=ending.gpus, **seen,
    )  # fmt: skip
