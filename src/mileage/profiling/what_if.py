"""Measured answers to "what if": the same work with other threads, minibatches, environments, on the other back end.

Each answer is the ratio of new to old seconds of single phases with its interval, for a configuration that learns from
as many samples. It is an estimate of the whole: only an experiment to the target says what a change is worth.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from mileage.contracts import Learner
from mileage.description import ACT, UPDATE, Description, Task, Variant
from mileage.errors import MileageError
from mileage.kernels.machine.blas import single_threaded_blas
from mileage.measure.intervals import DEFAULT_LEVEL, median_estimate
from mileage.measure.timing import every_call
from mileage.profiling.probes import Allowance
from mileage.profiling.replays import Scaling
from mileage.profiling.traces import RawSpan, TraceClock
from mileage.system import usable_cores
from mileage.training.agent import Agent

_SECONDS = 0.15
_COLLECTING = ("inference", "env_step", "store", "rollout")
# A median of fewer rounds has no 95 % interval.
_LEAST_ROUNDS = 7
_LEAST_EFFORT = 0.2
# Networks this many times as wide as the default are worth a question.
_FAR_WIDER = 2
# Iterations before a new learner learns, and seconds: one that has not by then is not waited for.
_MOST_BEFORE_LEARNING, _MOST_SECONDS = 20_000, 10.0


@dataclasses.dataclass(frozen=True)
class WhatIf:
    """One change, and what it did to the phases it touches."""

    fix: str
    suggestion: str
    """The flag or setting."""
    ratios: Mapping[str, float]
    """Seconds of a phase after the change over those before: medians over rounds in which both took turns."""
    threads: int | None = None
    """The number of threads, if that is the change."""
    intervals: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    """95 % intervals of the ratios."""

    def gain(self, shares: Mapping[str, float]) -> float:
        """Share of the wall-clock saved if the phases take these shares of it now; below 0 if the change slows down."""
        return sum(shares.get(phase, 0.0) * (1.0 - ratio) for phase, ratio in self.ratios.items())

    def gain_interval(self, shares: Mapping[str, float]) -> tuple[float, float]:
        """95 % interval of the gain, at least; all or nothing where a phase was measured too few times."""
        ends = [self.intervals.get(phase, (0.0, math.inf)) for phase in self.ratios]
        of = [shares.get(phase, 0.0) for phase in self.ratios]
        low = sum(share * (1.0 - end[1]) if share else 0.0 for share, end in zip(of, ends, strict=True))
        return low, sum(share * (1.0 - end[0]) for share, end in zip(of, ends, strict=True))

    def as_dict(self) -> dict[str, object]:
        """Plain data; an interval that is open to one side ends in None."""
        ends = {phase: [low, high if math.isfinite(high) else None] for phase, (low, high) in self.intervals.items()}
        return {"fix": self.fix, "suggestion": self.suggestion, "ratios": dict(self.ratios), "intervals": ends}


def compared(own: Sequence[float], other: Sequence[float], factor: float = 1.0) -> tuple[float, tuple[float, float]]:
    """How many times as long `other` took, times `factor`, and a 95 % interval: the median over rounds.

    A neighbour that takes the core away in some rounds does so to both, or to few rounds: medians of ratios within
    rounds stand that. Rounds too few for an interval leave it open.
    """
    ratios = [factor * b / a for a, b in zip(own, other, strict=True) if a > 0.0]
    found = median_estimate(ratios)
    ends = found.interval
    open_ended = ends is None or ends.level < DEFAULT_LEVEL
    return found.value or 0.0, (0.0, math.inf) if ends is None or open_ended else (ends.low, ends.high)


def what_ifs(
    agent: Agent, described: Description, scaling: Scaling, allowance: Allowance, each: Mapping[str, float]
) -> list[WhatIf]:
    """All changes that can be measured on this agent within the allowance.

    `each` has the seconds per entry of every phase of its run, by which it is known beforehand what would not fit.
    """
    seconds = max(allowance.effort, _LEAST_EFFORT) * _SECONDS
    found = other_threads(agent.threads, scaling)

    def add(name: str, entries: float, make: Callable[[], WhatIf | None]) -> None:
        """Measure if there is time for as many rounds as it takes, of this many seconds each."""
        change = allowance.stage(name, max(2 * seconds, (_LEAST_ROUNDS + 1) * entries), make, None)
        found.extend([] if change is None else [change])

    if _usual_widths(agent) is not None:
        make: Maker = functools.partial(smaller_network, agent, described, seconds, each)
        add("a smaller network", sum(each.get(phase, 0.0) for phase in _actions(described)), _rested(described, make))
    for variant in described.variants:
        make = functools.partial(other_settings, variant, seconds)
        add(f"another {variant.fix}", 2 * each.get(variant.phase, 0.0), _rested(described, make))
    if described.has_native_twin:
        make = functools.partial(native_backend, agent, 3 * seconds)
        add("the native back end", 2 * sum(each.get(phase, 0.0) for phase in (*_COLLECTING, "learn")), _plain(make))
    return found


Maker = Callable[[], WhatIf | None]


def _plain(make: Maker) -> Maker:
    """The same; a change that this configuration does not allow is no answer, and no error."""

    def made() -> WhatIf | None:
        with single_threaded_blas(), contextlib.suppress(MileageError):
            return make()
        return None

    return made


def _rested(described: Description, make: Maker) -> Maker:
    """The same while the learner is at rest."""

    def made() -> WhatIf | None:
        with described.paused():
            return _plain(make)()

    return made


def other_threads(own: int, scaling: Scaling) -> list[WhatIf]:
    """Another number of threads than `own`, up to the number of cores."""
    found = []
    for count, rounds in scaling.items():
        if own in scaling and count != own and count <= usable_cores():
            pairs = {phase: compared(before, rounds[phase]) for phase, before in scaling[own].items()}
            found.append(_of("threads", f"--threads {count}", pairs, count))
    return found


def _of(
    fix: str, suggestion: str, pairs: Mapping[str, tuple[float, tuple[float, float]]], threads: int | None = None
) -> WhatIf:
    ratios = {phase: ratio for phase, (ratio, _) in pairs.items()}
    return WhatIf(fix, suggestion, ratios, threads, {phase: ends for phase, (_, ends) in pairs.items()})


def other_settings(variant: Variant, seconds: float) -> WhatIf:
    """The settings that a learner offers to be timed with."""
    with variant.other() as other:
        taken = every_call({"own": variant.own, "other": other}, seconds=seconds, least_rounds=_LEAST_ROUNDS)
    words = " ".join(f"--set {name}={value}" for name, value in variant.settings.items())
    return _of(variant.fix, words, {variant.phase: compared(taken["own"], taken["other"], variant.entries)})


def smaller_network(agent: Agent, described: Description, seconds: float, phases: Collection[str]) -> WhatIf | None:
    """Networks as wide as the algorithm's own default, where those of this run are far wider."""
    widths = _usual_widths(agent)
    learner = agent.learner
    if widths is None or not isinstance(learner.config, _WithLayers):
        return None
    config = dataclasses.replace(learner.config, hidden=widths)
    sibling = type(agent)(
        agent.spec, seed=agent.seed, preset="none", threads=agent.threads, backend=agent.backend,
        **dataclasses.asdict(config),
    )  # fmt: skip
    with sibling:
        smaller = type(learner)(config, learner.env, sibling.policy, learner.team, agent.seed)
        other = smaller.describe()
        if other is None:
            return None
        own_actions, other_actions = _actions(described), _actions(other)
        pairs = {}
        for phase in own_actions:
            if phase in other_actions and phase in phases:
                arms = {"own": own_actions[phase], "other": other_actions[phase]}
                taken = every_call(arms, seconds=seconds, least_rounds=_LEAST_ROUNDS)
                pairs[phase] = compared(taken["own"], taken["other"])
    words = ",".join(map(str, widths))
    return _of("hidden", f"--set hidden=[{words}]", pairs) if pairs else None


@runtime_checkable
class _WithLayers(Protocol):
    hidden: tuple[int, ...]


def _usual_widths(agent: Agent) -> tuple[int, ...] | None:
    """Widths of the algorithm's default network, if those of this run are far beyond it and are not a user's own."""
    usual, own = agent.algorithm.learner().Config(), agent.config
    if agent.policy_name != "mlp" or not isinstance(own, _WithLayers) or not isinstance(usual, _WithLayers):
        return None
    if not own.hidden or max(own.hidden) <= _FAR_WIDER * max(usual.hidden):
        return None
    return tuple(usual.hidden)


def _actions(described: Description) -> dict[str, Task]:
    """What the entries of phases do, by the phase's name."""
    found: dict[str, Task] = {phase: call.run for phase, call in described.calls.items()}
    if ACT in described.operations:
        found.setdefault("inference", described.operations[ACT])
    if UPDATE in described.operations:
        found.setdefault("learn", described.operations[UPDATE])
    return found


def native_backend(agent: Agent, seconds: float) -> WhatIf:
    """The same algorithm and environment without torch."""
    config = dataclasses.asdict(agent.config)
    native = type(agent)(agent.spec, seed=agent.seed, preset="none", threads=agent.threads, backend="native", **config)
    with native:
        native.prepare()
        own, other = _iterations(agent.learner, native.learner, seconds)
    pairs = {}
    before, after = ([sum(each.get(phase, 0.0) for phase in _COLLECTING) for each in side] for side in (own, other))
    for phase in (*_COLLECTING, "learn"):
        if all(phase in each for each in own):
            learns = phase == "learn"
            sides = [[each.get(phase, 0.0) for each in side] for side in (own, other)] if learns else [before, after]
            pairs[phase] = compared(*sides)
    return _of("backend_native", "--backend native", pairs)


Phases = dict[str, float]


def _iterations(own: Learner, other: Learner, seconds: float) -> tuple[list[Phases], list[Phases]]:
    """Seconds of every phase of iterations of two learners in turn, once both learn."""
    for learner in (own, other):
        most = time.perf_counter() + min(_MOST_SECONDS, 4 * seconds)
        for _ in range(_MOST_BEFORE_LEARNING):
            if "learn" in _one_iteration(learner) or time.perf_counter() > most:
                break
    taken: tuple[list[Phases], list[Phases]] = ([], [])
    end = time.perf_counter() + 2 * seconds
    for turn in range(100):
        if turn >= _LEAST_ROUNDS and time.perf_counter() > end:
            break
        for learner, into in zip((own, other), taken, strict=True):
            into.append(_one_iteration(learner))
    return taken


def _one_iteration(learner: Learner) -> dict[str, float]:
    """Seconds of every phase of the learner's next iteration."""
    spans: list[RawSpan] = []
    learner.iterate(TraceClock(spans), 0.5)
    sums: dict[str, float] = {}
    for name, _, start, end, *_ in spans:
        sums[name] = sums.get(name, 0.0) + (end - start) / 1e9
    return sums
