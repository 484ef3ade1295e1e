"""Sentences for training whose numbers are no longer finite: where they came from, and what to do."""

from __future__ import annotations

from mileage._errors import DivergedError, EnvError


def from_env(env: str, what: str, value: float, index: int, steps: int, step: int | None = None) -> EnvError:
    """An environment's observation or reward was the first; `step` counts within the rollout after `steps` steps."""
    when = f"after {steps:,} steps" if step is None else f"in step {step} of the rollout after {steps:,} steps"
    return EnvError(
        f"{what} {value} of environment {index} of {env!r}, {when}, made the loss NaN: try `mileage env check`"
    )


def diverged(steps: int, rate: float) -> DivergedError:
    """Everything that came in was finite."""
    return DivergedError(
        f"the update after {steps:,} steps is no longer finite, though observations and rewards are: lower "
        f"learning_rate (now {rate:g}), set max_grad_norm, or keep observations and rewards small"
    )
