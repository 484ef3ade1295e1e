"""Jobs that are none of ours and never change: what they take says how fast the machine is at that moment.

They take turns with what is measured, round by round. A case that got slower while its control did as well tells of the
machine; one that got slower against its control tells of the code. There are two: one on one thread, and one that is
shared out over all cores and waits for the last of them, as kernels on a team of threads do.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from mileage._cores import usable_cores
from mileage.experiments import Arm
from mileage.experiments.timing import Measurement, Work

ONE, ALL = "control, one thread", "control, all cores"
_SIZE = 20_000
# A case that keeps more cores than this busy is held against the control on all of them.
_SEVERAL = 1.25


@dataclass(frozen=True)
class Standing:
    """Where a case stands against its control: in each round, how many times as long as the control it took."""

    walls: tuple[float, ...]
    cpus: tuple[float, ...]


def _job() -> float:
    """Arithmetic, sorting and a loop in the interpreter, some hundred microseconds of each."""
    rng = np.random.default_rng(0)
    values = rng.random(_SIZE)
    total = 0.0
    for value in values[:500].tolist():
        total += value
    return total + float(np.sort(values)[0] + np.exp(values).sum())


@functools.cache
def _pool(cores: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores, thread_name_prefix="mileage-control")


def _on_all(cores: int) -> None:
    for done in [_pool(cores).submit(_job) for _ in range(cores)]:
        done.result()


def arms(cores: int | None = None) -> list[Arm[Work]]:
    """Both controls, to take turns with a case."""
    cores = usable_cores() if cores is None else cores
    return [Arm(ONE, Work(_job)), Arm(ALL, Work(functools.partial(_on_all, cores)))]


def standing(
    walls: list[float], cpus: list[float], controls: dict[str, tuple[list[float], list[float]]]
) -> Standing | None:
    """A case by its control's times of the same rounds; None where no control was measured."""
    if not controls:
        return None
    busy = sorted(cpu / wall for cpu, wall in zip(cpus, walls, strict=True) if wall > 0.0)
    several = bool(busy) and busy[len(busy) // 2] > _SEVERAL
    wall_of, cpu_of = controls[ALL if several and ALL in controls else ONE]
    return Standing(
        tuple(own / max(control, 1e-12) for own, control in zip(walls, wall_of, strict=False)),
        tuple(own / max(control, 1e-12) for own, control in zip(cpus, cpu_of, strict=False)),
    )


def is_control(measurement: Measurement) -> bool:
    """Whether a measurement is that of a control."""
    return measurement.arm in (ONE, ALL)
