"""What a profile says: a bottleneck, its evidence, what removing it would bring, what to try."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mileage.profiling.programs.layers import Layered, ProgramLayer, ProgramSettings
from mileage.profiling.programs.resources import Resources
from mileage.records import PlainData, Record
from mileage.types import Bool

# A finding leads only if what it promises is worth the try; below this, the phase that takes longest leads.
WORTH_TRYING = 0.05
# A phase that takes this share of the wall-clock is named whether anything helps it or not.
DOMINANT = 0.5


class Bottleneck(enum.StrEnum):
    """What a run waits for."""

    SHARED_MACHINE = "shared_machine"
    ROLLOUT_BOUND = "rollout_bound"
    INFERENCE_DISPATCH_BOUND = "inference_dispatch_bound"
    ENV_BOUND = "env_bound"
    RESET_BOUND = "reset_bound"
    STORE_BOUND = "store_bound"
    NETWORK_BOUND = "network_bound"
    PYTHON_LOOP = "python_loop"
    MEMORY_GROWTH = "memory_growth"
    DRIFT = "drift"
    LEARNER_BOUND = "learner_bound"
    ADVANTAGE_BOUND = "advantage_bound"
    MEMORY_BOUND = "memory_bound"
    EVALUATION_BOUND = "evaluation_bound"
    CHECKPOINT_BOUND = "checkpoint_bound"
    LOGGING_BOUND = "logging_bound"
    COMPILATION_BOUND = "compilation_bound"
    STARTUP_BOUND = "startup_bound"
    TRANSFER_BOUND = "transfer_bound"
    SYNC_BOUND = "sync_bound"
    FAILED_RUN_BOUND = "failed_run_bound"
    UNDERSIZED_BATCH = "undersized_batch"
    IDLE_CORES = "idle_cores"
    OVERSUBSCRIBED_THREADS = "oversubscribed_threads"
    UNACCOUNTED = "unaccounted"

    @property
    def label(self) -> str:
        """As the verdict names it, such as LEARN-BOUND."""
        return _TITLES.get(self, self.value.upper().replace("_", "-"))

    @property
    def bound(self) -> bool:
        """Whether it names what the run waits for: never something that takes next to nothing."""
        return self.label.endswith("-BOUND")


_TITLES = {
    Bottleneck.LEARNER_BOUND: "LEARN-BOUND",
    Bottleneck.EVALUATION_BOUND: "EVAL-BOUND",
    Bottleneck.COMPILATION_BOUND: "COMPILE-BOUND",
    Bottleneck.INFERENCE_DISPATCH_BOUND: "DISPATCH-BOUND",
    Bottleneck.FAILED_RUN_BOUND: "FAILED-RUNS",
}

FIXES = (
    "threads", "n_envs", "minibatch", "batch", "backend_native", "torch_compile", "eval_every", "checkpoint_every",
    "processes", "warmup", "hidden", "episodes", "capacity",
)  # fmt: skip
"""Names of fixes that an experiment can apply; `Finding.fix` is one of them, or None."""


OF_TRAINING = frozenset(Bottleneck) - {
    Bottleneck.SHARED_MACHINE,
    Bottleneck.STARTUP_BOUND,
    Bottleneck.COMPILATION_BOUND,
    Bottleneck.FAILED_RUN_BOUND,
    Bottleneck.UNACCOUNTED,
}
"""Bottlenecks that a longer run of the same kind has too."""


@dataclass(frozen=True)
class Finding(PlainData):
    """One diagnosis."""

    bottleneck: Bottleneck
    share: float
    """Share of the wall-clock that the bottleneck takes now, 0 to 1."""
    evidence: str
    """What was measured, in one clause."""
    estimated_gain: float
    """Share of the wall-clock that the suggestion would save (Amdahl), 0 to 1."""
    suggestion: str
    """The next thing to try: a flag or a configuration."""
    fix: str | None = None
    """Name of the fix that an experiment can apply, one of `FIXES`; None if only a person can."""
    gain_interval: tuple[float, float] | None = None
    """95 % interval of the estimate; None where it follows from shares of the run alone."""
    at_most: bool = False
    """Whether the estimate is what removing all of it would save: a bound, and no promise."""
    under_load: bool = False
    """Whether others used the machine while this was measured."""
    phase: str | None = None
    """The phase that it is about; None where it is about several, or about none."""

    def as_dict(self) -> Record:
        """Plain data."""
        return super().as_dict() | {"bottleneck": self.bottleneck.value}

    @classmethod
    def from_dict(cls, data: Record) -> Finding:
        """Undo `as_dict`."""
        interval = data.get("gain_interval")
        kept = {"bottleneck": Bottleneck(data["bottleneck"]), "gain_interval": interval and tuple(interval)}
        return cls(**(data | kept))

    @property
    def promised(self) -> float:
        """What the suggestion would save, as far as anybody may rely on it: nothing where the interval includes it."""
        if self.at_most or (self.gain_interval is not None and self.gain_interval[0] <= 0.0):
            return 0.0
        return self.estimated_gain

    @property
    def estimate(self) -> str:
        """What the suggestion would save in a few words; empty where nothing is known."""
        return in_words(self.estimated_gain, self.gain_interval, at_most=self.at_most)

    @property
    def line(self) -> str:
        """The finding in one line, as the verdict shows it."""
        estimate = f" ({self.estimate})" if self.estimate else ""
        load = " [seen under load]" if self.under_load else ""
        return f"{self.bottleneck.label}: {self.evidence}; try {self.suggestion}{estimate}{load}"


def in_words(gain: float, interval: tuple[float, float] | None, *, at_most: bool) -> str:
    """A share of the wall-clock that would be saved; empty where it is next to nothing."""
    if interval is not None and interval[0] <= 0.0:
        return "below the noise"
    if gain < 0.005:
        return ""
    if at_most:
        return f"at most −{100.0 * gain:.0f} % wall"
    spread = "" if interval is None else f", {100.0 * interval[0]:.0f} to {100.0 * interval[1]:.0f}"
    return f"est. −{100.0 * gain:.0f} % wall{spread}"


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings in the order in which to act: those worth trying by what they would save, then by their share.

    A machine that others use comes before everything, for it colours all that follows. A phase that takes most of the
    time is named next even if nothing cheap helps it, unless what helps most is about that phase, or saves at least
    half as much.
    """

    def key(finding: Finding) -> tuple[float, float, float]:
        gain, bound = finding.promised, finding.estimated_gain if finding.at_most else 0.0
        return (gain if gain >= WORTH_TRYING else 0.0, bound if bound >= WORTH_TRYING else 0.0, finding.share)

    ordered = sorted(findings, key=key, reverse=True)
    phases = [each for each in ordered if each.bottleneck in OF_TRAINING and each.phase is not None]
    dominant = max(phases, key=lambda each: each.share, default=None)
    if dominant is not None and dominant.share >= DOMINANT:
        # What others say of the same phase, and can do something about, stands for it.
        best = max((each for each in ordered if each.phase == dominant.phase), key=key)
        if best.share >= DOMINANT and ordered[0].promised < 0.5 * dominant.share and not _about(ordered[0], dominant):
            ordered.remove(best)
            ordered.insert(0, best)
    return tuple(sorted(ordered, key=_urgency))


def _urgency(finding: Finding) -> int:
    """What comes before all others: who else is on the machine, then what will end the run."""
    if finding.bottleneck is Bottleneck.SHARED_MACHINE:
        return 0
    return 1 if finding.bottleneck is Bottleneck.MEMORY_GROWTH and finding.share > 0.0 else 2


def _about(finding: Finding, dominant: Finding) -> bool:
    """Whether a finding that promises something is about the phase that takes longest, or about all phases."""
    same = finding.phase == dominant.phase or (finding.phase is None and finding.share >= dominant.share)
    return same and finding.promised >= WORTH_TRYING


def amdahl(share: float, speedup: float) -> float:
    """Share of the whole that is saved when a part of it, `share`, gets `speedup` times as fast.

    >>> amdahl(0.5, 2.0)
    0.25
    """
    return share * (1.0 - 1.0 / speedup) if speedup > 0.0 else 0.0


# --- All that is known of a watched program when it has ended ---
_WAITS = frozenset({"_recv", "recv", "recv_bytes", "poll", "wait", "_recv_bytes"})


@dataclass(frozen=True)
class Evidence:
    """What findings are made of."""

    wall_seconds: float
    cpu_seconds: float
    """Of all its processes."""
    run: Layered | None
    """The process that trains; None if no Python of the program could be watched."""
    workers: tuple[Layered, ...]
    """Processes that it has started."""
    resources: Resources
    settings: ProgramSettings

    @property
    def waited_share(self) -> float | None:
        """Share of the run in which the main thread could have run and had no core; None where it is not known."""
        if self.run is None or self.run.total <= 0:
            return None
        return float(self.run.waited_seconds.sum()) / self.run.total

    @property
    def loop_seconds(self) -> float:
        """What recurs: the sampled time without imports, compilation and waiting for a core."""
        if self.run is None:
            return 0.0
        return float(self.run.seconds[~self.run.of(ProgramLayer.IMPORT, ProgramLayer.COMPILE)].sum())

    def where_it_is_done(self, run: Layered, layers: tuple[ProgramLayer, ...]) -> tuple[Layered, Bool]:
        """Whose samples show the lines of `layers`: the busiest worker's where the run only waits for workers."""
        chosen = run.of(*layers)
        leaves = run.process.main[:, 3][chosen]
        frames = run.process.frames
        waits = np.array([_is_wait(frames[leaf].path, frames[leaf].function) for leaf in leaves.tolist()], np.bool_)
        waited = float(run.seconds[chosen][waits].sum()) if len(waits) else 0.0
        if waited * 2 < float(run.seconds[chosen].sum()):
            return run, chosen
        found = [(float(each.seconds[each.of(*layers)].sum()), number) for number, each in enumerate(self.workers)]
        longest, number = max(found, default=(0.0, 0))
        return (self.workers[number], self.workers[number].of(*layers)) if longest > 0 else (run, chosen)


def _is_wait(path: str, function: str) -> bool:
    return "/multiprocessing/" in path and function.rpartition(".")[2] in _WAITS
