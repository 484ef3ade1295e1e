"""Which of two panels of runs is cheaper, or how many more runs it would take to know."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

import numpy as np

from mileage._errors import UsageError
from mileage._types import F64
from mileage.stats.cost import DEFAULT_DRAWS, RunCosts, posterior_draws
from mileage.stats.intervals import FEWEST_RUNS, Estimate, Interval, too_few

# Runs per arm at which a sequential comparison may be looked at, and the two-sided error spent at each look
# (O'Brien and Fleming, 1979): together 5 % however early one stops.
LOOKS = (5, 10, 20, 30)
LOOK_ALPHAS = (0.00005, 0.0039, 0.0184, 0.0412)
DEFAULT_ALPHA = 0.05
# Where arms differ in their failures rather than their times, a posterior probability errs up to 1.25 times as often as
# it says (successes are few whole numbers). Asking for this share of the error keeps the promise (docs/statistics.md).
_CALIBRATION = 0.7
# A tail probability is trusted if at least this many draws fall into it.
_TAIL_DRAWS = 20
_NORMAL = NormalDist()
_MOST_DRAWS = 1_600_000
MANY_RUNS = 1000


class Verdict(StrEnum):
    """How a comparison ends."""

    A_CHEAPER = "A cheaper"
    B_CHEAPER = "B cheaper"
    UNDECIDED = "undecided"


def verdict_of_ratio(ratio: Estimate) -> Verdict:
    """What the interval of A's cost (seconds, dollars) over B's shows; undecided without one."""
    if ratio.interval is None or 1.0 in ratio.interval:
        return Verdict.UNDECIDED
    return Verdict.B_CHEAPER if ratio.interval.low > 1.0 else Verdict.A_CHEAPER


@dataclass(frozen=True, slots=True)
class CostComparison:
    """Outcome of comparing the expected costs to target of two panels.

    `ratio` is A's expected cost over B's with its interval at level 1 − alpha; `more_runs` is about how many more runs
    *per arm* a decision would take if the gap is as large as it looks, None where there is no telling.
    """

    verdict: Verdict
    ratio: float | None
    interval: Interval | None
    probability_a_cheaper: float | None
    alpha: float
    runs_used: tuple[int, int]
    more_runs: int | None
    statement: str

    def __str__(self) -> str:
        return self.statement


def compare_costs(
    a: RunCosts, b: RunCosts, *, alpha: float = DEFAULT_ALPHA, draws: int = DEFAULT_DRAWS, seed: int = 0
) -> CostComparison:
    """Compare two panels once, with two-sided error `alpha`. Looking again later needs `compare_at_looks`."""
    if not 0.0 < alpha < 1.0:
        raise UsageError(f"alpha {alpha} cannot be used: give the two-sided error probability, such as 0.05")
    used = (len(a), len(b))
    fewest = min(used)
    if fewest < FEWEST_RUNS:
        return _undecided(alpha, used, FEWEST_RUNS - fewest, f"undecided: {too_few(fewest)} in each arm")
    if a.successes == 0 and b.successes == 0:
        return _undecided(alpha, used, None, "undecided: neither A nor B reached the target")
    rng = np.random.default_rng(seed)
    log_ratio = _log_ratio_draws(a, b, draws, rng)
    side = _smaller_tail(log_ratio)
    # Resolving a small alpha takes many draws; they are made only where the verdict hangs on them.
    if side < 4 * alpha + 10 / draws:
        enough = min(_MOST_DRAWS, math.ceil(2 * _TAIL_DRAWS / alpha))
        if enough > draws:
            log_ratio = np.concatenate([log_ratio, _log_ratio_draws(a, b, enough - draws, rng)])
    return _conclude(a, b, log_ratio, alpha, used)


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
    return outcome


def _log_ratio_draws(a: RunCosts, b: RunCosts, draws: int, rng: np.random.Generator) -> F64:
    with np.errstate(divide="ignore"):
        return np.log(posterior_draws(a, draws, rng)) - np.log(posterior_draws(b, draws, rng))


def _smaller_tail(log_ratio: F64) -> float:
    a_cheaper = float((log_ratio < 0).mean())
    return min(a_cheaper, 1 - a_cheaper)


def _conclude(a: RunCosts, b: RunCosts, log_ratio: F64, alpha: float, used: tuple[int, int]) -> CostComparison:
    a_cheaper = float((log_ratio < 0).mean())
    # Without a success an arm's draws are only a lower bound: it can lose, and never win.
    tail = _CALIBRATION * alpha / 2
    a_wins = a_cheaper > 1 - tail and a.successes > 0
    b_wins = a_cheaper < tail and b.successes > 0
    verdict = Verdict.A_CHEAPER if a_wins else Verdict.B_CHEAPER if b_wins else Verdict.UNDECIDED
    if a.successes == 0 or b.successes == 0:
        missing = "A" if a.successes == 0 else "B"
        text = f"{verdict}: {missing} did not reach the target in {used[0 if missing == 'A' else 1]} runs"
        more = None if verdict is not Verdict.UNDECIDED else _more_runs(log_ratio, used)
        return CostComparison(verdict, None, None, a_cheaper, alpha, used, more, text + _about(more))
    ratio = (a.spent / a.successes) / (b.spent / b.successes)
    low, high = np.exp(np.quantile(log_ratio, [tail, 1 - tail]))
    interval = Interval(float(low), float(high), 1 - alpha)
    more = _more_runs(log_ratio, used) if verdict is Verdict.UNDECIDED else None
    text = f"{verdict}: A costs {ratio:.3g} times what B costs ({interval})"
    return CostComparison(verdict, ratio, interval, a_cheaper, alpha, used, more, text + _about(more))


def _more_runs(log_ratio: F64, used: tuple[int, int]) -> int | None:
    """Runs per arm to add so that a gap as large as the one seen is decided with 80 % power: spread falls with √n."""
    low, middle, high = np.quantile(log_ratio, [0.16, 0.5, 0.84])
    if middle == 0 or not np.isfinite([low, middle, high]).all():
        return None
    # An early look asks for more certainty than a comparison as a whole: the whole is what the runs are needed for.
    power = _NORMAL.inv_cdf(1 - DEFAULT_ALPHA / 2) + _NORMAL.inv_cdf(0.8)
    needed = power * float(high - low) / 2 / abs(float(middle))
    n = min(used)
    return max(1, min(MANY_RUNS, math.ceil(n * needed**2)) - n)


def _about(more: int | None) -> str:
    if more is None:
        return ""
    if more >= MANY_RUNS // 2:
        return f"; more than {MANY_RUNS // 2} more runs per arm would be needed: treat them as equal"
    return f"; about {more} more run{'' if more == 1 else 's'} per arm needed"


def _undecided(alpha: float, used: tuple[int, int], more: int | None, text: str) -> CostComparison:
    return CostComparison(Verdict.UNDECIDED, None, None, None, alpha, used, more, text)
