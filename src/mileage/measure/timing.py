"""Timing several ways to do one job against each other: arms whose subject is a function.

Arms take turns, each round starting with the next of them. A sample repeats a short job until the clock is precise
enough, and its seconds are per job.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mileage.errors import UsageError
from mileage.measure.caveats import Cause, Caveat, instabilities
from mileage.measure.experiment import Arm, Budget, Executor, Sample, Turn, arms_by_name, run, schedule
from mileage.records import Record

# A sample repeats its arm until it takes at least this long: the clock and the loop then cost below 0.1 %.
MIN_SAMPLE_SECONDS = 0.005
MAX_REPEATS = 10_000
# Interquartile range over median above which a result is called noisy.
NOISY_SPREAD = 0.25
FEWEST_ROUNDS = 5


def _nothing() -> None:
    """What is called where another process does the job and times it."""


@dataclass(frozen=True)
class Work:
    """A function that does a job, and how it is called."""

    run: Callable[[], object] = _nothing
    """What to time."""
    prepare: Callable[[], object] | None = None
    """What to do (untimed) before each sample."""
    units: int = 1
    """How many times one call does the job; times are per job."""
    timer: Callable[[int], tuple[float, float]] | None = None
    """Times itself, for so many repeats: wall-clock and CPU seconds per job. For what lives in another process."""


class ClockExecutor:
    """Times with the process's clocks, garbage collection switched off."""

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.perf_counter()

    def prepare(self, arm: Arm[Work], kind: str) -> None:
        """Nothing: work is prepared before every sample."""

    def attempt(self, arm: Arm[Work], turn: Turn) -> Sample:
        """Time the repeats of a turn, as seconds per job."""
        work, repeats = arm.subject, turn.repeats
        if work.timer is not None:
            return Sample(arm.name, *work.timer(repeats))
        if work.prepare is not None:
            work.prepare()
        run = work.run
        collecting = gc.isenabled()
        gc.disable()
        try:
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(repeats):
                run()
            jobs = repeats * work.units
            return Sample(arm.name, (time.perf_counter() - wall) / jobs, (time.process_time() - cpu) / jobs)
        finally:
            if collecting:
                gc.enable()


@dataclass(frozen=True)
class Measurement:
    """All samples of one arm."""

    arm: str
    repeats: int
    warmups: tuple[Sample, ...]
    samples: tuple[Sample, ...]

    @property
    def seconds(self) -> list[float]:
        """Wall-clock seconds per job of every sample."""
        return [sample.wall_seconds for sample in self.samples]

    @property
    def median(self) -> float:
        """Median wall-clock seconds per job."""
        return statistics.median(self.seconds)

    @property
    def median_cpu(self) -> float:
        """Median CPU seconds per job."""
        return statistics.median(sample.cpu_seconds for sample in self.samples)

    @property
    def best(self) -> float:
        """Shortest wall-clock seconds per job."""
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """Interquartile range over median."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median

    @property
    def cautions(self) -> tuple[Cause, ...]:
        """What the number of samples and their quartiles say against them."""
        found = []
        if len(self.samples) < FEWEST_ROUNDS:
            found.append(Cause.FEW_ROUNDS)
        if self.spread > NOISY_SPREAD:
            found.append(Cause.NOISY)
        return tuple(found)

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """What to keep in mind about this measurement."""
        cautions = tuple(Caveat(cause, cause.sentence, self.arm) for cause in self.cautions)
        return instabilities(self.seconds, self.arm) + cautions

    def record(self) -> Record:
        """Everything as plain data, raw samples included."""
        return {
            "arm": self.arm,
            "repeats": self.repeats,
            "warmups": _plain(self.warmups),
            "samples": _plain(self.samples),
            "median": self.median,
            "median_cpu": self.median_cpu,
            "best": self.best,
            "spread": self.spread,
            "cautions": [cause.name for cause in self.cautions],
        }


def _plain(samples: Sequence[Sample]) -> tuple[dict[str, float], ...]:
    return tuple({"wall": sample.wall_seconds, "cpu": sample.cpu_seconds} for sample in samples)


@dataclass(frozen=True)
class TimingComparison:
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
        return ratio_of(_plain(self[slower].samples), _plain(self[faster].samples))

    def record(self) -> Record:
        """Everything as plain data, raw samples included."""
        return {"job": self.job, "arms": [measurement.record() for measurement in self.measurements]}


def ratio_of(slower: Sequence[Mapping[str, float]], faster: Sequence[Mapping[str, float]]) -> float:
    """How many times as long the `slower` samples are, each with the key "wall": the median over rounds."""
    return statistics.median(a["wall"] / b["wall"] for a, b in zip(slower, faster, strict=True))


def compare(
    job: str,
    arms: Sequence[Arm[Work]],
    *,
    rounds: int = 15,
    warmups: int = 2,
    budget: float | None = None,
    executor: Executor[Work, Sample] | None = None,
) -> TimingComparison:
    """Time `arms` in alternation, `rounds` samples each.

    With a `budget` in seconds there are fewer rounds, though never fewer than five, if the arms are slow.
    """
    names = list(arms_by_name(arms))
    if rounds < 1 or warmups < 1:
        raise UsageError(f"rounds and warmups must be at least 1, not {rounds} and {warmups}")
    executor = executor or ClockExecutor()
    first = {arm.name: tuple(executor.attempt(arm, Turn(arm.name)) for _ in range(warmups)) for arm in arms}
    repeats = {arm.name: _repeats(first[arm.name], arm.subject.units) for arm in arms}
    turns = [replace(turn, repeats=repeats[turn.arm]) for turn in schedule(names, rounds)]
    samples = run(arms, executor, turns, budget=Budget(budget, least_rounds=FEWEST_ROUNDS))
    return TimingComparison(
        job,
        tuple(
            Measurement(name, repeats[name], first[name], tuple(each for each in samples if each.arm == name))
            for name in names
        ),
    )


def _repeats(warmups: Sequence[Sample], units: int) -> int:
    """Calls per sample; judged by the last warm-up, as the first may compile."""
    seconds = max(warmups[-1].wall_seconds * units, 1e-9)
    return int(min(max(1.0, MIN_SAMPLE_SECONDS / seconds), MAX_REPEATS))


def every_call(
    arms: Mapping[str, Callable[[], object]],
    *,
    seconds: float,
    prepare: Callable[[str], object] | None = None,
    least_rounds: int = 5,
    most_rounds: int = 200,
) -> dict[str, list[float]]:
    """Seconds of every call of every arm, which take turns after one call that is not counted.

    Args:
        arms: functions by name.
        seconds: after which rounds end, for each arm.
        prepare: gets an arm's name, untimed, before every call.
        least_rounds: taken even if they take longer.
        most_rounds: taken at most.
    """

    def prepared(name: str) -> Callable[[], object] | None:
        return None if prepare is None else lambda: prepare(name)

    made = [Arm(name, Work(function, prepared(name))) for name, function in arms.items()]
    clock = ClockExecutor()
    for arm in made:  # compile, touch memory
        clock.attempt(arm, Turn(arm.name))
    budget = Budget(seconds * len(made), least_rounds=least_rounds)
    samples = run(made, clock, schedule(list(arms), most_rounds), budget=budget)
    return {name: [each.wall_seconds for each in samples if each.arm == name] for name in arms}
