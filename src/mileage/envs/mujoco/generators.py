"""Gymnasium's random generator for each of many environments, with all their states in one array."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from mileage._types import U64

T = TypeVar("T")
_WORD, _LOW = 64, 2**64 - 1


class Generators:
    """`n` generators of NumPy's kind PCG64, which Gymnasium's environments draw from.

    `rows`, (n, 6) uint64, is their whole state: what is written there is what is drawn from next.
    """

    def __init__(self, n: int) -> None:
        self.rows: U64 = np.zeros((n, 6), np.uint64)
        self._generator = np.random.Generator(np.random.PCG64(0))

    def seed(self, row: int, seed: int) -> None:
        """Start a generator anew, as Gymnasium does with a seed."""
        self._keep(row, np.random.PCG64(np.random.SeedSequence(seed)))

    def draw(self, row: int, draw: Callable[[np.random.Generator], T]) -> T:
        """What `draw` makes of a generator, which goes on from there."""
        bits = self._generator.bit_generator
        high, low, step_high, step_low, has, left = (int(word) for word in self.rows[row])
        state = {"state": high << _WORD | low, "inc": step_high << _WORD | step_low}
        bits.state = {"bit_generator": "PCG64", "state": state, "has_uint32": has, "uinteger": left}
        drawn = draw(self._generator)
        self._keep(row, bits)
        return drawn

    def _keep(self, row: int, bits: np.random.BitGenerator) -> None:
        found = bits.state
        state, step = found["state"]["state"], found["state"]["inc"]
        words = (state >> _WORD, state & _LOW, step >> _WORD, step & _LOW, found["has_uint32"], found["uinteger"])
        self.rows[row] = words
