"""What configurations have in common: fields, how they are checked, and schedules."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

from mileage._errors import UnknownNameError, UsageError, require
from mileage._records import ReadRecord, Record

SCHEDULES = ("constant", "linear")
# How the table of a function of time begins, and how many points it has.
_TABLE, _POINTS = "table ", 101


@dataclasses.dataclass(frozen=True)
class OnPolicyConfig:
    """What every configuration of actor-critic learning has.

    A rollout is learned from once, whole and unclipped, unless a configuration has fields for that.
    """

    n_envs: int = 16
    """Environments stepped side by side."""
    n_steps: int = 8
    """Steps of each environment per rollout."""
    learning_rate: float = 2e-3
    """Adam's step size at the start."""
    learning_rate_schedule: str = "constant"
    """`constant`, or `linear` to 0 at the end of training."""
    gamma: float = 0.99
    """Discount."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    value_coef: float = 0.5
    """Weight of the squared value error."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this global norm; 0 for no limit."""
    normalise_advantages: bool = False
    """Centre and scale the advantages of every minibatch; a rollout learned from whole is one."""
    normalise_observations: bool = False
    """Centre and scale observations by running statistics, which are frozen into checkpoints."""
    normalise_rewards: bool = False
    """Scale rewards by the running deviation of the discounted return."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of actor and critic."""
    activation: str = "tanh"
    """`tanh` or `relu`."""
    log_std_init: float = 0.0
    """Logarithm of the initial deviation of continuous actions."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        at_least_one(self, "n_envs", "n_steps")
        unit_interval(self, "gamma")
        positive(self, "learning_rate", "adam_eps")
        zero_or_more(self, "max_grad_norm")
        finite = "0 or more and finite"
        require_each(self, finite, lambda value: 0.0 <= value < math.inf, "entropy_coef", "value_coef")
        require_each(self, "finite", math.isfinite, "log_std_init")
        check_schedules(self, "learning_rate_schedule")

    @property
    def batch_size(self) -> int:
        """Samples of one rollout, which one update learns from."""
        return self.n_envs * self.n_steps

    # What other configurations have as fields: one pass over a rollout, whole and unclipped.
    epochs, clip, clip_schedule, value_clip, target_kl = 1, math.inf, "constant", 0.0, 0.0

    @property
    def gae_lambda(self) -> float:
        """Decay of the traces; 1 is the n-step return."""
        return 1.0

    @property
    def minibatch(self) -> int:
        """Samples per optimizer step."""
        return self.batch_size


@dataclasses.dataclass(frozen=True)
class OffPolicyConfig:
    """What every configuration of learning from replay has."""

    n_envs: int = 1
    """Environments stepped side by side."""
    train_every: int = 1
    """Steps of every environment per iteration."""
    gradient_steps: int = 1
    """Updates per iteration."""
    batch: int = 256
    """Samples per update."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    learning_rate_schedule: str = "constant"
    """`constant`, or `linear` to 0 at the end of training."""
    learning_starts: int = 1000
    """Steps taken at random before learning starts."""
    hold: int = 1
    """Steps for which each of these random actions is held: longer pushes reach further than a tremble."""
    capacity: int = 1_000_000
    """Transitions that the replay buffer holds."""
    gamma: float = 0.99
    """Discount."""
    n_step: int = 1
    """Steps of reward before bootstrapping."""
    tau: float = 0.005
    """Share that target networks move towards the learned ones when they move."""
    max_grad_norm: float = 0.0
    """Gradients are scaled down to this norm; 0 for no limit."""
    normalise_observations: bool = False
    """Centre and scale observations by running statistics, which are frozen into checkpoints."""
    normalise_rewards: bool = False
    """Scale rewards by the running deviation of the discounted return."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
    activation: str = "relu"
    """`relu` or `tanh`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        at_least_one(self, "n_envs", "capacity", "batch", "train_every", "n_step", "hold")
        zero_or_more(self, "gradient_steps", "learning_starts", "max_grad_norm")
        widths = self.hidden
        require(len(widths) > 0 and min(widths) >= 1, "hidden", widths, "at least one layer width above 0")
        unit_interval(self, "gamma")
        require(0.0 < self.tau <= 1.0, "tau", self.tau, "above 0 and at most 1")
        positive(self, "learning_rate")
        check_schedules(self, "learning_rate_schedule")
        require(self.capacity >= self.batch, "capacity", self.capacity, f"at least the batch, {self.batch}")

    @property
    def batch_size(self) -> int:
        """Samples that one update learns from."""
        return self.batch


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


def one_of(config: object, choices: Sequence[str], *names: str) -> None:
    """Raise for the first of these fields that is none of `choices`."""
    require_each(config, f"one of {', '.join(choices)}", choices.__contains__, *names)


def checked(kind: type[Any], algorithm: str, values: ReadRecord) -> Record:
    """Hyperparameters by name as plain Python values of the types that the fields of `kind` have.

    NumPy's numbers become Python's, a whole number may stand for a float, and everything else must be of its type.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}
    result = {}
    for name, value in values.items():
        if name not in fields:
            raise UnknownNameError(f"hyperparameter of {algorithm}", name, fields)
        result[name] = _of_type(name, value, fields[name].default)
    return result


def _of_type(name: str, value: Any, default: Any) -> Any:
    if isinstance(default, tuple):
        widths = isinstance(value, Sequence) and not isinstance(value, str)
        if not widths or not all(isinstance(item, numbers.Integral) for item in value):
            raise UsageError(f"{name} must be a list of whole numbers, not {value!r}")
        return tuple(int(item) for item in value)
    kind = type(default)
    if isinstance(default, bool | str):
        fits = isinstance(value, kind)
    else:
        number = numbers.Integral if isinstance(default, int) else numbers.Real
        fits = isinstance(value, number) and not isinstance(value, bool)
    require(fits, name, value, f"of type {kind.__name__}")
    return kind(value)


def varied(config: OnPolicyConfig, changes: dict[str, int]) -> OnPolicyConfig:
    """The configuration with some of its fields changed."""
    return type(config)(**(dataclasses.asdict(config) | changes))


def scheduled(value: float, schedule: str, progress: float) -> float:
    """`value` after a share `progress` of the training, 0 to 1: as it is, falling linearly to 0, or by a table."""
    if schedule == "linear":
        return value * (1.0 - progress)
    if schedule.startswith(_TABLE):
        factors = _factors(schedule)
        place = min(max(progress, 0.0), 1.0) * (len(factors) - 1)
        before = min(int(place), len(factors) - 2)
        return value * (factors[before] + (place - before) * (factors[before + 1] - factors[before]))
    return value


def tabulated(values: ReadRecord) -> Record:
    """Hyperparameters, where one that is a function of the share of the training left has become a value and a table.

    Functions are those of Stable-Baselines3: from 1 at the start to 0 at the end. Numbers can be saved and compared;
    between two of the table's points the value changes linearly.
    """
    found = dict(values)
    for name, value in values.items():
        if not callable(value):
            continue
        points = [value(1.0 - i / (_POINTS - 1)) for i in range(_POINTS)]
        right = all(isinstance(each, numbers.Real) and 0.0 <= float(each) < math.inf for each in points)
        if not right or not max(points):
            raise UsageError(f"{name} must be a function whose values are 0 or more and finite, not {points[0]!r}")
        found[name] = float(max(points))
        found[f"{name}_schedule"] = _TABLE + " ".join(f"{each / max(points):.7g}" for each in points)
    return found


@functools.cache
def _factors(schedule: str) -> tuple[float, ...]:
    return tuple(float(each) for each in schedule.removeprefix(_TABLE).split())


def check_schedules(config: object, *names: str) -> None:
    """Raise for the first of these fields that is no schedule."""
    for name in names:
        value = getattr(config, name)
        try:
            table = value.startswith(_TABLE) and len(_factors(value)) > 1
        except ValueError:
            table = False
        require(table or value in SCHEDULES, name, value, f"one of {', '.join(SCHEDULES)}")
