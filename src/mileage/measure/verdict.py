"""Which of two panels of runs is cheaper, or how many more runs it would take to know; and what timings look like.

Three questions are answered apart: what a run costs that reaches the target, how often runs fail, and the expected cost
that joins them. Where no run failed the first is the verdict; where some did, the third; where an arm never reached the
target, the second. Which one it is depends on all runs together and not on who is called A, so it costs no error.

If both arms are alike, which runs are called A and which B is chance: the gap between the arms is held against the gaps
that all other ways to name them give (Fisher, 1935; Pitman, 1937). That is exact whatever the distribution of costs and
however often runs fail, and no declared budget enters. The interval of the ratio holds every factor by which A's costs
may be divided so that the arms cannot be told apart.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from mileage.errors import UsageError
from mileage.measure.cost import (
    DEFAULT_DRAWS,
    NO_UPPER_BOUND,
    FailureComparison,
    Reliability,
    RunCosts,
    compare_failures,
    fisher,
    typical_ratio,
)
from mileage.measure.intervals import FEWEST_RUNS, Estimate, Interval, samples, too_few
from mileage.types import F64, Bool

# --- Whether two arms differ in expected cost to target: the third question that a comparison of costs asks ---
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


# Runs per arm at which a sequential comparison may be looked at, and the two-sided error spent at each look
# (O'Brien and Fleming, 1979): together 5 % however early one stops.
LOOKS = (5, 10, 20, 30)
LOOK_ALPHAS = (0.00005, 0.0039, 0.0184, 0.0412)
DEFAULT_ALPHA = 0.05
# The tests spend all the error they are given. Asking for this share of it keeps the promise where costs are skewed and
# arms have unequal numbers of successes (docs/statistics.md).
ERROR_SHARE = 0.75
# Standard normal quantiles of 1 - 0.05 / 2 and 0.8, the certainty and the power of a comparison that is planned.
_POWER_QUANTILES = 1.95996 + 0.84162
MANY_RUNS = 1000


class Verdict(StrEnum):
    """How a comparison ends."""

    A_CHEAPER = "A cheaper"
    B_CHEAPER = "B cheaper"
    UNDECIDED = "undecided"


class Question(StrEnum):
    """What a verdict is about."""

    REACHED = "cost when reached"
    """What a run costs that reaches the target; the verdict where no run failed."""
    EXPECTED = "expected cost"
    """The same with failures paid for; the verdict where runs failed."""
    FAILURES = "failures"
    """How often runs fail; the verdict where an arm never reached the target."""
    NONE = "none"
    """There are too few runs, or no arm reached the target."""


def verdict_of_ratio(ratio: Estimate) -> Verdict:
    """What the interval of A's cost (seconds, dollars) over B's shows; undecided without one."""
    if ratio.interval is None or 1.0 in ratio.interval:
        return Verdict.UNDECIDED
    return Verdict.B_CHEAPER if ratio.interval.low > 1.0 else Verdict.A_CHEAPER


@dataclass(frozen=True, slots=True)
class CostAnswer:
    """A's cost over B's: its interval at the level of the comparison, and the verdict that this interval gives."""

    verdict: Verdict
    ratio: float
    interval: Interval
    confidence_a_cheaper: float
    """One minus the one-sided p-value of the opposite."""
    needed: float
    """Runs per arm that would decide a gap like this with 80 % power."""

    @property
    def statement(self) -> str:
        """One sentence."""
        return f"{self.verdict}: {self.gap}"

    @property
    def gap(self) -> str:
        """The ratio and its interval in words."""
        return f"A costs {self.ratio:.3g} times what B costs ({self.interval})"


@dataclass(frozen=True, slots=True)
class CostComparison:
    """Outcome of comparing what two panels cost until they reach the target.

    `verdict`, `ratio` and `interval` answer `question`; the interval is that of A's cost over B's at level 1 − alpha
    and always holds the ratio. `more_runs` is about how many more runs *per arm* a decision would take if the gap is
    as large as it looks, None where there is no telling.
    """

    verdict: Verdict
    ratio: float | None
    interval: Interval | None
    probability_a_cheaper: float | None
    """One minus the one-sided p-value of the opposite."""
    alpha: float
    runs_used: tuple[int, int]
    more_runs: int | None
    statement: str
    question: Question = Question.NONE
    reached: CostAnswer | None = None
    """The ratio of typical costs of runs that reached the target; None with fewer than 3 of them in an arm."""
    failures: FailureComparison | None = None
    expected: CostAnswer | None = None
    """The ratio of expected costs to target; None if an arm never reached it."""

    def __str__(self) -> str:
        return self.statement


def compare_costs(
    a: RunCosts, b: RunCosts, *, alpha: float = DEFAULT_ALPHA, draws: int = DEFAULT_DRAWS, seed: int = 0
) -> CostComparison:
    """Compare two panels once, with two-sided error `alpha`. Looking again later needs `compare_at_looks`.

    Args:
        a: the runs of one arm.
        b: those of the other.
        alpha: two-sided error.
        draws: labellings that are drawn where runs are too many to look at all of them.
        seed: of these draws.
    """
    if not 0.0 < alpha < 1.0:
        raise UsageError(f"alpha {alpha} cannot be used: give the two-sided error probability, such as 0.05")
    used = (len(a), len(b))
    fewest = min(used)
    if fewest < FEWEST_RUNS:
        return _undecided(alpha, used, FEWEST_RUNS - fewest, f"undecided: {too_few(fewest)} in each arm")
    failures = compare_failures(a, b, ERROR_SHARE * alpha)
    if a.successes == 0 and b.successes == 0:
        return _undecided(alpha, used, None, "undecided: neither A nor B reached the target", failures)
    if a.successes == 0 or b.successes == 0:
        return _one_never_reached(a, b, alpha, failures)
    reached, expected = _reached(a, b, alpha), _expected(a, b, alpha, draws, seed)
    headline = reached if reached is not None and _no_failure(a, b) else expected
    more = _more(headline.needed, used) if headline.verdict is Verdict.UNDECIDED else None
    return CostComparison(
        verdict=headline.verdict,
        ratio=headline.ratio,
        interval=headline.interval,
        probability_a_cheaper=headline.confidence_a_cheaper,
        alpha=alpha,
        runs_used=used,
        more_runs=more,
        statement=_sentence(headline, reached, failures) + _about(more),
        question=Question.REACHED if headline is reached else Question.EXPECTED,
        reached=reached,
        failures=failures,
        expected=expected,
    )


def compare_at_looks(a: RunCosts, b: RunCosts, *, draws: int = DEFAULT_DRAWS, seed: int = 0) -> CostComparison:
    """Compare two growing panels at the planned looks: 5 % error in all, however often this is called.

    The comparison uses the first 5, 10, 20 or 30 runs of each arm in launch order and stands until the next look; once
    a look has decided, later runs do not change the verdict.
    """
    n = min(len(a), len(b))
    if n < LOOKS[0]:
        text = f"undecided: the first planned look is at {LOOKS[0]} runs in each arm, {n} are there"
        return _undecided(LOOK_ALPHAS[0], (len(a), len(b)), LOOKS[0] - n, text)
    outcome: CostComparison | None = None
    for look, alpha in zip(LOOKS, LOOK_ALPHAS, strict=True):
        if look > n:
            break
        outcome = compare_costs(a.first(look), b.first(look), alpha=alpha, draws=draws, seed=seed)
        if outcome.verdict is not Verdict.UNDECIDED:
            break
    assert outcome is not None
    if outcome.more_runs is None:
        return outcome
    used = min(outcome.runs_used)
    at = next((look for look in LOOKS if look > n and look >= used + outcome.more_runs), used + outcome.more_runs)
    more = max(1, at - n)  # runs between two looks decide nothing
    statement = outcome.statement.removesuffix(_about(outcome.more_runs)) + _about(more)
    return replace(outcome, more_runs=more, statement=statement)


def _no_failure(a: RunCosts, b: RunCosts) -> bool:
    return bool(a.reached.all() and b.reached.all())


def _reached(a: RunCosts, b: RunCosts, alpha: float) -> CostAnswer | None:
    found = typical_ratio(a, b, ERROR_SHARE * alpha)
    if found is None:
        return None
    interval = Interval(found.interval.low, found.interval.high, 1.0 - alpha)
    verdict = verdict_of_ratio(Estimate(found.ratio, interval))
    return CostAnswer(verdict, found.ratio, interval, found.confidence_a_cheaper, found.needed)


def _expected(a: RunCosts, b: RunCosts, alpha: float, draws: int, seed: int) -> CostAnswer:
    relabelled = Relabelled.of(a, b, draws, seed)
    ratio = (a.spent / a.successes) / (b.spent / b.successes)
    strict = ERROR_SHARE * alpha
    ends = relabelled.interval(ratio, strict)
    p_value = relabelled.p_value()
    # Rounding aside, the interval holds 1 exactly if the arms as they are cannot be told apart.
    low, high = (min(ends.low, 1.0), max(ends.high, 1.0)) if p_value > strict else (ends.low, ends.high)
    interval = Interval(low, high, 1.0 - alpha)
    needed = math.inf if ratio == 1 else min(len(a), len(b)) * _ratio_needed(relabelled.spread(), ratio)
    if relabelled.smallest_p_value() > strict:
        needed = max(needed, min(len(a), len(b)) + 2.0)
    cheaper = p_value / 2 if ratio > 1 else 1 - p_value / 2
    return CostAnswer(verdict_of_ratio(Estimate(ratio, interval)), ratio, interval, cheaper, needed)


def _ratio_needed(spread: float, ratio: float) -> float:
    """How many times the runs decide a gap with 80 % power, where chance alone spreads it so far."""
    return (_POWER_QUANTILES * spread / math.log(ratio)) ** 2


def _one_never_reached(a: RunCosts, b: RunCosts, alpha: float, failures: FailureComparison) -> CostComparison:
    """An arm without a success can lose and never win; it loses if it had the money for one success of the other."""
    used = (len(a), len(b))
    name, never, other = ("A", a, b) if a.successes == 0 else ("B", b, a)
    decided = failures.verdict is not Reliability.UNDECIDED and never.spent >= other.spent / other.successes
    verdict = Verdict.UNDECIDED if not decided else Verdict.B_CHEAPER if never is a else Verdict.A_CHEAPER
    rival = "B" if never is a else "A"
    text = (
        f"{verdict}: {name} did not reach the target in {len(never)} runs, {rival} in {other.successes} of {len(other)}"
    )
    more = None if decided else _more(_runs_to_tell(other.successes / len(other), alpha), used)
    return CostComparison(
        verdict, None, None, None, alpha, used, more, text + _about(more), Question.FAILURES, None, failures
    )


def _runs_to_tell(rate: float, alpha: float) -> float:
    """Runs per arm at which an arm that always fails is told from one that succeeds at `rate`."""
    sizes = (n for n in range(FEWEST_RUNS, MANY_RUNS) if fisher(round(rate * n), n, 0, n) <= ERROR_SHARE * alpha)
    return next(sizes, MANY_RUNS)


def _sentence(headline: CostAnswer, reached: CostAnswer | None, failures: FailureComparison) -> str:
    counts = [round((rate.value or 0.0) * rate.runs) for rate in (failures.a, failures.b)]
    runs = (failures.a.runs, failures.b.runs)
    if headline is reached:
        highest = [0.0 if rate.interval is None else rate.interval.high for rate in (failures.a, failures.b)]
        bounds = " and ".join(f"{100 * high:.0f} %" for high in highest)
        none = f"none of {runs[0]} and {runs[1]} runs failed, so at most {bounds} do"
        return f"{headline.statement} when it reaches the target (geometric means); {none}"
    failed = f"{counts[0]} of {runs[0]} runs of A failed, {counts[1]} of {runs[1]} of B"
    typical = "" if reached is None else f"; when they reach the target, {reached.gap}"
    return f"{headline.statement} with failures paid for, as {failed}{typical}"


def _more(needed: float, used: tuple[int, int]) -> int:
    """Runs per arm to add."""
    n = min(used)
    return max(1, (MANY_RUNS if needed >= MANY_RUNS else math.ceil(needed)) - n)


def _about(more: int | None) -> str:
    if more is None:
        return ""
    if more >= MANY_RUNS // 2:
        return f"; more than {MANY_RUNS // 2} more runs per arm would be needed to tell them apart"
    return f"; about {more} more run{'' if more == 1 else 's'} per arm needed"


def _undecided(
    alpha: float, used: tuple[int, int], more: int | None, text: str, failures: FailureComparison | None = None
) -> CostComparison:
    return CostComparison(Verdict.UNDECIDED, None, None, None, alpha, used, more, text, failures=failures)


# --- What a series of timings looks like: outliers, a trend, a spread ---
# Iglewicz and Hoaglin (1993) call a modified z-score above 3.5 an outlier.
OUTLIER_SCORE = 3.5
# The MAD of a normal distribution times this is its standard deviation; the mean deviation stands in for a MAD of 0.
_MAD_TO_SD = 1.4826
_MEAN_DEVIATION_TO_SD = 1.2533
_FEWEST_FOR_TREND = 8
_FEWEST_FOR_OUTLIERS = 4


def modified_z_scores(values: ArrayLike) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """How many robust standard deviations each value, (n,) float64, lies from the median; 0 where all are equal."""
    array = samples(values)
    deviation = array - np.median(array)
    scale = _MAD_TO_SD * np.median(np.abs(deviation))
    if scale == 0:
        scale = _MEAN_DEVIATION_TO_SD * np.abs(deviation).mean()
    return np.zeros_like(deviation) if scale == 0 else np.asarray(deviation / scale)


def outliers(values: ArrayLike, threshold: float = OUTLIER_SCORE) -> Bool:
    """Which values, (n,) float64, are outliers, (n,) bool; none among fewer than four."""
    scores = modified_z_scores(values)
    if len(scores) < _FEWEST_FOR_OUTLIERS:
        return np.zeros(len(scores), np.bool_)
    return np.asarray(np.abs(scores) > threshold)


def trend(values: ArrayLike) -> tuple[float, float]:
    """Kendall's correlation of values, (n,) float64, with their order, and its p-value; (0, 1) of fewer than eight."""
    array = np.asarray(values, np.float64)
    if len(array) < _FEWEST_FOR_TREND or (array == array[0]).all():
        return 0.0, 1.0
    from scipy.stats import kendalltau  # takes most of a second to import

    found = kendalltau(np.arange(len(array)), array)
    return float(found.statistic), float(found.pvalue)


def spread(values: ArrayLike, of: float) -> float:
    """Standard deviation of values, (n,) float64, as a share of `of`; 0 of fewer than two."""
    array = np.asarray(values, np.float64)
    return float(array.std(ddof=1)) / of if len(array) > 1 and of > 0 else 0.0
