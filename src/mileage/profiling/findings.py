"""What a profile says: the bottleneck as an enum value, its evidence, what removing it would bring, what to try."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from mileage._records import Record

# A finding leads only if what it promises is worth the try; below this, the phase that takes longest leads.
WORTH_TRYING = 0.05


class Bottleneck(enum.StrEnum):
    """What a run waits for."""

    ROLLOUT_BOUND = "rollout_bound"
    INFERENCE_DISPATCH_BOUND = "inference_dispatch_bound"
    ENV_BOUND = "env_bound"
    LEARNER_BOUND = "learner_bound"
    ADVANTAGE_BOUND = "advantage_bound"
    MEMORY_BOUND = "memory_bound"
    EVALUATION_BOUND = "evaluation_bound"
    CHECKPOINT_BOUND = "checkpoint_bound"
    LOGGING_BOUND = "logging_bound"
    COMPILATION_BOUND = "compilation_bound"
    STARTUP_BOUND = "startup_bound"
    TRANSFER_BOUND = "transfer_bound"
    SYNC_BOUND = "sync_bound"
    FAILED_RUN_BOUND = "failed_run_bound"
    UNDERSIZED_BATCH = "undersized_batch"
    IDLE_CORES = "idle_cores"
    OVERSUBSCRIBED_THREADS = "oversubscribed_threads"
    UNACCOUNTED = "unaccounted"

    @property
    def label(self) -> str:
        """As the verdict names it, such as LEARN-BOUND."""
        return _TITLES.get(self, self.value.upper().replace("_", "-"))


_TITLES = {
    Bottleneck.LEARNER_BOUND: "LEARN-BOUND",
    Bottleneck.EVALUATION_BOUND: "EVAL-BOUND",
    Bottleneck.COMPILATION_BOUND: "COMPILE-BOUND",
    Bottleneck.INFERENCE_DISPATCH_BOUND: "DISPATCH-BOUND",
    Bottleneck.FAILED_RUN_BOUND: "FAILED-RUNS",
}

FIXES = (
    "threads", "n_envs", "minibatch", "batch", "backend_native", "torch_compile", "eval_every", "checkpoint_every",
    "processes", "warmup",
)  # fmt: skip
"""Names of fixes that an experiment can apply; `Finding.fix` is one of them, or None."""


OF_TRAINING = frozenset(Bottleneck) - {
    Bottleneck.STARTUP_BOUND,
    Bottleneck.COMPILATION_BOUND,
    Bottleneck.FAILED_RUN_BOUND,
    Bottleneck.UNACCOUNTED,
}
"""Bottlenecks that a longer run of the same kind has too."""


@dataclass(frozen=True)
class Finding:
    """One diagnosis."""

    bottleneck: Bottleneck
    share: float
    """Share of the wall-clock that the bottleneck takes now, 0 to 1."""
    evidence: str
    """What was measured, in one clause."""
    estimated_gain: float
    """Share of the wall-clock that the suggestion would save (Amdahl), 0 to 1."""
    suggestion: str
    """The next thing to try: a flag or a configuration."""
    fix: str | None = None
    """Name of the fix that an experiment can apply, one of `FIXES`; None if only a person can."""

    def as_dict(self) -> Record:
        """Plain data."""
        return asdict(self) | {"bottleneck": self.bottleneck.value}

    @classmethod
    def from_dict(cls, data: Record) -> Finding:
        """Undo `as_dict`."""
        return cls(**(data | {"bottleneck": Bottleneck(data["bottleneck"])}))

    @property
    def line(self) -> str:
        """The finding in one line, as the verdict shows it."""
        gain = f" (est. −{100.0 * self.estimated_gain:.0f} % wall)" if self.estimated_gain >= 0.005 else ""
        return f"{self.bottleneck.label}: {self.evidence}; try {self.suggestion}{gain}"


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings in the order in which to act: those worth trying by what they would save, then by their share."""

    def key(finding: Finding) -> tuple[float, float]:
        gain = finding.estimated_gain
        return (gain if gain >= WORTH_TRYING else 0.0, finding.share)

    return tuple(sorted(findings, key=key, reverse=True))


def amdahl(share: float, speedup: float) -> float:
    """Share of the whole that is saved when a part of it, `share`, gets `speedup` times as fast.

    >>> amdahl(0.5, 2.0)
    0.25
    """
    return share * (1.0 - 1.0 / speedup) if speedup > 0.0 else 0.0
