"""Checks and schedules that configurations share."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from mileage._errors import UnknownNameError, UsageError

SCHEDULES = ("constant", "linear")


def require(condition: bool, name: str, value: Any, need: str) -> None:
    """Raise unless `condition`: "`name` must be `need`, not `value`"."""
    if not condition:
        raise UsageError(f"{name} must be {need}, not {value!r}")


def checked(kind: type[Any], algorithm: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Hyperparameters by name as plain Python values of the types that the fields of `kind` have.

    NumPy's numbers become Python's, a whole number may stand for a float, and everything else must be of its type.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}
    result = {}
    for name, value in values.items():
        if name not in fields:
            raise UnknownNameError(f"hyperparameter of {algorithm}", name, fields)
        default = fields[name].default
        result[name] = _of_type(name, value, default)
    return result


def _of_type(name: str, value: Any, default: Any) -> Any:
    flag = isinstance(value, bool)
    if isinstance(default, tuple):
        widths = isinstance(value, Sequence) and not isinstance(value, str)
        if not widths or not all(isinstance(item, numbers.Integral) for item in value):
            raise UsageError(f"{name} must be a list of whole numbers, not {value!r}")
        return tuple(int(item) for item in value)
    if isinstance(default, bool | str):
        if not isinstance(value, type(default)):
            raise UsageError(f"{name} must be of type {type(default).__name__}, not {value!r}")
        return value
    wanted = numbers.Integral if isinstance(default, int) else numbers.Real
    if flag or not isinstance(value, wanted):
        raise UsageError(f"{name} must be of type {type(default).__name__}, not {value!r}")
    return type(default)(value)


def scheduled(value: float, schedule: str, progress: float) -> float:
    """`value` after a share `progress` of the training, 0 to 1: as it is, or falling linearly to 0."""
    return value * (1.0 - progress) if schedule == "linear" else value
