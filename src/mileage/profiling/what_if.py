"""Measured answers to "what if": the same work with other threads, minibatches, environments, on the other back end.

Each answer is the ratio of new to old seconds of single phases, for a configuration that learns from as many samples.
It is an estimate of the whole: only an experiment to the target says what a change is worth.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping

from mileage._cores import usable_cores
from mileage._errors import MileageError
from mileage.contracts import Learner
from mileage.description import Description, Variant
from mileage.kernels.machine.blas import single_threaded_blas
from mileage.profiling.limits import best
from mileage.profiling.spans import RawSpan, TraceClock
from mileage.training.agent import Agent

_SECONDS = 0.15
_COLLECTING = ("inference", "env_step", "rollout")
# Iterations before a new learner learns, and seconds: one that has not by then is not waited for.
_MOST_BEFORE_LEARNING, _MOST_SECONDS = 20_000, 10.0


@dataclasses.dataclass(frozen=True)
class WhatIf:
    """One change, and what it did to the phases it touches."""

    fix: str
    suggestion: str
    """The flag or setting."""
    ratios: Mapping[str, float]
    """Seconds of a phase after the change over those before."""
    threads: int | None = None
    """The number of threads, if that is the change."""

    def gain(self, shares: Mapping[str, float]) -> float:
        """Share of the wall-clock saved if the phases take these shares of it now; below 0 if the change slows down."""
        return sum(shares.get(phase, 0.0) * (1.0 - ratio) for phase, ratio in self.ratios.items())

    def as_dict(self) -> dict[str, object]:
        """Plain data."""
        return {"fix": self.fix, "suggestion": self.suggestion, "ratios": dict(self.ratios)}


def what_ifs(
    agent: Agent, described: Description, scaling: Mapping[int, Mapping[str, float]], effort: float = 1.0
) -> list[WhatIf]:
    """All changes that can be measured on this agent; `effort` scales how long is measured."""
    seconds = effort * _SECONDS
    found = other_threads(agent.threads, scaling)
    for variant in described.variants:
        # A change that this configuration does not allow is no answer, and no error.
        with single_threaded_blas(), described.at_rest(), contextlib.suppress(MileageError):
            found.append(other_settings(variant, seconds))
    if described.has_native_twin:
        with single_threaded_blas(), contextlib.suppress(MileageError):
            found.append(native_backend(agent, 3 * seconds))
    return found


def other_threads(own: int, scaling: Mapping[int, Mapping[str, float]]) -> list[WhatIf]:
    """Another number of threads than `own`, up to the number of cores."""
    found = []
    for count, seconds in scaling.items():
        if own in scaling and count != own and count <= usable_cores():
            ratios = {phase: seconds[phase] / before for phase, before in scaling[own].items()}
            found.append(WhatIf("threads", f"--threads {count}", ratios, count))
    return found


def other_settings(variant: Variant, seconds: float) -> WhatIf:
    """The settings that a learner offers to be timed with."""
    with variant.other() as other:
        taken = best({"own": variant.own, "other": other}, seconds=seconds)
    ratio = variant.entries * taken["other"] / taken["own"]
    words = " ".join(f"--set {name}={value}" for name, value in variant.settings.items())
    return WhatIf(variant.fix, words, {variant.phase: ratio})


def native_backend(agent: Agent, seconds: float) -> WhatIf:
    """The same algorithm and environment without torch."""
    config = dataclasses.asdict(agent.config)
    native = type(agent)(agent.spec, seed=agent.seed, preset="none", threads=agent.threads, backend="native", **config)
    with native:
        native.prepare()
        own, other = _iteration_phases(agent.learner, seconds), _iteration_phases(native.learner, seconds)
    before, after = (sum(each.get(phase, 0.0) for phase in _COLLECTING) for each in (own, other))
    ratios = {phase: after / before for phase in _COLLECTING if phase in own and before}
    if own.get("learn") and other.get("learn"):
        ratios["learn"] = other["learn"] / own["learn"]
    return WhatIf("backend_native", "--backend native", ratios)


def _iteration_phases(learner: Learner, seconds: float) -> dict[str, float]:
    """Shortest seconds per iteration of every phase, once the learner learns."""
    most = time.perf_counter() + _MOST_SECONDS
    for _ in range(_MOST_BEFORE_LEARNING):
        if "learn" in _one_iteration(learner) or time.perf_counter() > most:
            break
    shortest: dict[str, float] = {}
    end = time.perf_counter() + seconds
    for turn in range(100):
        if turn >= 3 and time.perf_counter() > end:
            break
        for name, value in _one_iteration(learner).items():
            shortest[name] = min(value, shortest.get(name, value))
    return shortest


def _one_iteration(learner: Learner) -> dict[str, float]:
    """Seconds of every phase of the learner's next iteration."""
    spans: list[RawSpan] = []
    learner.iterate(TraceClock(spans), 0.5)
    sums: dict[str, float] = {}
    for name, _, start, end, *_ in spans:
        sums[name] = sums.get(name, 0.0) + (end - start) / 1e9
    return sums
