"""Whether updates are so small that the time is in starting them and not in their arithmetic."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from mileage.watching.evidence import Evidence
from mileage.watching.layers import Layered
from mileage.watching.mileage_inside.lanes import KINDS

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
