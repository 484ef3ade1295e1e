"""Checks and schedules that configurations share."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mileage._errors import UnknownNameError, UsageError

SCHEDULES = ("constant", "linear")


def require(condition: bool, name: str, value: Any, need: str) -> None:
    """Raise unless `condition`: "`name` must be `need`, not `value`"."""
    if not condition:
        raise UsageError(f"{name} must be {need}, not {value!r}")


def require_each(config: Any, need: str, holds: Callable[[Any], bool], *names: str) -> None:
    """Raise for the first field among `names` whose value does not hold."""
    for name in names:
        require(holds(getattr(config, name)), name, getattr(config, name), need)


def at_least_one(config: Any, *names: str) -> None:
    """Raise for the first of these fields that is below 1."""
    require_each(config, "at least 1", lambda value: value >= 1, *names)


def zero_or_more(config: Any, *names: str) -> None:
    """Raise for the first of these fields that is negative."""
    require_each(config, "0 or more", lambda value: value >= 0, *names)


def unit_interval(config: Any, *names: str) -> None:
    """Raise for the first of these fields that is not between 0 and 1."""
    require_each(config, "between 0 and 1", lambda value: 0.0 <= value <= 1.0, *names)


def positive(config: Any, *names: str) -> None:
    """Raise for the first of these fields that is not above 0 and finite."""
    require_each(config, "above 0 and finite", lambda value: 0.0 < value < math.inf, *names)


def check_actor_critic(config: Any) -> None:
    """Check the fields that all configurations of actor-critic learning have."""
    object.__setattr__(config, "hidden", tuple(config.hidden))
    at_least_one(config, "n_envs", "n_steps")
    unit_interval(config, "gamma")
    positive(config, "learning_rate", "adam_eps")
    zero_or_more(config, "max_grad_norm")
    finite = "0 or more and finite"
    require_each(config, finite, lambda value: 0.0 <= value < math.inf, "entropy_coef", "value_coef")
    require_each(config, "finite", math.isfinite, "log_std_init")
    one_of(config, SCHEDULES, "learning_rate_schedule")


def one_of(config: Any, choices: Sequence[str], *names: str) -> None:
    """Raise for the first of these fields that is none of `choices`."""
    require_each(config, f"one of {', '.join(choices)}", choices.__contains__, *names)


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
