"""From what a run recorded to the totals in its end row. Pure arithmetic, see the definitions in docs/ledger.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mileage.ledger.rows import Checkpoint, ClosedBy, End, EndState, Run


def cost_usd(wall_seconds: float, run: Run) -> float:
    """Return the billable cost of `wall_seconds` of `run`."""
    return billable_seconds(wall_seconds, run) / 3600.0 * run.price_usd_per_hour


def billable_seconds(wall_seconds: float, run: Run) -> float:
    """Return what is billed for `wall_seconds`: on every instance."""
    return wall_seconds * run.instances


@dataclass(slots=True)
class Progress:
    """What the checkpoints of a run add up to so far; grows in place, because a run may have thousands a second."""

    env_steps: int = 0
    checkpoints: int = 0
    last: Checkpoint | None = None
    last_evaluated: Checkpoint | None = None
    first_reached: Checkpoint | None = None
    peak_rss_gb: float | None = None
    peak_gpu_gb: float | None = None

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
        self.peak_rss_gb = _highest(self.peak_rss_gb, checkpoint.peak_rss_gb)
        self.peak_gpu_gb = _highest(self.peak_gpu_gb, checkpoint.peak_gpu_gb)

    @classmethod
    def of(cls, checkpoints: Iterable[Checkpoint]) -> Progress:
        """Return the progress that `checkpoints`, in order, add up to."""
        progress = cls()
        for checkpoint in checkpoints:
            progress.add(checkpoint)
        return progress


def _highest(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else max(a, b)


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
    """Return the end row of `run`."""
    last, reached = progress.last, progress.first_reached
    eval_seconds = ending.phases.get("eval", last.eval_seconds if last else 0.0)
    judged = reached or progress.last_evaluated
    return End(
        run_id=run.run_id,
        closed_by=ending.closed_by.value,
        state=ending.state.value,
        reason=ending.reason,
        ended_at=ending.ended_at,
        env_steps=progress.env_steps,
        wall_seconds=ending.wall_seconds,
        train_seconds=ending.wall_seconds - eval_seconds,
        eval_seconds=eval_seconds,
        init_seconds=ending.phases.get("init", 0.0),
        compile_seconds=ending.phases.get("compile", 0.0),
        billable_seconds=billable_seconds(ending.wall_seconds, run),
        cost_usd=cost_usd(ending.wall_seconds, run),
        success_rate=judged.success_rate if judged else None,
        mean_return=judged.mean_return if judged else None,
        steps_to_target=reached.step if reached else None,
        wall_to_target=reached.wall_seconds if reached else None,
        cost_to_target=reached.cost_usd if reached else None,
        target_seq=reached.seq if reached else None,
        checkpoints=progress.checkpoints,
        peak_rss_gb=progress.peak_rss_gb,
        peak_gpu_gb=progress.peak_gpu_gb,
        gpus=ending.gpus,
    )
