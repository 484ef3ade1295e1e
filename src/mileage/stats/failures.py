"""How often runs fail: the second question that a comparison of costs asks. Exact, by counting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import comb

from mileage.stats.cost import RunCosts
from mileage.stats.intervals import DEFAULT_LEVEL, Estimate, Interval

_BISECTIONS = 60


class Reliability(StrEnum):
    """Which arm fails less often."""

    A = "A fails less often"
    B = "B fails less often"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class FailureComparison:
    """How often the runs of two arms fail."""

    verdict: Reliability
    a: Estimate
    b: Estimate
    p_value: float
    """Of Fisher's exact test, two-sided by doubling."""

    @property
    def statement(self) -> str:
        """One sentence."""
        return f"{self.verdict}: A {_spelled(self.a)}, B {_spelled(self.b)}"


def failure_rate(runs: RunCosts, level: float = DEFAULT_LEVEL) -> Estimate:
    """Share of the runs that did not reach the target, with the exact interval of Clopper and Pearson (1934)."""
    n, failed = len(runs), len(runs) - runs.successes
    tail = (1 - level) / 2
    low = 0.0 if failed == 0 else _crossing(lambda p: 1 - _at_most(failed - 1, n, p) - tail)
    high = 1.0 if failed == n else _crossing(lambda p: tail - _at_most(failed, n, p))
    return Estimate(failed / n, Interval(low, high, level), "", n)


def compare_failures(a: RunCosts, b: RunCosts, alpha: float) -> FailureComparison:
    """Fisher's exact test of whether the runs of one arm fail more often than those of the other."""
    value = fisher(a.successes, len(a), b.successes, len(b))
    verdict = Reliability.UNDECIDED
    if value <= alpha:
        verdict = Reliability.A if a.successes * len(b) > b.successes * len(a) else Reliability.B
    return FailureComparison(verdict, failure_rate(a), failure_rate(b), value)


def fisher(successes_a: int, n_a: int, successes_b: int, n_b: int) -> float:
    """Two-sided p-value, twice the smaller tail, of equal success rates given the number of all successes."""
    total, whole = successes_a + successes_b, comb(n_a + n_b, successes_a + successes_b)
    weights = {k: comb(n_a, k) * comb(n_b, total - k) for k in range(max(0, total - n_b), min(n_a, total) + 1)}
    below = sum(weight for k, weight in weights.items() if k <= successes_a)
    above = sum(weight for k, weight in weights.items() if k >= successes_a)
    return min(1.0, 2 * min(below, above) / whole)


def _at_most(k: int, n: int, p: float) -> float:
    """Probability of at most `k` failures in `n` runs."""
    return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


def _crossing(rising: Callable[[float], float]) -> float:
    """Where a function that rises over 0 to 1 crosses 0."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


def _spelled(rate: Estimate) -> str:
    assert rate.value is not None
    assert rate.interval is not None
    failed = round(rate.value * rate.runs)
    return f"failed in {failed} of {rate.runs} runs ({100 * rate.interval.low:.0f} to {100 * rate.interval.high:.0f} %)"
