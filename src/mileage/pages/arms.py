"""Runs in the sets that a page shows: a recipe is everything but the seed, an exam is what may share a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from mileage._errors import UsageError
from mileage.ledger.listing import RECIPE
from mileage.ledger.matching import CONTRACT
from mileage.ledger.runs import RecordedRun
from mileage.ledger.targets import Target
from mileage.report.sides import run_costs
from mileage.stats import Estimate, ExpectedCost, expected_cost, iqm_estimate
from mileage.text import plain

_EXAM = tuple(name for name in CONTRACT if name != "machine")


@dataclass(frozen=True)
class Arm:
    """Runs that differ in nothing but their seed, in launch order."""

    label: str
    runs: tuple[RecordedRun, ...]

    @property
    def first(self) -> RecordedRun:
        """Of which everything but the seed holds for all."""
        return self.runs[0]

    @cached_property
    def ended(self) -> tuple[RecordedRun, ...]:
        """Those that count: ended, and not said to be void."""
        return tuple(run for run in self.runs if run.end is not None and not run.voided)

    @property
    def reached(self) -> int:
        """How many reached the target."""
        return sum(run.reached for run in self.ended)

    @property
    def failed(self) -> int:
        """How many ended without reaching it."""
        return len(self.ended) - self.reached

    @property
    def running(self) -> int:
        """How many go on."""
        return sum(run.end is None for run in self.runs)

    @property
    def voided(self) -> int:
        """How many do not count."""
        return sum(run.voided for run in self.runs)

    @property
    def priced(self) -> bool:
        """Whether every run has a price."""
        return all(run.priced for run in self.runs)

    @property
    def seeds(self) -> str:
        """How many seeds there are and what became of them, in words."""
        n = len(self.runs)
        said = [f"{n} seed{'' if n == 1 else 's'}"]
        if self.first.target is not None:
            said += [f"{self.reached} reached", f"{self.failed} failed"]
        said += [f"{count} {what}" for count, what in ((self.running, "running"), (self.voided, "void")) if count]
        return ", ".join(said)

    def expected(self, unit: str) -> ExpectedCost | None:
        """Expected cost to target in `unit`, failed runs counted; None without a target or an end."""
        if self.first.target is None or not self.ended:
            return None
        return expected_cost(run_costs(self.ended, unit))

    @cached_property
    def iqm_return(self) -> Estimate | None:
        """Interquartile mean of the runs' held-out returns."""
        found = [value for run in self.ended if (value := run.metric("mean_return")) is not None]
        return iqm_estimate(found) if found else None


@dataclass(frozen=True)
class Exam:
    """Arms that may share a picture: they agree in everything that the matching contract names but the machine."""

    arms: tuple[Arm, ...]

    @property
    def first(self) -> RecordedRun:
        """A run of which the exam holds for all."""
        return self.arms[0].first

    @property
    def runs(self) -> tuple[RecordedRun, ...]:
        """All runs."""
        return tuple(run for arm in self.arms for run in arm.runs)

    @property
    def unit(self) -> str:
        """What costs are counted in: dollars where every run has a price, seconds otherwise."""
        return "USD" if all(arm.priced for arm in self.arms) else "s"

    @property
    def title(self) -> str:
        """Environment and target."""
        target = self.first.target
        return plain(self.first.env or self.first.run.name, 80) + (f", target {plain(target, 80)}" if target else "")

    @property
    def target(self) -> Target | None:
        """What is to be reached; None where nothing is, or what an import says cannot be read."""
        try:
            return None if self.first.target is None else Target.parse(self.first.target)
        except UsageError:
            return None

    @property
    def threshold(self) -> float | None:
        """What the target asks for, as a number."""
        return None if self.target is None else self.target.threshold

    @property
    def measure(self) -> str:
        """What the learning curve shows: the number that the target looks at, otherwise the mean return."""
        if self.target is None:
            return "mean return, held out"
        return f"{str(self.target.aggregate).replace('_', ' ')}, held out"


def exams(runs: Iterable[RecordedRun]) -> list[Exam]:
    """Runs as exams of arms, in the order in which they come."""
    found: dict[tuple[object, ...], dict[tuple[object, ...], list[RecordedRun]]] = {}
    for run in runs:
        exam = (*(CONTRACT[name](run.run) for name in _EXAM), None if run.panel_id else run.env)
        recipe = tuple(getattr(run.run, name) for name in RECIPE)
        found.setdefault(exam, {}).setdefault(recipe, []).append(run)
    return [Exam(tuple(_labelled(list(arms.values())))) for arms in found.values()]


def _labelled(sets: Sequence[Sequence[RecordedRun]]) -> list[Arm]:
    """Arms with names that tell them apart: where two share one, what else differs is added."""
    names = [plain(runs[0].run.name or runs[0].algorithm or "run", 60) for runs in sets]
    arms = []
    for index, (name, runs) in enumerate(zip(names, sets, strict=True)):
        if names.count(name) > 1:
            alike = [runs_[0] for each, runs_ in zip(names, sets, strict=True) if each == name]
            name = f"{name} ({_difference(runs[0], alike) or index + 1})"
        arms.append(Arm(name, tuple(runs)))
    return arms


def _difference(run: RecordedRun, alike: Sequence[RecordedRun]) -> str:
    for field in ("algorithm", "framework", "env_id"):
        if len({getattr(each.run, field) for each in alike}) > 1:
            return plain(str(getattr(run.run, field)), 40)
    keys = [key for key in run.config if len({str(each.config.get(key)) for each in alike}) > 1]
    return ", ".join(f"{plain(key, 20)} {plain(str(run.config[key]), 20)}" for key in keys[:2])
