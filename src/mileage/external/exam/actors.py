"""Whoever chooses actions: the one thing that an exam asks of a policy, whatever it is made of."""

from __future__ import annotations

import abc
from collections.abc import Callable

import numpy as np

from mileage.contracts import EnvSpec
from mileage.errors import UsageError
from mileage.policies.mlp import from_logits
from mileage.types import F32, I64, Action, Array, Observation

Function = Callable[[Observation], Action]
"""Actions (N, …) for a batch of observations (N, …), both in the environment's own form."""


class Actor(abc.ABC):
    """A policy that is examined. It sees observations in the environment's own form and is never told a seed."""

    remembers: bool = False
    """Whether an action depends on what was before in its episode: then all episodes are played side by side."""
    samples: bool = True
    """Whether it can draw actions; if not, only a panel that asks for the best ones can be sat."""

    def begin(self, episodes: int, deterministic: bool) -> None:  # noqa: B027 (most need not know)
        """An exam of so many episodes begins; whatever was remembered is of another one."""

    @abc.abstractmethod
    def act(self, observations: Observation, episodes: I64) -> Action:
        """Actions for a batch (N, …) of observations of the `episodes` (N,), numbered from 0.

        For discrete actions, numbers (N,) or scores of every action, (N, n) of a floating type.
        """

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Let go of processes and memory."""


class Called(Actor):
    """A function from a batch of observations to actions."""

    def __init__(self, function: Function) -> None:
        if not callable(function):
            raise UsageError(f"a policy must be a function of observations, not {type(function).__name__}")
        self._function = function

    def act(self, observations: Observation, episodes: I64) -> Action:
        """Ask the function."""
        return self._function(observations)


def chosen(answer: Action, spec: EnvSpec, n: int, rng: np.random.Generator | None, unit: bool) -> Array:
    """An actor's answer as action rows: (N,) int64, or (N, A) float32 within the bounds; UsageError if it is neither.

    With `unit`, numbers from -1 to 1 stand for the bounds.
    """
    choices = sum(spec.choices)
    try:
        found = np.asarray(answer)
    except ValueError:
        raise UsageError(f"a policy must answer {n} observations with {n} actions of one shape") from None
    if spec.choices and found.dtype.kind == "f" and found.shape == (n, choices) and spec.action_size != choices:
        return _best(np.asarray(found, np.float32), spec, rng)
    if found.shape[:1] != (n,) or found.dtype.kind not in "biuf":
        raise UsageError(
            f"a policy must answer {n} observations with {n} actions, not with {found.dtype} of shape {found.shape}"
        )
    rows = spec.codec.taken_rows(found)
    if spec.n_actions:
        rows = rows.reshape(n, -1)
        if rows.shape[1] != 1 or (rows.dtype.kind == "f" and not (rows == np.floor(rows)).all()):
            raise UsageError(
                f"a policy must choose actions of {spec.id!r} by their numbers, or score all {choices} of them, not "
                f"answer with {found.dtype} of shape {found.shape}"
            )
        return rows[:, 0].astype(np.int64)
    return _bounded(rows, spec, found, unit)


def _bounded(rows: Array, spec: EnvSpec, found: Array, unit: bool) -> F32:
    """Numbers within the bounds of the environment, as every library clips them; what is no number is refused."""
    if rows.ndim != 2 or rows.shape[1] != spec.action_size:
        raise UsageError(
            f"a policy must answer with {spec.action_size} numbers an action, not with shape {found.shape}"
        )
    if not np.isfinite(rows).all():
        raise UsageError("a policy must answer with finite numbers")
    low, high = spec.action_low, spec.action_high
    if unit:
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise UsageError(f"actions from -1 to 1 mean nothing in {spec.id!r}, whose actions have no bounds")
        rows = low + (rows + 1.0) * 0.5 * (high - low)
    return np.ascontiguousarray(np.clip(rows, low, high), np.float32)


def _best(scores: F32, spec: EnvSpec, rng: np.random.Generator | None) -> Array:
    if not np.isfinite(scores).all():
        raise UsageError("a policy must score actions with finite numbers")
    parts = np.split(scores, np.cumsum(spec.choices)[:-1], axis=1)
    found = [from_logits(part, rng) for part in parts]
    return found[0] if spec.n_actions else np.stack(found, axis=1).astype(np.float32)
