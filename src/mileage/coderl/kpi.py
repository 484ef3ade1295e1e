"""The four code-RL KPIs: plain arithmetic, one function per line of the report.

Every function takes seconds and returns numbers; nothing here rounds. `None` stands for a number that does not exist
(no build succeeded, nothing was measured), never zero or infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mileage.errors import UsageError

SECONDS_PER_HOUR = 3600.0
DEFAULT_ROLLOUT_FRACTION = 0.80
DEFAULT_GPUS = 8


class PassRateSource(StrEnum):
    """What a pass rate was measured on."""

    CORPUS = "corpus of candidate patches"
    TIMED_BUILDS = "timed builds that succeeded"


@dataclass(frozen=True)
class KpiSettings:
    """What the cluster looks like: share of the loop spent in rollouts, GPUs, dollars per build-machine hour."""

    rollout_fraction: float = DEFAULT_ROLLOUT_FRACTION
    gpus: int = DEFAULT_GPUS
    price_usd_per_hour: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.rollout_fraction <= 1.0:
            raise UsageError(f"rollout_fraction must be above 0 and at most 1, not {self.rollout_fraction}")
        if self.gpus < 1:
            raise UsageError(f"gpus must be at least 1, not {self.gpus}")
        if self.price_usd_per_hour is not None and self.price_usd_per_hour < 0:
            raise UsageError(f"price must be 0 or more, not {self.price_usd_per_hour}")


@dataclass(frozen=True)
class ArmFigures:
    """The measured inputs of one arm; a time is None if no build (or check) of the arm succeeded."""

    cold_seconds: float | None
    incremental_seconds: float | None
    pass_rate: float
    pass_rate_source: PassRateSource = PassRateSource.TIMED_BUILDS


@dataclass(frozen=True)
class ArmKpis:
    """The four KPIs of one arm."""

    samples_per_hour: float | None
    feedback_loops_per_hour: float | None
    seconds_per_valid_sample: float | None
    usd_per_valid_sample: float | None
    rollout_bound_samples_per_cluster_hour: float | None
    training_loop_samples_per_cluster_hour: float | None


def per_hour(seconds: float | None) -> float | None:
    """How many things of `seconds` fit in an hour (KPI 1 and KPI 2)."""
    return SECONDS_PER_HOUR / seconds if seconds else None


def seconds_per_valid_sample(cold_seconds: float | None, pass_rate: float) -> float | None:
    """The build seconds spent for each sample that passes (KPI 3); None is `no valid sample`."""
    return cold_seconds / pass_rate if cold_seconds and pass_rate > 0 else None


def rollout_bound(cold_seconds: float | None, gpus: int) -> float | None:
    """Samples per cluster-hour if everything waits for builds (KPI 4, first line)."""
    return gpus * SECONDS_PER_HOUR / cold_seconds if cold_seconds else None


def training_loop(
    baseline_cold_seconds: float | None, cold_seconds: float | None, gpus: int, rollout_fraction: float
) -> float | None:
    """Samples per cluster-hour of a loop whose build part alone shrinks (KPI 4, second line; Amdahl)."""
    if not baseline_cold_seconds or not cold_seconds:
        return None
    rest = baseline_cold_seconds * (1 - rollout_fraction) / rollout_fraction
    return gpus * SECONDS_PER_HOUR / (cold_seconds + rest)


def training_loop_gain(speedup: float, rollout_fraction: float) -> float:
    """How much faster a loop turns whose builds are `speedup` times as fast (Amdahl)."""
    return 1.0 / (1.0 - rollout_fraction + rollout_fraction / speedup)


def arm_kpis(arm: ArmFigures, baseline: ArmFigures, settings: KpiSettings) -> ArmKpis:
    """The KPIs of `arm`; for the baseline itself pass it twice."""
    cost = seconds_per_valid_sample(arm.cold_seconds, arm.pass_rate)
    price = settings.price_usd_per_hour
    return ArmKpis(
        samples_per_hour=per_hour(arm.cold_seconds),
        feedback_loops_per_hour=per_hour(arm.incremental_seconds),
        seconds_per_valid_sample=cost,
        usd_per_valid_sample=None if cost is None or price is None else cost / SECONDS_PER_HOUR * price,
        rollout_bound_samples_per_cluster_hour=rollout_bound(arm.cold_seconds, settings.gpus),
        training_loop_samples_per_cluster_hour=training_loop(
            baseline.cold_seconds, arm.cold_seconds, settings.gpus, settings.rollout_fraction
        ),
    )
