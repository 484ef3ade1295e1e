"""What is left of a run: an immutable record that reports, ledgers and comparisons are made from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mileage.ledger.rows import EndState
from mileage.ledger.targets import Evaluation
from mileage.meter import Totals, steady_steps_per_second, steps_per_second


@dataclasses.dataclass(frozen=True)
class EvalPoint:
    """One held-out evaluation."""

    steps: int
    """Environment steps taken before it."""
    wall_seconds: float
    """Seconds from the start of the run to the end of this evaluation."""
    evaluation: Evaluation
    """The episodes."""


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """One run, from start to end."""

    algorithm: str
    env: str
    seed: int
    config: Mapping[str, Any]
    panel_id: str
    target: str | None
    steps: int
    """Environment steps taken, those of earlier runs that this one continues included."""
    end: EndState
    reason: str
    wall_seconds: float
    phases: Mapping[str, float]
    """Seconds per phase; they add up to `wall_seconds`."""
    evaluations: tuple[EvalPoint, ...]
    wall_to_target: float | None
    """Seconds to the end of the evaluation that first met the target; None if none did."""
    steps_to_target: int | None
    checkpoint: str | None = None
    """Path of the last checkpoint, if one was written."""
    steps_before: int = 0
    """Environment steps of earlier runs that this one continues."""
    summary: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What the algorithm counted beyond phases, such as the policy lag of its updates; plain JSON."""

    @property
    def reached(self) -> bool:
        """Whether the target was met."""
        return self.wall_to_target is not None

    @property
    def final(self) -> Evaluation | None:
        """The last evaluation."""
        return self.evaluations[-1].evaluation if self.evaluations else None

    @property
    def totals(self) -> Totals:
        """What metrics are derived from."""
        return Totals(
            wall_seconds=self.wall_seconds, phases=dict(self.phases), env_steps=self.steps - self.steps_before
        )

    @property
    def steps_per_second(self) -> float:
        """Environment steps per training second."""
        return steps_per_second(self.totals) or 0.0

    @property
    def steady_steps_per_second(self) -> float:
        """The same without start-up and compilation."""
        return steady_steps_per_second(self.totals) or 0.0
