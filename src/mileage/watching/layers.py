"""What every sample was spent on: a timed call where one was open, or else what its stack says."""

from __future__ import annotations

import enum
import os
import re
from dataclasses import dataclass

import numpy as np

from mileage._loops import in_loop
from mileage._types import F64, I64
from mileage.watching.mileage_inside.lanes import KINDS
from mileage.watching.mileage_inside.sampler import PHASE_SHIFT
from mileage.watching.trace import Frame, Process


class Layer(enum.StrEnum):
    """Where time goes; at any instant one of them."""

    STEP = "env.step"
    RESET = "env.reset"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer.step"
    EVALUATION = "evaluation"
    LOGGING = "logging"
    CHECKPOINT = "checkpoint"
    CALLBACK = "callback"
    GENERATE = "generate"
    REPLAY = "replay buffer"
    FORWARD = "network forward"
    JAX = "jax"
    LOADING = "data loading"
    WAITING = "waiting for processes"
    COMPILE = "compiling"
    IMPORT = "importing"
    TORCH = "other torch"
    OTHER = "other"


_ORDER = list(Layer)
_BY_NUMBER = {number: Layer(name) for number, name in enumerate(KINDS) if name}
_MODULE = re.compile(r"/torch/nn/modules/module\.py$")
# The first rule that a frame of the stack meets, from the top of this list, decides; `call` is where an open call does.
_CALL = "call"
_RULES: tuple[tuple[Layer | str, re.Pattern[str]], ...] = (
    (Layer.IMPORT, re.compile(r"^<frozen importlib")),
    (Layer.COMPILE, re.compile(
        r"/torch/(_dynamo|_inductor)/|/jax/_src/(compiler|interpreters/(mlir|partial_eval))\.py$|/numba/core/"
    )),
    (_CALL, re.compile(r"(?!)")),
    (Layer.LOADING, re.compile(r"/torch/utils/data/dataloader\.py$")),
    (Layer.FORWARD, _MODULE),
    (Layer.JAX, re.compile(r"/jax(lib)?/|/(flax|optax|haiku|equinox)/")),
    (Layer.WAITING, re.compile(r"/multiprocessing/(connection|popen_\w+|synchronize)\.py$")),
    (Layer.TORCH, re.compile(r"/torch/")),
)  # fmt: skip
_CALL_RANK = next(rank for rank, (layer, _) in enumerate(_RULES) if layer == _CALL)
# Functions of the program itself, by their names: of these, an evaluation takes in what it calls. `evaluate_actions` is
# how a policy says its log-probabilities, in many libraries.
_NAMED = (
    (Layer.EVALUATION, re.compile(r"(^|\.)_?(run_|do_)?(evaluate|evaluation|eval)(_(?!actions?$)\w+)?$")),
    (Layer.LOGGING, re.compile(r"(^|\.)_?(log|log_\w+|write_(log|logs|metrics|scalars)|add_scalars?)$")),
    (Layer.CHECKPOINT, re.compile(r"(^|\.)_?save(_(checkpoint|ckpt|model|agent|policy|weights)\w*)$")),
)
_LIBRARY = re.compile(r"/(site|dist)-packages/")


class Code:
    """Whose code a frame is."""

    def __init__(self, process: Process) -> None:
        self._library = process.library.rstrip("/") + "/"
        self._typed = "<string>" if "-c" in process.words else "<stdin>"
        self._known: dict[str, bool] = {}

    def is_own(self, frame: Frame) -> bool:
        """Whether it is the program's own: neither the standard library nor an installed package."""
        found = self._known.get(frame.path)
        if found is None:
            inside = frame.path.startswith(self._library) and "-packages/" not in frame.path
            made = frame.path.startswith("<") and frame.path != self._typed  # by a program, at run time
            found = not (made or inside or not frame.path or _LIBRARY.search(frame.path))
            self._known[frame.path] = found
        return found


@dataclass(frozen=True)
class Layered:
    """The main thread of one process, sample by sample."""

    process: Process
    layers: I64
    """Number of the layer of every sample, (n,) int64."""
    own: I64
    """The stack up to its innermost frame of the program's own, or 0, of every sample, (n,) int64."""
    seconds: F64
    """Wall-clock of every sample without waiting for a core, (n,) float64."""
    waited_seconds: F64
    """What it waited for a core, which is nobody's doing but the machine's, (n,) float64."""
    cpu_seconds: F64
    """CPU time of the thread in it, (n,) float64."""
    is_own: tuple[bool, ...]
    """By stack: whether its innermost frame is the program's own."""

    @property
    def total(self) -> float:
        """Wall-clock of all samples."""
        return float(self.seconds.sum() + self.waited_seconds.sum())

    def of(self, *layers: Layer) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which samples belong to `layers`, (n,) bool."""
        return np.isin(self.layers, [_ORDER.index(layer) for layer in layers])

    def by_layer(self) -> dict[Layer, float]:
        """Seconds of each layer, the longest first."""
        sums = np.bincount(self.layers, self.seconds, len(_ORDER))
        found = {layer: float(sums[number]) for number, layer in enumerate(_ORDER) if sums[number] > 0}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def by_phase(self) -> dict[str, float]:
        """Seconds of each phase of the program's own clock of mileage, as sampled."""
        phases = self.process.main[:, 4] >> PHASE_SHIFT
        names = ["", *self.process.phases]
        sums = np.bincount(np.minimum(phases, len(names) - 1), self.seconds, len(names))
        return {name: float(sums[number]) for number, name in enumerate(names) if name and sums[number] > 0}


def layered(process: Process) -> Layered:
    """Assign every sample of the main thread of `process`."""
    main = process.main
    code = Code(process)
    is_own = tuple(code.is_own(frame) for frame in process.frames)
    rank, named, own = _of_stacks(process, is_own)
    stacks, kinds = main[:, 3], process.kinds
    layers = np.empty(len(main), np.int64)
    for row, (stack, kind) in enumerate(zip(stacks.tolist(), kinds.tolist(), strict=True)):
        layers[row] = _ORDER.index(_decide(rank[stack], named[stack], _BY_NUMBER.get(kind)))
    waited = np.minimum(main[:, 6], main[:, 1]) / 1e9
    seconds = main[:, 1] / 1e9 - waited
    cpu = np.minimum(main[:, 2] / 1e9, seconds)
    return Layered(process, layers, np.array(own, np.int64)[stacks], seconds, waited, cpu, is_own)


def _of_stacks(process: Process, is_own: tuple[bool, ...]) -> tuple[list[int], list[Layer | None], list[int]]:
    """By stack: the best rule it meets, what a name of its own functions says, and its innermost own frame."""
    rank, own = [len(_RULES)], [0]
    named: list[Layer | None] = [None]
    files: dict[str, int] = {}
    for number in range(1, len(process.frames)):
        frame, above = process.frames[number], process.above[number]
        if frame.path not in files:
            path = frame.path.replace(os.sep, "/")
            files[frame.path] = next((i for i, (_, rule) in enumerate(_RULES) if rule.search(path)), len(_RULES))
        rank.append(min(rank[above], files[frame.path]))
        own.append(number if is_own[number] else own[above])
        by_name = named[above]
        if by_name is not Layer.EVALUATION and is_own[number]:
            by_name = next((layer for layer, rule in _NAMED if rule.search(frame.function)), by_name)
        named.append(by_name)
    return rank, named, own


def loops_in_modules(process: Process, is_own: tuple[bool, ...]) -> I64:
    """By stack: its outermost own frame that is in a loop of Python within a module's call, or 0, (n,) int64."""
    inside, found = [False], [0]
    for number in range(1, len(process.frames)):
        frame, above = process.frames[number], process.above[number]
        inside.append(inside[above] or bool(_MODULE.search(frame.path.replace(os.sep, "/"))))
        own = inside[above] and is_own[number] and not found[above]
        loops = own and in_loop(frame.path, frame.first_line, frame.line)
        found.append(number if loops else found[above])
    return np.array(found, np.int64)


def _decide(rank: int, named: Layer | None, call: Layer | None) -> Layer:
    if rank < _CALL_RANK:
        return Layer(_RULES[rank][0])
    if named is Layer.EVALUATION or (named is not None and call in (None, Layer.CALLBACK)):
        return named
    if call is not None:
        return call
    return Layer(_RULES[rank][0]) if rank < len(_RULES) else Layer.OTHER
