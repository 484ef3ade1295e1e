"""What configurations have in common: which fields, how they are checked, and schedules."""

# The fields are documented where they are defined.

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mileage._errors import UnknownNameError, UsageError
from mileage.contracts import LearnerConfig

SCHEDULES = ("constant", "linear")


class OffPolicyConfig(LearnerConfig, Protocol):
    """What every configuration of off-policy learning has; the fields of `SACConfig` say what they are."""

    @property
    def batch(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def gamma(self) -> float: ...
    @property
    def gradient_steps(self) -> int: ...
    @property
    def hidden(self) -> tuple[int, ...]: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def learning_starts(self) -> int: ...
    @property
    def max_grad_norm(self) -> float: ...
    @property
    def n_step(self) -> int: ...
    @property
    def tau(self) -> float: ...
    @property
    def train_every(self) -> int: ...


class OnPolicyConfig(LearnerConfig, Protocol):
    """What every configuration of actor-critic learning has; the fields of `PPOConfig` say what they are."""

    @property
    def n_steps(self) -> int: ...
    @property
    def epochs(self) -> int: ...
    @property
    def minibatch(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def learning_rate_schedule(self) -> str: ...
    @property
    def gamma(self) -> float: ...
    @property
    def gae_lambda(self) -> float: ...
    @property
    def clip(self) -> float: ...
    @property
    def clip_schedule(self) -> str: ...
    @property
    def value_clip(self) -> float: ...
    @property
    def entropy_coef(self) -> float: ...
    @property
    def value_coef(self) -> float: ...
    @property
    def max_grad_norm(self) -> float: ...
    @property
    def target_kl(self) -> float: ...
    @property
    def normalise_advantages(self) -> bool: ...
    @property
    def normalise_observations(self) -> bool: ...
    @property
    def normalise_rewards(self) -> bool: ...
    @property
    def adam_eps(self) -> float: ...
    @property
    def hidden(self) -> tuple[int, ...]: ...
    @property
    def activation(self) -> str: ...
    @property
    def log_std_init(self) -> float: ...


class OneStepPerRollout:
    """The part of a configuration that is fixed where every rollout is learned from once, whole and unclipped."""

    @property
    def epochs(self) -> int:
        """Passes over a rollout."""
        return 1

    @property
    def minibatch(self: LearnerConfig) -> int:
        """Samples per optimizer step."""
        return self.batch_size

    @property
    def clip(self) -> float:
        """Probability ratios may move as far as they like."""
        return math.inf

    @property
    def clip_schedule(self) -> str:
        """And go on doing so."""
        return "constant"

    @property
    def value_clip(self) -> float:
        """Values may, too."""
        return 0.0

    @property
    def target_kl(self) -> float:
        """No update stops early."""
        return 0.0


def require(condition: bool, name: str, value: object, need: str) -> None:
    """Raise unless `condition`: "`name` must be `need`, not `value`"."""
    if not condition:
        raise UsageError(f"{name} must be {need}, not {value!r}")


def require_each(config: object, need: str, holds: Callable[[Any], bool], *names: str) -> None:
    """Raise for the first field among `names` whose value does not hold."""
    for name in names:
        require(holds(getattr(config, name)), name, getattr(config, name), need)


def at_least_one(config: object, *names: str) -> None:
    """Raise for the first of these fields that is below 1."""
    require_each(config, "at least 1", lambda value: value >= 1, *names)


def zero_or_more(config: object, *names: str) -> None:
    """Raise for the first of these fields that is negative."""
    require_each(config, "0 or more", lambda value: value >= 0, *names)


def unit_interval(config: object, *names: str) -> None:
    """Raise for the first of these fields that is not between 0 and 1."""
    require_each(config, "between 0 and 1", lambda value: 0.0 <= value <= 1.0, *names)


def positive(config: object, *names: str) -> None:
    """Raise for the first of these fields that is not above 0 and finite."""
    require_each(config, "above 0 and finite", lambda value: 0.0 < value < math.inf, *names)


def check_actor_critic(config: OnPolicyConfig) -> None:
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


def check_off_policy(config: OffPolicyConfig) -> None:
    """Check the fields that all configurations of off-policy learning have."""
    object.__setattr__(config, "hidden", tuple(config.hidden))
    at_least_one(config, "n_envs", "capacity", "batch", "train_every", "n_step")
    zero_or_more(config, "gradient_steps", "learning_starts", "max_grad_norm")
    widths = config.hidden
    require(len(widths) > 0 and min(widths) >= 1, "hidden", widths, "at least one layer width above 0")
    unit_interval(config, "gamma")
    require(0.0 < config.tau <= 1.0, "tau", config.tau, "above 0 and at most 1")
    positive(config, "learning_rate")
    require(config.capacity >= config.batch, "capacity", config.capacity, f"at least the batch, {config.batch}")


def one_of(config: object, choices: Sequence[str], *names: str) -> None:
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
