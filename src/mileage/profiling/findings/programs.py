"""What a watched program waits for: findings with their line and what to try; updates that are too small.

Nothing is promised that was not measured: what a finding could save is at most the time that it takes.
"""

from __future__ import annotations

import enum
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import numpy as np

from mileage.measure import trend
from mileage.profiling.model import Evidence
from mileage.profiling.programs.layers import Layered, Place, ProgramLayer, WrittenSetting, hot_places, loops_in_modules
from mileage.profiling.programs.mileage_inside.lanes import KINDS
from mileage.records import Record

# --- Whether updates are so small that the time is in starting them and not in their arithmetic ---
_SIZE = 256
_FLOPS_PER_WEIGHT = 4  # of the gradient, per sample: with respect to weights and to inputs
_ARITHMETIC_SHARE = 0.1


@dataclass(frozen=True)
class SmallUpdates:
    """Updates whose arithmetic is a small part of them."""

    NAMES: ClassVar = ("batch_size", "minibatch_size", "mini_batch_size", "num_minibatches", "num_mini_batches",
                       "per_device_train_batch_size")  # fmt: skip
    updates: int
    backward_ms: float
    batch: int | None
    even_batch: int
    """The batch at which the arithmetic would take as long as everything does now."""

    def __str__(self) -> str:
        now = "" if self.batch is None else f" on batches of {self.batch}"
        spent = f"each of {self.updates:,} updates spends {self.backward_ms:.3g} ms on gradients{now}"
        return f"{spent}, but so little of it on arithmetic that {self.even_batch:,} samples would take about as long"


@cache
def core_flops() -> float:
    """Multiplications and additions a second of a matrix product on this machine, best of a few."""
    a = np.ones((_SIZE, _SIZE), np.float32)
    best = float("inf")
    for _ in range(9):
        start = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - start)
    return 2.0 * _SIZE**3 / best


def undersized_batch(evidence: Evidence, run: Layered) -> SmallUpdates | None:
    """What says so, if the batches are too small; None where it cannot be known: a GPU, convolutions, sequences."""
    process = run.process
    backward = process.calls.own("backward")
    optimizers = process.optimizers
    known = optimizers and all(each.flat and each.device == "cpu" for each in optimizers)
    if not known or len(backward) < 20 or process.calls.count[KINDS.index("generate")]:
        return None
    weights = max(each.weights for each in optimizers)
    seconds = float(np.median(backward)) / 1e9
    even = int(seconds * core_flops() / (_FLOPS_PER_WEIGHT * max(weights, 1)))
    batch = _batch(evidence)
    if (batch or 1) > _ARITHMETIC_SHARE * even:
        return None
    return SmallUpdates(int(process.calls.count[KINDS.index("optimizer.step")]), seconds * 1e3, batch, even)


def _batch(evidence: Evidence) -> int | None:
    for names in (("minibatch_size",), ("batch_size",), ("mini_batch_size",)):
        found = evidence.settings.find(*names)
        if found is not None and isinstance(found.value, int) and found.value > 0:
            return found.value
    return None


LEAST_SHARE = 0.05
"""Of the run, below which nothing is said of a layer."""
# A core's worth of others' work that is more than the odd daemon, and waiting that is more than a busy moment.
_OTHERS_CORES = 0.3
_WAITED_SHARE = 0.10
_DRIFT = 1.3
_DRIFT_P = 0.01
_DRIFT_BINS = 12
_FEWEST_CALLS = 240
_GROWTH_GB = 0.05
_GROWTH_SHARE = 0.2
_IDLE_GPU = 0.5
_MANY_CORES = 1.3
_OFF_CPU = 0.5
_NUMBERS = 4096
_TOUCHED = 2
"""How often an optimizer's step reads or writes each number of its state."""


class Trouble(enum.StrEnum):
    """What a program waits for."""

    SHARED_MACHINE = "shared machine"
    STEP = "env-bound"
    RESET = "reset-bound"
    LEARNING = "learn-bound"
    SMALL_BATCH = "undersized batch"
    INFERENCE = "inference-bound"
    EVALUATION = "eval-bound"
    LOGGING = "logging-bound"
    CHECKPOINT = "checkpoint-bound"
    CALLBACK = "callback-bound"
    REPLAY = "replay-bound"
    GENERATION = "generation-bound"
    COMPILING = "compile-bound"
    STARTING = "startup-bound"
    LOADING = "loading-bound"
    WAITING = "waiting for processes"
    OWN_CODE = "python-bound"
    LOOP = "python loop in forward"
    JAX = "jax-bound"
    THREADS = "many threads"
    DENORMALS = "denormal numbers"
    DRIFT = "drift"
    MEMORY = "memory growth"
    IDLE_GPU = "idle gpu"


ONCE = frozenset({Trouble.STARTING, Trouble.COMPILING})
"""What a run pays once, however long it is."""


@dataclass(frozen=True)
class ProgramFinding:
    """One thing that takes time, or will."""

    trouble: Trouble
    seconds: float
    """That it takes: all that can be saved."""
    share: float
    """Of the loop; of the run where it is paid once, or is not the program's doing."""
    evidence: str
    remedy: str
    place: Place | None = None
    settings: tuple[WrittenSetting, ...] = ()
    """Of the program itself, that bear on it."""
    under_load: bool = False
    """Seen while others used the machine."""

    def as_dict(self) -> Record:
        """As plain data."""
        place = self.place
        return {
            "trouble": str(self.trouble),
            "seconds": self.seconds,
            "share": self.share,
            "evidence": self.evidence,
            "remedy": self.remedy,
            "file": None if place is None else place.frame.path,
            "line": None if place is None else place.frame.line,
            "function": None if place is None else place.frame.function,
            "settings": [{"name": each.name, "value": each.value, "where": each.where, "options": list(each.options)}
                         for each in self.settings],
            "under_load": self.under_load,
        }  # fmt: skip


@dataclass(frozen=True)
class _About:
    trouble: Trouble
    layers: tuple[ProgramLayer, ...]
    remedy: str
    settings: tuple[tuple[str, ...], ...] = ()
    """Names that programs give to settings that bear on it, best first, of each such setting."""


_ENVS = ("num_envs", "n_envs", "num_env", "nenvs", "num_workers", "n_workers")
_EVERY = ("eval_freq", "eval_every", "eval_interval", "eval_frequency", "evaluation_interval", "eval_steps")
_L = ProgramLayer
_ABOUT = (
    _About(Trouble.STEP, (_L.STEP,), "make the step cheaper there, or step more environments at once", (_ENVS,)),
    _About(Trouble.RESET, (_L.RESET,), "do once what every reset repeats, or prepare episodes beside the run"),
    _About(Trouble.EVALUATION, (_L.EVALUATION,), "evaluate less often, or on fewer episodes",
           (_EVERY, ("n_eval_episodes", "eval_episodes", "num_eval_episodes", "episodes"))),
    _About(Trouble.LOGGING, (_L.LOGGING,), "write figures less often, or from a thread of their own",
           (("log_interval", "log_freq", "log_every", "logging_steps", "log_frequency"),)),
    _About(Trouble.CHECKPOINT, (_L.CHECKPOINT,), "save less often, or to a faster disk",
           (("save_freq", "save_interval", "save_every", "checkpoint_every", "save_steps"),)),
    _About(Trouble.CALLBACK, (_L.CALLBACK,), "do less there, or not at every step"),
    _About(Trouble.REPLAY, (_L.REPLAY,), "a smaller buffer stays in the cache; larger batches sample less often",
           (("buffer_size", "replay_size", "memory_size", "capacity"), ("batch_size",))),
    _About(Trouble.GENERATION, (_L.GENERATE,), "generate in larger batches, or with a server made for it",
           (("generation_batch_size", "num_generations", "per_device_train_batch_size"), ("max_completion_length",))),
    _About(Trouble.COMPILING, (_L.COMPILE,), "keep shapes the same from call to call, and cache compiled code"),
    _About(Trouble.STARTING, (_L.IMPORT,), "it is paid once per run: longer runs, or fewer imports"),
    _About(Trouble.LOADING, (_L.LOADING,), "load beside the run", (("num_workers", "dataloader_num_workers"),)),
    _About(Trouble.WAITING, (_L.WAITING,), "give the other processes less to do, or use more of them", (_ENVS,)),
    _About(Trouble.JAX, (_L.JAX,), "put more of the loop into one compiled call: a scan over steps", (_ENVS,)),
)  # fmt: skip
_LEARNING = (ProgramLayer.BACKWARD, ProgramLayer.OPTIMIZER)
_NETWORK = (*_LEARNING, ProgramLayer.FORWARD, ProgramLayer.TORCH)


def find(evidence: Evidence) -> tuple[ProgramFinding, ...]:
    """Everything that is to be said, what takes most first; a machine that others use comes before all of it."""
    if evidence.run is None:
        shared = _shared(evidence)
        return () if shared is None else (shared,)
    run = evidence.run
    found = [each for about in _ABOUT if (each := _of_layers(about, evidence, run)) is not None]
    found += _loop_and_network(evidence, run)
    found += _own_lines(evidence, run)
    found += [
        each
        for each in (_threads(evidence, run), _denormals(evidence, run), _idle_gpu(evidence), _memory(evidence))
        if each is not None
    ]
    found += _drift(evidence, run)
    # What is paid once says little about a longer run: it leads only where nothing that recurs is worth a word.
    found.sort(key=lambda each: (each.trouble in ONCE, -each.seconds))
    shared = _shared(evidence)
    return tuple(found) if shared is None else (shared, *(replace(each, under_load=True) for each in found))


def _of_layers(about: _About, evidence: Evidence, run: Layered) -> ProgramFinding | None:
    chosen = run.of(*about.layers)
    seconds = float(run.seconds[chosen].sum())
    once = about.trouble in ONCE
    whole = evidence.wall_seconds if once else evidence.loop_seconds
    if seconds <= LEAST_SHARE * whole:
        return None
    source, picked = evidence.where_it_is_done(run, about.layers)
    places = hot_places(source, picked, 1)
    place = places[0] if places else None
    text = f"{about.layers[0]} takes {seconds:.1f} s{_per_call(run, about.layers)}"
    if place is not None:
        beside = "" if source is run else f" in {len(evidence.workers)} worker processes"
        part = place.seconds / max(1e-9, float(source.seconds[picked].sum()))
        text += f"; {part:.0%} of it at {place}{beside}{'' if once else _how(place)}"
    settings = _settings(evidence, about.settings)
    remedy = about.remedy if once else _not_computing(place) + about.remedy
    return ProgramFinding(
        about.trouble, seconds, seconds / whole, text, _with_settings(remedy, settings), place, settings
    )


def _per_call(run: Layered, layers: Sequence[ProgramLayer]) -> str:
    if str(layers[0]) not in KINDS:
        return ""
    own = run.process.calls.own(str(layers[0]))
    if not len(own):
        return ""
    number = int(run.process.calls.count[KINDS.index(str(layers[0]))])
    p50, p99 = np.quantile(own, [0.5, 0.99]) / 1e6
    waited = ", waiting for a core included" if run.waited_seconds.sum() > _WAITED_SHARE * run.total else ""
    return f" in {number:,} calls (p50 {p50:.3g} ms, p99 {p99:.3g} ms{waited})"


def _how(place: Place) -> str:
    if place.off_cpu >= _OFF_CPU:
        return f", {place.off_cpu:.0%} of that off the CPU"
    return f", mostly in {place.inside}" if place.inside else ""


def _not_computing(place: Place | None) -> str:
    return "that line sleeps or waits: take the wait out; " if place is not None and place.off_cpu >= _OFF_CPU else ""


def _settings(evidence: Evidence, names: Sequence[Sequence[str]]) -> tuple[WrittenSetting, ...]:
    found = (evidence.settings.find(*group) for group in names)
    return tuple(each for each in found if each is not None)


def _with_settings(remedy: str, settings: Sequence[WrittenSetting]) -> str:
    return remedy + (f" [{'; '.join(str(each) for each in settings)}]" if settings else "")


def _loop_and_network(evidence: Evidence, run: Layered) -> list[ProgramFinding]:
    """A loop of Python in the forward pass, and the network; the loop alone where it is most of the network's time."""
    loops = replace(run, own=loops_in_modules(run.process, run.is_own)[run.process.main[:, 3]])
    forward = run.of(ProgramLayer.FORWARD)
    chosen = forward & (loops.own > 0)
    within, whole = float(run.seconds[chosen].sum()), float(run.seconds[forward].sum())
    # A loop has the part of the gradient that it has of the forward pass.
    seconds = within * (1.0 + float(run.seconds[run.of(ProgramLayer.BACKWARD)].sum()) / whole) if whole else 0.0
    network = _network(evidence, run)
    if seconds <= LEAST_SHARE * evidence.loop_seconds:
        return network
    (place,) = hot_places(loops, chosen, 1)
    text = f"{within / whole:.0%} of the forward pass is a loop of Python at {place}; with its gradient {seconds:.1f} s"
    remedy = "one operation on whole tensors in place of the loop"
    loop = ProgramFinding(Trouble.LOOP, seconds, seconds / evidence.loop_seconds, text, remedy, place)
    return [loop, *(each for each in network if each.seconds > 2.0 * seconds)]


def _network(evidence: Evidence, run: Layered) -> list[ProgramFinding]:
    """Forward passes, gradients and updates: one finding, for what is to be done about them is one thing."""
    chosen = run.of(*_NETWORK)
    seconds = float(run.seconds[chosen].sum())
    if seconds <= LEAST_SHARE * evidence.loop_seconds:
        return []
    learning = float(run.seconds[run.of(*_LEARNING)].sum())
    forward = float(run.seconds[run.of(ProgramLayer.FORWARD)].sum())
    places = hot_places(run, chosen, 1)
    place = places[0] if places else None
    share = seconds / evidence.loop_seconds
    parts = ", ".join(f"{layer} {value:.1f} s" for layer, value in run.by_layer().items() if layer in _NETWORK)
    text = f"the network takes {seconds:.1f} s ({parts})" + (f"; most at {place}" if place is not None else "")
    small = undersized_batch(evidence, run)
    if small is not None and learning >= forward / 2:
        settings = _settings(evidence, (small.NAMES,))
        remedy = "larger batches and fewer updates (they change what is learned: compare by the return reached)"
        remedy, text = _with_settings(remedy, settings), f"{text}; {small}"
        return [ProgramFinding(Trouble.SMALL_BATCH, seconds, share, text, remedy, place, settings)]
    trouble = Trouble.LEARNING if learning >= forward / 2 else Trouble.INFERENCE
    settings = _settings(evidence, (("batch_size", "minibatch_size", "num_minibatches"), ("update_epochs", "n_epochs"))
                         if trouble is Trouble.LEARNING else (_ENVS,))  # fmt: skip
    remedy = ("fewer updates, larger batches or a smaller network" if trouble is Trouble.LEARNING
              else "ask the network for more environments at once, or make it smaller")  # fmt: skip
    return [ProgramFinding(trouble, seconds, share, text, _with_settings(remedy, settings), place, settings)]


def _own_lines(evidence: Evidence, run: Layered) -> list[ProgramFinding]:
    """Lines of the program that are no call anybody knows."""
    found = []
    for place in hot_places(run, run.of(ProgramLayer.OTHER), 5):
        share = place.seconds / (evidence.loop_seconds or 1.0)
        if share >= LEAST_SHARE:
            text = f"{place.seconds:.1f} s at {place}{_how(place)}"
            remedy = _not_computing(place) + "do less there, or less often"
            found.append(ProgramFinding(Trouble.OWN_CODE, place.seconds, share, text, remedy, place))
    return found


def _threads(evidence: Evidence, run: Layered) -> ProgramFinding | None:
    """More cores in use than one, for a network so small that one would do."""
    threads = max((each.threads for each in run.process.optimizers), default=1)
    cores = evidence.cpu_seconds / evidence.wall_seconds
    small = undersized_batch(evidence, run)
    if threads < 2 or cores < _MANY_CORES or small is None or evidence.workers:
        return None
    return ProgramFinding(
        Trouble.THREADS, 0.0, 0.0,
        f"torch computes with {threads} threads and the program keeps {cores:.1f} cores busy; {small}",
        "try one thread: OMP_NUM_THREADS=1 in its environment (--try measures it)",
    )  # fmt: skip


@functools.cache
def denormal_seconds() -> float:
    """What a multiplication of a denormal number takes longer than one of a zero, on this CPU."""
    factor, out = np.full(_NUMBERS, 0.999, np.float32), np.empty(_NUMBERS, np.float32)
    best = []
    for value in (0.0, 1e-40):
        numbers, times = np.full(_NUMBERS, value, np.float32), []
        for _ in range(50):
            start = time.perf_counter()
            np.multiply(numbers, factor, out=out)
            times.append(time.perf_counter() - start)
        best.append(min(times))
    return max(0.0, best[1] - best[0]) / _NUMBERS


def _denormals(evidence: Evidence, run: Layered) -> ProgramFinding | None:
    """Moments of an optimizer that have decayed so far that some CPUs need a hundred cycles for each."""
    states = run.process.denormals.values()
    found, total = sum(each for each, _ in states), sum(each for _, each in states)
    steps = int(run.process.calls.count[KINDS.index("optimizer.step")]) // max(1, len(states))
    spent = float(run.seconds[run.of(ProgramLayer.OPTIMIZER)].sum())
    seconds = min(spent, _TOUCHED * found * steps * denormal_seconds())
    if seconds <= LEAST_SHARE * evidence.loop_seconds:
        return None
    return ProgramFinding(
        Trouble.DENORMALS,
        seconds,
        seconds / evidence.loop_seconds,
        f"{found / total:.0%} of the numbers in the optimizers' state are denormal (closer to 0 than floats can be in "
        f"full), each {denormal_seconds() * 1e9:.2g} ns slower than a 0 on this CPU",
        "torch.set_flush_denormal(True) before training takes them for zeros",
    )


def _idle_gpu(evidence: Evidence) -> ProgramFinding | None:
    busy = [each for each in evidence.resources.gpu_utilisation if each is not None]
    if not busy or max(busy) >= _IDLE_GPU:
        return None
    return ProgramFinding(Trouble.IDLE_GPU, 0.0, 0.0, f"the busiest GPU is idle {1 - max(busy):.0%} of the time",
                   "what leads this list keeps it waiting")  # fmt: skip


def _shared(evidence: Evidence) -> ProgramFinding | None:
    others, waited = evidence.resources.others_cores, evidence.waited_share
    if others is None or others < _OTHERS_CORES or (waited is not None and waited < _WAITED_SHARE):
        return None
    text = f"other programs used {others:.1f} of {evidence.resources.cores} cores"
    if waited is not None:
        text += f", and the main thread waited for one {waited:.0%} of the time"
    seconds = 0.0 if waited is None else waited * evidence.wall_seconds
    return ProgramFinding(Trouble.SHARED_MACHINE, seconds, seconds / evidence.wall_seconds, text,
                   "repeat on a quiet machine: everything below was seen under load")  # fmt: skip


def _memory(evidence: Evidence) -> ProgramFinding | None:
    growth = evidence.resources.growth
    if growth is None or growth.gained_gb < _GROWTH_GB or growth.gained_gb < _GROWTH_SHARE * growth.first_gb:
        return None
    text = (f"memory grows {growth.gb_per_hour:.2f} GB an hour, {growth.first_gb:.2f} to {growth.last_gb:.2f} GB in "
            f"the second half of the run")  # fmt: skip
    if growth.hours_left is not None:
        text += f"; what is free now lasts {growth.hours_left:.1f} hours"
    return ProgramFinding(
        Trouble.MEMORY, 0.0, 0.0, text, "look for what is kept at every step: lists, figures, graphs of losses"
    )


def _drift(evidence: Evidence, run: Layered) -> list[ProgramFinding]:
    """Calls that get slower as the run goes on; what that cost is measured against their first quarter.

    A call that waits for a core is no slower than others: nothing is said of a run that did.
    """
    found: list[ProgramFinding] = []
    if (evidence.waited_share or 0.0) >= _WAITED_SHARE:
        return found
    for layer in (
        ProgramLayer.STEP,
        ProgramLayer.RESET,
        ProgramLayer.BACKWARD,
        ProgramLayer.OPTIMIZER,
        ProgramLayer.LOGGING,
        ProgramLayer.REPLAY,
        ProgramLayer.CALLBACK,
    ):
        own = run.process.calls.own(str(layer))
        if len(own) < _FEWEST_CALLS:
            continue
        bins = [float(np.median(part)) for part in np.array_split(own, _DRIFT_BINS)]
        direction, p = trend(bins)
        first, last = np.median(bins[:3]), np.median(bins[-3:])
        if direction > 0 and p < _DRIFT_P and last >= _DRIFT * first:
            whole = float(run.seconds[run.of(layer)].sum())
            lost = min(max(0.0, float(own.sum() - first * len(own)) / 1e9), whole)
            text = (f"{layer} gets slower: median {first / 1e6:.3g} ms in the first quarter of its calls, "
                    f"{last / 1e6:.3g} ms in the last")  # fmt: skip
            place = next(iter(hot_places(run, run.of(layer), 1)), None)
            found.append(ProgramFinding(Trouble.DRIFT, lost, lost / (evidence.loop_seconds or 1.0), text,
                                 "look for what it goes through that grows with the run", place))  # fmt: skip
    return found


def verdict(findings: Sequence[ProgramFinding], evidence: Evidence) -> str:
    """The first finding in one line."""
    if not findings:
        return f"NO BOTTLENECK: nothing known takes {LEAST_SHARE:.0%} of the loop"
    shared = findings[0].trouble is Trouble.SHARED_MACHINE
    lead = next((each for each in findings if each.trouble is not Trouble.SHARED_MACHINE), None)
    said = f"SHARED MACHINE ({findings[0].evidence})" if shared else ""
    if lead is None:
        return said
    line = f" at {lead.place.where}" if lead.place is not None else ""
    whole = (
        f"the run ({evidence.wall_seconds:.1f} s)"
        if lead.trouble in ONCE
        else f"the loop ({evidence.loop_seconds:.1f} s)"
    )
    rest = f"{lead.trouble.upper()}: {lead.share:.0%} of {whole}{line}"
    return f"{said}; under load {rest}" if said else rest
