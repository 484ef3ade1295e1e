"""Timing several ways to do one job against each other.

Arms take turns within every round, each round starting with the next arm, so that a machine that speeds up or slows
down does so for all of them. Every raw sample is kept, warm-ups apart. Timing goes through an executor, so that all of
this can be tested without a clock.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from mileage._errors import UsageError

if TYPE_CHECKING:
    from mileage.stats import Finding

# A sample repeats its arm until it takes at least this long: the clock and the loop then cost below 0.1 %.
MIN_SAMPLE_SECONDS = 0.005
MAX_REPEATS = 10_000
# Interquartile range over median above which a result is called noisy.
NOISY_SPREAD = 0.25
FEWEST_ROUNDS = 5


def _nothing() -> None:
    """What an arm runs that another process times."""


@dataclass(frozen=True)
class Arm:
    """One way to do the job."""

    name: str
    run: Callable[[], object] = _nothing
    """What to time."""
    prepare: Callable[[], object] | None = None
    """What to do (untimed) before each sample."""
    units: int = 1
    """How many times one call does the job; times are per job."""
    timer: Callable[[int], Sample] | None = None
    """Times itself: an arm that lives in another process."""


@dataclass(frozen=True)
class Sample:
    """Seconds per job, averaged over the repeats of one sample: wall-clock, and CPU time of all threads."""

    wall: float
    cpu: float


class Executor(Protocol):
    """Runs an arm a number of times and says how long that took."""

    def sample(self, arm: Arm, repeats: int) -> Sample:
        """Time `repeats` calls of `arm`, as seconds per job."""
        ...


class ClockExecutor:
    """Times with the process's clocks, garbage collection switched off."""

    def sample(self, arm: Arm, repeats: int) -> Sample:
        """Time `repeats` calls of `arm`, as seconds per job."""
        if arm.timer is not None:
            return arm.timer(repeats)
        if arm.prepare is not None:
            arm.prepare()
        run = arm.run
        collecting = gc.isenabled()
        gc.disable()
        try:
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(repeats):
                run()
            jobs = repeats * arm.units
            return Sample((time.perf_counter() - wall) / jobs, (time.process_time() - cpu) / jobs)
        finally:
            if collecting:
                gc.enable()


class MockExecutor:
    """Plays back given seconds per job, arm by arm, and keeps a log of who was timed."""

    def __init__(self, seconds: dict[str, Iterable[float]]) -> None:
        self._seconds = {name: iter(values) for name, values in seconds.items()}
        self.log: list[tuple[str, int]] = []

    def sample(self, arm: Arm, repeats: int) -> Sample:
        """Return the next scripted time of `arm`."""
        self.log.append((arm.name, repeats))
        wall = next(self._seconds[arm.name])
        return Sample(wall, wall)


class Caution(Enum):
    """Why a measurement should be read with care, with what to do about it."""

    NOISY = "samples vary by more than a quarter: run on a quieter machine, or with more rounds"
    FEW_ROUNDS = "fewer than five rounds: run with more"


@dataclass(frozen=True)
class Measurement:
    """All samples of one arm."""

    arm: str
    repeats: int
    warmups: tuple[Sample, ...]
    samples: tuple[Sample, ...]

    @property
    def median(self) -> float:
        """Median wall-clock seconds per job."""
        return statistics.median(sample.wall for sample in self.samples)

    @property
    def median_cpu(self) -> float:
        """Median CPU seconds per job."""
        return statistics.median(sample.cpu for sample in self.samples)

    @property
    def best(self) -> float:
        """Shortest wall-clock seconds per job."""
        return min(sample.wall for sample in self.samples)

    @property
    def spread(self) -> float:
        """Interquartile range over median."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles((sample.wall for sample in self.samples), n=4, method="inclusive")
        return (high - low) / self.median

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """What to keep in mind about this measurement."""
        found = []
        if len(self.samples) < FEWEST_ROUNDS:
            found.append(Caution.FEW_ROUNDS)
        if self.spread > NOISY_SPREAD:
            found.append(Caution.NOISY)
        return tuple(found)

    @property
    def instabilities(self) -> tuple[Finding, ...]:
        """What the order and scatter of the samples say against them: a slow start, outliers, drift, a wide spread."""
        from mileage.stats import instabilities

        return instabilities([sample.wall for sample in self.samples])

    def record(self) -> dict[str, Any]:
        """Everything as plain data, raw samples included."""
        summary = {"median": self.median, "median_cpu": self.median_cpu, "best": self.best, "spread": self.spread}
        return asdict(self) | summary | {"cautions": [caution.name for caution in self.cautions]}


@dataclass(frozen=True)
class Comparison:
    """Arms that did the same job in the same rounds."""

    job: str
    measurements: tuple[Measurement, ...]

    def __getitem__(self, arm: str) -> Measurement:
        for measurement in self.measurements:
            if measurement.arm == arm:
                return measurement
        raise UsageError(f"no arm {arm!r} in {self.job!r}: there are {[each.arm for each in self.measurements]}")

    def ratio(self, slower: str, faster: str) -> float:
        """How many times as long `slower` takes: the median over rounds of the ratio within each round."""
        first, second = self[slower].samples, self[faster].samples
        return ratio_of([{"wall": each.wall} for each in first], [{"wall": each.wall} for each in second])

    def record(self) -> dict[str, Any]:
        """Everything as plain data, raw samples included."""
        return {"job": self.job, "arms": [measurement.record() for measurement in self.measurements]}


def ratio_of(slower: Sequence[Mapping[str, float]], faster: Sequence[Mapping[str, float]]) -> float:
    """How many times as long the `slower` samples are, each with the key "wall": the median over rounds."""
    return statistics.median(a["wall"] / b["wall"] for a, b in zip(slower, faster, strict=True))


def compare(
    job: str,
    arms: Sequence[Arm],
    *,
    rounds: int = 15,
    warmups: int = 2,
    budget: float | None = None,
    executor: Executor | None = None,
) -> Comparison:
    """Time `arms` in alternation, `rounds` samples each.

    With a `budget` in seconds there are fewer rounds, though never fewer than five, if the arms are slow.
    """
    names = [arm.name for arm in arms]
    if len(set(names)) < len(names) or not names:
        raise UsageError(f"arms must have distinct names, and there must be one at least, not {names}")
    if rounds < 1 or warmups < 1:
        raise UsageError(f"rounds and warmups must be at least 1, not {rounds} and {warmups}")
    executor = executor or ClockExecutor()
    first = {arm.name: [executor.sample(arm, 1) for _ in range(warmups)] for arm in arms}
    repeats = {arm.name: _repeats(first[arm.name], arm.units) for arm in arms}
    if budget is not None:
        round_seconds = sum(first[arm.name][-1].wall * arm.units * repeats[arm.name] for arm in arms)
        rounds = min(rounds, max(FEWEST_ROUNDS, int(budget / max(round_seconds, 1e-9))))
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for turn in range(rounds):
        start = turn % len(arms)
        for arm in (*arms[start:], *arms[:start]):
            samples[arm.name].append(executor.sample(arm, repeats[arm.name]))
    return Comparison(
        job, tuple(Measurement(name, repeats[name], tuple(first[name]), tuple(samples[name])) for name in names)
    )


def _repeats(warmups: Sequence[Sample], units: int) -> int:
    """Calls per sample; judged by the last warm-up, as the first may compile."""
    seconds = max(warmups[-1].wall * units, 1e-9)
    return int(min(max(1.0, MIN_SAMPLE_SECONDS / seconds), MAX_REPEATS))
