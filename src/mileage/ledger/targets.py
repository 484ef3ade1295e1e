"""A target is an aggregate and a threshold; an evaluation is the episodes that are held against it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mileage.errors import UsageError
from mileage.ledger.panels import Aggregate, Panel

_TARGET = re.compile(r"\s*(?P<metric>[A-Za-z_]+)\s*(?:>=|≥)\s*(?P<threshold>\S+)\s*")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The episodes of one evaluation on a panel, one entry per panel seed.

    Attributes:
        seeds: reset seed of each episode, (n,) int64.
        returns: undiscounted return of each episode, (n,) float64.
        lengths: steps of each episode, (n,) int64.
        successes: whether each episode was a success, (n,) bool, or None where the panel defines no success.
    """

    seeds: NDArray[np.int64]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    successes: NDArray[np.bool_] | None = None

    @classmethod
    def of(
        cls, seeds: ArrayLike, returns: ArrayLike, lengths: ArrayLike, successes: ArrayLike | None = None
    ) -> Evaluation:
        """Check and copy the episodes; each argument is (n,)."""
        arrays = (_whole("seeds", seeds), np.array(returns, np.float64), _whole("lengths", lengths))
        judged = None if successes is None else np.array(successes, dtype=np.bool_)
        names = ("seeds", "returns", "lengths", "successes")
        n = arrays[0].shape[0] if arrays[0].ndim == 1 else -1
        for name, array in zip(names, (*arrays, judged), strict=True):
            if array is None:
                continue
            if array.shape != (n,) or n < 1:
                must = "one-dimensional, as long as seeds and not empty"
                raise UsageError(f"{name} of an evaluation must be {must}, not of shape {array.shape}")
            array.setflags(write=False)
        return cls(*arrays, judged)

    def __len__(self) -> int:
        return len(self.seeds)

    def __repr__(self) -> str:
        rate = "" if self.success_rate is None else f", success_rate={self.success_rate:.3g}"
        return f"Evaluation({len(self)} episodes, mean_return={self.mean_return:.6g}{rate})"

    @property
    def mean_return(self) -> float:
        """Mean of the returns."""
        return float(np.mean(self.returns))

    @property
    def median_return(self) -> float:
        """Median of the returns."""
        return float(np.median(self.returns))

    @property
    def iqm_return(self) -> float:
        """Mean of the returns after cutting the lowest and the highest quarter (rounded down) of them."""
        cut = len(self) // 4
        return float(np.mean(np.sort(self.returns)[cut : len(self) - cut]))

    @property
    def success_rate(self) -> float | None:
        """Share of successful episodes, or None where the panel defines no success."""
        return None if self.successes is None else float(np.mean(self.successes))

    def value(self, aggregate: Aggregate | str) -> float:
        """The number that `aggregate` makes of the episodes."""
        aggregate = Aggregate.parse(aggregate)
        if aggregate is Aggregate.SUCCESS_RATE:
            rate = self.success_rate
            if rate is None:
                raise UsageError("success_rate needs a panel with a success definition, such as success='return>=475'")
            return rate
        value: float = getattr(self, aggregate)
        return value


def _whole(name: str, values: ArrayLike) -> NDArray[np.int64]:
    """Whole numbers, (n,) int64."""
    given = np.asarray(values)
    whole = np.array(given, np.int64)
    if given.dtype.kind not in "iub" and not np.array_equal(whole, given):
        raise UsageError(f"{name} of an evaluation must be whole numbers")
    return whole


def examined(panel: Panel | None, evaluation: Evaluation) -> Evaluation:
    """The evaluation, judged by the panel: it must hold the panel's episodes in their order, and nothing else.

    Success by return or length is what the panel's rule says of the episodes: it may be left out, and must not
    contradict. How an episode ended is only known to who played it. Without a panel there is nothing to judge by.
    """
    if type(evaluation) is not Evaluation:  # what derives from it may say anything of its episodes
        raise UsageError(f"evaluation must be a mileage.ledger.Evaluation, not {type(evaluation).__name__}")
    if panel is None:
        return evaluation
    n = len(panel.seeds)
    if len(evaluation) != n:
        raise UsageError(
            f"evaluation must hold the {n} episodes of its panel, not {len(evaluation)}: play every panel seed once"
        )
    other = np.flatnonzero(evaluation.seeds != np.array(panel.seeds, np.int64))
    if len(other):
        i = int(other[0])
        raise UsageError(
            f"evaluation must hold the episodes of its panel in their order: episode {i} has seed "
            f"{evaluation.seeds[i]}, the panel's is {panel.seeds[i]}"
        )
    if evaluation.lengths.min() < 0:
        raise UsageError(f"lengths of the evaluation must not be negative, as {evaluation.lengths.min()}")
    unplayed = np.flatnonzero((evaluation.lengths == 0) & np.isfinite(evaluation.returns) & (evaluation.returns != 0.0))
    if len(unplayed):
        i = int(unplayed[0])
        raise UsageError(f"episode {i} of the evaluation has length 0 and return {evaluation.returns[i]:g}: play it")
    longest = panel.max_episode_steps
    if longest is not None and evaluation.lengths.max() > longest:
        raise UsageError(f"lengths of the evaluation go up to {evaluation.lengths.max()}, its panel stops at {longest}")
    if panel.success is None:
        if evaluation.successes is not None:
            raise UsageError("successes of the evaluation must be left out, because its panel defines no success")
        return evaluation
    if not panel.judges_by_numbers:
        if evaluation.successes is None:
            raise UsageError(f"successes of the evaluation are missing: its panel asks for success {panel.success!r}")
        return evaluation
    ended = np.zeros(n, np.bool_)
    judged = panel.successes(evaluation.returns, evaluation.lengths, ended, ended)
    assert judged is not None
    if evaluation.successes is None:
        return Evaluation.of(evaluation.seeds, evaluation.returns, evaluation.lengths, judged)
    wrong = np.flatnonzero(judged != evaluation.successes)
    if len(wrong):
        i = int(wrong[0])
        raise UsageError(
            f"successes of the evaluation contradict its panel's {panel.success!r}: episode {i} with return "
            f"{evaluation.returns[i]:g} and length {evaluation.lengths[i]} is marked {bool(evaluation.successes[i])}"
        )
    return evaluation


@dataclass(frozen=True)
class Target:
    """What a run has to reach on its panel: `aggregate >= threshold`."""

    aggregate: Aggregate
    """The number that is compared."""
    threshold: float
    """The least value that meets the target."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "aggregate", Aggregate.parse(self.aggregate))
        object.__setattr__(self, "threshold", float(self.threshold))
        if not math.isfinite(self.threshold):
            raise UsageError(f"the threshold of a target must be a finite number, not {self.threshold}")
        if self.aggregate is Aggregate.SUCCESS_RATE and not 0.0 <= self.threshold <= 1.0:
            raise UsageError(f"success_rate is a share between 0 and 1, so the target cannot be {self.threshold}")

    @classmethod
    def parse(cls, text: str | Target) -> Target:
        """The target written as `mean_return>=475` or `success_rate >= 0.90`."""
        if isinstance(text, Target):
            return text
        if not isinstance(text, str):
            raise UsageError(f"target must be text such as 'mean_return>={text}', not {text!r}")
        match = _TARGET.fullmatch(text)
        metrics = ", ".join(Aggregate)
        if match is None:
            raise UsageError(f"target {text!r} cannot be read: write METRIC>=NUMBER with METRIC one of {metrics}")
        try:
            aggregate = Aggregate(match["metric"])
        except ValueError:
            raise UsageError(f"target {text!r} names an unknown metric: use one of {metrics}") from None
        try:
            threshold = float(match["threshold"])
        except ValueError:
            raise UsageError(f"target {text!r} has no number after >=: write for example {aggregate}>=475") from None
        return cls(aggregate, threshold)

    def value(self, evaluation: Evaluation) -> float:
        """The number of `evaluation` that the target looks at."""
        return evaluation.value(self.aggregate)

    def met(self, evaluation: Evaluation) -> bool:
        """Whether `evaluation` reaches the target; what is not finite never does."""
        return self.threshold <= self.value(evaluation) < math.inf

    def __str__(self) -> str:
        return f"{self.aggregate}>={self.threshold!r}"
