"""What every sample of a program was spent on, and at which line and by which settings."""

from __future__ import annotations

import ast
import enum
import linecache
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mileage.profiling.programs.mileage_inside.lanes import KINDS
from mileage.profiling.programs.mileage_inside.sampler import PHASE_SHIFT
from mileage.profiling.programs.trace import Process, Setting, StackFrame
from mileage.tables import plain
from mileage.types import F64, I64, Bool
from mileage.user_code import in_loop


class ProgramLayer(enum.StrEnum):
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


_ORDER = list(ProgramLayer)
_BY_NUMBER = {number: ProgramLayer(name) for number, name in enumerate(KINDS) if name}
_MODULE = re.compile(r"/torch/nn/modules/module\.py$")
# The first rule that a frame of the stack meets, from the top of this list, decides; `call` is where an open call does.
_CALL = "call"
_RULES: tuple[tuple[ProgramLayer | str, re.Pattern[str]], ...] = (
    (ProgramLayer.IMPORT, re.compile(r"^<frozen importlib")),
    (ProgramLayer.COMPILE, re.compile(
        r"/torch/(_dynamo|_inductor)/|/jax/_src/(compiler|interpreters/(mlir|partial_eval))\.py$|/numba/core/"
    )),
    (_CALL, re.compile(r"(?!)")),
    (ProgramLayer.LOADING, re.compile(r"/torch/utils/data/dataloader\.py$")),
    (ProgramLayer.FORWARD, _MODULE),
    (ProgramLayer.JAX, re.compile(r"/jax(lib)?/|/(flax|optax|haiku|equinox)/")),
    (ProgramLayer.WAITING, re.compile(r"/multiprocessing/(connection|popen_\w+|synchronize)\.py$")),
    (ProgramLayer.TORCH, re.compile(r"/torch/")),
)  # fmt: skip
_CALL_RANK = next(rank for rank, (layer, _) in enumerate(_RULES) if layer == _CALL)
# Functions of the program itself, by their names: of these, an evaluation takes in what it calls. `evaluate_actions` is
# how a policy says its log-probabilities, in many libraries.
_NAMED = (
    (ProgramLayer.EVALUATION, re.compile(r"(^|\.)_?(run_|do_)?(evaluate|evaluation|eval)(_(?!actions?$)\w+)?$")),
    (ProgramLayer.LOGGING, re.compile(r"(^|\.)_?(log|log_\w+|write_(log|logs|metrics|scalars)|add_scalars?)$")),
    (ProgramLayer.CHECKPOINT, re.compile(r"(^|\.)_?save(_(checkpoint|ckpt|model|agent|policy|weights)\w*)$")),
)
_LIBRARY = re.compile(r"/(site|dist)-packages/")


class Code:
    """Whose code a frame is."""

    def __init__(self, process: Process) -> None:
        self._library = process.library.rstrip("/") + "/"
        self._typed = "<string>" if "-c" in process.words else "<stdin>"
        self._known: dict[str, bool] = {}

    def is_own(self, frame: StackFrame) -> bool:
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

    def of(self, *layers: ProgramLayer) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which samples belong to `layers`, (n,) bool."""
        return np.isin(self.layers, [_ORDER.index(layer) for layer in layers])

    def by_layer(self) -> dict[ProgramLayer, float]:
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


def _of_stacks(process: Process, is_own: tuple[bool, ...]) -> tuple[list[int], list[ProgramLayer | None], list[int]]:
    """By stack: the best rule it meets, what a name of its own functions says, and its innermost own frame."""
    rank, own = [len(_RULES)], [0]
    named: list[ProgramLayer | None] = [None]
    files: dict[str, int] = {}
    for number in range(1, len(process.frames)):
        frame, above = process.frames[number], process.above[number]
        if frame.path not in files:
            path = frame.path.replace(os.sep, "/")
            files[frame.path] = next((i for i, (_, rule) in enumerate(_RULES) if rule.search(path)), len(_RULES))
        rank.append(min(rank[above], files[frame.path]))
        own.append(number if is_own[number] else own[above])
        by_name = named[above]
        if by_name is not ProgramLayer.EVALUATION and is_own[number]:
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


def _decide(rank: int, named: ProgramLayer | None, call: ProgramLayer | None) -> ProgramLayer:
    if rank < _CALL_RANK:
        return ProgramLayer(_RULES[rank][0])
    if named is ProgramLayer.EVALUATION or (named is not None and call in (None, ProgramLayer.CALLBACK)):
        return named
    if call is not None:
        return call
    return ProgramLayer(_RULES[rank][0]) if rank < len(_RULES) else ProgramLayer.OTHER


# --- Lines of the program: which of them time is spent at, and where its settings are written ---
_LONGEST_LINE = 60
_LARGEST_SOURCE = 2_000_000


@dataclass(frozen=True)
class Place:
    """A line of a file, and the time spent at it and in what it calls."""

    frame: StackFrame
    seconds: float
    cpu_seconds: float
    shown: str
    """The file, as seen from where the program ran."""
    inside: str = ""
    """What of a library it spends most of that in."""

    @property
    def off_cpu(self) -> float:
        """Share of its time in which its thread computed nothing."""
        return max(0.0, 1.0 - self.cpu_seconds / self.seconds) if self.seconds > 0 else 0.0

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self.shown}:{self.frame.line}"

    @property
    def text(self) -> str:
        """The line itself, if the file is there and says anything."""
        if not os.path.isabs(self.frame.path) and not os.path.isfile(self.frame.path):
            return ""
        return plain(linecache.getline(self.frame.path, self.frame.line).strip(), _LONGEST_LINE)

    def __str__(self) -> str:
        return f"{self.where} in {self.frame.function}" + (f": {self.text}" if self.text else "")


def shown_path(path: str, directory: str) -> str:
    """A file as seen from a directory; one elsewhere by its package or its full path."""
    if directory and path.startswith(directory.rstrip("/") + "/"):
        return plain(path[len(directory.rstrip("/")) + 1 :], 200)
    _, packages, rest = path.rpartition("-packages/")
    return plain(rest if packages else path, 200)


def hot_places(run: Layered, chosen: Bool | None = None, most: int = 10) -> list[Place]:
    """Lines of the program's own where the chosen samples, (n,) bool, are spent, the longest first.

    A sample counts for the innermost line of the program's own: what a library does for it is its time.
    """
    chosen = np.ones(len(run.seconds), np.bool_) if chosen is None else chosen
    process, stacks = run.process, run.process.main[:, 3]
    wall: Counter[StackFrame] = Counter()
    cpu: Counter[StackFrame] = Counter()
    within: dict[StackFrame, Counter[str]] = {}
    for row in np.flatnonzero(chosen).tolist():
        if own := int(run.own[row]):
            frame = process.frames[own]
            wall[frame] += run.seconds[row]
            cpu[frame] += run.cpu_seconds[row]
            if own != stacks[row]:
                within.setdefault(frame, Counter())[_callee(process, int(stacks[row]), own)] += run.seconds[row]
    return [
        Place(frame, seconds, cpu[frame], shown_path(frame.path, process.directory), _most(within.get(frame), seconds))
        for frame, seconds in wall.most_common(most)
    ]


def _callee(process: Process, stack: int, own: int) -> str:
    """The library's function that an own line called."""
    while process.above[stack] != own:
        stack = process.above[stack]
    frame = process.frames[stack]
    return f"{frame.function} ({shown_path(frame.path, process.directory)})"


def _most(within: Counter[str] | None, seconds: float) -> str:
    if not within:
        return ""
    name, most = within.most_common(1)[0]
    return plain(name, 200) if most >= seconds / 2 else ""


# Settings


@dataclass(frozen=True)
class WrittenSetting:
    """A setting with the line that it is written at, where one is."""

    name: str
    value: object
    where: str = ""
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        at = f" ({self.where})" if self.where else ""
        option = f", option {self.options[-1]}" if self.options else ""
        return f"{self.name} = {self.value!r}{at}{option}"


class ProgramSettings:
    """The program's settings: as they were when it ran, or else as its files write them."""

    def __init__(self, process: Process, files: Iterable[str]) -> None:
        self._ran: dict[str, Setting] = {}
        for setting in process.settings:
            known = self._ran.get(setting.name)
            if known is None or (setting.options and not known.options):
                self._ran[setting.name] = setting
        self._written: dict[str, tuple[object, str]] = {}
        for path in files:
            for name, value, line in _written(Path(path)):
                self._written.setdefault(name, (value, f"{shown_path(path, process.directory)}:{line}"))

    def find(self, *names: str) -> WrittenSetting | None:
        """The first of `names` that the program has."""
        for name in names:
            ran, written = self._ran.get(name), self._written.get(name)
            if ran is not None:
                return WrittenSetting(name, ran.value, written[1] if written else "", ran.options)
            if written is not None:
                return WrittenSetting(name, written[0], written[1])
        return None


def _written(path: Path) -> Iterator[tuple[str, object, int]]:
    """Names with a constant value in a source file: assignments, fields, keywords of calls, options of parsers."""
    try:
        if path.stat().st_size > _LARGEST_SOURCE:
            return
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                yield name, value, node.lineno
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=value)):
                yield name, value, node.lineno
            case ast.keyword(arg=str(name), value=ast.Constant(value=value)):
                yield name, value, node.lineno
            case ast.Dict(keys=keys, values=values):
                for key, each in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str) and isinstance(each, ast.Constant):
                        yield key.value, each.value, key.lineno
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=[ast.Constant(value=str(option)), *_]):
                default = next((each.value for each in node.keywords if each.arg == "default"), None)
                value = default.value if isinstance(default, ast.Constant) else None
                yield option.lstrip("-").replace("-", "_"), value, node.lineno
            case _:
                pass
