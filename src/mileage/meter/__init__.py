"""Measuring a run: exclusive phase clock, memory and GPU sampling, machine fingerprint, derived quantities."""

from __future__ import annotations

from mileage.meter.clock import PhaseClock, PhaseTimes
from mileage.meter.machine import Machine, fingerprint
from mileage.meter.phases import Phase

__all__ = ["Machine", "Phase", "PhaseClock", "PhaseTimes", "fingerprint"]
