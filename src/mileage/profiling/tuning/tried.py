"""What a search for cheaper settings found, and the call that makes one.

How it searches is in `search`, what a run is in `runs`, how setups are judged in `candidates`, what is said about it in
`report`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mileage.errors import UsageError
from mileage.measure import Executor
from mileage.profiling.model import Finding
from mileage.profiling.tuning.arms import ArmComparison, Candidate
from mileage.profiling.tuning.changes import FIXES, Fix, FixEvidence
from mileage.profiling.tuning.runs import Setup, Trial
from mileage.profiling.tuning.search import Search, SearchNote
from mileage.system import usable_cores

DEFAULT_BUDGET = 180.0


@dataclass(frozen=True)
class Tried:
    """What a search found. Immutable; holds every run."""

    target: str
    baseline: Candidate
    arms: tuple[Candidate, ...]
    """Each applicable fix alone, in the order in which they were tried."""
    combinations: tuple[Candidate, ...]
    without: tuple[Candidate, ...]
    """The best arm with one of its changes taken back."""
    best: Candidate | None
    """The arm that went into verification; None if nothing beat the baseline."""
    verification: ArmComparison | None
    """Of `best` against the baseline on fresh seeds; None if there was no time or nothing to verify."""
    verified: tuple[Trial, ...]
    """The runs of the verification, in the order in which they ran."""
    cut: tuple[Trial, ...]
    """Runs that the end of the budget cut short; they count for nothing."""
    evidence: FixEvidence
    budget_seconds: float
    spent_seconds: float
    price_usd_per_hour: float
    interrupted: bool

    @property
    def is_verified(self) -> bool:
        """Whether the best arm is cheaper than the baseline beyond doubt."""
        return self.verification is not None and self.verification.cheaper

    @property
    def runs(self) -> int:
        """How many runs there were."""
        arms = (self.baseline, *self.arms, *self.combinations, *self.without)
        return sum(len(arm.trials) for arm in arms) + len(self.verified) + len(self.cut)


def try_fixes(
    setup: Setup,
    target: str,
    executor: Executor[Setup, Trial],
    *,
    budget_seconds: float = DEFAULT_BUDGET,
    fixes: Iterable[Fix] = FIXES,
    findings: Iterable[Finding] = (),
    first_seed: int = 0,
    price_usd_per_hour: float = 0.0,
    cores: int | None = None,
    watch: Callable[[SearchNote], None] | None = None,
) -> Tried:
    """Search for the cheapest way to the target, and verify it.

    Args:
        setup: the baseline.
        target: what `executor` trains to.
        executor: trains.
        budget_seconds: for everything, verification included.
        fixes: the changes to try.
        findings: of the profiler; their estimates decide what is tried first.
        first_seed: seeds of the search start here, those of the verification 1,000 further on.
        price_usd_per_hour: for the report.
        cores: of this machine, unless given.
        watch: told of every run.
    """
    if not budget_seconds > 0:
        raise UsageError(f"the budget of a search must be above 0 seconds, not {budget_seconds}")
    cores = usable_cores() if cores is None else cores
    search = Search(setup, executor, budget_seconds, tuple(fixes), tuple(findings), first_seed, cores, watch)
    interrupted = search.run()
    return Tried(
        target, search.baseline, tuple(search.alone), tuple(search.combined), tuple(search.without), search.best,
        search.verification, tuple(search.verified), tuple(search.cut), search.evidence, budget_seconds,
        spent_seconds=executor.now() - search.start, price_usd_per_hour=price_usd_per_hour, interrupted=interrupted,
    )  # fmt: skip
