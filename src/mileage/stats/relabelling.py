"""Whether two arms differ in expected cost to target: the third question that a comparison of costs asks.

If both arms are alike, which runs are called A and which B is chance: the gap between the arms is held against the gaps
that all other ways to name them give (Fisher, 1935; Pitman, 1937). That is exact whatever the distribution of costs and
however often runs fail, and no declared budget enters. The interval of the ratio holds every factor by which A's costs
may be divided so that the arms cannot be told apart.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from mileage._types import F64
from mileage.stats.cost import NO_UPPER_BOUND, RunCosts
from mileage.stats.intervals import Interval

MOST_LABELLINGS = 20_000
"""Up to this many, all labellings are looked at; of more, so many are drawn."""
# Ties in exact arithmetic are ties here too.
_TIE = 1e-9
_BISECTIONS = 40


def labellings(n_a: int, n_b: int, most: int = MOST_LABELLINGS, seed: int = 0) -> F64:
    """Ways to call `n_a` of all runs A, the real one first: (labellings, n_a + n_b) float64, 1 where a run is A."""
    n = n_a + n_b
    if math.comb(n, n_a) <= most:
        chosen = np.array(list(itertools.combinations(range(n), n_a)))
    else:
        order = np.random.default_rng(seed).random((most, n)).argsort(axis=1)
        chosen = np.concatenate([np.arange(n_a)[None], order[:, :n_a]])
    marks = np.zeros((len(chosen), n))
    np.put_along_axis(marks, chosen, 1.0, axis=1)
    return marks


def tails(gaps: F64) -> tuple[F64, F64]:
    """Shares of labellings whose gap is as low as the real one, and as high: (..., labellings) float64 → (...)."""
    real = gaps[..., :1]
    return (gaps <= real + _TIE).mean(axis=-1), (gaps >= real - _TIE).mean(axis=-1)


def gap(cost_a: F64, cost_b: F64, reached_a: F64, reached_b: F64) -> F64:
    """Log ratio of expected costs, from what runs called A and B cost together and how many reached the target.

    Infinite where one of them never does: of two sets of runs it is the dearer one, whatever it cost.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(cost_a / reached_a) - np.log(cost_b / reached_b)
    return np.where(reached_a == 0, np.inf, np.where(reached_b == 0, -np.inf, ratio))


@dataclass(frozen=True, slots=True)
class Relabelled:
    """Two arms under all labellings; what A's runs cost can be scaled without counting again."""

    from_a: F64
    """What runs of A that are called A cost together, (labellings,) float64."""
    from_b: F64
    reached: F64
    """How many that are called A reached the target."""
    all_a: float
    all_b: float
    all_reached: float

    @classmethod
    def of(cls, a: RunCosts, b: RunCosts, most: int = MOST_LABELLINGS, seed: int = 0) -> Self:
        """Count under all labellings, or under `most` of them."""
        marks = labellings(len(a), len(b), most, seed)
        reached = np.concatenate([a.reached, b.reached]).astype(np.float64)
        return cls(
            marks[:, : len(a)] @ a.costs, marks[:, len(a) :] @ b.costs, marks @ reached, a.spent, b.spent, reached.sum()
        )

    def gaps(self, divisor: float = 1.0) -> F64:
        """Log ratio of expected costs under each labelling, A's costs divided by `divisor`."""
        cost = self.from_a / divisor + self.from_b
        whole = self.all_a / divisor + self.all_b
        return gap(cost, np.maximum(whole - cost, 0.0), self.reached, self.all_reached - self.reached)

    def p_value(self, divisor: float = 1.0) -> float:
        """Two-sided, twice the smaller tail, of arms that are alike once A's costs are divided by `divisor`."""
        low, high = tails(self.gaps(divisor))
        return min(1.0, 2 * min(float(low), float(high)))

    def smallest_p_value(self) -> float:
        """What no outcome of so few runs could get below."""
        return min(1.0, 2.0 / len(self.reached))

    def interval(self, ratio: float, alpha: float) -> Interval:
        """The divisors, around the `ratio` that was seen, for which the arms cannot be told apart at `alpha`."""
        return Interval(self._end(ratio, alpha, -1.0), self._end(ratio, alpha, 1.0), 1.0 - alpha)

    def _end(self, ratio: float, alpha: float, direction: float) -> float:
        far = math.log(NO_UPPER_BOUND)
        if self.p_value(ratio * math.exp(direction * far)) > alpha:
            return 0.0 if direction < 0 else math.inf
        near = 0.0
        for _ in range(_BISECTIONS):
            middle = (near + far) / 2
            accepted = self.p_value(ratio * math.exp(direction * middle)) > alpha
            near, far = (middle, far) if accepted else (near, middle)
        return ratio * math.exp(direction * near)

    def spread(self) -> float:
        """Standard deviation of the gap among labellings under which both arms reach the target."""
        found = self.gaps()
        return float(found[np.isfinite(found)].std())
