"""Processes and runs as if they had been watched, for tests that need no program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mileage.jobs.process import Ended, How
from mileage.profiling.model import Evidence
from mileage.profiling.programs.layers import ProgramSettings, layered
from mileage.profiling.programs.mileage_inside.lanes import KIND_BITS, KINDS
from mileage.profiling.programs.resources import Resources
from mileage.profiling.programs.trace import Calls, Process, StackFrame
from mileage.profiling.programs.watch import Watched

MAIN = StackFrame("/home/me/train.py", "<module>", 10, 1)
STEP = StackFrame("/home/me/envs.py", "Walk.step", 7, 5)
TORCH = StackFrame("/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", "Module._call_impl", 1, 1)


def process(samples: Sequence[tuple[Sequence[StackFrame], str, float, float]], *, delay: float = 0.0) -> Process:
    """A process whose samples have a stack, a kind of call, and seconds of wall-clock and CPU time."""
    made = Process(4711, words=("python", "train.py"), library="/usr/lib/python3.11", directory="/home/me")
    numbers: dict[tuple[int, StackFrame], int] = {}
    rows, now = [], 0
    for stack, kind, wall, cpu in samples:
        node = 0
        for frame in stack:
            key = (node, frame)
            if key not in numbers:
                made.frames.append(frame)
                made.above.append(node)
                numbers[key] = len(made.frames) - 1
            node = numbers[key]
        now += round(1e9 * wall)
        rows.append((now, round(1e9 * wall), round(1e9 * cpu), node, KINDS.index(kind), 0, round(1e9 * delay * wall)))
    made.samples = np.array(rows, np.int64).reshape(-1, 7)
    return made


def calls(**seconds: Sequence[float]) -> Calls:
    """Calls by kind (with _ for . and blanks), one after the other."""
    made, now = Calls(), 0
    names = {kind.replace(".", "_").replace(" ", "_"): number for number, kind in enumerate(KINDS)}
    for name, each in seconds.items():
        rows = []
        for one in each:
            rows += [now << KIND_BITS | names[name], now + round(1e9 * one), round(1e9 * one)]
            now += round(1e9 * one)
        made.add(np.array(rows, np.int64).tobytes())
    return made


def evidence(made: Process, workers: Sequence[Process] = (), **resources: object) -> Evidence:
    run = layered(made)
    settings = ProgramSettings(made, ())
    return Evidence(run.total, run.total, run, tuple(map(layered, workers)), Resources(**resources), settings)  # type: ignore[arg-type]


def watched(made: Process, command: Sequence[str] = ("python", "train.py"), **resources: object) -> Watched:
    return Watched(tuple(command), Ended(How.FINISHED, 0, 0), 0, evidence(made, **resources))


def lead(findings: Sequence[object]) -> Mapping[str, object]:
    return findings[0].as_dict()  # type: ignore[attr-defined, no-any-return]
