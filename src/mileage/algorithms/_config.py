"""Checks and schedules that configurations share."""

from __future__ import annotations

from typing import Any

from mileage._errors import UsageError

SCHEDULES = ("constant", "linear")


def require(condition: bool, name: str, value: Any, need: str) -> None:
    """Raise unless `condition`: "`name` must be `need`, not `value`"."""
    if not condition:
        raise UsageError(f"{name} must be {need}, not {value!r}")


def scheduled(value: float, schedule: str, progress: float) -> float:
    """`value` after a share `progress` of the training, 0 to 1: as it is, or falling linearly to 0."""
    return value * (1.0 - progress) if schedule == "linear" else value
