"""Measuring a run: exclusive phase clock, memory and GPU sampling, machine fingerprint, derived quantities."""

from __future__ import annotations

from mileage.meter.clock import PhaseClock, PhaseTimes
from mileage.meter.compilers import compile_phase
from mileage.meter.machine import Machine, fingerprint
from mileage.meter.sampler import ResourcePeaks, ResourceSampler
from mileage.metrics import (
    OTHER_SHARE_LIMIT,
    Phase,
    Totals,
    billable_seconds,
    cost_per_billion_steps,
    cost_to_target,
    cost_usd,
    eval_overhead,
    eval_seconds,
    other_share,
    steady_steps_per_second,
    steps_per_second,
    train_seconds,
    wall_to_target,
)

__all__ = [
    "OTHER_SHARE_LIMIT",
    "Machine",
    "Phase",
    "PhaseClock",
    "PhaseTimes",
    "ResourcePeaks",
    "ResourceSampler",
    "Totals",
    "billable_seconds",
    "compile_phase",
    "cost_per_billion_steps",
    "cost_to_target",
    "cost_usd",
    "eval_overhead",
    "eval_seconds",
    "fingerprint",
    "other_share",
    "steady_steps_per_second",
    "steps_per_second",
    "train_seconds",
    "wall_to_target",
]
