"""What configurations have in common: fields, schedules, and the words of Stable-Baselines3."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import secrets
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from mileage.config import Count, Finite, Limit, OrNone, Part, Positive, Range, Share, Weight, check_ranges
from mileage.errors import UnknownNameError, UsageError, require
from mileage.records import ReadRecord, Record
from mileage.seeding import HELD_OUT_START

# --- The words of Stable-Baselines3: those that are taken as they are, and what the others are called here ---
# Each page of docs/migrating-from-sb3.md says the same.
HERE: dict[str, tuple[str, ...]] = {
    "batch_size": ("minibatch", "batch"), "n_epochs": ("epochs",), "clip_range": ("clip",),
    "clip_range_vf": ("value_clip",), "normalize_advantage": ("normalise_advantages",),
    "ent_coef": ("entropy_coef", "temperature"), "vf_coef": ("value_coef",), "rms_prop_eps": ("adam_eps",),
    "buffer_size": ("capacity",), "train_freq": ("train_every",), "n_steps": ("n_step",),
    "action_noise": ("exploration_noise",), "target_update_interval": ("target_every",),
    "target_policy_noise": ("target_noise",), "target_noise_clip": ("noise_limit",),
    "exploration_fraction": ("exploration",), "exploration_initial_eps": ("epsilon_start",),
    "exploration_final_eps": ("epsilon_end",), "policy_kwargs": ("hidden", "activation"),
    "net_arch": ("hidden",), "activation_fn": ("activation",), "norm_obs": ("normalise_observations",),
    "norm_reward": ("normalise_rewards",),
    "eval_freq": ("eval_every",), "save_freq": ("checkpoint_every",), "best_model_save_path": ("best_checkpoint",),
    "tensorboard_log": ("tensorboard",),
}  # fmt: skip
"""What a word of theirs may be called here; which of several depends on the algorithm."""


def hinted(what: str, of: str, name: str, known: Iterable[str]) -> UsageError:
    """The error about a word that is none of `known`: what it is called here, otherwise what is near it."""
    there = set(known)
    here = [word for word in HERE.get(name, ()) if word in there]
    if here:
        return UsageError(f"{of} has no {what} {name!r}: it is {' and '.join(f'`{word}`' for word in here)} here")
    return UnknownNameError(f"{what} of {of}", name, there)


def taken(options: Record) -> tuple[Record, bool | None, str | None]:
    """The hyperparameters among what a constructor was given, whether to show progress, and where TensorBoard looks.

    `verbose` and `tensorboard_log` belong to `learn` here, and are kept for it.
    """
    rest = dict(options)
    verbose, log = rest.pop("verbose", None), rest.pop("tensorboard_log", None)
    return rest, None if verbose is None else bool(verbose), log


def seed_of(seed: int | None) -> int:
    """A seed; None draws one."""
    return secrets.randbelow(HELD_OUT_START) if seed is None else seed


def learning(others: Record, total_steps: Any, progress: bool | None, known: Iterable[str]) -> tuple[Any, bool | None]:
    """Steps and whether to show progress, where `learn` was told so in other words."""
    words = dict(others)
    total_steps = words.pop("total_timesteps", total_steps)
    progress = words.pop("progress_bar", progress)
    if words:
        raise hinted("argument", "learn", next(iter(words)), {*known, "total_steps", "total_timesteps"})
    return total_steps, progress


SCHEDULES = ("constant", "linear")
# How the table of a function of time begins, and how many points it has.
_TABLE, _POINTS = "table ", 101


def _is_schedule(text: str) -> bool:
    try:
        return text in SCHEDULES or (text.startswith(_TABLE) and len(_factors(text)) > 1)
    except ValueError:
        return False


Schedule = Annotated[str, Range(f"one of {', '.join(SCHEDULES)}", _is_schedule)]


@dataclasses.dataclass(frozen=True)
class CommonConfig:
    """What every configuration has."""

    n_envs: Count = 1
    """Environments stepped side by side."""
    learning_rate: Positive = 1e-3
    """Adam's step size at the start."""
    learning_rate_schedule: Schedule = "constant"
    """`constant`, or `linear` to 0 at the end of training."""
    gamma: Share = 0.99
    """Discount."""
    max_grad_norm: Limit = 0.0
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
        check_ranges(self)


@dataclasses.dataclass(frozen=True)
class OnPolicyConfig(CommonConfig):
    """What every configuration of actor-critic learning has.

    A rollout is learned from once, whole and unclipped, unless a configuration has fields for that.
    """

    n_envs: int = 16
    n_steps: Count = 8
    """Steps of each environment per rollout."""
    learning_rate: float = 2e-3
    entropy_coef: Weight = 0.0
    """Weight of the entropy bonus."""
    value_coef: Weight = 0.5
    """Weight of the squared value error."""
    max_grad_norm: float = 0.5
    normalise_advantages: bool = False
    """Centre and scale the advantages of every minibatch; a rollout learned from whole is one."""
    adam_eps: Positive = 1e-5
    """Adam's epsilon."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of actor and critic."""
    activation: str = "tanh"
    log_std_init: Finite = 0.0
    """Logarithm of the initial deviation of continuous actions."""

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
class OffPolicyConfig(CommonConfig):
    """What every configuration of learning from replay has."""

    train_every: Count = 1
    """Steps of every environment per iteration."""
    gradient_steps: OrNone = 1
    """Updates per iteration."""
    batch: Count = 256
    """Samples per update."""
    learning_starts: OrNone = 1000
    """Steps taken at random before learning starts."""
    hold: Count = 1
    """Steps for which each of these random actions is held: longer pushes reach further than a tremble."""
    capacity: Count = 1_000_000
    """Transitions that the replay buffer holds."""
    n_step: Count = 1
    """Steps of reward before bootstrapping."""
    tau: Part = 0.005
    """Share that target networks move towards the learned ones when they move."""

    def __post_init__(self) -> None:
        super().__post_init__()
        widths = self.hidden
        require(len(widths) > 0 and min(widths) >= 1, "hidden", widths, "at least one layer width above 0")
        require(self.capacity >= self.batch, "capacity", self.capacity, f"at least the batch, {self.batch}")

    @property
    def batch_size(self) -> int:
        """Samples that one update learns from."""
        return self.batch


def checked(kind: type[Any], algorithm: str, values: ReadRecord) -> Record:
    """Hyperparameters by name as plain Python values of the types that the fields of `kind` have.

    NumPy's numbers become Python's, a whole number may stand for a float, and everything else must be of its type.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}
    result = {}
    for name, value in values.items():
        if name not in fields:
            raise hinted("hyperparameter", algorithm, name, fields)
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
