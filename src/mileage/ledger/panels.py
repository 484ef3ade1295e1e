"""A panel is the held-out exam: which episodes are played, how, and what counts as success.

Two runs may be compared only if they sat the same exam, so a panel is immutable and its canonical JSON hashes to
`panel_id`. Its seeds come from the range that training seeds cannot reach.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mileage.errors import UsageError
from mileage.records import ReadRecord, Record
from mileage.seeding import HELD_OUT_START, HELD_OUT_STOP, held_out_seeds

DEFAULT_PANEL_SIZE = 100

_SUCCESS_RULE = re.compile(r"(?P<quantity>return|length)\s*>=\s*(?P<threshold>[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)")
_SUCCESS_FLAGS = ("terminated", "truncated", "info:is_success")


class Aggregate(StrEnum):
    """How the episodes of one evaluation become one number."""

    MEAN_RETURN = "mean_return"
    MEDIAN_RETURN = "median_return"
    IQM_RETURN = "iqm_return"
    SUCCESS_RATE = "success_rate"

    @classmethod
    def parse(cls, name: str) -> Aggregate:
        """The aggregate called `name`."""
        try:
            return cls(name)
        except ValueError:
            raise UsageError(f"aggregate {name!r} is not known: use one of {', '.join(cls)}") from None


def canonical_json(value: object) -> str:
    """The one JSON text of `value`: sorted keys, no spaces, ASCII, no NaN."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(f"a panel or config must be plain JSON (strings, numbers, lists, dicts): {error}") from None


def parse_success(rule: str | None) -> str | None:
    """The canonical spelling of a success definition.

    `return>=475` and `length>=500` compare an episode's return or length; `terminated` and `truncated` ask how it
    ended; `info:is_success` is what the environment itself reports; None means the panel defines no success.
    """
    if rule is None:
        return None
    text = " ".join(rule.split())
    if text in _SUCCESS_FLAGS:
        return text
    match = _SUCCESS_RULE.fullmatch(text)
    if match is None:
        known = f"return>=NUMBER, length>=NUMBER, {', '.join(_SUCCESS_FLAGS)}"
        raise UsageError(f"success {rule!r} is not a success definition: use {known}")
    return f"{match['quantity']}>={float(match['threshold'])!r}"


@dataclass(frozen=True)
class Panel:
    """The held-out exam of a run."""

    env_id: str
    """Environment id, as given to the registry."""
    seeds: tuple[int, ...]
    """One reset seed per evaluation episode, in the order they are played."""
    env_kwargs: ReadRecord = field(default_factory=dict)
    """Keyword arguments of the environment, plain JSON."""
    env_version: str = ""
    """Version of the environment's code, so that a changed simulator is a changed exam."""
    perturbations: tuple[str, ...] = ()
    """Names of the perturbations applied during evaluation."""
    max_episode_steps: int | None = None
    """Episodes are truncated after this many steps; None leaves the environment's own limit."""
    deterministic: bool = True
    """Whether the policy acts by its mode (True) or by sampling (False)."""
    success: str | None = None
    """What makes an episode a success; see `parse_success`."""
    aggregate: str = Aggregate.MEAN_RETURN.value
    """The number that summarises the panel."""

    def __post_init__(self) -> None:
        if not isinstance(self.env_id, str) or not self.env_id:
            raise UsageError("env_id of a panel must be a non-empty string")
        seeds = tuple(int(seed) for seed in self.seeds)
        if not seeds:
            raise UsageError("seeds of a panel must name at least one episode")
        if len(set(seeds)) != len(seeds):
            raise UsageError("seeds of a panel must differ from each other: an episode counted twice proves nothing")
        outside = next((seed for seed in seeds if not HELD_OUT_START <= seed < HELD_OUT_STOP), None)
        if outside is not None:
            held_out = f"held-out seeds are {HELD_OUT_START} to {HELD_OUT_STOP - 1}"
            raise UsageError(f"panel seed {outside} is one that training could use: {held_out}")
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise UsageError(f"max_episode_steps must be at least 1, not {self.max_episode_steps}")
        object.__setattr__(self, "seeds", seeds)
        object.__setattr__(self, "env_kwargs", json.loads(canonical_json(dict(self.env_kwargs))))
        object.__setattr__(self, "perturbations", tuple(str(name) for name in self.perturbations))
        object.__setattr__(self, "success", parse_success(self.success))
        object.__setattr__(self, "aggregate", Aggregate.parse(self.aggregate).value)

    def __hash__(self) -> int:
        return hash(self.panel_id)

    @classmethod
    def default(
        cls,
        env_id: str,
        n: int = DEFAULT_PANEL_SIZE,
        *,
        panel_seed: int = 0,
        env_kwargs: ReadRecord | None = None,
        env_version: str = "",
        max_episode_steps: int | None = None,
        success: str | None = None,
        aggregate: str = Aggregate.MEAN_RETURN.value,
        deterministic: bool = True,
    ) -> Panel:
        """The panel of `n` episodes whose seeds are drawn from `panel_seed`."""
        if n < 1:
            raise UsageError(f"n of a panel must be at least 1, not {n}")
        seeds, steps = held_out_seeds(n, panel_seed), max_episode_steps
        return cls(env_id, seeds, env_kwargs or {}, env_version, (), steps, deterministic, success, aggregate)

    def as_dict(self) -> Record:
        """The panel as plain JSON values."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        lists = {name: list(values[name]) for name in ("seeds", "perturbations")}
        return values | lists | {"env_kwargs": dict(self.env_kwargs)}

    def to_json(self) -> str:
        """The canonical JSON that `panel_id` is the hash of."""
        return canonical_json(self.as_dict())

    @classmethod
    def from_json(cls, text: str) -> Panel:
        """The panel written by `to_json`."""
        try:
            values = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise UsageError(f"a panel must be JSON as written by Panel.to_json: {error}") from None
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: object) -> Panel:
        """The panel whose `as_dict` is `values`."""
        if not isinstance(values, dict):
            raise UsageError("a panel must be a JSON object")
        unknown = set(values) - set(cls.__dataclass_fields__)
        if unknown:
            raise UsageError(f"a panel has no field {sorted(unknown)[0]!r}")
        missing = {"env_id", "seeds"} - set(values)
        if missing:
            raise UsageError(f"a panel needs the field {sorted(missing)[0]!r}")
        return cls(**values)

    @functools.cached_property
    def panel_id(self) -> str:
        """SHA-256 of the canonical JSON, hexadecimal."""
        return hashlib.sha256(self.to_json().encode("ascii")).hexdigest()

    @property
    def judges_by_numbers(self) -> bool:
        """Whether success follows from an episode's return or length."""
        return self.success is not None and self.success not in _SUCCESS_FLAGS

    def successes(
        self,
        returns: ArrayLike,
        lengths: ArrayLike,
        terminated: ArrayLike,
        truncated: ArrayLike,
        reported: ArrayLike | None = None,
    ) -> NDArray[np.bool_] | None:
        """Judge episodes by the panel's success definition.

        Args:
            returns: undiscounted return of each episode, (n,) float.
            lengths: steps of each episode, (n,) int.
            terminated: whether each episode ended by itself, (n,) bool.
            truncated: whether each episode was cut off, (n,) bool.
            reported: the environment's own `info["is_success"]` at the end of each episode, (n,) bool.

        Returns:
            (n,) bool, or None if the panel defines no success.
        """
        if self.success is None:
            return None
        if self.success in ("terminated", "truncated"):
            return np.asarray(terminated if self.success == "terminated" else truncated, dtype=np.bool_)
        if self.success == "info:is_success":
            if reported is None:
                raise UsageError("success 'info:is_success' needs an environment that reports info['is_success']")
            return np.asarray(reported, dtype=np.bool_)
        quantity, threshold = self.success.split(">=")
        values = np.asarray(returns if quantity == "return" else lengths, dtype=np.float64)
        return (values >= float(threshold)) & (values < np.inf)  # what is not finite is no success
