"""Quantities derived from a run's phases: pure functions on one frozen record, each with its denominator.

A quantity whose denominator is zero, or that a run does not have, is `None`: never infinity, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mileage._errors import UsageError
from mileage.meter.clock import PhaseTimes
from mileage.meter.phases import Phase


@dataclass(frozen=True, slots=True)
class Totals:
    """What a run has used up to one instant.

    `phases` holds seconds per exclusive phase and adds up to `wall_seconds`; `target_reached_seconds` is the wall-clock
    at the end of the evaluation that first met the target, or None.
    """

    wall_seconds: float
    phases: Mapping[str, float]
    env_steps: int = 0
    instances: int = 1
    price_usd_per_hour: float = 0.0
    target_reached_seconds: float | None = None

    def __post_init__(self) -> None:
        # To the microsecond: a record whose phases overlap or leave a hole must not be reported from.
        claimed = math.fsum(self.phases.values())
        if not math.isclose(claimed, self.wall_seconds, rel_tol=0.0, abs_tol=1e-6):
            raise UsageError(
                f"phases add up to {claimed:.6f} s but wall_seconds is {self.wall_seconds:.6f}: "
                "give the rest as phase 'other'"
            )
        if self.instances < 1 or self.env_steps < 0 or self.price_usd_per_hour < 0:
            raise UsageError("instances must be at least 1, env_steps and price_usd_per_hour must not be negative")

    @classmethod
    def of(
        cls,
        times: PhaseTimes,
        *,
        env_steps: int = 0,
        instances: int = 1,
        price_usd_per_hour: float = 0.0,
        target_reached_seconds: float | None = None,
    ) -> Totals:
        """The record of a clock's `times()`."""
        return cls(times.wall_seconds, times.phases, env_steps, instances, price_usd_per_hour, target_reached_seconds)


def phase_seconds(totals: Totals, phase: str) -> float:
    """Seconds spent in one phase, 0 if it was never open."""
    return totals.phases.get(phase, 0.0)


def eval_seconds(totals: Totals) -> float:
    """Seconds of held-out evaluation."""
    return phase_seconds(totals, Phase.EVAL)


def train_seconds(totals: Totals) -> float:
    """Wall-clock without held-out evaluation."""
    return totals.wall_seconds - eval_seconds(totals)


def steps_per_second(totals: Totals) -> float | None:
    """Environment steps per second of `train_seconds`; shown beside `steady_steps_per_second`, never alone."""
    return _ratio(totals.env_steps, train_seconds(totals))


def steady_steps_per_second(totals: Totals) -> float | None:
    """Environment steps per second of `train_seconds` without `init` and `compile`."""
    started = phase_seconds(totals, Phase.INIT) + phase_seconds(totals, Phase.COMPILE)
    return _ratio(totals.env_steps, train_seconds(totals) - started)


def eval_overhead(totals: Totals) -> float | None:
    """Share of the wall-clock spent on held-out evaluation."""
    return _ratio(eval_seconds(totals), totals.wall_seconds)


def other_share(totals: Totals) -> float | None:
    """Share of the wall-clock that no phase claims; above `OTHER_SHARE_LIMIT` it is a finding."""
    return _ratio(phase_seconds(totals, Phase.OTHER), totals.wall_seconds)


def wall_to_target(totals: Totals) -> float | None:
    """Seconds from the start to the end of the evaluation that first met the target, or None if none did."""
    return totals.target_reached_seconds


def billable_seconds(totals: Totals) -> float:
    """All wall-clock, failed and idle time included, times the number of instances."""
    return totals.wall_seconds * totals.instances


def cost_usd(totals: Totals) -> float:
    """Dollars for `billable_seconds`; 0 where no price is set."""
    return billable_seconds(totals) / 3600.0 * totals.price_usd_per_hour


def cost_per_billion_steps(totals: Totals) -> float | None:
    """Dollars per 1e9 environment steps."""
    return _ratio(cost_usd(totals), totals.env_steps / 1e9)


def cost_to_target(totals: Totals) -> float | None:
    """Dollars billed until the target was first met, or None if it was not."""
    if totals.target_reached_seconds is None:
        return None
    return totals.target_reached_seconds * totals.instances / 3600.0 * totals.price_usd_per_hour


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator > 0 else None
